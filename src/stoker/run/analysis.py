"""An analysis of a script: its training loader is found, the phases run in its loop, and the profile is written.

The script is ended when all is measured. One that ends by itself before leaves word of how far it came.
"""

import atexit
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import stoker
from stoker.decide.model import Share, predict, seen_together
from stoker.decide.whatif import advise
from stoker.measure.host import memory_bytes, usable_cores
from stoker.measure.series import Series
from stoker.memory import headroom_bytes
from stoker.profile import Confidence, Dataset, Host, Profile, Rates, Speed, Stalls, write_text
from stoker.run.measured import Measured
from stoker.run.phases import Phases
from stoker.run.subject import shuffles
from stoker.torch.loader import DataLoader


class Analysis:
    """Stands between the script and its loaders."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._seen: list[Any] = []
        self._phases: Phases | None = None
        self._loader: Any = None
        self._owner = os.getpid()
        DataLoader.wrap_iterator = self._iterate
        atexit.register(self._ended_early)

    def _iterate(self, loader: Any, iterate: Callable[[], Any]) -> Any:
        if os.getpid() != self._owner:
            return iterate()
        if self._phases is None and self._is_meant(loader):
            self._loader = loader
            self._phases = Phases(
                loader,
                iterations=self._settings["iterations"],
                cached_part=self._settings["cached"],
                phase_s=self._settings["phase_s"],
                tell=self._tell,
            )
        if self._phases is None or loader is not self._loader:
            return iterate()
        return _Given(self._phases.consumer(), self._finish)

    def _is_meant(self, loader: Any) -> bool:
        if not any(one is loader for one in self._seen):
            self._seen.append(loader)
        wanted = self._settings["loader"]
        return len(self._seen) == wanted if wanted else shuffles(loader)

    def _tell(self, what: str, left_s: float) -> None:
        if sys.stderr.isatty() and (self._phases is None or self._phases.is_first_rank):
            print(f"\r\x1b[Kstoker: {what}; about {left_s:.0f} s left", end="", file=sys.stderr, flush=True)

    def _finish(self) -> None:
        """All is measured: write it, and end the script without its last words."""
        assert self._phases is not None
        self._phases.subject.close()  # the process ends without finalizers
        if self._phases.is_first_rank:
            if sys.stderr.isatty():
                print("\r\x1b[K", end="", file=sys.stderr)
            profile = profile_of(self._phases, self._settings["script"])
            profile.save(self._settings["profile"])
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _ended_early(self) -> None:
        if os.getpid() != self._owner or (self._phases is not None and not self._phases.is_first_rank):
            return
        if self._phases is not None:
            found = self._phases.found
            parts = {
                "the loop": found.gpu.times,
                "preparing": found.prep,
                "storage": found.storage,
                "the cold loop": found.cold.times,
            }
            done = ", ".join(name for name, times in parts.items() if times) or "nothing"
            word = f"the script ended before the analysis did; measured were: {done}. Give it more iterations to run."
        elif self._seen:
            word = f"none of the {len(self._seen)} loaders that the script iterated shuffles: pick one with --loader"
        else:
            word = "the script iterated no DataLoader"
        outcome = Path(self._settings["profile"] + ".failed")
        write_text(outcome, json.dumps({"word": word}))


class _Given:
    """An iterator over what the phases give, as long as the loop asks."""

    def __init__(self, steps: Any, finish: Callable[[], None]) -> None:
        self._steps = steps
        self._finish = finish

    def __iter__(self) -> "_Given":
        return self

    def __next__(self) -> Any:
        try:
            return next(self._steps)
        except StopIteration:
            self._finish()
            raise


def profile_of(phases: Phases, script: str) -> Profile:
    """All that was measured, and what follows from it."""
    found, subject = phases.found, phases.subject
    workers = subject.workers
    prep = found.prep.get(workers) or (found.prep[max(found.prep)] if found.prep else Series())
    storage = found.storage.get(max(1, workers), Series())
    rates = Rates(
        gpu=found.gpu.rate,
        prep=prep.rate,
        storage=storage.rate,
        cache=found.cache,
        prep_by_workers={count: series.rate for count, series in found.prep.items()},
        prep_by_threads={count: series.rate for count, series in found.prep_threads.items()},
        storage_by_readers={count: series.rate for count, series in found.storage.items()},
        storage_rested=found.storage_rested,
        workers=workers,
        cores=usable_cores() / phases.world,
        batch=found.batch,
        prep_busy=found.prep_busy,
        loop_cores=min(found.loop_cores, usable_cores()),
        handover=_handover(found),
        spread=found.spread,
    )
    share = Share(cached=found.cached_part, threads=subject.loader.workers == "threads")
    rates = seen_together(rates, share, found.cached.rate)
    confidence = Confidence(
        found.gpu.width, prep.width, storage.width if storage.times else 0.0, 0.05 if found.cache else 0.0
    )
    synthetic, cached = found.gpu.rate, found.cached.rate or found.cold.rate
    cold = found.cold.rate or cached
    profile = Profile(
        stoker=stoker.__version__,
        host=Host(usable_cores(), memory_bytes(), found.device, max(0, headroom_bytes())),
        dataset=Dataset(found.samples, found.bytes, found.bytes_known),
        batch_size=max(1, found.batch),
        workers=workers,
        rates=rates,
        speed=Speed(synthetic, cached, cold),
        stalls=_stalls(synthetic, cached, cold),
        limit=predict(rates, share).limit,
        confidence=confidence,
        workers_kind=subject.loader.workers if workers else "processes",
        prefetch=max(1, subject.prefetch),
        world=phases.world,
        cached=found.cached_part if found.cold.times else 0.0,
        script=script,
        notes=tuple(found.notes),
    )
    return replace(profile, advice=advise(profile))


def _handover(found: Measured) -> float:
    if not found.host.times or not found.gpu.times:
        return 0.0
    extra_s = 1 / found.host.rate - 1 / found.gpu.rate
    return 1 / extra_s if extra_s > 0 else 0.0


def _stalls(synthetic: float, cached: float, cold: float) -> Stalls:
    """Differences of the times of a sample in the three loops, as parts of the slowest."""
    if not cold or not synthetic:
        return Stalls(0.0, 0.0)
    synthetic_s = 1 / synthetic
    cached_s = max(synthetic_s, 1 / cached)
    cold_s = max(cached_s, 1 / cold)
    return Stalls((cached_s - synthetic_s) / cold_s, (cold_s - cached_s) / cold_s)
