"""Who else uses the cores, from what the kernel tells."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker.measure.busy import TICKS, CoreWatch, Load, Sample, between, cpu_times, sample, stat_of, tree_s

STAT = """\
cpu  400 0 100 1000 50 0 0 40 0 0
cpu0 300 0 50 500 50 0 0 30 0 0
cpu1 100 0 50 500 0 0 0 10
intr 12345
"""
BUSY = "while True: pass"


def test_columns_of_the_cores_that_count() -> None:
    found = cpu_times(STAT, frozenset([0, 7]))
    assert found == {0: [value / TICKS for value in (300, 0, 50, 500, 50, 0, 0, 30)]}
    assert set(cpu_times(STAT, frozenset([0, 1]))) == {0, 1}


def test_a_process_whose_name_looks_like_the_end_of_it() -> None:
    text = f"17 (a) S 1 (b)) R 4 17 17 0 -1 4194304 1 2 3 4 {TICKS} {TICKS} {2 * TICKS} 0 20 0 1 0 99"
    assert stat_of(text) == (4, 4.0)


def test_a_tree_of_processes() -> None:
    known = {1: (0, 100.0), 2: (1, 1.0), 3: (2, 2.0), 4: (3, 4.0), 5: (1, 50.0)}
    assert tree_s(2, known) == 7.0
    assert tree_s(9, known) == 0.0


def test_between_two_samples() -> None:
    before = Sample(total=100.0, idle=50.0, stolen=1.0, own=5.0, cores=2)
    load = between(before, Sample(total=120.0, idle=54.0, stolen=2.0, own=10.0, cores=2))  # ten seconds of two cores
    assert load == Load(
        cores=2,
        idle=pytest.approx(0.4),
        own=pytest.approx(0.5),
        others=pytest.approx(1.0),
        stolen=pytest.approx(0.1),
        seconds=10.0,
    )
    assert load.taken == pytest.approx(1.1)
    assert load.matters
    assert "other processes kept 1.0 of 2 cores busy meanwhile, and other guests of the machine 0.1" in load.words()
    assert between(before, before).taken == 0


def test_what_others_take_matters_only_where_it_is_missing() -> None:
    assert not Load(cores=16, idle=10.0, own=4.0, others=2.0, stolen=0.0, seconds=1.0).matters
    assert Load(cores=16, idle=1.0, own=13.0, others=2.0, stolen=0.0, seconds=1.0).matters
    assert not Load(cores=2, idle=0.0, own=1.9, others=0.1, stolen=0.0, seconds=1.0).matters


def test_where_the_kernel_tells_nothing_nobody_took_anything(tmp_path: Path) -> None:
    before = sample(os.getpid(), tmp_path)
    assert between(before, sample(os.getpid(), tmp_path)).taken == 0


def test_work_of_our_own_children_is_ours_and_that_of_others_is_not() -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        ours, childs = CoreWatch(), CoreWatch(process.pid)
        began = time.process_time()
        while time.process_time() < began + 0.5 or child_s(process.pid) < 0.3:
            pass
        to_us, to_the_child = ours.load(), childs.load()
    finally:
        process.kill()
        process.wait()
    assert to_us.own * to_us.seconds >= 0.7  # of this process 0.5 s, of its child 0.3 s; the kernel counts in hundredths
    assert to_the_child.others * to_the_child.seconds >= 0.4  # this process is somebody else to its child


def child_s(pid: int) -> float:
    return stat_of(Path(f"/proc/{pid}/stat").read_text())[1]
