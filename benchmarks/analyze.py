"""Does `stoker analyze` tell the truth? Scripts with planted rates, on a disk that is limited for real.

Needs root and the blkio controller (cgroup v1). The truth of each rate is taken from plain runs of the same script with
torch's loader, in which only that stage costs anything. `ratio` is that of the rate that is farthest from it.
Then what the model predicts for other caches and workers is compared with real runs that have them.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import harness
from cache_epochs import limited
from stoker.decide.model import Share, predict
from stoker.measure import files
from stoker.profile import Profile

SCRIPT = Path(__file__).parents[1] / "tests" / "scripts" / "planted.py"
FILES, SIZE = 1500, 128 << 10
DISK = 50_000_000
BATCH = 16

CASES: dict[str, tuple[dict[str, Any], bool, str]] = {
    "the loop is the limit": ({"--compute": 0.08, "--prep": 0.004}, False, "gpu"),
    "preparing is the limit": ({"--compute": 0.02, "--prep": 0.008}, False, "prep"),
    "a limited disk is the limit": ({"--compute": 0.02, "--prep": 0.002}, True, "fetch"),
    "a limited disk, the loop is the limit": ({"--compute": 0.08, "--prep": 0.002}, True, "gpu"),
    "a limited disk, preparing is the limit": ({"--compute": 0.02, "--prep": 0.008}, True, "prep"),
    "latency is the limit": ({"--compute": 0.02, "--prep": 0.002, "--latency": 0.012}, False, "fetch"),
}
"""Costs are such that torch's own loader, whose runs are the truth, adds little to them."""


def run(words: list[Any], folder: str, disk: bool) -> str:
    """Run something, with a limited disk if asked."""
    text = [str(word) for word in words]
    with limited(folder, DISK if disk else None, None) as group:
        done = subprocess.run(text, capture_output=True, text=True, preexec_fn=group.join)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def paths(folder: str) -> list[str]:
    return [str(path) for path in Path(folder).glob("*.bin")]


def plain(folder: str, options: dict[str, Any], disk: bool, *, cold: bool = False) -> float:
    """Samples per second of a plain run."""
    if cold:
        files.cool(paths(folder), sync=True)
    else:
        files.warm(paths(folder))
    words = [word for pair in options.items() for word in pair]
    lines = run([sys.executable, SCRIPT, folder, *words, "--epochs", 1 if cold else 2], folder, disk).split()
    return float(lines[-1])


def analyzed(folder: str, options: dict[str, Any], disk: bool) -> Profile:
    words = [word for pair in options.items() for word in pair]
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "profile.json"
        run(
            [sys.executable, "-m", "stoker", "analyze", "--json", target, "--time", "3", SCRIPT, folder, *words],
            folder,
            disk,
        )
        return Profile.load(target)


def check_rates(folder: str, name: str) -> None:
    options, disk, limit = CASES[name]
    profile = analyzed(folder, options, disk)
    truth = {
        "gpu": plain(folder, {"--compute": options["--compute"], "--kind": "ready"}, disk),
        "prep": plain(folder, {"--prep": options["--prep"]}, disk),
    }
    if "--latency" in options:
        truth["storage"] = plain(folder, {"--latency": options["--latency"]}, disk)
    elif disk:
        truth["storage"] = plain(folder, {}, disk, cold=True)
    found = {stage: getattr(profile.rates, stage) for stage in truth}
    errors = {stage: found[stage] / truth[stage] - 1 for stage in truth}
    harness.report(
        f"analyze: {name}",
        ratio=1 + max(errors.values(), key=abs),
        limit_found=profile.limit,
        limit_planted=limit,
        stall=profile.stalls.prep + profile.stalls.fetch,
        **{f"{stage}_error": error for stage, error in errors.items()},
    )


def check_predictions(folder: str) -> None:
    """Real runs with part of the data in our cache, against predictions from one profile."""
    options: dict[str, Any] = {"--compute": 0.02, "--prep": 0.003}
    profile = analyzed(folder, options, True)
    errors = []
    for cached, workers in itertools.product((0.0, 0.25, 0.5, 0.75, 1.0), (1, 2)):
        expected = predict(profile.rates, Share(workers=workers, cached=cached)).rate
        real = cached_run(folder, options, cached, workers)
        errors.append(expected / real - 1)
        by = f"{workers} worker{'s' if workers > 1 else ''}"
        harness.report(
            f"analyze: predicted speed against a real one, {cached:.0%} cached, {by}",
            ratio=expected / real,
            predicted=expected,
            real=real,
        )
    sizes = sorted(map(abs, errors))
    harness.report("analyze: median error of these predictions", ratio=1 + statistics.median(sizes), worst=sizes[-1])


def cached_run(folder: str, options: dict[str, Any], cached: float, workers: int) -> float:
    words = [word for pair in options.items() for word in pair]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        plan = Path(place) / "plan.toml"
        size = max(1, round(cached * FILES)) * SIZE
        cache = f'[cache]\ncapacity_bytes = {size}\ndir = "{place}"\n' if cached else ""
        plan.write_text(f"version = 1\n{cache}")
        files.cool(paths(folder))
        command = [sys.executable, "-m", "stoker", "run", "--plan", plan, SCRIPT, folder, *words]
        return float(run([*command, "--workers", workers, "--epochs", 2, "--forget"], folder, True).split()[-1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(FILES):
            path = Path(folder) / f"{number:05d}.bin"
            path.write_bytes(os.urandom(SIZE))
            os.utime(path, (1, 1))
        os.sync()
        for name in CASES:
            check_rates(folder, name)
        check_predictions(folder)


if __name__ == "__main__":
    main()
