"""Little memory, a small /dev/shm, few descriptors: it works, or one error says what is needed and what to change."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tries import HANG_S

EPOCH = """
import torch, stoker
class Dataset(torch.utils.data.Dataset):
    def __len__(self): return {count}
    def __getitem__(self, i): return torch.full(({elements},), float(i))
kept = []
for batch in stoker.DataLoader(Dataset(), batch_size=4, num_workers={workers}):
    assert (batch[0] == batch[0, 0]).all()
    {keep}
print("done")
"""


def run(prefix: str, *, workers: int = 2, elements: int = 1 << 20, count: int = 80, keep: str = "") -> tuple[int, str, str]:
    code = EPOCH.format(workers=workers, elements=elements, count=count, keep=keep or "pass")
    command = f"{prefix} exec {sys.executable} -W ignore -c '{code}'"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=200)
    return result.returncode, result.stdout, result.stderr


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount file systems and make cgroups")


@needs_root
def test_dev_shm_of_64_mb() -> None:
    code = "unshare -m sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && df -m /dev/shm | tail -1'"
    probe = subprocess.run(["sh", "-c", code], capture_output=True, text=True)
    assert " 64 " in probe.stdout, probe.stderr
    inner = EPOCH.format(workers=2, elements=1 << 20, count=80, keep="kept.append(batch)")
    mount = "mount -t tmpfs -o size=64m tmpfs /dev/shm && exec"
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} {sys.executable} -c '{inner}'"], capture_output=True, text=True, timeout=200
    )
    assert result.stdout == "done\n", result.stderr


GROUP = """if True:
    import subprocess, sys
    import stoker, torch
    from stoker.errors import ResourceError
    from torch.utils.data import TensorDataset
    fill = lambda: subprocess.run("cat /dev/zero > /dev/shm/fill", shell=True, stderr=subprocess.DEVNULL)
    make = lambda workers: stoker.DataLoader(TensorDataset(torch.arange(40)), 4, num_workers=workers, group="full")
    if sys.argv[1] == "before": fill()
    try:
        loader = make(1)
        if sys.argv[1] == "workers": fill()
        for number, _ in enumerate(loader):
            if number == 0: fill()
        print("done", number, len(list(make(0))))
    except ResourceError as error: print(error)
"""


@needs_root
@pytest.mark.parametrize("when", ["before", "workers", "amid"])
def test_a_full_dev_shm_is_one_error_for_a_group_or_none(when: str) -> None:
    mount = "mount -t tmpfs -o size=4m tmpfs /dev/shm && exec"
    command = ["unshare", "-m", "sh", "-c", f"{mount} {sys.executable} -c '{GROUP}' {when}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if when == "amid":
        assert result.stdout == "done 9 10\n", result.stderr
    else:
        assert "no room for the group 'full' in /dev/shm: it needs 528 KB" in result.stdout, result.stderr
        assert "--shm-size" in result.stdout
    assert result.returncode == 0


def test_few_descriptors() -> None:
    assert run("ulimit -n 64;", keep="kept.append(batch)")[1] == "done\n"


def test_too_few_descriptors_are_one_error_that_says_what_to_change() -> None:
    code, out, errors = run("ulimit -n 24;", workers=12)
    assert code == 1
    assert not out
    assert "12 workers need about" in errors
    assert "may open 24 in all" in errors
    assert "ulimit -n" in errors


@needs_root
def test_a_memory_limit_that_suffices(memory_limit: Path) -> None:
    code, out, errors = run(f"echo $$ > {memory_limit}/cgroup.procs;", elements=1 << 20)
    assert (code, out) == (0, "done\n"), errors


@needs_root
def test_a_memory_limit_that_does_not_is_an_error_not_a_killed_process(memory_limit: Path) -> None:
    code, out, errors = run(f"echo $$ > {memory_limit}/cgroup.procs;", elements=12 << 20)
    assert code == 1, errors
    assert not out
    assert "ResourceError" in errors
    assert "MiB more and" in errors
    assert "Lower batch_size, num_workers or prefetch_factor" in errors


_GREEDY = """
import sys, torch, stoker
class Greedy:
    def __len__(self): return 8
    def __getitem__(self, index): return torch.ones(900 << 20, dtype=torch.uint8)[:1].clone()
for _ in stoker.DataLoader(Greedy(), 2, num_workers=2): pass
"""


@needs_root
def test_a_worker_that_the_oom_killer_ends_is_an_error_that_says_so(memory_limit: Path) -> None:
    words = f'echo $$ > {memory_limit}/cgroup.procs; exec "{sys.executable}" -c "$1"'
    outcome = subprocess.run(["sh", "-c", words, "sh", _GREEDY], capture_output=True, text=True, timeout=HANG_S)
    assert outcome.returncode == 1, outcome
    assert "killed by signal: Killed" in outcome.stderr


def test_little_address_space() -> None:
    """Memory is mapped far beyond what is used of it, but not where `ulimit -v` forbids it."""
    script = Path(__file__).parents[1] / "scripts" / "everything.py"
    words = f'ulimit -v 5000000; exec "{sys.executable}" "{script}"'
    done = subprocess.run(["sh", "-c", words], capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    assert "cache 24" in done.stdout
    assert done.stdout.splitlines()[-1] == "checkpoints"
