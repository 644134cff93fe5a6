"""A soak that is stopped says what it has found so far."""

import os
import signal
import subprocess
import sys

import pytest
from tests.tries import HANG_S


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_soak_ends_with_its_table(how: signal.Signals) -> None:
    words = [sys.executable, "-m", "tests.soak", "--seed", "1", "--storm", "groups"]
    alone = {**os.environ, "STOKER_SOAK_ALONE": "1"}  # it looks at /dev/shm only when its first storm is over
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=alone)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("seed 1,")
    process.send_signal(how)
    said = process.communicate(timeout=HANG_S)[0]
    assert f"stopped by {how.name}" in said
    assert said.splitlines()[-1].split()[0] == "all"
    assert process.returncode == 128 + how
