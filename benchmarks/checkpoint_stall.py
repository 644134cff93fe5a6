"""For how long does one checkpoint hold up a training? Against torch.save and torch.distributed.checkpoint.

`held_up_ms` is the difference that one checkpoint makes to a block of iterations, so it holds whatever slows the loop, also
on the device; `call_ms` is how long the loop's own thread was inside calls. Medians of several blocks, contenders in turn.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

import harness
import stoker

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REST_S = 2.0
"""Before each block: a GPU that has been busy for a second is slower than one that has rested."""
PIPELINED = "only the writing beside the loop"
VGG16 = [(64, 3), (64, 64), (128, 64), (128, 128), (256, 128), (256, 256), (256, 256), (512, 256), *[(512, 512)] * 5]


def vgg16() -> list[tuple[int, ...]]:
    convolutions = [shape for out, into in VGG16 for shape in ((out, into, 3, 3), (out,))]
    return [*convolutions, (4096, 25088), (4096,), (4096, 4096), (4096,), (1000, 4096), (1000,)]


def gpt2() -> list[tuple[int, ...]]:
    block = [
        (768,),
        (768,),
        (768, 2304),
        (2304,),
        (768, 768),
        (768,),
        (768,),
        (768,),
        (768, 3072),
        (3072,),
        (3072, 768),
        (768,),
    ]
    return [(50257, 768), (1024, 768), *block * 12, (768,), (768,)]


class Training:
    """Weights of given shapes, an optimizer over them, and work of a given length between updates."""

    def __init__(self, shapes: list[tuple[int, ...]], kind: type[torch.optim.Optimizer], work: int, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(shape, device=DEVICE)) for shape in shapes])
        self.optimizer = kind(self.model.parameters(), lr=1e-9, **options)  # type: ignore[call-arg]
        for parameter in self.model:
            parameter.grad = torch.full_like(parameter, 1e-9)
        width = 8192 if DEVICE == "cuda" else 1024
        self.left = torch.randn(width, width, device=DEVICE, dtype=torch.bfloat16 if DEVICE == "cuda" else torch.float32)
        self.out = torch.empty_like(self.left)
        self.work = work
        self.before_update: Callable[[], None] = lambda: None

    def compute(self) -> None:
        for _ in range(self.work):
            torch.mm(self.left, self.left, out=self.out)

    def update(self) -> None:
        self.before_update()
        self.before_update = lambda: None
        self.optimizer.step()

    @property
    def state(self) -> dict[str, Any]:
        moments = {str(key): dict(state) for key, state in self.optimizer.state_dict()["state"].items()}
        return {"model": dict(self.model.state_dict()), "optimizer": moments}  # plain: DCP's stager takes nothing else

    @property
    def gigabytes(self) -> float:
        tensors = [*self.model.state_dict().values()]
        for state in self.optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return float(sum(tensor.nbytes for tensor in tensors)) / 2**30


def block_s(training: Training, save: Callable[[], float] | None, iterations: int) -> tuple[float, float]:
    """Seconds of a block whose first update is followed by a checkpoint, and how long calls took of it."""
    synchronize()
    time.sleep(REST_S)
    began = time.perf_counter()
    called = 0.0
    for number in range(iterations):
        training.compute()
        entered = time.perf_counter()
        training.update()
        called += time.perf_counter() - entered
        if number == 0 and save is not None:
            called += save()
    synchronize()
    return time.perf_counter() - began, called


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def compare(name: str, training: Training, rounds: int, iterations: int, place: Path) -> None:
    for _ in range(3):
        training.compute()
        training.update()
    synchronize()
    iteration_s = block_s(training, None, iterations)[0] / iterations
    checkpointers = {}
    contenders: dict[str, Callable[[], float] | None] = {"nothing": None}
    modes = {"stoker, snapshot in GPU memory": "gpu", "stoker, snapshot in host memory": "cpu", PIPELINED: "cpu"}
    for label, mode in modes.items():
        if mode == "gpu" and DEVICE == "cpu":
            continue
        checkpointer = stoker.Checkpointer(
            place / label,
            every=10**9,
            overlap=label != PIPELINED,
            on_signals=False,
            model=training.model,
            optimizer=training.optimizer,
        )
        checkpointer._copier.mode, checkpointer._is_mode_known = mode, True
        checkpointers[label] = checkpointer

        def ours(checkpointer: Any = checkpointer) -> float:
            checkpointer._wait_saved()
            checkpointer._timetable.retry = True
            return timed(checkpointer.step)

        contenders[label] = ours

    def torch_save() -> float:
        return timed(lambda: torch.save(training.state, place / "torch.pt"))

    def dcp_async() -> float:
        waiting = async_save(training.state, checkpoint_id=place / "dcp")
        training.pending = waiting  # type: ignore[attr-defined]
        return 0.0

    def dcp_staged() -> float:
        synchronize()
        on_gpu = DEVICE == "cuda"
        stager = DefaultStager(StagingOptions(on_gpu, True, True, on_gpu))  # before torch 2.13 one can be used only once
        began = time.perf_counter()
        response = async_save(training.state, checkpoint_id=place / "staged", async_stager=stager)
        training.before_update = lambda: response.staging_completion.result()  # type: ignore[union-attr]
        training.pending = response.upload_completion  # type: ignore[attr-defined, union-attr]
        return time.perf_counter() - began

    contenders |= {
        "torch.save": torch_save,
        "DCP async_save": dcp_async,
        "DCP async_save with its best stager": dcp_staged,
    }
    seconds: dict[str, list[float]] = {key: [] for key in contenders}
    called: dict[str, list[float]] = {key: [] for key in contenders}
    for number in range(rounds + 1):
        for key, save in contenders.items():
            if number > 3 and "stoker" not in key and key != "nothing":
                continue  # these take seconds, and three of them say enough
            taken, calls = block_s(training, save, iterations)
            if number:
                seconds[key].append(taken)
                called[key].append(calls)
            pending = training.__dict__.pop("pending", None)
            if pending is not None:
                pending.result()
            for path in ("dcp", "staged"):
                shutil.rmtree(place / path, ignore_errors=True)
            for checkpointer in checkpointers.values():
                checkpointer._wait_saved()
    plain = statistics.median(seconds["nothing"])
    plain_calls = statistics.median(called["nothing"])
    held_up = {key: 1e3 * (statistics.median(values) - plain) for key, values in seconds.items() if key != "nothing"}
    best = min(value for key, value in held_up.items() if "torch.save" in key or "DCP" in key)
    worst = max(value for key, value in held_up.items() if "stoker" in key)
    harness.report(
        f"milliseconds that a checkpoint holds up a training ({DEVICE}): {name}",
        ratio=best / max(worst, 0.1),
        gibibytes=training.gigabytes,
        iteration_ms=1e3 * iteration_s,
        held_up_ms=held_up,
        call_ms={
            key: 1e3 * (statistics.median(values) - plain_calls) for key, values in called.items() if key != "nothing"
        },
        persist_s={label: checkpointer.stats().persist_s for label, checkpointer in checkpointers.items()},
    )
    for checkpointer in checkpointers.values():
        checkpointer.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    work = 30 if DEVICE == "cuda" else 10
    cases: dict[str, Callable[[], Training]] = {
        "1 GiB, SGD": lambda: Training([(4096, 4096)] * 8, torch.optim.SGD, work, momentum=0.9),
        "VGG-16, SGD": lambda: Training(vgg16(), torch.optim.SGD, work, momentum=0.9),
        "GPT-2, Adam": lambda: Training(gpt2(), torch.optim.Adam, work),
    }
    for name, make in cases.items():
        with tempfile.TemporaryDirectory(dir=".") as place:
            compare(name, make(), options.rounds, 8 if DEVICE == "cuda" else 4, Path(place).absolute())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
