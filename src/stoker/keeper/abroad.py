"""The keeper's dealings with other hosts: who takes part, what workers ask for, and copies in the background.

Loaders that name the same peers, secret and certificates share one `Peering`, which begins with the first of them and ends
with the last. Where it cannot begin (the address is taken, a file cannot be read), or where two folders would be called
alike among the hosts, everything comes from storage, and the keeper's state says why.
"""

import os
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stoker.cache.asked import Origin
from stoker.errors import ConfigError
from stoker.keeper import asking
from stoker.keeper.bringing import Bringing
from stoker.keeper.far import Far
from stoker.keeper.messages import Said
from stoker.keeper.peering import Peering
from stoker.keeper.queues import LoaderQueue
from stoker.keeper.table import KeeperTable
from stoker.sealed import ItemDamagedError
from stoker.source.files import shared_names
from stoker.wire.addresses import Address, local_addresses, parse_addresses
from stoker.wire.secret import read_secret
from stoker.wire.tls import from_files

ANSWERING = 8
_PAUSE_S = 0.01
_Name = tuple[str, ...]
"""Peers, secret and certificates, as loaders name them."""


class Abroad:
    """Everything that concerns other hosts."""

    def __init__(self) -> None:
        self._peerings: dict[_Name, tuple[Peering, int]] = {}
        self._called: dict[_Name, dict[str, str]] = {}
        """The folders of the data, by what all hosts call them, of each `Peering`."""
        self._trouble: dict[tuple[int, int], tuple[str, Path, str]] = {}
        """Of loaders that live: how they name their peers, for which cache, and why these cannot be used."""
        self._leaving: dict[_Name, threading.Thread] = {}
        """Leaving the others may take a while, and callers hold the house's lock."""
        self._answering: ThreadPoolExecutor | None = None
        self._is_over = threading.Event()

    @property
    def has_others(self) -> bool:
        """Whether other hosts take part now."""
        return bool(self._peerings)

    def join(
        self, who: tuple[int, int], about: dict[str, Any], folder: Path, table: KeeperTable, roots: tuple[str, ...]
    ) -> Far | None:
        """A loader's files on other hosts; None if it knows none, or if they cannot be used."""
        peers = str(about["peers"])
        if peers in ("", "auto"):
            return None
        self._answering = self._answering or ThreadPoolExecutor(ANSWERING, "answering")
        name = peers, str(about["secret"]), *map(str, about["tls"])
        if (leaving := self._leaving.pop(name, None)) is not None:
            leaving.join()  # it has the address
        try:
            self._call(name, roots)
            peering, users = self._peerings.get(name) or (_begin(about), 0)
        except (ConfigError, OSError) as error:
            self._trouble[who] = peers, folder, str(error)
            return None
        self._trouble = {other: known for other, known in self._trouble.items() if known[:2] != (peers, folder)}
        self._peerings[name] = peering, users + 1
        peering.add(addresses_in(about))
        peering.give(folder, is_ruled=bool(about["reuse"]))
        return Far(peering, table, roots)

    def _call(self, name: _Name, roots: tuple[str, ...]) -> None:
        """Note what folders are called. Raises ConfigError if another one is called so: its files might be given."""
        called = dict(self._called[name]) if name in self._peerings else {}
        for folder, word in shared_names(roots).items():
            if called.setdefault(word, folder) != folder:
                raise ConfigError(f"{called[word]} and {folder} are both called {word} among the hosts: rename one of them")
        self._called[name] = called

    def forget(self, caller: int, loader: int | None = None) -> None:
        """A loader has gone, or a process with all of them: what was in its way is nobody's trouble any more."""
        gone = [who for who in self._trouble if who[0] == caller and loader in (None, who[1])]
        for who in gone:
            del self._trouble[who]

    def leave(self, far: Far | None, folder: Path) -> None:
        """A loader has gone."""
        if far is None:
            return
        far.peering.give_no_more(folder)
        for name, (peering, users) in list(self._peerings.items()):
            if peering is far.peering:
                if users > 1:
                    self._peerings[name] = peering, users - 1
                else:
                    del self._peerings[name], self._called[name]
                    self._leaving[name] = threading.Thread(target=peering.close, name="leaving", daemon=True)
                    self._leaving[name].start()

    def fill(self, queue: LoaderQueue) -> None:
        """Keep copies for a loader in the background, when all data is held somewhere."""
        threading.Thread(target=self._fill, args=(queue,), name="copying", daemon=True).start()

    def _fill(self, queue: LoaderQueue) -> None:
        far = queue.bringing.far
        assert far is not None
        while not far.is_all_held():
            if queue.is_closed or self._is_over.wait(far.look_again_s):
                return
        for index in far.order():
            while queue.unread and not queue.is_closed:  # what is needed next goes first
                if self._is_over.wait(_PAUSE_S):
                    return
            try:
                if queue.is_closed or not queue.bringing.copy(far.entry(index)):
                    return
            except OSError:
                continue

    def asked(self, line: socket.socket, said: Said, queues: Sequence[LoaderQueue]) -> None:
        """A worker wants an item. It is answered by another thread."""
        key, folder, path = said.content.split(b"\0", 2)
        place = Path(os.fsdecode(folder))
        bringing = [queue.bringing for queue in queues if queue.bringing.near.folder == place]
        if not bringing or self._answering is None:
            asking.answer(line, said.number, None, Origin.STORAGE)
            return
        self._answering.submit(_give, line, said.number, bringing, bytes.fromhex(key.decode()), path)

    def state(self) -> list[dict[str, Any]]:
        """What others may see of it."""
        found: list[dict[str, Any]] = [
            {"peers": peers, "folder": str(folder), "trouble": why}
            for peers, folder, why in dict.fromkeys(self._trouble.values())
        ]
        for (peers, *_), (peering, _) in list(self._peerings.items()):
            stats = peering.stats()
            hosts = {
                name: {
                    "held": stats.held[name],
                    "given": peer.given,
                    "bytes": peer.received_bytes,
                    "late": peer.late,
                    "is_suspect": peer.is_suspect,
                    "trouble": peer.trouble,
                    "connected": peer.connected,
                    "in_vain": stats.in_vain[name],
                }
                for name, peer in stats.peers.items()
            }
            gave = {"given": stats.given, "given_bytes": stats.given_bytes}
            found.append({"peers": peers, "address": stats.address, "hosts": hosts, **gave})
        return found

    def close(self) -> None:
        """Leave the others."""
        self._is_over.set()
        if self._answering is not None:
            self._answering.shutdown(wait=False, cancel_futures=True)
        for peering, _ in self._peerings.values():
            peering.close()
        for leaving in self._leaving.values():
            leaving.join()
        self._peerings.clear()


