"""Hosts inside this machine: each has a network, mounts, processes, a name, a /dev/shm and a disk with the data of its own.

    with Hosts(data, 3) as hosts:
        process = hosts[0].start([sys.executable, "train.py"])
        ...
        hosts[0].bytes_read()         what its disk has delivered, by the kernel's count

Links are as fast as the machine, unless `limit_link` is called. A disk is a read-only loop device over one image, with a
page cache of its own; `limit_disk` sets its rate. Needs root, `ip`, `tc`, `losetup` and mkfs.ext4; limits of disks
and cores need the controllers of cgroups, v1 or v2. Everything is gone when the context ends.
"""

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

TOOLS = ["ip", "tc", "losetup", "mkfs.ext4", "debugfs", "unshare", "nsenter"]
_GROUPS = Path("/sys/fs/cgroup")
_IS_V2 = Path(_GROUPS, "cgroup.controllers").exists()
_PERIOD_US = 10_000
_FIRST_WEIGHT, _FIRST_SHARES = 10_000, 262_144
"""The most that the kernel takes, where 100 and 1024 are usual."""
_SECTOR = 512

# The first process of a host: it prepares the place, says so, and stays until it is killed.
_FIRST = """
set -e
mount -t proc proc /proc
mount -t sysfs sysfs /sys 2>/dev/null || true
mount -t tmpfs -o size=$5 tmpfs /dev/shm
mount --bind "$3" /etc/hosts
hostname "$1"
mount -o ro "$2" "$4"
ip link set lo up
trap '' CHLD
echo ready
exec sleep infinity
"""


