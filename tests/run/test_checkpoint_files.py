"""Files that a restarted script changes on its way: they are as they were, whatever it did, and whenever it was killed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.run.restart.journal import Journal, recover


def everything(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Names, contents, modes and times of all files, and where links go."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = (os.readlink(path), 0, 0)
        elif path.is_dir():
            found[str(path.relative_to(folder))] = ("/", 0, 0)
        else:
            status = path.stat()
            found[str(path.relative_to(folder))] = (path.read_text("latin-1"), status.st_mode, status.st_mtime_ns)
    return found


# What scripts do to their files. They are in a folder with best.pt, log.csv, link -> best.pt, samples/0.png, samples/1.png
CHANGES = {
    "overwrite": "open('best.pt', 'w').write('new')",
    "append": "open('log.csv', 'a').write('new')",
    "change in the middle": "f = open('log.csv', 'r+'); f.seek(1); f.write('new'); f.close()",
    "by a link": "open('link', 'w').write('new')",
    "by the system": "f = os.open('best.pt', os.O_WRONLY | os.O_TRUNC); os.write(f, b'new'); os.close(f)",
    "replace": "open('tmp', 'w').write('new'); os.replace('tmp', 'best.pt')",
    "with pathlib": "Path('best.pt').write_text('new'); Path('more').mkdir(); Path('more/x').touch()",
    "remove": "os.remove('best.pt'); Path('link').unlink()",
    "make": "os.makedirs('a/b'); open('a/b/c', 'w').write('new'); os.symlink('a', 'b'); os.link('log.csv', 'hard')",
    "move": "shutil.move('best.pt', 'samples/best.pt')",
    "move a folder": "os.rename('samples', 'old'); os.mkdir('samples'); open('old/0.png', 'w').write('new')",
    "remove a folder": "shutil.rmtree('samples'); os.mkdir('samples'); open('samples/0.png', 'w').write('new')",
    "copy": "shutil.copy('log.csv', 'best.pt'); shutil.copytree('samples', 'copies')",
    "truncate": "os.truncate('log.csv', 1)",
    "elsewhere": "os.chdir('samples'); open('0.png', 'w').write('new'); open('../log.csv', 'a').write('x')",
    "torch": "import torch; torch.save(torch.ones(3), 'best.pt'); torch.save(1, 'new.pt')",
    "numpy": "import numpy; numpy.save('best.pt', numpy.ones(3)); numpy.savez('new', a=numpy.ones(2))",
    "safetensors": "import torch, safetensors.torch as s; s.save_file({'a': torch.ones(2)}, 'best.pt')",
    "many times": "[open('log.csv', mode).write('x') for mode in 'awawa']",
}

_PASS = """
import json, os, shutil, signal, sys
from pathlib import Path
from stoker.run.restart.guard import Guard
sys.path.insert(0, sys.argv[4])
from tests.run.test_checkpoint_files import everything
folder, directory = Path(sys.argv[1]), Path(sys.argv[2])
before = everything(folder)
for change in json.loads(sys.argv[3]):
    os.chdir(folder)
    guard = Guard(directory)
    guard.begin_passing()
    exec(change)
    if sys.argv[5] == 'killed':
        os.kill(os.getpid(), signal.SIGKILL)
    assert everything(folder) != before, change
    assert guard.put_back() == []
    assert everything(folder) == before, change
