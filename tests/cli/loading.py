"""Real training processes for `stoker top` and `stoker metrics` to look at."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from stoker.group.door import home

SCRIPT, GROUPED = (Path(__file__).parents[1] / "scripts" / name for name in ("loading.py", "grouped.py"))


class Training:
    """A process that loads; `how` is what the script takes."""

    def __init__(self, place: Path, rank: int, *how: str, script: Path = SCRIPT) -> None:
        variables = {**os.environ, "STOKER_TOP": str(place), "RANK": str(rank)}
        self.process = subprocess.Popen(
            [sys.executable, str(script), *how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
            start_new_session=True,
        )
        self.pid = self.process.pid

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Together:
    """Training processes in one group, by name; all have joined before the first begins."""

    def __init__(self, place: Path, group: str, **how: tuple[str, str]) -> None:
        self.group = group
        self.trainings = {}
        for name, words in how.items():
            script = place.parent / f"{name}.py"
            script.write_text(GROUPED.read_text())
            self.trainings[name] = Training(place, 0, group, *words, script=script)

    def __getitem__(self, name: str) -> Training:
        return self.trainings[name]

    def begin(self) -> None:
        for line in (b"joined\n", b"ready\n"):
            for one in self.trainings.values():
                assert one.process.stdout is not None
                assert one.process.stdout.readline() == line
            if line == b"joined\n":
                for one in self.trainings.values():
                    assert one.process.stdin is not None
                    one.process.stdin.write(b"\n")
                    one.process.stdin.flush()

    def kill(self) -> None:
        for one in self.trainings.values():
            one.process.kill()  # also one that is stopped
        for one in self.trainings.values():
            one.process.communicate()
        shutil.rmtree(home() / self.group, ignore_errors=True)  # the last that was killed had nobody to do it
