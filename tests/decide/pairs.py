"""A second way to play a pair of jobs through, to check the first: all offsets of many pairs at once, on arrays.

It follows the positions of both jobs from one event to the next, as `stoker.decide.side_by_side` does, and shares nothing
with it: no pace, no slopes, no modes.
"""

from dataclasses import dataclass, fields

import numpy as np

from stoker.decide.pace import IterationTimes, StaggerJob

Many = np.ndarray


@dataclass
class Side:
    """One job of each pair; a row for each."""

    compute: Many
    cold: Many
    cached: Many
    both_cold: Many
    beside: Many
    both_cached: Many
    compute_beside: Many
    apart: Many
    iterations: Many
    epochs: Many

    @classmethod
    def of(cls, jobs: list[StaggerJob]) -> "Side":
        names = [item.name for item in fields(IterationTimes)]
        columns = [[getattr(job.times, name) for job in jobs] for name in names]
        columns += [[job.iterations for job in jobs], [job.epochs for job in jobs]]
        return cls(
            *(np.array([np.nan if value is None else value for value in column], float)[:, None] for column in columns)
        )

    def fill(self) -> "Side":
        """Seconds of a whole pass in each state, instead of those of an iteration."""
        beside = np.where(np.isnan(self.compute_beside), self.compute, self.compute_beside)
        n = self.iterations
        alone_cached, alone_cold = n * (self.compute + self.cached), n * (self.compute + self.cold)
        slow = n * beside
        unmeasured = [np.isnan(one) for one in (self.beside, self.both_cached)]
        return Side(
            compute=n * self.compute,
            cold=alone_cold,
            cached=alone_cached,
            both_cold=slow + n * self.both_cold,
            beside=np.minimum(
                np.where(unmeasured[0], np.maximum(slow, alone_cached), slow + n * self.beside),
                np.maximum(slow, alone_cold),
            ),
            both_cached=np.where(unmeasured[1], np.maximum(slow, alone_cached), slow + n * self.both_cached),
            compute_beside=np.maximum(slow, alone_cold),  # from storage, while the other reads from the cache
            apart=slow + n * np.where(np.isnan(self.apart), self.both_cold, self.apart),
            iterations=n,
            epochs=self.epochs,
        )


