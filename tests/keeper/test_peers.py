"""Loaders with peers on one host: which files are the same on all hosts, and a keeper that does not answer."""

import os
import signal
import subprocess
import sys
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
from tests.wire.kept import Kept
from torch.utils.data import Dataset

import stoker
from stoker.cache.store import Store
from stoker.cli import metrics
from stoker.errors import ConfigError
from stoker.feed import ahead
from stoker.keeper.peering import Peering
from stoker.profile import Profile
from stoker.sealed import SHARED_BYTES
from stoker.source.files import file_version, shared_file_key
from stoker.wire import handshake
from stoker.wire.addresses import parse_addresses
from stoker.wire.peer import Peer
from stoker.wire.server import ItemServer
from stoker.wire.tls import VARIABLES

EXAMPLES = Path(__file__).parents[2] / "examples" / "unmodified"
PLANTED = Path(__file__).parents[1] / "scripts" / "planted.py"
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

    def make(dataset: Dataset[bytes], cache: str = "1MB") -> Any:
        return stoker.DataLoader(dataset, batch_size=4, cache=cache, peers=peers, collate_fn=list)

    return make


def test_folders_of_one_dataset_that_end_alike_are_told_apart_on_all_hosts() -> None:
    here, there = ("/a/2019/train/", "/a/2020/train/"), ("/b/x/2019/train", "/b/x/2020/train")
    old, new = (shared_file_key(f"{root}1.npy", here) for root in here)
    assert old != new
    assert (old, new) == (shared_file_key("/b/x/2019/train/1.npy", there), shared_file_key("/b/x/2020/train/1.npy", there))
    assert shared_file_key("/a/train/1.npy", ("/a/train",)) == shared_file_key("/b/train/1.npy", ("/b/train", "/b/val"))


def test_the_data_of_the_examples_is_the_same_on_two_hosts_that_make_it(tmp_path: Path) -> None:
    """As docs/peers.md tells to make it."""
    found: list[set[bytes]] = []
    for name in ("here", "there"):
        words = [sys.executable, EXAMPLES / "make_data.py", tmp_path / name, "--pictures", "4", "--sounds", "0"]
        subprocess.run(words, check=True)
        folder = tmp_path / name / "pictures"
        keys = [
            (shared_file_key(str(path), (str(folder),)) or b"") + file_version(path.stat())
            for path in folder.glob("*/*.jpg")
        ]
        found.append({key[:SHARED_BYTES] for key in keys})
    assert len(found[0]) == 4
    assert found[0] == found[1]


