"""How jobs that were started are ended."""

import os
import signal
import subprocess
import sys

import pytest

from stoker.run.together.running import Running, ending


def test_each_job_is_asked_to_end_once_as_a_second_signal_would_hold_up_what_it_does_at_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[int, int]] = []
    send = os.killpg

    def noted(group: int, number: int) -> None:
        sent.append((group, number))
        send(group, number)

    monkeypatch.setattr(os, "killpg", noted)
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    started = [subprocess.Popen(command, process_group=0) for _ in range(2)]
    with ending([Running("A", one.pid, one) for one in started]):
        pass
    assert [one.returncode for one in started].count(None) == 0
    for one in started:
        asked = [number for group, number in sent if group == one.pid]
        assert asked == [signal.SIGTERM, signal.SIGCONT] + [signal.SIGKILL] * (len(asked) - 2)
