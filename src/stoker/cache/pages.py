"""Whether the file of an LMDB store is whole, found out by plain reads. LMDB itself follows page numbers without a check.

If the file was cut, or a page number was changed, SIGBUS kills a process that reads it through LMDB. So a store that no
process uses is checked before it is opened: every page of the tree is where it should be, every page is used once or free,
and the counts agree. Payloads are not read here; each of them has a checksum of its own.

    page    16 bytes: its number (8), 2 unused, flags (2), then end of the offsets (2) and begin of the nodes (2)
                      in a page of an item that has pages of its own, their number (4) stands in the last place
            then an offset (2) for each node; the nodes lie at the end of the page
    node    size or child: low (2), high (2); flags or top of the child (2); size of the key (2); the key; the item, or
                      the number of its first page
    meta    pages 0 and 1: the one of the later transaction holds; it has two trees, of free pages and of items
"""

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import lt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_HEADER = struct.Struct("<QHHHH")
_OF_ITEM = np.dtype([("number", "<u8"), ("unused", "<u2"), ("kind", "<u2"), ("count", "<u4")])
_BEGIN = struct.Struct("<II16x")
_TREE = struct.Struct("<IHHQQQQQ")
_END = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")
_META_BYTES = _BEGIN.size + 2 * _TREE.size + _END.size
_BRANCH, _LEAF, _ITEM, _META = 1, 2, 4, 8
_HAS_PAGES = 1
_NODE = 8
_LONGEST_KEY = 511
_DEEPEST = 32
_NO_ROOT = (1 << 64) - 1
_SIZES = (512, 65536)
_FIELDS = np.arange(4)
_MOST_BYTES = 1 << 48

_Numbers = NDArray[np.int64]


class DamagedError(Exception):
    """The file is not what LMDB wrote; the message says how it differs."""


@dataclass(frozen=True, slots=True)
class StoreContent:
    """What is in the file of a store."""

    sizes: NDArray[np.int64]
    """How many bytes each value has."""
    set_aside: bytes | None
    """The value of the key that is not counted among them, if it is there."""


@dataclass(frozen=True, slots=True)
class _Tree:
    depth: int
    branches: int
    leaves: int
    item_pages: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class _Leaf:
    keys: list[bytes]
    sizes: NDArray[np.int64]
    begins: NDArray[np.int64]
    """Where in the file each value begins."""


@dataclass(frozen=True, slots=True)
class _Head:
    page_bytes: int
    free: _Tree
    main: _Tree
    last_page: int


def look_through(path: Path, aside: bytes) -> StoreContent:
    """Look at every page of a store's trees; what is inside, with the value of one key set aside. Raises DamagedError.

    No process may write meanwhile.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return _Looking(descriptor, os.fstat(descriptor).st_size, _head(descriptor)).inside(aside)
    except (struct.error, IndexError, ValueError) as error:
        raise DamagedError(f"a page makes no sense ({error})") from error
    finally:
        os.close(descriptor)


def is_long_enough(path: Path) -> bool:
    """Whether a store's file has all pages that its head counts. An empty file is just being made.

    A shorter file may still be whole: its last pages may be free.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_size == 0:
            return True
        head = _head(descriptor)
        # The length is read after the head: the file grows first.
        return os.fstat(descriptor).st_size >= (head.last_page + 1) * head.page_bytes
    except DamagedError:
        return False
    finally:
        os.close(descriptor)


def _head(descriptor: int) -> _Head:
    page_bytes, metas = 0, []
    for number in range(2):
        page = os.pread(descriptor, _HEADER.size + _META_BYTES, number * page_bytes)
        if len(page) < _HEADER.size + _META_BYTES:
            raise DamagedError("its first pages are missing")
        own, _, flags, _, _ = _HEADER.unpack_from(page)
        magic, version = _BEGIN.unpack_from(page, _HEADER.size)
        if (own, flags, magic, version) != (number, _META, _MAGIC, _VERSION):
            raise DamagedError(f"page {number} does not begin a store")
        at = _HEADER.size + _BEGIN.size
        free, main = (_TREE.unpack_from(page, at + n * _TREE.size) for n in range(2))
        last_page, transaction = _END.unpack_from(page, at + 2 * _TREE.size)
        if not number:
            page_bytes = free[0]
        if free[0] != page_bytes or not _SIZES[0] <= page_bytes <= _SIZES[1] or page_bytes & (page_bytes - 1):
            raise DamagedError("its pages have no size")
        metas.append((transaction, number, _Head(page_bytes, _Tree(*free[2:]), _Tree(*main[2:]), last_page)))
    return max(metas)[2] if metas[0][0] != metas[1][0] else metas[0][2]


