"""Records that are followed: the last words of a loader are heard, and loaders made anew count as one."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.live.rows import FACTS, seen_at

from stoker.host import process
from stoker.live.folder import publish
from stoker.live.follow import Following, training
from stoker.live.record import Facts, Record, Seen
from stoker.meter import Meter


class Progress:
    epoch, batches = 0, 0


def tell(record: Record, batches: int) -> None:
    meter = Meter()
    meter.batches = batches
    record.tell(meter, Progress(), 1.0)


@pytest.fixture
def facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    monkeypatch.setenv("STOKER_TOP", str(tmp_path / "own"))
    own = process.find(os.getpid())
    assert own is not None
    return replace(FACTS, pid=os.getpid(), started=own.started, namespace=process.namespace())


def test_what_a_loader_told_between_the_last_look_and_its_end_is_heard(facts: Facts) -> None:
    record = publish(facts)
    assert record is not None
    following = Following(lambda other: other.pid == os.getpid())
    tell(record, 3)
    assert [seen.batches for seen in following.look()] == [3]
    tell(record, 8)
    record.close()
    assert [seen.batches for seen in following.look()] == [8]
    assert [seen.batches for seen in following.look()] == [8], "and is kept"


def test_what_is_not_wanted_is_not_followed_and_nothing_stays_open(facts: Facts) -> None:
    record = publish(facts)
    assert record is not None
    before = len(os.listdir("/proc/self/fd"))
    assert not Following(lambda _: False).look()
    following = Following(lambda _: True)
    assert len(following.look()) == 1
    following.close()
    assert len(os.listdir("/proc/self/fd")) == before
    record.close()


def loader(made_at: float, left_at: float, batches: int, length: int = 100, role: str = "train") -> Seen:
    facts = replace(FACTS, made_at=made_at, rank=None)
    return seen_at(left_at, batches, facts=facts, epoch_length=length, role=role)


def test_loaders_of_each_epoch_are_one() -> None:
    validation = loader(1, 9, 40, length=40)
    seen = training([loader(0, 4, 100), validation, loader(5, 8, 100), loader(10, 11, 30)])
    assert seen is not None
    assert (seen.batches, seen.samples, seen.left_at) == (230, 1840, 11)


def test_a_loader_that_has_given_nothing_yet_does_not_take_the_loop_back() -> None:
    seen = training([loader(0, 4, 100), loader(5, 0, 0)])
    assert seen is not None
    assert (seen.batches, seen.left_at) == (100, 4)


def test_loaders_that_are_used_by_turns_are_several() -> None:
    seen = training([loader(0, 9, 200), loader(5, 10, 100)])
    assert seen is not None and seen.batches == 200
    assert training([]) is None


def test_loaders_that_evaluate_are_others_also_if_they_look_alike() -> None:
    train, validate = [loader(at, at + 1, 100) for at in (0, 4)], [loader(at, at + 1, 100, role="eval") for at in (2, 6)]
    seen = training([train[0], validate[0], train[1], validate[1]])
    assert seen is not None and (seen.batches, seen.left_at) == (200, 5)
    assert training(validate) is None, "a look at the validation data before training begins is no training"


def test_a_loader_that_has_trained_counts_also_while_the_script_evaluates_with_it(facts: Facts) -> None:
    record = publish(facts)
    assert record is not None
    record.role("train")
    tell(record, 3)
    following = Following(lambda other: other.pid == os.getpid())
    assert training(following.look()) is not None
    record.role("eval")
    tell(record, 4)
    seen = training(following.look())
    assert seen is not None and seen.batches == 4
    record.close()
