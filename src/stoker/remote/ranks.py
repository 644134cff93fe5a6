"""The ranks of a job on this host, as the relay sees them: what each offers, and slots for the batches that it is given.

To a rank the relay looks like a worker of another rank (`pool/helping`): it takes works that are offered, and sends each
batch over a socket in memory of its own. There is no torch here.
"""

import socket
from pathlib import Path
from typing import Any

from stoker.host.sockets import check_same_user
from stoker.memory import ByteArray
from stoker.slots.area import Area
from stoker.slots.messages import framed, marshalled
from stoker.slots.offers import OffersSeen, look_for
from stoker.slots.outbox import Outbox

HELLO_VERSION = 1
_SLOTS_AHEAD = 2


class Rank:
    """A rank of the job."""

    def __init__(self, works: OffersSeen) -> None:
        self.works = works
        self.workers = int(works.about["workers"])
        self.address = str(works.about["address"])
        self.has_gone = False
        self.delivered = 0
        """Batches of remote workers that it was given, unless they were left to own workers before."""
        self.credit = 0.0
        """How many works more may go away now."""
        self.highest = 0


class Delivery:
    """One seat's way to one rank: slots, and the socket that tells of them."""

    def __init__(self, rank: Rank) -> None:
        """Make memory for batches, and tell the rank's training process of it. Raises OSError if it has gone."""
        self.rank = rank
        area = Area(1, _SLOTS_AHEAD)
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connection.connect(f"\0{rank.address}")
            check_same_user(self._connection)
            hello = framed(marshalled((HELLO_VERSION, area.prefetch, area.stride, True)))
            socket.send_fds(self._connection, [hello], [area.memory.descriptor])
        except BaseException:
            self._connection.close()
            raise
        self._outbox = Outbox(area, 0)

    def room(self, size: int) -> ByteArray | None:
        """Memory for a batch; None if the rank keeps all slots. `deliver` or `abandon` follows."""
        if not self._outbox.claim():
            return None
        return self._outbox.room(size)[1]

    def abandon(self) -> None:
        """Do not deliver what was received."""
        self._outbox.abandon()

    def deliver(self, number: int, made: tuple[Any, ...], place: int) -> None:
        """Hand the batch over that lies in the memory. `place` is where among the fields its place belongs."""
        where = (0, *self._outbox.announce())
        fields = (*made[:place], where, *made[place + 1 :])
        self._connection.sendall(framed(marshalled((number, *fields))))

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


class Ranks:
    """All ranks of a job on this host. Used by one thread."""

    def __init__(self, folder: Path, job: str) -> None:
        self._folder, self._job = folder, job
        self.there: dict[Path, Rank] = {}

    def look(self) -> None:
        """See which ranks are there now."""
        gone, new = look_for(self._folder, self._job, self.there.keys())
        for path in gone:
            rank = self.there.pop(path)
            rank.has_gone = True
            rank.works.close()
        self.there |= {path: Rank(works) for path, works in new.items()}
