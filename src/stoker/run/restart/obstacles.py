"""Whether a restarted script could go on from a moment. Only then a checkpoint may be taken."""

import threading
from types import FrameType

from stoker.run.restart.followed import Followed
from stoker.run.restart.loaders import Loaders
from stoker.run.restart.lookahead import TOO_FEW, WINDOW
from stoker.run.restart.loops import Surveyor, innermost, is_one_loop
from stoker.run.restart.updates import Updates
from stoker.run.restart.words import say_refused

OTHER_THREAD = "batches are asked for in another thread than the one that makes updates"
DRAWN = "a batch is read ahead when random numbers have been drawn since the last update, perhaps for the next one"


class Obstacles:
    """Judges every moment, and tells the user once if no checkpoint is possible."""

    def __init__(self, loaders: Loaders, updates: Updates, surveyor: Surveyor) -> None:
        self._loaders, self._updates, self._surveyor = loaders, updates, surveyor
        self.refused = ""
        """Why there are no checkpoints, if that was said."""
        self._in_a_row = 0
        self._no_way = ""
        self._judged: tuple[int, bool] | None = None
        """The epoch for which it is known whether there is a way back to its loops."""

    def are_any(self, followed: Followed, frame: FrameType) -> bool:
        """Whether an obstacle exists now, when an iteration is over and the next batch is asked for."""
        why = self._found(followed, frame)
        self._in_a_row = self._in_a_row + 1 if why else 0
        if self._in_a_row > WINDOW and why != TOO_FEW and not self.refused:
            self.refused = why
            say_refused(why)
        return bool(why)

    def _found(self, followed: Followed, frame: FrameType) -> str:
        if threading.get_ident() != self._updates.thread:
            return OTHER_THREAD
        if why := self._loaders.obstacle():
            return why
        if self._loaders.may_be_ahead and self._updates.were_numbers_drawn:
            return DRAWN
        if self._judged != (followed.number, followed.is_endless):
            self._judged = followed.number, followed.is_endless
            self._no_way = self._surveyor.survey(frame).unknown
            if self._no_way and not followed.is_endless and is_one_loop(followed.begun_in, innermost(frame)):
                self._no_way = ""  # its epochs can be passed
        return self._no_way
