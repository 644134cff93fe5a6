"""`stoker run --ranks shared` on unmodified scripts of several ranks: the same losses, and workers that help each other."""

import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

UNEVEN = "uneven_ranks.py"
SAYS = re.compile(r"rank (\d+): .* ([\d,]+) batches made by workers of other ranks")


def run(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command, again if gloo fails, which it does now and then when one rank has ended and another is about to."""
    for _ in range(3):
        done = subprocess.run(command, capture_output=True, text=True, timeout=200)
        if done.returncode == 0 or "gloo" not in done.stderr.lower():
            break
    assert done.returncode == 0, done.stderr
    return done


def train(
    scripts: Path, ranks: int, *words: str, options: tuple[str, ...], restarts: int = 0
) -> tuple[str, str, dict[int, int]]:
    """What a script prints, what Stoker says of it, and how many batches of each rank others have made."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    launch += ["--nproc-per-node", str(ranks), "--max-restarts", str(restarts)]
    command = [*launch, sys.executable, "-m", "stoker", "run", *options, str(scripts / UNEVEN), *words]
    done = run(command)
    return done.stdout, done.stderr, {int(rank): int(count.replace(",", "")) for rank, count in SAYS.findall(done.stderr)}


SEED = ("--seed", "3")
WITHOUT: dict[object, tuple[str, str, dict[int, int]]] = {}


def train_alone(scripts: Path, ranks: int, *words: str, options: tuple[str, ...] = SEED) -> str:
    """The losses where no rank helps another. They are the same each time."""
    key = ranks, words, options
    if key not in WITHOUT:
        WITHOUT[key] = train(scripts, ranks, *words, options=options)
    losses, _, helped = WITHOUT[key]
    assert not helped
    return losses


CASES: dict[str, tuple[int, list[str], tuple[str, ...]]] = {
    "2 ranks": (2, ["--draws"], SEED),
    "2 ranks, unequal numbers of workers": (2, ["--unequal", "--persistent"], SEED),
    "4 ranks": (4, ["--draws", "--persistent"], SEED),
    "4 ranks that draw nothing, without a seed": (4, ["--unequal"], ()),
}


@pytest.mark.parametrize("name", CASES)
def test_losses_are_the_same_and_the_rank_behind_is_helped(name: str, scripts: Path) -> None:
    ranks, words, seed = CASES[name]
    shared, _, helped = train(scripts, ranks, *words, options=(*seed, "--ranks", "shared"))
    assert shared == train_alone(scripts, ranks, *words, options=seed)
    assert helped.get(0, 0) > 0


@pytest.mark.parametrize("kind", ["lightning", "accelerate", "spawn"])
def test_ranks_that_a_framework_starts(kind: str, scripts: Path) -> None:
    def losses(*options: str) -> tuple[str, int]:
        command = [
            sys.executable,
            "-m",
            "stoker",
            "run",
            *SEED,
            *options,
            str(scripts / "framework_ranks.py"),
            kind,
            "--draws",
        ]
        if kind == "accelerate":  # the others start their ranks themselves
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node=2"]
            command = [*launch, *command]
        done = run(command)
        helped = re.findall(r"([\d,]+) batches made by workers of other ranks", done.stderr)
        return done.stdout, sum(int(count) for count in helped)

    alone, none = losses()
    shared, helped = losses("--ranks", "shared")
    assert shared == alone
    assert len(alone.splitlines()) == 32
    assert not none and helped > 0


def test_a_rank_that_dies_is_started_again(scripts: Path, tmp_path: Path) -> None:
    alone = train_alone(scripts, 2, "--unequal", "--persistent")
    shared, _, _ = train(
        scripts, 2, "--persistent", "--dies", str(tmp_path), options=(*SEED, "--ranks", "shared"), restarts=1
    )
    assert shared.endswith(alone)  # the first attempt printed some losses before


def test_what_draws_without_a_seed_stays_as_it_is_and_says_how_to_share(scripts: Path) -> None:
    words = ("--draws", "--epochs", "1")
    plain, _, _ = train(scripts, 2, *words, options=())
    shared, says, helped = train(scripts, 2, *words, options=("--ranks", "shared"))
    assert shared == plain
    assert not helped
    assert says.count("stoker run --seed N") == 1


def test_two_jobs_of_two_ranks_in_a_group_prepare_everything_once(scripts: Path, tmp_path: Path) -> None:
    """Helping across ranks is off there, which one line of each job says."""
    alone = train_alone(scripts, 2, "--draws")

    def job() -> tuple[str, str, dict[int, int]]:
        options = (*SEED, "--group", f"ranks-{tmp_path.name}", "--ranks", "shared")
        return train(scripts, 2, "--draws", "--meets", str(tmp_path), options=options)

    with ThreadPoolExecutor() as jobs:
        found = [one.result() for one in [jobs.submit(job) for _ in range(2)]]
    for losses, said, helped in found:
        assert losses == alone
        assert said.count("in a group workers serve one rank of all its jobs") == 1
        assert not helped
    prepared = Counter((tmp_path / "prepared").read_text().split())
    assert len(prepared) == 128
    assert set(prepared.values()) == {2}  # once in each epoch, for both jobs
