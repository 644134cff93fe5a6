"""Profile in, plan out: workers, prefetch and cache, each with its reason. Pure.

A value is set only if the forecast says that it matters, or that the present one should stay. A plan never changes what the
script says explicitly, and promises nothing for it. The text of a plan has every reason beside its value.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from stoker.decide.forecast import Forecast, as_measured
from stoker.decide.model import AT_LIMIT, Prediction, Share, hit_ratio
from stoker.decide.whatif import ON_DEVICE, WORTH, best_workers, cache_room, room_bytes, smallest_cache
from stoker.plan import DEVICE, HOST, SECTIONS, TAIL, Plan
from stoker.profile import Profile
from stoker.units import format_bytes

_AS_GOOD = 0.97
"""Threads that reach this part of what processes do share memory, start at once and need no pickling: take them."""
_SPARE = 1.1
"""A cache is planned so much larger than the model says is enough."""
_CHEAP = 0.25
"""A cache that takes no more than this part of the room is not made smaller."""
_LEAST_PREFETCH, _MOST_PREFETCH = 2, 8
_WAIT = 0.005
"""Prefetch is so deep that chance alone makes the loop wait for less than this part of its time."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan, the reason of each of its values by the name of Plan's field, and what is expected of it."""

    plan: Plan
    reasons: Mapping[str, str]
    share: Share
    before: Prediction
    after: Prediction

    @property
    def gain(self) -> float:
        """How many times as fast as now, less one."""
        return self.after.rate / self.before.rate - 1

    @property
    def is_worth_it(self) -> bool:
        """Whether the plan makes the run faster."""
        return self.gain >= WORTH


def decide(profile: Profile, given: Share | None = None) -> Decision:
    """The plan for another run of the same script on the same host.

    What is given takes the place of what it had there. Then its number of workers is no better than any other.
    """
    forecast, now = Forecast.of(profile), given or as_measured(profile)
    before = forecast(now)
    values: dict[str, str | int] = {}
    reasons: dict[str, str] = {}
    share = now
    if before.limit == "gpu" and given is None:
        values["num_workers"] = profile.workers
        reasons["num_workers"] = f"as it was: the loop waits for data during {before.stall:.1%} of its time"
    else:
        can_cache = profile.rates.storage and "cache" not in profile.fixed
        roomy = replace(now, cached=max(now.cached, cache_room(profile) if can_cache else 0.0))
        roomy = _on_device(profile, forecast, roomy, values, reasons)
        share = _workers(profile, forecast, roomy, stays=given is None)
        values["num_workers"] = share.workers or 0
        reasons["num_workers"] = _workers_reason(profile, forecast, share)
        share = _cache(profile, forecast, share, values, reasons)
    if share.workers:
        share = _kind(profile, share, values, reasons)
        values["prefetch_factor"], reasons["prefetch_factor"] = _prefetch(profile, share)
    return Decision(Plan.of_values(values), reasons, share, before, forecast(share))


def _on_device(
    profile: Profile, forecast: Forecast, share: Share, values: dict[str, str | int], reasons: dict[str, str]
) -> Share:
    """With a part of preparing on the device, if that is faster. Decoding there has to be faster than what is exact."""
    if "prep" in profile.fixed:
        return share
    before = forecast.rate(share)
    for part in (TAIL, DEVICE):
        there = replace(share, prep=part, threads=False)
        if part in forecast.on_device and forecast.rate(there) >= (1 + WORTH) * forecast.rate(share):
            share = there
            exact = "the same numbers" if part == TAIL else "the same but for the last bit of some pixels"
            values["prep"] = part
            reasons["prep"] = (
                f"{ON_DEVICE[part]}, {exact}: {forecast.rate(there):,.0f} samples/s, where {before:,.0f} come without"
            )
    return share


def _workers(profile: Profile, forecast: Forecast, share: Share, *, stays: bool) -> Share:
    """The number of workers: as before if it `stays`, unless another number is better and the script does not set it."""
    if "num_workers" in profile.fixed:
        return share
    best = replace(share, workers=best_workers(forecast, share))
    return share if stays and forecast.rate(share) >= 0.99 * forecast.rate(best) else best


