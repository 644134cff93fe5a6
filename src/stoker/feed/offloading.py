"""Whether a loader's batches may be prepared on other hosts, and the relay that hands them there.

A relay is started with the first epoch and ends with the loader. Where there is one already at the address, of another
rank or loader of this host, that one serves: it finds all ranks of its job by itself.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import weakref
from types import ModuleType
from typing import Any

from stoker.feed import sharing
from stoker.feed.digest import is_users_module, variables_of
from stoker.host.sockets import take_name
from stoker.pool.serving import Duty
from stoker.pool.work import Made
from stoker.remote import parcel
from stoker.remote.address import parse_address
from stoker.remote.relay import Order, document
from stoker.remote.versions import versions
from stoker.wire.frames import PAYLOAD_LIMIT

_END_S = 5.0


class Relaying:
    """The relay of a loader, in its training process."""

    def __init__(self, job: str, size: int, process: "subprocess.Popen[bytes]", taken: socket.socket) -> None:
        self.job, self.size = job, size
        self.pid = process.pid
        self._process = process
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, process, taken, os.getpid())

    @property
    def is_there(self) -> bool:
        """Whether the process lives."""
        return self._end.alive and self._process.poll() is None

    def close(self) -> None:
        """End the relay. Works that remote workers have are made here."""
        if self._owner == os.getpid():
            self._end()


_relays: "weakref.WeakValueDictionary[str, Relaying]" = weakref.WeakValueDictionary()
"""By address: the relays of this process."""


def relay_for(loader: Any, job: str, duty: Duty, before: Relaying | None) -> Relaying | None:
    """The relay of a loader. None if another one serves at the address, or if it cannot be: then one line says why."""
    if before is not None and before.job == job and before.is_there:
        return before
    if before is not None:
        before.close()
    size = len(loader.dataset)
    other = _relays.get(loader.offload)
    if other is not None and other.is_there and other.size < size:
        other.close()  # of the loader for validation, perhaps, which came first
    taken = take_name(f"relay {loader.offload}")
    if taken is None:
        return None  # another rank or loader of this user has it
    started = _start(loader, job, duty)
    if started is None:
        taken.close()
        return None
    found = _relays[loader.offload] = Relaying(job, size, started, taken)
    return found


def _start(loader: Any, job: str, duty: Duty) -> "subprocess.Popen[bytes] | None":
    host, port = parse_address(loader.offload)
    try:
        content = parcel.pack(pickled(duty), variables_of(loader.dataset, loader.collate_fn), sys.modules)
    except Exception as error:  # the user's objects may raise anything
        sharing.say(loader, f"the dataset cannot be sent to other hosts: {error}")
        return None
    if len(content) > PAYLOAD_LIMIT:
        sharing.say(loader, f"the dataset is too large to be sent to other hosts ({len(content) >> 20} MiB)")
        return None
    places = [Made._fields.index(name) for name in ("finished", "counts", "place", "pickled")]
    fields = (*places, len(Made._fields))
    ratio = 1.0 if loader._options.offload_ratio is None else loader._options.offload_ratio
    order = Order(host, port, str(sharing.folder()), job, ratio, versions(), fields, len(content))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "stoker.remote.relay"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(document(order) + content)
            process.stdin.flush()
        said = process.stdout.readline()
    found = json.loads(said) if said else {"trouble": "the relay has ended"}
    if "trouble" not in found:
        return process
    _end(process, None, os.getpid())
    sharing.say(loader, found["trouble"])
    return None


def _end(process: "subprocess.Popen[bytes]", taken: socket.socket | None, owner: int) -> None:
    if taken is not None:
        taken.close()
    if os.getpid() != owner:
        return
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.write(b"\n")  # a child that was forked meanwhile may hold this line open
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def pickled(duty: Duty) -> bytes:
    """A duty for another host: what the script and modules beside it define travels with it."""
    import cloudpickle

    local = [
        module
        for name, module in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__") and isinstance(module, ModuleType) and is_users_module(name)
    ]
    for module in local:
        cloudpickle.register_pickle_by_value(module)
    try:
        content: bytes = cloudpickle.dumps(duty)
        return content
    finally:
        for module in local:
            cloudpickle.unregister_pickle_by_value(module)
