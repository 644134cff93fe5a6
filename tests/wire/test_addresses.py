"""Addresses of hosts, and which of them is this one."""

import socket
from typing import Any

import pytest
from tests.wire.kept import SECRET, Kept

from stoker.errors import ConfigError
from stoker.feed import meeting
from stoker.wire.addresses import local_addresses, parse_addresses
from stoker.wire.server import ItemServer


@pytest.mark.parametrize(
    "text", ["", "a", "a:1", "a:1,a:1", "a:1,b:x", "a:1,b:99999", "a:1,:2", "0.0.0.0:1,a:2", "[::]:1,a:2"]
)
def test_addresses_that_make_no_sense(text: str) -> None:
    with pytest.raises(ConfigError, match="peers"):
        parse_addresses(text)


def test_the_own_address() -> None:
    assert parse_addresses("host1:80, [::1]:81") == [("host1", 80), ("::1", 81)]
    assert local_addresses([("127.0.0.1", 7), ("127.0.0.2", 8)]) == [("127.0.0.1", 7), ("127.0.0.2", 8)]
    with pytest.raises(ConfigError, match=r"not among the peers 192\.0\.2\.1:7"):
        local_addresses([("192.0.2.1", 7)])


def test_an_own_name_that_no_other_host_reaches() -> None:
    """As Debian's /etc/hosts has it: a host's own name is an address of this host alone."""
    with pytest.raises(ConfigError, match=r"localhost is (127\.0\.0\.1|::1) on this host, which the other peers"):
        local_addresses([("localhost", 7), ("192.0.2.1", 7)])
    with pytest.raises(ConfigError, match=r"^127\.0\.0\.1 is an address of this host alone, which the other peers"):
        local_addresses([("127.0.0.1", 7), ("192.0.2.1", 7)])


def test_a_host_that_is_named_twice_is_an_error() -> None:
    """It would take itself for another host."""
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:7 and 127\.1:7 are one peer"):
        local_addresses([("127.0.0.1", 7), ("127.1", 7)])
    assert local_addresses([("127.0.0.1", 7), ("127.1", 8)]) == [("127.0.0.1", 7), ("127.1", 8)]


@pytest.fixture
def own_name_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """As /etc/hosts has it where an address was added below Debian's line. 192.0.2.1 is nobody's."""

    def found(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (place, port)) for place in ("127.0.1.1", "192.0.2.1")]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.mark.usefixtures("own_name_twice")
def test_of_a_name_that_means_two_addresses_the_one_is_listened_at_that_others_reach() -> None:
    with pytest.raises(ConfigError, match=r"\('192\.0\.2\.1', 0\)"), ItemServer(("node1", 0), Kept(1), SECRET):
        pass


@pytest.mark.usefixtures("own_name_twice")
def test_a_master_whose_name_means_two_addresses_can_be_reached() -> None:
    try:
        found = meeting._own_address(("node1", 7))
    except OSError:  # there is no way to other hosts here
        found = ""
    assert not found.startswith("127.")
