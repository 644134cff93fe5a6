"""Works that ranks offer each other: none is lost, whatever comes between two steps of a process."""

import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.host import process
from stoker.slots.makers import name_of
from stoker.slots.offers import MAY_BE_HELPED, OWN, ROWS, Offers, OffersSeen

CONTENT = b"some work"


@pytest.fixture
def offers(tmp_path: Path) -> Iterator[Offers]:
    made = Offers(tmp_path, {}, MAY_BE_HELPED)
    yield made
    made.close()


class HeldUp:
    """The column of makers in a process that is held up just before it writes there."""

    def __init__(self, column: Any, meanwhile: Callable[[], None]) -> None:
        self._column, self._meanwhile = column, meanwhile

    def __getitem__(self, row: int) -> int:
        return int(self._column[row])

    def __setitem__(self, row: int, maker: int) -> None:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        self._column[row] = maker


STEPS: dict[str, Callable[[OffersSeen], Any]] = {
    "another rank's worker takes it": lambda seen: seen.take(3, name_of(process.own())),
    "an own worker takes it up": lambda seen: seen.take(3, OWN),
    "an own worker begins it": lambda seen: seen.begin(3),
    "an own worker has made it": lambda seen: seen.done(3),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_process_that_is_held_up_does_not_keep_the_next_work_of_a_row(name: str, offers: Offers) -> None:
    offers.offer(3, CONTENT)
    late, own = OffersSeen(offers.path), OffersSeen(offers.path)

    def meanwhile() -> None:
        offers.over(3)
        offers.offer(3 + ROWS, CONTENT)

    late._rows.maker = HeldUp(late._rows.maker, meanwhile)
    assert not STEPS[name](late)
    assert own.begin(3 + ROWS)


@pytest.mark.parametrize("is_offered", [False, True])
def test_a_work_that_waits_is_not_taken_for_one_that_is_over(is_offered: bool, offers: Offers) -> None:
    """More works are under way than there are rows."""
    own = OffersSeen(offers.path)
    if is_offered:
        offers.offer(3, CONTENT)
        offers.offer(3 + ROWS, CONTENT)  # there is no room for it
        offers.over(3)
    else:
        offers.keep(3 + ROWS)
    offers.offer(3 + 2 * ROWS, CONTENT)
    assert own.begin(3 + ROWS)
    assert own.begin(3 + 2 * ROWS)
    for number in (3 + ROWS, 3 + 2 * ROWS):
        offers.over(number)
    offers.offer(3 + 3 * ROWS, CONTENT)
    assert own.waiting() == [3 + 3 * ROWS]


def test_half_a_description_is_not_offered(offers: Offers) -> None:
    """Where a file may not grow any more, the kernel writes what fits, and says how much that was."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (offers.path.stat().st_size - 100, hard))
    try:
        offers.offer(ROWS - 1, bytes(64 << 10))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert OffersSeen(offers.path).waiting() == []
