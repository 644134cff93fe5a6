"""What happens at a fork comes in one order."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import stoker

OWN_HOOKS = """
import json, os, sys
from stoker.host import forks

said = []

def hook(module, word):
    def act():
        said.append(word)
        if word == "fails":
            raise ValueError("a hook that fails")
    act.__module__ = module
    return act

S = forks.Stage
registrations = [
    lambda: forks.register(S.THREADS, before=hook("m", "threads rest")),
    lambda: forks.register(S.BATCHES, before=hook("b", "batches")),
    lambda: forks.register(
        S.LOCKS, before=hook("a", "take"), after_in_parent=hook("a", "free"), after_in_child=hook("a", "new")
    ),
    lambda: forks.register(S.LOCKS, before=hook("z", "take z"), after_in_child=hook("z", "new z")),
    lambda: forks.register(S.HOLDINGS, after_in_child=hook("h", "fails")),
    lambda: forks.register(S.ITERATORS, after_in_child=hook("a", "refuse")),
]
for number in json.loads(sys.argv[1]):
    registrations[number]()
read, write = os.pipe()
child = os.fork()
if not child:
    os.write(write, json.dumps(said).encode())
    os._exit(0)
os.close(write)
os.waitpid(child, 0)
print(json.dumps({"child": json.loads(os.read(read, 9999)), "parent": said}))
"""


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 0, 5, 2, 4, 1]], ids=str)
def test_hooks_have_their_turn_in_the_order_of_stages(order: list[int]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OWN_HOOKS, json.dumps(order)], capture_output=True, text=True, check=True, timeout=120
    )
    before = ["threads rest", "batches", "take", "take z"]
    said = json.loads(done.stdout)
    assert said == {"child": [*before, "new", "new z", "fails", "refuse"], "parent": [*before, "free"]}
    assert "a hook that fails" in done.stderr  # it is reported, and kept nobody from its turn


OUR_HOOKS = """
import importlib, os, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
called = []

def note(frame, event, _):
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith("stoker.") and frame.f_back.f_globals.get("__name__") == "contextlib":
        called.append(f"{name}.{frame.f_code.co_name}")

sys.setprofile(note)
child = os.fork()
sys.setprofile(None)
if not child:
    print(*called, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def test_the_order_does_not_depend_on_imports() -> None:
    modules = ["stoker.cache.cached", "stoker.group.seat", "stoker.live.folder", "stoker.feed.carrier"]
    orders: list[Any] = []
    for chosen in (modules, modules[::-1]):
        done = subprocess.run(
            [sys.executable, "-c", OUR_HOOKS, *chosen], capture_output=True, text=True, check=True, timeout=120
        )
        orders.append(done.stdout.split())
    assert orders[0] == orders[1]
    names = orders[0]
    assert names.index("stoker.slots.inbox._before_fork") < names.index("stoker.cache.stores._before_fork")
    assert names.index("stoker.cache.stores._after_fork_in_child") < names.index("stoker.live.record._forget_all")
    assert names[-1].startswith("stoker.feed.refusing")


def test_hooks_that_come_while_a_thread_is_waited_for_have_their_turn() -> None:
    code = """
import os
from stoker.host import forks

said = []

def waits():
    forks.register(forks.Stage.LOCKS, before=lambda: said.append("take"), after_in_parent=lambda: said.append("free"))

forks.register(forks.Stage.THREADS, before=waits)
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
print(said)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("['take', 'free']\n", "")


def test_nobody_else_asks_the_system() -> None:
    """A hook that goes round the one list has no place in the order."""
    sources = Path(stoker.__file__).parent.rglob("*.py")
    asking = [path.name for path in sources if "os.register_at_fork" in path.read_text()]
    assert asking == ["forks.py"]