def _workers_reason(profile: Profile, forecast: Forecast, share: Share) -> str:
    count, cores = share.workers or 0, share.cores or profile.rates.cores
    expected = forecast(share)
    rate = expected.rate
    if "num_workers" in profile.fixed:
        return "as the script says, which no plan changes"
    if count == profile.workers:
        return f"as it was: no other number on {cores:.3g} cores gives more than {rate:,.0f} samples/s"
    had = forecast.rate(_with(share, profile))
    why = f"{rate:,.0f} samples/s, where {profile.workers} give {had:,.0f}"
    if count < profile.workers and rate < had / AT_LIMIT:
        why = f"as good as {profile.workers} on {cores:.3g} cores: {rate:,.0f} samples/s"
    why += "; more than cores, because they wait for much of their time" if cores and count > cores else ""
    return why + (f"; uncertain, at least {expected.low:,.0f}" if expected.extrapolated else "")


def _with(share: Share, profile: Profile) -> Share:
    return replace(share, workers=profile.workers)


def _cache(
    profile: Profile, forecast: Forecast, share: Share, values: dict[str, str | int], reasons: dict[str, str]
) -> Share:
    """The smallest cache that is as good as the largest that fits."""
    size = profile.dataset.bytes
    without = forecast.rate(replace(share, cached=0.0))
    with_all = forecast.rate(share)
    if share.cached <= profile.cached or with_all < without / AT_LIMIT:
        return replace(share, cached=profile.cached)
    enough = smallest_cache(forecast, replace(share, cached=0.0), target=with_all).value
    fraction = min(share.cached, (share.cached if enough is None else enough) * _SPARE)
    if fraction > 0.9 * share.cached or share.cached * size <= _CHEAP * room_bytes(profile):
        fraction = share.cached
    values["cache_bytes"] = max(1, math.ceil(fraction * size))
    estimate = "" if profile.dataset.bytes_known else ", an estimate"
    reasons["cache_bytes"] = (
        f"{fraction:.0%} of {format_bytes(size)}{estimate}: {with_all:,.0f} samples/s, where {without:,.0f} come without"
    )
    values["cache_policy"] = "keep-first"
    lru = f"no policy has more hits on one host: {fraction:.0%}; lru would have {hit_ratio(fraction, 'lru'):.0%}"
    reasons["cache_policy"] = "all of it fits, so nothing is ever given up" if fraction == 1 else lru
    return replace(share, cached=fraction)


def _kind(profile: Profile, share: Share, values: dict[str, str | int], reasons: dict[str, str]) -> Share:
    threads, processes = profile.rates.prep_by_threads, profile.rates.prep_by_workers
    both = [count for count in threads if processes.get(count)]
    if share.prep != HOST:
        values["workers"] = "processes"
        reasons["workers"] = "only these leave a part of preparing to the device"
        return share
    if "workers" in profile.fixed:
        values["workers"] = profile.workers_kind
        reasons["workers"] = "as the script says, which no plan changes"
        return share
    if not both:
        values["workers"] = profile.workers_kind
        reasons["workers"] = "as it was: the other kind was not tried"
        return share
    ratio = threads[max(both)] / processes[max(both)]
    values["workers"] = "threads" if ratio >= _AS_GOOD else "processes"
    reasons["workers"] = f"{max(both)} threads prepare {ratio:.2f} times what as many processes do"
    return replace(share, threads=ratio >= _AS_GOOD)


def _prefetch(profile: Profile, share: Share) -> tuple[int, str]:
    """The prefetch. Two balanced stages with N batches between them lose about variance / 2N of their rate by chance."""
    if "prefetch_factor" in profile.fixed:
        return profile.prefetch, "as the script says, which no plan changes"
    hits = hit_ratio(share.cached, share.policy)
    variance = (profile.rates.spread**2 + hits * (1 - hits)) / profile.batch_size
    depth = math.ceil(variance / (2 * _WAIT) / (share.workers or 1))
    samples = f"{profile.batch_size} sample{'s' if profile.batch_size > 1 else ''}"
    reason = f"batches ahead for each worker, so that times of batches of {samples} even out"
    return min(_MOST_PREFETCH, max(_LEAST_PREFETCH, depth)), reason


def render(plan: Plan, reasons: Mapping[str, str], head: str = "") -> str:
    """The plan as TOML, every reason beside its value."""
    lines = [*(f"# {line}" for line in head.splitlines()), "version = 1"]
    for section, keys in SECTIONS.items():
        said = {key: (name, getattr(plan, name)) for key, (name, _) in keys.items() if getattr(plan, name) is not None}
        if said:
            lines += ["", f"[{section}]"]
        for key, (name, value) in said.items():
            reason = " ".join(reasons.get(name, "").split())
            lines.append(f"{key} = {json.dumps(value)}" + (f"  # {reason}" if reason else ""))
    return "\n".join(lines) + "\n"
