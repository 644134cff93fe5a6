"""Loaders in the text format of Prometheus. Pure.

Counters are given as they are, for Prometheus to take rates of; times are given as moments, so that an old file is seen to
be old. The labels of a loader are its script, dataset, rank, pid, and its number within its process; those of a group are
its name, dataset, and what tells it apart from others of that name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from stoker.live.groups import GroupView, Key
from stoker.live.record import Seen

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS: tuple[tuple[str, str, Callable[[Seen], float]], ...] = (
    ("batches_total", "Batches handed to the training loop.", lambda seen: seen.batches),
    ("samples_total", "Samples in them.", lambda seen: seen.samples),
    ("wait_seconds_total", "Time that the training loop waited inside the loader.", lambda seen: seen.wait_s),
    ("prep_seconds_total", "Time spent making batches, summed over workers, reading included.", lambda seen: seen.prep_s),
    ("fetch_seconds_total", "Time of that spent reading; 0 where it cannot be told apart.", lambda seen: seen.fetch_s),
    ("cache_hits_total", "Reads that came from the cache.", lambda seen: seen.hits),
    ("cache_misses_total", "Reads that were looked for in the cache in vain.", lambda seen: seen.misses),
    ("cache_faults_total", "Times that the cache could not do what it should.", lambda seen: seen.faults),
    ("cache_read_bytes_total", "Bytes that came from the cache.", lambda seen: seen.bytes_cache),
    ("storage_read_bytes_total", "Bytes that came from storage, as far as known.", lambda seen: seen.bytes_storage),
    ("remote_samples_total", "Samples that other hosts have prepared.", lambda seen: seen.remote),
    ("remote_received_bytes_total", "Bytes of the batches that came from there.", lambda seen: seen.remote_bytes),
)
_GAUGES: tuple[tuple[str, str, Callable[[Seen, float, float], float | None]], ...] = (
    ("workers", "Workers of the loader.", lambda seen, at, wall: seen.workers),
    ("remote_workers", "Workers on other hosts.", lambda seen, at, wall: seen.remote_workers),
    ("remote_ratio", "The part of all batches that they may prepare now.", lambda seen, at, wall: seen.remote_ratio),
    ("epoch", "The epoch that the loader is in.", lambda seen, at, wall: seen.epoch if seen.epoch >= 0 else None),
    (
        "epoch_progress_ratio",
        "Share of the epoch's batches that were handed out.",
        lambda seen, at, wall: seen.epoch_batches / seen.epoch_length if seen.epoch_length else None,
    ),
    (
        "waiting_seconds",
        "How long the training loop has been waiting inside the loader right now; 0 when it is not.",
        lambda seen, at, wall: max(0.0, at - seen.asked_at) if seen.is_waiting else 0,
    ),
    (
        "last_batch_timestamp_seconds",
        "When the training loop last got a batch, or the end of an epoch, as Unix time.",
        lambda seen, at, wall: wall - (at - seen.left_at) if seen.left_at else None,
    ),
)


_GROUPS: tuple[tuple[str, str, str, Callable[[GroupView], float]], ...] = (
    ("members", "gauge", "Loaders in the group.", lambda group: len(group.members)),
    ("workers", "gauge", "Workers of all of them.", lambda group: group.workers),
    (
        "prepared_batches_total",
        "counter",
        "Batches prepared by anybody since the group was opened.",
        lambda group: group.prepared,
    ),
    ("repeated_batches_total", "counter", "Of those, how many had been prepared before.", lambda group: group.repeated),
    ("taken_over_batches_total", "counter", "Batches whose first preparer left or died.", lambda group: group.taken_over),
    ("passed_by_total", "counter", "How often a member was not waited for any more.", lambda group: group.passed_by),
    ("staging_bytes", "gauge", "Memory that holds batches now.", lambda group: group.staging_bytes),
    ("staging_budget_bytes", "gauge", "The most that it may be.", lambda group: group.budget_bytes),
    (
        "lag_batches",
        "gauge",
        "How far the last member is behind the first.",
        lambda group: group.last.behind if group.last else 0,
    ),
)


class PeerFigures(Protocol):
    """Another host whose cache is asked, as this host's keeper sees it."""

    @property
    def name(self) -> str:
        """Its address."""

    @property
    def held(self) -> int:
        """Items that it has told of."""

    @property
    def given(self) -> int:
        """Items that came from it."""

    @property
    def bytes(self) -> int:
        """Bytes that came from it."""

    @property
    def late(self) -> int:
        """Answers that were not waited for."""

    @property
    def is_suspect(self) -> bool:
        """Whether it is not asked now, because it was late."""


