"""A restarted script on its way to where it was: what each loader gives meanwhile.

restart arguments    the script goes there by itself: the first epoch that it trains is the place
loops                `returning` begins its loops where they were
passing              else every epoch that was trained before ends after one batch, and so do validations in between.
                     What the script writes meanwhile comes of a model that was hardly trained: `guard` puts it back
"""

import enum
from pathlib import Path
from types import FrameType

from stoker.run.restart.followed import Followed
from stoker.run.restart.guard import Guard
from stoker.run.restart.loops import Surveyor, innermost, is_one_loop
from stoker.run.restart.record import NewestCheckpoint, Position
from stoker.run.restart.returning import Returning
from stoker.run.restart.words import AGAIN, LINES, refuse


class EpochFate(enum.Enum):
    """What happens to an epoch while the script is on its way."""

    GO_ON = "it goes on where it was"
    CUT = "it ends after one batch"
    WHOLE = "it is left alone"


class Comeback:
    """Decides for every epoch that begins before the script is where it was."""

    def __init__(self, directory: Path, found: NewestCheckpoint, surveyor: Surveyor, *, is_told: bool) -> None:
        self.position = found.position
        self._surveyor = surveyor
        self._is_told = is_told
        """Whether the script was told by its arguments where to begin."""
        around = self.position.around
        may_advance = not is_told and not around.unknown
        self._returning = Returning(around, past=self.position.is_past, may_advance=may_advance)
        self._guard = Guard(directory)
        self._is_passing = False
        self.look_around()

    def look_around(self) -> None:
        """Look at modules that were imported since."""
        self._returning.put_names()

    def decide(self, followed: Followed, frame: FrameType) -> EpochFate:
        """Decide on an epoch when its first batch is asked for."""
        self.look_around()
        record = self.position.loaders.get(followed.key)
        was_trained = record is not None and record.first is not None and record.first <= followed.number
        if was_trained and followed.key in self.position.trains and self._is_there(followed, frame):
            return EpochFate.GO_ON
        can_be_cut = is_one_loop(followed.begun_in, innermost(frame))  # else a loader that may have no end
        if was_trained and not can_be_cut:
            refuse(f"the script did not come to where its checkpoint was taken, and cannot be brought there\n{LINES}")
        if was_trained:
            self._is_passing = True
            self._guard.begin_passing()
        return EpochFate.CUT if self._is_passing and can_be_cut else EpochFate.WHOLE

    def updated(self, followed: Followed | None) -> None:
        """An update was made, after a batch of some epoch. Then that epoch is one that the checkpoint knows, and is cut."""
        if followed is not None and followed.left is None:
            loader = f"a loader over {type(followed.loader.dataset).__name__} with {followed.length} batches"
            refuse(
                f"the script trains with {loader}, which its checkpoint does not know: start it with the arguments that "
                "it had, or use another directory"
            )

    def _is_there(self, followed: Followed, frame: FrameType) -> bool:
        here = self._surveyor.survey(frame)
        if self._is_told:
            wanted = self.position.epoch
            now = Position((), 0, {}, (), here).epoch if here.ranges and self.position.around.ranges else wanted
            if now != wanted:
                refuse(f"--restart-args did not bring the script to epoch {wanted}: it is at {now}")
            return True
        if self._returning.is_there(here):
            return True
        number = self.position.loaders[followed.key].epochs + self.position.is_past
        return not self._returning.has_advanced and followed.number == number

    def arrive(self, followed: Followed, frame: FrameType) -> list[str]:
        """The script is back. Returns what to tell. If files could not be put back, end it before it trains over them."""
        self._returning.arrive(frame, self.position.loaders[followed.key].batches)
        if failed := self._guard.put_back():
            refuse("; ".join([*failed, AGAIN]))
        return []

    def give_up(self) -> list[str]:
        """The script has ended on its way. Returns what to tell."""
        self._returning.take_names()
        words = self._guard.put_back()
        place = f"epoch {self.position.epoch}, where its checkpoint is"
        return [*words, f"nothing was restored: the script ended before {place}"]
