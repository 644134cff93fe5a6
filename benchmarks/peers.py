"""How does Stoker compare with other loaders, on the same bytes, in one run?

Each contender has an environment of its own, with pinned versions, made once in `--folder` (~/.cache/stoker-peers); torch
and whatever else this environment has is used by all. `python benchmarks/peers.py setup` only makes them. All of a
workload are started, and then take turns: an epoch from cached files, one after the kernel was made to forget them, memory,
going on from the middle of an epoch. One line of JSON for each workload and contender; `--workload`, `--only`, `--rounds`.
`scripts/peers_page.py` makes docs/peers-compared.md of the lines.
"""

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from typing import Any

import psutil

from contenders import PINS
from contenders.payloads import WORKLOADS, Workload, write
from harness import report

HERE = Path(__file__).parent
RUN = time.strftime("%Y-%m-%d %H:%M:%S")
"""Tells the lines of this run from those of others."""
PATIENCE_S = 300
"""A contender that hangs is out."""


def environment(name: str, folder: Path) -> Path:
    """The python of a contender."""
    return folder / "environments" / name / "bin" / "python"


def data(workload: Workload, folder: Path) -> Path:
    """Where its payloads are, in all formats."""
    return folder / "data" / f"{workload.name}-{workload.count}"


def install(name: str, folder: Path) -> None:
    """Make a contender's environment, unless it is there with these versions."""
    pins = "\n".join(PINS[name])
    done = folder / "environments" / name / "pins.txt"
    if done.exists() and done.read_text() == pins:
        return
    print(f"installing {name}", file=sys.stderr)
    venv.create(folder / "environments" / name, clear=True)
    site = next((folder / "environments" / name / "lib").iterdir()) / "site-packages"
    (site / "of_the_caller.pth").write_text(f"{HERE.parent / 'src'}\n{sysconfig.get_path('purelib')}\n")
    if pins:
        command = [str(environment(name, folder)), "-m", "pip", "install", "--quiet", "--no-deps", *PINS[name]]
        subprocess.run(command, check=True, stdout=sys.stderr)
    done.write_text(pins)


class Contender:
    """A process that serves orders (`contenders/serve.py`)."""

    def __init__(self, name: str, workload: Workload, folder: Path) -> None:
        self.name = name
        self.failed = ""
        command = [str(environment(name, folder)), "-m", "contenders.serve", name, workload.name, str(workload.count)]
        command.append(str(data(workload, folder)))
        self.log = open(folder / f"{name}.log", "w")  # noqa: SIM115 - as long as its process lives
        self.process = subprocess.Popen(
            command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "STOKER_TOP": "0"},
        )  # fmt: skip

    def ask(self, order: str) -> dict[str, Any]:
        """Have something done. A contender that cannot is out, and its log says why."""
        if self.failed:
            return {}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(order + "\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
                self._end()
                self.failed = f"{order}: no answer within {PATIENCE_S} s"
                return {}
            return dict(json.loads(self.process.stdout.readline()))
        except (BrokenPipeError, json.JSONDecodeError):
            self.failed = f"{order}: see {self.log.name}"
            return {}

    def _end(self) -> None:
        """End it with all that it has started."""
        for process in [*psutil.Process(self.process.pid).children(recursive=True), self.process]:
            process.kill()

    def close(self) -> None:
        """Let it end."""
        assert self.process.stdin is not None
        if not self.failed:
            self.process.stdin.close()
        self.process.wait()
        self.log.close()


def compare(workload: Workload, names: list[str], folder: Path, rounds: int) -> None:
    """One workload: all in turn, round by round, so that every ratio is of two that ran within seconds."""
    plain = data(workload, folder) / "plain"
    if not (plain / ".done").exists():
        plain.mkdir(parents=True, exist_ok=True)
        write(workload, plain)
        (plain / ".done").touch()
    contenders = [Contender(name, workload, folder) for name in names]
    for one in contenders:
        one.ask("write")
    checks = {one.name: one.ask("check") for one in contenders}
    warm: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    cold: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(rounds):
        for one in contenders:
            warm[one.name].append(one.ask("epoch"))
        if number < max(1, rounds // 2):
            for one in contenders:
                cold[one.name].append(one.ask("cold"))
    memory = {one.name: one.ask("memory") for one in contenders}
    resumed = {one.name: one.ask("resume") for one in contenders}
    for one in contenders:
        one.close()
        has_run = all(warm[one.name]) and all(warm["stoker"])
        values = {} if not has_run else _row(warm[one.name], warm["stoker"]) | _cold(cold[one.name])
        contents = checks["stoker"].get("sum") == checks[one.name].get("sum") and bool(checks[one.name].get("all_once"))
        report(
            f"{workload.name}: {one.name}", workload=workload.name, contender=one.name, pins=PINS[one.name][:1],
            failed=one.failed, same=contents, **values, **memory[one.name], **resumed[one.name], rounds=rounds, run=RUN,
            load=round(os.getloadavg()[0], 1),
        )  # fmt: skip


def _row(own: list[dict[str, float]], ours: list[dict[str, float]]) -> dict[str, Any]:
    """What a contender did, and how many times as fast we were in the same rounds: the median, the least and the most."""
    ratios = [left["rate"] / right["rate"] for left, right in zip(ours, own, strict=True)]
    whole = [left["epoch_rate"] / right["epoch_rate"] for left, right in zip(ours, own, strict=True)]
    return {
        "samples_per_s": statistics.median(one["rate"] for one in own),
        "ratio": statistics.median(ratios),
        "spread": [min(ratios), max(ratios)],
        "epoch_ratio": statistics.median(whole),
        "first_batch_s": statistics.median(one["first_batch_s"] for one in own),
        "core_us": statistics.median(one["core_us"] for one in own),
    }


def _cold(own: list[dict[str, float]]) -> dict[str, Any]:
    return {"cold_samples_per_s": statistics.median(one["epoch_rate"] for one in own)} if all(own) else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["setup"], help="only make the environments")
    parser.add_argument(
        "--folder", type=Path, default=Path.home() / ".cache" / "stoker-peers", help="environments and data"
    )
    parser.add_argument("--workload", choices=list(WORKLOADS), action="append")
    parser.add_argument("--only", choices=list(PINS), action="append", help="these, beside stoker")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", type=float, default=1.0, help="of the samples, to try it out")
    options = parser.parse_args()
    names = list(dict.fromkeys(["stoker", *(options.only or PINS)]))
    folder = options.folder.resolve()
    for name in names:
        install(name, folder)
    if options.what is None:
        for workload in options.workload or WORKLOADS:
            compare(WORKLOADS[workload].part(options.part), names, folder, options.rounds)


if __name__ == "__main__":
    main()
