"""How fast a job would be on several hosts whose caches are one, from the profile of one host. Pure.

Every host is taken to be like the one that was measured, with storage that gives each host as much. Each reads a random
part of the data in each epoch, and has room for a fraction x of all of it. The caches are partitioned, and spare room is
filled with copies, so that of all uses, with N hosts:

    here        x
    at a peer   min(1, N x) - x
    in storage  max(0, 1 - N x)

The cost model does the rest: workers read from peers and from storage side by side, and prepare in turn. What a host needs
from others is a matter of chance, and an epoch is over when the host that needs most is done: with a million samples that
is the same, with a thousand some per cent more. What hosts cost each other otherwise, such as the exchange of gradients, is
not in it.
"""

import math
import statistics
from dataclasses import dataclass, replace

from stoker.decide.forecast import Forecast
from stoker.decide.model import Prediction, Share
from stoker.errors import ConfigError
from stoker.profile import Profile


@dataclass(frozen=True, slots=True)
class Tiers:
    """Where samples are when they are used, in parts of all uses."""

    here: float
    peer: float
    storage: float


def tiers(hosts: int, cached: float) -> Tiers:
    """Of hosts that have room for such a fraction of the dataset each."""
    if hosts < 1:
        raise ConfigError(f"there must be at least one host, not {hosts}")
    if not 0 <= cached <= 1:
        raise ConfigError(f"the cache fraction is a number from 0 to 1, not {cached}")
    held = min(1.0, hosts * cached)
    return Tiers(cached, held - cached, 1 - held)


@dataclass(frozen=True, slots=True)
class HostsPrediction:
    """Several hosts with one cache."""

    hosts: int
    tiers: Tiers
    share: Share
    """What a rank of one of them is given."""
    prediction: Prediction
    """Of one rank."""
    rate: float
    """Samples per second of all hosts together."""
    epoch_s: float
    """Until the slowest host is done."""
    network_bytes_per_s: float
    """That each host receives."""
    without_peers: float
    """Samples per second of all hosts together with the same caches, each for itself."""


def on_hosts(profile: Profile, forecast: Forecast, share: Share, hosts: int, network: float | None) -> HostsPrediction:
    """Predict an epoch on so many hosts. `network` is what a host's link brings, in bytes per second."""
    size, found = profile.dataset.sample_bytes, tiers(hosts, share.cached)
    if network is None and not profile.rates.peer and found.peer:
        raise ConfigError(
            "the profile does not know how fast other hosts answer: give the rate of their links by --network"
        )
    if network is not None and not size:
        raise ConfigError("--network needs the dataset's size, which the profile does not know")
    link = None if network is None else network / profile.world / size
    given = replace(share, peers=found.peer, network=link)
    there = forecast(given)
    ranks = hosts * profile.world
    samples = profile.dataset.samples
    more = min(share.cached, _most_of(hosts) * math.sqrt(found.peer * (1 - found.peer) * hosts / samples)) if samples else 0
    slowest = forecast.rate(replace(given, cached=share.cached - more, peers=found.peer + more)) if more else there.rate
    return HostsPrediction(
        hosts=hosts,
        tiers=found,
        share=given,
        prediction=there,
        rate=ranks * there.rate,
        epoch_s=samples / (ranks * slowest),
        network_bytes_per_s=there.rate * profile.world * found.peer * size,
        without_peers=ranks * forecast.rate(replace(share, peers=0.0, network=None)),
    )


def _most_of(hosts: int) -> float:
    """The largest of so many numbers of a normal distribution, on average (Blom's approximation)."""
    return statistics.NormalDist().inv_cdf((hosts - 0.375) / (hosts + 0.25)) if hosts > 1 else 0.0
