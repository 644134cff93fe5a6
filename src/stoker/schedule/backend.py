"""What the daemon needs of a cluster. Slurm is one (`slurm`); Ray or Kubernetes would be others.

A lease is known to it by a name of ours. An order that fails may have been carried out all the same: what is there is
asked for afterwards, and never concluded from an answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stoker.schedule.job import Server, ServerShare


@dataclass(frozen=True, slots=True)
class Node:
    """A server of the cluster, and whether it can be used."""

    server: Server
    is_up: bool


@dataclass(frozen=True, slots=True)
class LeaseOrder:
    """A lease to start: its name, its part of one server, and the command."""

    name: str
    share: ServerShare
    words: Sequence[str]
    folder: Path
    output: Path


class Backend(Protocol):
    """A cluster."""

    silence: str
    """Why it did not answer the last time; nothing if that is not known."""

    def nodes(self) -> list[Node] | None:
        """Its servers; None if it does not answer."""

    def leases(self) -> Mapping[str, bool] | None:
        """The names of what is queued or runs there, and whether it runs; None if it does not answer."""

    def submit(self, order: LeaseOrder) -> str:
        """Have a lease started where and with what it says. Returns what was said against it; it may run all the same."""

    def stop(self, name: str) -> None:
        """Tell a lease that runs to save its job, and to end."""

    def cancel(self, name: str) -> None:
        """End a lease, whatever it does."""
