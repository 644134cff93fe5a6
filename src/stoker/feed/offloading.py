"""Whether a loader's batches may be prepared on other hosts, and the relay that hands them there.

A relay is started with the first epoch and ends with the loader. Where there is one already at the address, of another
rank or loader of this host, that one serves: it finds all ranks of its job by itself.
"""

import contextlib
import hashlib
import json
import os
import pickle
import secrets
import socket
import subprocess
import sys
import weakref
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from stoker.errors import ConfigError, warn
from stoker.extras import RAY
from stoker.feed import sharing
from stoker.feed.digest import is_users_module, variables_of
from stoker.feed.parts import candidates, folders_of
from stoker.host import ranks
from stoker.host.cores import usable_cores
from stoker.host.sockets import take_name
from stoker.internals.ranks import rank_and_world
from stoker.meter import now
from stoker.order import length_of
from stoker.pool.serving import Duty
from stoker.pool.work import Made
from stoker.remote import parcel
from stoker.remote.address import parse_address
from stoker.remote.cluster import ClusterAddress, NoClusterError, is_cluster, meet, parse_cluster
from stoker.remote.measured import name_of
from stoker.remote.parts import ALL, PREPARE
from stoker.remote.relay import RelayOrder, document
from stoker.remote.versions import versions
from stoker.wire.frames import PAYLOAD_LIMIT

