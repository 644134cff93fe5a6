"""The digest by which ranks know that either can stand in for the other."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker.feed.digest import NoDigestError, digest_of


class Data:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def scaled(factor: float) -> Any:
    return lambda value: value * factor


LONG = np.zeros(3 << 20, np.uint8)


def changed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    other = array.copy()
    other[-1] += 1
    return other


PAIRS = {
    "a number": (1, 2),
    "one name among many": ([f"{n}.jpg" for n in range(100_000)], [*(f"{n}.jpg" for n in range(99_999)), "other.jpg"]),
    "the last byte of an array": (LONG, changed(LONG)),
    "the last byte of a tensor": (torch.from_numpy(LONG), torch.from_numpy(changed(LONG))),
    "a dtype": (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
    "what a function refers to": (scaled(1), scaled(2)),
    "a function's code": (lambda value: value + 1, lambda value: value + 2),
    "a nested part": (Data(inner=Data(parts=[1])), Data(inner=Data(parts=[2]))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_whatever_differs_shows(name: str) -> None:
    one, other = (Data(part=part) for part in PAIRS[name])
    assert digest_of(one) == digest_of(one)
    assert digest_of(one) != digest_of(other)


@pytest.mark.parametrize("part", [np.random.default_rng(0), np.random.RandomState(0), random.Random(0), torch.Generator()])
def test_a_generator_is_refused(part: Any) -> None:
    with pytest.raises(NoDigestError, match="generator of its own"):
        digest_of(Data(part=[part]))


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(NoDigestError, match="cannot be compared"):
        digest_of(Data(part=threading.Lock()))


SCALE: Any = 1


class Scales:
    """Refers to a variable of its script."""

    offset: Any = 0

    def __getitem__(self, index: int) -> Any:
        return [one * SCALE + type(self).offset for one in (index,)]


class Inherits(Scales):
    pass


@pytest.mark.parametrize("kind", [Scales, Inherits])
@pytest.mark.parametrize("where", ["SCALE", "Scales.offset"])
def test_variables_that_the_code_of_a_dataset_uses_count(where: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest_of(kind())
    monkeypatch.setattr(f"{__name__}.{where}", 2)
    assert digest_of(kind()) != before
    monkeypatch.setattr(f"{__name__}.{where}", threading.Lock())  # cannot be compared, and refuses nothing
    assert digest_of(kind()) == digest_of(kind())
    monkeypatch.setattr(f"{__name__}.{where}", np.random.default_rng(0))
    with pytest.raises(NoDigestError, match="generator of its own"):
        digest_of(kind())


class ReadsTheEnvironment:
    def __getitem__(self, index: int) -> Any:
        return index, os.environ.get("PICTURES", "")


class AsksOnlyWhenMade:
    def __init__(self) -> None:
        self.rank = os.environ.get("RANK")


class ReadsItsRank:
    def __getitem__(self, index: int) -> Any:
        return index, [os.getenv(name) for name in ("RANK",)]


class AsksForItsRank:
    def __getitem__(self, index: int) -> Any:
        return index, torch.distributed.get_rank()


def test_environment_variables_that_the_code_of_a_dataset_names_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PICTURES", "here")
    monkeypatch.setenv("OTHER", "1")
    before = digest_of(ReadsTheEnvironment())
    monkeypatch.setenv("OTHER", "2")
    assert digest_of(ReadsTheEnvironment()) == before
    monkeypatch.setenv("PICTURES", "there")
    assert digest_of(ReadsTheEnvironment()) != before


@pytest.mark.parametrize("kind", [ReadsItsRank, AsksForItsRank])
def test_what_asks_for_its_rank_is_refused(kind: type) -> None:
    with pytest.raises(NoDigestError, match="asks for its rank"):
        digest_of(kind())


def test_a_rank_that_was_asked_for_when_the_dataset_was_made_is_in_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    before = digest_of(AsksOnlyWhenMade())
    assert digest_of(AsksOnlyWhenMade()) == before
    monkeypatch.setenv("RANK", "1")
    assert digest_of(AsksOnlyWhenMade()) != before


_SETS = """
from stoker.feed.digest import digest_of
def is_picture(name):
    return name in {".jpg", ".png", ".gif", ".webp"}
class Data:
    names = frozenset("abcdefgh")
    def __init__(self):
        self.suffixes, self.test = {".jpg", ".png", ".gif", ".webp"}, is_picture
print(digest_of(Data()))
"""


def test_the_order_of_sets_does_not_count() -> None:
    def digest(seed: int) -> bytes:
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        return subprocess.run([sys.executable, "-c", _SETS], env=environment, capture_output=True, check=True).stdout

    assert digest(1) == digest(2) == digest(3)


def test_a_mapped_file_counts_by_its_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(bytes(4096))
    before = digest_of(Data(part=np.memmap(path, np.uint16, "r")))
    assert digest_of(Data(part=np.memmap(path, np.uint16, "r"))) == before
    assert digest_of(Data(part=np.memmap(path, np.uint16, "r", offset=2))) != before
    halves = np.split(np.memmap(path, np.uint16, "r"), 2)
    assert digest_of(Data(part=halves[0])) != digest_of(Data(part=halves[1]))
    os.utime(path, ns=(1, 1))
    assert digest_of(Data(part=np.memmap(path, np.uint16, "r"))) != before
