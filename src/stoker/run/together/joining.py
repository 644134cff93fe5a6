"""A job that is started beside one that runs already: which one, and when.

Jobs that run are known by their live records. One can be joined if it was started by `stoker run` with a seed and a cache,
which its environment tells: only then both read in one order, through one cache. What it does is known from the catalogue,
or is seen by looking at it for a moment.
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from stoker.errors import CommandError
from stoker.live import folder
from stoker.live.follow import training
from stoker.live.record import Seen
from stoker.run.inject import SETTINGS
from stoker.run.together.calibrating import START_S, STUCK_S
from stoker.run.together.catalogue import Catalogue, Solo
from stoker.run.together.jobs import TogetherJob, epochs_of
from stoker.run.together.planning import TogetherPlan, alone_s, make_plan
from stoker.run.together.running import LOOK_S, Running, ending

_LEAST_BATCHES, _LOOK_FOR_S = 20, 5.0


@dataclass(frozen=True, slots=True)
class Partner:
    """A job that runs, and can be joined."""

    job: TogetherJob
    run: Running
    seed: int
    cache_bytes: int
    solo: Solo
    done: float
    """Passes over the data that it has made."""

    @property
    def elapsed_s(self) -> float:
        """How long it would have taken alone to get so far."""
        return alone_s(self.solo, self.done)


@dataclass(frozen=True, slots=True)
class JobLook:
    """What was seen of a job within a moment."""

    period_s: float
    wait_s: float
    is_cold: bool
    iteration_bytes: float


def partners(wanted: str, catalogue: Catalogue) -> list[Partner]:
    """The jobs that can be joined: the one with a pid, or all. Raises what is wrong with the one that is wanted."""
    if wanted != "auto" and not wanted.isdecimal():
        raise CommandError(f"--join takes auto or the pid of a job that runs, not {wanted!r}")
    records = [seen for seen in folder.loaders().values() if not seen.facts.rank]
    which = "" if wanted == "auto" else f" with the pid {wanted}"
    found, reason = [], f"no job of this user{which} runs here that has a loader"
    for pid in {seen.facts.pid for seen in records}:
        its = training([seen for seen in records if seen.facts.pid == pid])
        if its is not None and wanted in ("auto", str(pid)):
            partner = _partner(its, catalogue)
            if isinstance(partner, Partner):
                found.append(partner)
            else:
                reason = partner
    if not found:
        raise CommandError(f"there is nothing to join: {reason}")
    return found


def _partner(seen: Seen, catalogue: Catalogue) -> Partner | str:
    """A job that runs as a partner, or why it cannot be one."""
    pid, name = seen.facts.pid, f"{seen.facts.script} (pid {seen.facts.pid})"
    plan = _settings(pid).get("plan", {})
    seed, cache = plan.get("seed"), plan.get("cache_bytes")
    if seed is None or not cache or not seen.facts.cache:
        return f"{name} was not started by `stoker run --seed N --cache SIZE`"
    if not seen.epoch_length:
        return f"{name} does not know how long its epochs are"
    run = Running(name, pid)
    try:
        words = _words(pid)
        said = epochs_of(words)
        job = TogetherJob(name, words, said or seen.epoch + 1, said is not None, os.readlink(f"/proc/{pid}/cwd"))
        run.look()
        run.first_at = seen.facts.made_at
        solo = catalogue.solo(job.key) or _seen_solo(run)
    except OSError:
        return f"{name} has just ended"
    except CommandError as error:
        return str(error)  # others may be joined nevertheless
    if run.is_over or run.seen is None:
        return f"{name} has just ended"
    return Partner(job, run, seed, cache, solo, run.seen.batches / seen.epoch_length)


def _settings(pid: int) -> dict[str, dict[str, int | None]]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0"))
        document = json.loads(entries.get(SETTINGS.encode(), b"{}"))
        return document if isinstance(document, dict) else {}
    except (OSError, ValueError):
        return {}


def _words(pid: int) -> tuple[str, ...]:
    """The script and its arguments, without the interpreter and its flags."""
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        words = [word.decode("utf-8", "replace") for word in file.read().split(b"\0")[1:-1]]
    while words and words[0].startswith("-") and words[0] != "-m":
        words.pop(0)
    return tuple(words)


def _look_at(run: Running) -> JobLook:
    """See some iterations of a job, without disturbing it."""
    begin, since = run.look(), time.monotonic()
    while True:
        now = run.look()
        if run.is_over:
            raise run.failure("while it was looked at" + (": it is too short to be planned for" if run.code == 0 else ""))
        waited_s = time.monotonic() - since
        if now is not None and begin is not None and now.batches > begin.batches:
            if now.batches >= begin.batches + _LEAST_BATCHES or waited_s > _LOOK_FOR_S:
                break
        elif waited_s > STUCK_S:
            raise CommandError(f"{run.name} gets no batch: it cannot be joined now")
        begin = begin or now
        time.sleep(LOOK_S)
    count, reads = now.batches - begin.batches, now.hits + now.misses - begin.hits - begin.misses
    read = now.bytes_storage + now.bytes_cache - begin.bytes_storage - begin.bytes_cache
    return JobLook(
        (now.left_at - begin.left_at) / count,
        (now.wait_s - begin.wait_s) / count,
        2 * (now.misses - begin.misses) > reads,
        read / count,
    )


def _solo(run: Running, look: JobLook, wait_cold_s: float) -> Solo:
    seen = run.seen
    assert seen is not None
    batch = max(1, round(seen.samples / seen.batches))
    return Solo(
        compute_s=max(1e-6, look.period_s - look.wait_s),
        wait_cold_s=wait_cold_s,
        wait_cached_s=0.0 if look.is_cold else look.wait_s,
        startup_s=run.startup_s,
        batch=batch,
        samples=batch * seen.epoch_length,
        iterations=seen.epoch_length,
        sample_bytes=look.iteration_bytes / batch,
        data=seen.facts.cache,
        cold_iterations=_LEAST_BATCHES if look.is_cold else 0,
    )


def _seen_solo(run: Running) -> Solo:
    """What a job that runs does, as far as it can be seen: from storage, or from the cache, as it is now."""
    look = _look_at(run)
    return _solo(run, look, look.wait_s)


def _short_run(job: TogetherJob, partner: Partner) -> Solo:
    """A short run of the job beside its partner. How long it would wait for storage follows from the partner's reads."""
    started: list[Running] = []
    with ending(started):
        run = Running.start(job, partner.seed, partner.cache_bytes, quietly=True)
        started.append(run)
        deadline = time.monotonic() + START_S
        while run.look() is None or run.first_at is None:
            if run.is_over:
                raise run.failure("before its first batch")
            if time.monotonic() > deadline:
                raise CommandError(f"{job.name} has given no batch in {START_S:.0f} s: does it iterate a DataLoader?")
            time.sleep(LOOK_S)
        look = _look_at(run)
        compute_s = look.period_s - look.wait_s
        its = partner.solo
        byte_s = (its.compute_s + its.wait_cold_s) / max(1.0, its.batch * its.sample_bytes)
        cold_s = look.wait_s if look.is_cold else max(look.wait_s, look.iteration_bytes * byte_s - compute_s)
        return _solo(run, look, cold_s)


def join(
    job: TogetherJob, wanted: str, catalogue: Catalogue, objective: str, tell: Callable[[str], None]
) -> tuple[TogetherPlan, Partner]:
    """The best partner of a job among those that run, and the best start beside it."""
    found = partners(wanted, catalogue)
    tell(f"looking at {', '.join(partner.job.name for partner in found)}")
    solo = catalogue.solo(job.key) or _short_run(job, found[0])
    plans = []
    for partner in found:
        if solo.data != partner.solo.data:
            reason = f"{partner.job.name} reads other data than {job.name}"
            continue
        beside = [
            [known] if (known := catalogue.beside(one.key, other.key)) is not None else []
            for one, other in ((partner.job, job), (job, partner.job))
        ]
        plan = make_plan(
            [partner.job, job],
            [partner.solo, solo],
            beside,
            partner.cache_bytes,
            objective=objective,
            ready=0.0,
            runs=0,
            elapsed_s=partner.elapsed_s,
        )
        plans.append((plan, partner))
    if not plans:
        raise CommandError(f"there is nothing to join: {reason}")
    # The job that is to be started ends soonest beside the best one.
    return min(plans, key=lambda one: one[0].outcome.starts_s[1] + one[0].outcome.times_s[1] - one[1].elapsed_s)
