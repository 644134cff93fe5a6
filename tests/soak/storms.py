"""Storms: each does harm for some seconds, lets everything come to its end, and counts what should not have happened."""

import collections
import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
from tests.cache.damaging import damaged_runs, filled
from tests.cache.killed_writers import crowd, one_after_another
from tests.checkpoint.killing import assert_identical, finish, kill_and_go_on, start
from tests.soak.subject import EPOCHS, MODES, SAMPLES, make_files
from tests.tries import HANG_S

from stoker.group import door

Counts = collections.Counter[str]
"""Events, and of what should not be: wrong, lost, repeated, hangs, left."""


@contextlib.contextmanager
def a_place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def judge(place: Path, counts: Counts, *, is_whole: bool = True) -> None:
    """Compare what a training has seen with what there is."""
    seen = Counter[tuple[int, int]]()
    for line in (place / "seen").read_text().splitlines():
        epoch, *numbers = line.split()
        counts["wrong"] += "WRONG" in numbers
        seen.update((int(epoch), int(number)) for number in numbers if number.isdigit())
    counts["repeated"] += sum(count - 1 for count in seen.values())
    if is_whole:
        counts["lost"] += EPOCHS * SAMPLES - len(seen)


def subject(place: Path, mode: str, *group: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-W", "ignore", "-m", "tests.soak.subject", str(place), mode, *group]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[bytes], counts: Counts) -> bytes:
    """What it said at its end, which is waited for."""
    try:
        return process.communicate(timeout=HANG_S)[1]
    except subprocess.TimeoutExpired:
        counts["hangs"] += 1
        for child in [*psutil.Process(process.pid).children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                child.kill()
        return process.communicate()[1]


def disturb(process: subprocess.Popen[bytes], rng: random.Random) -> None:
    """Harm a training, or one of its workers."""
    with contextlib.suppress(psutil.Error, ProcessLookupError):
        children = psutil.Process(process.pid).children(recursive=True)
        victim = rng.choice([psutil.Process(process.pid), *children, *children])
        how = rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGSEGV])
        if victim.pid == process.pid and how != signal.SIGSTOP:
            how = signal.SIGKILL
        victim.send_signal(how)
        if how == signal.SIGSTOP:
            time.sleep(rng.random() * 0.3)
            victim.send_signal(signal.SIGCONT)


def loaders(rng: random.Random, counts: Counts) -> None:
    """Loaders of all modes, killed at any moment and resumed."""
    for mode in rng.sample(list(MODES), 3):
        _one_loader(mode, rng, counts)


_ATTEMPTS = 12


def _one_loader(mode: str, rng: random.Random, counts: Counts) -> None:
    with a_place() as place:
        make_files(place / "data")
        (place / "job").mkdir()
        for attempt in range(_ATTEMPTS):
            process = subject(place / "job", mode)
            if attempt < _ATTEMPTS - 1:  # the last one is left in peace: a busy machine may start none in time
                time.sleep(rng.choice([0, 1.5]) + rng.random())  # while it starts, or later
                for _ in range(rng.randrange(1, 6)):
                    if process.poll() is None:
                        counts["events"] += 1
                        disturb(process, rng)
                        time.sleep(rng.random() * 0.5)
            said = ended(process, counts)
            if (place / "job" / "done").exists():
                break
            if process.returncode > 0:
                counts["wrong"] += 1
                print(mode, said.decode()[-2000:], file=sys.stderr)
        else:
            counts["wrong"] += 1
            print(mode, "did not end though nobody disturbed it", said.decode()[-2000:], file=sys.stderr)
            return
        judge(place / "job", counts)


def in_groups(rng: random.Random, counts: Counts) -> None:
    """Jobs of one group, of which some are killed; the others see everything."""
    name = f"soak-{os.getpid()}-{rng.randrange(1 << 30)}"
    with a_place() as place:
        make_files(place / "data")
        jobs = []
        for number in range(3):
            (place / str(number)).mkdir()
            jobs.append(subject(place / str(number), "seed", name))
        time.sleep(2 + rng.random() * 2)
        doomed = rng.sample(range(3), rng.randrange(3))
        for number in doomed:
            counts["events"] += 1
            jobs[number].kill()
            time.sleep(rng.random() * 0.3)
        for number, job in enumerate(jobs):
            said = ended(job, counts)
            if number not in doomed and job.returncode:
                counts["wrong"] += 1
                print("group", said.decode()[-2000:], file=sys.stderr)
            if (place / str(number) / "seen").exists():
                judge(place / str(number), counts, is_whole=number not in doomed)
    door.sweep()
    counts["left"] += (door.home() / name).exists()