class Host:
    """One of the hosts. `start` runs a command there."""

    def __init__(self, name: str, address: str, device: str, data: Path, first: "subprocess.Popen[str]") -> None:
        self.name, self.address, self.data = name, address, data
        """Its name, its address on the network, and the folder where it sees the data."""
        self.device = device
        self._first = first
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        self.pid = int(children[0])
        self._groups: list[Path] = []
        self._started: list[subprocess.Popen[str]] = []

    def command(self, words: Sequence[str | Path]) -> list[str]:
        """The command line that runs a command on this host, in this folder."""
        enter = ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "-p", f"--wd={os.getcwd()}"]
        return [*enter, *map(str, words)]

    def start(self, words: Sequence[str | Path], **options: Any) -> "subprocess.Popen[str]":
        """Start a command. Its standard output can be read, unless the options say otherwise."""
        wanted: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "preexec_fn": self._join} | options
        process: subprocess.Popen[str] = subprocess.Popen(self.command(words), **wanted)
        self._started.append(process)
        return process

    def run(self, words: Sequence[str | Path], **options: Any) -> str:
        """Run a command to its end, and return what it printed. Raises if it fails."""
        wanted: dict[str, Any] = {
            "check": True,
            "stdout": subprocess.PIPE,
            "text": True,
            "preexec_fn": self._join,
        } | options
        return str(subprocess.run(self.command(words), **wanted).stdout)

    def _join(self) -> None:
        """Be limited as the host is. Called in a new process."""
        for group in self._groups:
            (group / "cgroup.procs").write_text("0")

    def stop(self, process: "subprocess.Popen[str]") -> None:
        """End a command that was started here: the command itself, and not only what entered the host for it."""
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGTERM)
        process.wait()

    def pids(self) -> list[int]:
        """The processes of this host but its first, as this machine numbers them."""
        return [pid for pid in _processes(self.pid) if pid != self.pid]

    def bytes_read(self) -> int:
        """How many bytes the host's disk has delivered."""
        fields = Path(f"/sys/block/{Path(self.device).name}/stat").read_text().split()
        return int(fields[2]) * _SECTOR

    def bytes_received(self) -> int:
        """How many bytes have come to the host over its link."""
        lines = Path(f"/proc/{self.pid}/net/dev").read_text().splitlines()
        return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("eth0:"))

    def processor_s(self) -> float:
        """The processor time of the processes that this host has now."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def limit_disk(self, bytes_per_s: int) -> None:
        """Limit what commands that are started from now on read from this host's disk."""
        number = os.stat(self.device).st_rdev
        device = f"{os.major(number)}:{os.minor(number)}"
        if _IS_V2:
            (self._group("io") / "io.max").write_text(f"{device} rbps={bytes_per_s}")
        else:
            (self._group("blkio") / "blkio.throttle.read_bps_device").write_text(f"{device} {bytes_per_s}")

    def come_first(self) -> None:
        """Let commands that are started from now on have processor time before all else on this machine."""
        name = "cpu.weight" if _IS_V2 else "cpu.shares"
        (self._group("cpu") / name).write_text(str(_FIRST_WEIGHT if _IS_V2 else _FIRST_SHARES))

    def limit_cores(self, cores: float) -> None:
        """Give commands that are started from now on so much processor time, all together: no more, and before others."""
        self.come_first()
        group, quota_us = self._group("cpu"), int(cores * _PERIOD_US)
        if _IS_V2:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))

    def _group(self, controller: str) -> Path:
        group = (_GROUPS if _IS_V2 else _GROUPS / controller) / f"stoker-{self.pid}-{self.name}"
        group.mkdir(exist_ok=True)
        if group not in self._groups:
            self._groups.append(group)
        return group

    def limit_link(self, bits_per_s: int) -> None:
        """Limit what this host sends."""
        words = ["dev", "eth0", "root", "tbf", "rate", f"{bits_per_s}bit", "burst", "256kb", "latency", "50ms"]
        self.run(["tc", "qdisc", "replace", *words])

    def cut_link(self, *, is_up: bool = False) -> None:
        """Take the link down, or bring it up again."""
        self.run(["ip", "link", "set", "eth0", "up" if is_up else "down"])

    def end(self) -> None:
        """End the host, and all of its processes with it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._first.kill()
        self._first.wait()
        for process in self._started:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for group in self._groups:
            with contextlib.suppress(OSError):
                group.rmdir()


def _processes(first: int) -> list[int]:
    """The processes in the namespace of one of them."""
    space = os.readlink(f"/proc/{first}/ns/pid")
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{entry}/ns/pid") == space:
                    found.append(int(entry))
    return found


class Hosts(Sequence[Host]):
    """Some hosts on one network, each with the files of a folder on its own disk."""

    def __init__(self, data: Path, count: int, *, memory: str = "2g") -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hosts-"))
        self._switch = f"switch-{secrets.token_hex(4)}"
        self._hosts: list[Host] = []
        self._devices: list[str] = []
        try:
            self._make(data, count, memory)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._hosts)

    def __getitem__(self, which: Any) -> Any:
        return self._hosts[which]

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self, data: Path, count: int, memory: str) -> None:
        names = [f"host{number}" for number in range(count)]
        addresses = [f"10.9.0.{number + 1}" for number in range(count)]
        known = self._folder / "hosts"
        lines = [f"{address} {name}" for address, name in zip(addresses, names, strict=True)]
        known.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        image = self._folder / "image"
        size = sum(path.stat().st_size + 8192 for path in data.rglob("*"))
        with open(image, "wb") as file:
            file.truncate(int(size * 1.1) + (16 << 20))
        _quiet("mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", "-N", str(_entries(data)), "-d", str(data), str(image))
        _quiet("debugfs", "-w", "-R", "rmdir lost+found", str(image))
        _quiet("ip", "netns", "add", self._switch)
        _quiet("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _quiet("ip", "-n", self._switch, "link", "set", "bridge", "up")
        place = self._folder / "data"
        place.mkdir()
        for number, (name, address) in enumerate(zip(names, addresses, strict=True)):
            device = _quiet("losetup", "--read-only", "--find", "--show", str(image)).strip()
            self._devices.append(device)
            host = Host(name, address, device, place, self._first(name, device, known, place, memory))
            self._hosts.append(host)
            link = f"link{number}"
            ends = ["type", "veth", "peer", "name", "eth0", "netns", str(host.pid)]
            _quiet("ip", "link", "add", link, "netns", self._switch, *ends)
            _quiet("ip", "-n", self._switch, "link", "set", link, "master", "bridge", "up")
            host.run(["ip", "address", "add", f"{address}/24", "dev", "eth0"])
            host.run(["ip", "link", "set", "eth0", "up"])

    def _first(self, name: str, device: str, known: Path, place: Path, memory: str) -> "subprocess.Popen[str]":
        apart = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        words = ["sh", "-c", _FIRST, "sh", name, device, str(known), str(place), memory]
        first = subprocess.Popen([*apart, *words], stdout=subprocess.PIPE, text=True)
        assert first.stdout is not None
        with first.stdout:
            if first.stdout.readline() != "ready\n":
                raise OSError(f"{name} could not be made")
        return first

    def close(self) -> None:
        """End all hosts, and remove what they had."""
        for host in self._hosts:
            host.end()
        subprocess.run(["ip", "netns", "delete", self._switch], capture_output=True)
        for device in self._devices:
            subprocess.run(["losetup", "--detach", device], capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def _entries(folder: Path) -> int:
    """How many inodes its file system needs, and some to spare: it divides them among groups."""
    return sum(5 for _ in folder.rglob("*")) // 4 + 256


def _quiet(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def missing() -> str:
    """Why there can be no hosts on this machine; "" if there can."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"{', '.join(absent)} not found"
    return "" if os.getuid() == 0 and sys.platform == "linux" else "needs root"


@contextlib.contextmanager
def with_secret(count: int, write_files: Callable[[Path], None] | None = None) -> Iterator[tuple[Hosts, dict[str, str]]]:
    """Hosts that know a secret, with the files that a function writes; and the environment of commands there. Nothing that
    was measured before is known there."""
    with tempfile.TemporaryDirectory() as name:
        secret, data = Path(name, "secret"), Path(name, "data")
        secret.write_text(secrets.token_hex(32))
        secret.chmod(0o600)
        data.mkdir()
        if write_files is not None:
            write_files(data)
        here = Path(__file__).resolve().parent
        more = {"STOKER_SECRET_FILE": str(secret), "PYTHONPATH": f"{here}:{here.parent / 'src'}"}
        with Hosts(data, count) as hosts:
            yield hosts, os.environ | more | {"XDG_CACHE_HOME": str(Path(name, "cache"))}