class _Looking:
    """One look through one file."""

    def __init__(self, descriptor: int, size: int, head: _Head) -> None:
        self._descriptor = descriptor
        self._head = head
        self._bytes = head.page_bytes
        if not 1 <= head.last_page < _MOST_BYTES // self._bytes:
            raise DamagedError("it has no last page")
        self._pages = min(size // self._bytes, head.last_page + 1)
        self._taken: list[tuple[_Numbers, _Numbers]] = []
        """Pages that are used or free: the first of some, and how many they are."""

    def inside(self, aside: bytes) -> StoreContent:
        sizes = [np.zeros(0, np.int64)]
        set_aside = None
        for leaf in self._leaves(self._head.main, None):
            if aside in leaf.keys:
                place = leaf.keys.index(aside)
                set_aside = self._value(leaf, place)
                sizes += [leaf.sizes[:place], leaf.sizes[place + 1 :]]
            else:
                sizes.append(leaf.sizes)
        for leaf in self._leaves(self._head.free, _number):
            for place in range(len(leaf.keys)):
                self._take_free(self._value(leaf, place))
        self._check_taken()
        return StoreContent(np.concatenate(sizes), set_aside)

    def _leaves(self, tree: _Tree, order: Callable[[bytes], Any] | None) -> Iterator[_Leaf]:
        """The leaves of a tree, one after another. The counts that stand at its head are compared at the end."""
        if tree.root == _NO_ROOT:
            waiting: list[tuple[int, int, bytes | None]] = []
        elif 1 <= tree.depth <= _DEEPEST:
            waiting = [(tree.root, 1, None)]
        else:
            raise DamagedError("a tree has no depth")
        branches = leaves = item_pages = entries = 0
        last: list[bytes] = []
        numbers = []
        while waiting:
            number, level, least = waiting.pop()
            numbers.append(number)
            if len(numbers) > tree.branches + tree.leaves:
                raise DamagedError("a tree has more pages than it says")
            page = self._page(number, _LEAF if level == tree.depth else _BRANCH)
            keys, low, flags, starts = self._nodes(number, page)
            if level < tree.depth:
                branches += 1
                lows = [least, *keys[1:]]  # the first key of a branch is empty: it stands for all keys before the second
                children = [(child, level + 1, key) for child, key in zip((low | flags << 32).tolist(), lows, strict=True)]
                waiting += reversed(children)
                continue
            leaves += 1
            entries += len(keys)
            if not _are_in_order(keys, last, least, order):
                raise DamagedError(f"page {number} is out of order")
            last = keys[-1:]
            leaf, pages = self._leaf(number, page, keys, low, flags, starts)
            item_pages += pages
            yield leaf
        self._taken.append((np.array(numbers, np.int64), np.ones(len(numbers), np.int64)))
        if _Tree(tree.depth, branches, leaves, item_pages, entries, tree.root) != tree:
            raise DamagedError("its counts do not agree with its pages")

    def _page(self, number: int, kind: int) -> bytes:
        if not 2 <= number < self._pages:
            raise DamagedError(f"page {number} is beyond its end")
        page = os.pread(self._descriptor, self._bytes, number * self._bytes)
        own, _, flags, _, _ = _HEADER.unpack_from(page)
        if (own, flags) != (number, kind):
            raise DamagedError(f"page {number} is not what it should be")
        return page

    def _nodes(self, number: int, page: bytes) -> tuple[list[bytes], _Numbers, _Numbers, _Numbers]:
        """The nodes of a page: keys; sizes, or children but for their top; flags, or that top; where the values begin."""
        *_, lower, upper = _HEADER.unpack_from(page)
        offsets = np.frombuffer(page, "<u2", (lower - _HEADER.size) // 2, _HEADER.size).astype(np.int64)
        if not len(offsets) or not lower <= upper <= self._bytes or offsets.min() < upper or (offsets & 1).any():
            raise DamagedError(f"page {number} has no nodes, or elsewhere")
        words = np.frombuffer(page + bytes(_NODE), "<u2")[offsets[:, None] // 2 + _FIELDS].astype(np.int64)
        low, high, flags, lengths = words.T
        starts = offsets + _NODE + lengths
        if lengths.max() > _LONGEST_KEY or starts.max() > self._bytes:
            raise DamagedError(f"page {number} has keys beyond its end")
        keys = [page[start - length : start] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
        return keys, low | high << 16, flags, starts

    def _leaf(
        self, number: int, page: bytes, keys: list[bytes], sizes: _Numbers, flags: _Numbers, starts: _Numbers
    ) -> tuple[_Leaf, int]:
        """A leaf, and how many pages its values have for themselves."""
        is_apart = flags == _HAS_PAGES
        ends = starts + np.where(is_apart, _NUMBER.size, sizes)
        if (flags[~is_apart] != 0).any() or ends.max() > self._bytes:
            raise DamagedError(f"page {number} has values beyond its end")
        order = starts.argsort()
        lengths = np.fromiter(map(len, keys), np.int64, len(keys))
        if (ends[order][:-1] > (starts - _NODE - lengths)[order][1:]).any():
            raise DamagedError(f"page {number} has nodes that overlap")
        begins = number * self._bytes + starts
        if not is_apart.any():
            return _Leaf(keys, sizes, begins), 0
        places = starts[is_apart][:, None] + np.arange(_NUMBER.size)
        firsts = np.frombuffer(page, np.uint8)[places].view("<u8")[:, 0]
        counts = (sizes[is_apart] + _HEADER.size - 1) // self._bytes + 1
        if not 2 <= int(firsts.min()) <= int(firsts.max()) < self._pages:
            raise DamagedError(f"page {number} has values beyond the end of the file")
        first_pages = firsts.astype(np.int64)
        places_in_file = (first_pages * self._bytes).tolist()
        read = b"".join([os.pread(self._descriptor, _OF_ITEM.itemsize, place) for place in places_in_file])
        found = np.frombuffer(read, _OF_ITEM)
        if ((found["number"] != firsts) | (found["kind"] != _ITEM) | (found["count"] != counts)).any():
            raise DamagedError(f"page {number} has values that are not where they should be")
        self._taken.append((first_pages, counts))
        begins[is_apart] = first_pages * self._bytes + _HEADER.size
        return _Leaf(keys, sizes, begins), int(counts.sum())

    def _value(self, leaf: _Leaf, place: int) -> bytes:
        return os.pread(self._descriptor, int(leaf.sizes[place]), int(leaf.begins[place]))

    def _take_free(self, value: bytes) -> None:
        """Take note of the pages that one transaction has freed: the item is their count, then their numbers."""
        numbers = np.frombuffer(value, "<u8")
        if int(numbers[0]) != len(numbers) - 1 or (numbers[1:] > self._head.last_page).any():
            raise DamagedError("a list of free pages makes no sense")
        pages = numbers[1:].astype(np.int64)
        self._taken.append((pages[pages < self._pages], np.ones(int((pages < self._pages).sum()), np.int64)))

    def _check_taken(self) -> None:
        """Check that every page is used or free, once. Pages at the end may be free without ever having been written."""
        firsts, counts = (np.concatenate(row) for row in zip(*self._taken, strict=True))
        order = firsts.argsort()
        ends = np.concatenate([[2], (firsts + counts)[order]])
        if (ends[:-1] > firsts[order]).any():
            raise DamagedError("a page is used twice")
        if ends[-1] > self._pages:
            raise DamagedError("its last pages are missing")


def _are_in_order(keys: list[bytes], last: list[bytes], least: bytes | None, order: Callable[[bytes], Any] | None) -> bool:
    """Whether the keys of a page grow, and none is less than the least key that may be in it."""
    row: list[Any] = [*last, *keys]
    if order is not None:
        row = [order(key) for key in row]
    if not all(map(lt, row, row[1:])):
        return False
    if least is None:
        return True
    bound = least if order is None else order(least)
    return bool((not last or row[0] < bound) and bound <= row[len(last)])


def _number(key: bytes) -> int:
    return int(_NUMBER.unpack(key)[0])