def addresses_in(about: dict[str, Any]) -> list[Address]:
    """The other hosts that a message tells of. Raises ValueError."""
    return [(str(host), int(port)) for host, port in about["others"]]


def _begin(about: dict[str, Any]) -> Peering:
    """Begin to be one of the hosts. Their addresses are all named, or they come while they find each other."""
    key = bytes.fromhex(about["key"]) or read_secret(Path(about["secret"]))
    tls = from_files(about["tls"])
    if about["own"]:
        host, port = about["own"]
        return Peering((str(host), int(port)), [], key, tls)
    addresses, errors = parse_addresses(str(about["peers"])), []
    for own in local_addresses(addresses):
        try:
            return Peering(own, [address for address in addresses if address != own], key, tls)
        except ConfigError as error:  # another process listens there
            errors.append(str(error))
    raise ConfigError("; ".join(dict.fromkeys(errors)))


def _give(line: socket.socket, number: int, bringing: Sequence[Bringing], key: bytes, path: bytes) -> None:
    """Give an item to a worker of one of the loaders that have the same cache; it is not known of which."""
    first, *others = bringing
    try:
        found = first.give(key, path)
    except (OSError, ItemDamagedError):
        found = None
    if found is not None:
        for other in others:
            other.stager.given(other.latest_work, key)
    payload, origin = found if found is not None else (None, Origin.STORAGE)
    asking.answer(line, number, payload, origin)
