"""How many batches updates have used: counted for loops of every kind, without any training."""

from collections.abc import Iterable, Iterator

import pytest

from stoker.run.restart.lookahead import IRREGULAR, SHORT_FIRST_GROUP, TOO_FEW, WINDOW, Lookahead


class Loop:
    """A loop that trains nothing, and knows itself which batches it has used."""

    def __init__(self) -> None:
        self.counts = Lookahead()
        self.backwards = 0
        self.given = self.used = 0
        """Batches of this epoch."""
        self.has_updated = False
        self.errors: list[int | None] = []
        """At each request that follows an update, by how much the count is wrong. None if it cannot be told."""

    def batches(self, number: int) -> Iterator[int]:
        self.counts.begin(self.backwards)
        self.given = self.used = 0
        for batch in range(number):
            if self.has_updated:
                ahead = self.counts.ahead
                self.errors.append(None if ahead is None else self.given - ahead - self.used)
            self.has_updated = False
            self.given += 1
            yield batch
        self.counts.end(number)

    def use(self, backwards: int = 1) -> None:
        self.used += 1
        self.backwards += backwards

    def update(self) -> None:
        self.counts.updated(self.given, self.backwards)
        self.has_updated = True


def ahead_of(batches: Iterable[int], number: int) -> Iterator[int]:
    """A prefetcher that holds so many batches."""
    held: list[int] = []
    for batch in batches:
        held.append(batch)
        if len(held) > number:
            yield held.pop(0)
    yield from held


@pytest.mark.parametrize("ahead", [0, 1, 2, 5])
@pytest.mark.parametrize("accumulated", [1, 2, 4])
@pytest.mark.parametrize("remainder", [0, 1])
def test_what_updates_have_used(ahead: int, accumulated: int, remainder: int) -> None:
    """`(step + 1) % n == 0` or `step % n == 0`, and the last group of an epoch is shorter."""
    loop = Loop()
    for _ in range(3):
        for index, _ in enumerate(ahead_of(loop.batches(41), ahead), start=remainder):
            loop.use()
            if (index + 1) % accumulated == 0 or index == 40 + remainder:
                loop.update()
    assert len(loop.errors) > 25
    assert set(loop.errors[2:]) == {0}, loop.errors
    assert set(loop.errors[:2]) == {None}


def test_batches_that_are_fetched_in_groups() -> None:
    """HF Trainer takes the batches of an accumulation at once, from a loader that is one ahead."""
    loop = Loop()
    for _ in range(2):
        source = ahead_of(loop.batches(40), 1)
        for _ in range(20):
            for _ in [next(source), next(source)]:
                loop.use()
            loop.update()
        next(source, None)
    assert set(loop.errors[2:]) == {0}


def test_several_backward_passes_for_a_batch() -> None:
    loop = Loop()
    for _ in ahead_of(loop.batches(40), 1):
        loop.use(backwards=3)
        loop.update()
    assert set(loop.errors[2:]) == {0}


def test_without_backward_passes_updates_are_counted() -> None:
    loop = Loop()
    for _ in ahead_of(loop.batches(40), 1):
        loop.use(backwards=0)
        loop.update()
    assert set(loop.errors[2:]) == {0}


def test_a_short_first_group_needs_backward_passes() -> None:
    loop = Loop()
    for index, _ in enumerate(ahead_of(loop.batches(40), 1)):
        if index % 4 == 0:
            loop.update()
    assert loop.counts.ahead is None
    assert loop.counts.why == SHORT_FIRST_GROUP


def test_a_gradient_that_is_thrown_away_is_used() -> None:
    loop = Loop()
    for index, _ in enumerate(ahead_of(loop.batches(60), 1)):
        loop.use()
        if index % 7:
            loop.update()
    assert set(loop.errors[2:]) == {0}


def test_a_dropped_batch_ends_positions_until_the_next_epoch() -> None:
    loop = Loop()
    for number in range(2):
        for index, _ in enumerate(loop.batches(60)):
            if number == 0 and index == 30:
                continue  # nobody can tell this from a batch that is held
            loop.use()
            loop.update()
    first, second = loop.errors[:58], loop.errors[58:]
    assert set(first[2:30]) == {0}
    assert set(first[30:]) == {None}
    assert second[0] == 0  # at the start of an epoch there is nothing to count
    assert set(second[WINDOW + 2 :]) == {0}


def test_irregular_loops_have_no_position() -> None:
    loop = Loop()
    for index, _ in enumerate(loop.batches(60)):
        if index % 5 < 3 or index % 7 == 0:
            loop.update()
    assert loop.counts.ahead is None
    assert loop.counts.why == IRREGULAR


def test_a_prefetcher_that_reads_on_into_the_next_epoch() -> None:
    loop = Loop()

    def cycle() -> Iterator[int]:
        while True:
            yield from loop.batches(10)

    source = ahead_of(cycle(), 1)
    for number in range(35):
        next(source)
        loop.backwards += 1
        loop.used = (number + 1) % 10
        loop.update()
    # None where a batch of the last epoch is held when the new one begins: there a position would lose it.
    assert loop.errors[2:] == [None if number % 10 == 9 else 0 for number in range(3, 35)][: len(loop.errors) - 2]


def test_a_new_epoch_needs_no_proof() -> None:
    """`next(iter(loader))` for every step."""
    loop = Loop()
    for _ in range(5):
        next(loop.batches(10))
        loop.use()
        loop.update()
    assert set(loop.errors) == {0}
    assert loop.counts.why == TOO_FEW
