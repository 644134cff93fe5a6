"""Locks and entries of files: the kernel frees them with their holder."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.tries import until

from stoker.host import folders, locks

HANG_S = 120

HOLDER = """
import os, sys
from pathlib import Path
from stoker.host import folders

path, _ = folders.add_entry(Path(sys.argv[1]), lambda descriptor: os.write(descriptor, b"here"))
if sys.argv[2] == "forks" and not os.fork():
    os.close(1)  # the child lives on
    sys.stdin.read()
    os._exit(0)
print(path.name, flush=True)
sys.stdin.read()
"""


def _living(folder: Path) -> dict[str, bytes]:
    return {path.name: os.read(descriptor, 99) for path, descriptor in folders.entries(folder)}


@pytest.mark.parametrize("how", ["alone", "forks"])
def test_an_entry_lives_as_long_as_its_maker(tmp_path: Path, how: str) -> None:
    """A child that the maker forked does not keep it alive."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path), how]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout:
        name = holder.stdout.readline().strip()
        assert _living(tmp_path) == {name: b"here"}
        holder.kill()
        holder.wait(HANG_S)
        until(lambda: _living(tmp_path) == {})  # the child may not have let go of it yet
        assert list(tmp_path.iterdir()) == []


def test_an_entry_ends_when_its_lock_is_let_go_of(tmp_path: Path) -> None:
    path, descriptor = folders.add_entry(tmp_path, lambda entry: os.write(entry, b"1"))
    assert _living(tmp_path) == {path.name: b"1"}
    assert _living(tmp_path) == {path.name: b"1"}  # looking changes nothing
    locks.close_lock(descriptor)
    assert _living(tmp_path) == {}
    assert not path.exists()


def test_one_that_cannot_be_filled_leaves_nothing(tmp_path: Path) -> None:
    def fill(_: int) -> None:
        raise OSError("no space")

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no space"):
        folders.add_entry(tmp_path, fill)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_that_is_being_made_is_left_alone_while_it_is_locked(tmp_path: Path) -> None:
    def look(descriptor: int) -> None:
        assert _living(tmp_path) == {}

    (tmp_path / ".left by somebody who was killed").touch()
    path, descriptor = folders.add_entry(tmp_path, look)
    assert list(tmp_path.iterdir()) == [path]
    locks.close_lock(descriptor)


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "file")
    assert _living(folder) == {}
    with pytest.raises(OSError, match="symbolic links"):
        locks.open_lock(folder / "link", os.O_RDWR)


def test_one_at_a_time_of_threads_too(tmp_path: Path) -> None:
    inside, most = 0, 0

    def come() -> None:
        nonlocal inside, most
        for _ in range(50):
            with locks.alone(tmp_path / "lock"):
                inside += 1
                most = max(most, inside)
                time.sleep(0)
                inside -= 1

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert most == 1


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    ready, told = os.pipe()
    release, ended = os.pipe()
    with locks.alone(tmp_path / "lock"):
        child = os.fork()
        if not child:
            os.write(told, b".")
            os.close(ended)
            os.read(release, 1)
            os._exit(0)
        os.read(ready, 1)
    descriptor = locks.open_lock(tmp_path / "lock", os.O_RDWR)
    try:
        assert locks.take(descriptor)
    finally:
        locks.close_lock(descriptor)
        os.close(ended)
        os.waitpid(child, 0)
        for one in (ready, told, release):
            os.close(one)
