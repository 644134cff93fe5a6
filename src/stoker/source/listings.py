"""What lies in a folder of an object store: asked for page by page, put in order, kept small.

The order, and what counts, is that of a folder of files (`files.Files`): by class, by folder, then by name; hidden names do
not count. A listing costs the store a request for each 1,000 objects. Who wants to make it once for several processes says
how old it may be in STOKER_LISTING_AGE, in seconds: it is then kept in the user's cache folder, for this user alone.
"""

import contextlib
import hashlib
import itertools
import json
import os
import secrets
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, SampleNotFound, SourceError
from stoker.source.addresses import Address
from stoker.source.getting import getter
from stoker.source.paths import Paths
from stoker.source.pieces import Answer, ListedObject, Outcome, Piece
from stoker.source.reader import Reader
from stoker.source.reading import retried

LISTING = "index.txt"
_MAGIC = b"stoker objects 1\n"
_HEADER = struct.Struct("<17sdQI")  # what it is, when it was begun, how many objects, a checksum of the rest
_MARKER = 0  # bytes: an object of the name of a folder that has others below it stands for the folder


@dataclass(frozen=True, slots=True, eq=False)
class Listing:
    """Objects in their order: where each is, its size (-1: not known), its version ("" : not known)."""

    store: str
    paths: Paths
    """Keys, without the store."""
    sizes: NDArray[np.int64]
    etags: Paths
    version: str
    """Of the list itself, which counts for objects without a version."""

    @classmethod
    def of(cls, address: Address, found: Sequence[ListedObject], version: str = "") -> "Listing":
        """From objects whose keys begin with the folder that the address says."""
        names = (item.key[len(address.key) :] for item in found)
        sizes = np.fromiter((item.size for item in found), np.int64, len(found))
        etags = Paths.of("", (item.etag for item in found))
        return cls(address.store, Paths.of(address.key, names), sizes, etags, version)

    def __len__(self) -> int:
        return len(self.sizes)

    def only(self, numbers: Sequence[int]) -> "Listing":
        """Some of them, in this order."""
        folder = os.fsdecode(self.paths.folder)
        found = [ListedObject(self.paths[number], int(self.sizes[number]), self.etags[number]) for number in numbers]
        return Listing.of(Address(self.store, folder), found, self.version)


class Class(NamedTuple):
    """One class of a folder of classes: its name, and how many objects it has."""

    name: str
    objects: int


def listed(address: Address) -> Listing:
    """The objects below a folder, as they are now or as they were listed not too long ago."""
    oldest = time.time() - _age_s()
    if (kept := _kept(address, oldest)) is not None:
        return kept
    began = time.time()
    folder = Address(address.store, address.key[: address.key.rfind("/") + 1])
    found, version = _from_a_file(address) if address.has_no_listing else (_from_the_store(folder), "")
    found = _in_order(folder, found)
    if not address.has_no_listing:
        found = _without_empty_folders(folder, found)
    listing = Listing.of(folder, found, version)
    if _age_s():
        _keep(address, began, listing)
    return listing


def in_classes(listing: Listing) -> tuple[Listing, list[Class]]:
    """The folders directly below the listed one, in order, and what lies in them; without any, all that is listed."""
    names = (os.fsdecode(listing.paths.name(number)).partition("/") for number in range(len(listing)))
    classes = itertools.groupby(first for first, slash, _ in names if slash)
    found = [Class(name, sum(1 for _ in group)) for name, group in classes]
    inside = sum(each.objects for each in found)
    loose = len(listing) - inside if found else 0  # they come first
    return (listing.only(range(loose, len(listing))) if loose else listing), found


def looked_up(addresses: Sequence[Address]) -> list[ListedObject]:
    """Objects one by one, as they are now, in the order given. All are of one store."""
    answers = Reader().read([Piece(address.store, address.key, looks=True) for address in addresses])
    for address, answer in zip(addresses, answers, strict=True):
        check(answer, address)
    return [ListedObject(each.key, answer.size, answer.etag) for each, answer in zip(addresses, answers, strict=True)]


def check(answer: Answer, address: Address | str) -> None:
    """Raise what an answer says went wrong."""
    match answer.outcome:
        case Outcome.MISSING:
            raise SampleNotFound(2, f"{address} cannot be read: it is not there ({answer.text})")
        case Outcome.DENIED:
            raise SampleNotFound(13, f"{address} cannot be read: the store refuses ({answer.text})")
        case Outcome.FAILED:
            raise SourceError(5, f"{address} cannot be read: {answer.text}")


def _age_s() -> float:
    text = os.environ.get("STOKER_LISTING_AGE", "0")
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"STOKER_LISTING_AGE={text!r} is no number of seconds") from None


def _from_the_store(address: Address) -> list[ListedObject]:
    def read() -> list[ListedObject]:
        found: list[ListedObject] = []
        for page in getter().pages(address.store, address.key.rstrip("/")):
            if isinstance(page, Answer):
                if page.outcome is Outcome.MISSING or "NoSuchBucket" in page.text:
                    raise ConfigError(f"{address.store} is not there ({page.text})")
                if page.outcome is not Outcome.DONE:
                    raise ConfigError(f"{address} cannot be listed: {page.text}")
                break
            found += page
        return found

    return retried(read, str(address))


