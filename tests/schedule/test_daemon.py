"""The daemon against a cluster that is only pretended: what it does when leases end, get lost, or are started twice."""

import contextlib
import fcntl
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stoker.cli import main
from stoker.errors import CommandError
from stoker.schedule import slurm
from stoker.schedule.backend import LeaseOrder, Node
from stoker.schedule.daemon import Daemon
from stoker.schedule.job import Server
from stoker.schedule.marks import SAVED, Marks, if_free
from stoker.schedule.matrix import Matrix, Reads
from stoker.schedule.rules import Rules
from stoker.schedule.state import State, Wish

HUNGRY = Matrix((1.0, 2.0, 4.0, 8.0), (1.0,), ((1.0,), (2.0,), (4.0,), (8.0,)), (8.0, 1.0))
LIGHT = Matrix((1.0,), (1.0,), ((1.0,),), (1.0, 1.0))


class Cluster:
    """Does what it is told, and remembers it. Tests play the leases."""

    def __init__(self, *servers: Server) -> None:
        self.servers = {server.name: Node(server, True) for server in servers}
        self.there: dict[str, bool] = {"of somebody else": True}
        self.orders: dict[str, LeaseOrder] = {}
        self.said: list[tuple[str, str]] = []
        self.answers = True
        self.refuses = ""
        self.silence = ""

    def nodes(self) -> list[Node] | None:
        return list(self.servers.values()) if self.answers else None

    def leases(self) -> Mapping[str, bool] | None:
        return dict(self.there) if self.answers else None

    def submit(self, order: LeaseOrder) -> str:
        assert order.name not in self.orders, "a lease is handed over once"
        self.orders[order.name] = order
        if not self.refuses:
            self.there[order.name] = True
        return self.refuses

    def stop(self, name: str) -> None:
        self.said.append(("stop", name))

    def cancel(self, name: str) -> None:
        self.said.append(("cancel", name))


