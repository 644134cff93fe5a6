"""Checkpoints of a script that knows nothing of them: what can be found is saved, and found again when it is started again.

An iteration ends when the next batch is asked for after an update: by then everything that belongs to it has been done.
A script that is started again makes its objects anew. It is brought to the loops it was in (`comeback`), and there, as it
asks for its first batch, everything is set as it was. So what it did before does not count.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stoker.checkpoint.checkpointer import Checkpointer
from stoker.checkpoint.snapshot import generators, set_generators
from stoker.errors import CheckpointError, StokerError
from stoker.feed.hooks import HOOKS
from stoker.host import ranks
from stoker.run.ending import has_failed, was_interrupted, watch_interrupts
from stoker.run.restart.comeback import Comeback, EpochFate
from stoker.run.restart.contents import read
from stoker.run.restart.followed import Followed
from stoker.run.restart.frameworks import Frameworks
from stoker.run.restart.loaders import Loaders
from stoker.run.restart.loops import Surroundings, Surveyor, innermost
from stoker.run.restart.obstacles import Obstacles
from stoker.run.restart.parts import LivingParts
from stoker.run.restart.record import (
    PART,
    LoaderRecord,
    Position,
    loaders_of_values,
    mark_finished,
    newest,
    without_contents,
)
from stoker.run.restart.source import place_of
from stoker.run.restart.updates import Updates
from stoker.run.restart.words import refuse, say


class Watcher:
    """Follows a script, saves what it finds, and sets it again."""

    def __init__(
        self, directory: str, *, every: int | None, overhead: float | None, command: list[str], is_told: bool
    ) -> None:
        self._directory = Path(directory).absolute()
        self._options: dict[str, Any] = {"every": every, "overhead": overhead or 0.05}
        self._command = command
        self._parts = LivingParts()
        self._loaders = Loaders()
        self._surveyor = Surveyor()
        self._updates = Updates(self._updated)
        self._obstacles = Obstacles(self._loaders, self._updates, self._surveyor)
        self._asked: Followed | None = None
        """The epoch that was asked for a batch last, while the script is on its way back."""
        self._ended: Surroundings | None = None
        """Where the script was when the training loader had no more batches, until it is asked again."""
        self._schedulers: list[Any] = []
        """Those that lived then: a last checkpoint needs them, and the script may let go of them before."""
        self._seen = (0, 0)
        """The number of updates and the versions of all parameters then."""
        self._checkpointer: Checkpointer | None = None
        self._comeback = self._look(is_told)
        self._is_aside = False
        self._frameworks = Frameworks(self._directory, self._options, self._stand_aside)
        watch_interrupts()
        HOOKS.replays = True
        HOOKS.made.append(self._made)
        HOOKS.wrap_iterators(self._iterate)

    def _stand_aside(self) -> None:
        """Stop watching: a framework's callback takes over."""
        self._is_aside = True
        self._comeback = None
        HOOKS.unwrap_iterators(self._iterate)

    def _look(self, is_told: bool) -> Comeback | None:
        """Find where an earlier run was, from its newest whole checkpoint."""
        try:
            found = newest(self._directory)
        except StokerError as error:
            refuse(str(error))
        if found is None:
            return None
        self._loaders.expect(found.position)
        return Comeback(self._directory, found, self._surveyor, is_told=is_told)

    # ---- what happens in the script

    def _made(self, loader: Any) -> None:
        self._loaders.made(loader)
        if self._comeback is not None:
            self._comeback.look_around()

    def _iterate(self, loader: Any, iterate: Callable[[], Any]) -> Any:
        """Stand between a loader and the script's loop."""
        begun_in = innermost(sys._getframe())
        where = "" if begun_in is None else f"{begun_in[0].co_qualname} {place_of(*begun_in)}"
        followed = self._loaders.begin(self, loader, iterate, where)
        followed.begun_in = begun_in
        if self._comeback is None and self._loaders.state_for(followed) is None:
            self._start(followed)
        return followed

    def _start(self, followed: Followed, record: LoaderRecord | None = None) -> None:
        with self._loaders.prepared(followed):
            followed.start(record)
        self._loaders.started(followed, self._updates.backwards)

    def asked(self, followed: Followed) -> None:
        """The next batch of a loader is asked for."""
        if not followed.has_started:
            self._begin(followed)
        if not followed.given and self._comeback is None:
            self._surveyor.survey(sys._getframe())  # what counters are before they count
        followed.was_asked = self._updates.is_asked = True
        self._asked = followed
        if not self._updates.is_over and followed.key in self._loaders.trains:
            self._iteration_over(followed)

    def went_round(self, followed: Followed) -> None:
        """A loader without an end begins its next epoch."""
        self._count_iteration(followed)
        self._loaders.went_round(followed, self._updates.backwards)

    def ended(self, followed: Followed) -> None:
        """A loader has no more batches in this epoch."""
        followed.was_asked = self._updates.is_asked = True
        if self._comeback is not None:
            return
        self._count_iteration(followed)
        self._loaders.ended(followed)
        if followed.key in self._loaders.trains:
            self._ended = self._surveyor.survey(sys._getframe(), at_end=True)
            self._schedulers = self._parts.schedulers()
            self._seen = self._updates.number, self._parts.versions()

    def _count_iteration(self, followed: Followed) -> None:
        """Count the last iteration of an epoch: no request for another batch follows, which would count it."""
        if not self._updates.is_over and followed.key in self._loaders.trains:
            self._loaders.iteration_over(self._updates.backwards)

    def _updated(self) -> None:
        if self._comeback is not None:
            self._comeback.updated(self._asked)
        elif not self._is_aside:
            self._loaders.updated()
            self._updates.notes_draws = self._loaders.may_be_ahead

    # ---- checkpoints

    def _iteration_over(self, followed: Followed) -> None:
        self._updates.is_over, self._ended, self._schedulers = True, None, []
        self._loaders.iteration_over(self._updates.backwards)
        self._step(take=False if self._obstacles.are_any(followed, sys._getframe()) else None)

    def _step(self, *, take: bool | None) -> None:
        try:
            if self._checkpointer is None:
                self._open().restore()  # there is nothing, but it must be asked
            elif self._parts.have_changed:
                self._look_again(self._checkpointer)
            assert self._checkpointer is not None
            self._checkpointer.step(take=take)
        except StokerError as error:
            refuse(str(error))

    def _open(self) -> Checkpointer:
        parts = {**self._parts.found(), PART: _Place(self)}
        self._checkpointer = Checkpointer(self._directory, **self._options, **parts)
        return self._checkpointer

    def _look_again(self, checkpointer: Checkpointer) -> None:
        """Find the parts again: the script has made other objects, or has dropped some."""
        checkpointer.save_instead()
        gc.collect()  # what nobody else holds is gone then
        checkpointer.save_instead(**self._parts.found(), **{PART: _Place(self)})

    def position(self) -> Position:
        """Where the script is."""
        is_past = self._ended is not None
        around = self._ended or self._loaders.set_back(self._surveyor.survey(sys._getframe()))
        records = self._loaders.records(at_end=is_past)
        return Position(tuple(self._command), self._updates.number, records, self._loaders.trains, around, is_past)

    def batches_in_epoch(self) -> int | None:
        """How many batches an epoch of training has, if that is known."""
        return self._loaders.batches_in_epoch()

    # ---- on the way back

    def _begin(self, followed: Followed) -> None:
        """Decide what an epoch gives, when its first batch is asked for."""
        if self._comeback is None:
            self._go_on(followed)
            return
        decision = self._comeback.decide(followed, sys._getframe())
        if decision is EpochFate.GO_ON:
            self._come_back(followed, self._comeback)
        else:
            followed.left = 1 if decision is EpochFate.CUT else None
            self._start(followed)

    def _come_back(self, followed: Followed, comeback: Comeback) -> None:
        """The script is where it was: set everything as it was then."""
        position = comeback.position
        try:
            self._loaders.pending = dict(position.loaders)
            step = self._open().restore()
        except StokerError as error:
            refuse(str(error))
        self._loaders.go_on(position)
        self._updates.number, self._updates.is_over = position.updates, True
        followed.number = position.loaders[followed.key].epochs + position.is_past
        for words in comeback.arrive(followed, sys._getframe()):
            say(words)
        self._comeback = self._asked = None
        self._go_on(followed)
        epoch = "" if position.is_endless else f", in epoch {followed.number}"
        say(f"restored step {step}{epoch}: {self._parts.words()}")

    def _go_on(self, followed: Followed) -> None:
        """An epoch goes on that was interrupted."""
        now, state = generators(), self._loaders.state_for(followed)
        if state is None:
            self._start(followed)
            return
        try:
            followed.loader.load_state_dict(read(state))
        except StokerError as error:
            refuse(str(error))
        self._start(followed, self._loaders.pending[followed.key])
        if state["begun"]:
            set_generators(now)  # what the epoch drew when it began was drawn before

    def expect(self, records: dict[str, LoaderRecord]) -> None:
        """Have loaders go on from these records of this rank when they are first asked for a batch."""
        self._loaders.pending = records

    def check(self, position: Position) -> None:
        """Make sure that a checkpoint is the one that the script was brought to."""
        if self._comeback is not None and position != self._comeback.position:
            raise CheckpointError("checkpoints have changed since the script was started: start it again")

    # ---- the end

    def close(self) -> list[str]:
        """Finish. Returns what to say at the end."""
        self._frameworks.put_back()
        if self._comeback is not None:
            self._give_up(self._comeback)
        if not self._parts.are_any:
            return []  # a launcher, say, which trains nothing
        is_finished = not has_failed() and not was_interrupted()
        if self._checkpointer is not None:
            if is_finished:
                self._take_last(self._checkpointer)
            self._checkpointer.close()
        is_first = not ranks.local_rank()  # which has waited for the checkpoint under way
        if is_finished and is_first and (self._is_aside or self._checkpointer is not None):
            mark_finished(self._directory, self._command)
        return [] if self._is_aside else [f"stoker: {self._last_words()}"]

    def _give_up(self, comeback: Comeback) -> None:
        """Fail even if the exit code is 0: the script has ended before it came back to where it was."""
        words = comeback.give_up()
        if self._parts.are_any and not has_failed():
            for word in words:
                say(word)
            sys.stdout.flush()
            os._exit(1)

    def _last_words(self) -> str:
        if self._checkpointer is None:
            return "no checkpoint was taken: no update between two batches of a loader was seen"
        stats = self._checkpointer.stats()
        if not stats.checkpoints and self._obstacles.refused:
            return f"no checkpoint was taken: {self._obstacles.refused}"
        saved = f"{stats.checkpoints} checkpoints in {self._directory}, the last of step {stats.last_step}"
        return f"{saved}: {self._parts.words()}"

    def _take_last(self, checkpointer: Checkpointer) -> None:
        """A script that comes to its end between epochs leaves a checkpoint of that. Ranks could not agree on it now."""
        if self._ended is None or self._loaders.obstacle() or not checkpointer.is_alone:
            return
        updates, versions = self._seen
        if updates == self._updates.number and versions != self._parts.versions():
            return  # the best weights were loaded for a test, say: the checkpoint before is nearer to the last update
        if not self._updates.is_over:
            self._updates.is_over = True
            self._step(take=True)
            return
        try:  # the length of the epoch is not known, so the request at its end has counted the iteration
            checkpointer.save_last()
        except StokerError as error:
            refuse(str(error))


class _Place:
    """Where the script is, as a part of its checkpoints. It is as long as an epoch, and it is loaded first."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def state_dict(self) -> dict[str, Any]:
        return self._watcher.position().values()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._watcher.check(Position.of_values(without_contents(state)))
        self._watcher.expect(loaders_of_values(state["loaders"]))

    def rank_state(self) -> dict[str, Any]:
        """Loaders draw from generators of their own rank."""
        values: dict[str, Any] = self._watcher.position().values()["loaders"]
        return values

    def load_rank_state(self, state: dict[str, Any]) -> None:
        self._watcher.expect(loaders_of_values(state))

    def __len__(self) -> int:
        return self._watcher.batches_in_epoch() or 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())
