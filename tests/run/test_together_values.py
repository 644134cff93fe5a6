"""What is concluded from iterations that were seen, without running any: histories of live records, by hand."""

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.errors import CommandError
from stoker.live.record import Facts, Seen
from stoker.run.together import joining, learning
from stoker.run.together.calibrating import Calibration
from stoker.run.together.catalogue import Beside, Catalogue, Solo
from stoker.run.together.conducting import _Watched
from stoker.run.together.going_on import who_goes_on
from stoker.run.together.jobs import TogetherJob
from stoker.run.together.running import Running, of_all_ranks
from stoker.run.together.stretches import Stretch, from_cache, from_storage, stretch
from stoker.run.together.values import Follower, Leader, follower_solo, leader_solo, pair, with_one_storage

FACTS = Facts(1, 1, 1, None, 0, 0.0, "processes", "s", "d", cache="c")
BATCH = 16
COLD = Solo(
    0.02, 0.06, 0.0, startup_s=5.0, batch=8, samples=8000, iterations=1000, sample_bytes=1e5, data="d", cold_iterations=50
)


def history(*parts: tuple[int, float, float, bool], quota_s: float = 0.0) -> list[Seen]:
    """Marks of parts of (iterations, compute, wait, from storage). With a quota, storage gives at its moments only."""
    marks, at_s, wait_s, hits, misses = [], 0.0, 0.0, 0, 0
    for count, compute_s, waits_s, is_cold in parts:
        for _ in range(count):
            before_s = at_s + compute_s
            at_s += compute_s + waits_s
            left_s = at_s if not (quota_s and is_cold) else max(before_s, at_s - at_s % quota_s)
            wait_s += left_s - (marks[-1].left_at if marks else 0.0) - compute_s
            hits, misses = hits + BATCH * (not is_cold), misses + BATCH * is_cold
            batches = len(marks) + 1
            marks.append(
                Seen(FACTS, batches, batches * BATCH, max(0.0, wait_s), 0, 0, hits, misses, hits * 9, misses * 9, 0, 1, 0,
                     batches, left_s, False, left_s, 0, 250)
            )  # fmt: skip
    return marks


def test_what_is_cached_already_is_not_taken_for_storage() -> None:
    marks = history((60, 0.02, 0.001, False), (60, 0.02, 0.06, True))
    cold, cached = stretch(from_storage(marks, 3)), stretch(from_cache(marks, 3))
    assert cold is not None and cached is not None
    assert cold.period_s == pytest.approx(0.08, rel=0.001) and cold.compute_s == pytest.approx(0.02, rel=0.001)
    assert cached.period_s == pytest.approx(0.021, rel=0.001)
    only = history((60, 0.02, 0.001, False))
    assert stretch(from_storage(only, 3)) is None, "storage was not seen"
    assert stretch(from_cache(history((60, 0.02, 0.06, True)), 3)) is None


def test_what_a_job_of_several_ranks_has_read_is_what_all_of_them_have() -> None:
    one = history((60, 0.02, 0.001, False))[-1]
    ranks = [replace(one, facts=replace(one.facts, rank=rank, pid=100 + rank)) for rank in (1, 0)]
    found = of_all_ranks(ranks)
    assert found is not None
    assert (found.facts.rank, found.batches, found.epoch_length) == (0, one.batches, one.epoch_length)
    assert (found.samples, found.hits, found.bytes_cache) == (2 * one.samples, 2 * one.hits, 2 * one.bytes_cache)
    assert of_all_ranks(ranks[:1]) is None
    assert of_all_ranks([one]) == one


def test_storage_is_not_taken_for_faster_by_what_it_saved_up_or_by_its_pieces() -> None:
    marks = history((8, 0.02, 0.0, True), (40, 0.02, 0.0586, True), quota_s=0.1)
    found = stretch(from_storage(marks, 3))
    assert found is not None
    ends = (marks[24].left_at - marks[3].left_at) / 21
    assert abs(ends / 0.0786 - 1) > 0.05, "as it was measured once: two moments"
    assert found.period_s == pytest.approx(0.0786, rel=0.02)


def test_a_second_epoch_from_the_cache_is_not_storage() -> None:
    marks = history((50, 0.02, 0.06, True), (50, 0.02, 0.0, False))
    found = stretch(from_storage(marks, 3))
    assert found is not None and found.period_s == pytest.approx(0.08, rel=0.001)