class World:
    """A state, a cluster, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now = folder, 1000.0
        self.state = State(folder, make=True)
        self.cluster = Cluster(Server("a", 2, 10.0, 100.0), Server("b", 2, 10.0, 100.0))
        self.words: list[str] = []
        self.daemon = self.start()

    def start(self, *, measures: bool = False, **rules: object) -> Daemon:
        """A daemon, as after a kill: nothing but the state is left of the one before."""
        chosen = Rules(**({"round_s": 10.0, "switch_cost_s": 1.0} | rules))  # type: ignore[arg-type]
        self.daemon = Daemon(
            self.state, self.cluster, chosen, tell=self.words.append, clock=lambda: self.now, measures=measures
        )
        return self.daemon

    def submit(self, matrix: Matrix | None = LIGHT, **more: object) -> str:
        return self.state.submit(Wish(("train.py",), "/", {}, matrix, **more))  # type: ignore[arg-type]

    def pass_round(self) -> None:
        self.now += 11
        self.daemon.look()

    def living(self, job: str) -> list[int]:
        return [one.lease.number for one in self.state.leases(job)]

    def end(self, job: str, number: int, code: int) -> None:
        """A lease ends, as its process says."""
        marks = Marks(self.state.job_folder(job), number)
        marks.write("exit", {"code": code, "word": ""})
        del self.cluster.there[f"stoker-{self.state.token}-{job}-{number}"]

    def begin(self, job: str, number: int) -> None:
        Marks(self.state.job_folder(job), number).write("ready", {"pid": 1, "saved": 0})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "state")
    yield world
    world.state.close()


def test_jobs_run_wait_and_end(world: World) -> None:
    jobs = [world.submit() for _ in range(5)]
    world.daemon.look()
    assert len(world.cluster.orders) == 4
    assert "4 of 4 are in use" in world.state.job(jobs[4]).why
    world.end(jobs[0], 1, 0)
    world.pass_round()
    assert world.state.job(jobs[0]).status == "done"
    assert world.living(jobs[4]) == [1]
    world.end(jobs[1], 1, 3)
    world.pass_round()
    assert (world.state.job(jobs[1]).status, world.state.job(jobs[1]).code) == ("failed", 3)


def test_a_lease_that_has_ended_does_not_stay_in_the_cluster_that_was_not_told(world: World) -> None:
    job = world.submit()
    world.daemon.look()
    name = f"stoker-{world.state.token}-{job}-1"
    world.cluster.there["stoker-00000000-1-1"] = True  # of another scheduler
    world.end(job, 1, 0)
    world.cluster.there[name] = True  # as with a slurmctld that was killed before it had written down the end
    world.daemon.look()
    assert world.cluster.said == [], "a lease that has just ended needs a moment"
    world.pass_round()
    assert world.cluster.said == [("cancel", name)]
    world.now += 1
    world.daemon.look()
    del world.cluster.there[name]
    world.pass_round()
    assert world.cluster.said == [("cancel", name)]


def test_a_job_that_is_done_has_done_what_its_last_lease_told(world: World) -> None:
    job = world.submit(iterations=40)
    world.daemon.look()
    marks = Marks(world.state.job_folder(job), 1)
    marks.write("ready", {"pid": 1, "saved": 25})
    marks.write("progress", {"batches": 15, "first": None, "at": 1.0, "began": 0.0, "clock": 2.0, "time": 2.0})
    world.end(job, 1, 0)
    world.pass_round()
    assert (world.state.job(job).status, world.state.job(job).done) == ("done", 40.0)


def test_a_job_that_makes_room_is_said_to_move(world: World) -> None:
    world.start(switch_cost_s=0.0)
    small = [world.submit(None) for _ in range(4)]
    world.daemon.look()
    for job in small:
        world.begin(job, 1)
    by_server = {job: world.state.leases(job)[0].lease.placement.shares[0].server for job in small}
    for server in "ab":  # one GPU of each server is free then, and a job of two waits
        world.end(next(job for job in small if by_server[job] == server), 1, 0)
    large = world.submit(None, gpus=2)
    world.pass_round()
    assert world.living(large) == [1]
    said = [word for job in small for _, _, word in world.state.events(job)]
    assert said.count("is to end: it moves to another server") == 1


def test_a_job_without_a_profile_has_its_share(world: World) -> None:
    job = world.submit(None)
    world.daemon.look()
    (one,) = world.state.leases(job)
    assert one.lease.placement.demand.cpus == 5.0
    assert one.lease.placement.demand.memory_gb == 50.0
    assert "stoker schedule profile" in world.state.job(job).why


def test_a_job_that_is_too_large_is_named_and_others_go_on(world: World) -> None:
    large, job = world.submit(gpus=3), world.submit()
    world.daemon.look()
    assert world.state.job(large).status == "failed"
    assert "3 GPUs" in world.state.job(large).word
    assert world.living(job) == [1]


def test_a_lease_that_is_lost_is_given_anew_but_only_when_nobody_holds_the_job(world: World) -> None:
    job = world.submit()
    world.daemon.look()
    world.begin(job, 1)
    lock = os.open(world.state.job_folder(job) / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)  # its process lives, whatever the cluster says
    world.cluster.there.clear()
    world.pass_round()
    assert world.living(job) == [1]
    os.close(lock)
    world.pass_round()
    world.pass_round()
    assert world.living(job) == [2]
    assert Marks(world.state.job_folder(job), 1).has("void")


def test_an_order_that_failed_may_have_been_carried_out(world: World) -> None:
    job = world.submit()
    world.cluster.refuses = "timed out"
    world.daemon.look()
    name = f"stoker-{world.state.token}-{job}-1"
    world.cluster.there[name] = True  # it was there all the same
    world.cluster.refuses = ""
    world.pass_round()
    assert world.living(job) == [1]
    assert any("timed out" in word for word in world.words)


def test_a_cluster_that_does_not_answer_ends_nothing(world: World) -> None:
    job = world.submit()
    world.daemon.look()
    world.cluster.answers, world.cluster.silence = False, "sinfo ended with code 1: it is tired"
    world.pass_round()
    assert world.living(job) == [1]
    world.end(job, 1, 0)  # which is known without the cluster
    world.pass_round()
    assert world.state.job(job).status == "done"
    world.cluster.answers = True
    world.pass_round()
    told = [word for word in world.words if word.startswith("the cluster")]
    silent = "the cluster does not answer (sinfo ended with code 1: it is tired)"
    assert told == [f"{silent}: jobs go on", "the cluster answers again"]
    world.cluster.answers = False
    with pytest.raises(CommandError, match=re.escape(silent)):
        world.start()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo >&2 'sinfo: error: no file'; echo >&2 'sinfo: fatal: no configuration'; exit 1",
         "sinfo ended with code 1: sinfo: error: no file; sinfo: fatal: no configuration"),
        ("exit 3", "sinfo ended with code 3"),
    ],
)  # fmt: skip
def test_why_slurm_does_not_answer_is_known(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sinfo").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "sinfo").chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    backend = slurm.Slurm()
    assert backend.nodes() is None
    assert backend.silence == words


def test_what_slurm_said_before_it_took_too_long_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(words: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(words, 60.0, stderr=b"sinfo: error: no file, retrying\n")

    monkeypatch.setattr(subprocess, "run", run)
    backend = slurm.Slurm()
    assert backend.leases() is None
    assert backend.silence == "squeue took more than 60 s: sinfo: error: no file, retrying"


def test_a_daemon_that_was_killed_goes_on(world: World) -> None:
    jobs = [world.submit(HUNGRY) for _ in range(3)]
    world.daemon.look()
    before = {job: world.living(job) for job in jobs}
    world.start()
    world.pass_round()
    assert {job: world.living(job) for job in jobs} == before
    assert len(world.cluster.orders) == 3


def test_killed_before_a_lease_was_handed_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()

    def die(order: LeaseOrder) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(world.cluster, "submit", die)
    with pytest.raises(KeyboardInterrupt):
        world.daemon.look()
    monkeypatch.undo()
    world.start()
    world.pass_round()  # nobody knows the lease: it is void, and another is given
    world.pass_round()
    assert world.living(job) == [2]
    assert Marks(world.state.job_folder(job), 1).has("void")


def test_a_change_is_saved_ended_and_started_anew_in_this_order(world: World) -> None:
    job = world.submit(HUNGRY)
    others = [world.submit(HUNGRY) for _ in range(3)]
    world.daemon.look()
    for one in (job, *others):
        world.begin(one, 1)
    shares = {one.lease.job_id: one.lease.placement.demand.cpus for one in world.state.leases()}
    assert set(shares.values()) == {4.0}  # two on each server; 8 are wanted
    for one in others:
        world.end(one, 1, 0)
    world.pass_round()
    assert world.living(job) == [1, 2]
    assert world.cluster.said == [("stop", f"stoker-{world.state.token}-{job}-1")]
    assert f"stoker-{world.state.token}-{job}-2" not in world.cluster.orders
    world.end(job, 1, SAVED)
    world.pass_round()
    assert world.cluster.orders[f"stoker-{world.state.token}-{job}-2"].share.cpus == 8.0


def test_what_cannot_be_stopped_keeps_its_lease(world: World) -> None:
    job = world.submit(HUNGRY, restartable=False)
    others = [world.submit(HUNGRY) for _ in range(3)]
    world.daemon.look()
    for one in others:
        world.end(one, 1, 0)
    world.pass_round()
    assert world.living(job) == [1]
    assert not world.cluster.said


def test_a_job_that_was_not_saved_when_it_was_told_to_is_not_stopped_again(world: World) -> None:
    job = world.submit(HUNGRY)
    others = [world.submit(HUNGRY) for _ in range(3)]
    world.daemon.look()
    world.begin(job, 1)
    said = {"batches": 100, "at": 20.0, "began": 10.0, "clock": 21.0, "time": world.now, "first": None}
    Marks(world.state.job_folder(job), 1).write("progress", said)
    for one in others:
        world.end(one, 1, 0)
    world.pass_round()
    world.end(job, 1, SAVED)  # and there is no checkpoint
    world.pass_round()
    assert not world.state.job(job).job.restartable
    (known,) = world.state.leases(job)
    assert (known.lease.number, known.lease.placement.demand.cpus) == (3, 4.0)
    for _ in range(3):
        world.submit(HUNGRY)
    world.pass_round()
    assert world.living(job) == [3]


def test_a_job_that_is_slower_than_its_matrix_says_is_corrected(world: World) -> None:
    world.start(measures=True)
    job = world.submit(HUNGRY)
    world.daemon.look()
    (known,) = world.state.leases(job)
    assert known.lease.rate == 8.0
    world.begin(job, 1)
    said = {"batches": 120, "at": 130.0, "began": 0.0, "clock": 131.0, "time": world.now, "first": [20, 30.0]}
    Marks(world.state.job_folder(job), 1).write("progress", said)
    world.pass_round()
    assert world.state.job(job).done == 120.0
    assert world.state.job(job).job.matrix.rate(8.0, 1.0) == 1.0
    world.start(measures=True)  # and another daemon knows it
    world.pass_round()
    assert world.living(job) == [1]
    assert world.state.job(job).job.matrix.rate(8.0, 1.0) == 1.0


def test_cancelled_jobs_end_and_only_these(world: World) -> None:
    runs, stays, waits = world.submit(gpus=2), world.submit(gpus=2), world.submit()
    world.daemon.look()
    world.begin(runs, 1)
    for job in (runs, waits):
        assert world.state.ask_cancel(job)
    world.start()  # not even a daemon that has just come forgets it
    world.pass_round()
    assert world.cluster.said == [("cancel", f"stoker-{world.state.token}-{runs}-1")]
    assert world.state.job(waits).status == "cancelled"
    world.end(runs, 1, SAVED)
    world.pass_round()
    assert world.state.job(runs).status == "cancelled"
    assert world.living(stays) == [1]
    assert not world.state.ask_cancel(runs)


LESS = Server("a", 2, 7.0, 100.0), Server("a", 1, 10.0, 100.0), Server("a", 2, 10.0, 60.0)


@pytest.mark.parametrize("less", LESS)
@pytest.mark.parametrize("restartable", [True, False])
def test_a_server_that_has_less_than_a_daemon_gave_of_it_does_not_stop_the_next_one(
    world: World, less: Server, restartable: bool
) -> None:
    jobs = [world.submit(None, restartable=restartable) for _ in range(4)]
    world.daemon.look()
    for job in jobs:
        world.begin(job, 1)
    world.cluster.servers["a"] = Node(less, True)
    world.start()
    ending = [one.ending for one in world.state.leases() if one.ending]
    # One that cannot be stopped goes on as long as it has its GPUs.
    assert ending == (["server a has less than was given of it"] if restartable or less.gpus < 2 else [])
    world.submit(None)
    world.pass_round()
    assert len(world.state.jobs("queued")) == 5


def test_why_of_a_job_whose_lease_is_being_ended_says_that_and_not_what_it_will_have(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    job = world.submit()
    world.daemon.look()
    world.begin(job, 1)
    (known,) = world.state.leases(job)
    (share,) = known.lease.placement.shares
    world.cluster.servers[share.server] = Node(world.cluster.servers[share.server].server, False)
    world.pass_round()
    assert world.living(job) == [1, 2]  # the second one waits for the first one's end
    with if_free(world.folder / "daemon.lock"):  # as while a daemon runs
        assert main(["schedule", "why", "--state", str(world.folder), job]) == 0
    assert capsys.readouterr().out.startswith(f"Its lease on {share.server} is being ended: server {share.server} is lost.")


def test_a_job_that_is_cancelled_before_any_daemon_sees_it_is_cancelled_whatever_is_wrong_with_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [world.submit(), world.submit(gpus=99)]
    for job in jobs:
        assert world.state.ask_cancel(job)
    world.daemon.look()
    assert not world.cluster.orders
    assert [world.state.job(job).status for job in jobs] == ["cancelled"] * 2
    with if_free(world.folder / "daemon.lock"):  # as while a daemon runs
        for job in jobs:
            assert main(["schedule", "why", "--state", str(world.folder), job]) == 0
    assert capsys.readouterr().out == "It was cancelled.\n" * 2


def test_a_job_that_failed_before_it_could_be_cancelled_has_failed(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    job = world.submit()
    world.state.ask_cancel(job)
    world.state.change_job(job, status="failed", code=3, word="it said so")
    with if_free(world.folder / "daemon.lock"):
        assert main(["schedule", "why", "--state", str(world.folder), job]) == 0
    assert capsys.readouterr().out == "It failed with code 3: it said so.\n"


def test_a_node_that_goes_down_has_its_jobs_go_elsewhere(world: World) -> None:
    job = world.submit()
    world.daemon.look()
    (share,) = world.state.leases(job)[0].lease.placement.shares
    node = world.cluster.servers[share.server]
    world.cluster.servers[share.server] = Node(node.server, False)
    del world.cluster.there[f"stoker-{world.state.token}-{job}-1"]
    world.pass_round()
    world.pass_round()
    (again,) = world.state.leases(job)
    assert again.lease.number == 2
    assert again.lease.placement.shares[0].server != share.server


def test_a_job_that_dies_again_and_again_has_failed(world: World) -> None:
    job = world.submit()
    number = 0
    world.daemon.look()
    while world.state.job(job).status == "queued" and number < 20:
        number += 1
        world.end(job, number, -9)
        world.pass_round()
        world.pass_round()
    assert world.state.job(job).status == "failed"
    assert "times at iteration 0" in world.state.job(job).word


def lose(world: World, job: str, times: int) -> None:
    """The cluster takes the job's leases, and then does not know them."""
    world.daemon.look()
    for _ in range(times):
        world.cluster.there = {}
        world.pass_round()
        world.pass_round()


