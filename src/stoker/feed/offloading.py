"""Whether a loader's batches may be prepared on other hosts, and the relay that hands them there.

A relay is started with the first epoch and ends with the loader. Where there is one already at the address, of another
rank or loader of this host, that one serves: it finds all ranks of its job by itself.
"""

import json
import os
import subprocess
import sys
import warnings
import weakref
from types import ModuleType
from typing import Any

from stoker.feed import sharing
from stoker.pool.serving import Duty
from stoker.pool.work import Made
from stoker.remote.address import parse_address
from stoker.remote.relay import Order, document
from stoker.remote.versions import versions
from stoker.wire.frames import PAYLOAD_LIMIT

_END_S = 5.0


class Relaying:
    """The relay of a loader, in its training process."""

    def __init__(self, job: str, process: "subprocess.Popen[bytes]", address: tuple[str, int]) -> None:
        self.job, self.address = job, address
        self.pid = process.pid
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, process, os.getpid())

    def close(self) -> None:
        """End the relay. Works that remote workers have are made here."""
        if self._owner == os.getpid():
            self._end()


def relay_for(loader: Any, job: str, duty: Duty, before: Relaying | None) -> Relaying | None:
    """The relay of a loader. None if another one serves at the address, or if it cannot be: then one line says why."""
    if before is not None and before.job == job:
        return before
    if before is not None:
        before.close()
    host, port = parse_address(loader.offload)
    try:
        content = pickled(duty)
    except Exception as error:  # the user's objects may raise anything
        _say(loader, f"the dataset cannot be sent to other hosts: {error}")
        return None
    if len(content) > PAYLOAD_LIMIT:
        _say(loader, f"the dataset is too large to be sent to other hosts ({len(content) >> 20} MiB)")
        return None
    places = [Made._fields.index(name) for name in ("finished", "counts", "place", "pickled")]
    fields = (*places, len(Made._fields))
    ratio = 1.0 if loader._options.offload_ratio is None else loader._options.offload_ratio
    order = Order(host, port, str(sharing.folder()), job, ratio, versions(), fields, len(content))
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker.remote.relay"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        try:
            process.stdin.write(document(order) + content)
            process.stdin.flush()
        except BrokenPipeError:
            pass
        said = process.stdout.readline()
    found = json.loads(said) if said else {"trouble": "the relay has ended"}
    if "trouble" not in found:
        return Relaying(job, process, tuple(found["address"]))
    _end(process, os.getpid())
    if "in use" not in found["trouble"]:
        _say(loader, found["trouble"])
    return None


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() != owner:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _say(loader: Any, why: str) -> None:
    if not loader._told_about_offload:
        loader._told_about_offload = True
        warnings.warn(f"offload=: everything is prepared on this host, because {why}", stacklevel=10)


def pickled(duty: Duty) -> bytes:
    """A duty for another host: what the script and modules beside it define travels with it."""
    import cloudpickle

    local = [module for module in list(sys.modules.values()) if is_local(module)]
    for module in local:
        cloudpickle.register_pickle_by_value(module)
    try:
        content: bytes = cloudpickle.dumps(duty)
        return content
    finally:
        for module in local:
            cloudpickle.unregister_pickle_by_value(module)


def is_local(module: ModuleType) -> bool:
    """Whether a module is the user's own: not installed, so that other hosts do not have it."""
    name, path = getattr(module, "__name__", ""), getattr(module, "__file__", None)
    if not isinstance(module, ModuleType) or not path or name == "__main__" or name.partition(".")[0] == "stoker":
        return False
    if sys.modules.get(name) is not module:
        return False
    where = os.path.abspath(path)
    return not where.startswith(os.path.dirname(os.__file__)) and not any(
        part in where.split(os.sep) for part in _INSTALLED
    )


_INSTALLED = ("site-packages", "dist-packages")