def test_jobs_that_wait_for_storage_have_its_one_pace() -> None:
    lucky = replace(COLD, wait_cold_s=0.056, cold_iterations=16)
    first, second = with_one_storage([COLD, lucky])
    assert first.wait_cold_s == second.wait_cold_s == pytest.approx((50 * 0.08 + 16 * 0.076) / 66 - 0.02)
    derived = replace(COLD, wait_cold_s=0.056, cold_iterations=0)
    assert [one.wait_cold_s for one in with_one_storage([COLD, derived])] == [COLD.wait_cold_s] * 2
    slow = replace(COLD, compute_s=0.2, wait_cold_s=0.0)
    assert with_one_storage([COLD, slow]) == [COLD, slow], "storage does not hold it up"
    other = replace(COLD, wait_cold_s=0.3)
    assert with_one_storage([COLD, other]) == [COLD, other], "that is no chance: fewer of its reads are under way"


def test_what_was_not_seen_follows_from_what_was() -> None:
    marks = history((60, 0.02, 0.06, True))
    follower = Follower(Stretch(0.041, 0.04, 16), None)
    cold = stretch(from_storage(marks, 3))
    leads = Leader(cold, None, Stretch(0.08, 0.02, 16), None, None)
    leader = leader_solo(marks[-1], 5.0, leads, follower, None)
    assert leader.wait_cold_s == pytest.approx(0.06, rel=0.01) and leader.cold_iterations > 50
    assert leader.wait_cached_s == pytest.approx(0.001), "as the other waits for the cache"
    second = follower_solo(marks[-1], 5.0, follower, leader)
    assert second.compute_s + second.wait_cold_s == pytest.approx(0.08, rel=0.01), "storage is the same for it"
    assert second.cold_iterations == 0
    assert pair(leader, second, leads, follower)[1].wait_both_cold_s is None
    nothing = leader_solo(marks[-1], 5.0, replace(leads, cold=None), follower, None)
    assert nothing.cold_iterations == 0 and nothing.wait_cold_s == nothing.wait_cached_s
    known = leader_solo(marks[-1], 5.0, replace(leads, cold=None), follower, leader)
    assert known.wait_cold_s == leader.wait_cold_s, "an earlier run has seen it"
    preparing = Follower(Stretch(0.07, 0.04, 16), None)
    assert leader_solo(marks[-1], 5.0, leads, preparing, None).wait_cached_s == pytest.approx(0.05, rel=0.01)


def test_after_measuring_the_job_goes_on_that_is_best_first() -> None:
    jobs = [TogetherJob(name, ("x.py", name), 1) for name in "AB"]
    slow = replace(COLD, compute_s=0.04, wait_cold_s=0.04)

    def going(*solo: Solo, passes: tuple[float, float] = (0.03, 0.025), ready: float = 0.0) -> tuple[int, ...]:
        found = who_goes_on(
            jobs, solo, [[], []], dict(enumerate(passes)), 0, 10**10, objective="balanced", ready=ready
        )  # fmt: skip
        assert found.left_s > 0 and found.work_s > 0
        assert found.plan.order[0] in dict(found.plan.curves), "its curve can be shown"
        return found.who

    assert going(slow, COLD) == (0,), "the quick one follows, and reads what the other has read"
    assert going(COLD, slow) == (1,), "the one that began is not the best to begin with"
    assert going(COLD, slow, passes=(0.03, 0.012), ready=1.0) == (0, 1), "all is cached: nothing is gained by waiting"


def test_a_job_ends_with_its_last_epoch_also_if_its_last_question_was_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    (*_, last) = history((250, 0.02, 0.0, False))
    run = Running("A", 1)
    run.seen, run.code, run.ended_at = replace(last, is_over=True, asked_at=5.0, left_at=5.01), 0, 9.0
    monkeypatch.setattr(run, "look", lambda: run.seen)
    watched = _Watched(run, 250, 1)
    watched.look()
    assert watched.told(0.0).end_s == 5.0, "its process takes some seconds more to end"


def test_a_job_that_could_start_too_late_goes_on_instead() -> None:
    """Three jobs after measuring: those that are ended would be back just in time, if they started as fast as before."""
    jobs = [TogetherJob(name, ("x.py", name), 1) for name in "ABC"]
    solo = [replace(COLD, compute_s=ms / 1000, wait_cold_s=0.08 - ms / 1000, iterations=250) for ms in (20, 30, 40)]

    def going(startup_s: float) -> tuple[int, ...]:
        some = [replace(one, startup_s=startup_s) for one in solo]
        found = who_goes_on(
            jobs, some, [[], [], []], {0: 0.3, 1: 0.1, 2: 0.1}, 0, 10**10, objective="balanced", ready=0.0
        )  # fmt: skip
        expected_s = found.plan.outcome.makespan_s - (found.plan.elapsed_s or 0.0)
        assert expected_s <= 14.0 * 1.02, "either way nothing is lost if all goes as it went"
        return found.who

    assert going(2.0) == (0,), "there is time to spare"
    assert going(4.0) == (0, 2), "the slowest has to begin 10 s after the first, the other 12.5 s, and 6 s are over"
    assert going(6.0) == (0, 1, 2)