def makespans(first: list[StaggerJob], second: list[StaggerJob], offsets: Many, cached: Many, ahead: Many) -> Many:
    """When both jobs of a pair have ended, with the second `offsets` later: a row for each pair."""
    raw, (a, b) = (Side.of(first), Side.of(second)), (Side.of(first).fill(), Side.of(second).fill())
    c = cached[:, None]
    for this, its, others in ((a, raw[0], raw[1]), (b, raw[1], raw[0])):
        shared = (its.cold > 0) & (others.cold > 0)
        this.apart = np.where(np.isnan(this.apart), np.where(shared, 2 * this.cold, this.compute_beside), this.apart)
    pace = np.maximum(
        np.where(np.isnan(a.both_cold), np.maximum(a.compute_beside, b.compute_beside), a.both_cold),
        np.where(np.isnan(b.both_cold), np.maximum(a.compute_beside, b.compute_beside), b.both_cold),
    )
    b_passes = (b.compute_beside <= a.compute_beside) & (a.beside >= b.compute_beside)
    zone = np.where(b_passes, 0.0, ahead[:, None] / b.iterations)
    now, x, y = np.zeros_like(offsets), np.zeros_like(offsets), np.zeros_like(offsets)
    ends = [np.zeros_like(offsets), np.zeros_like(offsets)]
    shape = offsets.shape
    a_runs, b_runs, b_waits = np.ones(shape, bool), np.zeros(shape, bool), np.ones(shape, bool)
    coupled, b_leads = np.zeros(shape, bool), np.zeros(shape, bool)
    full = np.broadcast_to(c == 0, shape).copy()
    for _ in range(40):
        if not (a_runs | b_runs | b_waits).any():
            return np.maximum(*ends)
        both = a_runs & b_runs
        # what each reads: 1 from storage, 0 from the cache, between in later epochs
        a_past, b_past = full & (x >= c) & (x < 1), full & (y >= c) & (y < 1)
        a_later, b_later = x >= 1, y >= 1
        a_front = a_runs & ~full & ~b_leads
        b_front = b_runs & ~full & b_leads
        a_reads = np.where(a_runs, np.where(a_later, 1 - c, 1.0 * (a_past | a_front)), 0.0)
        b_reads = np.where(b_runs, np.where(b_later, 1 - c, 1.0 * (b_past | b_front)), 0.0)
        a_s = _pass_s(a, both, a_reads, b_reads, a_later, a_front, a_past, c)
        b_s = _pass_s(b, both, b_reads, a_reads, b_later, b_front, b_past, c)
        a_s = np.where(coupled & both, pace, a_s)
        b_s = np.where(coupled & both, pace, b_s)
        leader, follower = np.where(b_leads, y, x), np.where(b_leads, x, y)
        lead_s, follow_s = np.where(b_leads, b_s, a_s), np.where(b_leads, a_s, b_s)
        closing = np.where(follow_s < lead_s, 1 / follow_s - 1 / lead_s, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = np.maximum(0.0, leader - follower - np.where(b_leads, 0.0, zone))
            meets = np.where(both & ~full & ~coupled & (closing > 0), gap / closing, np.inf)
        events = np.stack(
            [
                np.where(b_waits, offsets - now, np.inf),
                meets,
                np.where(a_runs & ~full & ~b_leads, np.maximum(0, c - x) * a_s, np.inf),
                np.where(b_runs & ~full & b_leads, np.maximum(0, c - y) * b_s, np.inf),
                np.where(a_runs & full & ~a_past & ~a_later, np.maximum(0, c - x) * a_s, np.inf),
                np.where(b_runs & full & ~b_past & ~b_later, np.maximum(0, c - y) * b_s, np.inf),
                np.where(a_runs & a_past, (1 - x) * a_s, np.inf),
                np.where(b_runs & b_past, (1 - y) * b_s, np.inf),
                np.where(a_runs & a_later, (a.epochs - x) * a_s, np.inf),
                np.where(b_runs & b_later, (b.epochs - y) * b_s, np.inf),
            ]
        )
        which, step = events.argmin(0), events.min(0)
        step = np.where(np.isfinite(step), step, 0.0)
        now = now + step
        x = np.where(a_runs, x + step / a_s, x)
        y = np.where(b_runs, y + step / b_s, y)
        starts = b_waits & (which == 0)
        b_waits, b_runs = b_waits & ~starts, b_runs | starts
        met = both & (which == 1)
        overtakes = met & b_passes & ~b_leads
        coupled |= met & ~overtakes
        b_leads |= overtakes
        x = np.where((which == 2) | (which == 4), np.broadcast_to(c, shape), x)
        y = np.where((which == 3) | (which == 5), np.broadcast_to(c, shape), y)
        full |= (x >= c) | (y >= c)
        coupled &= ~full
        x, y = np.where(which == 6, 1.0, x), np.where(which == 7, 1.0, y)
        a_ends = a_runs & ((which == 8) | ((x >= 1) & (a.epochs == 1)))
        b_ends = b_runs & ((which == 9) | ((y >= 1) & (b.epochs == 1)))
        ends = [np.where(a_ends, now, ends[0]), np.where(b_ends, now, ends[1])]
        a_runs, b_runs = a_runs & ~a_ends, b_runs & ~b_ends
    raise AssertionError("the jobs do not end")


def _pass_s(job: Side, both: Many, reads: Many, other_reads: Many, later: Many, front: Many, past: Many, c: Many) -> Many:
    alone = np.where(later, c * job.cached + (1 - c) * job.cold, np.where(front | past, job.cold, job.cached))
    near = np.where(other_reads > 0, job.beside, job.both_cached)
    far = job.compute_beside + other_reads * (job.apart - job.compute_beside)
    beside = np.where(later, c * near + (1 - c) * far, np.where(past, far, np.where(front, job.compute_beside, near)))
    return np.where(both, beside, alone)
