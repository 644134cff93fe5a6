"""However a process ends, the others notice: no hang, no orphan, nothing stale."""

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


def all_gone(processes: list[psutil.Process], within_s: float) -> list[Any]:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("words", [["quiet"], ["quiet", "thread"], ["quiet", "persistent"]], ids=" ".join)
def test_a_killed_worker_is_an_error_that_names_pid_and_signal(words: list[str]) -> None:
    process, workers = start(*words)
    began = time.monotonic()
    workers[1].kill()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 5
    assert (process.returncode != 0) or "thread" in words
    assert re.search(rf"RuntimeError: .*pid.* {workers[1].pid}", errors)
    assert "is killed by signal: Killed" in errors
    assert not all_gone(workers, 5)


@pytest.mark.parametrize("moment", [0.0, 0.003, 0.01, 0.03, 0.1, 0.3])
def test_no_orphan_of_a_killed_parent(moment: float) -> None:
    process, workers = start("quiet")
    time.sleep(moment)  # any moment will do
    process.kill()
    assert not all_gone(workers, 5)
    process.communicate()


def test_no_orphan_of_an_idle_killed_parent() -> None:
    process, workers = start("idle")
    process.kill()
    assert not all_gone(workers, 5)
    process.communicate()


@pytest.mark.parametrize("words", [["batches"], ["quiet"], ["quiet", "persistent"], ["idle"]], ids=" ".join)
def test_ctrl_c_ends_everything_at_once_with_one_keyboard_interrupt(words: list[str]) -> None:
    process, workers = start(*words)
    assert process.stdout is not None
    if words == ["batches"]:
        process.stdout.readline()
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 3
    assert errors.count("KeyboardInterrupt") == 1, errors
    assert process.returncode == -signal.SIGINT or process.returncode == 130
    assert not all_gone(workers, 5)


def test_an_idle_loader_wakes_nobody() -> None:
    process, workers = start("idle")
    everybody = [psutil.Process(process.pid), *workers]
    time.sleep(1.5)  # all prefetched batches are made by then
    before = [_wake_ups(one.pid) for one in everybody]
    time.sleep(6)
    after = [_wake_ups(one.pid) for one in everybody]
    process.kill()
    process.communicate()
    assert after == before
    assert not all_gone(workers, 5)


def _wake_ups(pid: int) -> int:
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if "voluntary_ctxt_switches" in line:
                total += int(line.split()[1])
    return total