_END_S = 5.0
_TRYING_PART = 0.02
"""What cannot be started is tried again, but trying takes no more than this part of the time."""


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

    def limit(self, ratio: float | None, part: str | None = None) -> None:
        """Send so much away from now on, and have such a part done there; None: as is decided by measuring."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps({"ratio": ratio, "part": part}).encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """End the relay. Works that remote workers have are made here."""
        if self._owner == os.getpid():
            self._end()


_relays: "weakref.WeakValueDictionary[str, Relaying]" = weakref.WeakValueDictionary()
"""By address: the relays of this process."""

_not_before: dict[tuple[str, str], float] = {}
"""By address and job: when to try again, where no relay could be started. Epochs may be short, and each would wait."""


def relay_for(loader: Any, job: str, duty: Duty, before: Relaying | None) -> Relaying | None:
    """The relay of a loader. None if another one serves at the address, or if it cannot be: then one line says why."""
    if before is not None and before.job == job and before.is_there:
        return before
    if before is not None:
        before.close()
    size = _size(loader)
    other = _relays.get(loader.offload)
    if other is not None and other.is_there and other.size < size:
        other.close()  # of the loader for validation, perhaps, which came first
    attempt, began = (loader.offload, job), now()
    if began < _not_before.get(attempt, 0.0):
        return None
    taken = take_name(f"relay {loader.offload}{_whose(loader.offload)}")
    if taken is None:  # another rank or loader of this user has it
        if other is None and max(rank_and_world()[1], ranks.world()) == 1:
            sharing.say(loader, f"another job on this host has {loader.offload}: each needs an address of its own")
        return None
    started = None
    try:
        started = _start(loader, job, duty)
    finally:
        if started is None:
            taken.close()
    if started is None:
        _not_before[attempt] = now() + (now() - began) / _TRYING_PART
        return None
    found = _relays[loader.offload] = Relaying(job, size, started, taken)
    return found


def _size(loader: Any) -> int:
    """How long the dataset is, or how many batches there are where it does not say that: a sampler may know alone."""
    lengths = (length_of(what) for what in (loader.dataset, loader))
    return next((length for length in lengths if length is not None), 0)


def _whose(offload: str) -> str:
    """An address of this host has one relay for all. For a cluster each job has one of its own."""
    if not is_cluster(offload):
        return ""
    return f" {sharing.launch() if ranks.world() > 1 else os.getpid()}"


def _start(loader: Any, job: str, duty: Duty) -> "subprocess.Popen[bytes] | None":
    place: dict[str, Any]
    if is_cluster(loader.offload):
        asked = parse_cluster(loader.offload)
        asked = replace(asked, workers=asked.workers or loader._options.offload_workers)
        is_required = asked.is_required
        try:
            place = _place_for(asked)
        except NoClusterError as error:
            _stay(loader, str(error), is_required=is_required)
            return None
    else:
        is_required = False
        place = dict(zip(("host", "port"), parse_address(loader.offload), strict=True))
    dividing = _dividing(loader)
    try:
        content = parcel.pack(
            pickled(duty), variables_of(loader.dataset, loader.collate_fn), dividing["roots"], sys.modules
        )
    except Exception as error:  # the user's objects may raise anything
        sharing.say(loader, f"the dataset cannot be sent to other hosts: {error}")
        return None
    if len(content) > PAYLOAD_LIMIT:
        sharing.say(loader, f"the dataset is too large to be sent to other hosts ({len(content) >> 20} MiB)")
        return None
    has_reads = dividing["roots"] and loader.caching.reads is not None
    reads = pickle.dumps(loader.caching.reads) if has_reads else b""
    places = [Made._fields.index(name) for name in ("finished", "counts", "place", "pickled")]
    fields = (*places, len(Made._fields))
    order = RelayOrder(
        folder=str(sharing.folder()),
        job=job,
        ratio=loader._options.offload_ratio,
        keys=(model_name(loader), pipeline_name(loader, job)),
        versions=versions(),
        fields=fields,
        duty_bytes=len(content),
        **place,
        **dividing,
        reads_bytes=len(reads),
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "stoker.remote.relay"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process.stdout:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(document(order) + content + reads)
            process.stdin.flush()
        said = process.stdout.readline()
    found = json.loads(said) if said else {"trouble": "the relay has ended"}
    if "trouble" not in found:
        return process
    _end(process, None, os.getpid())
    _stay(loader, found["trouble"], is_required=is_required)
    return None


def _place_for(asked: ClusterAddress) -> dict[str, Any]:
    """Where the relay listens for workers that Ray places, and what it is told of them. Raises NoClusterError."""
    if not RAY.is_installed:
        raise NoClusterError(f"Ray is not installed: {RAY.command}")
    met = meet(asked)
    cluster = asdict(replace(asked, address=met.ray))
    return {"host": met.host, "port": 0, "secret": secrets.token_hex(32), "cluster": cluster}


def _stay(loader: Any, why: str, *, is_required: bool) -> None:
    """Say why all is prepared here. Raises ConfigError if that is not what the user wants."""
    if is_required:
        raise ConfigError(f"offload={loader.offload!r}: {why}")
    sharing.say(loader, why)


def model_name(loader: Any) -> str:
    """A name for what the loop does with a batch, as far as a loader can know it: the same script with the same arguments,
    on the same devices, in as many ranks, with batches of the same size."""
    script = sys.argv[0] if getattr(sys, "argv", None) else ""
    try:
        content = hashlib.blake2b(Path(script).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        content = ""
    devices = [torch.cuda.get_device_name(0)] if torch.cuda.is_available() else []
    batch = getattr(loader.batch_sampler, "batch_size", loader.batch_size)
    return name_of(script, content, sys.argv[1:], batch, devices, rank_and_world()[1], ranks.world(), torch.__version__)


def pipeline_name(loader: Any, job: str) -> str:
    """A name for how this host prepares: the dataset and its code, workers and cores."""
    return name_of(job.rpartition(" ")[2], loader.num_workers, f"{usable_cores():g}")


def _dividing(loader: Any) -> dict[str, Any]:
    """Which part of the preparation other hosts do, and why they do no other: what an `Order` says of it."""
    against, part, ratio = candidates(loader), loader._options.offload_part, loader._options.offload_ratio
    if part is not None and part in against:
        warn(f"offload=: other hosts do all of a batch instead of {part!r}: {against[part]}")
        part = ALL
    if part is None and ratio is not None:  # nothing is measured
        part = ALL
    return {"part": part, "against": against, "roots": () if PREPARE in against else folders_of(loader)}


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
