"""Checkpoints beside a training loop: `step()` after every update, `restore()` before the first.

    PROFILING  -- enough seen -->  WAITING  -- due -->  COPYING  -- all in memory -->  SAVING  -- durable -->  WAITING

The loop is held up no longer than it must be: tensors that only optimizers change are copied while the next forward and
backward run, and a process of its own writes files. A failed save does not end a run; a damaged file is never loaded.
"""

import contextlib
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Self

from stoker.checkpoint.copying import Copier, UpdateHooks
from stoker.checkpoint.files import NONSENSE, Directory, made
from stoker.checkpoint.frequency import CheckpointPace, Costs, choose
from stoker.checkpoint.ranks import ranks_here
from stoker.checkpoint.restoring import left_elsewhere, newest_whole
from stoker.checkpoint.saving import SAVED, TORN, Saving
from stoker.checkpoint.signals import Signals
from stoker.checkpoint.snapshot import Gathered, changed_by_optimizers_only, gather, generators, set_generators
from stoker.checkpoint.stats import CheckpointStats
from stoker.checkpoint.timetable import Timetable
from stoker.checkpoint.tree import UnsavableError
from stoker.checkpoint.writer import Writer
from stoker.errors import CheckpointError, ConfigError
from stoker.host import process
from stoker.memory import Mapping

PREEMPTED = 75
"""The exit code of a run that was told to end and has saved itself: start it again (EX_TEMPFAIL of sysexits.h)."""
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_LATEST = 20  # more steps at most of a run that is told to end, until one that it could go on from