def test_a_job_whose_leases_are_lost_again_and_again_has_failed(world: World) -> None:
    job = world.submit()
    lose(world, job, 9)
    assert world.state.job(job).status == "queued"
    (world.state.job_folder(job) / "output").write_text("exec: /venv/bin/python: not found\n")
    lose(world, job, 1)
    assert world.state.job(job).status == "failed"
    assert "python: not found" in world.state.job(job).word


def test_a_job_that_gets_further_between_lost_leases_goes_on(world: World) -> None:
    job = world.submit()
    lose(world, job, 6)
    (world.state.job_folder(job) / "saved").mkdir()
    (world.state.job_folder(job) / "saved" / "5-0.json").touch()
    number = world.living(job)[0]
    world.begin(job, number)  # from 0; and it got to 5
    lose(world, job, 9)
    assert world.state.job(job).status == "queued"


def test_a_job_that_the_cluster_does_not_take_waits_and_says_why(world: World) -> None:
    job = world.submit()
    world.cluster.refuses = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
    lose(world, job, 15)
    assert world.state.job(job).status == "queued"
    assert "QOSMaxSubmitJobPerUserLimit" in world.state.job(job).why
    world.cluster.refuses = ""
    world.pass_round()
    world.pass_round()
    assert "It has 1 GPU" in world.state.job(job).why


