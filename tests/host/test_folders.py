"""The folder of a user, where others may have been before."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stoker
from stoker.cache.cached import Cache
from stoker.cache.shelf import Shelf
from stoker.errors import ResourceError
from stoker.group import door
from stoker.host import folders
from stoker.live import folder as live

STRANGER = 65534


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A place like /dev/shm and one like /run/user, and in them what would be this user's folders."""
    if os.getuid() != 0:
        pytest.skip("only root can make what belongs to another user")
    monkeypatch.delenv("STOKER_TOP", raising=False)
    (tmp_path / "shm").mkdir()
    (tmp_path / "shm").chmod(0o1777)
    (tmp_path / "run" / "0").mkdir(parents=True)
    (tmp_path / "run" / "0").chmod(0o700)
    monkeypatch.setattr(folders, "_TMPFS", tmp_path / "shm")
    monkeypatch.setattr(folders, "_RUNTIME", tmp_path / "run")
    return tmp_path / "shm" / "stoker-0", tmp_path / "run" / "0" / "stoker"


def take(place: Path, how: str) -> Path:
    """Do what another user would; where a link leads to."""
    elsewhere = place.parent / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    if how == "folder":
        place.mkdir()
        place.chmod(0o777)
    elif how == "file":
        place.touch()
    elif how == "link":
        place.symlink_to(elsewhere)
    else:
        place.symlink_to(elsewhere / "new")
    for one in (place, elsewhere):
        os.chown(one, STRANGER, STRANGER, follow_symlinks=False)
    return elsewhere


HOWS = ["folder", "file", "link", "link to nothing"]


class Numbers:
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("how", HOWS)
def test_all_go_to_the_other_place_and_make_nothing_through_a_link(places: tuple[Path, Path], how: str) -> None:
    first, other = places
    elsewhere = take(first, how)
    cache = Cache("data", 1000)
    assert cache.folder is not None
    assert cache.folder.parent == other
    with stoker.DataLoader(Numbers(), 2, group="test-own") as loader:
        assert len(list(loader)) == 4
        assert (other / "groups" / "test-own").is_dir()
        assert [seen.facts.group for seen in live.loaders().values()] == ["test-own"]
        assert Path(other / "loaders").is_dir()
    assert not list(elsewhere.iterdir())
    assert how != "folder" or not list(first.iterdir())
    assert other.stat().st_mode & 0o077 == 0
    cache.close()
    # Whatever becomes of the first place, those that come later find those that are there.
    first.unlink() if how != "folder" else first.rmdir()
    assert folders.home() == folders.make_home() == other
    assert [found.name for found in Shelf().caches()] == ["data"]


@pytest.mark.parametrize("how", HOWS)
def test_where_there_is_no_other_place_it_is_refused_and_the_owner_named(places: tuple[Path, Path], how: str) -> None:
    first, other = places
    elsewhere = take(first, how)
    other.parent.rmdir()
    said = f"{first} belongs to the user nobody.*there is no {other.parent}"
    with pytest.raises(folders.NotOwnError, match=said):
        folders.make_home()
    with pytest.raises(ResourceError, match=f"no place for the group 'test-own': {said}"):
        stoker.DataLoader(Numbers(), 2, group="test-own")
    cache = Cache("data", 1000)
    assert "the user nobody" in cache.tally.take()[6]
    with stoker.DataLoader(Numbers(), 2) as loader:  # which does without being seen
        assert len(list(loader)) == 4
    outcome = subprocess.run(
        [sys.executable, "-c", _COMMANDS, str(first.parent), str(other.parent.parent)], capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert outcome.stderr.count("the user nobody") == 4, outcome.stderr
    assert not list(elsewhere.iterdir())


def test_without_dev_shm_the_other_place_is_used(places: tuple[Path, Path]) -> None:
    first, other = places
    first.parent.rmdir()
    with stoker.DataLoader(Numbers(), 2, group="test-own") as loader:
        assert len(list(loader)) == 4
        assert (other / "groups" / "test-own").is_dir()


def test_without_any_place_it_is_said_what_to_do(places: tuple[Path, Path]) -> None:
    first, other = places
    first.parent.rmdir()
    other.parent.rmdir()
    with pytest.raises(ResourceError, match=rf"no place for the group 'test-own': {first.parent} is missing.*tmpfs"):
        stoker.DataLoader(Numbers(), 2, group="test-own")
    assert "No such file" in Cache("data", 1000).tally.take()[6]
    with stoker.DataLoader(Numbers(), 2) as loader:
        assert len(list(loader)) == 4
    assert not Shelf().caches()
    assert not live.loaders()


_COMMANDS = """
import sys
from pathlib import Path
from stoker.host import folders
from stoker.cli import main
folders._TMPFS, folders._RUNTIME = map(Path, sys.argv[1:])
codes = [main(words) for words in (["cache", "ls"], ["cache", "clear"], ["top", "--once"], ["metrics"])]
sys.exit(codes != [1, 1, 1, 1])
"""


def test_somebody_comes_first_while_it_is_made(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = places
    real: Callable[..., None] = os.mkdir

    def late(path: str, *options: int, **named: int) -> None:
        if path == first.name and not first.exists():
            real(first)
            os.chown(first, STRANGER, STRANGER)
        real(path, *options, **named)

    monkeypatch.setattr(os, "mkdir", late)
    assert folders.make_home() == other


def test_a_folder_of_ours_that_is_open_to_others(places: tuple[Path, Path]) -> None:
    first, other = places
    first.mkdir()
    first.chmod(0o750)
    assert folders.make_home() == other
    assert door.home() == other / "groups"


def test_a_place_that_the_user_names_has_no_other(places: tuple[Path, Path], tmp_path: Path) -> None:
    named = tmp_path / "disk"
    named.mkdir()
    elsewhere = take(named / "stoker-0", "link")
    cache = Cache("data", 1000, named)
    assert "belongs to the user nobody" in cache.tally.take()[6]
    assert not list(elsewhere.iterdir())
