"""Slurm as a cluster of leases. All of Slurm's commands are called here.

A lease is a job of Slurm that has the lease's name, on one named node. It is addressed by that name alone: numbers are
given anew when slurmctld loses its state.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stoker.errors import CommandError
from stoker.schedule.backend import LeaseOrder, Node
from stoker.schedule.job import Server

_GONE = ("down", "drain", "drng", "fail", "maint", "power", "reboot", "future")
_OURS = "PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "STOPPED", "COMPLETING", "SIGNALING", "STAGE_OUT", "RESIZING"
_GPUS = re.compile(r"gpu(?::[^:,()]+)?:(\d+)")
_ANSWER_S = 60.0
_MOST_SAID = 300


@dataclass(slots=True)
class Slurm:
    """One partition, and what is said with each `sbatch`."""

    partition: str = ""
    account: str = ""
    options: Sequence[str] = ()
    silence: str = field(default="", init=False)
    """What the last command said that failed."""

    def nodes(self) -> list[Node] | None:
        """The nodes of the partition that have GPUs."""
        found = self._ask("sinfo", "-h", "-N", "-o", "%N|%T|%c|%m|%G", *self._where)
        if found is None:
            return None
        nodes = {}
        for line in found.splitlines():
            name, state, cpus, memory, resources = line.strip().split("|")
            gpus = sum(int(count) for count in _GPUS.findall(resources))
            if gpus:
                server = Server(name, gpus, float(cpus.rstrip("+")), float(memory.rstrip("+")) / 1000)
                nodes[name] = Node(server, not state.lower().startswith(_GONE))
        return list(nodes.values())

    def leases(self) -> Mapping[str, bool] | None:
        """The jobs of this user that are queued or run."""
        user = ["-u", str(os.getuid())]
        found = self._ask("squeue", "-h", "-a", *user, "-t", ",".join(_OURS), "-o", "%j|%T")
        if found is None:
            return None
        pairs = (line.rsplit("|", 1) for line in found.splitlines())
        return {name: state not in ("PENDING", "CONFIGURING") for name, state in pairs}

    def submit(self, order: LeaseOrder) -> str:
        """`sbatch`. CPUs are rounded down, so that leases that fit together fit Slurm's whole ones, too."""
        share = order.share
        words = [
            "sbatch", "--parsable", f"--job-name={order.name}", f"--nodelist={share.server}", "--nodes=1", "--ntasks=1",
            f"--cpus-per-task={max(1, int(share.cpus + 1e-6))}", f"--mem={max(1, int(share.memory_gb * 1000 + 1e-6))}M",
            f"--gres=gpu:{share.gpus}", "--no-requeue", "--open-mode=append", f"--output={order.output}",
            f"--chdir={order.folder}", *self._where, *self.options,
        ]  # fmt: skip
        if self.account:
            words.append(f"--account={self.account}")
        script = "#!/bin/sh\nexec " + shlex.join(order.words) + "\n"
        try:
            done = subprocess.run(words, input=script, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        return done.stderr.strip() if done.returncode else ""

    def stop(self, name: str) -> None:
        """SIGUSR1 to the batch script, which tells it on."""
        self._ask("scancel", "-b", "-s", "USR1", f"--name={name}")

    def cancel(self, name: str) -> None:
        """`scancel`, by name."""
        self._ask("scancel", f"--name={name}")

    @property
    def _where(self) -> list[str]:
        return [f"--partition={self.partition}"] if self.partition else []

    def _ask(self, *words: str) -> str | None:
        """What a command prints; None if it fails, or takes for ever."""
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
        except subprocess.TimeoutExpired as error:
            self.silence = f"{words[0]} took more than {_ANSWER_S:.0f} s{_said(error.stderr)}"
            return None
        except FileNotFoundError:
            raise CommandError(f"there is no {words[0]}: the daemon runs where Slurm's commands are") from None
        if done.returncode:
            self.silence = f"{words[0]} ended with code {done.returncode}{_said(done.stderr)}"
            return None
        return done.stdout


def _said(words: str | bytes | None) -> str:
    """What a command said of its failure, in one line."""
    text = words.decode("utf-8", "replace") if isinstance(words, bytes) else words or ""  # bytes if it took too long
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {'; '.join(lines)[:_MOST_SAID]}" if lines else ""
