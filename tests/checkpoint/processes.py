"""The processes of a distributed run, started here on one machine as they would be on one node or on several."""

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
from tests.tries import HANG_S

WORLD = 2


@contextlib.contextmanager
def started(script: Path, *words: object, nodes: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """One process per rank, which can be told things. None of them, nor of their children, is there when this ends."""
    on_node = WORLD // nodes
    rendezvous = Path(str(words[0])) / f"rendezvous-{uuid.uuid4().hex}"
    shared = {"WORLD_SIZE": WORLD, "LOCAL_WORLD_SIZE": on_node, "RENDEZVOUS": rendezvous, "GLOO_SOCKET_IFNAME": "lo"}
    processes = []
    try:
        for rank in range(WORLD):
            own = {"RANK": rank, "LOCAL_RANK": rank % on_node}
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(script), *map(str, words)],
                    env={**os.environ, **{name: str(value) for name, value in {**shared, **own}.items()}},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        yield processes
    finally:
        end(processes)


def end(processes: list[subprocess.Popen[str]]) -> None:
    """kill -9 to all at once, and to what they have started."""
    children = [child for process in processes for child in children_of(process)]
    for process in processes:
        process.kill()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    for process in processes:
        process.communicate()
    psutil.wait_procs(children)


def children_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def outcomes(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Of each process, when all have ended: its exit code, and what it said on its two outputs."""
    said = [process.communicate(timeout=HANG_S) for process in processes]
    return [(process.returncode, out, err) for process, (out, err) in zip(processes, said, strict=True)]