def test_jobs_that_run_go_on_though_another_one_has_to_be_started() -> None:
    """Two of three were measured, the third is known: it takes as long to start as they would again."""
    jobs = [TogetherJob(name, ("x.py", name), epochs) for name, epochs in zip("ABC", (4, 3, 3), strict=True)]
    solo = [
        replace(COLD, compute_s=ms / 1000, wait_cold_s=0.0, iterations=100, startup_s=12.0) for ms in (20, 10, 13)
    ]  # fmt: skip
    found = who_goes_on(jobs, solo, [[], [], []], {0: 0.3, 2: 0.2}, 0, 10**10, objective="balanced", ready=1.0)
    assert found.who == (0, 2)
    assert found.plan.outcome.starts_s == (0.0, pytest.approx(12.6), pytest.approx(0.6 - 0.26)), "B as soon as it can"
    assert found.plan.elapsed_s == pytest.approx(0.6)


def test_a_job_that_goes_on_finds_what_another_one_has_read() -> None:
    jobs = [TogetherJob(name, ("x.py", name), 1) for name in "AB"]
    slow = replace(COLD, compute_s=0.04, wait_cold_s=0.04)
    found = who_goes_on(jobs, [COLD, slow], [[], []], {0: 0.03, 1: 0.02}, 0, 10**10, objective="balanced", ready=0.0)
    assert found.who == (1,) and found.plan.ready == 0.03
    assert found.plan.elapsed_s == pytest.approx(0.02 * 1000 * 0.04), "it was read from the cache"
    assert found.plan.outcome.makespan_s == pytest.approx(0.03 * 40 + 0.97 * 80, rel=0.001)


def test_the_time_of_a_job_counts_from_when_it_went_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run = Running("A", 1)
    monkeypatch.setattr(run, "_signal", lambda *_: None)
    run.seen, run.first_at = replace(history((250, 0.02, 0.0, False))[-1], is_over=True, asked_at=130.0), 103.0
    run.points, run.ended_at, run.code = [(103.0, 1), (125.0, 250)], 131.0, 0
    for pause_s in (7.0, 2.0):
        run.pause()
        now[0] += pause_s
        run.go_on()
    monkeypatch.setattr(run, "look", lambda: run.seen)
    watched = _Watched(run, 250, 1)
    watched.look()
    watched.hold(False)
    told = watched.told(112.0)
    assert (told.first_s, told.end_s) == (0.0, 18.0), "it was paused for 9 s to measure another one"
    assert told.points == ((0.0, 1 / 250), (13.0, 1.0))
    assert run.startup_s == 3.0


def test_a_job_that_ends_while_it_is_looked_at_is_passed_by_if_another_one_can_be_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "1000"]) as other:
        (mark,) = history((1, 0.02, 0.0, False))
        marks = {pid: replace(mark, facts=replace(FACTS, pid=pid)) for pid in (other.pid, os.getpid())}

        def look(run: Running) -> Seen:
            run.seen = marks[run.pid]
            return run.seen

        def look_at(run: Running) -> joining.JobLook:
            if run.pid == other.pid:
                raise run.failure("while it was looked at")
            return joining.JobLook(0.02, 0.0, False, 1.0)

        monkeypatch.setattr("stoker.live.folder.loaders", lambda: dict(enumerate(marks.values())))
        monkeypatch.setattr(joining, "_settings", lambda _: {"plan": {"seed": 0, "cache_bytes": 10**6}})
        monkeypatch.setattr(joining, "_look_at", look_at)
        monkeypatch.setattr(Running, "look", look)
        catalogue = Catalogue(tmp_path / "none.json")
        try:
            assert [partner.run.pid for partner in joining.partners("auto", catalogue)] == [os.getpid()]
            with pytest.raises(CommandError, match=rf"nothing to join: .*{other.pid}\) ended while it was looked at"):
                joining.partners(str(other.pid), catalogue)
        finally:
            other.kill()


def test_values_that_cannot_be_kept_are_good_for_this_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Calibration((COLD, COLD), {(0, 1): Beside(), (1, 0): Beside()}, 1.0, 0.0, ())
    monkeypatch.setattr(learning, "calibrate", lambda *_: found)
    jobs = [TogetherJob(name, ("x.py", name), 1) for name in "AB"]
    (tmp_path / "file").touch()
    its = learning.Learning(jobs, [1], 0, [Running(job.name, os.getpid()) for job in jobs])
    nothing = learning.KnownValues({}, {})
    known = its.measure(nothing, Catalogue(tmp_path / "file" / "below" / "together.json"), 100, lambda _: None)
    assert known.solos == [COLD, COLD]
    assert "cannot be kept for the next time" in its.said and "Not a directory" in its.said
    its.measure(nothing, kept := Catalogue(tmp_path / "together.json"), 100, lambda _: None)
    assert learning.recall(kept, jobs) == known
