"""This host among others: it gives what its caches hold, and asks the others before storage.

Each host tells the others what it keeps, soon after it is kept, and asks for everything when a connection is new. What is
known of others may be wrong; then an item is asked for in vain, and comes from storage.
"""

import contextlib
import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stoker.cache.walking import KEY_BYTES
from stoker.errors import ConfigError
from stoker.keeper.directory import Holders, Numbers, numbers_of
from stoker.keeper.giving import Gifts
from stoker.meter import now
from stoker.sealed import SHARED_BYTES
from stoker.wire.addresses import Address
from stoker.wire.frames import Told
from stoker.wire.handshake import fresh_name
from stoker.wire.peer import Peer, PeerStats
from stoker.wire.server import ItemServer
from stoker.wire.tls import Tls

_TELL_S = 0.01
"""What is kept within such a time is told together."""
_LOOK_S = 2.0
"""Workers may keep something by themselves: the stores are looked through this often, or less often if it takes long."""
_LOOK_PART = 0.05
_CONNECTIONS = 2
_MEET_S = 1.0
"""So long, once, those who ask all hosts wait for hosts that have never been connected."""


@dataclass(frozen=True, slots=True)
class PeeringStats:
    """The other hosts by their addresses, what each gave, and how many items each holds as far as is known."""

    address: Address
    peers: dict[str, PeerStats]
    held: dict[str, int]
    given: int
    """Items that this host gave to others."""
    given_bytes: int
    in_vain: dict[str, int]
    """Items that each was asked for and has not, where it has told of some: its files may not be the same."""


class PeeringWatcher(Protocol):
    """Who wants to know what other hosts say and read. Called by several threads; must not wait."""

    def told(self, names: Sequence[bytes]) -> None:
        """Another host says that it holds these from now on."""

    def given(self, names: Sequence[bytes]) -> None:
        """Another host has read these from here."""


