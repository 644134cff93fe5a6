"""Reading pieces of objects, ahead of their use where that is told. What is asked of each process is its own.

A piece that was begun ahead is asked for once, and dropped if it is not asked for in time: at most so many are held.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from stoker.source.getting import Getter, getter
from stoker.source.pieces import Answer, Piece
from stoker.source.process import PerProcess
from stoker.source.reading import retried

EXPECTED = 256
EXPECTED_BYTES = 64 << 20


class Reader:
    """Reads pieces. Travels to other processes, which begin on their own."""

    def __init__(self) -> None:
        self._ahead = PerProcess(_Ahead)

    def read(self, pieces: Sequence[Piece]) -> list[Answer]:
        """What came of each, in their order; all are under way at once, as far as the getter goes."""
        return retried(partial(self._ahead.get().read, pieces), f"{pieces[0].store}/{pieces[0].key}") if pieces else []

    def expect(self, pieces: Iterable[tuple[Piece, int]]) -> None:
        """Begin with pieces of these sizes: the first 256 of them, and 64 MiB."""
        ahead, left = self._ahead.get(), EXPECTED_BYTES
        for count, (piece, size) in enumerate(pieces):
            left -= size
            if count == EXPECTED or left < 0:
                break
            ahead.begin(piece)


class _Ahead:
    """The pieces that one process has begun with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: OrderedDict[Piece, tuple[Getter, Any]] = OrderedDict()

    def begin(self, piece: Piece) -> None:
        source = getter()
        with self._lock:
            if piece in self._begun:
                return
            self._begun[piece] = source, source.begin(piece)
            while len(self._begun) > 2 * EXPECTED:
                _, (late, order) = self._begun.popitem(last=False)
                late.drop(order)

    def read(self, pieces: Sequence[Piece]) -> list[Answer]:
        source = getter()
        with self._lock:
            orders = {}
            for piece in pieces:
                if piece not in orders:
                    begun = self._begun.pop(piece, None)
                    orders[piece] = begun if begun and not begun[0].is_lost else (source, source.begin(piece))
        answers: dict[Piece, Answer] = {}
        try:
            for piece, (whose, order) in orders.items():
                answers[piece] = whose.finish(order)
        finally:
            for piece in orders.keys() - answers.keys():
                whose, order = orders[piece]
                whose.drop(order)
        return [answers[piece] for piece in pieces]