def test_a_job_that_ends_as_saved_untold_and_without_a_checkpoint_dies(world: World) -> None:
    job = world.submit()
    world.daemon.look()
    for number in range(1, 6):
        assert world.living(job) == [number]
        world.end(job, number, SAVED)
        world.pass_round()
        world.pass_round()
    assert world.state.job(job).status == "failed"


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
@pytest.mark.parametrize("mechanism", ["proportional", "greedy", "tune", "opt"])
@pytest.mark.parametrize("cost_s", [0.0, 5.0])
def test_no_job_is_spread_and_none_is_held_up_by_one_that_would_be(
    world: World, policy: str, mechanism: str, cost_s: float
) -> None:
    world.cluster.servers = {name: Node(Server(name, 4, 12.0, 100.0), True) for name in ("a", "b")}
    world.start(policy=policy, mechanism=mechanism, switch_cost_s=cost_s)
    jobs = []
    for gpus in (3, 2, 3, 1):
        jobs.append(world.submit(gpus=gpus))
        world.pass_round()
    for _ in range(5):
        world.pass_round()
    assert [len(world.living(job)) for job in jobs] == [1, 1, 0, 1]
    assert not any(one.ending for one in world.state.leases())


@pytest.mark.parametrize("mechanism", ["proportional", "tune", "opt"])
def test_jobs_move_together_for_one_that_needs_a_whole_server(world: World, mechanism: str) -> None:
    world.start(mechanism=mechanism)
    jobs = [world.submit(HUNGRY) for _ in range(4)]
    world.daemon.look()
    on_a = [one.lease.job_id for one in world.state.leases() if one.lease.placement.shares[0].server == "a"]
    on_b = [job for job in jobs if job not in on_a]
    for job in (on_a[0], on_b[0]):
        world.end(job, 1, 0)
    large = world.submit(HUNGRY, gpus=2)
    world.pass_round()
    assert world.living(large) == [1]
    assert all(len(one.lease.placement.shares) == 1 for one in world.state.leases())
    assert all(one.lease.rate >= one.lease.proportional_rate for one in world.state.leases())


