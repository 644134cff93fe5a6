"""Batches that the device decodes ahead of the loop. Each comes in its turn, and so does an error in the place of one."""

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from stoker.feed.finishing import Decoding

AHEAD = 2
"""How many batches are decoded while the loop has one: as many as the device's decoders do at a time."""


class _Item(NamedTuple):
    batch: Any
    samples: int
    error: Exception | None
    is_due: bool


class Coming:
    """What an iterator has obtained and not handed out yet."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        """How many batches are decoded while the loop has one."""
        self._items: deque[_Item] = deque()

    def take(self, iterator: Any, obtain: Callable[[], Any]) -> Any:
        """The next batch. The one after it is obtained before this is waited for, so that it is decoded beside the loop."""
        items = self._items
        while len(items) <= self._ahead and not (items and items[-1].error is not None):
            iterator._arrived = 0
            try:
                items.append(_Item(obtain(), iterator._arrived, None, False))
            except Exception as error:  # StopIteration among them
                items.append(_Item(None, iterator._arrived, error, iterator._is_due))
        item = items.popleft()
        iterator._arrived, iterator._is_due = item.samples, item.is_due
        if (failure := item.error) is not None:
            del item
            try:
                raise failure
            finally:
                del failure  # or error and frame would keep each other, and what is being decoded
        if type(item.batch) is not Decoding:
            return item.batch
        batch = item.batch.result()
        iterator._meter.decoded_on_device += item.batch.decoded
        return batch
