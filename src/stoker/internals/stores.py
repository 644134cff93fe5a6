"""The stores of `torch.distributed`, where processes of one run leave words for each other.

Two are there without all ranks having to ask for them together: that of torchrun's agents, from the start, and that of the
process group, once the script has made it. Both are handed out as connections of their own: nobody else waits at them, and
a forked child does not disturb its parent's.
"""

import os
from datetime import timedelta
from typing import Any

import torch.distributed

_PATIENCE = timedelta(seconds=10)


def agents_store() -> Any:
    """The store of torchrun's agents; None if torchrun did not start this process, or they do not share it."""
    port = os.environ.get("MASTER_PORT", "")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or not port.isdigit():
        return None
    if not torch.distributed.is_available():
        return None
    host = os.environ.get("MASTER_ADDR", "")
    make: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]
    return make(host, int(port), is_master=False, timeout=_PATIENCE, wait_for_workers=False)


def groups_store() -> Any:
    """The store of the process group; None as long as there is none."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    store: Any = torch.distributed.distributed_c10d._get_default_store()
    return store.clone()


def address_of(store: Any) -> tuple[str, int] | None:
    """Where a store listens; None if it does not listen, as one that is a file."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return (store.host, store.port) if hasattr(store, "host") else None
