"""The answering side for items: gives what a host's caches hold to those who know the secret."""

from dataclasses import dataclass
from typing import Any

from stoker.wire.channel import Channel
from stoker.wire.conversation import Conversation, Counts
from stoker.wire.items import Items
from stoker.wire.reception import Reception


@dataclass(frozen=True, slots=True)
class ServerStats:
    """What a server has done. `refused` did not show the secret; `broken` did, and then sent something else than frames."""

    guests: int
    waiting: int
    refused: int
    broken: int
    requests: int
    given: int
    absent: int
    sent_bytes: int


class ItemServer(Reception):
    """Serves items at an address. The options are those of `Reception`."""

    def __init__(self, address: tuple[str, int], items: Items, secret: bytes, **options: Any) -> None:
        self._items = items
        self._counts = Counts()
        super().__init__(address, self._give, secret, **options)

    def _give(self, channel: Channel) -> None:
        Conversation(channel, self._items, self._counts).run()

    def stats(self) -> ServerStats:
        """What was done so far."""
        guests = self.counts()
        with self._counts.lock:
            done = self._counts
            return ServerStats(*guests, done.requests, done.given, done.absent, done.sent_bytes)
