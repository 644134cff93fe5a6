"""The folder that Python alone sees, beside the same one on a file system."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tries import HANG_S

LOOK = """
import glob, io, mmap, os, pathlib, shutil, sys
import numpy as np

root, before = sys.argv[1], os.getcwd()

def told(what, *rest, **named):
    try:
        found = what(*rest, **named)
    except OSError as error:
        found = type(error).__name__, error.errno
    except ValueError as error:
        found = str(error)
    print(repr(found).replace(root, "ROOT"))

def read(path, *rest, **named):
    with open(path, *rest, **named) as file:
        return file.read(), file.mode, file.name, file.readable(), file.writable()

def seen(path):
    status = os.stat(path)
    return oct(status.st_mode & 0o170000), status.st_size if not os.path.isdir(path) else 0

def scanned(path):
    with os.scandir(path) as entries:
        return sorted((e.name, e.path, e.is_dir(), e.is_file(), e.is_symlink(), os.fspath(e)) for e in entries)

def by_descriptor(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 3), os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)

def mapped(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as bytes_of:
        return bytes_of[:]

def linked(path):
    return os.readlink(path)

for path in (root, root + "/", root + "/a", root + "/a/one.txt", root + "/a/../b", root + "/none", root + "/a/one.txt/x",
             root + "//a//deep", root + "/a/./deep/two.bin", root + "/a/one.txt/", root + "/a/one.txt/.", root + "/a/."):
    for what in (seen, sorted, os.path.exists, os.path.isdir, os.path.isfile, os.path.lexists, os.path.islink, linked, read,
                 scanned):
        told((lambda path: sorted(os.listdir(path))) if what is sorted else what, path)
    told(os.access, path, os.R_OK)
    if not os.path.isdir(path):  # a folder has no descriptor here
        told(by_descriptor, path)
told(lambda: [(place, sorted(folders), sorted(files)) for place, folders, files in sorted(os.walk(root))])
told(lambda: sorted(os.listdir(os.fsencode(root))))
told(lambda: sorted(glob.glob(root + "/**/*.txt", recursive=True)))
told(lambda: sorted(glob.glob("*/*", root_dir=root)))
told(lambda: sorted(map(str, pathlib.Path(root).rglob("*"))))
told(lambda: sorted((path.name, path.is_dir(), path.is_file(), path.exists()) for path in pathlib.Path(root).iterdir()))
told(lambda: pathlib.Path(root, "a/one.txt").read_text())
told(lambda: pathlib.Path(root, "a/deep/two.bin").read_bytes())
told(lambda: str(pathlib.Path(root, "a/deep/../one.txt").resolve()))
told(read, root + "/a/one.txt", "r", encoding="latin-1", newline="")
told(read, root + "/a/one.txt", "rb")
told(read, os.fsencode(root + "/a/one.txt"), "rb")
told(read, root + "/a/one.txt", "rb", encoding="utf-8")
told(read, root + "/a/one.txt", "q")
told(lambda: io.open(root + "/a/one.txt").readlines())
told(lambda: open(root + "/a/one.txt", "rb", 0).readall())
told(lambda: open(root + "/a/one.txt", "rb", buffering=0).name)
told(lambda: open(root + "/a/one.txt", "r", 0))
told(lambda: open(root + "/a", "rb", 0))
told(lambda: os.open(root + "/a/one.txt", os.O_RDONLY | os.O_DIRECTORY))
told(lambda: np.fromfile(root + "/a/deep/two.bin", np.uint8).tolist())
told(lambda: np.load(root + "/b/three.npy", mmap_mode="r").tolist())
told(mapped, root + "/a/deep/two.bin")
told(lambda: os.path.samefile(root + "/a", root + "/b/../a") and not os.path.samefile(root + "/a", root + "/b"))
told(lambda: os.path.getsize(root + "/a/one.txt"))
told(lambda: shutil.copytree(root, "copy", copy_function=shutil.copyfile))
told(lambda: sorted(str(path) for path in pathlib.Path("copy").rglob("*")))
os.chdir(root)
told(lambda: (sorted(os.listdir()), sorted(os.listdir(".")), read("a/one.txt"), sorted(e.path for e in os.scandir())))
"""

WRITE = """
import os, sys
root, outside = sys.argv[1], "outside"
open(outside, "w").close()
for what in (lambda: open(root + "/a/one.txt", "w"), lambda: open(root + "/new", "xb"),
             lambda: open(root + "/a/one.txt", "r+"),
             lambda: os.open(root + "/new", os.O_CREAT | os.O_WRONLY), lambda: os.mkdir(root + "/new"),
             lambda: os.rename(outside, root + "/new"), lambda: os.replace(root + "/a/one.txt", outside),
             lambda: os.remove(root + "/a/one.txt"), lambda: os.symlink(outside, root + "/new"),
             lambda: os.utime(root + "/a/one.txt"), lambda: os.makedirs(root + "/new/er"), lambda: os.mkdir(root + "/a")):
    try:
        what()
    except OSError as error:
        print(type(error).__name__, error.strerror)
os.makedirs(root + "/a/deep", exist_ok=True)
"""


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    root = tmp_path / "storage"
    for name, content in {"a/one.txt": b"one\r\ntwo\n", "a/deep/two.bin": bytes(range(200)), "b/empty": b""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    make = "import numpy, sys; numpy.save(sys.argv[1], numpy.arange(6).reshape(2, 3))"
    subprocess.run([sys.executable, "-c", make, root / "b/three.npy"], check=True)
    return root


def mounted(storage: Path, tmp_path: Path, code: str, *before: str) -> "subprocess.CompletedProcess[str]":
    (tmp_path / "look.py").write_text(code)
    plan = tmp_path / "plan.toml"
    plan.write_text(f'version = 1\n[cache]\ncapacity_bytes = 100000000\ndir = "{tmp_path / "shelf"}"\n')
    where = f"file://{storage}={tmp_path / 'data'}"
    command = ["-m", "stoker", "run", "--plan", str(plan), "--mount-by", "python", "--mount", where, *before]
    return ran([*command, str(tmp_path / "look.py"), str(tmp_path / "data")], tmp_path / "mounted")


def ran(words: list[str], here: Path) -> "subprocess.CompletedProcess[str]":
    here.mkdir()
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=HANG_S, cwd=here)


def test_all_looks_as_on_a_file_system(storage: Path, tmp_path: Path) -> None:
    found = mounted(storage, tmp_path, LOOK)
    plain = ran([str(tmp_path / "look.py"), str(storage)], tmp_path / "plain")
    assert plain.returncode == 0, plain.stderr
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == plain.stdout.splitlines()
    assert os.listdir(tmp_path / "data") == []


def test_listings_are_sorted(storage: Path, tmp_path: Path) -> None:
    for name in ("z", "m", "c"):
        (storage / name).touch()
    code = "import os, sys\nprint(os.listdir(sys.argv[1]), [e.name for e in os.scandir(sys.argv[1])])"
    names = sorted(["a", "b", "c", "m", "z"])
    assert mounted(storage, tmp_path, code).stdout == f"{names} {names}\n"


def test_nobody_can_write(storage: Path, tmp_path: Path) -> None:
    found = mounted(storage, tmp_path, WRITE)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["OSError Read-only file system"] * 11 + ["FileExistsError File exists"]
    assert os.listdir(tmp_path / "data") == []


def test_processes_that_the_script_starts_have_it(storage: Path, tmp_path: Path) -> None:
    code = """
import multiprocessing, subprocess, sys

def read(path):
    return open(path + "/a/one.txt").read()

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            print(pool.map(read, sys.argv[1:])[0] == "one\\ntwo\\n")
    print(subprocess.run([sys.executable, "-c", f"print(len(open('{sys.argv[1]}/a/deep/two.bin', 'rb').read()))"],
                         capture_output=True, text=True).stdout.strip())
"""
    found = mounted(storage, tmp_path, code)
    assert found.stdout.splitlines() == ["True", "True", "True", "200"], found.stderr


def test_it_is_for_python_where_there_is_no_fuse(storage: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "mfusepy.py"
    hidden.write_text("raise OSError('Unable to find libfuse')\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\nfrom stoker.__main__ import main\n"
        "sys.exit(main(['run', *sys.argv[2:]]))\n"
    )
    (tmp_path / "without.py").write_text(code)
    script, data = tmp_path / "script.py", tmp_path / "data"
    script.write_text("import os, sys\nprint(os.listdir(sys.argv[1]))")
    words = ["--cache", "1MB", "--mount", f"{storage}={data}", str(script), str(data)]
    found = ran([str(tmp_path / "without.py"), str(tmp_path), *words], tmp_path / "here")
    assert found.stdout == "['a', 'b']\n", found.stderr
    assert "for Python alone, not for libraries in C or other programs (libfuse is not installed)" in found.stderr
    words = ["--mount-by", "fuse", *words]
    refused = ran([str(tmp_path / "without.py"), str(tmp_path), *words], tmp_path / "there")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "--mount-by fuse: libfuse is not installed" in refused.stderr


def test_it_is_for_python_where_mounting_is_not_permitted(storage: Path, tmp_path: Path) -> None:
    if os.getuid() or shutil.which("setpriv") is None or not os.path.exists("/dev/fuse"):
        pytest.skip("this needs root, setpriv and /dev/fuse")
    script, data = tmp_path / "script.py", tmp_path / "data"
    children = "open(f'/proc/self/task/{os.getpid()}/children').read()"
    script.write_text(f"import os, sys\nprint(os.listdir(sys.argv[1]), repr({children}))")
    limited = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    run = [sys.executable, "-m", "stoker", "run", "--cache", "1MB", "--mount", f"{storage}={data}", str(script), str(data)]
    found = subprocess.run([*limited, *run], capture_output=True, text=True, timeout=HANG_S)
    assert found.stdout == "['a', 'b'] ''\n", found.stderr
    assert "for Python alone" in found.stderr


def test_errors_are_told_once_and_a_cache_that_cannot_be_held_before_the_script(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        f"""
import multiprocessing, os, sys
open({str(storage / "a/one.txt")!r}, "a").write("more")

def read(_):
    try:
        open(sys.argv[1] + "/a/one.txt")
    except OSError as error:
        return error.errno

if __name__ == "__main__":
    for _ in range(2):
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            print(pool.map(read, range(4)))
"""
    )
    words = ["-m", "stoker", "run", "--mount-by", "python", "--mount", f"{storage}={tmp_path / 'data'}", "--cache"]
    script = [str(tmp_path / "script.py"), str(tmp_path / "data")]
    found = ran([*words, "1MB", *script], tmp_path / "here")
    assert found.stdout == "[116, 116, 116, 116]\n" * 2, found.stderr
    assert found.stderr.count("has changed since") == 1
    refused = ran([*words, "1000TB", *script], tmp_path / "there")
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1)
    assert "a cache of 1000.0 TB cannot be held" in refused.stderr


def test_a_folder_below_a_link_is_there_by_both_of_its_names(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    folder = tmp_path / "link/data"
    (tmp_path / "look.py").write_text(
        """
import os, pathlib, sys
real = pathlib.Path(sys.argv[1]).resolve()
print(sorted(os.listdir(real)), len(open(os.path.realpath(sys.argv[1] + "/a/one.txt")).read()))
os.chdir(os.path.dirname(sys.argv[1]))
print(sorted(os.listdir("data")))
"""
    )
    words = ["-m", "stoker", "run", "--cache", "1MB", "--mount-by", "python", "--mount", f"{storage}={folder}"]
    found = ran([*words, str(tmp_path / "look.py"), str(folder)], tmp_path / "here")
    assert found.stdout.splitlines() == ["['a', 'b'] 8", "['a', 'b']"], found.stderr


def test_folders_in_one_another_are_refused(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").touch()
    words = ["-m", "stoker", "run", "--cache", "1MB", "--mount", f"{storage}={tmp_path / 'data'}", "--mount"]
    for number, inner in enumerate(("data", "data/deep")):
        refused = ran([*words, f"{storage}={tmp_path / inner}", str(tmp_path / "script.py")], tmp_path / str(number))
        assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (1, "", 1), refused.stderr
        assert "is mounted, too" in refused.stderr


def test_the_functions_are_pickled_and_stand_in_classes_as_those_that_were_there(storage: Path, tmp_path: Path) -> None:
    code = """
import builtins, io, os, pickle, sys

class Reader:
    open, listed, status = open, os.listdir, os.stat

root, reader = sys.argv[1], Reader()
functions = open, os.listdir, os.stat, os.open, os.unlink
print(all(pickle.loads(pickle.dumps(one)) is one for one in functions), io.open is open)
print(reader.open(root + "/a/one.txt").readline(), reader.listed(root), reader.status(root).st_nlink, os.listdir.__name__)
"""
    found = mounted(storage, tmp_path, code)
    assert found.stdout.splitlines() == ["True True", "one", " ['a', 'b'] 2 listdir"], found.stderr


def test_classes_of_glob_that_call_scandir_themselves_stay_as_they_are(storage: Path, tmp_path: Path) -> None:
    """Those of Python 3.13 keep the function; of later ones some have another function of that name."""
    code = """
import glob, os, sys
from stoker.mount import replaced

class Keeps:
    scandir = staticmethod(os.scandir)

class Wraps:
    @staticmethod
    def scandir(path):
        return [(entry, entry.name, entry.path) for entry in os.scandir(path)]

glob.Keeps, glob.Wraps = Keeps, Wraps
folders = [one._mount for one in replaced._folders]
replaced.install(folders)
print([name for _, name, _ in Wraps.scandir(sys.argv[1])], Keeps.scandir is os.scandir)
"""
    found = mounted(storage, tmp_path, code)
    assert found.stdout == "['a', 'b'] True\n", found.stderr


def test_files_of_two_folders_are_not_the_same(storage: Path, tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(
        "import os, sys\nprint(os.path.samefile(*(one + '/a/one.txt' for one in sys.argv[1:])))"
    )
    folders = [str(tmp_path / name) for name in ("one", "two")]
    mounts = [word for folder in folders for word in ("--mount", f"{storage}={folder}")]
    words = ["-m", "stoker", "run", "--cache", "1MB", "--mount-by", "python", *mounts, str(tmp_path / "look.py"), *folders]
    found = ran(words, tmp_path / "here")
    assert found.stdout == "False\n", found.stderr


def test_a_file_that_was_written_anew_is_an_error_also_if_it_is_as_long_as_before(storage: Path, tmp_path: Path) -> None:
    code = f"""
import sys
open({str(storage / "a/one.txt")!r}, "wb").write(b"two\\r\\none\\n")
try:
    print(open(sys.argv[1] + "/a/one.txt").read())
except OSError as error:
    print(error.errno)
"""
    found = mounted(storage, tmp_path, code)
    assert found.stdout == "116\n", found.stderr
    assert "has changed since" in found.stderr


def test_a_fork_waits_for_a_thread_that_is_first_to_look(storage: Path, tmp_path: Path) -> None:
    code = """
import os, signal, sys, threading

started = threading.Event()

def look():
    started.set()
    os.listdir(sys.argv[1])

def read():
    signal.alarm(60)
    os._exit(open(sys.argv[1] + "/a/one.txt").read() != "one\\ntwo\\n")

threads = [threading.Thread(target=look) for _ in range(3)]
for thread in threads:
    thread.start()
started.wait()
children = []
for _ in range(6):
    child = os.fork()
    if not child:
        read()
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
"""
    found = mounted(storage, tmp_path, code)
    assert found.stdout == "[0, 0, 0, 0, 0, 0]\n", found.stderr
    assert "rror" not in found.stderr
