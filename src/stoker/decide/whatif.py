"""What would change the speed of a job, and by how much: questions to the forecast. Pure; no formula of its own.

The shares that are tried differ from what was measured in one thing, or in those that one command changes together. What is
advised is sure to help: the interval of its speed lies above that of the speed now. Where it goes beyond what was measured,
that is the interval of the measured rates, and the advice says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from stoker.decide.forecast import Forecast, as_measured
from stoker.decide.limit import handover_part
from stoker.decide.model import AT_LIMIT, Prediction, Share
from stoker.plan import DEVICE, TAIL
from stoker.profile import Advice, Profile, Rates
from stoker.units import format_bytes

WORTH = 0.03
"""Smaller gains are not worth a change."""
ADVICE_AT_MOST = 3
_MINOR = 0.1
"""A change that gains less than this part of what the best one does is not worth a line."""
_HALVINGS = 12
_STEPS = 24
"""So many numbers of workers are tried at most, the closer to each other the smaller they are."""
_MOST_CORES = 256


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """One line of a table."""

    share: Share
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Enough:
    """How much is enough, or None; the reason says why, or why not."""

    value: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class _Change:
    """Something that could be changed: in words, as a share, as it is done, and as it is asked for."""

    words: str
    share: Share
    apply: str
    ask: str
    kind: str


def on_cores(rates: Rates, share: Share, count: int) -> Share:
    """A worker for each of so many cores: some of this host's, or all of a larger one."""
    return replace(share, workers=count, cores=max(float(count), share.cores or rates.cores))


def table(forecast: Forecast, share: Share, change: str, values: Iterable[Any]) -> list[PredictedRow]:
    """A row for each value of one thing: `cores`, or a field of Share."""
    rates = forecast.rates
    shares = [on_cores(rates, share, value) if change == "cores" else replace(share, **{change: value}) for value in values]
    return [PredictedRow(one, forecast(one)) for one in shares]


def smallest_cache(forecast: Forecast, share: Share, target: float | None = None) -> Enough:
    """The smallest fraction with which the loop is not held up, or that reaches a rate."""
    now, best = forecast(replace(share, cached=0.0)), forecast(replace(share, cached=1.0))
    wanted = AT_LIMIT * (now.gpu if target is None else target)
    if best.rate < wanted:
        reached = f"with everything cached there are {best.rate:,.0f} samples/s of {now.gpu:,.0f}"
        return Enough(None, f"{reached}: {_why(best, forecast.on(share.prep).rates)}")
    if now.rate >= wanted:
        return Enough(0.0, "reading from storage does not hold the loop up")
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = forecast.rate(replace(share, cached=middle)) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return Enough(high, f"with less, reading from storage ({now.fetch:,.0f} samples/s) holds the loop up")


def fewest_cores(forecast: Forecast, share: Share) -> Enough:
    """The smallest number of cores, each with a worker, with which the loop is not held up."""
    rates = forecast.rates
    most = int(min(_MOST_CORES, 4 * max(rates.cores, *rates.prep_by_workers, rates.workers, 1)))
    best: Prediction | None = None
    for count in range(1, most + 1):
        best = forecast(on_cores(rates, share, count))
        if best.rate >= AT_LIMIT * best.gpu:
            return Enough(count, f"fewer prepare less than {best.gpu:,.0f} samples/s")
    assert best is not None
    why = _why(best, forecast.on(share.prep).rates)
    return Enough(None, f"{most} cores give {best.rate:,.0f} samples/s of {best.gpu:,.0f}: {why}")


def _why(prediction: Prediction, rates: Rates) -> str:
    handing_over = handover_part(prediction.rate, rates)
    parts = {
        f"storage gives only {prediction.fetch:,.0f}": prediction.fetch_stall,
        f"the workers prepare only {prediction.prep:,.0f}": prediction.prep_stall - handing_over,
        "handing batches over takes the rest": handing_over,
    }
    return max(parts, key=lambda words: parts[words])


def best_workers(forecast: Forecast, share: Share) -> int:
    """The smallest number of workers on the same cores that is as good as any: more than cores, if they mostly wait."""
    rates = forecast.rates
    measured = max(rates.workers, 1, *rates.prep_by_workers, *rates.storage_by_readers)
    cores = share.cores or rates.cores or measured
    most = max(1, int(max(cores, min(4 * cores, 2 * measured))))
    tried = {round(most ** (step / _STEPS)) for step in range(_STEPS + 1)} | {int(cores), measured, rates.workers}
    counts = range(1, most + 1) if most <= _STEPS else sorted(count for count in tried if 1 <= count <= most)
    speeds = {count: forecast.rate(replace(share, workers=count)) for count in counts}
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
    forecast, share = Forecast.of(profile), as_measured(profile)
    now = forecast(share)
    if now.limit == "gpu":
        return ()
    settings = _without_ballast(_ranked(forecast, now, _settings(profile, forecast, share)))
    best = settings[0][1].rate if settings else now.rate
    hardware = _ranked(forecast, now, _hardware(forecast.rates, share))
    bought = [advice for _, advice in hardware if advice.rate >= (1 + WORTH) * best]
    kept = [advice for _, advice in settings if advice.gain >= _MINOR * settings[0][1].gain]
    return (*kept[: ADVICE_AT_MOST - bool(bought)], *bought)[:ADVICE_AT_MOST]


