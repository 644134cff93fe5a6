"""A plan for several ranks on each of several hosts, from the profile of one host. Pure.

The ranks of a host have equal parts of its cores and of what its storage was seen to give. They have one cache, or a
part of its memory each, if they know what comes and find more by that. Every host is taken to be like the one that was
measured, with storage that gives each host as much. In an epoch a host reads another part of the data than in the one
before, so that policies differ: their hits are simulated with the ledger of the live cache, on fewer samples.
"""

from dataclasses import dataclass, replace

from stoker.cache.replay import replay
from stoker.decide.forecast import Forecast, as_measured
from stoker.decide.loading import Loading, Needs, SampleTime
from stoker.decide.model import predict, scaled
from stoker.decide.planner import Decision, decide
from stoker.decide.threads import Division, Queue, divide
from stoker.errors import ConfigError
from stoker.order import Drawn
from stoker.plan import MOST_READERS, READERS
from stoker.profile import Profile
from stoker.units import format_bytes

_SAMPLES = 4000
"""Hits depend on the part of the data that fits, hardly on how much there is."""
_BETTER = 0.02
"""A policy that has so many more hits is worth that it needs to know the order."""
_READERS = 32


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: a value for one rank and for a host, where they have one, and its reason."""

    name: str
    rank: str
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class RanksDecision:
    """The plan that each rank obeys, and all that was decided, for people."""

    decision: Decision
    rows: tuple[Row, ...]


def decide_ranks(profile: Profile, hosts: int, gpus: int) -> RanksDecision:
    """The plan for hosts like the measured one with so many ranks each, one for each GPU."""
    if hosts < 1 or gpus < 1:
        raise ConfigError(f"there must be at least one host and one GPU in it, not {hosts} and {gpus}")
    cores = profile.host.cores / gpus if profile.host.cores else None
    given = replace(as_measured(profile), cores=cores, storage_factor=profile.world / gpus)
    made = decide(profile, None if gpus == profile.world else given)
    if hosts > 1 and made.plan.cache_bytes and made.share.cached < 1:
        made = _with_policy(profile, made, hosts, gpus)
    divided = _divided(profile, made, gpus)
    if divided is not None and made.plan.cache_bytes and gpus != profile.world:
        made = _with_readers(made, divided)
    rate = made.after.rate
    reason = f"predicted; {made.before.rate:,.0f} for a rank of the script as it is"
    expected = Row("samples/s", f"{rate:,.0f}", f"{gpus * rate:,.0f}", reason)
    return RanksDecision(made, (*_workers(profile, made, divided, gpus), *_cache(profile, made, hosts, gpus), expected))


def _with_policy(profile: Profile, made: Decision, hosts: int, gpus: int) -> Decision:
    """One cache for each host, or one for each rank that knows what comes: where several hosts read other parts in turn."""
    fits = made.share.cached
    kept, known = _hits("keep-first", fits, hosts), _hits("reuse-distance", fits / gpus, hosts * gpus)
    found = f"hits of each of {hosts} hosts: {kept:.0%} with one cache for its ranks"
    if known <= kept + _BETTER:
        return _changed(made, reason=f"{found}; reuse-distance, with one for each rank, would have {known:.0%}")
    if "seed" not in profile.fixed:
        reason = f"{found}; reuse-distance would have {known:.0%}, but needs seed= in the script, and a stoker.Dataset"
        return _changed(made, reason=reason)
    assert made.plan.cache_bytes is not None
    plan = replace(made.plan, cache_policy="reuse-distance", cache_bytes=max(1, made.plan.cache_bytes // gpus))
    after = Forecast.of(profile)(replace(made.share, cached=known))
    reason = f"{found}, {known:.0%} with one for each rank and this policy; it needs a stoker.Dataset"
    size = made.reasons["cache_bytes"] + (f"; for each of {gpus} ranks a part" if gpus > 1 else "")
    return _changed(replace(made, plan=plan, after=after), reason=reason, size=size)


def _hits(policy: str, fits: float, readers: int) -> float:
    """Demand hits, if such a part of the data fits each reader's cache. More readers than are simulated differ little."""
    readers = min(readers, _READERS)
    played = replay(Drawn(_SAMPLES), capacity=round(fits * _SAMPLES), policy=policy, readers=readers, epochs=6 * readers)
    return played.hit_ratio(after=2 * readers)


