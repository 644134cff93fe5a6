"""A Slurm of several nodes on this one machine, with GPUs that are only names: for tests and benchmarks of the scheduler.

    with Slurm(nodes=2, cpus=12, gpus=4, memory_mb=32_000) as slurm:
        subprocess.run(["sbatch", ...], env=slurm.environment)
        slurm.kill(slurm.controller); slurm.start_controller()

Needs root and Debian's slurmctld, slurmd and slurm-client. It listens on this machine alone. Its daemons, and the jobs
that it still has, end with the context. Where a memory part is given, jobs are held to that part of the memory that
they ask for.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

_CONFIGURATION = """
ClusterName=lab
SlurmctldHost={master}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/%n.log
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
{more}
PartitionName=lab Nodes=ALL Default=YES
"""
_ONE_MACHINE = """
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort={port}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ProctrackType=proctrack/{tracking}
TaskPlugin=task/{task}
DefMemPerCPU=100
ReturnToService=2
KillWait=3
SlurmdTimeout={patience_s}
MinJobAge=300
GresTypes=gpu
NodeName=node[0-{last}] NodeAddr=127.0.0.1 Port=[{ports}] CPUs={cpus} RealMemory={memory_mb} Gres=gpu:{gpus}
"""
_START_S = 60.0
PROGRAMS = "slurmctld", "slurmd", "sbatch"


def missing() -> str:
    """What is not there of what this needs; nothing if all is."""
    lacks = [program for program in PROGRAMS if shutil.which(program) is None]
    return ", ".join(lacks) or ("" if os.getuid() == 0 else "root")


def write_configuration(place: Path, master: str, more: str) -> dict[str, str]:
    """Write Slurm's files into a folder. Returns what the environment of its daemons and commands needs."""
    (place / "state").mkdir()
    (place / "slurm.conf").write_text(_CONFIGURATION.format(master=master, place=place, more=more))
    (place / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    return {"SLURM_CONF": str(place / "slurm.conf")}


class Slurm:
    """The cluster, as a context."""

    def __init__(
        self,
        nodes: int = 2,
        cpus: int = 24,
        gpus: int = 4,
        memory_mb: int = 100_000,
        memory_part: float | None = None,
        patience_s: int = 10,
    ) -> None:
        self.names = [f"node{number}" for number in range(nodes)]
        self._sizes = {"cpus": cpus, "gpus": gpus, "memory_mb": memory_mb, "last": nodes - 1, "patience_s": patience_s}
        self._memory_part = memory_part
        self._folder = tempfile.TemporaryDirectory(prefix="slurm-", ignore_cleanup_errors=True)
        self.place = Path(self._folder.name)
        self.environment: dict[str, str] = {}

    def __enter__(self) -> "Slurm":
        nodes = len(self.names)
        first = _free_ports(nodes + 1)
        bound = self._memory_part is not None
        sizes = self._sizes | {
            "port": first,
            "ports": f"{first + 1}-{first + nodes}",
            "tracking": "cgroup" if bound else "linuxproc",
            "task": "cgroup" if bound else "none",
        }
        files = write_configuration(self.place, "localhost", _ONE_MACHINE.format(**sizes))
        self.environment = {**os.environ, **files}
        gpus = self.place / "gpu"
        gpus.mkdir()
        for number in range(self._sizes["gpus"]):
            (gpus / f"nvidia{number}").symlink_to("/dev/null")
        (self.place / "gres.conf").write_text(f"Name=gpu File={gpus}/nvidia[0-{self._sizes['gpus'] - 1}]\n")
        if self._memory_part is not None:
            with (self.place / "cgroup.conf").open("a") as file:
                file.write(f"ConstrainRAMSpace=yes\nAllowedRAMSpace={100 * self._memory_part:g}\n")
        self.start_controller()
        for name in self.names:
            (self.place / name).mkdir()
            self.start_node(name)
        self._wait(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D") == str(nodes))
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            for name in self.names:
                if self.pid(name) is None:
                    self.start_node(name)
            if self.pid("slurmctld") is None:
                self.start_controller()
            self._wait(lambda: self._answers("scancel", "-u", "root") and not self.ask("squeue", "-h"))
        for name in ("slurmctld", *self.names):
            if (pid := self.pid(name)) is not None:
                os.kill(pid, signal.SIGTERM)
                self._wait(lambda name=name: self.pid(name) is None)
        for controller in Path("/sys/fs/cgroup").glob("*/slurm_node*"):
            for folder in sorted(controller.rglob("*"), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            with contextlib.suppress(OSError):
                controller.rmdir()
        self._folder.cleanup()

    def start_controller(self) -> None:
        """Start slurmctld, which goes on from its state."""
        self._run("slurmctld")

    def start_node(self, name: str) -> None:
        """Start a node's slurmd."""
        self._run("slurmd", "-N", name)

    def kill(self, name: str) -> None:
        """Kill slurmctld, or the slurmd of a node, by SIGKILL."""
        pid = self.pid(name)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            self._wait(lambda: not Path(f"/proc/{pid}").exists())

    def pid(self, name: str) -> int | None:
        """The process of slurmctld, or of a node's slurmd, if it lives."""
        try:
            pid = int((self.place / f"{name}.pid").read_text())
            return pid if Path(f"/proc/{pid}/comm").read_text().startswith("slurm") else None
        except (OSError, ValueError):
            return None

    def ask(self, *words: str) -> str:
        """What one of Slurm's commands prints; nothing if it fails."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def _answers(self, *words: str) -> bool:
        return subprocess.run(words, env=self.environment, capture_output=True, check=False).returncode == 0

    def _run(self, *words: str) -> None:
        subprocess.run(words, env=self.environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @staticmethod
    def _wait(is_so: Any) -> None:
        deadline = time.monotonic() + _START_S
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError("Slurm did not do what it was asked for")
            time.sleep(0.02)


def _free_ports(count: int) -> int:
    """The first of so many free ports in a row, below those that Linux gives to programs that ask for any."""
    for first in range(20_000 + os.getpid() % 5_000, 32_000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise OSError("no free ports")
