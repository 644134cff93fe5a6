"""Prepare batches for a training job on another host.

The job listens (`stoker run --offload tcp://HOST:PORT --seed N train.py`), and workers dial it, from any number of hosts,
before or after it begins. They share a secret with it (STOKER_SECRET_FILE), have the same packages, and see the same
files. What one of them cannot make, the job makes itself. Ends with Ctrl-C. Where there is a Ray cluster, it can start them
instead (`stoker run --offload ray://HEAD:PORT`).
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

from stoker.errors import CommandError
from stoker.extras import OFFLOAD, TORCH
from stoker.host.cores import usable_cores
from stoker.remote.address import parse_address
from stoker.wire.secret import shared_secret

_LEAST_S = 1.0
_LISTENS_S = 5.0
_LONGEST = 1 << 16


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("address", metavar="tcp://HOST:PORT", help="where the job listens")
    parser.add_argument("-n", "--processes", type=int, metavar="N", help="how many workers (default: one for each core)")
    parser.add_argument("--once", action="store_true", help="end when the job has ended, instead of waiting for the next")


def run(options: argparse.Namespace) -> int:
    """Keep so many workers running."""
    address = parse_address(options.address)
    TORCH.check()
    OFFLOAD.check()
    shared_secret()
    count = _how_many(options.processes)
    why, line = os.pipe()
    os.set_blocking(why, False)
    command = [sys.executable, "-P", "-m", "stoker.remote", options.address, str(os.getpid()), str(line)]
    signal.signal(signal.SIGTERM, _interrupt)
    workers = {subprocess.Popen(command, pass_fds=(line,)): time.monotonic() for _ in range(count)}
    try:
        _say_if_nobody_listens(address)
        while workers:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            for worker in [worker for worker in workers if worker.poll() is not None]:
                began = workers.pop(worker)
                if worker.returncode == _REFUSED and (refused := _heard(why)):
                    raise CommandError(refused)
                if not options.once:
                    time.sleep(max(0.0, _LEAST_S - (time.monotonic() - began)))
                    workers[subprocess.Popen(command, pass_fds=(line,))] = time.monotonic()
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()
        os.close(why)
        os.close(line)
    return 0


def _heard(line: int) -> str:
    """Why a worker was refused, as the first one of them says; "" if none does: a dataset may end its process likewise."""
    try:
        return os.read(line, _LONGEST).decode(errors="replace").partition("\0")[0]
    except BlockingIOError:
        return ""


def _how_many(asked: int | None) -> int:
    """How many workers: as many as asked for, or one for each core that this process may use, by affinity and by quota."""
    if asked is None:
        return max(1, int(usable_cores()))
    if asked < 1:
        raise CommandError("--processes must be 1 or more")
    return asked


def _say_if_nobody_listens(address: tuple[str, int]) -> None:
    """The job may begin later, but an address may also be wrong."""
    try:
        socket.create_connection(address, _LISTENS_S).close()
    except OSError as error:
        place = ":".join(map(str, address))
        print(
            f"stoker: no job listens at {place} yet ({error}): workers dial it until one does", file=sys.stderr, flush=True
        )


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


_REFUSED = 3
