"""The states of a group's batches and members, and how those of members change. `rules` has the diagrams.

States are plain numbers, because a group's table keeps plain values. A change that no table here has is refused.
"""

CLAIMED, WANTS_ROOM, FILLING, READY = range(4)
"""States of a batch."""
FRESH, RESTING, READING, WAITING, COPYING = range(5)
"""Phases of a member: what it is doing."""
AWAITED, PASSED_BY, LEAVING = range(3)
"""Standings of a member: whether the others wait for it."""

BATCH_NAMES = "CLAIMED", "WANTS_ROOM", "FILLING", "READY"
PHASE_NAMES = "FRESH", "RESTING", "READING", "WAITING", "COPYING"
STANDING_NAMES = "AWAITED", "PASSED_BY", "LEAVING"

PHASES = {
    "begin": {FRESH: READING, RESTING: READING},
    "start_waiting": {READING: WAITING, WAITING: WAITING},
    "stop_waiting": {WAITING: READING},
    "start_copying": {READING: COPYING, WAITING: COPYING, COPYING: COPYING},  # again, if the copy was interrupted
    "finish_copying": {COPYING: READING},
    "finish_epoch": {READING: RESTING, WAITING: RESTING},
    "rest": {READING: RESTING, WAITING: RESTING, COPYING: RESTING},
    "restore": {FRESH: RESTING, RESTING: RESTING, READING: RESTING, WAITING: RESTING, COPYING: RESTING},
}
"""By what happens to a member, its phase before and after."""

STANDINGS = {
    "pass_by": {AWAITED: PASSED_BY},
    "catch_up": {PASSED_BY: AWAITED},
    "retire": {AWAITED: LEAVING, PASSED_BY: LEAVING, LEAVING: LEAVING},
}
"""By what happens to a member, its standing before and after."""


class IllegalChange(RuntimeError):  # noqa: N818
    """This event cannot happen to a member in this state: the caller has a bug."""


def next_phase(phase: int, event: str) -> int:
    """The phase of a member after an event."""
    after = PHASES[event].get(phase)
    if after is None:
        raise IllegalChange(f"{event}: a member cannot while it is {PHASE_NAMES[phase]}")
    return after


def next_standing(standing: int, event: str) -> int:
    """The standing of a member after an event."""
    after = STANDINGS[event].get(standing)
    if after is None:
        raise IllegalChange(f"{event}: a member cannot while it is {STANDING_NAMES[standing]}")
    return after
