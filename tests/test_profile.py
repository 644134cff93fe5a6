"""The profile document, as those who write and read it see it."""

import copy
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.errors import ConfigError
from stoker.profile import Advice, Confidence, DatasetSize, Host, Profile, Rates, Speed, Stalls, write_text

SMALLEST: dict[str, Any] = {
    "version": 1, "stoker": "0.1.0", "host": {"cores": 2, "memory_bytes": 8_000_000_000, "device": "cpu"},
    "dataset": {"samples": 2000, "bytes": 208_000_000, "bytes_known": True}, "batch_size": 64, "workers": 2,
    "rates": {"gpu": 1000.0, "prep": 1500.0, "prep_by_workers": {"1": 800.0, "2": 1500.0}, "storage": 200.0, "cache": 5e4},
    "speed": {"synthetic": 1000.0, "cached": 990.0, "cold": 199.0},
    "stalls": {"prep": 0.0, "fetch": 0.8}, "limit": "fetch",
    "confidence": {"gpu": 0.02, "prep": 0.03, "storage": 0.05, "cache": 0.05}, "advice": [],
}  # fmt: skip


def changed(*path: str, value: Any) -> dict[str, Any]:
    document = copy.deepcopy(SMALLEST)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def test_the_smallest_document_loads_and_what_it_says_once_is_known_everywhere() -> None:
    profile = stoker.Profile.of_document(SMALLEST)
    assert profile.rates.prep_by_workers == {1: 800.0, 2: 1500.0}
    assert (profile.rates.workers, profile.rates.cores, profile.rates.batch) == (2, 2, 64)
    assert profile.dataset.sample_bytes == 104_000
    assert (profile.world, profile.cached, profile.notes, profile.fixed, profile.host.others) == (1, 0.0, (), (), 0.0)


def test_cores_are_those_of_one_rank() -> None:
    assert Profile.of_document(changed("world", value=2)).rates.cores == 1


def test_save_and_load(tmp_path: Path) -> None:
    document = changed("advice", value=[{"change": "more", "rate": 2.0, "gain": 1.0}]) | {"fixed": ["num_workers"]}
    profile = Profile.of_document(document)
    assert profile.fixed == ("num_workers",)
    path = tmp_path / "profile.json"
    path.write_text("old")
    profile.save(path)
    assert Profile.load(path) == profile == pickle.loads(pickle.dumps(profile))
    assert profile.advice == (Advice("more", 2.0, 1.0),)
    written = json.loads(path.read_text())
    for key in SMALLEST:  # nothing of the contract is missing or changed
        if key not in ("rates", "host", "advice"):
            assert written[key] == SMALLEST[key]
    assert written["rates"].items() >= SMALLEST["rates"].items()
    assert [entry.name for entry in tmp_path.iterdir()] == ["profile.json"]
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_what_peers_give_is_written_only_where_it_was_measured() -> None:
    """So that who knows no peers can read all other documents."""
    assert "peer" not in Profile.of_document(SMALLEST).document()["rates"]
    measured = Profile.of_document(changed("rates", "peer", value=300.0))
    assert measured.rates.peer == measured.document()["rates"]["peer"] == 300.0
    assert Profile.of_document(measured.document()) == measured


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_nothing_is_left_of_what_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(ConfigError, match="taken cannot be written"):
        Profile.of_document(SMALLEST).save(tmp_path / "taken")
    assert [entry.name for entry in tmp_path.iterdir()] == ["taken"]