_PEERS: tuple[tuple[str, str, str, Callable[[PeerFigures], float]], ...] = (
    ("hits_total", "counter", "Items that came from this host's cache.", lambda peer: peer.given),
    ("received_bytes_total", "counter", "Bytes that came from there.", lambda peer: peer.bytes),
    ("late_answers_total", "counter", "Answers of it that were not waited for any more.", lambda peer: peer.late),
    ("held_items", "gauge", "Items that it holds, as far as it has told.", lambda peer: peer.held),
    ("suspect", "gauge", "1 while it is not asked because it was late.", lambda peer: int(peer.is_suspect)),
)


def expose(
    loaders: Iterable[Seen],
    at: float,
    wall: float,
    version: str,
    groups: Mapping[Key, GroupView] | None = None,
    peers: Sequence[tuple[int, PeerFigures]] = (),
) -> str:
    """All loaders, their groups, and other hosts by the pid of the keeper that asks them.

    `at` is now on the monotonic clock, `wall` is now as Unix time.
    """
    groups = groups or {}
    seen = sorted(loaders, key=lambda one: (one.facts.script, one.facts.pid, one.facts.number))
    lines = _family("stoker_build_info", "gauge", "Version of stoker.", [(_labels({"version": version}), 1)])
    lines += _family("stoker_loaders", "gauge", "Loaders of this user that live on this host.", [("", len(seen))])
    for name, text, count in _COUNTERS:
        lines += _family(f"stoker_loader_{name}", "counter", text, [(_of(one), count(one)) for one in seen])
    for name, text, gauge in _GAUGES:
        values = [(_of(one), value) for one in seen if (value := gauge(one, at, wall)) is not None]
        lines += _family(f"stoker_loader_{name}", "gauge", text, values)
    members = [(one, group.member(one.facts.member)) for one in seen if (group := groups.get(one.facts.key)) is not None]
    behind = [(_of(one), member.behind) for one, member in members if member is not None]
    text = "How many batches the loader is behind the first of its group."
    lines += _family("stoker_loader_group_lag_batches", "gauge", text, behind)
    datasets = {one.facts.key: one.facts.dataset for one in seen}
    labels = {key: _labels({"group": key[0], "dataset": datasets[key], "stream": key[1]}) for key in groups}
    for name, kind, text, of in _GROUPS:
        lines += _family(f"stoker_group_{name}", kind, text, [(labels[key], of(group)) for key, group in groups.items()])
    for name, kind, text, count_of in _PEERS:
        found = [(_labels({"peer": peer.name, "keeper": str(pid)}), count_of(peer)) for pid, peer in peers]
        lines += _family(f"stoker_peer_{name}", kind, text, found)
    return "\n".join(lines) + "\n"


def _family(name: str, kind: str, text: str, values: Sequence[tuple[str, float]]) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *(f"{name}{labels} {value!r}" for labels, value in values)]


def _of(seen: Seen) -> str:
    facts = seen.facts
    rank = "" if facts.rank is None else str(facts.rank)
    labels = {"script": facts.script, "dataset": facts.dataset, "rank": rank}
    labels |= {"pid": str(facts.pid), "loader": str(facts.number)}
    return _labels(labels | ({"group": facts.group} if facts.group else {}))


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return "".join(sign if sign.isprintable() else f"\\\\x{ord(sign):02x}" for sign in value)
