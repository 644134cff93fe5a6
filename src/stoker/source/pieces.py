"""What is asked of an object store, and what it answers; as values that go from one process to another."""

import enum
from typing import Any, NamedTuple

from stoker.memory import Bytes


class Outcome(enum.IntEnum):
    """How a request ended."""

    DONE = 0
    CHANGED = 1
    """The object is another one than the caller knows."""
    MISSING = 2
    DENIED = 3
    FAILED = 4


class Piece(NamedTuple):
    """What to get: an object, or a range of it, if it is still what it was; with `looks`, only its size and version."""

    store: str
    key: str
    etag: str = ""
    start: int = 0
    end: int = -1
    looks: bool = False


class ListedObject(NamedTuple):
    """An object of a listing."""

    key: str
    size: int
    etag: str


class Answer(NamedTuple):
    """What came of a request."""

    outcome: Outcome
    text: str = ""
    """What went wrong, in words."""
    size: int = 0
    """Of the whole object."""
    etag: str = ""
    content: Bytes = b""


def words_of(answer: "Answer | list[ListedObject]") -> list[Any]:
    """An answer without its content, or a page of a listing, as JSON takes it."""
    return answer if isinstance(answer, list) else ["answer", *answer[:-1]]


def answer_of(words: list[Any], content: Bytes) -> "Answer | list[ListedObject]":
    """What `words_of` made of it."""
    if words and words[0] == "answer":
        _, outcome, text, size, etag = words
        return Answer(Outcome(outcome), text, size, etag, content)
    return [ListedObject(*found) for found in words]