def test_two_datasets_that_are_called_alike_are_not_taken_for_each_other(tmp_path: Path, with_peers: Any) -> None:
    folders = [filled(tmp_path / year / "train", year[-1:].encode()) for year in ("2019", "2020")]
    with with_peers(Listed(folders[0])) as first, with_peers(Listed(folders[1])) as second:
        list(first)
        with pytest.warns(UserWarning, match="are both called train among the hosts"):
            for _ in range(20):  # the keeper says so when it runs
                assert list(second) == [[b"0" * SIZE] * 4] * (FILES // 4)
                time.sleep(0.1)
        assert troubles_of(second.peers)
        second.close()
        until(lambda: not troubles_of(second.peers))  # although the keeper goes on for the first one


def troubles_of(peers: str) -> list[str]:
    return [about["trouble"] for about in the_keeper()["peers"] if about["peers"] == peers and "trouble" in about]


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
    with with_peers(dataset) as loader:
        said = warned(loader)
    assert len(said) == 1
    assert "everything comes from storage: TLS cannot be used with" in said[0]
    assert "\n" not in said[0]


def warned(loader: Any) -> list[str]:
    """What is said in some epochs, which are complete and right, once something is said."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")

        def epoch() -> bool:
            assert list(loader) == [[b"x" * SIZE] * 4] * (FILES // 4)
            return bool(said)

        until(epoch)
        epoch()
    return [str(one.message) for one in said]


def test_an_address_that_cannot_be_reached_is_one_warning(
    tmp_path: Path, with_peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "EARLY_S", 0.0)
    with with_peers(Listed(filled(tmp_path / "data", b"x"))) as loader:
        said = warned(loader)
        assert len(said) == 1
        assert f"what {loader.peers.split(',')[1]} holds comes from storage: " in said[0]
        assert "refused" in said[0]


def test_a_host_with_another_version_is_one_warning_that_says_so(
    tmp_path: Path, with_peers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "EARLY_S", 0.0)
    with with_peers(Listed(filled(tmp_path / "data", b"x"))) as loader:
        monkeypatch.setattr(handshake, "VERSION", handshake.VERSION + 1)  # in this process, which is the other host
        with ItemServer(parse_addresses(loader.peers)[1], Kept(), SECRET):
            said = warned(loader)
        assert len(said) == 1
        assert (
            f"speaks version {handshake.VERSION} of the wire, this host version {handshake.VERSION - 1}: install" in said[0]
        )


def test_analyze_measures_what_another_hosts_cache_gives(tmp_path: Path, with_peers: Any) -> None:
    folder = filled(tmp_path / "data", b"x")
    for path in folder.iterdir():
        path.rename(path.with_suffix(".bin"))
    words = [sys.executable, "-m", "stoker", "analyze", "--json", str(tmp_path / "profile.json"), "--time", "0.4"]
    script = [str(PLANTED), str(folder), "--compute", "0.004", "--batch", "4"]

    def analyze(*peers: str) -> Profile:
        done = subprocess.run([*words, *peers, *script], check=False, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        return Profile.load(tmp_path / "profile.json")

    with with_peers(Listed(folder)) as loader:
        list(loader)
        here = loader.peers.split(",")[0]
        address = parse_addresses(loader.peers)[0]
        with Peer(address, SECRET) as peer:
            peer.greet(HANG_S)
            until(lambda: sum(len(piece.names) for piece in peer.names()) == FILES)
        assert analyze("--peers", here).rates.peer > 100
    away = analyze("--peers", here)  # its job is over, and so is its keeper
    assert away.rates.peer == 0
    assert any("other hosts were not measured" in note and "cannot be reached" in note for note in away.notes)


def test_metrics_tell_what_came_from_each_host_and_who_is_not_asked(tmp_path: Path, with_peers: Any) -> None:
    folder = filled(tmp_path / "data", b"x")
    with with_peers(Listed(folder), cache="4kB") as loader:
        own, other = parse_addresses(loader.peers)
        (tmp_path / "store").mkdir()
        store = Store(tmp_path / "store")
        there = Peering(other, [own], SECRET)
        try:
            there._gifts._stores[store.folder] = store, 1
            roots = (str(folder),)
            keys = [(shared_file_key(str(path), roots) or b"") + file_version(path.stat()) for path in folder.iterdir()]
            store.put([(key, b"x" * SIZE) for key in keys], 1 << 20)
            there.kept(keys)

            def epoch() -> bool:
                assert list(loader) == [[b"x" * SIZE] * 4] * (FILES // 4)
                return loader.stats().hits_peer > 0

            until(epoch)
            said = {}

            def is_shown() -> bool:
                for line in metrics._text().splitlines():
                    name, _, value = line.partition("{")
                    if name.startswith("stoker_peer_") and f'peer="{other[0]}:{other[1]}"' in value:
                        said[name.removeprefix("stoker_peer_")] = float(value.split()[-1])
                is_usable = said.get("suspect") == 0
                return said.get("hits_total", 0) > 0 and said["held_items"] == FILES and is_usable

            until(is_shown)
            assert said["received_bytes_total"] >= SIZE * said["hits_total"]
            one_more = b"\x01" * len(keys[0])  # names are listed from above the one of zeros on
            store.put([(one_more, b"x")], 1 << 20)
            there.kept([one_more])
            until(lambda: not is_shown() and said["held_items"] == FILES + 1)  # although nobody reads anything meanwhile
            assert said["late_answers_total"] >= 0
        finally:
            there.close()
            store.close()


@pytest.mark.parametrize("are_the_same", [False, True], ids=["other times", "the same"])
def test_files_that_are_not_the_same_on_another_host_are_one_warning(
    tmp_path: Path, with_peers: Any, monkeypatch: pytest.MonkeyPatch, are_the_same: bool
) -> None:
    monkeypatch.setattr(ahead, "EARLY_S", 0.0)
    folder = filled(tmp_path / "data", b"x")
    with with_peers(Listed(folder), cache="4kB") as loader:
        own, other = parse_addresses(loader.peers)
        (tmp_path / "store").mkdir()
        store = Store(tmp_path / "store")
        roots = (str(folder),)
        keys = [(shared_file_key(str(path), roots) or b"") + file_version(path.stat()) for path in folder.iterdir()]
        store.put([(key, b"x" * SIZE) for key in keys], 1 << 20)
        if not are_the_same:
            for path in folder.iterdir():  # as if the other host's copies had been made without their times
                os.utime(path, (1e9 + 1, 1e9 + 1))
        there = Peering(other, [own], SECRET)
        try:
            there._gifts._stores[store.folder] = store, 1
            there.kept(keys)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")

                def has_asked() -> bool:
                    assert list(loader) == [[b"x" * SIZE] * 4] * (FILES // 4)
                    peers = [peer for host in the_keeper()["peers"] for peer in host.get("hosts", {}).values()]
                    return any(peer["given"] or peer["in_vain"] >= 16 for peer in peers)

                until(has_asked)
                for _ in range(20):
                    list(loader)
                    time.sleep(0.05)
            words = [str(one.message) for one in said]
            if are_the_same:
                assert words == []
            else:
                assert len(words) == 1
                assert "its files are not the same by path below the dataset's folder, size and time" in words[0]
        finally:
            there.close()
            store.close()


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
