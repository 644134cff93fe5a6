"""A Ray cluster as a user names it, and how this host reaches it. Nothing of Ray is imported here.

ray://HEAD:10001                                     the cluster of that head; the port is the one of Ray's client server
auto                                                 the cluster that this process runs in
ray://HEAD:10001?workers=8&resources=prep:1&labels=pool:cpu&required
"""

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from stoker.errors import ConfigError, StokerError
from stoker.wire.addresses import is_local

AUTO, CLIENT = "auto", "ray://"
_VARIABLE = "RAY_ADDRESS"
_FORM = "ray://HEAD:PORT or auto, then perhaps ?workers=N&resources=NAME:N,...&labels=NAME:VALUE,...&required"


class NoClusterError(StokerError):
    """The cluster cannot be used from here; the message says why."""


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """What the user says of a cluster."""

    address: str
    workers: int | None = None
    """At most so many; None: as many as CPUs are free."""
    resources: dict[str, float] = field(default_factory=dict)
    """What a worker takes of its node beside a CPU."""
    labels: dict[str, str] = field(default_factory=dict)
    """Those of a node where workers may be."""
    is_required: bool = False
    """Whether a run without the cluster is an error."""


class ClusterMeeting(NamedTuple):
    """How this host meets a cluster."""

    ray: str
    """The address that Ray is given."""
    host: str
    """The address of this host that the cluster's nodes can dial."""


class Raylet(NamedTuple):
    """A node of a cluster that runs on this host."""

    host: str
    head: str


def is_cluster(text: str) -> bool:
    """Whether an address names a cluster, and not a place where this host listens."""
    return text.partition("?")[0] == AUTO or text.startswith(CLIENT)


def parse_cluster(text: str) -> ClusterAddress:
    """The cluster that a text names. Raises ConfigError."""
    address, _, query = text.partition("?")
    if address != AUTO:
        host, _, port = address.removeprefix(CLIENT).rpartition(":")
        if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigError(f"offload= names a Ray cluster as {_FORM}, not {text!r}")
    try:
        said = dict(parse_qsl(query, keep_blank_values=True))
        workers, required = said.pop("workers", None), said.pop("required", None)
        resources = {name: float(count) for name, count in _pairs(said.pop("resources", "")).items()}
        labels = _pairs(said.pop("labels", ""))
        if (
            said
            or required
            or (workers is not None and int(workers) < 1)
            or not all(0 < count < math.inf for count in resources.values())
        ):
            raise ValueError(query)
    except ValueError as error:
        raise ConfigError(f"offload= names a Ray cluster as {_FORM}, not {text!r}") from error
    return ClusterAddress(address, None if workers is None else int(workers), resources, labels, required is not None)


def _pairs(text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        name, colon, value = part.rpartition(":")
        if not colon or not name or not value:
            raise ValueError(part)
        found[name] = value
    return found


def meet(
    cluster: ClusterAddress, environment: Mapping[str, str] = os.environ, proc: Path = Path("/proc")
) -> ClusterMeeting:
    """How this host meets a cluster. Raises NoClusterError.

    Where a node of the cluster runs on this host, that one is used: it is known under an address that others can dial.
    """
    here = raylets(proc)
    address = cluster.address
    if address == AUTO:
        address = environment.get(_VARIABLE, "")
        if address in ("", AUTO):
            if not here:
                raise NoClusterError(
                    f"there is no Ray cluster here: {_VARIABLE} is not set, and this host is no node of one"
                )
            return ClusterMeeting(here[0].head, here[0].host)
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    head = host.strip("[]"), int(port) if port.isdecimal() else 0
    for raylet in here:
        if _are_same(head[0], raylet.head.rpartition(":")[0]):
            return ClusterMeeting(raylet.head, raylet.host)
    if not address.startswith(CLIENT):
        raise NoClusterError(f"this host is no node of the Ray cluster at {address}: name it as ray://HEAD:10001")
    own = _own_address(head)
    if own.startswith("127.") or own == "::1":
        raise NoClusterError(f"{address} is reached by a tunnel: nodes of the Ray cluster could not dial this host")
    return ClusterMeeting(address, own)


def raylets(proc: Path = Path("/proc")) -> list[Raylet]:
    """The nodes of clusters that run on this host."""
    found = []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_text(errors="replace").split("\0")
        except OSError:
            continue  # it has ended
        if Path(words[0]).name == "raylet":
            pairs = (word.removeprefix("--").partition("=") for word in words)
            said = {name.replace("-", "_"): value for name, _, value in pairs}
            if said.get("node_ip_address") and said.get("gcs_address"):
                found.append(Raylet(said["node_ip_address"], said["gcs_address"]))
    return found


def _are_same(one: str, other: str) -> bool:
    """Whether two names are of one host."""
    if one == other or (is_local(one) and is_local(other)):
        return True
    try:
        known = [{found[4][0] for found in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)} for host in (one, other)]
    except OSError:
        return False
    return bool(known[0] & known[1])


def _own_address(head: tuple[str, int]) -> str:
    """The address of this host on the way to another one. Nothing is sent."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(*head, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as way:
            way.connect(place)
            return str(way.getsockname()[0])
    except OSError as error:
        raise NoClusterError(f"Ray's head {head[0]} cannot be reached: {error}") from error
