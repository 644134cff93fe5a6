"""Where the pixels of a loader's batches are computed, and how a batch is finished on the device.

That is decided as an epoch begins: never by surprise. Somebody has asked for it, torch's own `default_collate` makes the
batches, and the device is known, because an optimizer has parameters there. Otherwise everything stays on the host.
"""

import functools
import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from stoker.device.tail import Ops, finish, finish_batch, put_at
from stoker.errors import warn
from stoker.feed.progress import is_batched
from stoker.feed.publishing import role_of
from stoker.plan import DEVICE, HOST, TAIL
from stoker.pool.maker import stacks

if TYPE_CHECKING:
    from stoker.device.decoder import DecodeJob


@dataclass(frozen=True, slots=True)
class Finishing:
    """Where the pixels of an epoch's batches are computed."""

    where: str
    device: torch.device

    @property
    def pins(self) -> bool:
        """Whether slots are to be page-locked, so that the device copies them beside the loop."""
        return self.device.type == "cuda"

    def finish(self, batch: Any, rest: tuple[Any, ...]) -> Any:
        """Do what workers have left. A batch whose pictures are being decoded comes as a `Decoding`.

        What is done at once is ordered on the caller's stream, as a copy of the loop's own would be.
        """
        if rest[0] == DEVICE:
            return self._decoding(batch[0], batch[1], rest[1])
        with torch.inference_mode(False), torch.no_grad():
            return finish_batch(batch, rest[1], self._numbers)

    def _decoding(self, batch: Any, packed: Any, parts: Any) -> "Decoding":
        from stoker.device.decoder import files_in  # what is not asked for is not loaded

        jobs: list[tuple[Any, DecodeJob | None, int, Any]] = []
        for (path, shape, ops), (files, table) in zip(parts, packed, strict=True):
            work = files, table, shape, ops
            job, why = (None, _FAILED_BEFORE) if self.device in _failed else _tried(self._submit, *work)
            jobs.append((path, job, files_in(table), partial(self._on_host, *work, why)))
        return Decoding(batch, jobs)

    def _submit(self, *work: Any) -> "DecodeJob":
        from stoker.device.decoder import decoder_of

        return decoder_of(self.device).submit(*work)

    def _on_host(self, files: Any, table: Any, shape: Any, ops: Ops, before: str, why: str = "") -> torch.Tensor:
        """What the device could not do, and why. A picture that is damaged raises here what it raises everywhere."""
        from stoker.device.decoder import decoded_on_host

        numbers = decoded_on_host(files, table, shape, ops)
        why = why or before
        if why == _NO_MEMORY:
            _say_once(f"prep={self.where!r}: the GPU has no memory left for a batch, which is prepared on the host")
        elif why != _FAILED_BEFORE:
            _failed[self.device] = f"the GPU failed: {why}"
            _say_once(f"prep={self.where!r}: pictures are decoded in this process, because the GPU failed: {why}")
        return numbers

    def _numbers(self, content: torch.Tensor, ops: Ops) -> torch.Tensor:
        try:
            return finish(_moved(content, self.device), ops, torch.contiguous_format)
        except torch.OutOfMemoryError:
            _say_once(f"prep={self.where!r}: the GPU has no memory left for a batch, which is finished on the host")
        return finish(content, ops, torch.contiguous_format)


class Decoding:
    """A batch whose pictures are being decoded."""

    def __init__(self, batch: Any, jobs: list[tuple[Any, "DecodeJob | None", int, Any]]) -> None:
        self._batch, self._jobs = batch, jobs
        self.decoded = 0
        """How many pictures the device has decoded."""

    def result(self) -> Any:
        """The batch."""
        for path, job, files, host in self._jobs:
            numbers, why = (None, "") if job is None else _tried(job.result)
            if numbers is None:
                numbers = host(why)
            elif job is not None:
                self.decoded += files - job.on_host
            if not path:
                return numbers
            put_at(self._batch, path, numbers)
        return self._batch


_NO_MEMORY, _FAILED_BEFORE = "no memory", "it has failed before"
_failed: dict[torch.device, str] = {}
"""Devices that have failed in another way than by being full, and how. They are not asked again."""


def _tried(act: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """What the device has done, or None and why it has not."""
    try:
        return act(*arguments), ""
    except torch.OutOfMemoryError:
        return None, _NO_MEMORY
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def _moved(content: torch.Tensor, device: torch.device) -> torch.Tensor:
    return content.to(device, non_blocking=True)


@functools.cache
def _say_once(words: str) -> None:
    warn(words)


def why_not(loader: Any, part: str) -> str:
    """Why the device cannot do such a part of a loader's preparing, in words; "" if it can."""
    device = device_of_training()
    if device is None:
        return "no optimizer has parameters on a GPU"
    return _obstacle(loader) or (_obstacle_to_decoding(device) if part == DEVICE else "")


def finishing_of(loader: Any) -> Finishing | None:
    """Where the pixels of the next epoch are computed; None: on the host."""
    if loader.prep in (None, HOST):
        return None
    why = _obstacle(loader)
    if why:
        _say_of(loader, f"this loader's pixels are computed on the host, because {why}")
        return None
    device = device_of_training()
    if device is None:
        return None
    finishing = Finishing(loader.prep, device)
    if loader.prep != DEVICE:
        return finishing
    if role_of(loader) == "eval" and "prep" not in loader._options.given:
        return replace(finishing, where=TAIL)  # other pixels than the CPU's, by a hair, are for who asks for them
    why = _obstacle_to_decoding(device)
    if why:
        _say_of(loader, f"pictures are decoded on the host, and only finished on the device, because {why}")
        return replace(finishing, where=TAIL)
    return finishing


def _say_of(loader: Any, what: str) -> None:
    if not loader._told_about_prep:
        loader._told_about_prep = True
        warn(f"prep={loader.prep!r}: {what}")


def _obstacle_to_decoding(device: torch.device) -> str:
    """Why a device cannot decode pictures, in words; "" if it can."""
    if device.type != "cuda":
        return "it is no GPU"
    if device in _failed:
        return _failed[device]
    from stoker.device.decoder import decoder_of
    from stoker.device.nvjpeg import UnavailableError

    try:
        decoder_of(device)
    except UnavailableError as error:
        return str(error)
    return ""


def _obstacle(loader: Any) -> str:
    """Why the pixels of a loader have to be computed on the host, in words; "" if nothing speaks against it."""
    if not loader.num_workers:
        return "it has no workers (num_workers=0)"
    if loader.workers != "processes":
        return "its workers are threads"
    if loader.group is not None:
        return "a batch of a group is for jobs on any device"
    if loader.offload is not None or loader.ranks == "shared":
        return "its batches may be made for or by others (offload=, ranks='shared')"
    if not is_batched(loader) or not stacks(loader.collate_fn):
        return (
            "only what torch's default_collate puts together is known well enough, and this loader has another collate_fn"
        )
    return ""


def device_of_training() -> torch.device | None:
    """The GPU where an optimizer's parameters are; None as long as there is none."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    optimizers = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.optim.Optimizer)]
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ())]
    found = {parameter.device for group in groups for parameter in group.get("params", ()) if parameter.is_cuda}
    current = torch.device("cuda", torch.cuda.current_device())
    return current if current in found else found.pop() if len(found) == 1 else None
