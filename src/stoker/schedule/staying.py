"""Which of several equal servers is which, so that as many jobs as can be stay where they are.

A placement made anew says what is together on one server, not which of the equal servers that is. Greedy: the server and
the part of the placement that have most jobs in common belong together.
"""

from collections import Counter
from collections.abc import Mapping

from stoker.schedule.job import Lease
from stoker.schedule.place import Packing

_FIXED = 10**6
"""Jobs in common that one which cannot be moved counts for."""


def stay(packing: Packing, leases: Mapping[str, Lease]) -> None:
    """Rename the servers of a placement; what each has left is not renamed, so this comes last."""
    cluster = packing.cluster
    common: Counter[tuple[int, int]] = Counter()
    for key, grant in packing.grants.items():
        lease = leases.get(key)
        if lease is not None:
            old = [cluster.number[share.server] for share in lease.placement.shares]
            weight = _FIXED if grant.is_fixed else 2 if lease.placement.per_gpu == (grant.cpus, grant.memory) else 1
            for number, _ in grant.parts:
                for other in old:
                    if _kind(packing, number) == _kind(packing, other):
                        common[number, other] += weight
    names: dict[int, int] = {}
    taken: set[int] = set()
    for (number, other), _ in sorted(common.items(), key=lambda one: (-one[1], one[0])):
        if number not in names and other not in taken:
            names[number] = other
            taken.add(other)
    left = [number for number in range(len(cluster.servers)) if number not in taken]
    for number in range(len(cluster.servers)):
        if number not in names:
            names[number] = next(other for other in left if _kind(packing, other) == _kind(packing, number))
            left.remove(names[number])
    for grant in packing.grants.values():
        grant.parts = tuple((names[number], gpus) for number, gpus in grant.parts)


def _kind(packing: Packing, number: int) -> tuple[int, float, float]:
    server = packing.cluster.servers[number]
    return server.gpus, server.cpus, server.memory_gb
