"""Ways through the items of a store, within one of its transactions.

Keys are in order, so the versions of an item stand together.
"""

from typing import Any

from stoker.cache.inspection import USED
from stoker.sealed import payload_bytes

KEY_BYTES = 16
"""A key names an item; what follows it, if anything, is the item's version."""
_FORGOTTEN_AT_ONCE = 10_000


def names_after(transaction: Any, after: bytes, limit: int) -> list[bytes]:
    """The names of items after a name, at most so many."""
    found: list[bytes] = []
    following = int.from_bytes(after, "big") + 1
    with transaction.cursor() as cursor:
        if not following >> 8 * KEY_BYTES and cursor.set_range(following.to_bytes(KEY_BYTES, "big")):
            for key in cursor.iternext(keys=True, values=False):
                if len(found) == limit:
                    break
                name = key[:KEY_BYTES]
                if len(name) == KEY_BYTES and name not in found[-1:]:  # or else it is no item, or another version
                    found.append(name)
    return found


def delete_versions(transaction: Any, name: bytes, but: bytes | None) -> int:
    """Delete all versions of an item but one. Returns how many bytes that frees."""
    freed = 0
    with transaction.cursor() as cursor:
        found = cursor.set_range(name)
        while found and cursor.key()[:KEY_BYTES] == name:
            if cursor.key() == but:
                found = cursor.next()
                continue
            freed += payload_bytes(len(cursor.value()))
            found = cursor.delete()
    return freed


def delete_any(transaction: Any, size: int) -> int:
    """Delete items until so many bytes, or some thousand items, are gone. Returns how many bytes that frees."""
    freed = count = 0
    with transaction.cursor() as cursor:
        found = cursor.first()
        while found and freed < size and count < _FORGOTTEN_AT_ONCE:
            if cursor.key() == USED:
                found = cursor.next()
                continue
            freed += payload_bytes(len(cursor.value()))
            count += 1
            found = cursor.delete()
    return freed