class _Neighbour:
    """Another host, and what it has not been told yet."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.connections_seen = 0
        self.held: dict[bytes, bool] = {}
        """Names to be told: whether each is held, or has gone."""
        self.in_vain, self.has_told = 0, False
        """Items that it was asked for and has not, and whether it has ever told of any."""
        self.heard: list[Told] | None = None
        """What it says while it is asked for everything: that is newer than the answer."""


class Peering:
    """The hosts of one job, as this host sees them. Used by all threads of the keeper."""

    def __init__(self, own: Address, others: Sequence[Address], secret: bytes, tls: Tls | None = None) -> None:
        self._name = fresh_name()
        self._lock = threading.Lock()
        self._directory = Holders(0)
        self._gifts = Gifts(hear=self._hear, given=self._gave)
        self._watchers: list[PeeringWatcher] = []
        self._number = 0
        self._numbers: dict[bytes | None, int] = {}
        """Of other hosts among those of the job, by the names of their processes, as they have said."""
        self._names: set[bytes] = set()
        self._copies: set[bytes] = set()
        self._is_closed = False
        self._news = threading.Event()
        self._look_at, self._generation = 0.0, 0
        self._meet_until: float | None = None
        self._have_met = False
        self._secret, self._tls = secret, tls
        self._neighbours: list[_Neighbour] = []
        self._server = ItemServer(own, self._gifts, secret, name=self._name, tls=tls)
        self.add(others)
        self._teller = threading.Thread(target=self._tell_and_ask, name="stoker-peering", daemon=True)
        self._teller.start()

    @property
    def address(self) -> Address:
        """Where this host is asked."""
        return self._server.address

    def add(self, others: Sequence[Address]) -> None:
        """There are other hosts. Those that are known already are left alone."""
        with self._lock:
            known = [self.address, *(neighbour.peer.address for neighbour in self._neighbours)]
            for address in dict.fromkeys(others):
                if address not in known and not self._is_closed:
                    with contextlib.suppress(ConfigError):  # certificates that have been replaced by something else
                        peer = Peer(address, self._secret, name=self._name, connections=_CONNECTIONS, tls=self._tls)
                        self._directory.add_host()
                        self._neighbours.append(_Neighbour(peer))
                        self._have_met = False

    @property
    def others(self) -> int:
        """How many other hosts are known."""
        return len(self._neighbours)

    def give(self, folder: Path, *, is_ruled: bool = False) -> None:
        """Give what is in a cache, from now on. If it is ruled, others know only what `say` tells. Raises OSError."""
        self._gifts.add(folder, is_ruled=is_ruled)
        self._look_at = 0.0
        self._news.set()

    def give_no_more(self, folder: Path) -> None:
        """A cache is not used any more."""
        self._gifts.remove(folder)

    def fetch(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Items from the hosts that should have them, or None."""
        result: list[bytes | None] = [None] * len(keys)
        with self._lock:
            ways = [self._directory.holders(key[:KEY_BYTES]) for key in keys]
        self._go(ways, keys, result)
        return result

    def search(self, key: bytes) -> tuple[bytes | None, bool]:
        """An item from any host, also if nobody has told of it; and whether it is certain that no host has it."""
        result: list[bytes | None] = [None]
        self._meet()
        with self._lock:
            holders = self._directory.holders(key[:KEY_BYTES])
        others = [host for host in range(len(self._neighbours)) if host not in holders]
        answered = self._go([holders], [key], result)
        if result[0] is None:
            answered += self._go([others], [key], result)
        return result[0], result[0] is None and answered == len(self._neighbours)

    def _meet(self) -> None:
        """Hosts of a job start at about the same time. At most once, those who need all of them wait a little."""
        if self._have_met:
            return
        if self._meet_until is None:
            self._meet_until = now() + _MEET_S
        for neighbour in self._neighbours:
            if not neighbour.peer.stats().connected:
                with contextlib.suppress(ConfigError, OSError):
                    neighbour.peer.greet(max(0.0, self._meet_until - now()))
        self._have_met = True

    def _go(self, ways: list[list[int]], keys: Sequence[bytes], result: list[bytes | None]) -> int:
        """Ask hosts for items, one host after the other for each item. Returns how many requests were answered in full."""
        answered = 0
        while True:
            asked: dict[int, list[int]] = {}
            for position, ways_left in enumerate(ways):
                usable = [host for host in ways_left if self._neighbours[host].peer.is_usable]
                if result[position] is None and usable:
                    host = random.choice(usable)
                    ways_left.remove(host)
                    asked.setdefault(host, []).append(position)
                else:
                    ways_left.clear()
            if not asked:
                return answered
            answered += self._ask(asked, keys, result)

    def _ask(self, asked: dict[int, list[int]], keys: Sequence[bytes], result: list[bytes | None]) -> int:
        answered = 0
        requests = [
            (host, positions, self._neighbours[host].peer.ask([keys[position][:SHARED_BYTES] for position in positions]))
            for host, positions in asked.items()
        ]
        for host, positions, request in requests:
            with request.answer() as answer:
                for position, payload in zip(positions, answer.payloads, strict=True):
                    result[position] = None if payload is None else bytes(payload)
                absent = [place for place in range(len(positions)) if place not in answer.later]
                is_answered = not answer.is_missing
                answered += is_answered and not answer.later and not answer.damaged
            if is_answered:
                gone = [keys[positions[place]][:KEY_BYTES] for place in absent if result[positions[place]] is None]
                neighbour = self._neighbours[host]
                with self._lock:
                    neighbour.in_vain += len(gone)
                    neighbour.has_told = neighbour.has_told or self._directory.count(host) > 0
                    self._directory.told(host, [], gone)
        return answered

    def kept(self, keys: Sequence[bytes]) -> None:
        """This host keeps items that no other host holds, as far as it knows: others may ask for them."""
        self._note([key[:KEY_BYTES] for key in keys], is_held=True)

    def copied(self, keys: Sequence[bytes]) -> None:
        """This host keeps copies of items that others hold. Nobody is told."""
        with self._lock:
            self._copies.update(key[:KEY_BYTES] for key in keys)

    def _note(self, names: Sequence[bytes], *, is_held: bool) -> None:
        with self._lock:
            (self._names.update if is_held else self._names.difference_update)(names)
        self.say(*((names, ()) if is_held else ((), names)))

    def say(self, held: Iterable[bytes], gone: Iterable[bytes]) -> None:
        """Tell the others which names this host holds from now on, and which not."""
        news = dict.fromkeys(gone, False) | dict.fromkeys(held, True)
        if news:
            with self._lock:
                for neighbour in self._neighbours:
                    neighbour.held |= news
            self._news.set()

    def watch(self, watcher: PeeringWatcher, number: int) -> None:
        """Tell somebody what others say and read from now on, and the others this host's number, from 0 on."""
        self._number = number + 1
        self._watchers.append(watcher)

    def unwatch(self, watcher: PeeringWatcher) -> None:
        """Tell it nothing more."""
        self._watchers = [other for other in self._watchers if other is not watcher]

    def listed_host(self, name: bytes) -> int | None:
        """The number of a host that should have an item, if there is one that has said its number."""
        with self._lock:
            hosts = self._directory.holders(name)
        numbers = [self._numbers.get(self._neighbours[host].peer.other_name) for host in hosts]
        return next((number for number in numbers if number is not None), None)

    def has_elsewhere(self, key: bytes) -> bool:
        """Whether another host should have an item."""
        with self._lock:
            return bool(self._directory.holders(key[:KEY_BYTES]))

    def covers(self, names: Numbers) -> bool:
        """Whether all of these are held, here or on another host."""
        with self._lock:
            return self._directory.covers(numbers_of(self._names), names)

    def _hear(self, who: bytes, told: Told) -> None:
        if told.number:
            self._numbers[who] = told.number - 1
        for host, neighbour in enumerate(self._neighbours):
            if neighbour.peer.other_name == who:
                with self._lock:
                    self._directory.told(host, told.held, told.gone)
                    if neighbour.heard is not None:
                        neighbour.heard.append(told)
        # It is asked for everything when this host is connected to it again. What it has taken over, it says only once.
        for watcher in self._watchers if told.held else ():
            watcher.told(told.held)

    def _gave(self, names: list[bytes]) -> None:
        for watcher in self._watchers:
            watcher.given(names)

    def _tell_and_ask(self) -> None:
        while not self._is_closed:
            self._news.wait(_LOOK_S / 4)
            self._news.clear()
            for host, neighbour in enumerate(self._neighbours):
                self._tell(neighbour)
                self._ask_for_all(host, neighbour)
            self._look()
            time.sleep(_TELL_S)

    def _tell(self, neighbour: _Neighbour) -> None:
        with self._lock:
            held, neighbour.held = neighbour.held, {}
        if not held:
            return
        names = [name for name in held if held[name]], [name for name in held if not held[name]]
        told = Told(self._number, *names)
        if not neighbour.peer.is_usable or not neighbour.peer.tell(told):
            with self._lock:
                neighbour.held = held | neighbour.held

    def _ask_for_all(self, host: int, neighbour: _Neighbour) -> None:
        """A connection is new: the host may be, too, and what it said meanwhile may be lost."""
        connected = neighbour.peer.stats().connected
        if connected == neighbour.connections_seen or not neighbour.peer.is_usable:
            return
        with self._lock:
            neighbour.heard = []
        pieces = list(neighbour.peer.names())
        with self._lock:
            heard, neighbour.heard = neighbour.heard or [], None
            if pieces and pieces[-1].is_last:
                neighbour.connections_seen = connected
                self._directory.replace(host, [name for piece in pieces for name in piece.names])
                for told in heard:
                    self._directory.told(host, told.held, told.gone)

    def _look(self) -> None:
        """Find out what others of this host have put into the stores, and what has gone from there."""
        if now() < self._look_at:
            return
        began = time.thread_time()
        generation = self._gifts.generation()
        if generation != self._generation:
            names = set(self._gifts.names())
            with self._lock:
                names -= self._copies
                known = set(self._names)
            self._note(list(names - known), is_held=True)
            self._note(list(known - names), is_held=False)
            self._generation = generation
        self._look_at = now() + max(_LOOK_S, (time.thread_time() - began) / _LOOK_PART)

    def stats(self) -> PeeringStats:
        """What came from whom."""
        served = self._server.stats()
        names = [":".join(map(str, neighbour.peer.address)) for neighbour in self._neighbours]
        peers = {name: neighbour.peer.stats() for name, neighbour in zip(names, self._neighbours, strict=True)}
        with self._lock:
            held = {name: self._directory.count(host) for host, name in enumerate(names)}
            in_vain = {
                name: neighbour.in_vain if neighbour.has_told else 0
                for name, neighbour in zip(names, self._neighbours, strict=True)
            }
        return PeeringStats(self.address, peers, held, served.given, served.sent_bytes, in_vain)

    def close(self) -> None:
        """Leave the others."""
        self._is_closed = True
        self._news.set()
        self._teller.join()
        for neighbour in self._neighbours:
            neighbour.peer.close()
        self._server.close()