def test_a_daemon_goes_on_without_a_job_that_has_become_too_large(world: World) -> None:
    large, job = world.submit(gpus=2), world.submit()
    world.daemon.look()
    world.cluster.servers = {"c": Node(Server("c", 1, 5.0, 50.0), True)}
    world.start()
    assert world.state.job(large).status == "failed"
    assert any("2 GPUs" in word for word in world.words)
    assert world.state.job(job).status == "queued"


def test_a_job_waits_for_a_large_server_that_is_down(world: World) -> None:
    big = Server("big", 8, 24.0, 500.0)
    world.cluster.servers["big"] = Node(big, False)
    world.start()
    job = world.submit(gpus=8)
    world.daemon.look()
    assert world.state.job(job).status == "queued"
    world.cluster.servers["big"] = Node(big, True)
    world.pass_round()
    assert world.living(job) == [1]


@pytest.mark.parametrize("cost", ["-1", "nan"])
def test_a_switch_cost_that_cannot_be_is_refused(tmp_path: Path, cost: str) -> None:
    assert main(["schedule", "run", "--state", str(tmp_path / "state"), f"--switch-cost={cost}"]) != 0
    assert not (tmp_path / "state").exists()


def test_a_cluster_without_nodes_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no node with GPUs is up"):
        Daemon(State(tmp_path, make=True), Cluster(), Rules())


