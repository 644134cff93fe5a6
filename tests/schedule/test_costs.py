"""What starts cost: learned from those that were, told to the simulator, and shorter with more cores."""

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.schedule.costs import start_cost
from stoker.schedule.job import Job, Server
from stoker.schedule.matrix import Matrix
from stoker.schedule.quota import leave, limited
from stoker.schedule.rules import Rules
from stoker.schedule.simulate import Simulation

FLAT = Matrix((1.0,), (1.0,), ((1.0,),), (1.0, 1.0))
HUNGRY = Matrix((1.0, 4.0), (1.0,), ((1.0,), (4.0,)), (4.0, 1.0))


def test_two_parts_are_told_apart_by_starts_with_other_cores() -> None:
    seen = [(cores, 2.0 + 3.0 / min(1.0, cores)) for cores in (0.1, 0.25, 0.25, 0.5, 2.0, 8.0)]
    assert start_cost(seen) == pytest.approx((2.0, 3.0), rel=1e-3)
    assert start_cost([(0.5, 8.0), (0.5, 9.0), (0.5, 30.0)]) == (9.0, 0.0)
    assert start_cost([(1.0, 5.0), (4.0, 6.0)]) == (5.5, 0.0)
    assert start_cost([(0.5, 4.0), (0.25, 3.0)]) == (3.5, 0.0)  # slower with more: that is chance


def test_a_start_with_a_part_of_a_core_takes_longer() -> None:
    """Two jobs on one server of 8 CPUs of .1 core each: one has 4, the other needs 1, which is all that it gets."""
    jobs = [Job("hungry", 1, 400, HUNGRY), Job("light", 1, 100, FLAT)]
    rules = Rules("fifo", "tune", 10.0, 1.0, start_work_s=2.0, core=0.1)
    history = Simulation(jobs, [Server("a", 2, 8.0, 2.0)], rules).run()
    assert history.ends_s == {"hungry": pytest.approx(1 + 2 / 0.4 + 100), "light": pytest.approx(1 + 2 / 0.1 + 100)}


def test_with_whole_cores_a_start_costs_the_same_whatever_is_given() -> None:
    rules = Rules(switch_cost_s=3.0, start_work_s=4.0)
    assert rules.start_s(1.0) == rules.start_s(16.0) == 7.0
    assert Rules(switch_cost_s=3.0).start_s(0.01) == 3.0


@pytest.mark.parametrize("cores", [0.04, 0.1, 1.5])
def test_a_quota_is_exact_however_small(cores: float) -> None:
    with limited("exact", cores) as group:
        if group is None:
            pytest.skip("no control group for cores can be made here")
        if (group / "cpu.max").exists():
            quota, period = map(int, (group / "cpu.max").read_text().split())
        else:
            quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        assert quota / period == pytest.approx(cores, rel=1e-3)
    assert not Path(group).exists()


def test_who_watches_leaves_the_quota_to_what_is_watched() -> None:
    with limited("watched", 0.5) as group:
        if group is None:
            pytest.skip("no control group for cores can be made here")
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            leave(group)
            assert (group / "cgroup.procs").read_text().split() == [str(child.pid)]
    assert not Path(group).exists()
