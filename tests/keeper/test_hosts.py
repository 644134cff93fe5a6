"""Several hosts that give each other what their caches hold: real ones, with networks and disks of their own."""

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.hosts import Host, Hosts, missing
from benchmarks.partitioned import Job, folder_of_files
from tests.tries import until

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"hosts inside this machine: {missing()}")

FILES = 240


@contextlib.contextmanager
def job_on(count: int, share: float, **options: Any) -> Iterator[Job]:
    with folder_of_files(FILES, 64_000, are_pictures=False) as data, Hosts(data.parent, count, memory="512m") as hosts:
        total = sum(path.stat().st_size for path in data.rglob("*.bin"))
        job = Job(hosts, data.parent, cache=int(total * share), has_peers=True, **options)
        try:
            yield job
        finally:
            job.close()


def keeper_of(host: Host) -> int:
    """The process that serves a host."""
    for pid in host.pids():
        with contextlib.suppress(OSError):
            if b"stoker.keeper" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
    raise AssertionError(f"{host.name} has no keeper")


def test_storage_is_read_once_and_a_host_that_was_gone_is_asked_again() -> None:
    with job_on(3, 0.36) as job:
        first = job.epoch(0)
        assert first["storage"] == pytest.approx(1, abs=0.02)
        until(lambda: job.epoch(1)["storage"] == 0)  # on a busy machine hosts may meet later than they wait for each other
        second = job.epoch(2)
        assert second["storage"] == 0
        assert min(second["peers"]) > 0.5

        # Its process is killed in the middle of an epoch, and started again by the job.
        before = [host.bytes_read() for host in job.hosts]
        job.begin(3)
        os.kill(keeper_of(job.hosts[1]), signal.SIGKILL)
        job.end(before)

        until(lambda: job.epoch(4)["storage"] == 0)  # who is back is asked again


def test_caches_that_hold_a_part_together() -> None:
    with job_on(2, 0.3) as job:
        job.epoch(0)
        until(lambda: job.epoch(1)["storage"] < 0.42)
        assert job.epoch(2)["storage"] == pytest.approx(0.4, abs=0.02)


def test_hosts_that_know_the_order_keep_what_they_use_soonest() -> None:
    with job_on(3, 0.36, policy="reuse-distance") as job:
        assert job.epoch(0)["storage"] == pytest.approx(1, abs=0.02)
        numbers = itertools.count(1)

        def is_settled() -> bool:
            """Whether some epochs read nothing from storage. Where the machine is busy, an answer may come too late."""
            later = [job.epoch(next(numbers)) for _ in range(4)]
            local = sum(sum(epoch["local"]) for epoch in later) / (3 * len(later))
            return sum(epoch["storage"] for epoch in later) == 0 and local > 0.42  # keep-first: 0.36

        until(is_settled)


@pytest.mark.soak
def test_peers_killed_stopped_and_cut_off_at_random_moments() -> None:
    chance = random.Random(18)
    with job_on(2, 0.65) as job:
        job.epoch(0)
        slowest, usual_s = 0.0, job.epoch(1)["seconds"]
        for number in range(2, 52):
            before = [host.bytes_read() for host in job.hosts]
            host = chance.choice(job.hosts)
            how = chance.choice(["kill", "stop", "cut"])
            job.begin(number)
            time.sleep(chance.random() * usual_s)
            with contextlib.suppress(AssertionError):  # it is just being started again
                if how == "cut":
                    host.cut_link()
                else:
                    pid = keeper_of(host)
                    os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            slowest = max(slowest, job.end(before)["slowest"])
            with contextlib.suppress(ProcessLookupError, AssertionError):
                if how == "cut":
                    host.cut_link(is_up=True)
                elif how == "stop":
                    os.kill(pid, signal.SIGCONT)
        print(f"slowest batch {slowest:.2f} s")
        assert slowest < 2 + 2  # a batch has 16 samples on two workers; each waits once at most
        until(lambda: job.epoch(52)["storage"] == 0, 60)