def cache_writers(rng: random.Random, counts: Counts) -> None:
    """Processes that write to one store, killed one after another and several at once."""
    for kill, kills in ((one_after_another, 25), (crowd, 8)):
        with a_place() as folder:
            counts["events"] += kills
            wrong = kill(folder, kills, rng.randrange(1 << 30))
            counts["wrong"] += len(wrong)
            print(*wrong, sep="\n", end="", file=sys.stderr)


def damage(rng: random.Random, counts: Counts) -> None:
    """Stores that were damaged before a run."""
    with a_place() as place:
        (place / "template").mkdir()
        filled(place / "template")
        counts["events"] += 21
        wrong = damaged_runs(place / "template", place, 21, rng.randrange(1 << 30))
        counts["wrong"] += len(wrong)
        print(*wrong, sep="\n", end="", file=sys.stderr)


def checkpoints(rng: random.Random, counts: Counts) -> None:
    """A training with checkpoints, killed and restored, against one that was not."""
    with a_place() as place:
        killed, twin = place / "killed", place / "twin"
        killed.mkdir(), twin.mkdir()
        counts["events"] += 4
        try:
            outcome = kill_and_go_on(killed, 4, 3, rng.randrange(1 << 30), "--pause", "0.005")
            finish(start(twin, outcome["steps"], "--every", "3"))
            assert_identical(killed, twin, outcome, 3)
        except subprocess.TimeoutExpired:
            counts["hangs"] += 1
        except AssertionError as error:
            counts["wrong"] += 1
            print("checkpoints", error, file=sys.stderr)


def metrics_clients(rng: random.Random, counts: Counts) -> None:
    """Clients of the endpoint that drip, hang up and talk nonsense; it answers others, and ends when it is asked to."""
    process = subprocess.Popen([sys.executable, "-m", "stoker", "metrics", "--listen", "0"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    address = process.stdout.readline().decode().strip()
    host, port = address.removeprefix("http://").removesuffix("/metrics").split(":")
    clients = []
    for _ in range(20):
        counts["events"] += 1
        client = socket.create_connection((host, int(port)), timeout=HANG_S)
        client.sendall(rng.choice([b"GET /metrics HTTP/1.1\r\nX: ", rng.randbytes(300), b"G", b""]))
        client.close() if rng.random() < 0.5 else clients.append(client)
    with urllib.request.urlopen(address, timeout=HANG_S) as answer:
        counts["wrong"] += b"stoker_loaders" not in answer.read()
    for client in clients:
        with contextlib.suppress(OSError):
            client.sendall(b"x")
    process.send_signal(rng.choice([signal.SIGTERM, signal.SIGINT]))
    try:
        counts["wrong"] += process.wait(HANG_S) != 0
    except subprocess.TimeoutExpired:
        counts["hangs"] += 1
        process.kill()
    for client in clients:
        select.select([client], [], [], 0)
        client.close()
    process.communicate()


STORMS = {
    "loaders": loaders,
    "groups": in_groups,
    "cache writers": cache_writers,
    "damaged stores": damage,
    "checkpoints": checkpoints,
    "metrics clients": metrics_clients,
}


def _words(process: psutil.Process) -> str:
    try:
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())}"
    except psutil.Error:
        return str(process)


def left_behind() -> list[str]:
    """Processes and files that nobody needs any more. /dev/shm is this soak's alone; only the user's own folder stays."""
    deadline = time.monotonic() + 30
    while (children := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        psutil.wait_procs(children, timeout=0.2)
    found = [words for child in children if "resource_tracker" not in (words := _words(child))]
    own = f"stoker-{os.getuid()}"
    found += [name for name in os.listdir("/dev/shm") if name != own]
    return found + [f"{own}/groups/{path.name}" for path in Path(f"/dev/shm/{own}/groups").glob("*")]
