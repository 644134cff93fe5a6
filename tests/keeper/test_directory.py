"""Who holds what, as others have told."""

import random

import numpy as np

from stoker.keeper import directory
from stoker.keeper.directory import Holders, numbers_of


def names(*numbers: int) -> list[bytes]:
    return [number.to_bytes(8, "big") + bytes(8) for number in numbers]


def test_what_is_told_is_known_until_it_goes() -> None:
    known = Holders(2)
    known.replace(0, names(5, 3, 9))
    known.told(1, names(3, 4), [])
    assert known.holders(names(3)[0]) == [0, 1]
    assert known.holders(names(4)[0]) == [1]
    known.told(0, names(4), names(3))
    assert [known.holders(name) for name in names(3, 4, 9, 8)] == [[1], [0, 1], [0], []]
    known.forget(0)
    assert known.holders(names(9)[0]) == []
    assert (known.count(0), known.count(1)) == (0, 2)


def test_it_agrees_with_a_set_whatever_is_told(monkeypatch) -> None:
    monkeypatch.setattr(directory, "_LATEST", 16)
    chance = random.Random(4)
    known, truth = Holders(1), set()
    for _ in range(400):
        held, gone = ([chance.randrange(300) for _ in range(chance.randrange(4))] for _ in range(2))
        known.told(0, names(*held), names(*gone))
        truth = (truth | set(held)) - set(gone)
        asked = chance.randrange(300)
        assert bool(known.holders(names(asked)[0])) == (asked in truth)
        assert known.count(0) == len(truth)


def test_all_is_held_somewhere() -> None:
    known = Holders(2)
    known.replace(0, names(1, 2))
    known.told(1, names(3), [])
    wanted = numbers_of(names(1, 2, 3, 4))
    assert not known.covers(np.empty(0, np.uint64), wanted)
    assert known.covers(numbers_of(names(4)), wanted)
    assert known.covers(numbers_of(names(4, 7)), wanted[:2])


def test_a_million_items_are_small() -> None:
    known = Holders(1)
    known._hosts[0].replace(np.arange(0, 2_000_000, 2, dtype=np.uint64))
    assert known.holders(names(1_000_000)[0]) == [0]
    assert known.holders(names(1_000_001)[0]) == []
    assert known._hosts[0]._sorted.nbytes == 8_000_000
