"""The stores of `torch.distributed`, where processes of one run leave words for each other.

Two are there without all ranks having to ask for them together: that of torchrun's agents, from the start, and that of the
process group, once the script has made it. Both are handed out as connections of their own: nobody else waits at them, and
a forked child does not disturb its parent's. A server that is suspended makes them raise: torch's own clients wait for its
answers without an end.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed

_PATIENCE = timedelta(seconds=10)
_ANSWER_S = 1
"""An answer takes some 50 us."""


def agents_store() -> Any:
    """The store of torchrun's agents; None if torchrun did not start this process, or they do not share it."""
    port = os.environ.get("MASTER_PORT", "")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not port.isdigit():
        return None
    if not torch.distributed.is_available():
        return None
    host = os.environ.get("MASTER_ADDR", "")
    make: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]
    return _impatient(lambda: make(host, int(port), is_master=False, timeout=_PATIENCE, wait_for_workers=False))


def groups_store() -> Any:
    """The store of the process group; None as long as there is none."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    store: Any = torch.distributed.distributed_c10d._get_default_store()
    return _impatient(store.clone)


def _impatient(connect: Callable[[], Any]) -> Any:
    """Connect to a store. Who waits for its answer for longer than a second gets a RuntimeError from then on."""
    before = _sockets()
    store = connect()
    address = address_of(store)
    for descriptor in _sockets() - before:
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as sock:
            if address is not None and sock.getpeername()[1] == address[1]:  # other threads connect, too
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", _ANSWER_S, 0))
    return store


def _sockets() -> set[int]:
    """The descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found


def address_of(store: Any) -> tuple[str, int] | None:
    """Where a store listens; None if it does not listen, as one that is a file."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return (store.host, store.port) if hasattr(store, "host") else None
