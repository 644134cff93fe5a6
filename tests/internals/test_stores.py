"""Stores of torch.distributed: where they are found, and that a look there is nobody else's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from tests.tries import until

from stoker.internals import stores


@pytest.fixture
def server() -> Iterator[Any]:
    make: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]
    yield make("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_the_agents_store_is_there_before_any_process_group(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stores.agents_store() is None
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": server.port}.items():
        monkeypatch.setenv(name, str(value))
    assert stores.agents_store() is None  # rank 0 will be the server, when the script makes a group
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    found = stores.agents_store()
    found.set("left", "word")
    assert server.get("left") == b"word"
    assert stores.address_of(found) == ("127.0.0.1", server.port)
    # What meetings rely on: nothing waits, and the first who comes decides.
    assert not found.check(["nobody's"])
    assert [found.add("count", 0), found.add("count", 1)] == [0, 1]
    assert [found.compare_set("first", "", value) for value in ("a", "b")] == [b"a", b"a"]


def test_the_process_groups_store_is_there_when_the_group_is(server: Any) -> None:
    assert stores.groups_store() is None
    torch.distributed.init_process_group("gloo", store=server, rank=0, world_size=1)
    found = stores.groups_store()
    found.set("left", "word")
    assert stores.groups_store().get("left") == b"word"
    assert stores.address_of(found) == ("127.0.0.1", server.port)
    assert stores.address_of(torch.distributed.HashStore()) is None


_SERVER = """
import sys, time, torch.distributed
store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def test_a_store_whose_server_is_suspended_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdin=-1, stdout=-1, text=True) as server:
        try:
            assert server.stdout is not None
            monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
            monkeypatch.setenv("MASTER_PORT", server.stdout.readline().strip())
            monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
            store = stores.agents_store()
            assert store.add("key", 1) == 1
            os.kill(server.pid, signal.SIGSTOP)
            until(lambda: Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            with pytest.raises(RuntimeError, match=r"[Tt]imeout"):
                store.add("key", 1)
        finally:
            server.kill()
