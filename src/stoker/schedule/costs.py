"""What starts have cost: a part that is the same for all, and a part that takes longer with fewer cores. Pure.

A start is mostly one process that imports. With a part of a core it takes that much longer, with several it is no faster.
"""

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

import numpy as np


def start_cost(seen: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """From starts, each with its cores and its seconds: the seconds of all, and those of one whole core on top.

    Medians count, of the starts with as many cores. Where all had as many, or those with fewer were not slower, nothing is
    on top.
    """
    groups: dict[float, list[float]] = defaultdict(list)
    for cores, seconds in seen:
        groups[round(min(1.0, cores), 3)].append(max(0.0, seconds))
    everyone = median(seconds for group in groups.values() for seconds in group)
    if len(groups) < 2:
        return everyone, 0.0
    slowness = np.array([1 / cores for cores in groups])
    medians, weights = np.array([median(group) for group in groups.values()]), [len(group) for group in groups.values()]
    work, same = (float(one) for one in np.polyfit(slowness, medians, 1, w=np.sqrt(weights)))
    if work <= 0:
        return everyone, 0.0
    return (same, work) if same >= 0 else (0.0, float(median(medians / slowness)))
