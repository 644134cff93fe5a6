"""Who lives, as the kernel says."""

import os
import select
import signal
import subprocess
import sys

from stoker.host import process

HANG_S = 120

PARENT = """
import multiprocessing, os, time
from stoker.host.parent import end_with_parent

def child(line):
    line.send((os.getpid(), end_with_parent()))
    time.sleep(1000)

ours, theirs = multiprocessing.Pipe()
multiprocessing.get_context("fork").Process(target=child, args=(theirs,)).start()
print(*ours.recv(), flush=True)
time.sleep(1000)
"""


def test_this_process_lives_under_its_own_start_only() -> None:
    pid, started = process.own()
    assert pid == os.getpid()
    assert process.is_alive(pid, started)
    assert not process.is_alive(pid, started + 1)  # the pid was given again


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = process.find(child.pid)
        assert found is not None
        assert process.is_alive(child.pid, found.started)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie until somebody takes note
        zombie = process.find(child.pid)
        assert zombie is not None
        assert zombie.is_dead
        assert not process.is_alive(child.pid, found.started)
    finally:
        child.communicate()
    assert not process.is_alive(child.pid, found.started)


def test_a_boot_has_one_name() -> None:
    assert process.boot()
    assert process.boot() == process.boot()


def test_a_process_ends_with_its_parent_however_that_ends() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, is_told = parent.stdout.readline().split()
    assert is_told == "True"
    child = os.pidfd_open(int(pid))
    try:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
        assert select.select([child], [], [], HANG_S)[0]
    finally:
        os.close(child)