def _from_a_file(address: Address) -> tuple[list[ListedObject], str]:
    """A web server lists nothing, so there is a file of names: `name`, or name, size and etag between tabs."""
    folder, _, name = address.key.rpartition("/")
    folder = folder and folder + "/"
    place = address if name else Address(address.store, folder + LISTING)
    answer = Reader().read([Piece(place.store, place.key)])[0]
    if answer.outcome is Outcome.MISSING:
        raise ConfigError(f"{place} is not there: a web server needs a file with the names of its objects, one a line")
    check(answer, place)
    version = answer.etag or hashlib.blake2b(answer.content, digest_size=16).hexdigest()
    try:
        lines = [line.split("\t") for line in bytes(answer.content).decode().splitlines() if line.strip()]
        return [_of_line(folder, *line) for line in lines], version
    except (TypeError, ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place} is no list of names, one a line (or name, size, etag between tabs): {error}") from None


def _of_line(folder: str, name: str, size: str = "-1", etag: str = "") -> ListedObject:
    if "://" in name or name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{name!r} is no name below the place of the list")
    return ListedObject(folder + name, int(size), etag)


def _in_order(address: Address, found: list[ListedObject]) -> list[ListedObject]:
    """Those that count, as the files of a folder are ordered."""
    folder = address.key
    rows: list[tuple[str, str, str, ListedObject]] = []
    above: set[str] = set()
    for item in found:
        name = item.key[len(folder) :]
        if not item.key.startswith(folder) or not name or name.startswith(".") or "/." in name:
            continue
        place, _, last = name.rpartition("/")
        rows.append((name.partition("/")[0] if place else "", place, last, item))
        above.add(place)
    markers = {place for place in above for place in _with_parents(place)}
    rows = [row for row in rows if row[3].size != _MARKER or row[3].key[len(folder) :] not in markers]
    if not rows:
        raise ConfigError(f"no objects in {address} (hidden ones do not count; a single object is given in a list)")
    rows.sort(key=lambda row: row[:3])
    return [row[3] for row in rows]


def _without_empty_folders(address: Address, found: list[ListedObject]) -> list[ListedObject]:
    """A listing names the object `new/`, which stands for an empty folder, as `new`: there is none of that name."""
    empty = [item.key for item in found if item.size == _MARKER]
    answers = Reader().read([Piece(address.store, key, looks=True) for key in empty])
    folders = {key for key, answer in zip(empty, answers, strict=True) if answer.outcome is Outcome.MISSING}
    if len(folders) == len(found):
        raise ConfigError(f"no objects in {address}, but empty folders")
    return [item for item in found if item.key not in folders]


def _with_parents(place: str) -> Iterator[str]:
    while place:
        yield place
        place = place.rpartition("/")[0]


def _place(address: Address) -> str | None:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        return None
    stores = {
        name: os.environ.get(name) for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AZURE_STORAGE_ACCOUNT_NAME")
    }
    digest = hashlib.blake2b(json.dumps([address, stores]).encode(), digest_size=16).hexdigest()
    return os.path.join(cache, "stoker", f"{digest}.stoker-listing")


def _kept(address: Address, oldest: float) -> Listing | None:
    place = _place(address)
    with contextlib.suppress(OSError):
        if place is not None and os.path.getmtime(place) >= oldest:
            with open(place, "rb") as file:
                return _of_bytes(address, file.read(), oldest)
    return None


def _keep(address: Address, began: float, listing: Listing) -> None:
    """Keep a listing where that is possible. Names may be private, so the file is the user's alone."""
    place = _place(address)
    if place is None:
        return
    unseen = f"{place}.{secrets.token_hex(4)}.partial"
    try:
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        descriptor = os.open(unseen, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(_to_bytes(began, listing))
        os.rename(unseen, place)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(unseen)


def _to_bytes(began: float, listing: Listing) -> bytes:
    numbers = np.concatenate([listing.sizes, listing.paths.bounds, listing.etags.bounds]).astype("<i8").tobytes()
    body = b"".join([numbers, listing.paths.joined, listing.etags.joined, listing.version.encode()])
    return _HEADER.pack(_MAGIC, began, len(listing), zlib.crc32(body)) + body


def _of_bytes(address: Address, stored: bytes, oldest: float) -> Listing | None:
    """A kept listing; None if it is too old, or not one that was written here."""
    if len(stored) < _HEADER.size:
        return None
    magic, began, count, checksum = _HEADER.unpack_from(stored)
    body = memoryview(stored)[_HEADER.size :]
    if magic != _MAGIC or began < oldest or not 0 < count <= len(body) // 8 or zlib.crc32(body) != checksum:
        return None
    numbers = np.frombuffer(body, "<i8", 3 * count + 2).astype(np.int64, copy=False)
    names, etags = numbers[count : 2 * count + 1], numbers[2 * count + 1 :]
    text = bytes(body[numbers.nbytes :])
    ends = names[-1], names[-1] + etags[-1]
    folder = address.key[: address.key.rfind("/") + 1].encode()
    paths = Paths(folder, text[: ends[0]], names)
    return Listing(
        address.store, paths, numbers[:count], Paths(b"", text[ends[0] : ends[1]], etags), text[ends[1] :].decode()
    )
