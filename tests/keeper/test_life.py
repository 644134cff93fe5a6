"""One keeper for all processes of a user: it comes with the first, goes with the last, and is missed by nobody."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tries import HANG_S, until

from stoker.cache.staging import Staging
from stoker.host import folders, process
from stoker.keeper import door, messages
from stoker.keeper.abroad import Abroad
from stoker.keeper.client import Line
from stoker.keeper.table import write_table

_CALLER = """
import os, signal, sys
from stoker.keeper.client import Line
line = Line()
number = line.join({}, [])
print("here", flush=True)
for said in sys.stdin:
    if said == "fork\\n":
        child = os.fork()
        if not child:
            os.close(1)
            signal.pause()
        print(child, flush=True)
    if said == "say\\n":
        print(line.queued(number, 0, 0, 0.0, b"    "), flush=True)
line.leave(number)
"""


def keepers() -> list[dict[str, Any]]:
    """What the keepers that live say of themselves, those that have begun."""
    if not door.folder().is_dir():
        return []
    states = [door.read_state(descriptor) for _, descriptor in folders.entries(door.folder())]
    return [state for state in states if state is not None and "pid" in state]


def the_keeper() -> dict[str, Any]:
    until(lambda: len(keepers()) == 1)
    return keepers()[0]


def is_gone(pid: int) -> bool:
    found = process.find(pid)
    return found is None or found.is_dead


def nothing_left() -> bool:
    return not os.listdir(door.folder())


@contextmanager
def caller() -> Iterator["subprocess.Popen[str]"]:
    """A process that has a line to the keeper, and does what it is told."""
    with subprocess.Popen([sys.executable, "-c", _CALLER], stdin=-1, stdout=-1, text=True, bufsize=1) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == "here\n"
        yield made


def say(to: "subprocess.Popen[str]", what: str) -> str:
    assert to.stdin is not None and to.stdout is not None
    to.stdin.write(f"{what}\n")
    return to.stdout.readline().strip()


def test_one_keeper_for_all_and_none_after_the_last() -> None:
    with caller() as first:
        pid = the_keeper()["pid"]
        with caller() as second:
            assert [state["pid"] for state in keepers()] == [pid]
            first.communicate()
            assert say(second, "say") == "True"
            assert [state["pid"] for state in keepers()] == [pid]
        until(lambda: is_gone(pid))
        assert nothing_left()


def test_it_is_nobodys_child_and_imports_no_torch() -> None:
    with caller() as one:
        pid = the_keeper()["pid"]
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"PPid:\t{one.pid}\n" not in status
        assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
        assert int(status.split("VmRSS:")[1].split()[0]) < 100 << 10  # KiB


def test_callers_that_are_killed_have_left() -> None:
    with caller() as first, caller() as second:
        pid = the_keeper()["pid"]
        child = int(say(first, "fork"))  # which has inherited all that was open
        try:
            first.kill()
            second.kill()
            until(lambda: is_gone(pid))
            assert nothing_left()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_killed_keeper_is_replaced_and_leaves_nothing() -> None:
    with caller() as one:
        pid = the_keeper()["pid"]
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_gone(pid))
        assert not keepers()
        until(lambda: say(one, "say") == "True")  # not at once, but by itself
        assert the_keeper()["pid"] != pid
        one.communicate()
        until(nothing_left)


def test_a_keeper_that_is_stopped_holds_nobody_up() -> None:
    line = Line()
    number = line.join({}, [])
    pid = the_keeper()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        began, said = time.monotonic(), 0
        while line.queued(number, said, said, 0.0, bytes(4096)):
            said += 1
        assert time.monotonic() - began < 10
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: line.queued(number, said, said, 0.0, bytes(4096)))
    line.leave(number)
    until(lambda: is_gone(pid))


def test_many_who_come_and_leave_at_once_all_find_one() -> None:
    code = """
import random, sys, time
from stoker.keeper.client import Line
draw = random.Random(int(sys.argv[1]))
for turn in range(12):
    line = Line()
    number = line.join({}, [])
    time.sleep(draw.choice([0, 0, .001, .02]))
    assert line.queued(number, 0, 0, 0.0, b"    "), turn
    line.leave(number)
"""
    callers = [subprocess.Popen([sys.executable, "-c", code, str(number)]) for number in range(4)]
    assert [one.wait(120) for one in callers] == [0] * 4
    until(nothing_left)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_not_heard() -> None:
    code = """
import os, socket, sys
os.setgid(65534), os.setuid(65534)
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect("\\0stoker-keeper-0-" + sys.argv[1])
line.settimeout(60)
assert line.recv(1) == b"", "it was heard"
"""
    with caller():
        token = the_keeper()["token"]
        assert subprocess.run([sys.executable, "-c", code, token], timeout=120).returncode == 0
        assert keepers()


def test_where_no_keeper_can_be_had_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere")
    line = Line()
    number = line.join({}, [])
    assert not line.queued(number, 0, 0, 0.0, b"    ")
    line.leave(number)
    assert nothing_left()


def test_loaders_may_be_made_while_the_line_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()
    first = line.join({}, [])
    numbers = [first]
    line.close()
    tell = messages.introduce

    def introduce(*words: Any) -> None:  # another thread makes a loader
        monkeypatch.setattr(messages, "introduce", tell)
        numbers.append(line.join({}, []))
        tell(*words)

    monkeypatch.setattr(messages, "introduce", introduce)
    line._not_before = 0.0
    try:
        assert line.queued(first, 0, 0, 0.0, b"    ")
    finally:
        for number in numbers:
            line.leave(number)


def test_a_loader_that_comes_while_the_line_is_full_is_introduced_later() -> None:
    line = Line()
    first = line.join(_about(), [])
    pid = the_keeper()["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        while line.queued(first, 0, 0, 0.0, bytes(4096)):
            pass
        staging, table = Staging(0), write_table(["/none", "/none"])
        assert table is not None
        late = line.join({**_about(), "folder": str(Path("/none"))}, [staging.memory.descriptor, table])
        assert late in line._unsaid
        gone = line.join(_about(), [])
        line.leave(gone)
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: line.queued(late, 0, 0, 0.0, b"    "))
    assert not line._unsaid
    line.leave(late)
    line.leave(first)
    os.close(table)


def _about() -> dict[str, Any]:
    return {"staging": 0, "folder": "/none", "roots": ["/"], "fills": True, "readers": 1, "governed": True, "rank": None}


def test_leaving_other_hosts_holds_nobody_up(tmp_path: Path) -> None:
    is_over = threading.Event()
    peering: Any = SimpleNamespace(close=lambda: is_over.wait(2 * HANG_S), give_no_more=lambda folder: None)
    abroad = Abroad()
    abroad._peerings["hosts", "secret"], abroad._called["hosts", "secret"] = (peering, 1), {}
    began = time.monotonic()
    abroad.leave(SimpleNamespace(peering=peering), tmp_path)  # type: ignore[arg-type]
    assert not is_over.is_set()
    assert time.monotonic() - began < HANG_S
    is_over.set()
    abroad.close()
