"""A process that makes works of others, as one number in a row of `offers`: its pid, and when it was started."""

from stoker.host import process

_PID_BITS = 22
_PIDS = (1 << _PID_BITS) - 1


def name_of(identity: tuple[int, int]) -> int:
    """A process as a number above 0."""
    pid, started = identity
    return started << _PID_BITS | pid


def pid_of(name: int) -> int:
    """The pid of the process with this name."""
    return int(name & _PIDS)


def is_at_work(name: int) -> bool:
    """Whether the process with this name lives and is not suspended."""
    found = process.find(pid_of(name))
    return found is not None and found.started == name >> _PID_BITS and not found.is_dead and not found.is_stopped
