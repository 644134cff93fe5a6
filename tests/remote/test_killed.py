"""Workers on a real other host that are killed, stopped and cut off, many times: every sample comes once, bit for bit."""

import random
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest
from benchmarks.hosts import Hosts, missing
from tests.remote.training import ENVIRONMENT, SCRIPT, Training, kill, workers

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(bool(missing()), reason=f"hosts inside this machine: {missing()}"),
]
KILLS = 50


def test_workers_killed_at_50_moments(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    shared = {"STOKER_SECRET_FILE": str(secret)}
    data = tmp_path / "data"
    data.mkdir()
    moments = random.Random(7)
    with Hosts(data, 2) as hosts:
        here, there = hosts
        address = f"tcp://{here.address}:7100"
        command = [sys.executable, "-m", "stoker", "worker", address, "-n", "3"]
        there.start(command, env=ENVIRONMENT | shared, stdout=None)
        training = Training(here, SCRIPT, address, **shared)
        training.until_helped()
        for number in range(KILLS):
            time.sleep(moments.random())
            training.epoch()
            training.until(lambda: workers([there]))
            time.sleep(0.3 * moments.random())  # within an epoch
            kill([moments.choice(workers([there]))])
            if number % 10 == 3:
                stopped = workers([there])
                kill(stopped, signal.SIGSTOP)
                for _ in range(3):
                    training.epoch()
                kill(stopped, signal.SIGCONT)
            if number % 10 == 7:
                there.cut_link()
                for _ in range(3):
                    training.epoch()
                there.cut_link(is_up=True)
            if number % 10 == 9:
                training.until_helped()
        assert training.end() == 0
        print(f"{len(training.epochs)} epochs, {training.epochs[-1]['remote']} samples made there")