open(folder / 'after', 'w').write('written afterwards')
"""


def change_files(users: Path, changes: list[str], ending: str) -> subprocess.CompletedProcess[str]:
    """Have a process change files while epochs are passed, and put them back or be killed."""
    root, directory = Path(__file__).parents[2], users.parent / "checkpoints"
    words = [sys.executable, "-c", _PASS, str(users), str(directory), json.dumps(changes), str(root), ending]
    return subprocess.run(words, capture_output=True, text=True)


@pytest.fixture
def users(tmp_path: Path) -> Path:
    folder = tmp_path / "users"
    (folder / "samples").mkdir(parents=True)
    (tmp_path / "checkpoints").mkdir()
    for name in ("best.pt", "log.csv", "samples/0.png", "samples/1.png"):
        (folder / name).write_text(f"{name} as it was")
        os.utime(folder / name, ns=(10**18, 10**18 + len(name)))
    (folder / "best.pt").chmod(0o640)
    (folder / "link").symlink_to("best.pt")
    return folder


def test_all_kinds_of_changes_are_undone(users: Path, tmp_path: Path) -> None:
    done = change_files(users, list(CHANGES.values()), "put back")
    assert done.returncode == 0, done.stderr
    assert (users / "after").read_text() == "written afterwards"
    assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.parametrize("name", ["replace", "remove a folder", "move a folder", "torch"])
def test_after_a_crash_the_next_start_undoes_them(name: str, users: Path, tmp_path: Path) -> None:
    before = everything(users)
    assert change_files(users, [CHANGES[name]], "killed").returncode == -9
    assert everything(users) != before
    files, words = recover(tmp_path / "checkpoints")
    assert files and not words
    assert everything(users) == before
    assert recover(tmp_path / "checkpoints") == (0, [])


def test_a_crash_while_files_are_put_back(users: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was undone is undone again."""
    before = everything(users)
    journal = Journal(tmp_path / "checkpoints")
    for name in ("best.pt", "log.csv", "new", "samples/0.png"):
        journal.note(str(users / name))
        (users / name).write_text("changed")
    renamed: list[str] = []
    rename = os.rename

    def fails(source: str, target: str) -> None:
        if len(renamed) == 1:
            raise KeyboardInterrupt
        renamed.append(target)
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(KeyboardInterrupt):
        journal.put_back({})
    monkeypatch.undo()
    gone = journal.folder.with_name("1-1")  # of a process that is no more
    journal.folder.rename(gone)
    recover(tmp_path / "checkpoints")
    for left in users.rglob(".*.partial"):
        left.unlink()
    assert everything(users) == before


def test_a_line_that_was_cut_off_is_of_a_change_that_did_not_go_on(users: Path, tmp_path: Path) -> None:
    before = everything(users)
    journal = Journal(tmp_path / "checkpoints")
    journal.note(str(users / "best.pt"))
    (users / "best.pt").write_text("changed")
    with (journal.folder / "journal").open("a") as file:
        file.write('{"path": "' + str(users / "log.csv"))
    journal.folder.rename(journal.folder.with_name("1-1"))
    recover(tmp_path / "checkpoints")
    assert everything(users) == before


def test_the_files_of_a_process_that_lives_are_its_own(users: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "checkpoints")
    journal.note(str(users / "best.pt"))
    (users / "best.pt").write_text("changed")
    assert recover(tmp_path / "checkpoints") == (0, [])
    assert (users / "best.pt").read_text() == "changed"
    assert oct(journal.folder.stat().st_mode)[-3:] == oct(journal.folder.parent.stat().st_mode)[-3:] == "700"
    assert {oct(path.stat().st_mode)[-3:] for path in journal.folder.iterdir()} == {"600"}
    journal.put_back({})


_BEFORE_LOOPS = """
import os, sys
from pathlib import Path
from stoker.run.restart.guard import Guard
os.chdir(sys.argv[1])
guard = Guard(Path(sys.argv[2]))
open('best.pt', 'w').write('initial')          # what every start writes
os.remove('samples/0.png')
log = open('log.csv', 'w'); log.write('header')  # and keeps open, with something in its buffer
added = open('added', 'a'); added.write('1')
Path('vocabulary').write_text('made once')
if sys.argv[3] == 'passes':
    guard.begin_passing()
    log.write('passed'); log.flush(); added.write('2'); added.flush()
guard.put_back()
log.write(', then more'); log.close()
added.write('3'); added.close()
"""


