"""What does it cost a run that offloading is measured while it trains? Two real hosts (see `hosts`).

A script that trains a small model on JPEG pictures is run by `stoker run --seed 1` three times: alone, with `--offload`
and a worker on the other host for the first time, and so again. Losses must be equal bit for bit. `behind_s` is how many
seconds the run with `--offload` was behind the one without it when it was furthest behind, counted from its first batch.
The ratio is that part of an hour, of the first run.

    sudo python benchmarks/offload_profiling.py [--here 0.45] [--there 0.45] [--batches 400]
"""

import argparse
import json
import sys
import time
from typing import Any

PORT = 7100


def train(batches: int) -> None:
    """Be the script: print when each batch came, and each loss."""
    import torch
    from torch.utils.data import DataLoader

    import workloads

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(3 * 14 * 14, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader: Any = DataLoader(workloads.Jpegs(16 * batches, bank=64), 16, shuffle=True, num_workers=1, prefetch_factor=4)
    times, losses = [], []
    for pictures, labels in loader:
        times.append(time.perf_counter())
        pixels = pictures[:, ::16, ::16].float() / 255
        loss = torch.nn.functional.cross_entropy(model(pixels.flatten(1)), labels % 10)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()).hex())
    stats = loader.stats()
    print(json.dumps({"times": times, "losses": losses, "remote": stats.remote, "samples": stats.samples}), flush=True)


def behind_s(run: dict[str, Any], alone: dict[str, Any]) -> float:
    """How far a run was behind another one at most, counted from the first batch of each."""
    pairs = zip(run["times"], alone["times"], strict=True)
    return float(max((at - run["times"][0]) - (other - alone["times"][0]) for at, other in pairs))


def main() -> None:
    """Print a line."""
    import harness
    from hosts import with_secret

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--here", type=float, default=0.45, help="cores of the training host (default: 0.45)")
    parser.add_argument("--there", type=float, default=0.45, help="cores of the other one (default: 0.45)")
    parser.add_argument("--batches", type=int, default=400)
    options = parser.parse_args()
    with with_secret(2) as (hosts, environment):
        first, second = hosts
        first.limit_cores(options.here)
        second.limit_cores(options.there)
        address = f"tcp://{first.address}:{PORT}"
        worker = second.start([sys.executable, "-m", "stoker", "worker", address], env=environment)

        def run(*words: str) -> dict[str, Any]:
            command = [sys.executable, "-m", "stoker", "run", "--seed", "1", *words, __file__, "train"]
            return dict(json.loads(first.run([*command, str(options.batches)], env=environment).splitlines()[-1]))

        alone = run()
        runs = {"first": run("--offload", address), "again": run("--offload", address)}
        second.stop(worker)
    found = {which: behind_s(one, alone) for which, one in runs.items()}
    harness.report(
        "what measuring for --offload costs a run",
        ratio=max(0.0, found["first"]) / 3600,
        behind_s=found,
        seconds={"alone": _length(alone)} | {which: _length(one) for which, one in runs.items()},
        remote={which: one["remote"] / one["samples"] for which, one in runs.items()},
        are_losses_equal={which: one["losses"] == alone["losses"] for which, one in runs.items()},
    )


def _length(run: dict[str, Any]) -> float:
    return float(run["times"][-1] - run["times"][0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(int(sys.argv[2]))
    else:
        main()
