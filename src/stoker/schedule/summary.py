"""What a simulation comes to: the document of `stoker schedule simulate --json`.

Utilisation is of the time from the first arrival to the last end, over all jobs. Fragmentation is the part of the GPUs that
is idle while jobs wait. Completion times are of the jobs whose numbers of arrival lie in the window.
"""

from typing import Any

import numpy as np

from stoker.schedule.simulate import History

_HOUR_S = 3600.0


def completion_times_h(history: History, window: tuple[int, int] | None = None) -> list[float]:
    """Hours from arrival to end of each job in the window, in the order of arrival."""
    first, last = window or (0, len(history.jobs))
    return [(history.ends_s[job.id] - job.arrival_s) / _HOUR_S for job in history.jobs[first:last]]


def summarise(history: History, window: tuple[int, int] | None = None) -> dict[str, Any]:
    """The whole document."""
    times_h = np.array(completion_times_h(history, window))
    begin_s, end_s = history.jobs[0].arrival_s, max(history.ends_s.values())
    decisions = np.array(history.decisions_s)
    percentiles = {"p50": 50, "p95": 95, "p99": 99, "p999": 99.9}
    return {
        "version": 1,
        "makespan_h": (end_s - begin_s) / _HOUR_S,
        "jct_h": {"mean": float(times_h.mean())}
        | {name: float(np.percentile(times_h, part)) for name, part in percentiles.items()},
        "jobs": len(history.jobs),
        "window": list(window or (0, len(history.jobs))),
        "rounds": len(history.decisions_s),
        "decision_s": {"mean": float(decisions.mean()), "max": float(decisions.max())},
        "utilisation": _utilisation(history, end_s - begin_s),
        "fragmentation": _fragmentation(history),
        "switches": history.switches,
    }


def _utilisation(history: History, whole_s: float) -> dict[str, float]:
    taken = {"gpu": 0.0, "cpu": 0.0, "memory": 0.0}
    for segment in history.segments:
        demand, lasted_s = segment.lease.placement.demand, segment.end_s - segment.begin_s
        taken["gpu"] += demand.gpus * lasted_s
        taken["cpu"] += demand.cpus * lasted_s
        taken["memory"] += demand.memory_gb * lasted_s
    there = {
        "gpu": sum(server.gpus for server in history.servers),
        "cpu": sum(server.cpus for server in history.servers),
        "memory": sum(server.memory_gb for server in history.servers),
    }
    return {name: taken[name] / (there[name] * whole_s) for name in taken}


def _fragmentation(history: History) -> float:
    gpus = sum(server.gpus for server in history.servers)
    idle = [gpus - used[1] for used, waiting in zip(history.used, history.waiting, strict=True) if waiting]
    return float(np.mean(idle)) / gpus if idle else 0.0
