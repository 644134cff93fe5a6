"""A training that is killed, in whole or in part: writes down every sample that it has seen, and goes on where it was.

    python -m tests.soak.subject PLACE MODE [GROUP]

`PLACE/seen` has a line for each batch. What was written after the latest state is taken back before going on from it. At
the end every sample of every epoch stands there once. A killed worker is an error, after which the loop goes on, too.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

import stoker

SAMPLES, BATCH, EPOCHS = 96, 4, 3
MODES: dict[str, dict[str, Any]] = {
    "torch": {"num_workers": 2, "shuffle": True},
    "torch, persistent": {"num_workers": 2, "persistent_workers": True},
    "seed": {"num_workers": 2, "shuffle": True, "seed": 5},
    "seed, persistent": {"num_workers": 3, "shuffle": True, "seed": 5, "persistent_workers": True},
    "threads": {"num_workers": 2, "workers": "threads", "seed": 5},
    "no workers": {"num_workers": 0, "seed": 5, "shuffle": True},
    "cache": {"num_workers": 2, "seed": 5, "shuffle": True, "cache": "1MB"},
    "spawn": {"num_workers": 1, "seed": 5, "multiprocessing_context": "spawn"},
}


class Samples:
    """Sample number n is n, a thousand times; of a file, where there is one."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.015)  # there is time to be killed in
        with open(f"{self.folder}/{index}", "rb") as file:
            return torch.frombuffer(bytearray(file.read()), dtype=torch.int64), index


def make_files(folder: Path) -> None:
    folder.mkdir()
    for number in range(SAMPLES):
        (folder / str(number)).write_bytes(number.to_bytes(8, "little") * 1000)
        os.utime(folder / str(number), (1, 1))


def train(place: Path, mode: str, group: str | None) -> None:
    options = dict(MODES[mode])
    if "cache" in options:
        options["cache_dir"] = place.parent
    torch.manual_seed(11)
    loader = stoker.DataLoader(Samples(str(place.parent / "data")), BATCH, group=group, **options)
    seen, state = place / "seen", place / "state"
    epoch, length = 0, 0
    if group is None and state.exists():
        epoch, length, kept = json.loads(state.read_text())
        loader.load_state_dict(kept)
    os.truncate(seen, length) if seen.exists() else seen.touch()
    for number in range(epoch, EPOCHS):
        for values, labels in loader:
            wrong = "" if (values == labels.reshape(-1, 1)).all() else " WRONG"
            with seen.open("a") as file:
                file.write(f"{number} {' '.join(map(str, labels.tolist()))}{wrong}\n")
                file.flush()
                length = file.tell()
            if group is None:
                (place / "state.new").write_text(json.dumps([number, length, loader.state_dict()]))
                (place / "state.new").rename(state)
        if group is None:
            (place / "state.new").write_text(json.dumps([number + 1, length, loader.state_dict()]))
            (place / "state.new").rename(state)
    loader.close()


if __name__ == "__main__":
    while True:
        try:
            train(Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
            break
        except RuntimeError as error:
            if "killed by signal" not in str(error) and "exited unexpectedly" not in str(error):
                raise
    (Path(sys.argv[1]) / "done").touch()
