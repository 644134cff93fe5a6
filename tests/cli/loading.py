"""Real training processes for `stoker top` and `stoker metrics` to look at."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "scripts" / "loading.py"


class Training:
    """A process that loads; `how` is what the script takes."""

    def __init__(self, place: Path, rank: int, *how: str, script: Path = SCRIPT) -> None:
        variables = {**os.environ, "STOKER_TOP": str(place), "RANK": str(rank)}
        self.process = subprocess.Popen(
            [sys.executable, str(script), *how], stdout=subprocess.PIPE, env=variables, start_new_session=True
        )
        self.pid = self.process.pid

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
