"""Where the pixels of a loader's batches are computed, and how a batch is finished on the device.

That is decided as an epoch begins: never by surprise. Somebody has asked for it, torch's own `default_collate` makes the
batches, and the device is known, because an optimizer has parameters there. Otherwise everything stays on the host.
"""

import functools
import gc
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from stoker.device.tail import Ops, finish, finish_batch
from stoker.feed.progress import is_batched
from stoker.plan import HOST
from stoker.pool.maker import stacks


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
        """Do what workers have left. It is ordered on the caller's stream, as a copy of the loop's own would be."""
        with torch.inference_mode(False), torch.no_grad():
            return finish_batch(batch, rest[1], self._numbers)

    def _numbers(self, content: torch.Tensor, ops: Ops) -> torch.Tensor:
        try:
            return finish(_moved(content, self.device), ops, torch.contiguous_format)
        except torch.OutOfMemoryError:
            _say_once(f"prep={self.where!r}: the GPU has no memory left for a batch, which is finished on the host")
        return finish(content, ops, torch.contiguous_format)


def _moved(content: torch.Tensor, device: torch.device) -> torch.Tensor:
    return content.to(device, non_blocking=True)


@functools.cache
def _say_once(words: str) -> None:
    warnings.warn(words, stacklevel=9)


def finishing_of(loader: Any) -> Finishing | None:
    """Where the pixels of the next epoch are computed; None: on the host."""
    if loader.prep in (None, HOST):
        return None
    why = _obstacle(loader)
    if why:
        if not loader._told_about_prep:
            loader._told_about_prep = True
            warnings.warn(
                f"prep={loader.prep!r}: this loader's pixels are computed on the host, because {why}", stacklevel=8
            )
        return None
    device = device_of_training()
    return None if device is None else Finishing(loader.prep, device)


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
    found = {
        parameter.device
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.optim.Optimizer)
        for group in thing.param_groups
        for parameter in group["params"]
        if parameter.is_cuda
    }
    current = torch.device("cuda", torch.cuda.current_device())
    return current if current in found else found.pop() if len(found) == 1 else None
