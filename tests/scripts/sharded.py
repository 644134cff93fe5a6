"""One process of those that share the state of a model under `fully_shard`. It does what it reads, and answers with a line.

save DIRECTORY STEP    a state that depends on the step; its digest
load DIRECTORY         into a fresh model; the step, the digest, and all warnings
narrow DIRECTORY       into a model of another shape
strange DIRECTORY      as `load`, but the last rank takes itself for another user
prune DIRECTORY KEEP   what was removed
"""

import hashlib
import json
import os
import sys
import warnings
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch.distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DeviceMesh, DTensor, init_device_mesh

from stoker.checkpoint.sharded import ShardedCheckpoints
from stoker.errors import CheckpointError


class Run:
    def __init__(self, seed: int, width: int = 13) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(7, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))
        fully_shard(self.model, mesh=mesh())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1 * seed)
        self.model(torch.rand(5, 7)).sum().backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "note": self.optimizer.param_groups[0]["lr"]}

    def set(self, state: dict[str, Any]) -> None:
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])

    def digest(self) -> str:
        digest = hashlib.sha256()
        _feed(digest, self.state())
        return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value):
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, torch.Tensor):
        digest.update((value.full_tensor() if isinstance(value, DTensor) else value).numpy().tobytes())
    else:
        digest.update(repr(value).encode())


@cache
def mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))


@cache
def checkpoints_in(directory: str) -> ShardedCheckpoints:
    return ShardedCheckpoints(directory)


def do(word: str, directory: str, number: str = "0") -> dict[str, Any]:
    checkpoints = checkpoints_in(directory)
    if word == "save":
        run = Run(int(number))
        assert any(isinstance(value, DTensor) for value in run.state()["model"].values())
        checkpoints.save(int(number), run.state())
        return {"digest": run.digest()}
    if word == "prune":
        return {"removed": checkpoints.prune(int(number))}
    run = Run(99, width=11 if word == "narrow" else 13)
    state = run.state()
    is_strange = word == "strange" and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1)
    with mock.patch("os.geteuid", return_value=os.geteuid() + is_strange):
        step = checkpoints.load(state)
    run.set(state)
    return {"step": step, "digest": run.digest(), "note": state["note"]}


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = f"file://{os.environ['RENDEZVOUS']}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world)
    torch.set_num_threads(1)
    for line in sys.stdin:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                answer = do(*line.split())
            except CheckpointError as error:
                answer = {"error": str(error)}
        answer["warnings"] = [str(warning.message) for warning in caught if "checkpoint" in str(warning.message)]
        print(json.dumps(answer), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
