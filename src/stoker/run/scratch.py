"""Run a command over an overlay of folders, in a mount namespace of its own. No other process sees what it writes there.

    python -m stoker.run.scratch UPPER FOLDER [FOLDER...] -- COMMAND [ARGS...]

The command sees the folders as they are, and everything that is mounted below them. What it writes, changes or removes
there goes to UPPER, which the caller removes. All other places are the real ones.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from stoker.errors import CommandError
from stoker.host.mounts import mounts

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14
_PLACES = ("/dev/shm", "/var/tmp", "/run")
_libc = ctypes.CDLL(None, use_errno=True)


def folders_of(script: Sequence[str], here: Path) -> list[Path]:
    """The folders that a script is likely to write to: the working directory, and those of the files that it names."""
    named = [Path(word).resolve().parent for word in script if word.endswith(".py") and Path(word).is_file()]
    found: list[Path] = []
    for folder in sorted({here.resolve(), *named}, key=lambda path: len(path.parts)):
        if not any(folder.is_relative_to(outer) for outer in found):
            found.append(folder)
    return found


def place_for(folders: Iterable[Path], wanted: str) -> str:
    """A folder for what is written. It does not lie below the overlaid folders."""
    folders = list(folders)
    for place in (wanted, *_PLACES):
        if os.access(place, os.W_OK) and not any(Path(place).resolve().is_relative_to(folder) for folder in folders):
            return place
    raise CommandError(f"--scratch cannot be had: there is no place outside {folders[0]} for what the script writes")


def command(upper: str, folders: Iterable[Path], words: Sequence[str]) -> list[str]:
    """The command line that runs a command over overlays."""
    return [sys.executable, "-m", "stoker.run.scratch", upper, *map(str, folders), "--", *words]


def check(upper: str, folders: Iterable[Path]) -> None:
    """Raise if this host does not allow overlays."""
    done = subprocess.run(command(upper, folders, ["/bin/true"]), capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it is not said why"])[-1]
        raise CommandError(f"--scratch cannot be had: {reason}")


def _enter(upper: str, folders: Sequence[str]) -> None:
    """Enter a namespace in which every folder has its overlay."""
    uid, gid = os.getuid(), os.getgid()
    if _libc.unshare(_NEW_MOUNTS | (_NEW_USER if uid else 0)):
        raise _error("a mount namespace of its own is not permitted")
    if uid:  # the same user in a namespace where it may mount
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _mount("none", "/", None, _PRIVATE | _RECURSIVE, None)
    below = [place for folder in folders for place in [folder, *_mounted_below(folder)]]
    opened = [os.open(place, os.O_PATH) for place in below]  # the overlay of one hides what is mounted below it
    for number, (place, descriptor) in enumerate(zip(below, opened, strict=True)):
        written, work = Path(upper) / f"{number}", Path(upper) / f"{number}.work"
        written.mkdir(exist_ok=True)
        work.mkdir(exist_ok=True)
        options = f"lowerdir=/proc/self/fd/{descriptor},upperdir={written},workdir={work}"
        _mount("overlay", place, "overlay", 0, options + (",userxattr" if uid else ""))
    for descriptor in opened:
        os.close(descriptor)


def _mounted_below(folder: str) -> list[str]:
    """Folders below that are file systems of their own, outer ones first."""
    found = []
    for mount in mounts():
        point = mount.point
        if point != folder and Path(point).is_relative_to(folder) and os.path.isdir(point) and point not in found:
            found.append(point)
    return sorted(found, key=lambda point: len(Path(point).parts))


def _mount(source: str, target: str, kind: str | None, flags: int, options: str | None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    if _libc.mount(*words, ctypes.c_ulong(flags), None if options is None else os.fsencode(options)):
        raise _error(f"{target} cannot have an overlay")


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def main(words: Sequence[str]) -> None:
    """Become the command."""
    end = words.index("--")
    here = os.getcwd()
    try:
        _enter(words[0], words[1:end])
    except OSError as error:
        sys.exit(error.strerror or str(error))
    os.chdir(here)  # what was there is below the overlay
    os.execvp(words[end + 1], list(words[end + 1 :]))


if __name__ == "__main__":
    main(sys.argv[1:])
