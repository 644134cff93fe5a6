"""Checkpoints beside a training loop: `step()` after every update, `restore()` before the first.

    PROFILING  -- enough seen -->  WAITING  -- due -->  COPYING  -- all in memory -->  SAVING  -- durable -->  WAITING

The loop is held up no longer than it must be: tensors that only optimizers change are copied while the next forward and
backward run, and a process of its own writes files. A failed save does not end a run; a damaged file is never loaded.
"""

import contextlib
import os
import signal
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from stoker.checkpoint.copying import Copier, Updates
from stoker.checkpoint.files import Damaged, Directory, Manifest
from stoker.checkpoint.frequency import Costs, Pace, choose, profiled_iterations
from stoker.checkpoint.ranks import ranks_here
from stoker.checkpoint.snapshot import (
    Gathered,
    changed_by_optimizers_only,
    check_fits,
    gather,
    generators,
    loading_order,
    set_generators,
    state_of,
)
from stoker.checkpoint.writer import Writer
from stoker.errors import CheckpointError, ConfigError

PREEMPTED = 75
"""The exit code of a run that was told to end and has saved itself: start it again (EX_TEMPFAIL of sysexits.h)."""
_DIED = "the process that writes checkpoints has died; it is started again"
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """What checkpoints have cost so far."""

    interval: int
    """Iterations between two of them, as it is now."""
    mode: str
    """Where snapshots are taken: "cpu" or "gpu"."""
    checkpoints: int
    """How many are on disk by our doing, whole and verified when they were written."""
    stall_s: float
    """How long the loop was held up, in all."""
    persist_s: float
    """How long the last one took to write, beside the loop."""
    overhead: float
    """The fraction by which the last interval was slower than it would have been."""
    last_step: int | None
    """The step of the newest one on disk."""
    failures: int
    """How many could not be written."""


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
        self._directory = Directory(_made(Path(directory).absolute(), self._ranks.node))
        self._overlap = overlap
        self._pace = Pace(overhead, fixed=every)
        self._profiled = max(self._ranks.exchange(profiled_iterations(_batches(stateful.values()))))
        self._writer = Writer(self._directory.path, keep) if self._ranks.is_writer else None
        self._copier = Copier()
        self._updates = Updates(self._before_update)
        self._owner = os.getpid()

        self._step = 0
        self._last_snapshot = 0
        self._is_planned = every is not None
        self._is_open = False
        self._next_due: int | None = None
        self._retry = False
        self._is_mode_known = False
        self._saving: int | None = None
        self._copy_failed: Exception | None = None
        self._costs_seen: tuple[float, float] | None = None
        self._durable: int | None = None
        self._committed = 0
        self._checkpoints = self._failures = 0
        self._stall_s = self._persist_s = 0.0
        self._entered = 0.0
        self._stalled_s = 0.0
        self._was_beside = False
        self._told: set[str] = set()
        self._damaged: list[str] = []
        self._stop = False
        self._previous: dict[int, Any] = {}
        if on_signals and threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._on_signal)
        if self._writer is not None:
            self._writer.start()

    # ---- before the loop

    def restore(self) -> int | None:
        """Load the newest whole checkpoint; its step. None only if there is none at all.

        Damaged ones are passed by with a warning, and left as they are. If none of several is whole: CheckpointError.
        """
        self._open()
        names = self._directory.names()
        verified: dict[int, str] = {}
        loaded: tuple[int, Manifest, list[bytearray]] | None = None
        for name in names:
            try:
                if loaded is None:
                    manifest, contents = self._directory.load(name)
                else:
                    manifest = self._directory.verify(name)
            except Damaged as damage:
                self._damaged.append(name)
                warnings.warn(f"a damaged checkpoint was passed by and left as it is: {name}: {damage}", stacklevel=2)
                continue
            except CheckpointError as error:
                raise CheckpointError(f"{self._directory.path / name}: {error}") from error
            verified.setdefault(manifest.step, name)
            if loaded is None:
                loaded = manifest.step, manifest, contents
            if self._ranks.is_alone:
                break  # nobody else has to agree
        agreed = self._agree(list(verified), bool(names))
        if agreed is None:
            self._refuse_to_begin_beside_others()
            return None
        assert loaded is not None
        if loaded[0] != agreed:
            manifest, contents = self._directory.load(verified[agreed])
            loaded = agreed, manifest, contents
        self._load(verified[agreed], loaded[1], loaded[2])
        self._step = self._last_snapshot = agreed
        self._durable, self._committed = agreed, agreed
        return agreed

    def _open(self) -> None:
        if self._is_open:
            return
        if self._writer is not None:
            self._writer.wait_ready(self._say_who_writes)
        self._ranks.exchange(None)  # nobody looks for checkpoints while a run before is still writing one
        self._is_open = True

    def _say_who_writes(self, holder: dict[str, int]) -> None:
        trainer = holder.get("trainer", 0)
        if _is_running(trainer):
            self.close()
            raise CheckpointError(
                f"{self._directory.path} is in use by another run (process {trainer}): end it, or use another directory"
            )
        warnings.warn(
            f"waiting for process {holder.get('writer')}, which finishes the last checkpoint of a run that has ended",
            stacklevel=4,
        )

    def _agree(self, steps: list[int], are_some: bool) -> int | None:
        """The newest step that all nodes have whole. None if there is none anywhere, be it damaged."""
        said = self._ranks.exchange([steps, are_some])
        common: set[int] = set.intersection(*(set(theirs) for theirs, _ in said))
        if common:
            return max(common)
        if len(said) > 1 and any(theirs for theirs, _ in said):
            lists = ", ".join(f"rank {rank}: {theirs}" for rank, (theirs, _) in enumerate(said))
            raise CheckpointError(f"no step is whole on all nodes ({lists})")
        if any(there for _, there in said):
            raise CheckpointError(f"none of the checkpoints in {self._directory.path} is whole; the warnings say why")
        return None

    def _refuse_to_begin_beside_others(self) -> None:
        """The checkpoints of a run on another number of nodes lie elsewhere."""
        path = self._directory.path
        home = path if self._ranks.node is None else path.parent
        for other in sorted({home, *home.glob("node-*")} - {path}):
            if Directory(other).names():
                self.close()
                raise CheckpointError(
                    f"there is no checkpoint in {path}, but {other} has some, of a run on another number of nodes: "
                    f"move them to {path}, or use another directory"
                )

    def _load(self, name: str, manifest: Manifest, contents: list[bytearray]) -> None:
        where = f"{self._directory.path / name}"
        states, extra = state_of(manifest.document, contents)
        check_fits(self._stateful, states, where)
        for key in loading_order(self._stateful):
            try:
                self._stateful[key].load_state_dict(states[key])
            except Exception as error:
                raise CheckpointError(f"{where} does not fit this run: {key} refuses its state: {error}") from error
        if self._ranks.rank < len(extra["generators"]):  # or else there were fewer processes then
            set_generators(extra["generators"][self._ranks.rank])
        policy = self._ranks.exchange(extra["policy"])[0]  # each node has saved its own
        if self._pace.fixed is None and policy["planned"] and policy["budget"] == self._pace.budget:
            self._pace.interval = policy["interval"]
            self._is_planned = True
        self._copier.mode = policy["mode"]
        self._is_mode_known = policy["planned"]

    # ---- in the loop

    def step(self, *, milestone: bool = False) -> None:
        """An iteration is done: the last line of the loop's body. Takes a checkpoint if one is due.

        A `milestone` is taken in any case, and stays on disk whatever `keep` says: the end of an epoch, for one.
        """
        entered = time.perf_counter()
        if not self._is_open:
            self._begin()
        self._step += 1
        self._hear()
        if self._entered:
            self._pace.iterated(entered - self._entered, self._stalled_s, beside=self._was_beside)
        self._entered, self._stalled_s = entered, 0.0
        stop = self._ranks.any_wants_to_stop(self._stop)
        if stop or milestone or self._is_due():
            self._checkpoint(wait=stop or milestone or self._pace.fixed is not None, kept=milestone)
        self._was_beside = self._saving is not None
        spent_s = time.perf_counter() - entered
        self._stalled_s += spent_s
        self._stall_s += spent_s
        if stop:
            self._end_preempted()

    def _begin(self) -> None:
        self._open()
        newest = self._directory.names()[:1]
        if newest:
            self.close()
            raise CheckpointError(
                f"{self._directory.path} holds checkpoints already (the newest is {newest[0]}): call restore() before the "
                "first step(), or use another directory"
            )

    def _is_due(self) -> bool:
        if self._next_due is not None:
            return self._step >= self._next_due
        if self._retry:
            return True
        since = self._step - self._last_snapshot
        if not self._is_planned and since == self._profiled // 2:
            self._make_ready()
        return since >= (self._pace.interval if self._is_planned else self._profiled)

    def _checkpoint(self, *, wait: bool, kept: bool) -> None:
        if wait:
            self._wait_saved()
        if self._ranks.is_alone:
            if self._saving is not None:
                return  # at the first step after it is written
        elif not self._agree_to_checkpoint():
            return
        self._pace.close_interval()
        self._last_snapshot = self._step
        self._retry = False
        self._snapshot(kept=kept)
        if kept:
            self._copier.join()  # whoever asked for it may do anything to the weights now

    def _agree_to_checkpoint(self) -> bool:
        """Whether no process is busy still. Everybody knows then when the next one is due, and which one counts."""
        interval = self._pace.interval if self._is_planned else self._profiled
        said = self._ranks.exchange([self._saving is not None, self._ranks.is_writer, self._durable or 0, interval])
        wanted = self._pace.fixed or max(interval for _, is_writer, _, interval in said if is_writer)
        self._committed = min(durable for _, is_writer, durable, _ in said if is_writer)
        is_busy = any(busy for busy, *_ in said)
        self._next_due = self._step + (max(1, wanted // 8) if is_busy else wanted)
        return not is_busy

    def _make_ready(self) -> None:
        """Halfway through the profile, when optimizers have their state: memory for snapshots, beside the loop."""
        if self._writer is not None:
            with contextlib.suppress(CheckpointError, OSError):  # it will be told when it matters
                self._copier.make_ready(self._writer.room(gather(self._stateful, {}).lengths))

    def _snapshot(self, *, kept: bool) -> None:
        states = self._ranks.exchange(generators())
        if self._writer is None:
            return
        try:
            self._open_writer()
            extra = {"generators": states, "policy": self._policy()}
            later = changed_by_optimizers_only(self._stateful) if self._overlap else set()
            gathered = gather(self._stateful, extra, later=later)
            mapping = self._writer.room(gathered.lengths)
            if self._costs_seen is None and not self._is_mode_known:
                self._profile(gathered)
        except (CheckpointError, OSError, MemoryError) as error:
            self._failed(str(error))
            if isinstance(error, CheckpointError) and "cannot be saved" in str(error):
                raise
            return
        step, writer = self._step, self._writer
        prune = None if self._ranks.node is None else self._committed

        def copied(failure: Exception | None) -> None:
            self._copy_failed = failure
            if failure is None and not self._copier.torn:
                try:
                    writer.save(step, gathered.document, gathered.lengths, kept=kept, prune=prune, spared=self._damaged)
                except OSError:
                    self._copy_failed = CheckpointError(_DIED)
                except Exception as error:
                    self._copy_failed = error
            gathered.sources.clear()

        self._saving = step
        self._copier.begin(gathered, mapping, copied, overlap=self._overlap)

    def _open_writer(self) -> None:
        assert self._writer is not None
        if not self._writer.is_alive:
            self._writer.wait_ready(self._say_who_writes)

    def _policy(self) -> dict[str, Any]:
        pace = self._pace
        return {"planned": self._is_planned, "interval": pace.interval, "budget": pace.budget, "mode": self._copier.mode}

    def _profile(self, gathered: Gathered) -> None:
        """Measure once what a snapshot costs, and decide where it is taken."""
        assert self._writer is not None
        mapping = self._writer.room(gathered.lengths)
        mapping.populate(0, mapping.length)
        copy_s, clone_s, fits = self._copier.seconds(gathered, mapping)
        choice = choose(copy_s, clone_s, self._pace.iteration_s, self._updates.seconds, fits=fits)
        self._copier.mode = choice.mode
        self._costs_seen = choice.stall_s, copy_s

    def _before_update(self) -> None:
        """Before every optimizer's step: nothing that is being copied may change."""
        if self._saving is None:
            return
        began = time.perf_counter()
        self._copier.wait()
        waited_s = time.perf_counter() - began
        self._stalled_s += waited_s
        self._stall_s += waited_s

    # ---- what has become of it

    def _hear(self, *, wait: bool = False) -> None:
        """Take note of what the writing process reports."""
        if self._saving is None or self._writer is None:
            return
        if wait:
            self._copier.join()
        if self._copier.is_busy:
            return
        if self._copier.torn or self._copy_failed is not None:
            self._retake()
            return
        report = self._writer.report(wait=wait)
        if report is None:
            if not self._writer.is_alive:
                self._failed(_DIED)
            return
        if "failed" in report:
            self._failed(report["why"])
            return
        if "saved" not in report:
            return
        self._durable, self._saving = report["saved"], None
        self._checkpoints += 1
        self._persist_s = report["seconds"]
        self._told.discard("failed")
        if not self._is_planned:
            self._is_planned = True
            stall_s, copy_s = self._costs_seen or (0.0, 0.0)
            self._pace.plan(Costs(max(self._pace.iteration_s, 1e-9), stall_s, copy_s + self._persist_s))

    def _retake(self) -> None:
        """The snapshot was not of one moment: it is dropped, and the next is copied while the loop waits."""
        torn, failure = self._copier.torn, self._copy_failed
        self._saving, self._copier.torn, self._copy_failed = None, False, None
        if torn:
            self._overlap = False
            self._retry = self._next_due is None
            self._tell(
                "torn",
                "a parameter was changed by something other than an optimizer's step() while it was being copied, so that "
                "snapshot was dropped. From now on snapshots are copied while the loop waits (overlap=False).",
            )
        else:
            self._failed(str(failure))

    def _failed(self, why: str) -> None:
        self._saving = None
        self._failures += 1
        good = f"the one of step {self._durable} stays" if self._durable else "none is on disk yet"
        self._tell(
            "failed", f"a checkpoint could not be written: {why}. Training goes on, {good}, and the next will be tried."
        )

    def _tell(self, topic: str, words: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            warnings.warn(words, stacklevel=4)

    def _wait_saved(self) -> None:
        while self._saving is not None and self._writer is not None:
            self._hear(wait=True)

    # ---- the end

    def _on_signal(self, number: int, frame: Any) -> None:
        previous = self._previous.get(number)
        if os.getpid() != self._owner:  # a fork: as it would be without us
            signal.signal(number, previous if previous is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._stop = True
        if callable(previous):
            previous(number, frame)

    def _end_preempted(self) -> None:
        self._wait_saved()
        if self._writer is not None and self._ranks.is_alone and self._durable != self._step:
            self._snapshot(kept=False)  # the loop stands still: once more
            self._wait_saved()
        is_saved = self._writer is None or self._durable == self._step
        self._ranks.exchange(None)  # when one process ends, launchers end the others
        self._ranks.part()
        self._previous.clear()  # a launcher's signal shall not end this process on its way out
        self.close()
        raise SystemExit(PREEMPTED if is_saved else 1)

    def stats(self) -> CheckpointStats:
        """What checkpoints have cost so far."""
        pace = self._pace
        return CheckpointStats(
            pace.interval,
            self._copier.mode,
            self._checkpoints,
            self._stall_s,
            self._persist_s,
            pace.overhead,
            self._durable,
            self._failures,
        )

    def close(self) -> None:
        """Wait for the one in flight, and let go of everything."""
        if self._owner != os.getpid():
            return
        self._wait_saved()
        self._copier.close()
        self._updates.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for number, previous in self._previous.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, previous if previous is not None else signal.SIG_DFL)
        self._previous = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _made(path: Path, node: int | None) -> Path:
    path = path if node is None else path / f"node-{node}"
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"{path} is a file, and checkpoints need a directory") from None
    return path


def _batches(parts: Any) -> int | None:
    """How many iterations an epoch has, if a loader among the parts can tell."""
    for part in parts:
        if hasattr(part, "__iter__") and hasattr(part, "__len__"):
            try:
                return len(part)
            except TypeError:
                continue
    return None


def _is_running(pid: int) -> bool:
    try:
        return pid > 0 and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False
