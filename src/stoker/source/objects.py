"""Objects of a store as samples: those below a folder, those that match a pattern, or those of a list.

What counts is the listing that was made when the source was opened: an object is asked for in the version that it had
(If-Match). One that has changed since is read as it is now, under its new version, with one warning; one that is gone is an
error. Nothing is asked of the store before that is needed, and no process but a loader's worker talks to it (`getting`).
"""

import hashlib
import os
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.memory import Bytes
from stoker.source.addresses import Address, folder_of, has_magic, matching, parse
from stoker.source.files import file_key
from stoker.source.listings import Listing, check, in_classes, listed, looked_up
from stoker.source.paths import common_folder
from stoker.source.pieces import Answer, Outcome, Piece
from stoker.source.reader import Reader
from stoker.source.reading import checked


class Objects:
    """Objects by number: `s3://bucket/folder/`, a pattern, or a list of addresses in one store.

    Sub-folders of a folder are classes, as for files. A list keeps its order, and each object of it is looked up now.
    """

    def __init__(self, where: str | Sequence[str]) -> None:
        self.labels: NDArray[np.int64] | None = None
        self.classes: list[str] | None = None
        self._listing = _of_list(where) if not isinstance(where, str) else _of_address(parse(where))
        if isinstance(where, str) and not has_magic(where):
            self._listing, classes = in_classes(self._listing)
            if classes:
                self.classes = [each.name for each in classes]
                self.labels = np.repeat(np.arange(len(classes)), [each.objects for each in classes])
        folder = os.fsdecode(self._listing.paths.folder)
        self.name = str(Address(self._listing.store, folder)).rstrip("/")
        self._reader = Reader()
        self._newer: dict[int, tuple[str, int]] = {}
        self.warns_of_changes = True
        """Whether who reads a changed object gets it as it is now, and is to be told so, once."""

    def __len__(self) -> int:
        return len(self._listing)

    def address(self, number: int) -> str:
        """The address of an object."""
        checked((number,), len(self))
        return self._address(number)

    def sizes(self, ids: Sequence[int]) -> list[int]:
        """From the listing. Where that has none, the store is asked once."""
        checked(ids, len(self))
        unknown = [number for number in dict.fromkeys(ids) if self._size(number) < 0]
        addresses = [Address(self._listing.store, self._listing.paths[number]) for number in unknown]
        for number, found in zip(unknown, looked_up(addresses), strict=True):
            self._newer[number] = self._etag(number), found.size
        return [self._size(number) for number in ids]

    def key(self, number: int) -> bytes:
        """From the address."""
        return file_key(self.address(number))

    def version(self, number: int) -> bytes:
        """What the store calls the version that was listed, or was read since. The store is not asked."""
        checked((number,), len(self))
        etag = self._etag(number)
        known = f"{etag} {self._size(number)}" if etag else f"list {self._listing.version}"
        return hashlib.blake2b(known.encode(), digest_size=32).digest()

    def read(self, ids: Sequence[int]) -> list[Bytes]:
        """The whole objects, 64 at once."""
        pieces = [self._piece(number) for number in checked(ids, len(self))]
        answers = self._reader.read(pieces)
        changed = [position for position, answer in enumerate(answers) if self._has_changed(ids[position], answer)]
        if changed:
            again = self._reader.read([pieces[position]._replace(etag="") for position in changed])
            for position, answer in zip(changed, again, strict=True):
                answers[position] = answer
                self._learn(ids[position], answer)
        for number, answer in zip(ids, answers, strict=True):
            check(answer, self._address(number))
        return [answer.content for answer in answers]

    def expect(self, ids: Sequence[int]) -> None:
        """Begin to get the first 256 objects, and 64 MiB, of those named."""
        size = max(0, int(self._listing.sizes.max()))
        known = (number for number in ids if 0 <= number < len(self))
        self._reader.expect(
            (self._piece(number), self._size(number) if self._size(number) >= 0 else size) for number in known
        )

    def _address(self, number: int) -> str:
        return f"{self._listing.store}/{self._listing.paths[number]}"

    def _etag(self, number: int) -> str:
        newer = self._newer.get(number)
        return newer[0] if newer is not None else self._listing.etags[number]

    def _size(self, number: int) -> int:
        newer = self._newer.get(number)
        return newer[1] if newer is not None else int(self._listing.sizes[number])

    def _piece(self, number: int) -> Piece:
        return Piece(self._listing.store, self._listing.paths[number], self._etag(number))

    def _has_changed(self, number: int, answer: Answer) -> bool:
        """Whether it is another version. A store that does not look at If-Match sends the new one at once."""
        etag = self._etag(number)
        return answer.outcome is Outcome.CHANGED or (
            answer.outcome is Outcome.DONE and bool(etag and answer.etag) and answer.etag != etag
        )

    def _learn(self, number: int, answer: Answer) -> None:
        if answer.outcome is not Outcome.DONE:
            return
        self._newer[number] = answer.etag, answer.size
        if self.warns_of_changes:
            self.warns_of_changes = False
            warnings.warn(
                f"{self._address(number)} was changed since it was listed: it is read as it is now, and so are others",
                stacklevel=3,
            )


def _of_address(address: Address) -> Listing:
    if not has_magic(address.key):
        is_folder = not address.key or address.key.endswith("/") or address.has_no_listing
        return listed(address if is_folder else Address(address.store, address.key + "/"))
    return _matching(address)


def pattern_matches(address: Address) -> list[Address]:
    """The objects that match a pattern."""
    paths = _matching(address).paths
    return [Address(address.store, paths[number]) for number in range(len(paths))]


def _matching(address: Address) -> Listing:
    within = Address(address.store, folder_of(address.key))
    every = listed(within)
    keys = [every.paths[number] for number in range(len(every))]
    matches = set(matching(address.key, keys))
    chosen = [number for number, key in enumerate(keys) if key in matches]
    if not chosen:
        raise ConfigError(f"no objects match {address} (looked in {within})")
    return every.only(sorted(chosen, key=keys.__getitem__))


def _of_list(where: Sequence[str]) -> Listing:
    addresses = [parse(each) for each in where]
    if not addresses:
        raise ConfigError("no objects: the list of addresses is empty")
    stores = sorted({address.store for address in addresses})
    if len(stores) > 1:
        raise ConfigError(f"objects of one source lie in one store, not in {stores[0]} and {stores[1]}")
    folder = common_folder(["/" + address.key for address in addresses])[1:]
    return Listing.of(Address(stores[0], folder), looked_up(addresses))
