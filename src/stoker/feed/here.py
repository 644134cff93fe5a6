"""What a loader has in one process only, and a copy of it elsewhere lacks: iterators, memory, its seat and its record."""

import os
import weakref
from typing import TYPE_CHECKING, Any

from stoker.feed.ahead import Ahead, ahead_of
from stoker.feed.grouped import Membership
from stoker.feed.publishing import publish_loader, role_of
from stoker.feed.refusing import refuse_when_closed
from stoker.memory import PrivateMemory
from stoker.meter import Scalars
from stoker.slots.area import Area
from stoker.slots.inbox import Inbox
from stoker.slots.outbox import Outbox
from stoker.tensor.caching import Caching
from stoker.tensor.leaves import HereCollate

if TYPE_CHECKING:
    from stoker.feed.finishing import Finishing
    from stoker.feed.offloading import Relaying
    from stoker.live.record import Record


class Here:
    """A loader's belongings in this process. Each is made when it is first needed."""

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self.iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        """The iterators that have workers."""
        self.spares: list[Inbox] = []
        """Slots of earlier epochs: their pages need not be made again."""
        self.collate = HereCollate()
        """Torch's `default_collate`, into memory that is used again."""
        self._caching: Caching | None = None
        self._ahead: Ahead | None = None
        self._teller = 0
        self._relaying: Relaying | None = None
        self._member: Membership | None = None
        self._copies: Outbox | None = None
        self._record: Record | None = None
        self._publisher = 0
        self._scalars: Scalars | None = None
        self.finishing: Finishing | None = None
        """What the device does with the batches of this epoch's workers; None if it does nothing."""

    @property
    def caching(self) -> Caching:
        """How this loader's samples are fetched: from storage, or through a cache."""
        if self._caching is None:
            self._caching = Caching(self._loader())
        return self._caching

    @property
    def ahead(self) -> Ahead | None:
        """What this loader tells the keeper of its host; None if it tells nothing."""
        if self._teller != os.getpid():  # a forked child has a line of its own
            self._teller, self._ahead = os.getpid(), ahead_of(self._loader())
            self.caching.staging = None if self._ahead is None else self._ahead.staging
        return self._ahead

    def relay(self, job: str, duty: Any) -> None:
        """See that workers on other hosts can take this loader's works, which have the name of a job."""
        from stoker.feed.offloading import relay_for  # what is not asked for is not loaded

        self._relaying = relay_for(self._loader(), job, duty, self._relaying)

    @property
    def relaying(self) -> "Relaying | None":
        """The relay that this process has started, if any."""
        return self._relaying

    @property
    def member(self) -> Membership:
        """The loader's seat in its group."""
        if self._member is None or not self._member.seat.is_ours:
            self._member = Membership(self._loader())
        return self._member

    @property
    def member_so_far(self) -> Membership | None:
        """The loader's seat, if it has one already."""
        return self._member

    @property
    def copies(self) -> Outbox:
        """Memory for this job's copies of a group's batches, which is used again when nobody looks at a batch any more."""
        if self._copies is None:
            self._copies = Outbox(Area(1, 2, memory=PrivateMemory()), 0)
        return self._copies

    def record(self) -> "Record | None":
        """The record that `stoker top` reads, as an epoch begins; None if this loader does not publish one."""
        if self._publisher != os.getpid():  # a forked child has a record of its own
            self._record, self._publisher = publish_loader(self._loader()), os.getpid()
        if self._record is not None:
            self._record.role(role_of(self._loader()))
        return self._record

    @property
    def scalars(self) -> Scalars:
        """What the loader has done since the last call, as numbers."""
        if self._scalars is None:
            loader: Any = self._loader()
            self._scalars = Scalars([loader._meter])
        return self._scalars

    def close(self) -> None:
        """End all workers, and give all memory back."""
        if self._member is not None:
            self._member.close()
        for iterator in list(self.iterators):
            refuse_when_closed(iterator)
            iterator.close()
        if self._relaying is not None:
            self._relaying.close()
        if self._record is not None:
            self._record.close()
        if self._ahead is not None:
            self._ahead.close()
        if self._caching is not None:
            self._caching.close()
        for inbox in self.spares:
            inbox.close()
