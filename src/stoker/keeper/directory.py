"""Which items other hosts hold, as far as they have told. Pure; it need not be right: a wrong entry costs one question.

An item is known by the first 8 bytes of its name, so a million items of a host take 8 MB. What was told since the last
exchange of everything lies beside the sorted names, and is merged with them when it has grown.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint64]

NUMBER_BYTES = 8
_LATEST = 4096
"""So many names may lie beside the sorted ones."""


def numbers_of(names: Iterable[bytes]) -> Numbers:
    """The numbers of names, sorted, each once."""
    joined = b"".join(name[:NUMBER_BYTES] for name in names)
    return np.unique(np.frombuffer(joined, ">u8").astype(np.uint64))


class Holdings:
    """What one host holds."""

    def __init__(self) -> None:
        self._sorted: Numbers = np.empty(0, np.uint64)
        self._added: set[int] = set()
        self._gone: set[int] = set()

    def __len__(self) -> int:
        return len(self._sorted) + len(self._added) - len(self._gone)

    def __contains__(self, number: int) -> bool:
        if number in self._added:
            return True
        if number in self._gone or not len(self._sorted):
            return False
        place = int(np.searchsorted(self._sorted, np.uint64(number)))
        return place < len(self._sorted) and int(self._sorted[place]) == number

    def replace(self, numbers: Numbers) -> None:
        """Everything that is held, sorted."""
        self._sorted = numbers
        self._added, self._gone = set(), set()

    def add(self, number: int) -> None:
        """It holds one more."""
        if number in self._gone:
            self._gone.discard(number)
        elif number not in self:
            self._added.add(number)
            self._tidy()

    def remove(self, number: int) -> None:
        """It does not hold one, after all."""
        if number in self:
            if number in self._added:
                self._added.discard(number)
            else:
                self._gone.add(number)
            self._tidy()

    def numbers(self) -> Numbers:
        """Everything that is held, sorted."""
        if self._added or self._gone:
            self._merge()
        return self._sorted

    def _tidy(self) -> None:
        if len(self._added) + len(self._gone) > _LATEST + len(self._sorted) // 16:
            self._merge()

    def _merge(self) -> None:
        gone, added = (np.array(sorted(numbers), np.uint64) for numbers in (self._gone, self._added))
        self.replace(np.union1d(np.setdiff1d(self._sorted, gone, assume_unique=True), added))


class Holders:
    """What every other host holds. Hosts are numbered."""

    def __init__(self, hosts: int) -> None:
        self._hosts = [Holdings() for _ in range(hosts)]

    def add_host(self) -> None:
        """There is another host, of which nothing is known yet."""
        self._hosts.append(Holdings())

    def holders(self, name: bytes) -> list[int]:
        """The hosts that should have an item."""
        number = int.from_bytes(name[:NUMBER_BYTES], "big")
        return [host for host, holdings in enumerate(self._hosts) if number in holdings]

    def replace(self, host: int, names: Iterable[bytes]) -> None:
        """A host has told everything that it holds."""
        self._hosts[host].replace(numbers_of(names))

    def told(self, host: int, held: Sequence[bytes], gone: Sequence[bytes]) -> None:
        """A host holds more, and something has gone there."""
        for name in held:
            self._hosts[host].add(int.from_bytes(name[:NUMBER_BYTES], "big"))
        for name in gone:
            self._hosts[host].remove(int.from_bytes(name[:NUMBER_BYTES], "big"))

    def forget(self, host: int) -> None:
        """A host has started again: what it held is not known any more."""
        self._hosts[host].replace(np.empty(0, np.uint64))

    def count(self, host: int) -> int:
        """How many items a host holds."""
        return len(self._hosts[host])

    def covers(self, own: Numbers, wanted: Numbers) -> bool:
        """Whether all wanted items are held, here or elsewhere."""
        held = [own, *(holdings.numbers() for holdings in self._hosts)]
        return not len(np.setdiff1d(wanted, np.unique(np.concatenate(held)), assume_unique=True))
