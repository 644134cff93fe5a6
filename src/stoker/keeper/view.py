"""What the keepers of this user say of themselves, for people: queues, readers, and who moved."""

import contextlib
from dataclasses import dataclass, fields
from typing import Any

from stoker.host import folders
from stoker.keeper import door


@dataclass(frozen=True, slots=True)
class QueueView:
    """The queue of one loader."""

    pid: int
    rank: int | None
    loader: int
    queued: int
    """Batches that are ordered and not taken."""
    unread: int
    """Samples of them that nobody has begun to read."""
    readers: int
    """Readers that serve this queue first; those that are nobody's serve all."""
    busy: int
    """Readers that are at work for it."""
    brought: int
    """Samples that were read ahead so far."""
    bytes: int
    staged_bytes: int
    sample_ms: float
    """What a sample takes to read."""
    loop_ms: float
    """What the loop takes for a batch, without waiting."""


@dataclass(frozen=True, slots=True)
class MoveView:
    """Readers that have gone from one queue to another; None: they are everybody's."""

    at: float
    source: str | None
    target: str | None
    count: int
    why: str


@dataclass(frozen=True, slots=True)
class PeerView:
    """Another host that is asked before storage."""

    name: str
    held: int
    """Items that it has told of."""
    given: int
    bytes: int
    late: int
    is_suspect: bool
    trouble: str
    connected: int = 0
    """How often a connection was made."""
    in_vain: int = 0
    """Items that it was asked for and has not, although it holds some."""
    among: str = ""
    """How its peers are named."""


@dataclass(frozen=True, slots=True)
class KeeperView:
    """A keeper."""

    pid: int
    readers: int
    moved: int
    queues: tuple[QueueView, ...]
    moves: tuple[MoveView, ...]
    peers: tuple[PeerView, ...] = ()
    troubles: tuple[tuple[str, str, str], ...] = ()
    """Peers that cannot be used at all, as they were named, for which cache, and why."""
    addresses: tuple[tuple[str, tuple[str, int]], ...] = ()
    """Where it is asked, by how its peers are named."""


def keepers() -> list[KeeperView]:
    """The keepers that live, of this user on this host."""
    found = []
    with contextlib.suppress(OSError):
        for _, descriptor in folders.entries(door.folder()):
            state = door.read_state(descriptor)
            if state is not None and "queues" in state:
                with contextlib.suppress(KeyError, TypeError):  # of another version
                    found.append(_view(state))
    return found


def _view(state: dict[str, Any]) -> KeeperView:
    names = [field.name for field in fields(QueueView)]
    queues = tuple(QueueView(**{name: queue[name] for name in names}) for queue in state["queues"])
    moves = tuple(MoveView(move["at"], move["from"], move["to"], move["count"], move["why"]) for move in state["moves"])
    among = state["peers"]
    peers = tuple(
        PeerView(name, **host, among=one["peers"]) for one in among for name, host in one.get("hosts", {}).items()
    )
    troubles = tuple((one["peers"], one["folder"], one["trouble"]) for one in among if "trouble" in one)
    addresses = tuple((one["peers"], tuple(one["address"])) for one in among if "address" in one)
    return KeeperView(state["pid"], state["readers"], state["moved"], queues, moves, peers, troubles, addresses)


def trouble_with(peers: str, folder: str, *, is_early: bool, is_first_epoch: bool = True) -> str | None:
    """What is in the way of asking other hosts, in words; None if nothing is.

    A host that has not been reached yet may still start: that is said when it is no longer early. Of hosts that find each
    other, some may have left their addresses and gone. A host that was asked for much and gave nothing has other files,
    unless it is still replacing what it held from before: that takes the first epoch.
    """
    seen = keepers()
    why = next((why for keeper in seen for *whose, why in keeper.troubles if tuple(whose) == (peers, folder)), None)
    if why is not None:
        return f"peers cannot be used, and everything comes from storage: {why}"
    hosts = [peer for keeper in seen for peer in keeper.peers if peer.among == peers]
    away = [peer for peer in hosts if not peer.connected and peer.trouble]
    is_found = peers.startswith("auto ")
    if is_found and len(away) < len(hosts):
        away = []
    unlike = [] if is_first_epoch else [peer for peer in hosts if peer.in_vain >= _MUCH and not peer.given]
    reasons = [(peer.name, peer.trouble) for peer in away] + [(peer.name, _UNLIKE) for peer in unlike]
    if is_early or not reasons:
        return None
    return "; ".join(f"what {name} holds comes from storage: {reason}" for name, reason in reasons)


_MUCH = 16
_UNLIKE = (
    "its files are not the same by path below the dataset's folder, size and time of modification (rsync -t keeps times)"
)
