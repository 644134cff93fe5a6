"""However a process ends, the others notice: no hang, no orphan, nothing stale."""

import multiprocessing.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.tries import HANG_S, fastest, seconds

import stoker

ENDLESS = Path(__file__).parents[1] / "scripts" / "endless.py"


def start(*words: str) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    process = subprocess.Popen(
        [sys.executable, str(ENDLESS), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pids = process.stdout.readline().split()
    assert len(pids) == 2, process.communicate()
    return process, [psutil.Process(int(pid)) for pid in pids]


def left(processes: list[psutil.Process]) -> list[Any]:
    """Those that do not end."""
    _, alive = psutil.wait_procs(processes, timeout=HANG_S)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def end_of(process: subprocess.Popen[str]) -> tuple[float, str]:
    """How long a process takes to end, and what it said of it."""
    said: list[str] = []
    took_s = seconds(lambda: said.append(process.communicate(timeout=HANG_S)[1]))
    return took_s, said[0]


@pytest.mark.parametrize("words", [["quiet"], ["quiet", "thread"], ["quiet", "persistent"]], ids=" ".join)
def test_a_killed_worker_is_an_error_that_names_pid_and_signal(words: list[str]) -> None:
    def kill() -> float:
        process, workers = start(*words)
        workers[1].kill()
        took_s, errors = end_of(process)
        assert (process.returncode != 0) or "thread" in words
        assert re.search(rf"RuntimeError: .*pid.* {workers[1].pid}", errors)
        assert "is killed by signal: Killed" in errors
        assert not left(workers)
        return took_s

    assert fastest(kill, 5.0) < 5.0


@pytest.mark.parametrize("moment", [0.0, 0.003, 0.01, 0.03, 0.1, 0.3])
def test_no_orphan_of_a_killed_parent(moment: float) -> None:
    process, workers = start("quiet")
    time.sleep(moment)  # any moment will do
    process.kill()
    assert not left(workers)
    process.communicate()


def test_no_orphan_of_an_idle_killed_parent() -> None:
    process, workers = start("idle")
    process.kill()
    assert not left(workers)
    process.communicate()


@pytest.mark.parametrize("words", [["batches"], ["quiet"], ["quiet", "persistent"], ["idle"]], ids=" ".join)
def test_ctrl_c_ends_everything_at_once_with_one_keyboard_interrupt(words: list[str]) -> None:
    def interrupt() -> float:
        process, workers = start(*words)
        assert process.stdout is not None
        if words == ["batches"]:
            process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        took_s, errors = end_of(process)
        assert errors.count("KeyboardInterrupt") == 1, errors
        assert process.returncode == -signal.SIGINT or process.returncode == 130
        assert not left(workers)
        return took_s

    assert fastest(interrupt, 3.0) < 3.0


def test_an_idle_loader_wakes_nobody() -> None:
    process, workers = start("idle")
    everybody = [psutil.Process(process.pid), *workers]
    time.sleep(1.5)  # all prefetched batches are made by then
    for _ in range(5):  # whatever stops and continues a machine wakes everybody
        before = [_wake_ups(one.pid) for one in everybody]
        time.sleep(6)
        after = [_wake_ups(one.pid) for one in everybody]
        if after == before:
            break
    process.kill()
    process.communicate()
    assert after == before
    assert not left(workers)


def _wake_ups(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if "voluntary_ctxt_switches" in line:
                total += int(line.split()[1])
    return total


class Numbers:
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return index


def die_at_the_end(worker: int) -> None:
    """When there is no more to do, while the loader waits for its workers to end."""
    if worker == 1:
        multiprocessing.util.Finalize(None, os.kill, (os.getpid(), signal.SIGKILL), exitpriority=100)


@pytest.mark.parametrize("options", [{}, {"seed": 1}], ids=["torch", "seed"])
def test_a_worker_that_dies_after_the_last_batch(options: dict[str, Any]) -> None:
    said = []
    for _ in range(20):  # it may be too late for anybody to care
        loader = stoker.DataLoader(Numbers(), 4, num_workers=2, worker_init_fn=die_at_the_end, **options)
        seen: list[int] = []
        try:
            for batch in loader:
                seen += batch.tolist()
        except RuntimeError as error:
            said.append(str(error))
        assert sorted(seen) == list(range(16))
        assert loader.state_dict()["samples"] == (16 if said else 0)  # of this epoch, or of the next
        if said:
            break
    assert options == {} or "killed by signal: Killed" in said[0]


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"persistent_workers": True}, {"group": "test-stopped"}], ids=str)
def test_a_stopped_worker_does_not_hold_up_close(options: dict[str, Any]) -> None:
    def close() -> float:
        before = psutil.Process().children()
        loader = stoker.DataLoader(Numbers(), 2, num_workers=2, **options)
        iterator = iter(loader)
        next(iterator)
        workers = [child for child in psutil.Process().children() if child not in before]
        workers[1].suspend()
        took_s = seconds(loader.close)
        assert not left(workers)
        return took_s

    assert fastest(close, 4.0) < 4.0


class Holding(Numbers):
    """Is killed while it holds the lock of the event that ends workers, if that has one, as all who look at it do."""

    def __getitem__(self, index: int) -> int:
        if index == 9:
            frame: Any = sys._getframe()
            while frame is not None and frame.f_code.co_name != "_worker_loop":
                frame = frame.f_back
            event = frame and frame.f_locals["done_event"]  # with a seed it is not torch's loop, and there is none
            if hasattr(event, "_cond"):
                event._cond.acquire()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


@pytest.mark.parametrize("options", [{}, {"seed": 1}], ids=str)
def test_a_worker_killed_while_it_looks_whether_to_end(options: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Holding(), 2, num_workers=2, **options)
    with pytest.raises(RuntimeError, match="killed by signal"):
        for _ in loader:
            pass
    loader.close()
