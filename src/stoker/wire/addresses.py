"""Where the servers of hosts are: `HOST:PORT,HOST:PORT`, this host's among them."""

import contextlib
import ipaddress
import itertools
import socket
from collections.abc import Sequence
from typing import Any

from stoker.errors import ConfigError

Address = tuple[str, int]


def parse_addresses(text: str, least: int = 2) -> list[Address]:
    """The addresses in `HOST:PORT,HOST:PORT`. Raises ConfigError."""
    found: list[Address] = []
    for part in text.split(","):
        host, colon, port = part.strip().rpartition(":")
        if not colon or not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"peers are named as HOST:PORT,HOST:PORT, not {part.strip()!r}")
        if (host := host.strip("[]")) in ("0.0.0.0", "::"):
            raise ConfigError(f"peers are named by the addresses that others dial, and {host} is none")
        found.append((host, int(port)))
    if len(set(found)) < max(least, len(found)):
        raise ConfigError(f"peers={text!r} must name every host once, this one among them, and so at least two")
    return found


def local_addresses(addresses: Sequence[Address]) -> list[Address]:
    """Those of the addresses that are this host's: usually one. Raises ConfigError if others reach none of them, or if two
    are the same."""
    found = [address for address in addresses if is_local(address[0])]
    if not found:
        names = ", ".join(f"{host}:{port}" for host, port in addresses)
        raise ConfigError(f"this host is not among the peers {names}: name each by an address that it has")
    for (host, port), (other, other_port) in itertools.combinations(found, 2):
        if port == other_port and set(_places(host)) & set(_places(other)):
            raise ConfigError(f"{host}:{port} and {other}:{port} are one peer: name every host once")
    if len(found) < len(addresses) and all(_is_loopback(host) for host, _ in found):
        name, place = found[0][0], _places(found[0][0])[0]
        what = f"{name} is an address of this host alone" if name == place else f"{name} is {place} on this host"
        raise ConfigError(f"{what}, which the other peers cannot reach: name it by an address of its network")
    return found


def _is_loopback(host: str) -> bool:
    """Whether a name means an address of this host alone, as Debian's 127.0.1.1 for a host's own name."""
    places = _places(host)
    return bool(places) and all(map(_is_here_alone, places))


def _is_here_alone(place: str) -> bool:
    return ipaddress.ip_address(place.partition("%")[0]).is_loopback


def place_for_others(host: str, port: int) -> tuple[int, Any]:
    """What a name means: the family and the address, one that other hosts reach if there is one. Raises OSError.

    Where /etc/hosts has a host's own name twice, Debian's 127.0.1.1 comes first.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, _, _, _, place = min(found, key=lambda one: _is_here_alone(str(one[4][0])))
    return family, place


def _places(host: str) -> list[str]:
    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        return [str(place[0]).partition("%")[0] for *_, place in found]
    return []


def is_local(host: str) -> bool:
    """Whether a name or address is this host's."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, (place, *_) in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind) as trial:
                trial.bind((place, 0))
                return True
    return False
