"""The script under analysis, from the command's side: it is started, perhaps again, and stopped when its time is over.

What it finds, it writes down (`run/measured.py`). So a script that ends by itself, or is stopped, loses nothing.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.cache.shelf import Shelf
from stoker.host.process import find
from stoker.measure.busy import descendants
from stoker.run.measured import Measured
from stoker.run.script import environment

_RESTARTS = 3
_LIMIT, _LEAST_S, _GRACE_S = 20, 60.0, 15.0
"""An analysis may take so many times the time of a phase, and at least so long, from the first batch on."""
_LOOK_S = 0.25
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


def measure(words: list[str], settings: dict[str, Any], show: Callable[[], object]) -> tuple[int, Measured | None]:
    """Run the script, and again if it ends before everything is measured. Returns its last exit code and what was found.

    `show` is called several times a second meanwhile.
    """
    limit_s = max(_LEAST_S, _LIMIT * settings["phase_s"])
    deadline = time.monotonic() + limit_s + _GRACE_S  # counted anew when the script first iterates a loader
    granted_s = 0.0
    for start in range(1 + _RESTARTS):
        left_s = max(_LEAST_S / 2, deadline - _GRACE_S - time.monotonic()) if start else limit_s
        code, began = _run_script(words, {"analyze": {**settings, "limit_s": left_s}}, left_s + _GRACE_S, show)
        found = Measured.load(settings["measured"])
        if code and start and found is not None:  # it may not bear a second start: its input has been read, say
            found.note(f"the script ended with code {code} when it was started again, before all was measured")
            return (0 if found.is_enough else code), found
        if code or found is None or found.is_complete or found.word or not found.loaders:
            break
        if settings["loader"] and settings["loader"] > found.loaders:
            break
        deadline = (began or time.monotonic()) + limit_s + _GRACE_S if not start else deadline
        deadline, granted_s = deadline + found.granted_s - granted_s, found.granted_s
        if start == _RESTARTS or time.monotonic() > deadline - _GRACE_S:
            times = f"{start + 1} times" if start else "once"
            found.note(f"the script ended before all was measured, although it was started {times}")
            break
        known = ", ".join(found.parts) or "nothing yet"
        print(
            f"stoker: the script ended before all was measured (so far: {known}); it is started again, "
            f"{start + 1} of at most {_RESTARTS} times",
            file=sys.stderr,
        )
    return code, found


def _run_script(
    words: list[str], settings: dict[str, Any], limit_s: float, show: Callable[[], object]
) -> tuple[int, float | None]:
    """Run it to its end, or until its time is over; its exit code, and when it first iterated a loader.

    Ctrl-C ends both processes; other signals that end are passed on. A script whose time is over has written what was
    found until then, and counts as one that ended by itself.
    """
    interrupts: list[int] = []
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _PASSED_ON}
    before[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    if before[signal.SIGINT] is not signal.SIG_IGN:  # as in the background of a shell
        signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        process = subprocess.Popen(
            words,
            env=environment(settings, os.environ),
            preexec_fn=lambda: [signal.signal(number, handler) for number, handler in before.items()],
        )
        for number in _PASSED_ON:
            if before[number] is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, lambda number, _: process.send_signal(number))
        code, began = _wait(process, Path(settings["analyze"]["measured"]), limit_s, show)
        return (-signal.SIGINT if interrupts else code), began  # even if the script caught the Ctrl-C
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        with contextlib.suppress(OSError):
            Shelf().sweep()  # what a script that was killed has left


def _wait(
    process: "subprocess.Popen[bytes]", place: Path, limit_s: float, show: Callable[[], object]
) -> tuple[int, float | None]:
    began: float | None = None
    earlier = Measured.load(place) or Measured()
    while True:
        show()
        try:
            return process.wait(_LOOK_S), began
        except subprocess.TimeoutExpired:
            if began is None and (found := Measured.load(place)) is not None and found.began != earlier.began:
                began = time.monotonic()
            if began is not None and time.monotonic() - began > limit_s:
                more_s = (Measured.load(place) or earlier).granted_s - earlier.granted_s
                if time.monotonic() - began > limit_s + more_s:
                    break
    _end(process)
    found = Measured.load(place)
    assert found is not None
    found.is_complete = True
    after = f"after {limit_s + more_s:.0f} s"
    found.word = f"the analysis was not done {after}; measured were: {', '.join(found.parts) or 'nothing'}"
    found.note(f"the script was stopped {after} of analysis, before all was measured")
    found.save(place)
    return 0, began


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a script and all that it has started: it may be a shell's, whose python would go on."""
    family = {pid: found.started for pid in descendants(process.pid) if (found := find(pid)) is not None}
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid, started in family.items():
        found = find(pid)
        if found is not None and found.started == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
