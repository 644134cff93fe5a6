"""The profile of a script: all that was measured of it, and what follows from that. Pure."""

from dataclasses import replace

import stoker
from stoker.decide.limit import limit_of, stalls_of
from stoker.decide.model import Share, predict, seen_together
from stoker.decide.whatif import advise
from stoker.measure.series import Series
from stoker.profile import Confidence, DatasetSize, Host, OnDevice, Profile, Rates, Speed
from stoker.run.measured import Measured

_CHANCE = 1.25
"""A loop that is measured so many times as fast as without any waiting was not measured well."""


def profile_of(found: Measured, script: str, host_name: str = "", taken: str = "") -> Profile:
    """Make a profile. Values that were not measured are predicted from the rates, as far as these are known."""
    workers = found.workers
    prep = found.prep.get(workers) or found.prep[max(found.prep)]
    storage = found.storage.get(max(1, workers), Series())
    rates = Rates(
        gpu=found.gpu.rate,
        prep=prep.rate,
        storage=storage.rate,
        cache=found.cache,
        prep_by_workers={count: series.rate for count, series in found.prep.items()},
        prep_by_threads={count: series.rate for count, series in found.prep_threads.items()},
        storage_by_readers={count: series.rate for count, series in found.storage.items()},
        storage_rested=found.storage_rested,
        workers=workers,
        cores=found.cores / found.world,
        batch=found.batch,
        prep_busy=found.prep_busy,
        loop_cores=min(found.loop_cores, found.cores),
        handover=_handover(found),
        spread=found.spread,
        peer=found.peer,
    )
    share = Share(cached=found.cached_part, threads=found.threads)
    if found.cached.times:
        rates = seen_together(rates, share, found.cached.rate)
    confidence = Confidence(
        found.gpu.width, prep.width, storage.width if storage.times else 0.0, 0.05 if found.cache else 0.0
    )
    cached = found.cached.rate or found.cold.rate or predict(rates, replace(share, cached=1.0)).rate
    cold = found.cold.rate or (predict(rates, share).rate if storage.times else cached)
    speed = Speed(found.gpu.rate, cached, cold)
    if max(cached, cold) > _CHANCE * found.gpu.rate:
        found.note(
            "the loop was seen to go faster with its loader than with batches that were there already: it does not do the "
            "same all the time, or the host was busy; measure again"
        )
    stalls = stalls_of(speed)
    profile = Profile(
        stoker=stoker.__version__,
        host=Host(found.cores, found.memory_bytes, found.device, found.room_bytes, found.others, host_name),
        dataset=DatasetSize(found.samples, found.bytes, found.bytes_known),
        batch_size=max(1, found.batch),
        workers=workers,
        rates=rates,
        speed=speed,
        stalls=stalls,
        limit=limit_of(stalls.prep, stalls.fetch),
        confidence=confidence,
        workers_kind="threads" if found.threads else "processes",
        prefetch=found.prefetch,
        world=found.world,
        cached=found.cached_part if found.cold.times else 0.0,
        script=script,
        notes=(*found.notes, *filter(None, [found.busy])),
        fixed=tuple(found.fixed),
        on_device=_on_device(found),
        taken=taken,
    )
    return replace(profile, advice=advise(profile))


def _on_device(found: Measured) -> tuple[OnDevice, ...]:
    """The parts of preparing for which all three rates are known."""
    series = found.prep_on_device, found.loop_on_device, found.cached_on_device
    return tuple(
        OnDevice(part, *rates)
        for part in found.prep_on_device
        if all(rates := [one[part].rate if part in one else 0.0 for one in series])
    )


def _handover(found: Measured) -> float:
    if not found.host.times or not found.gpu.times:
        return 0.0
    extra_s = 1 / found.host.rate - 1 / found.gpu.rate
    return 1 / extra_s if extra_s > 0 else 0.0