def run_lease(state: State, job: str, number: int, cores: str = "1.0") -> int:
    words = [sys.executable, "-m", "stoker.schedule.lease", str(state.job_folder(job)), str(number), cores]
    return subprocess.run(words, check=False).returncode


def wish(script: Path) -> Wish:
    return Wish((str(script),), str(script.parent), dict(os.environ), restartable=False)


def test_a_lease_runs_once_however_it_is_started(tmp_path: Path) -> None:
    state = State(tmp_path / "state", make=True)
    script = tmp_path / "count.py"
    script.write_text("open('counted', 'a').write('x'); raise SystemExit(3)")
    job = state.submit(wish(script))
    marks = Marks(state.job_folder(job), 1)
    marks.make()
    assert run_lease(state, job, 1) == 3
    assert marks.read("exit") is not None and marks.read("exit")["code"] == 3  # type: ignore[index]
    assert run_lease(state, job, 1) == SAVED
    assert (tmp_path / "counted").read_text() == "x"
    void = Marks(state.job_folder(job), 2)
    void.make()
    void.write("void", {})
    assert run_lease(state, job, 2) == SAVED
    assert (tmp_path / "counted").read_text() == "x"


def test_a_lease_forgets_of_which_job_of_slurm_the_shell_of_submit_was(tmp_path: Path) -> None:
    state = State(tmp_path / "state", make=True)
    script = tmp_path / "tell.py"
    script.write_text(
        "import os; open('told', 'w').write(os.environ.get('SLURM_STEP_NUM_TASKS', 'nothing') + os.environ['MINE'])"
    )
    shell = {**os.environ, "SLURM_STEP_NUM_TASKS": "4", "MINE": " and mine"}
    job = state.submit(Wish((str(script),), str(tmp_path), shell, restartable=False))
    Marks(state.job_folder(job), 1).make()
    assert run_lease(state, job, 1) == 0
    assert (tmp_path / "told").read_text() == "nothing and mine"
    state.close()