class Checkpointer:
    """Saves a run by itself within a budget, and restores it exactly.

    `overhead` is the fraction by which training may be slowed; the interval is chosen and corrected accordingly, unless
    `every` gives it in iterations. `keep` whole checkpoints stay on disk. Everything else is what to save, by names of your
    choice: anything with `state_dict()` and `load_state_dict()`. The default random generators are saved, too.

        checkpointer = stoker.Checkpointer("checkpoints", model=model, optimizer=optimizer, loader=loader)
        done = checkpointer.restore() or 0
        for batch in ...:
            ...
            optimizer.step()
            checkpointer.step()     # the last line of an iteration
        checkpointer.close()
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        overhead: float = 0.05,
        keep: int = 2,
        every: int | None = None,
        overlap: bool = True,
        on_signals: bool = True,
        **stateful: Any,
    ) -> None:
        if not 0 < overhead < 1:
            raise ConfigError(f"overhead is a fraction between 0 and 1, not {overhead!r}")
        if keep < 1 or (every is not None and every < 1):
            raise ConfigError("keep and every are 1 or more")
        for name, part in stateful.items():
            if not callable(getattr(part, "state_dict", None)) or not callable(getattr(part, "load_state_dict", None)):
                hint = " Use stoker.DataLoader, which can say where it is." if "DataLoader" in type(part).__name__ else ""
                raise ConfigError(f"{name} has no state_dict() and load_state_dict(), so it cannot be saved.{hint}")
        if not stateful:
            raise ConfigError("nothing to save was given: Checkpointer(directory, model=model, optimizer=optimizer, ...)")
        self._stateful = stateful
        self._ranks = ranks_here()
        self._directory = Directory(made(Path(directory).absolute(), self._ranks.node))
        self._pace = CheckpointPace(overhead, fixed=every)
        self._timetable = Timetable(self._pace, self._ranks, stateful.values())
        self._writer = Writer(self._directory.path, keep) if self._ranks.is_writer else None
        self._copier = Copier()
        self._saving = Saving(self._writer, self._copier, overlap=overlap)
        self._updates = UpdateHooks(self._before_update)
        self._owner = os.getpid()
        self._step = 0
        self._is_open = False
        self._is_possible = True
        """Whether a run could go on from the step that was just made."""
        self._late = 0  # steps since it was told to end
        self._is_mode_known = False
        self._costs_seen: tuple[float, float] | None = None
        self._stall_s = self._stalled_s = 0.0
        self._entered = 0.0
        self._was_beside = False
        self._signals = Signals(_SIGNALS if on_signals else ())
        if self._writer is not None:
            self._writer.start()

    # ---- before the loop

    def restore(self) -> int | None:
        """Load the newest whole checkpoint; its step. None only if there is none at all.

        Damaged ones are passed by with a warning, and left as they are. If none of several is whole: CheckpointError.
        """
        self._open()
        found = newest_whole(self._directory, self._ranks, self._saving.damaged)
        if found is None:
            self._refuse_to_begin_beside_others()
            return None
        step = found.manifest.step
        self._go_on_from(step, found.load_into(self._stateful))
        self._step = self._saving.durable = step
        return step

    def _open(self) -> None:
        if self._is_open:
            return
        if self._writer is not None:
            self._writer.wait_ready(self._say_who_writes)
        self._ranks.exchange(None)  # wait until the writer of an earlier run is done, before looking for checkpoints
        self._is_open = True

    def _say_who_writes(self, holder: dict[str, int]) -> None:
        trainer = holder.get("trainer", 0)
        found = process.find(trainer)
        if found is not None and not found.is_dead:
            self.close()
            raise CheckpointError(
                f"{self._directory.path} is in use by another run (process {trainer}): end it, or use another directory"
            )
        warnings.warn(
            f"waiting for process {holder.get('writer')}, which finishes the last checkpoint of a run that has ended",
            stacklevel=4,
        )

    def _refuse_to_begin_beside_others(self) -> None:
        path = self._directory.path
        other = left_elsewhere(path, self._ranks.node)
        if other is not None:
            self.close()
            raise CheckpointError(
                f"there is no checkpoint in {path}, but {other} has some, of a run on another number of nodes: "
                f"move them to {path}, or use another directory"
            )

    def _go_on_from(self, step: int, extra: Any) -> None:
        try:
            if self._ranks.rank < len(extra["generators"]):  # or else there were fewer processes then
                set_generators(extra["generators"][self._ranks.rank])
                for name, state in extra["ranks"][self._ranks.rank].items():
                    self._stateful[name].load_rank_state(state)
            own = {name: extra["policy"][name] for name in ("planned", "budget", "interval", "mode")}
        except (*NONSENSE, RuntimeError) as error:
            raise CheckpointError(f"what was saved beside the states makes no sense ({error!r})") from error
        policy = self._ranks.exchange(own)[0]  # each node has saved its own
        self._timetable.go_on_from(step, policy)
        self._copier.mode = policy["mode"]
        self._is_mode_known = policy["planned"]

    # ---- in the loop

    def step(self, *, milestone: bool = False, take: bool | None = None) -> None:
        """An iteration is done: the last line of the loop's body. Takes a checkpoint if one is due.

        A `milestone` is always taken, and always stays on disk: the end of an epoch, for one. With `take=True` an
        ordinary checkpoint is taken in any case. With `take=False` none is taken: the run could not go on from this
        moment.
        """
        entered = time.perf_counter()
        if not self._is_open:
            self._begin()
        self._step += 1
        self._hear()
        if self._entered:
            self._pace.iterated(entered - self._entered, self._stalled_s, beside=self._was_beside)
        self._entered, self._stalled_s = entered, 0.0
        stop = self._ranks.any_wants_to_stop(self._signals.are_heard)
        self._is_possible = take is not False
        if stop and not self._is_possible and self._ranks.is_alone:
            stop, self._late = self._late >= _LATEST, self._late + 1
        if stop or milestone or take or self._timetable.is_due(self._step):
            self._checkpoint(wait=stop or milestone or bool(take) or self._pace.fixed is not None, kept=milestone)
        elif self._timetable.is_halfway_to_first(self._step):
            self._make_ready()
        self._was_beside = self._saving.step is not None
        spent_s = time.perf_counter() - entered
        self._stalled_s += spent_s
        self._stall_s += spent_s
        if stop:
            self._end_preempted()

    def save_last(self) -> None:
        """Take a checkpoint of the last iteration, which is done, unless there is one of it: no other follows."""
        self._wait_saved()
        if self._is_open and self._saving.durable != self._step:
            self._is_possible = True
            self._checkpoint(wait=True, kept=False)

    def save_instead(self, **stateful: Any) -> None:
        """From the next checkpoint on, save these objects instead."""
        self._stateful = stateful

    def _begin(self) -> None:
        self._open()
        newest = self._directory.names()[:1]
        if newest:
            self.close()
            raise CheckpointError(
                f"{self._directory.path} holds checkpoints already (the newest is {newest[0]}): call restore() before the "
                "first step(), or use another directory"
            )

    def _checkpoint(self, *, wait: bool, kept: bool) -> None:
        if wait:
            self._wait_saved()
        is_busy = self._saving.step is not None or not self._is_possible
        if self._ranks.is_alone:
            if is_busy:
                return  # at the first step after it is written, or that can be gone on from
        elif not self._timetable.agree(self._step, is_busy=is_busy, durable=self._saving.durable or 0):
            return
        self._timetable.taken(self._step)
        self._snapshot(kept=kept)
        if kept:
            self._copier.join()  # the caller may change the weights after this

    def _make_ready(self) -> None:
        """Allocate memory for snapshots, beside the loop."""
        if self._writer is not None:
            with contextlib.suppress(CheckpointError, OSError):  # the first save reports it
                self._copier.make_ready(self._writer.room(gather(self._stateful, {}).lengths))

    def _snapshot(self, *, kept: bool) -> None:
        said = self._ranks.exchange([generators(), self._of_this_rank()])
        if self._writer is None:
            return
        try:
            if not self._writer.is_alive:
                self._writer.wait_ready(self._say_who_writes)
            extra = {
                "generators": [states for states, _ in said],
                "ranks": [own for _, own in said],
                "policy": {**self._timetable.state(), "mode": self._copier.mode},
            }
            later = changed_by_optimizers_only(self._stateful) if self._saving.overlap else set()
            gathered = gather(self._stateful, extra, later=later)
            mapping = self._writer.room(gathered.lengths)
            if self._costs_seen is None and not self._is_mode_known:
                self._profile(gathered, mapping)
        except (CheckpointError, OSError, MemoryError) as error:
            self._saving.failed(str(error))
            if isinstance(error, UnsavableError):
                raise
            return
        prune = None if self._ranks.node is None else self._timetable.committed
        self._saving.begin(self._step, gathered, mapping, kept=kept, prune=prune)

    def _of_this_rank(self) -> dict[str, Any]:
        """The states that differ between ranks, of parts that have such. All other states are saved by the writer only."""
        if self._ranks.is_alone:
            return {}
        return {name: part.rank_state() for name, part in self._stateful.items() if hasattr(part, "rank_state")}

    def _profile(self, gathered: Gathered, mapping: Mapping) -> None:
        """Measure once what a snapshot costs, and decide where it is taken."""
        mapping.populate(0, mapping.length)
        copy_s, clone_s, fits = self._copier.seconds(gathered, mapping)
        choice = choose(copy_s, clone_s, self._pace.iteration_s, self._updates.seconds, fits=fits)
        self._copier.mode = choice.mode
        self._costs_seen = choice.stall_s, copy_s

    def _before_update(self) -> None:
        """Wait, before every optimizer's step, for copies: nothing that is being copied may change."""
        if self._saving.step is None:
            return
        began = time.perf_counter()
        self._copier.wait()
        waited_s = time.perf_counter() - began
        self._stalled_s += waited_s
        self._stall_s += waited_s

    def _hear(self, *, wait: bool = False) -> None:
        """Note whether the checkpoint under way was saved, has failed or was torn."""
        outcome = self._saving.hear(wait=wait)
        if outcome == TORN:
            self._timetable.torn()
        elif outcome == SAVED and not self._timetable.is_planned:
            stall_s, copy_s = self._costs_seen or (0.0, 0.0)
            self._timetable.plan(Costs(max(self._pace.iteration_s, 1e-9), stall_s, copy_s + self._saving.persist_s))

    def _wait_saved(self) -> None:
        while self._saving.step is not None and self._writer is not None:
            self._hear(wait=True)

    # ---- the end

    def _end_preempted(self) -> None:
        self._wait_saved()
        may_try = self._ranks.is_alone and self._is_possible
        if self._writer is not None and may_try and self._saving.durable != self._step:
            self._snapshot(kept=False)  # one more attempt: the loop has ended
            self._wait_saved()
        is_saved = self._writer is None or self._saving.durable == self._step
        self._ranks.exchange(None)  # when one process ends, launchers end the others
        self._ranks.part()
        self._signals.take_over()  # a launcher's signal must not kill this process before it has exited
        self.close()
        sys.exit(PREEMPTED if is_saved else 1)

    @property
    def is_alone(self) -> bool:
        """Whether this process is the only one of its run."""
        return self._ranks.is_alone

    def stats(self) -> CheckpointStats:
        """What checkpoints have cost so far."""
        pace = self._pace
        return CheckpointStats(
            pace.interval,
            self._copier.mode,
            self._saving.checkpoints,
            self._stall_s,
            self._saving.persist_s,
            pace.overhead,
            self._saving.durable,
            self._saving.failures,
        )

    def close(self) -> None:
        """Wait for the checkpoint in flight, end the writer, and free all memory."""
        if self._owner != os.getpid():
            return
        self._wait_saved()
        self._copier.close()
        self._updates.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._signals.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
