import json
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cache.requests import Numbered
from tests.tries import HANG_S

from stoker.cache import stores
from stoker.cache.cached import Cache
from stoker.cache.shelf import Budget, Shelf
from stoker.cli import main
from stoker.errors import ConfigError

_JOB = """
import sys, time
from stoker.cache.shelf import Shelf
job = Shelf(sys.argv[1]).join(sys.argv[2], int(sys.argv[3]))
print("joined", flush=True)
sys.stdin.read()
"""


def started(directory: Path, name: str, budget: int) -> "subprocess.Popen[str]":
    job = subprocess.Popen(
        [sys.executable, "-c", _JOB, str(directory), name, str(budget)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    assert job.stdout.readline() == "joined\n"
    return job


def test_largest_budget_of_live_jobs_holds(shelf_dir: Path) -> None:
    shelf = Shelf(shelf_dir)
    own = shelf.join("data", 1000)
    budget = Budget(own.folder)
    assert budget.bytes() == 1000
    larger = started(shelf_dir, "data", 5000)
    smaller = started(shelf_dir, "data", 10)
    assert budget.bytes() == 5000
    larger.send_signal(signal.SIGKILL)
    larger.communicate()
    shelf.join("data", 1).close()  # each that comes sweeps
    assert budget.bytes() == 1000
    own.close()
    assert Budget(own.folder).bytes() == 10
    smaller.communicate()
    assert Budget(own.folder).bytes() == 0


def test_a_cache_outlives_its_jobs_and_is_found_again(shelf_dir: Path) -> None:
    shelf = Shelf(shelf_dir)
    first = shelf.join("data", 1000)
    stores.acquire(first.folder).put([(b"k" * 16, b"payload")], 1000)
    first.close()
    (found,) = shelf.caches()
    assert (found.name, found.jobs, found.stats.items, found.stats.payload_bytes) == ("data", 0, 1, 7)
    again = shelf.join("data", 1000)
    assert again.folder == first.folder
    assert stores.acquire(again.folder).get(b"k" * 16) == b"payload"
    assert shelf.join("other data", 1000).folder != first.folder


def test_idle_caches_make_room_oldest_first(small_tmpfs: Callable[[str], Path]) -> None:
    shelf = Shelf(small_tmpfs("size=8m"))
    for number, name in enumerate(["oldest", "older", "used"]):
        job = shelf.join(name, 1_500_000)
        for item in range(15):
            stores.acquire(job.folder).put([(item.to_bytes(16, "big"), bytes(100_000))], 1_500_000)
        os.utime(job.folder / "about.json", (number, number))
        if name != "used":
            job.close()
    new = shelf.join("new", 4_000_000)
    assert {found.name for found in shelf.caches()} == {"older", "used", "new"}
    with pytest.raises(ConfigError, match=r"cannot be held.*room for"):
        shelf.join("too much", 7_000_000)
    assert {found.name for found in shelf.caches()} == {"older", "used", "new"}  # nothing goes in vain
    new.close()


def test_more_than_can_be_held_is_refused(small_tmpfs: Callable[[str], Path]) -> None:
    place = small_tmpfs("size=4m")
    with pytest.raises(ConfigError, match=r"a cache of 1.0 GB cannot be held: .* 4.2 MB"):
        Shelf(place).join("data", 1_000_000_000)
    assert not Shelf(place).caches()


def test_private_caches_go_with_their_job(shelf_dir: Path) -> None:
    shelf = Shelf(shelf_dir)
    one, other = (shelf.join("data", 1000, is_private=True) for _ in range(2))
    assert one.folder != other.folder
    one.close()
    assert not one.folder.exists()
    assert len(shelf.caches()) == 1


def test_a_private_cache_whose_job_was_killed_is_swept(shelf_dir: Path) -> None:
    shelf = Shelf(shelf_dir)
    ready = multiprocessing.get_context("fork").SimpleQueue()

    def join() -> None:
        ready.put(shelf.join("data", 1000, is_private=True).folder)
        time.sleep(60)

    process = multiprocessing.get_context("fork").Process(target=join)
    process.start()
    folder = ready.get()
    process.kill()
    process.join()
    shelf.join("anything", 1)
    assert not folder.exists()


def test_a_damaged_cache_harms_no_other(shelf_dir: Path) -> None:
    shelf = Shelf(shelf_dir)
    job = shelf.join("damaged", 1000)
    (job.folder / "data.mdb").write_bytes(b"garbage" * 10_000)
    other = shelf.join("other", 1000)
    assert {found.name for found in shelf.caches()} == {"damaged", "other"}
    assert stores.acquire(other.folder).get(b"k" * 16) is None
    cache = Cache("damaged", 1000, shelf_dir)
    assert cache.get(b"k" * 16) is None
    assert "cannot be used" in cache.tally.take()[6]
    for found in shelf.caches():
        shelf.remove(found)
    assert not shelf.caches()


_AFTER_A_CUT = """
import sys, warnings
from tests.cache.requests import Numbered
from stoker.cache.cached import Cache
from stoker.cli import main
if sys.argv[2] == "job":
    cache = Cache("numbers", 1_000_000, sys.argv[1])
    request = Numbered(range(100))
    assert cache.fetch(request) == [request.payload(number) for number in request.ids]
    print(cache.tally.take()[5:7])
else:
    sys.exit(main(["cache", *sys.argv[2:], "--dir", sys.argv[1]]))
"""


@pytest.mark.parametrize("words", [["job"], ["ls"], ["clear"]], ids=" ".join)
@pytest.mark.parametrize("is_of_another_boot", [True, False], ids=["another boot", "the same boot"])
def test_a_store_that_was_cut_ends_nobody(tmp_path: Path, words: list[str], is_of_another_boot: bool) -> None:
    cache = Cache("numbers", 1_000_000, tmp_path)
    cache.fetch(Numbered(range(100)))
    folder = cache.folder
    assert folder is not None
    cache.close()
    stores.forget(folder)
    os.truncate(folder / "data.mdb", 6 * 4096)
    if is_of_another_boot:
        about = json.loads((folder / "about.json").read_text())
        (folder / "about.json").write_text(json.dumps(about | {"boot": "another"}))
    outcome = subprocess.run(
        [sys.executable, "-c", _AFTER_A_CUT, str(tmp_path), *words], capture_output=True, text=True, timeout=HANG_S
    )
    assert outcome.returncode == 0, (outcome.returncode, outcome.stderr)
    if words == ["job"] and not is_of_another_boot:
        assert outcome.stdout.startswith("(1, 'the cache in ")
        assert "is damaged" in outcome.stdout
    if words == ["clear"]:
        assert not folder.exists()


def test_clear_removes_whatever_lies_there(shelf_dir: Path) -> None:
    shelf = Shelf(shelf_dir)
    shelf.join("data", 1000).close()
    places = [shelf.folder / (digit * 32) for digit in "abcdef"]
    places[0].write_text("a file")
    places[1].symlink_to(shelf_dir)
    places[2].symlink_to("nowhere")
    places[3].mkdir()
    (places[4] / "jobs").mkdir(parents=True)
    (places[4] / "data.mdb").mkdir()
    places[5].mkdir()
    (places[5] / "about.json").mkdir()
    (places[5] / "jobs").write_text("")
    assert main(["cache", "clear", "--dir", str(shelf_dir)]) == 0
    assert [path.name for path in shelf.folder.iterdir()] == ["lock"]
    assert shelf_dir.is_dir()


@pytest.mark.parametrize("joins", [True, False], ids=["by the next job", "by one who looks"])
@pytest.mark.parametrize(
    "about", [None, "", "{}", '{"version": 0, "name": "old"}'], ids=["none", "empty", "no name", "old"]
)
def test_what_nobody_can_tell_is_swept(shelf_dir: Path, about: str | None, joins: bool) -> None:
    shelf = Shelf(shelf_dir)
    job = shelf.join("data", 1000)
    job.close()
    (job.folder / "about.json").unlink()
    if about is not None:
        (job.folder / "about.json").write_text(about)
    if joins:
        shelf.join("other", 1000)
    else:
        assert not shelf.caches()
    assert not job.folder.exists()


def test_names_that_are_no_text(shelf_dir: Path) -> None:
    name = os.fsdecode(b"/data/\xff\xfe")
    Shelf(shelf_dir).join(name, 1000)
    assert [found.name for found in Shelf(shelf_dir).caches()] == [name]


def test_what_another_start_of_the_host_left_is_not_used(shelf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(shelf_dir)
    folder = shelf.join("data", 1000).folder
    monkeypatch.setattr("stoker.host.process.boot", lambda: "another")
    assert not any(found.folder == folder and not found.is_private for found in shelf.caches())
    shelf.join("other", 1000)
    assert not folder.exists()


def test_nor_by_a_job_that_asks_for_the_same(shelf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(shelf_dir)
    before = shelf.join("data", 1000)
    with stores.visiting(before.folder) as opened:
        opened.put([(b"k" * 16, b"payload")], 1000)
    before.close()
    monkeypatch.setattr("stoker.host.process.boot", lambda: "another")
    with stores.visiting(shelf.join("data", 1000).folder) as opened:
        assert opened.get(b"k" * 16) is None


def test_a_child_that_outlives_a_job_does_not_keep_it(shelf_dir: Path) -> None:
    job = Shelf(shelf_dir).join("data", 1000)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        job.close()
        assert Budget(job.folder).bytes() == 0
        Shelf(shelf_dir).join("data", 10)  # nor is the shelf locked
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_job_that_was_killed_is_noticed_by_those_that_run(shelf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.cache.shelf._LOOK_AGAIN_S", 0.05)
    own = Shelf(shelf_dir).join("data", 1000)
    budget = Budget(own.folder)
    larger = started(shelf_dir, "data", 5000)
    assert budget.bytes() == 5000
    larger.kill()
    larger.communicate()
    deadline = time.monotonic() + HANG_S
    while budget.bytes() != 1000:
        assert time.monotonic() < deadline


def test_owner_only(shelf_dir: Path) -> None:
    job = Shelf(shelf_dir).join("data", 1000)
    stores.acquire(job.folder).put([(b"k" * 16, b"payload")], 1000)
    for path in [Shelf(shelf_dir).folder, *Shelf(shelf_dir).folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_another_user_cannot_read_it(shelf_dir: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    shelf_dir.chmod(0o755)
    job = Shelf(shelf_dir).join("data", 1000)
    stores.acquire(job.folder).put([(b"k" * 16, b"payload")], 1000)
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        refused = 0
        for path in (job.folder, job.folder / "data.mdb", job.folder / "jobs"):
            try:
                os.listdir(path) if path.suffix == "" else path.read_bytes()
            except PermissionError:
                refused += 1
        try:
            Shelf(shelf_dir).join("data", 1000)
        except PermissionError:
            refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4


def test_a_folder_that_others_may_write_is_refused(shelf_dir: Path) -> None:
    shelf = Shelf(shelf_dir)
    shelf.folder.mkdir()
    shelf.folder.chmod(0o777)
    with pytest.raises(PermissionError, match="of this user alone"):
        shelf.join("data", 1000)
    shelf.folder.rmdir()
    shelf.folder.symlink_to(shelf_dir)
    with pytest.raises(PermissionError, match="of this user alone"):
        shelf.join("data", 1000)
    assert stat.S_ISLNK(shelf.folder.lstat().st_mode)
