"""Has a change made anything slower? The same benchmarks in two checkouts, in turns within one run.

    git worktree add ../before COMMIT
    python benchmarks/before_after.py ../before throughput seeded threads

What is compared is the median rate of our loader, or where a benchmark tells none, the median of its ratios. Other work on
the machine only slows a run down, so of rates the best ones are compared, too. Both checkouts run with this Python, so it
needs the packages of both.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import harness

HERE = Path(__file__).resolve().parent.parent


def figures(checkout: Path, question: str, rounds: int) -> dict[str, tuple[float, bool]]:
    """The figure of each line that a benchmark prints in a checkout, and whether it is a rate."""
    environment = os.environ | {"PYTHONPATH": str(checkout / "src")}
    command = [sys.executable, "-W", "ignore", f"benchmarks/{question}.py", "--rounds", str(rounds)]
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["question"]: figure_of(line) for line in lines if "ratio" in line}


def figure_of(line: dict[str, Any]) -> tuple[float, bool]:
    """The rate of our loader (its threads, where kinds of workers are compared). Other contenders only add their noise."""
    rates = line.get("samples_per_s")
    rates = rates if isinstance(rates, dict) else {}
    rate = rates.get("stoker", rates.get("threads"))
    return (float(line["ratio"]), False) if rate is None else (float(rate), True)


def main() -> None:
    """Print one line for each line of the benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the checkout to compare with")
    parser.add_argument("questions", nargs="+", help="benchmarks, without .py")
    parser.add_argument("--turns", type=int, default=5, help="how often each checkout runs each benchmark (default: 5)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds within a benchmark (default: 3)")
    options = parser.parse_args()
    checkouts = {"before": options.before.resolve(), "after": HERE}
    for question in options.questions:
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: {"before": [], "after": []})
        rates: set[str] = set()
        for turn in range(options.turns):
            for name in sorted(checkouts, reverse=bool(turn % 2)):
                for line, (figure, is_rate) in figures(checkouts[name], question, options.rounds).items():
                    found[line][name].append(figure)
                    rates.update({line} if is_rate else ())
        for line, values in found.items():
            before, after = (statistics.median(values[name]) for name in ("before", "after"))
            best = {"best": max(values["after"]) / max(values["before"])} if line in rates else {}
            harness.report(f"{question}: {line}", ratio=after / before, **best, before=before, after=after)


if __name__ == "__main__":
    main()
