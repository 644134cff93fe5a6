"""What would change the speed of a job, and by how much: questions to the cost model. Pure; no formula of its own.

The shares that are tried differ from what was measured in one thing, or in those that one command changes together.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from stoker.decide.model import AT_LIMIT, Prediction, Share, predict
from stoker.profile import Advice, Confidence, Profile, Rates
from stoker.units import format_bytes

WORTH = 0.03
"""Gains below are within what a measurement can tell."""
ADVICE_AT_MOST = 3
_MINOR = 0.1
"""A change that gains less than this part of what the best one does is not worth a line."""
_HALVINGS = 12
_STEPS = 24
"""So many numbers of workers are tried at most, the closer to each other the smaller they are."""
_MOST_CORES = 256
_AND = ", and "


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    share: Share
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Answer:
    """How much is enough, or None; the reason says why, or why not."""

    value: float | None
    reason: str


def as_measured(profile: Profile) -> Share:
    """The share that a profile was made with."""
    return Share(workers=profile.workers, cached=profile.cached, threads=profile.workers_kind == "threads")


def on_cores(rates: Rates, share: Share, count: int) -> Share:
    """A worker for each of so many cores: some of this host's, or all of a larger one."""
    return replace(share, workers=count, cores=max(float(count), share.cores or rates.cores))


def table(
    rates: Rates, share: Share, change: str, values: Iterable[Any], confidence: Confidence | None = None
) -> list[Row]:
    """A row for each value of one thing: `cores`, or a field of Share."""
    shares = [on_cores(rates, share, value) if change == "cores" else replace(share, **{change: value}) for value in values]
    return [Row(one, predict(rates, one, confidence)) for one in shares]


def smallest_cache(rates: Rates, share: Share, target: float | None = None) -> Answer:
    """The smallest fraction with which the loop is not held up, or that reaches a rate."""
    now, best = predict(rates, replace(share, cached=0.0)), predict(rates, replace(share, cached=1.0))
    wanted = AT_LIMIT * (now.gpu if target is None else target)
    if best.rate < wanted:
        return Answer(None, f"with everything cached there are {best.rate:,.0f} samples/s of {now.gpu:,.0f}: {_why(best)}")
    if now.rate >= wanted:
        return Answer(0.0, "reading from storage does not hold the loop up")
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = predict(rates, replace(share, cached=middle)).rate >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return Answer(high, f"with less, reading from storage ({now.fetch:,.0f} samples/s) holds the loop up")


def fewest_cores(rates: Rates, share: Share) -> Answer:
    """The smallest number of cores, each with a worker, with which the loop is not held up."""
    most = int(min(_MOST_CORES, 4 * max(rates.cores, *rates.prep_by_workers, rates.workers, 1)))
    best: Prediction | None = None
    for count in range(1, most + 1):
        best = predict(rates, on_cores(rates, share, count))
        if best.rate >= AT_LIMIT * best.gpu:
            return Answer(count, f"fewer prepare less than {best.gpu:,.0f} samples/s")
    assert best is not None
    return Answer(None, f"{most} cores give {best.rate:,.0f} samples/s of {best.gpu:,.0f}: {_why(best)}")


def _why(prediction: Prediction) -> str:
    return {
        "fetch": f"storage gives only {prediction.fetch:,.0f}",
        "prep": f"the workers prepare only {prediction.prep:,.0f}",
        "gpu": "handing batches over takes the rest",
    }[prediction.limit]


def best_workers(rates: Rates, share: Share) -> int:
    """The smallest number of workers on the same cores that is as good as any: more than cores, if they mostly wait."""
    measured = max(rates.workers, 1, *rates.prep_by_workers, *rates.storage_by_readers)
    cores = share.cores or rates.cores or measured
    most = max(1, int(max(cores, min(4 * cores, 2 * measured))))
    tried = {round(most ** (step / _STEPS)) for step in range(_STEPS + 1)} | {int(cores), measured, rates.workers}
    counts = range(1, most + 1) if most <= _STEPS else sorted(count for count in tried if 1 <= count <= most)
    speeds = {count: predict(rates, replace(share, workers=count)).rate for count in counts}
    best = max(speeds.values())
    return min(count for count, speed in speeds.items() if speed >= 0.99 * best)


def room_bytes(profile: Profile) -> int:
    """What a cache could take of this host's memory: half of it, where nothing better is known."""
    return profile.host.room_bytes or profile.host.memory_bytes // 2


def cache_room(profile: Profile) -> float:
    """The fraction of the dataset that a cache on this host could hold; 0 where sizes are unknown."""
    return min(1.0, room_bytes(profile) / profile.dataset.bytes) if profile.dataset.bytes else 0.0


def advise(profile: Profile) -> tuple[Advice, ...]:
    """The two or three changes that help most: first those that cost nothing, then hardware that gives more than these."""
    rates, share = profile.rates, as_measured(profile)
    now = predict(rates, share)
    if now.stall < 1 - AT_LIMIT:
        return ()
    settings = _without_ballast(_ranked(rates, now.rate, _settings(profile, share)))
    best = settings[0].rate if settings else now.rate
    bought = [one for one in _ranked(rates, now.rate, _hardware(rates, share)) if one.rate >= (1 + WORTH) * best]
    kept = [one for one in settings if one.gain >= _MINOR * settings[0].gain]
    return (*kept[: ADVICE_AT_MOST - bool(bought)], *bought)[:ADVICE_AT_MOST]


def _without_ballast(settings: list[Advice]) -> list[Advice]:
    """Without combinations that give hardly more than one of their parts does."""
    single = max((one.rate for one in settings if _AND not in one.change), default=0.0)
    return [one for one in settings if _AND not in one.change or one.rate >= (1 + WORTH) * single]


def _ranked(rates: Rates, now: float, changes: Iterable[tuple[str, Share, str]]) -> list[Advice]:
    found = []
    for change, share, apply in changes:
        rate = predict(rates, share).rate
        if rate >= (1 + WORTH) * now:
            found.append(Advice(change, rate, rate / now - 1, apply))
    return sorted(found, key=lambda advice: -advice.rate)


def _settings(profile: Profile, share: Share) -> Iterable[tuple[str, Share, str]]:
    rates = profile.rates
    workers = best_workers(rates, share)
    if workers != share.workers:
        yield _workers(workers), replace(share, workers=workers), f"num_workers={workers}"
    fraction = cache_room(profile)
    if fraction > share.cached and rates.storage:
        size = round(fraction * profile.dataset.bytes)
        words = f"cache {format_bytes(size)}, {fraction:.0%} of the dataset"
        cached = replace(share, cached=fraction)
        yield words, cached, f"--cache {_size(size)}"
        both = best_workers(rates, cached)
        if both != share.workers:
            yield (
                f"{_workers(both)}{_AND}{words}",
                replace(cached, workers=both),
                f"num_workers={both} --cache {_size(size)}",
            )
    if rates.prep_by_threads and not share.threads:
        yield "workers that are threads", replace(share, threads=True), "--workers threads"


def _hardware(rates: Rates, share: Share) -> Iterable[tuple[str, Share, str]]:
    cores = int(2 * (share.cores or rates.cores or rates.workers or 1))
    yield f"{cores} cores with a worker each", on_cores(rates, share, cores), ""
    if rates.storage:
        yield "storage that is twice as fast", replace(share, storage_factor=2 * share.storage_factor), ""


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"


def _size(count: int) -> str:
    return f"{max(1, -(-count // 10**6))}MB"
