"""Where do samples come from when several hosts have one cache, by who keeps what? And what does deciding cost?

Replayed with the objects that decide live, in the epochs after the caches have settled, over as many seeds as there are
rounds. Parts are of all uses. `ratio` is what comes from a host's own cache because it was used there before, against
keep-first. `alone` is a host that sees no others. Last, seconds for an epoch of 1,000,000 samples on one of 8 hosts; there
`ratio` is against reading as many samples of 100 KB from memory at 10 GB/s.
"""

import statistics
import time

import harness
from stoker.cache.cooperation import Cooperation
from stoker.cache.replay import replay
from stoker.cache.replay_hosts import HostEpoch, HostsReplay, replay_hosts
from stoker.cache.shares import shares_of
from stoker.order import Drawn

SAMPLES = 4000
EPOCHS, SETTLED = 24, 12
CASES = ((4, 0.296), (3, 1 / 3), (3, 0.2), (2, 0.65), (8, 0.296))
MANY = 1_000_000


def played(hosts: int, fits: float, policy: str, ahead: int, seed: int) -> HostsReplay:
    shares, capacity = shares_of(Drawn(SAMPLES, seed), hosts), -int(-fits * SAMPLES // 1)
    return replay_hosts(shares, [capacity] * hosts, policy=policy, epochs=EPOCHS, ahead=ahead, within=32)


def parts(total: HostEpoch) -> dict[str, float]:
    found = {
        "demand": total.demand_hits,
        "prefetched": total.prefetched_hits,
        "peers": total.peer_hits,
        "storage": total.storage_reads,
        "transfers": total.bytes_from_peers,
        "bytes from storage": total.bytes_from_storage,
    }
    return {name: count / total.uses for name, count in found.items()}


def case(hosts: int, fits: float, seeds: int) -> None:
    rows: dict[str, dict[str, float]] = {}
    for policy in ("keep-first", "reuse-distance"):
        for ahead in (0, 1):
            totals = [played(hosts, fits, policy, ahead, seed).total(SETTLED) for seed in range(seeds)]
            rows[f"{policy}, {ahead} ahead"] = parts(HostEpoch.total(totals))
    alone = replay(
        Drawn(SAMPLES, 0), capacity=int(fits * SAMPLES), policy="reuse-distance", readers=hosts, epochs=EPOCHS
    ).hit_ratio(SETTLED)
    ratio = rows["reuse-distance, 0 ahead"]["demand"] / rows["keep-first, 0 ahead"]["demand"]
    harness.report(f"{hosts} hosts with room for {fits:.1%} each", ratio=ratio, parts=rows, alone=alone)


def cost(rounds: int) -> None:
    shares = shares_of(Drawn(MANY), 8)
    listed: dict[int, int] = {}
    host = Cooperation(0, MANY * 3 // 10, lambda ids: [1] * len(ids), listed.get, shares)
    beginning, deciding = [], []
    for epoch in range(rounds):
        began = time.perf_counter()
        ids = host.begin(epoch).tolist()
        beginning.append(time.perf_counter() - began)
        for start in range(0, len(ids), 64):
            host.decide(ids[start : start + 64])
        deciding.append(time.perf_counter() - began - beginning[-1])
        listed.update((key, 1 + key % 7) for key in range(MANY) if key not in host.ledger)
    seconds = statistics.median(beginning[1:] or beginning) + statistics.median(deciding)
    harness.report(
        "seconds to decide on an epoch of 1 of 8 hosts, 1,000,000 samples",
        ratio=MANY / 8 * 1e5 / 1e10 / seconds,
        seconds={"first": beginning[0], "begin": statistics.median(beginning[1:] or beginning)},
        decide_us=1e6 * statistics.median(deciding) / (MANY / 8),
    )


def main() -> None:
    rounds = harness.rounds()
    for hosts, fits in CASES:
        case(hosts, fits, rounds)
    cost(rounds + 1)


if __name__ == "__main__":
    main()