def test_what_is_read_from_storage_is_told_for_each_job_and_server(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Iterations of 2 MB, 100 GB of data, and memory that holds half of them beside the processes."""
    reads = Matrix((1.0,), (52.0,), ((3.0,),), (1.0, 52.0), Reads(2e6, 2.0, 100.0))
    jobs = [world.submit(reads), world.submit(None)]
    world.daemon.look()
    assert main(["schedule", "ls", "--state", str(world.folder), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    shares = [world.state.leases(job)[0].lease.placement.shares[0] for job in jobs]
    held = (shares[0].memory_gb - 2.0) / 100.0
    assert rows[0]["MB/s"] == round(3.0 * 2.0 * (1 - held), 1)
    assert rows[1]["MB/s"] is None
    assert main(["schedule", "ls", "--state", str(world.folder)]) == 0
    lines = capsys.readouterr().out.splitlines()[3:]
    assert [line.split(":")[0] for line in lines] == sorted({share.server for share in shares})
    assert f"{3.0 * 2.0 * (1 - held):.3g} MB/s are read from storage" in "\n".join(lines)


def test_commands_speak_with_the_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ["--state", str(tmp_path / "state")]
    assert main(["schedule", "ls", *place]) == 1
    assert "there is no scheduler" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert main(["schedule", "submit", *place, "--", "train.py"]) == 1
    assert f"there is no script train.py in {tmp_path}" in capsys.readouterr().err
    Path("train.py").touch()
    assert main(["schedule", "submit", *place, "--gpus", "2", "--", "train.py", "--lr", "1"]) == 0
    assert capsys.readouterr().out == "1\n"
    assert main(["schedule", "ls", *place, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["status"], row["GPUs"], row["script"]) == ("waits", 2, "train.py --lr 1")
    assert main(["schedule", "why", *place, "1"]) == 0
    assert capsys.readouterr().out == "No daemon looks at it now: `stoker schedule run` with the same --state goes on.\n"
    assert main(["schedule", "cancel", *place, "1"]) == 0
    assert main(["schedule", "why", *place, "1"]) == 0
    assert "is ended as soon as a daemon looks at it" in capsys.readouterr().out
    for number in ("7", "9" * 30):
        assert main(["schedule", "why", *place, number]) == 1
        assert f"there is no job {number}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "--cache", "much", "--", "train.py"], "--cache"),
        (["submit", "--gpus", "0", "--", "train.py"], "--gpus and --iterations must be from 1 to"),
        (["submit", "--gpus", "9" * 30, "--", "train.py"], "--gpus and --iterations must be from 1 to"),
        (["submit", "--iterations", "9" * 30, "--", "train.py"], "--gpus and --iterations must be from 1 to"),
        (["submit", "--measure", "--state", "no-state", "--", "train.py"], "no-state/state.sqlite cannot be used"),
        (["submit", "--state", "train.py", "--", "train.py"], "the scheduler's folder train.py cannot be made"),
        (["ls", "--state", "no-state"], "no-state/state.sqlite cannot be used as a scheduler's state"),
        (["ls", "--state", "other"], "other/state.sqlite cannot be used as a scheduler's state: table jobs already exists"),
        (["profile", "-o", "nowhere/job.json", "--", "train.py"], "--output: nowhere/job.json cannot be written"),
        (["profile", "-o", "job.json", "--cpus", "0", "--", "train.py"], "--cpus, --core and --time are more than 0"),
        (["profile", "-o", "job.json", "--time", "nan", "--", "train.py"], "--cpus, --core and --time are more than 0"),
    ],
)
def test_what_cannot_work_is_told_before_a_script_is_run_or_queued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_SCHEDULE", str(tmp_path / "state"))
    Path("train.py").write_text("open('was-run', 'w')")
    Path("no-state").mkdir()
    Path("no-state/state.sqlite").write_text("this is no database, but a text of some length\n" * 20)
    Path("other").mkdir()
    with contextlib.closing(sqlite3.connect("other/state.sqlite")) as of_another:
        of_another.execute("CREATE TABLE jobs (x)")
    assert main(["schedule", *words]) == 1
    assert said in capsys.readouterr().err
    assert not Path("was-run").exists() and not list(Path("state").glob("jobs/*"))


def test_a_module_is_submitted_as_it_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    submit = ["schedule", "submit", "--state", str(tmp_path / "state")]
    for words in (["-m", "pack.train", "-m", "--lr", "1"], ["--", "-m", "pack.train", "-m", "--lr", "1"]):
        assert main([*submit, *words]) == 0
    assert main([*submit, "-m"]) == 1
    assert "no script was given" in capsys.readouterr().err
    state = State(tmp_path / "state")
    assert [known.words for known in state.jobs()] == [("-m", "pack.train", "-m", "--lr", "1")] * 2
    state.close()


def test_a_second_daemon_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "state"
    State(place, make=True).close()
    lock = os.open(place / "daemon.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert main(["schedule", "run", "--state", str(place)]) == 1
    assert f"process {os.getpid()}" in capsys.readouterr().err
    os.close(lock)


def test_to_ask_why_makes_no_lock_and_says_whether_a_daemon_holds_it(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    job, lock = world.submit(), world.folder / "daemon.lock"
    ask = ["schedule", "why", "--state", str(world.folder), job]
    assert main(ask) == 0
    assert not lock.exists()
    assert capsys.readouterr().out.startswith("No daemon looks at it now")
    lock.touch()
    descriptor = os.open(lock, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)  # as another one who asks
    assert main(ask) == 0
    assert capsys.readouterr().out.startswith("No daemon looks at it now")
    os.close(descriptor)
    with if_free(lock):
        assert main(ask) == 0
    assert not capsys.readouterr().out.startswith("No daemon")


def test_a_daemon_forgets_leases_that_have_ended(world: World) -> None:
    job = world.submit()
    world.daemon.look()
    world.state.ask_cancel(job)
    world.pass_round()
    assert list(world.daemon._giving._told) == [world.state.name(world.state.leases(job)[0].lease)]
    world.end(job, 1, 1)
    world.pass_round()
    assert not world.daemon._giving._told
    assert not world.daemon._giving._refusals


def test_the_cost_of_a_start_is_told_by_the_latest_leases(world: World) -> None:
    leases = []
    for number in range(30):
        job = world.submit()
        world.now += 11
        world.daemon.look()
        (known,) = world.state.leases(job)
        world.state.change_lease(known.lease, given_at=0.5, first_at=100.5 if number < 10 else 5.5)
        world.end(job, 1, 0)
        leases.append(known.lease.job_id)
    assert [one.lease.job_id for one in world.state.latest_leases(3, "given_at", "first_at")] == leases[-3:]
    costs = world.daemon._costs()
    assert costs is not None
    assert costs[0] == pytest.approx(5.0)


def test_a_job_starts_until_its_script_runs(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    job = world.submit()
    statuses = []
    for happens in (world.daemon.look, lambda: world.begin(job, 1)):
        happens()
        assert main(["schedule", "ls", "--state", str(world.folder), "--json"]) == 0
        statuses.append(json.loads(capsys.readouterr().out)["status"])
    assert statuses == ["starts", "runs"]


def test_a_profile_of_several_models_asks_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    model = {"cpus": 1, "mem": 1, "iter_time": 1, "tput": [[1]]}
    profiles = {"cpu_axis": [1], "mem_axis_gb": [1], "profiles": {"models": {"a": model, "b": model}}}
    Path("two.json").write_text(json.dumps(profiles))
    submit = ["schedule", "submit", "--state", str(tmp_path / "state"), "--profile", "two.json"]
    assert main([*submit, "--", "train.py"]) == 1
    assert "two.json has several models: choose one of a, b by --model" in capsys.readouterr().err
    assert main([*submit, "--model", "c", "--", "train.py"]) == 1
    assert "two.json has no model 'c': choose one of a, b by --model" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()  # what is refused leaves nothing
