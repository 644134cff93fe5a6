"""Addresses of objects: which store, which key, and which objects a pattern means.

s3://bucket/key    gs://bucket/key    az://container/key    https://host/key    file:///path
"""

import re
import urllib.parse
from collections.abc import Iterable
from typing import NamedTuple

from stoker.errors import ConfigError

SCHEMES = ("s3", "gs", "az", "https", "http")
_ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_MAGIC = re.compile(r"[*?\[]")
_PARTS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)


class Address(NamedTuple):
    """An object, or a folder of objects, in a store."""

    store: str
    """As `s3://bucket`."""
    key: str

    def __str__(self) -> str:
        return f"{self.store}/{self.key}"

    @property
    def has_no_listing(self) -> bool:
        """Whether it is of a web server, which cannot list what it has."""
        return self.store.startswith("http")


def scheme_of(text: str) -> str | None:
    """The scheme of an address; None for a path."""
    found = _ADDRESS.fullmatch(text)
    return found[1].lower() if found else "pipe" if text.startswith("pipe:") else None


def local_path(text: str) -> str:
    """The path that a `file://` address means."""
    parts = urllib.parse.urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(f"{text!r} names a host: a file of this host is file:///{parts.netloc}{parts.path}")
    return urllib.parse.unquote(parts.path)


def parse(text: str) -> Address:
    """The store and key that an address means."""
    scheme = scheme_of(text)
    if scheme not in SCHEMES:
        known = ", ".join(f"{known}://" for known in (*SCHEMES[:-1], "file"))
        raise ConfigError(f"{text!r} is an address that nothing here can read: known are {known}")
    host, _, key = text.partition("://")[2].partition("/")
    if not host or "@" in host:
        raise ConfigError(f"{text!r} names no {'host' if scheme.startswith('http') else 'bucket'} that can be asked")
    if scheme.startswith("http"):
        if "?" in key or "#" in key:
            raise ConfigError(f"{text!r} has a query: objects of a web server are read by their path alone")
        key = urllib.parse.unquote(key)
    return Address(f"{scheme}://{host}", key)


def has_magic(key: str) -> bool:
    """Whether a key is a pattern."""
    return _MAGIC.search(key) is not None


def folder_of(key: str) -> str:
    """The deepest folder that all keys of a pattern are in; "" or with a slash at its end."""
    fixed = _MAGIC.split(key, maxsplit=1)[0]
    return fixed[: fixed.rfind("/") + 1]


def matching(pattern: str, keys: Iterable[str]) -> list[str]:
    """Those that match, as `glob` matches paths: `*` stays within a folder, `**/` is any number of them."""
    expression = re.compile("".join(map(_translated, _PARTS.findall(pattern))), re.DOTALL)
    return [key for key in keys if expression.fullmatch(key)]


def _translated(part: str) -> str:
    match part:
        case "**/":
            return "(?:[^/]+/)*"
        case "**":
            return ".*"
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
    if part.startswith("[") and part.endswith("]") and len(part) > 2:
        inside = part[1:-1].replace("\\", "\\\\")
        return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
    return re.escape(part)
