"""Put our DataLoader where torch's and torchdata's were, and say at the end what it has done."""

import atexit
import multiprocessing
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.utils.data
import torch.utils.data.dataloader

from stoker.feed.hooks import HOOKS
from stoker.host import ranks
from stoker.internals import expected
from stoker.meter import Meter
from stoker.plan import DEVICE, TAIL, Plan
from stoker.run.ending import has_failed
from stoker.run.inject import SETTINGS, after_import
from stoker.run.measured import Measured
from stoker.run.restart.words import refuse, say
from stoker.torch.loader import DataLoader

_meters: list[Meter] = []
_of_samples: list[Meter] = []
"""Those of loaders that read no stream."""


def replace(settings: dict[str, Any]) -> None:
    """Replace torch's DataLoader by ours from now on; unless ours does not fit this version of torch."""
    if expected.difference() is not None:
        _leave_torchs(settings)
        return
    torch.utils.data.DataLoader = torch.utils.data.dataloader.DataLoader = DataLoader  # type: ignore[misc]
    after_import("torchdata.stateful_dataloader", _replace_torchdatas)
    HOOKS.plan = Plan.of_values(settings.get("plan", {}))
    owner = os.getpid()
    closing = []
    if settings.get("analyze"):
        from stoker.run.analysis import Analysis

        Analysis(settings["analyze"])
        return
    HOOKS.made.append(_remember)
    if settings.get("checkpoint") and _is_script(settings.get("command", [])):
        from stoker.run.restart.watcher import Watcher

        watcher = Watcher(
            settings["checkpoint"],
            every=settings.get("every"),
            overhead=HOOKS.plan.overhead,
            command=settings.get("command", []),
            is_told=settings.get("is_told", False),
        )
        closing.append(watcher.close)
    if HOOKS.plan.offload is not None:
        closing.append(_nobody_to_help)
    if HOOKS.plan.prep in (TAIL, DEVICE):
        closing.append(_no_gpu)
    atexit.register(_end, owner, closing)


def _replace_torchdatas(package: ModuleType) -> None:
    """Ours keeps the states that torchdata's keeps, and goes on from what that wrote."""
    for module in (package, sys.modules[f"{package.__name__}.stateful_dataloader"]):
        module.StatefulDataLoader = DataLoader  # type: ignore[attr-defined]


def _leave_torchs(settings: dict[str, Any]) -> None:
    """Let the script and its processes run with torch's loader. For an analysis or checkpoints, end it and say why."""
    os.environ.pop(SETTINGS, None)
    if settings.get("analyze"):
        Measured(word=f"{expected.words()}. {expected.ADVICE}").save(settings["analyze"]["measured"])
        sys.stdout.flush()
        os._exit(0)
    plan = Plan.of_values(settings.get("plan", {}))
    if settings.get("checkpoint"):
        refuse(f"--checkpoint needs our loader, and {expected.words()}. {expected.ADVICE}")
    dropped = "" if plan == Plan() else ", without a plan or options of ours"
    say(f"{expected.words()}: the script runs with torch's own loader{dropped}. {expected.ADVICE}")


def _is_script(command: list[str]) -> bool:
    """Whether this process runs the script, or is one of its ranks; not a worker, nor another program that it started."""
    if multiprocessing.current_process().daemon:
        return False
    path = Path(sys.argv[0] if sys.argv else "")
    if path.name in ("", "-m", "-c"):
        return True
    name = path.parent.name if path.name == "__main__.py" else path.stem
    return any(name in (Path(word).stem, word.rpartition(".")[2]) for word in command)


def _remember(loader: Any) -> None:
    _meters.append(loader._meter)
    if not isinstance(loader.dataset, torch.utils.data.IterableDataset):
        _of_samples.append(loader._meter)


def _nobody_to_help() -> list[str]:
    """What is to be said if other hosts could prepare nothing: no loader has workers, or all that have read streams."""
    if not any(meter.batches for meter in _meters) or any(meter.workers for meter in _of_samples):
        return []
    why = "num_workers must be 1 or more in the script's loaders"
    if any(meter.workers for meter in _meters):
        why = "a stream is read where it is opened, and only single samples are prepared elsewhere"
    return [f"stoker: offload=: everything was prepared on this host: {why}"]


def _no_gpu() -> list[str]:
    """What is to be said if a GPU could prepare nothing, because there is none."""
    if not any(meter.batches for meter in _meters) or torch.cuda.is_available():
        return []
    return [f"stoker: prep={HOOKS.plan.prep!r}: everything was prepared on the host: torch sees no GPU here"]


def _end(owner: int, closing: list[Any]) -> None:
    if os.getpid() != owner:
        return
    words = [word for close in closing for word in close()]
    if has_failed():
        return
    batches = sum(meter.batches for meter in _meters)
    if batches:
        waited_s = sum(meter.wait_s for meter in _meters)
        workers = max(meter.workers for meter in _meters)
        rank = "" if ranks.rank() is None else f" rank {ranks.rank()}:"
        looked = sum(meter.hits + meter.misses + meter.hits_peer for meter in _meters)
        cached = f", {sum(meter.hits for meter in _meters) / looked:.0%} of reads from the cache" if looked else ""
        on_disk = sum(meter.hits_disk for meter in _meters)
        cached += f", {on_disk / looked:.0%} from its disk tier" if on_disk else ""
        cached = cached.replace("%", " %") + "".join({f", in the group {m.group}" for m in _meters if m.group})
        from_peers = sum(meter.hits_peer for meter in _meters)
        cached += f", {from_peers / looked:.0%} from other hosts".replace("%", " %") if from_peers else ""
        helped = sum(meter.helped for meter in _meters)
        cached += f", {helped:,} batches made by workers of other ranks" if helped else ""
        names = "remote", "on_device", "samples"
        remote, on_device, samples = (sum(getattr(meter, name) for meter in _meters) for name in names)
        cached += f", {remote / samples:.0%} prepared on other hosts".replace("%", " %") if remote else ""
        cached += f", {on_device / samples:.0%} finished on the GPU".replace("%", " %") if on_device else ""
        by = f"{workers} worker{'' if workers == 1 else 's'}"
        read = f"{batches:,} batch{'' if batches == 1 else 'es'}"
        words.insert(0, f"stoker:{rank} {read}, {waited_s:.1f} s waiting for data, {by}{cached}")
    if words:
        sys.stderr.write("\n".join([*words, ""]))  # in one piece: other ranks write there, too
        sys.stderr.flush()
