"""Cores and memory under control groups: every ancestor's limit holds, in trees as launchers and containers make them."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tries import until

from stoker.host.cgroups import groups
from stoker.host.cores import usable_cores
from stoker.host.headroom import headroom_bytes, memory_bytes

GIB = 1 << 30
UNBOUND = 64 * GIB
UNIFIED = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
LEGACY = "{number} 23 0:{number} {root} /sys/fs/cgroup/{folder} rw,nosuid - cgroup cgroup rw,{folder}"


class System:
    """A host in a folder: what it says of groups and mounts, and the files of its groups."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "proc/self").mkdir(parents=True)
        (path / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {UNBOUND // 1024} kB\n")

    def says(self, own: str, *mounted: str) -> None:
        (self.path / "proc/self/cgroup").write_text(own + "\n")
        (self.path / "proc/self/mountinfo").write_text("\n".join(mounted) + "\n")

    def has(self, group: str, **files: object) -> None:
        folder = self.path / "sys/fs/cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name.replace("__", ".")).write_text(f"{content}\n")

    def has_unified(self, group: str, *, cores: float | None = None, memory: int | None = None, used: int = 0) -> None:
        quota = "max" if cores is None else int(cores * 100_000)
        limit = "max" if memory is None else memory
        stat = "inactive_file 0\nactive_file 0"
        self.has(group, cpu__max=f"{quota} 100000", memory__max=limit, memory__current=used, memory__stat=stat)

    def has_legacy(self, group: str, *, cores: float | None = None, memory: int | None = None, used: int = 0) -> None:
        quota = -1 if cores is None else int(cores * 100_000)
        self.has(f"cpu,cpuacct/{group}", cpu__cfs_quota_us=quota, cpu__cfs_period_us=100_000)
        limit = 9223372036854771712 if memory is None else memory
        stat = "total_inactive_file 0\ntotal_active_file 0"
        self.has(f"memory/{group}", memory__limit_in_bytes=limit, memory__usage_in_bytes=used, memory__stat=stat)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    return System(tmp_path)


def _legacy(root: str = "/") -> list[str]:
    folders = ["cpu,cpuacct", "memory"]
    return [LEGACY.format(number=31 + one, root=root, folder=folder) for one, folder in enumerate(folders)]


def test_a_host_without_groups_has_all(system: System) -> None:
    assert usable_cores(system.path) == 16
    assert headroom_bytes(system.path) == UNBOUND


def test_the_job_of_slurm_bounds_its_tasks(system: System) -> None:
    task = "system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
    system.says(f"0::/{task}", UNIFIED.format(root="/"))
    system.has_unified(task)
    system.has_unified("system.slice/slurmstepd.scope/job_7/step_0/user", memory=20 * GIB)
    system.has_unified("system.slice/slurmstepd.scope/job_7/step_0", cores=6)
    system.has_unified("system.slice/slurmstepd.scope/job_7", cores=4, memory=10 * GIB, used=GIB)
    assert usable_cores(system.path) == 4
    assert headroom_bytes(system.path) == 9 * GIB


def test_the_job_of_slurm_bounds_its_tasks_under_version_1(system: System) -> None:
    task = "slurm/uid_1000/job_7/step_0/task_0"
    system.says(f"5:cpu,cpuacct:/{task}\n4:memory:/{task}\n3:cpuset:/{task}", *_legacy())
    system.has_legacy(task)
    system.has_legacy("slurm/uid_1000/job_7", cores=2.5, memory=8 * GIB, used=2 * GIB)
    system.has_legacy("", cores=None)
    assert usable_cores(system.path) == 2.5
    assert headroom_bytes(system.path) == 6 * GIB


def test_a_pod_bounds_its_containers(system: System) -> None:
    """Seen from the host: the container has no limit of its own, its pod has."""
    pod = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
    system.says(f"0::/{pod}/cri-containerd-2.scope", UNIFIED.format(root="/"))
    system.has_unified(f"{pod}/cri-containerd-2.scope", cores=8)
    system.has_unified(pod, cores=3, memory=4 * GIB)
    assert usable_cores(system.path) == 3
    assert headroom_bytes(system.path) == 4 * GIB


def test_a_container_sees_its_own_group_at_the_top(system: System) -> None:
    """Version 1 without a namespace: the path is the host's, and the mount shows a part of the tree from there on."""
    pod = "/kubepods/burstable/pod1/2"
    system.says(f"5:cpu,cpuacct:{pod}/worker\n4:memory:{pod}/worker", *_legacy(root=pod))
    system.has_legacy("worker", cores=5)
    system.has_legacy("", cores=2, memory=GIB)
    assert usable_cores(system.path) == 2
    assert headroom_bytes(system.path) == GIB


@pytest.mark.parametrize("own", ["/", "/inner/most", "/../other", "/../..", "/docker/unseen"])
def test_a_namespace_of_groups_begins_at_its_top(system: System, own: str) -> None:
    system.says(f"0::{own}", UNIFIED.format(root="/"))
    system.has_unified("", cores=1.5, memory=2 * GIB)
    system.has_unified("inner", memory=3 * GIB)
    assert usable_cores(system.path) == 1.5
    assert headroom_bytes(system.path) == 2 * GIB


@pytest.mark.parametrize("own", ["/", "/deeper"])
def test_a_mount_from_outside_the_namespace_counts(system: System, own: str) -> None:
    """Its root is above this process's, by names that are not to be known."""
    system.says(f"0::{own}", UNIFIED.format(root="/../.."))
    system.has_unified("", cores=3)
    assert usable_cores(system.path) == 3


def test_a_host_with_both_versions(system: System) -> None:
    unified = UNIFIED.format(root="/").replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    system.says("5:cpu,cpuacct:/a/b\n4:memory:/a/b\n1:name=systemd:/c\n0::/a/b", *_legacy(), unified)
    system.has_legacy("a/b", cores=7)
    system.has_legacy("a", cores=6, memory=5 * GIB)
    system.has("unified/a/b", cgroup__procs="")
    assert usable_cores(system.path) == 6
    assert headroom_bytes(system.path) == 5 * GIB


def test_each_group_comes_once_and_before_its_parent(system: System) -> None:
    system.says("0::/a/b", UNIFIED.format(root="/"), UNIFIED.format(root="/").replace("/sys/fs", "/elsewhere"))
    top = system.path / "sys/fs/cgroup"
    assert groups("cpu", system.path) == (top / "a/b", top / "a", top)


def test_names_with_spaces(system: System) -> None:
    mounted = UNIFIED.format(root="/").replace("/sys/fs/cgroup", r"/sys/fs/cgroup\040here")
    system.says("0::/my job", mounted)
    folder = system.path / "sys/fs/cgroup here/my job"
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text("400000 100000\n")
    assert usable_cores(system.path) == 4


def test_caches_that_the_kernel_can_drop_are_free(system: System) -> None:
    system.says("0::/a", UNIFIED.format(root="/"))
    system.has_unified("a", memory=4 * GIB, used=3 * GIB)
    system.has("a", memory__stat=f"anon 1\ninactive_file {GIB}\nactive_file {GIB}")
    assert headroom_bytes(system.path) == 3 * GIB


def test_a_process_that_is_moved_is_looked_up_anew(system: System) -> None:
    system.has_unified("a", cores=2)
    system.has_unified("b", cores=3)
    for name, cores in (("a", 2), ("b", 3), ("a", 2)):
        system.says(f"0::/{name}", UNIFIED.format(root="/"))
        assert usable_cores(system.path) == cores


def test_headroom_is_within_what_the_host_has() -> None:
    assert 0 < headroom_bytes() <= memory_bytes()


# ---- the kernel's own


ASK = """
import os, pathlib, sys
for path in sys.argv[1:]:
    pathlib.Path(path, "cgroup.procs").write_text(str(os.getpid()))
from stoker.host.cores import usable_cores
from stoker.host.headroom import headroom_bytes
print(usable_cores(), headroom_bytes())
"""


@pytest.fixture
def nested() -> Iterator[dict[str, Path]]:
    """A group of a tenth of a core and 300 MB, and one without limits in it, by the names of controllers."""
    top, name = Path("/sys/fs/cgroup"), f"stoker-test-{uuid.uuid4().hex[:8]}"
    is_legacy = (top / "cpu/cpu.shares").exists()
    tops = {one: top / one if is_legacy else top for one in ("cpu", "memory")}
    made: list[Path] = []
    try:
        try:
            for one in dict.fromkeys(tops.values()):
                for folder in (one / name, one / name / "inner"):
                    folder.mkdir()
                    made.append(folder)
                    if not is_legacy:
                        (folder.parent / "cgroup.subtree_control").write_text("+cpu +memory")
            (tops["cpu"] / name / ("cpu.cfs_quota_us" if is_legacy else "cpu.max")).write_text("10000")
            limit = "memory.limit_in_bytes" if is_legacy else "memory.max"
            (tops["memory"] / name / limit).write_text(str(300 << 20))
        except OSError as error:
            pytest.skip(f"cannot make cgroups with limits: {error}")
        yield {one: tops[one] / name / "inner" for one in tops}
    finally:
        for folder in reversed(made):
            until(lambda folder=folder: not (folder / "cgroup.procs").read_text())
            folder.rmdir()


def test_the_limit_of_a_real_group_above_holds(nested: dict[str, Path]) -> None:
    places = [str(one) for one in dict.fromkeys(nested.values())]
    done = subprocess.run([sys.executable, "-c", ASK, *places], capture_output=True, text=True, check=True)
    cores, room = done.stdout.split()
    assert float(cores) == 0.1
    assert 0 < int(room) <= 300 << 20


def test_what_a_process_is_bound_to_counts() -> None:
    core = min(os.sched_getaffinity(0))
    ask = f"import os; os.sched_setaffinity(0, [{core}])\nfrom stoker.host.cores import usable_cores\nprint(usable_cores())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 1
