"""A process that is suspended and goes on is slow, not dead: nothing is lost, and nobody is told that it has died.

Nothing here has a timer that could run out meanwhile, so a second shows what a minute does: SUSPENDED_S=60.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
from tests.checkpoint.killing import SCRIPT, finish, newest, start, steps_seen
from tests.tries import HANG_S, until

SUSPENDED_S = float(os.environ.get("SUSPENDED_S", "1"))
STEPS = 60
OPTIONS = ("--every", "3", "--workers", "2")


def is_writer(process: psutil.Process) -> bool:
    return "stoker.checkpoint.persist" in " ".join(process.cmdline())


def suspend(training: psutil.Process, who: str) -> None:
    """Stop processes of a training, or one of them, for a time."""
    stopped: list[psutil.Process] = []
    while not stopped:  # workers come and go with epochs
        with contextlib.suppress(psutil.NoSuchProcess):
            children = training.children()
            workers = [child for child in children if not is_writer(child)]
            writers = [child for child in children if is_writer(child)]
            them = {"training": [training], "worker": workers[:1], "writer": writers, "all": [training, *children]}[who]
            for process in them:
                process.suspend()
                until(lambda process=process: process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE))
            stopped = [process for process in them if process.status() == psutil.STATUS_STOPPED]
    time.sleep(SUSPENDED_S)
    for process in reversed(stopped):
        with contextlib.suppress(psutil.NoSuchProcess):  # it had nothing more to do in this epoch, and was ended with it
            process.resume()


def test_a_training_of_which_parts_are_suspended(tmp_path: Path) -> None:
    undisturbed, place = tmp_path / "undisturbed", tmp_path / "suspended"
    undisturbed.mkdir(), place.mkdir()
    twin = start(undisturbed, STEPS, *OPTIONS)
    arguments = [str(place / "checkpoints"), str(place / "losses"), str(STEPS), *OPTIONS]
    words = [sys.executable, str(SCRIPT), *arguments, "--pause", "0.01"]
    training = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for number, who in enumerate(["worker", "writer", "training", "all"]):
        until(lambda number=number: len(steps_seen(place)) > 4 + 8 * number and newest(place))
        suspend(psutil.Process(training.pid), who)
    said, complaints = training.communicate(timeout=HANG_S)
    assert (training.returncode, complaints) == (0, "")
    finish(twin)
    assert steps_seen(place) == steps_seen(undisturbed)
    assert (place / "losses.end").read_text() == (undisturbed / "losses.end").read_text()
    assert "failures=0" in said
    assert newest(place) == STEPS