DEVICE = {"where": "tail", "prep": 640.0, "loop": 900.0, "cached": 600.0}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (changed("colour", value=1), "the document has an unknown key 'colour': there are stoker, host"),
        (changed("rates", "gpus", value=1.0), "rates has an unknown key 'gpus': there are gpu, prep"),
        (changed("version", value=2), "version must be 1"),
        (changed("limit", value="disk"), "limit must be one of gpu, prep, fetch, not 'disk'"),
        (changed("rates", "gpu", value=-1.0), "rates.gpu must be a number that is finite and not negative, not -1"),
        (changed("rates", "gpu", value=math.inf), "rates.gpu must be a number that is finite"),
        (changed("rates", "prep_by_workers", value={"1": math.nan}), "rates.prep_by_workers.1 must be a number"),
        (changed("rates", "prep_by_workers", value={"one": 1.0}), "rates.prep_by_workers has a key that is not a number"),
        (changed("rates", "prep", value="fast"), "rates.prep must be a number, not 'fast'"),
        (changed("workers", value=True), "workers must be a whole number, not True"),
        (changed("batch_size", value=0), "batch_size must be 1 or more"),
        (changed("stalls", "fetch", value=1.5), "stalls.fetch is a fraction"),
        (changed("host", value=3), "host must be an object, not 3"),
        (changed("advice", value=["more"]), r"advice\[0\] must be an object"),
        (changed("advice", value="more"), "advice must be a list"),
        (changed("rates", value={"gpu": 1.0}), "rates lacks prep, storage, cache"),
        (
            changed("on_device", value=[DEVICE | {"where": "gpu"}]),
            r"on_device\[0\] must be for tail or device",
        ),
        (changed("on_device", value=[DEVICE | {"loop": 0.0}]), r"on_device\[0\] must be .* with rates above 0"),
        (changed("on_device", value=[DEVICE | {"loop": -1.0}]), r"on_device\[0\].loop must be a number that is finite"),
        (changed("on_device", value=[DEVICE, DEVICE]), "on_device has the same part twice"),
        ([], "it is not a JSON object"),
    ],
)
def test_wrong_documents_are_named_and_say_where(document: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=message) as caught:
        Profile.load(path)
    assert str(path) in str(caught.value)


def test_files_that_are_no_profile(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        Profile.load(tmp_path / "p.json")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        Profile.load(tmp_path / "none.json")


numbers = st.floats(min_value=0, max_value=1e9)
counts = st.integers(min_value=0, max_value=64)
curves = st.dictionaries(counts, numbers, max_size=4)
parts = st.floats(min_value=0, max_value=1)


@given(
    st.builds(
        Profile,
        stoker=st.text(max_size=5),
        host=st.builds(Host, cores=numbers, memory_bytes=counts, device=st.text(max_size=5), room_bytes=counts),
        dataset=st.builds(DatasetSize, samples=counts, bytes=counts, bytes_known=st.booleans()),
        batch_size=st.integers(1, 512),
        workers=counts,
        rates=st.builds(
            Rates, gpu=numbers, prep=numbers, storage=numbers, cache=numbers, prep_by_workers=curves,
            prep_by_threads=curves, storage_by_readers=curves, workers=counts, cores=numbers,
            prep_busy=parts, loop_cores=numbers, spread=parts,
        ),
        speed=st.builds(Speed, numbers, numbers, numbers),
        stalls=st.builds(Stalls, parts, parts),
        limit=st.sampled_from(["gpu", "prep", "fetch"]),
        confidence=st.builds(Confidence, parts, parts, parts, parts),
        advice=st.lists(st.builds(Advice, st.text(max_size=5), numbers, numbers), max_size=2).map(tuple),
        cached=parts,
        notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
    )
)  # fmt: skip
def test_every_profile_survives_json(profile: Profile) -> None:
    assert Profile.of_document(json.loads(json.dumps(profile.document()))) == profile


def test_a_link_stays_and_the_file_that_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link, second = tmp_path / "elsewhere" / "target", tmp_path / "link", tmp_path / "second"
    link.symlink_to("elsewhere/target")
    second.symlink_to("link")
    for text in ("new", "replaced"):  # the first makes what the link names
        write_text(second, text)
        assert target.read_text() == text
    assert link.is_symlink() and second.is_symlink()
    assert [one.name for one in target.parent.iterdir()] == ["target"]


@pytest.mark.parametrize("is_linked", [False, True])
def test_what_is_no_plain_file_is_written_to_and_stays(tmp_path: Path, is_linked: bool) -> None:
    pipe = path = tmp_path / "pipe"
    os.mkfifo(pipe)
    if is_linked:
        path = tmp_path / "link"
        path.symlink_to("pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(path, "text")
        assert os.read(reader, 100) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo() and path.is_symlink() == is_linked
    assert len(list(tmp_path.iterdir())) == 1 + is_linked


def test_a_directory_is_not_written_to(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        write_text(tmp_path, "text")
