"""How long after a crash until training is where it was? Against a checkpoint at the end of each epoch.

One epoch is trained with checkpoints by themselves, and after every iteration it is noted which step a crash would fall
back to. Recovery is loading that checkpoint, and doing the iterations since then again; both are measured.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

import harness
import stoker
from checkpoint_overhead import SIZES, Training, plain_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="how often loading is timed (default: 5)")
    parser.add_argument("--iterations", type=int, default=1500, help="of an epoch (default: 1500)")
    options = parser.parse_args()
    training = Training(*SIZES["30 MB"])
    iteration_s = statistics.median(plain_s(training, 20) / 20 for _ in range(5))
    with tempfile.TemporaryDirectory(dir=".") as place:
        with stoker.Checkpointer(place, model=training.model, optimizer=training.optimizer) as checkpointer:
            again = []
            for step in range(1, options.iterations + 1):
                training.iterate()
                checkpointer.step()
                again.append(step - (checkpointer.stats().last_step or 0))
            stats = checkpointer.stats()
        whole = Path(place) / "epoch.pt"
        torch.save({"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}, whole)
        loading: dict[str, list[float]] = {"stoker": [], "torch.load": []}
        for _ in range(options.rounds):
            other = Training(*SIZES["30 MB"])
            began = time.perf_counter()
            with stoker.Checkpointer(place, model=other.model, optimizer=other.optimizer) as restoring:
                restoring.restore()
                loading["stoker"].append(time.perf_counter() - began)
            began = time.perf_counter()
            state = torch.load(whole)
            other.model.load_state_dict(state["model"])
            other.optimizer.load_state_dict(state["optimizer"])
            loading["torch.load"].append(time.perf_counter() - began)
    ours_s = statistics.median(loading["stoker"]) + statistics.mean(again) * iteration_s
    epoch_s = statistics.median(loading["torch.load"]) + options.iterations / 2 * iteration_s
    harness.report(
        f"seconds of recovery after a crash in an epoch of {options.iterations} iterations, 30 MB",
        ratio=epoch_s / ours_s,
        seconds={"stoker": ours_s, "checkpoint at the end of each epoch": epoch_s},
        loading_s={name: statistics.median(values) for name, values in loading.items()},
        iterations_again=statistics.mean(again),
        at_most_again=max(again),
        interval=stats.interval,
        checkpoints=stats.checkpoints,
    )


if __name__ == "__main__":
    main()
