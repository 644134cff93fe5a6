"""Kill a training at random moments, start it again each time, and compare it with one that was never interrupted."""

import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent.parent / "scripts" / "train.py"


def start(place: Path, steps: int, *options: str) -> subprocess.Popen[str]:
    words = [
        sys.executable,
        "-W",
        "ignore",
        str(SCRIPT),
        str(place / "checkpoints"),
        str(place / "losses"),
        str(steps),
        *options,
    ]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out


def steps_seen(place: Path) -> list[tuple[int, str]]:
    lines = (place / "losses").read_text().splitlines() if (place / "losses").exists() else []
    return [(int(line.split()[0]), line.split()[1]) for line in lines if len(line.split()) == 2]


def newest(place: Path) -> int:
    return max((int(path.name.split("-")[0]) for path in (place / "checkpoints").glob("*.json")), default=0)


def kill_and_go_on(place: Path, kills: int, every: int, seed: int, *options: str) -> dict[str, Any]:
    """Kill so many times. What each start restored, how much was redone, and every loss that was seen of each step."""
    rng = random.Random(seed)
    restored: list[int] = []
    reached = 0
    redone: list[int] = []
    words = ["--every", str(every), *options]
    steps = 12 * kills + 40
    process = start(place, steps, *words)
    for number in range(kills):
        assert process.stdout is not None
        first = process.stdout.readline()
        restored.append(int(re.match(r"restored (\d+)", first)[1]))  # type: ignore[index]
        if number:
            redone.append(reached - restored[-1])
        began = restored[-1]
        # Some steps further, once there is something to restore; then at any moment.
        while process.poll() is None and (
            not newest(place) or not (seen := steps_seen(place)) or seen[-1][0] < began + rng.randint(1, 8)
        ):
            time.sleep(0.001)
        time.sleep(rng.random() * 0.02)
        process.kill()
        process.communicate()
        reached = steps_seen(place)[-1][0]
        process = start(place, steps, *words)
    out = finish(process)
    restored.append(int(re.match(r"restored (\d+)", out)[1]))  # type: ignore[index]
    redone.append(reached - restored[-1])
    return {"restored": restored[1:], "redone": redone, "steps": steps}


def assert_identical(place: Path, twin: Path, outcome: dict[str, Any], every: int) -> None:
    """Every loss of every attempt is the uninterrupted run's, and so is the end."""
    assert all(step > 0 for step in outcome["restored"]), outcome
    assert max(outcome["redone"]) <= 2 * every, outcome
    expected = dict(steps_seen(twin))
    assert len(expected) == outcome["steps"]
    for step, loss in steps_seen(place):
        assert expected[step] == loss, step
    assert (place / "losses.end").read_text() == (twin / "losses.end").read_text()
