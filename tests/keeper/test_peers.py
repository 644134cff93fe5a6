"""Loaders with peers on one host: which files are the same on all hosts, and a keeper that does not answer."""

import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.keeper.test_life import the_keeper
from tests.keeper.test_peering import free_ports
from tests.tries import HANG_S, until
from tests.wire.certificates import certified
from torch.utils.data import Dataset

import stoker
from stoker.errors import ConfigError
from stoker.source.files import shared_file_key
from stoker.wire.addresses import parse_addresses
from stoker.wire.peer import Peer
from stoker.wire.tls import VARIABLES

FILES, SIZE = 24, 3000
SECRET = b"of these tests" * 4


class Listed(Dataset[bytes]):
    """A dataset that keeps its paths."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(str(path) for path in folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> bytes:
        return Path(self.paths[index]).read_bytes()


class Unlisted(Listed):
    """A dataset that tells its folder, and no path before it opens it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = str(folder), len(os.listdir(folder))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> bytes:
        return Path(self.folder, f"{index:03}").read_bytes()


def filled(folder: Path, content: bytes) -> Path:
    folder.mkdir(parents=True)
    for number in range(FILES):
        path = folder / f"{number:03}"
        path.write_bytes(content * SIZE)
        os.utime(path, (1e9, 1e9))
    return folder


@pytest.fixture
def with_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    monkeypatch.setenv("STOKER_SECRET_FILE", str(secret))
    peers = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    return lambda dataset: stoker.DataLoader(dataset, batch_size=4, cache="1MB", peers=peers, collate_fn=list)


def test_folders_of_one_dataset_that_end_alike_are_told_apart_on_all_hosts() -> None:
    here, there = ("/a/2019/train/", "/a/2020/train/"), ("/b/x/2019/train", "/b/x/2020/train")
    old, new = (shared_file_key(f"{root}1.npy", here) for root in here)
    assert old != new
    assert (old, new) == (shared_file_key("/b/x/2019/train/1.npy", there), shared_file_key("/b/x/2020/train/1.npy", there))
    assert shared_file_key("/a/train/1.npy", ("/a/train",)) == shared_file_key("/b/train/1.npy", ("/b/train", "/b/val"))


def test_two_datasets_that_are_called_alike_are_not_taken_for_each_other(tmp_path: Path, with_peers: Any) -> None:
    folders = [filled(tmp_path / year / "train", year[-1:].encode()) for year in ("2019", "2020")]
    with with_peers(Listed(folders[0])) as first, with_peers(Listed(folders[1])) as second:
        list(first)
        with pytest.warns(UserWarning, match="are both called train among the hosts"):
            for _ in range(20):  # the keeper says so when it runs
                assert list(second) == [[b"0" * SIZE] * 4] * (FILES // 4)
                time.sleep(0.1)


def test_a_keeper_shows_the_certificate_that_a_job_names_and_wants_one(
    tmp_path: Path, with_peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certified(tmp_path)
    monkeypatch.chdir(tmp_path)
    for variable, path in zip(VARIABLES, tls.files, strict=True):
        monkeypatch.setenv(variable, os.path.relpath(path))
    with with_peers(Listed(filled(tmp_path / "data", b"x"))) as loader:
        list(loader)
        address = parse_addresses(loader.peers)[0]
        with Peer(address, SECRET, tls=tls) as peer, Peer(address, SECRET) as stranger:
            peer.greet(HANG_S)
            until(lambda: sum(len(piece.names) for piece in peer.names()) == FILES)
            until(lambda: stranger.stats().trouble)
            assert not stranger.is_usable


def test_certificates_that_cannot_be_used_are_one_warning_and_everything_comes_from_storage(
    tmp_path: Path, with_peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLES[0], str(tmp_path / "none.pem"))
    dataset = Listed(filled(tmp_path / "data", b"x"))
    with pytest.raises(ConfigError, match="TLS needs all of"):
        with_peers(dataset)
    for variable in VARIABLES[1:]:
        monkeypatch.setenv(variable, str(tmp_path / "none.pem"))
    with with_peers(dataset) as loader, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")

        def epoch() -> bool:
            assert list(loader) == [[b"x" * SIZE] * 4] * (FILES // 4)
            return bool(said)

        until(epoch)
        epoch()
    assert len(said) == 1
    assert "everything comes from storage: TLS cannot be used with" in str(said[0].message)
    assert "\n" not in str(said[0].message)


def test_a_suspended_keeper_costs_a_deadline_and_not_one_for_each_file(tmp_path: Path, with_peers: Any) -> None:
    with with_peers(Unlisted(filled(tmp_path / "data", b"x"))) as loader:
        wanted = list(loader)
        for path in (tmp_path / "data").iterdir():  # the cache does not have these
            os.utime(path, (1e9 + 1, 1e9 + 1))
        pid = the_keeper()["pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert list(loader) == wanted
            assert time.monotonic() - began < FILES / 2  # 1.5 s each would be three times as long
        finally:
            os.kill(pid, signal.SIGCONT)
