"""Hosts that are to find each other, and what one host sees of it; with real hosts: tests/end_to_end/test_hosts.py."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch.distributed
from tests.keeper.test_peers import FILES, SIZE, Listed, filled

import stoker
from stoker.feed import meeting
from stoker.feed.meeting import Meeting, introduction
from stoker.host import slurm


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STOKER_SECRET_FILE", "MASTER_ADDR", "SLURM_STEP_NODELIST", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def epoch(folder: Path) -> tuple[Any, list[str]]:
    with stoker.DataLoader(Listed(folder), 4, cache="1MB", peers="auto", collate_fn=list) as loader:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for _ in range(3):
                assert list(loader) == [[b"x" * SIZE] * 4] * (FILES // 4)
        return loader.peers, [str(one.message) for one in said]


def test_without_a_launcher_one_warning_says_what_to_do_and_everything_comes_from_storage(tmp_path: Path) -> None:
    _, said = epoch(filled(tmp_path / "data", b"x"))
    assert len(said) == 1
    assert "everything comes from storage: start the script with torchrun" in said[0]


def test_a_single_host_needs_no_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")
    assert epoch(filled(tmp_path / "data", b"x")) == (None, [])


def test_a_master_that_others_cannot_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    make: Any = torch.distributed.TCPStore  # type: ignore[attr-defined]
    server = make("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for name, value in {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": server.port,
        "TORCHELASTIC_USE_AGENT_STORE": True,
    }.items():
        monkeypatch.setenv(name, str(value))
    with pytest.warns(UserWarning, match=r"127\.0\.0\.1 on this host, which others cannot reach"):
        assert introduction("auto")[1] is None


def test_tasks_of_slurm_know_each_other_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NODELIST", "localhost,127.0.0.[2-3]")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    with pytest.warns(UserWarning, match="set STOKER_SECRET_FILE"):
        assert introduction("auto")[0]["peers"] == "auto"
    monkeypatch.setenv("STOKER_SECRET_FILE", str(tmp_path / "secret"))
    told, place = introduction("auto")
    assert told["peers"] == ",".join(f"{name}:{slurm.port()}" for name in ("localhost", "127.0.0.2", "127.0.0.3"))
    assert told["secret"] == str(tmp_path / "secret")
    assert place is None
    monkeypatch.setenv("SLURM_STEP_NODELIST", "localhost,node[1-2]")
    with pytest.warns(UserWarning, match="localhost is .* which the other peers cannot reach"):
        assert introduction("auto")[0]["peers"] == "auto"


class Heard:
    """A line to a keeper that keeps what it is told."""

    def __init__(self) -> None:
        self.others: list[Any] = []

    def met(self, loader: int, own: Any, others: list[Any]) -> None:
        self.others = list(others)


def test_who_has_a_number_and_no_address_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_own_address", lambda towards: "10.9.0.1")
    store, line = torch.distributed.HashStore(), Heard()
    place = Meeting(store, ("node1", 29500), "run")
    place.attend(line, 0)  # type: ignore[arg-type]
    assert place.secret() == Meeting(store, ("node1", 29500), "run").secret()
    assert place.secret() != Meeting(store, ("node1", 29500), "other run").secret()

    def look() -> list[Any]:
        place._at = 0.0
        place.look()
        return line.others

    assert look() == []
    assert store.add("stoker/run/hosts", 2) == 2
    store.set("stoker/run/host/2", '["10.9.0.3", 7]')
    assert look() == [["10.9.0.3", 7]]
    store.set("stoker/run/host/1", '["10.9.0.2", 7]')
    assert look() == [["10.9.0.3", 7], ["10.9.0.2", 7]]