@pytest.mark.parametrize("passes", ["passes", "goes on at once"])
def test_what_every_start_of_a_script_begins_anew(passes: str, users: Path, tmp_path: Path) -> None:
    (users / "added").write_text("0")
    before = everything(users)
    words = [sys.executable, "-c", _BEFORE_LOOPS, str(users), str(tmp_path / "checkpoints"), passes]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    after = everything(users)
    assert after.pop("log.csv")[0] == "log.csv as it was, then more"
    assert after.pop("added")[0] == "013"
    assert after.pop("vocabulary")[0] == "made once"
    assert after == {name: value for name, value in before.items() if name not in ("log.csv", "added")}


def test_a_copy_that_cannot_be_kept_ends_the_script_before_the_change(users: Path, tmp_path: Path) -> None:
    before = everything(users)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").write_text("not a folder")
    done = change_files(users, [CHANGES["overwrite"]], "put back")
    assert done.returncode == 1
    assert "no copy of it can be kept" in done.stderr
    assert everything(users) == before


def test_journals_are_lines_of_json(users: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "checkpoints")
    journal.note(str(users / "best.pt"), empties=True)
    journal.note(str(users / "best.pt"))  # it is known
    journal.note(str(users / "new"))
    lines = [json.loads(line) for line in (journal.folder / "journal").read_text().splitlines()]
    assert [(Path(line["path"]).name, line["was"]) for line in lines] == [("best.pt", "file"), ("new", "absent")]
    journal.put_back({})


_ROTATES = """
import os, sys
from pathlib import Path
from stoker.run.restart.guard import Guard
os.chdir(sys.argv[1])
guard = Guard(Path(sys.argv[2]))
os.replace('log.csv', 'log.csv.1')             # as at every start
log = open('log.csv', 'w'); log.write('of this start')
Path('best.tmp').write_text('initial'); os.replace('best.tmp', 'best.pt')
guard.put_back()
log.close()
"""


def test_a_log_that_every_start_rotates(users: Path, tmp_path: Path) -> None:
    """The last log is where the script has put it; the best model is not replaced by one that is new."""
    (users / "log.csv.1").write_text("of long ago")
    words = [sys.executable, "-c", _ROTATES, str(users), str(tmp_path / "checkpoints")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert (users / "log.csv.1").read_text() == "log.csv as it was"
    assert (users / "log.csv").read_text() == "of this start"
    assert (users / "best.pt").read_text() == "best.pt as it was"


def test_a_disk_that_takes_a_part_of_a_line(users: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(users)
    journal = Journal(tmp_path / "checkpoints")
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, text: write(descriptor, bytes(text)[:7]))
    for name in ("best.pt", "log.csv"):
        journal.note(str(users / name))
    monkeypatch.undo()
    for name in ("best.pt", "log.csv"):
        (users / name).write_text("changed")
    assert journal.put_back({}) == []
    assert everything(users) == before


def test_room_that_only_the_changed_file_has(users: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where there is none at all, it is told, the copy is kept, and nothing is left beside the file."""
    before = everything(users)
    copy = shutil.copyfile

    def full(source: Path, target: Path) -> object:
        if (users / "best.pt").exists() or (users / "full").exists():
            Path(target).touch()
            raise OSError(28, "No space left on device")
        return copy(source, target)

    for full_for_ever in (False, True):
        journal = Journal(tmp_path / "checkpoints")
        journal.note(str(users / "best.pt"))
        (users / "best.pt").write_text("changed")
        if full_for_ever:
            (users / "full").touch()
        monkeypatch.setattr(shutil, "copyfile", full)
        words = journal.put_back({})
        monkeypatch.undo()
        assert not list(users.rglob(".*.partial"))
        if full_for_ever:
            assert "could not be put back (No space left on device)" in words[0]
            assert (journal.folder / "0").read_text() == "best.pt as it was"
        else:
            assert not words
            assert everything(users) == before