def _changed(made: Decision, *, reason: str, size: str = "") -> Decision:
    said = {"cache_policy": reason} | ({"cache_bytes": size} if size else {})
    return replace(made, reasons={**made.reasons, **said})


def _with_readers(made: Decision, divided: Division) -> Decision:
    """As many threads read ahead as workers would, if each did one of the two; not fewer than usual: waiting is cheap."""
    readers = min(MOST_READERS, sum(divided.loading.workers))
    if readers <= READERS:
        return made
    reason = "threads of a host that read ahead for the queued batches of all its ranks"
    return replace(made, plan=replace(made.plan, readers=readers), reasons={**made.reasons, "readers": reason})


def _workers(profile: Profile, made: Decision, divided: Division | None, gpus: int) -> list[Row]:
    workers = made.share.workers or 0
    rows = [Row("workers", str(workers), str(workers * gpus), made.reasons["num_workers"])]
    if not workers:
        return rows
    ahead = (made.plan.prefetch_factor or profile.prefetch) * workers
    queue = Row("queue, in batches", str(ahead), str(ahead * gpus), made.reasons["prefetch_factor"])
    pixels = [Row("pixels", f"--prep {made.plan.prep}", "", made.reasons["prep"])] if made.plan.prep else []
    return [*rows, *_stages(profile, made, divided), *pixels, queue]


def _divided(profile: Profile, made: Decision, gpus: int) -> Division | None:
    """How many of a host's workers would read and how many prepare, if each did one of the two, for all ranks."""
    workers = made.share.workers or 0
    if workers < 2:
        return None
    share, batch, total = made.share, profile.batch_size, workers * gpus
    known = Forecast.of(profile).on(share.prep).rates
    rates = scaled(known, "storage", share.storage_factor)
    prepared = {count: predict(known, replace(share, workers=count)).prep for count in range(1, workers + 1)}
    prepare = SampleTime.of_rates({count * gpus: rate * gpus for count, rate in prepared.items()}, growing=False)
    needs = Needs(here=share.cached * batch, storage=(1 - share.cached) * batch)
    train_s = batch / made.after.gpu
    return divide([Queue(Loading.of_rates(rates).seconds(needs, total))] * gpus, train_s, total, prepare, batch * gpus)


def _stages(profile: Profile, made: Decision, divided: Division | None) -> list[Row]:
    if divided is None:
        return [Row("  reading", "", "", "all read and prepare in turn: there are too few to do only one of the two")]
    is_late = divided.loading.iteration_s > profile.batch_size / made.after.gpu
    late = "; batches are late all the same" if is_late else ""
    alone = "for all ranks, if each did only one of the two"
    why = "threads that read ahead for all ranks" if made.plan.readers else alone
    reading = Row("  reading", "", str(made.plan.readers or sum(divided.loading.workers)), why)
    return [reading, Row("  preparing", "", str(divided.preparing), f"{divided.reason}{late}")]


def _cache(profile: Profile, made: Decision, hosts: int, gpus: int) -> list[Row]:
    size = made.plan.cache_bytes
    if not size:
        without = "it would not make the loop faster" if profile.rates.storage else "no reading from storage was measured"
        return [Row("cache", "", "none", without)]
    each = made.plan.cache_policy != "keep-first"  # such a cache belongs to one rank
    host = size * gpus if each else size
    total = f"; {format_bytes(hosts * host)} on {hosts} hosts" if hosts > 1 else ""
    rank = format_bytes(size) if each else ""
    return [
        Row("cache", rank, format_bytes(host), made.reasons["cache_bytes"] + total),
        Row("  policy", "", made.plan.cache_policy or "", made.reasons["cache_policy"]),
    ]
