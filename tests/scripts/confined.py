"""Runs a command as a container would: small /dev/shm, read-only root, a user without a name, seccomp, no capabilities.

    unshare --mount --pid --fork --ipc python confined.py [--no SYSCALL,..] [--shm SIZE] -- COMMAND...

Started by root. Everything is done in namespaces of its own, and gone with it.
"""

import argparse
import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path

USER = 1000
# x86_64. What Docker's default profile refuses to those without capabilities, as far as anything here could want it.
REFUSED = {
    "ptrace": 101, "mount": 165, "umount2": 166, "unshare": 272, "setns": 308, "keyctl": 250, "bpf": 321, "kcmp": 312,
    "perf_event_open": 298, "process_vm_readv": 310, "process_vm_writev": 311, "userfaultfd": 323, "pidfd_getfd": 438,
    "io_uring_setup": 425, "set_mempolicy": 238, "mbind": 237, "open_by_handle_at": 304, "reboot": 169, "swapon": 167,
}  # fmt: skip
OTHERS = {"memfd_create": 319, "pidfd_open": 434}
_ERRNO, _ALLOW, _EPERM = 0x00050000, 0x7FFF0000, 1
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


def run(*words: object) -> None:
    subprocess.run(list(map(str, words)), check=True)


def expose(paths: list[Path]) -> None:
    """Make folders reachable that lie in one that is root's alone."""
    hidden: dict[Path, list[Path]] = {}
    for path in dict.fromkeys(paths):
        if any(path != other and path.is_relative_to(other) for other in paths):
            continue
        above = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
        if above:
            hidden.setdefault(above[0], []).append(path)
    run("mount", "-t", "tmpfs", "tmpfs", "/mnt")
    for folder, inside in hidden.items():
        for number, path in enumerate(inside):
            Path(f"/mnt/{number}").mkdir(exist_ok=True)
            run("mount", "--bind", path, f"/mnt/{number}")
        run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
        for number, path in enumerate(inside):
            path.mkdir(parents=True)
            run("mount", "--bind", f"/mnt/{number}", path)
    run("umount", "-R", "/mnt")


def refuse(names: dict[str, int]) -> None:
    """Have the kernel refuse system calls, for this process and all that it starts."""
    load = struct.pack("HBBI", 0x20, 0, 0, 0)  # the number of the call
    rules = [
        struct.pack("HBBI", 0x15, 0, 1, number) + struct.pack("HBBI", 0x06, 0, 0, _ERRNO | _EPERM)
        for number in names.values()
    ]
    program = load + b"".join(rules) + struct.pack("HBBI", 0x06, 0, 0, _ALLOW)
    content = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(content))
    libc = ctypes.CDLL(None, use_errno=True)
    for words in ((_NO_NEW_PRIVS, 1, 0, 0, 0), (_SET_SECCOMP, _FILTER, header, 0, 0)):
        if libc.prctl(*words):
            raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--no", default="")
    parser.add_argument("--shm", default="size=64m,mode=1777")
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    if options.inside:
        refuse(REFUSED | {name: OTHERS[name] for name in options.no.split(",") if name})
        os.execvp(options.command[0], options.command)
    run("mount", "--make-rprivate", "/")
    home = Path(__file__).parents[2]
    expose([Path(sys.base_prefix), Path(sys.prefix), home, *(Path(place) for place in sys.path if Path(place).is_dir())])
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "tmpfs", "-o", options.shm, "tmpfs", "/dev/shm")
    # dill, which torch imports where it is installed, cannot be imported without a folder for temporary files.
    run("mount", "-t", "tmpfs", "-o", "size=16m,mode=1777", "tmpfs", "/var/tmp")
    run("mount", "-o", "remount,bind,ro", "/")
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    words = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups", "--bounding-set", "-all", "--no-new-privs"]
    words += [sys.executable, __file__, "--inside", "--no", options.no, "--", *options.command]
    os.chdir(home)
    os.execvpe("setpriv", list(map(str, words)), environment)


main()
