"""Hosts that find each other (`peers="auto"`): each leaves its keeper's address in a store that all ranks of a job reach.

The store is that of torchrun's agents, or else that of the script's process group (`internals.stores`). A rank that makes
no loader leaves nothing, so nobody here relies on another rank: what has come is looked for now and then, while batches are
ordered. What others hold counts from the second epoch on, so all hosts are waited for before it, once, for half a second at
most. Tasks of Slurm without such a store know each other's names, and agree on a port.
"""

import json
import os
import secrets
import socket
import time
from typing import Any

from stoker.errors import ConfigError, warn
from stoker.host import ranks, slurm
from stoker.internals import stores
from stoker.keeper.client import Line
from stoker.keeper.view import keepers
from stoker.meter import now
from stoker.wire.addresses import Address, local_addresses, parse_addresses, place_for_others
from stoker.wire.secret import VARIABLE
from stoker.wire.tls import from_environment

AUTO = "auto"
_MEET_S, _MEET_EVERY_S = 0.5, 0.01
"""How long hosts that have not come yet are waited for, once."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
"""Between two looks. There is no last one: when a run is restarted, other hosts may come, and old ones at new addresses."""


def introduction(peers: str | None) -> "tuple[dict[str, Any], Meeting | None]":
    """What the keeper is told of a loader's peers; and where these meet, if nobody has named them."""
    tls = from_environment() if peers else None
    secret = os.environ.get(VARIABLE, "") if peers else ""
    told: dict[str, Any] = {
        "peers": peers or "",
        "secret": os.path.abspath(secret) if secret else "",
        "key": "",
        "tls": tls.files if tls is not None else [],
        "own": None,
        "others": [],
    }
    if peers != AUTO:
        return told, None
    try:
        meeting = _find()
        if meeting is None:
            return {**told, "peers": _by_slurm(has_secret=bool(secret))}, None
        if not secret:
            told["key"] = meeting.secret()
        return {**told, "peers": meeting.name, "own": [meeting.host, 0]}, meeting
    except (ConfigError, OSError, RuntimeError) as error:  # the last one is what stores raise
        warn(f"peers='auto' finds no other host, and everything comes from storage: {error}")
        return told, None


class Meeting:
    """A place where hosts leave their addresses, numbered as they come."""

    def __init__(self, store: Any, towards: Address, run: str) -> None:
        self._store, self._prefix = store, f"stoker/{run}"
        self.name = f"auto {towards[0]}:{towards[1]}/{run}"
        """What the keeper calls these hosts: all ranks of this job on this host say the same."""
        self.host = _own_address(towards)
        self._own: list[Any] | None = None
        self._came: list[list[Any]] = []
        """The addresses of all who have come, this host's among them."""
        self._read: set[int] = set()
        self._at, self._pause_s = 0.0, _FIRST_PAUSE_S
        self._line: Line | None = None
        self._loader = 0
        self._has_met = False

    def secret(self) -> str:
        """The secret of these hosts. The first who asks makes it."""
        found: bytes = self._store.compare_set(f"{self._prefix}/secret", "", secrets.token_hex(32))
        return found.decode()

    def attend(self, line: Line, loader: int) -> None:
        """From now on `look` tells the keeper of those that come, on behalf of a loader."""
        self._line, self._loader = line, loader

    def look(self) -> None:
        """Look who has come, unless that was done just now. It does not wait for anybody."""
        if self._line is None or now() < self._at:
            return
        try:
            self._look(self._line)
        except RuntimeError as error:
            self._line = None  # the store is gone: so is the job, or it goes on with those who have met
            if len(self._came) < 2:
                warn(f"peers='auto': the other hosts' addresses cannot be read any more: {error}")
            return
        self._pause_s = min(1.5 * self._pause_s, _LONGEST_PAUSE_S)
        self._at = now() + self._pause_s

    def meet(self) -> None:
        """The first epoch is over: look for a short time, once, until all hosts have come."""
        if self._has_met:
            return
        self._has_met = True
        hosts, deadline = ranks.hosts() or 2, now() + _MEET_S
        while self._line is not None and len(self._came) < hosts and now() < deadline:
            self._at = 0.0
            self.look()
            time.sleep(_MEET_EVERY_S)

    def _look(self, line: Line) -> None:
        came = [address for address in self._arrivals() if address not in self._came]
        self._came += came
        own = self._own or self._keepers_address()
        if came or own != self._own:
            if own is not None and own not in self._came:  # no other rank of this host has left it
                self._leave(own)
                self._came.append(own)
            self._own = own
            line.met(self._loader, own, self._came)
            self._pause_s = _FIRST_PAUSE_S

    def _keepers_address(self) -> list[Any] | None:
        found = [address for keeper in keepers() for name, address in keeper.addresses if name == self.name]
        return list(found[0]) if found else None

    def _leave(self, address: list[Any]) -> None:
        number = self._store.add(f"{self._prefix}/hosts", 1)
        self._store.set(f"{self._prefix}/host/{number}", json.dumps(address))
        self._read.add(number)

    def _arrivals(self) -> list[list[Any]]:
        """The addresses that were left since the last look. Who has a number may not have left its address yet."""
        found = []
        for number in range(1, self._store.add(f"{self._prefix}/hosts", 0) + 1):
            place = f"{self._prefix}/host/{number}"
            if number not in self._read and self._store.check([place]):
                found.append(json.loads(self._store.get(place)))
                self._read.add(number)
        return found


def _find() -> Meeting | None:
    """Where this job's hosts meet. Raises ConfigError, OSError, or what stores raise."""
    store = stores.agents_store() or stores.groups_store()
    if store is None:
        return None
    towards = stores.address_of(store)
    if towards is None:
        raise ConfigError("the process group's store is no server, so that nobody knows which address others reach")
    # Not by the count of restarts: each agent has its own. After a failure on one host it is 1 there, and 0 on the others.
    return Meeting(store, towards, os.environ.get("TORCHELASTIC_RUN_ID", "none"))


def _own_address(towards: Address) -> str:
    """The address of this host that others see when it connects to one of them. Raises ConfigError if there is none."""
    family, place = place_for_others(*towards)
    with socket.socket(family, socket.SOCK_DGRAM) as trial:
        trial.connect(place)  # nothing is sent
        found: str = trial.getsockname()[0]
    if found.startswith("127.") or found == "::1":
        raise ConfigError(
            f"{towards[0]} is {found} on this host, which others cannot reach: name the master by an address of its network"
        )
    return found


def _by_slurm(*, has_secret: bool) -> str:
    """The peers of a step of Slurm, by their names. Raises ConfigError."""
    names = slurm.step_nodes()
    if len(names) < 2:
        raise ConfigError(
            "start the script with torchrun, or let it call init_process_group before its first epoch, or name the hosts "
            "(HOST:PORT,HOST:PORT)"
        )
    if not has_secret:
        raise ConfigError(f"without torchrun or a process group, hosts of Slurm need a secret: set {VARIABLE}")
    peers = ",".join(f"{name}:{slurm.port()}" for name in names)
    local_addresses(parse_addresses(peers))
    return peers