def no_advice(profile: Profile) -> str:
    """The sentence for a loop that is held up where nothing is advised: what was tried, or what might help."""
    forecast, share = Forecast.of(profile), as_measured(profile)
    now = forecast(share)
    changes = [*_settings(profile, forecast, share), *_hardware(forecast.rates, share)]
    found = sorted(((forecast(one.share).rate, one.words) for one in changes), reverse=True)
    if found and found[0][0] >= (1 + WORTH) * now.rate:
        rate, words = found[0]
        return (
            f"Nothing here is sure to help. The best that was tried is {words}, about {rate:,.0f} samples/s, and that is "
            "within what this measurement can tell. A longer one (--time), or a quiet host, would tell more."
        )
    tried = ", ".join(dict.fromkeys([_WORKERS, *(one.kind for one in changes)]))
    return f"Nothing here would help: {tried} were tried, and none is predicted to be faster."


def _without_ballast(settings: list[tuple[_Change, Advice]]) -> list[tuple[_Change, Advice]]:
    """Drop combinations that give hardly more than one of their parts."""
    single = max((advice.rate for change, advice in settings if change.kind != _BOTH), default=0.0)
    return [(change, one) for change, one in settings if change.kind != _BOTH or one.rate >= (1 + WORTH) * single]


def _ranked(forecast: Forecast, now: Prediction, changes: Iterable[_Change]) -> list[tuple[_Change, Advice]]:
    """The changes that are sure to help, the best first."""
    found = []
    for change in changes:
        then = forecast(change.share)
        if then.rate >= (1 + WORTH) * now.rate and _least(then) > now.high:
            words = change.words + (", more than was measured" if change.apply and then.extrapolated else "")
            found.append((change, Advice(words, then.rate, then.rate / now.rate - 1, change.apply, change.ask)))
    return sorted(found, key=lambda pair: -pair[1].rate)


def _least(then: Prediction) -> float:
    """The lower end of the expected speed, from the intervals of the measured rates."""
    return 2 * then.rate - then.high if then.extrapolated else then.low


_WORKERS, _CACHE, _BOTH, _THREADS = "other numbers of workers", "a cache", "both together", "threads"
_ON_DEVICE = "preparing on the device"
ON_DEVICE = {
    TAIL: "pictures become numbers on the device",
    DEVICE: "pictures are decoded and prepared on the device",
}
"""What a device may do of preparing, in words."""


def _settings(profile: Profile, forecast: Forecast, share: Share) -> Iterable[_Change]:
    rates = profile.rates
    workers = best_workers(forecast, share)
    if workers != share.workers:
        changed = replace(share, workers=workers)
        yield _Change(_workers(workers), changed, f"num_workers={workers}", f"--workers {workers}", _WORKERS)
    cache = _cache(profile, share) if rates.storage else None
    if cache is not None:
        yield cache
        both = best_workers(forecast, cache.share)
        if both != share.workers:
            changed, words = replace(cache.share, workers=both), f"{_workers(both)}, and {cache.words}"
            apply, ask = f"num_workers={both} {cache.apply}", f"--workers {both} {cache.ask}"
            yield _Change(words, changed, apply, ask, _BOTH)
    for part in forecast.on_device:
        words, option, changed = ON_DEVICE[part], f"--prep {part}", replace(share, prep=part, threads=False)
        yield _Change(words, changed, option, option, _ON_DEVICE)
        if cache is not None:
            words, changed = f"{words}, and {cache.words}", replace(changed, cached=cache.share.cached)
            yield _Change(words, changed, f"{option} {cache.apply}", f"{option} {cache.ask}", _BOTH)
    if rates.prep_by_threads and not share.threads:
        yield _Change(
            "workers that are threads", replace(share, threads=True), "--workers threads", "--kind threads", _THREADS
        )


def _cache(profile: Profile, share: Share) -> _Change | None:
    """The largest cache that this host has room for, if it is larger than the one that was there."""
    fraction = cache_room(profile)
    if fraction <= share.cached:
        return None
    size = round(fraction * profile.dataset.bytes)
    words, changed = f"cache {format_bytes(size)}, {fraction:.0%} of the dataset", replace(share, cached=fraction)
    return _Change(words, changed, f"--cache {_size(size)}", f"--cache {fraction!r}", _CACHE)


def _hardware(rates: Rates, share: Share) -> Iterable[_Change]:
    cores = int(2 * (share.cores or rates.cores or rates.workers or 1))
    words = f"{cores} cores with a worker each"
    yield _Change(words, on_cores(rates, share, cores), "", f"--cores {cores}", "twice the cores")
    if rates.storage:
        faster = replace(share, storage_factor=2 * share.storage_factor)
        yield _Change("storage that is twice as fast", faster, "", "--storage 2x", "storage twice as fast")


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"


def _size(count: int) -> str:
    return f"{max(1, -(-count // 10**6))}MB"
