"""Measures how fast other hosts give samples from their caches, while the loop is paused.

They are asked as a host's keeper asks them: by readers that wait for one file each. Samples that nobody holds do not count.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from stoker.cache.roots import roots_of
from stoker.cache.walking import KEY_BYTES
from stoker.errors import ConfigError
from stoker.measure import files
from stoker.sealed import SHARED_BYTES
from stoker.source.files import file_version, shared_file_key
from stoker.source.reading import Shared
from stoker.tensor.dataset import Dataset
from stoker.wire.addresses import parse_addresses
from stoker.wire.peer import Peer
from stoker.wire.secret import shared_secret
from stoker.wire.tls import from_environment

_CONNECTIONS = 2
_PATIENCE_S = 5.0
_FEWEST = 8


def peer_rate(peers: str, keys: Sequence[Sequence[bytes]], readers: int, limit_s: float) -> tuple[float, str]:
    """Samples per second from other hosts, each sample given by its items; or 0, and why it could not be measured."""
    with contextlib.ExitStack() as stack:
        secret, tls = shared_secret(), from_environment()
        holders: dict[bytes, Peer] = {}
        troubles = []
        for address in parse_addresses(peers, least=1):
            peer = stack.enter_context(Peer(address, secret, connections=_CONNECTIONS, tls=tls))
            try:
                peer.greet(_PATIENCE_S)
            except (ConfigError, OSError) as error:
                troubles.append(str(error))
                continue
            holders |= {name: peer for piece in peer.names() for name in piece.names}
        held = [some for some in keys if some and all(key[:KEY_BYTES] in holders for key in some)]
        if len(held) < _FEWEST:
            troubles.append(f"they hold {len(held)} of {len(keys)} samples that were looked for")
            return 0.0, "; ".join(troubles)
        try:
            rate = files.read_rate([_reader(some, holders) for some in held], readers, limit_s)
        except ConnectionError as error:
            return 0.0, str(error)
    return rate, "; ".join(troubles)


def shared_keys(dataset: Any, ids: Sequence[int], paths: Callable[[], Sequence[Sequence[str]]]) -> list[list[bytes]]:
    """What some samples' items are called on all hosts; nothing if they have no such names. `paths` finds their files."""
    if isinstance(dataset, Dataset):
        source, roots = dataset.source, dataset.shared_roots
        if not isinstance(source, Shared):
            return []
        return [[(source.shared_key(number, roots) + source.version(number))[:SHARED_BYTES]] for number in ids]
    roots = roots_of(dataset)
    return [[_key(path, roots) for path in sample] for sample in paths()]


def _key(path: str, roots: tuple[str, ...]) -> bytes:
    return ((shared_file_key(path, roots) or b"") + file_version(os.stat(path)))[:SHARED_BYTES]


def _reader(keys: Sequence[bytes], holders: dict[bytes, Peer]) -> Callable[[], None]:
    def read() -> None:
        for key in keys:
            peer = holders[key[:KEY_BYTES]]
            with peer.get([key]) as answer:
                if answer.payloads[0] is None:
                    raise ConnectionError(f"{peer.address[0]} did not give what it said to hold")

    return read
