"""Two processes under DistributedDataParallel: whatever ends them, both go on from the same step as if nothing had been."""

import contextlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.checkpoint.processes import WORLD, children_of, end, outcomes, started
from tests.tries import HANG_S

SCRIPT = Path(__file__).parent.parent / "scripts" / "train_ddp.py"
STEPS = 24
EVERY = 3
HOLD = STEPS - 2
"""Nobody comes to the end before it is killed."""


def steps_on(directory: Path) -> list[int]:
    """The steps that are saved in a directory, the newest first."""
    return sorted((int(path.name.split("-")[0]) for path in directory.glob("*.json")), reverse=True)


def losses(place: Path, rank: int) -> list[tuple[int, str]]:
    path = place / f"losses-{rank}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(line.split()[0]), line.split()[1]) for line in lines if len(line.split()) == 2]


def reached(place: Path) -> list[int]:
    """The step that each rank has done last."""
    return [(losses(place, rank) or [(0, "")])[-1][0] for rank in range(WORLD)]


def until(condition: Callable[[], bool], processes: list[subprocess.Popen[str]]) -> None:
    """Wait for something that happens while all processes run."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < deadline
        run = all(process.poll() is None for process in processes)
        assert run or condition(), [process.communicate() for process in processes]
        time.sleep(0.002)


def restored(said: list[tuple[int, str, str]], code: int = 0) -> list[int]:
    """The step from which each rank went on. All have ended with the same code."""
    assert [outcome[0] for outcome in said] == [code] * len(said), said
    return [int(re.match(r"restored (\d+)", out)[1]) for _, out, _ in said]  # type: ignore[index]


def assert_identical(place: Path, twin: Path) -> None:
    """Every loss of every rank and attempt is the uninterrupted run's, and so is the end."""
    for rank in range(WORLD):
        expected = dict(losses(twin, rank))
        assert len(expected) == STEPS
        assert {step for step, _ in losses(place, rank)} == set(expected)
        for step, loss in losses(place, rank):
            assert expected[step] == loss, (rank, step)
        assert (place / f"end-{rank}").read_text() == (twin / f"end-{rank}").read_text()


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on two nodes that nobody interrupted."""
    place = tmp_path_factory.mktemp("twin")
    with started(SCRIPT, place, STEPS, "--every", EVERY, nodes=2) as processes:
        assert restored(outcomes(processes)) == [0, 0]
    for node in range(2):  # two that all nodes have for sure, and the newest
        assert steps_on(place / "checkpoints" / f"node-{node}") == [24, 21, 18]
    return place


def go_on(place: Path, *options: object, nodes: int = 1) -> tuple[int, list[tuple[int, str, str]]]:
    """Start again, to the end. The step that both ranks restored, and all that they said."""
    with started(SCRIPT, place, STEPS, "--every", EVERY, *options, nodes=nodes) as processes:
        said = outcomes(processes)
    first, second = restored(said)
    assert first == second
    return first, said


def kill_and_go_on(place: Path, rng: random.Random, kills: int) -> None:
    for _ in range(kills):
        with started(SCRIPT, place, STEPS, "--every", EVERY, "--pause", 0.05, "--hold", HOLD) as processes:
            until(lambda: bool(steps_on(place / "checkpoints")), processes)
            further = min(min(reached(place)) + rng.randint(1, 3), HOLD)
            until(lambda further=further: min(reached(place)) >= further, processes)
            time.sleep(rng.random() * 0.02)  # at any moment of a step
            for process in processes:
                process.kill()  # the process that writes may finish what it has begun
            for process in processes:
                process.wait()
    assert go_on(place)[0] > 0


def test_killed(tmp_path: Path, twin: Path) -> None:
    kill_and_go_on(tmp_path, random.Random(1), 1)
    assert_identical(tmp_path, twin)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_killed_again_and_again(tmp_path: Path, twin: Path, seed: int) -> None:
    kill_and_go_on(tmp_path, random.Random(seed), 4)
    assert_identical(tmp_path, twin)


def suspended_writer(place: Path, rank: int, every: int, processes: list[subprocess.Popen[str]]) -> psutil.Process:
    """The process that writes for a rank, stopped after it has saved a checkpoint, and before the next one is due."""

    def saved() -> int:
        path = place / f"saved-{rank}"
        return int(path.read_text() or 0) if path.exists() else 0

    until(lambda: saved() > 0, processes)
    (writer,) = children_of(processes[rank])
    while True:
        writer.suspend()
        until(lambda: writer.status() == psutil.STATUS_STOPPED, processes)
        if reached(place)[rank] < saved() + every:
            return writer
        writer.resume()


def test_one_rank_is_told_to_end(tmp_path: Path, twin: Path) -> None:
    directory = tmp_path / "checkpoints"
    with started(SCRIPT, tmp_path, STEPS, "--every", 10, "--pause", 0.05, "--hold", 18) as processes:
        writer = suspended_writer(tmp_path, 0, 10, processes)
        processes[1].send_signal(signal.SIGTERM)
        (tmp_path / "go").touch()
        with pytest.raises(subprocess.TimeoutExpired):  # a launcher ends all when one has ended
            processes[1].wait(1)
        writer.resume()
        said = outcomes(processes)
    assert restored(said, code=75) == [0, 0]
    last = steps_on(directory)[0]
    assert reached(tmp_path) == [last, last]
    assert 10 < last < STEPS
    assert go_on(tmp_path)[0] == last
    assert_identical(tmp_path, twin)
    assert len(losses(tmp_path, 0)) == STEPS  # nothing was done twice


def test_started_again_while_the_last_one_is_being_written(tmp_path: Path, twin: Path) -> None:
    with started(SCRIPT, tmp_path, STEPS, "--every", 10, "--keep", 1, "--pause", 0.05, "--hold", 18) as processes:
        writer = suspended_writer(tmp_path, 0, 10, processes)
        (tmp_path / "go").touch()
        try:
            until(lambda: min(reached(tmp_path)) > 21, processes)
            for process in processes:
                process.kill()
            with started(SCRIPT, tmp_path, STEPS, "--keep", 1) as again:
                assert again[0].stderr is not None
                assert "waiting for process" in again[0].stderr.readline()
                time.sleep(0.3)  # the other rank would have looked for checkpoints by now
                assert steps_on(tmp_path / "checkpoints") == [10]
                writer.resume()
                assert restored(outcomes(again)) == [20, 20]
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                writer.kill()
    assert_identical(tmp_path, twin)


def test_torchrun_is_told_to_end(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
    words += [str(SCRIPT), str(tmp_path), "100000", "--every", "50"]
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        until(lambda: bool(steps_on(directory)), [process])
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=HANG_S)
    finally:
        end([process])
    last = steps_on(directory)[0]
    assert reached(tmp_path) == [last, last], errors


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("node", [0, 1])
def test_the_newest_of_one_node_is_gone(tmp_path: Path, twin: Path, node: int) -> None:
    shutil.copytree(twin / "checkpoints", tmp_path / "checkpoints")
    for path in (tmp_path / "checkpoints" / f"node-{node}").glob(f"{STEPS:010d}-*"):
        if node:
            path.unlink()
        elif path.suffix == ".data":
            damage(path)
    first, said = go_on(tmp_path, nodes=2)
    assert first == STEPS - EVERY
    assert ["damaged checkpoint" in err for *_, err in said] == [node == 0, False]
    for rank in range(WORLD):
        assert losses(tmp_path, rank) == losses(twin, rank)[-EVERY:]
        assert (tmp_path / f"end-{rank}").read_text() == (twin / f"end-{rank}").read_text()


def test_an_older_one_stays_until_all_nodes_have_a_newer_one(tmp_path: Path, twin: Path) -> None:
    here, there = (tmp_path / "checkpoints" / f"node-{node}" for node in range(2))
    with started(SCRIPT, tmp_path, STEPS, "--every", EVERY, "--keep", 1, "--hold", 6, nodes=2) as processes:
        until(lambda: bool(steps_on(here)) and bool(steps_on(there)), processes)
        for writer in children_of(processes[1]):
            writer.rlimit(psutil.RLIMIT_FSIZE, (0, 0))  # the second node's disk is full
        (tmp_path / "go").touch()
        until(lambda: steps_on(here)[0] >= steps_on(there)[0] + 2 * EVERY, processes)
        end(processes)
    slow = steps_on(there)[0]
    assert slow in steps_on(here)
    assert go_on(tmp_path, "--keep", 1, nodes=2)[0] == slow
    assert_identical(tmp_path, twin)
    assert steps_on(there) == [STEPS, STEPS - EVERY]  # of the newest, nobody knows yet whether all have it


def test_nodes_that_have_measured_different_costs(tmp_path: Path, twin: Path) -> None:
    shutil.copytree(twin / "checkpoints", tmp_path / "checkpoints")
    for path in (tmp_path / "checkpoints" / "node-1").glob("*.json"):
        body = path.read_bytes().partition(b"\n")[0].replace(b'["interval",3]', b'["interval",7]')
        path.write_bytes(b"%b\ncrc32 %08x\n" % (body, zlib.crc32(body)))
    with started(SCRIPT, tmp_path, 2 * STEPS, nodes=2) as processes:  # the interval is the saved one, and then changes
        assert restored(outcomes(processes)) == [STEPS, STEPS]
    here, there = (steps_on(tmp_path / "checkpoints" / f"node-{node}") for node in range(2))
    assert here == there
    assert here[0] > STEPS
