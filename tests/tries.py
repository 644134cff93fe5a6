"""What depends on the time that a shared machine gives is tried several times: once is enough to show that it can be."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

HANG_S = 120.0
"""A wait that is longer than this does not end."""


def fastest(act: Callable[[], float], limit_s: float, tries: int = 5) -> float:
    """The shortest time that `act` tells of, in as many tries as it takes to stay below a limit."""
    shortest = act()
    for _ in range(tries - 1):
        if shortest < limit_s:
            break
        shortest = min(shortest, act())
    return shortest


def seconds(act: Callable[[], object]) -> float:
    """How long something takes."""
    began = time.monotonic()
    act()
    return time.monotonic() - began


def in_some_try(check: Callable[[], T], tries: int = 3) -> T:
    """What `check` returns, in one of so many tries."""
    for _ in range(tries - 1):
        try:
            return check()
        except AssertionError:
            continue
    return check()


def until(is_so: Callable[[], object], limit_s: float = HANG_S) -> None:
    """Wait for something that is bound to come."""
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.002)
