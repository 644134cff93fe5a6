"""Batches that workers on other hosts make: the same, each once, whatever becomes of those workers."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Dataset

import stoker
from stoker.checksum import load
from stoker.cli import worker
from stoker.errors import CommandError
from stoker.feed import offloading
from stoker.host import process
from stoker.host.sockets import take_name
from stoker.remote.ranks import Ranks
from stoker.remote.said import Word, pack_made
from stoker.remote.seats import BatchPace, Fields, RemoteSeat, Task
from stoker.remote.versions import difference
from stoker.slots.makers import name_of
from stoker.slots.offers import MAY_BE_HELPED, Offers
from stoker.wire.frames import Frame, Header

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Linux")


class Noisy(Dataset[Any]):
    """Samples that draw, and take a while."""

    def __init__(self, count: int, seconds: float = 0.0) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, dict[str, Any]]:
        time.sleep(self.seconds)
        return torch.rand(700) + index, index, {"draw": float(np.random.random()), "name": f"sample {index}"}


@pytest.fixture(autouse=True)
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text(secrets.token_hex(32))
    path.chmod(0o600)
    monkeypatch.setenv("STOKER_SECRET_FILE", str(path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@contextlib.contextmanager
def workers(port: int, count: int = 2, **environment: str) -> Iterator["subprocess.Popen[str]"]:
    """Worker processes as on another host: relatives of nobody here, found by an address alone."""
    command = [sys.executable, "-m", "stoker", "worker", f"tcp://127.0.0.1:{port}", "-n", str(count)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | environment)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def loader_of(dataset: Any, port: int | None, **options: Any) -> stoker.DataLoader:
    """A loader; with a port, one that sends away all that others can make, at once."""
    offload = {} if port is None else {"offload": f"tcp://127.0.0.1:{port}", "plan": stoker.Plan(offload_ratio=1.0)}
    return stoker.DataLoader(dataset, 8, shuffle=True, num_workers=2, seed=3, **offload, **options)


def flat(batch: Any) -> list[Any]:
    tensor, index, rest = batch
    return [tensor.tolist(), index.tolist(), rest["draw"].tolist(), rest["name"]]


def epochs_of(loader: Any, count: int) -> list[list[Any]]:
    return [[flat(batch) for batch in loader] for _ in range(count)]


def until_used(loader: Any, most: int = 200) -> int:
    """Iterate until workers on other hosts have made something. Returns how many epochs that took."""
    for epochs in range(1, most):
        for _ in loader:
            pass
        if loader.stats().remote:
            return epochs
    raise AssertionError("workers on other hosts have made nothing")


def test_batches_are_the_same_wherever_they_are_made() -> None:
    expected = epochs_of(loader_of(Noisy(96), None), 3)
    port = free_port()
    with workers(port), loader_of(Noisy(96, 0.004), port, persistent_workers=True) as loader:
        found = epochs_of(loader, 3)
        until_used(loader)
        assert loader.stats().remote > 0
    assert found == expected


def test_what_cannot_be_made_elsewhere_is_made_here(tmp_path: Path) -> None:
    marker = tmp_path / "tried"

    class OnThisHost(Noisy):
        def __getitem__(self, index: int) -> Any:
            if b"stoker.remote" in Path("/proc/self/cmdline").read_bytes():
                marker.touch()
                raise FileNotFoundError("no such file there")
            return super().__getitem__(index)

    plain, port = loader_of(Noisy(64), None), free_port()
    with workers(port), loader_of(OnThisHost(64, 0.004), port, persistent_workers=True) as loader:
        for _ in range(500):
            assert epochs_of(loader, 1) == epochs_of(plain, 1)
            if marker.exists():
                break
        assert marker.exists()
        assert epochs_of(loader, 2) == epochs_of(plain, 2)
        assert loader.stats().remote == 0


def remote_processes(command: "subprocess.Popen[str]") -> list[psutil.Process]:
    return psutil.Process(command.pid).children()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_lost_or_hangs_costs_nothing_but_time(how: signal.Signals) -> None:
    port = free_port()
    with workers(port) as command, loader_of(Noisy(160, 0.004), port, persistent_workers=True) as loader:
        epochs = until_used(loader)
        found = []
        for number, batch in enumerate(loader):
            if number == 4:
                for process in remote_processes(command):
                    process.send_signal(how)
            found.append(flat(batch))
        for process in remote_processes(command):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
    again = loader_of(Noisy(160), None)
    for _ in range(epochs):
        for _ in again:
            pass
    assert found == [flat(batch) for batch in again]


def test_workers_come_later_and_the_relay_ends_with_the_loader() -> None:
    port = free_port()
    loader = loader_of(Noisy(64, 0.004), port, persistent_workers=True)
    for _ in loader:
        pass
    relay = loader.here.relaying
    assert relay is not None
    with workers(port):
        until_used(loader)
        loader.close()
        assert not psutil.pid_exists(relay.pid)


def test_a_worker_whose_parent_went_while_it_imported_ends() -> None:
    command = [sys.executable, "-m", "stoker.remote", f"tcp://127.0.0.1:{free_port()}"]
    others_child = subprocess.Popen([*command, str(os.getppid()), "2"])
    own_child = subprocess.Popen([*command, str(os.getpid()), "2"])
    try:
        assert others_child.wait(120) == 0
        with pytest.raises(subprocess.TimeoutExpired):
            own_child.wait(1)
    finally:
        for child in (others_child, own_child):
            child.kill()
            child.wait()


def test_a_worker_ends_when_its_threads_have_ended() -> None:
    port = free_port()
    code = f"""
import threading, time
from stoker.remote import worker
from stoker.wire.secret import shared_secret

class Slow(worker.RemoteWorker):
    def _serve(self, *arguments):
        super()._serve(*arguments)
        time.sleep(0.5)

worker.RemoteWorker = Slow
worker.main(("127.0.0.1", {port}), shared_secret())
print([thread.name for thread in threading.enumerate()])
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as there:
        with loader_of(Noisy(32, 0.01), port, persistent_workers=True) as loader:
            until_used(loader)
        said, _ = there.communicate(timeout=60)
    assert said == "['MainThread']\n"


def test_versions_that_differ_are_named() -> None:
    here = {"python": "3.11", "torch": "2.13.0", "pillow": "12"}
    assert difference(here, dict(here)) == ""
    there = {"python": "3.11", "torch": "2.12.0"}
    assert difference(here, there) == (
        "torch is 2.12.0 on the worker's host and 2.13.0 on the training host; "
        "pillow is missing on the worker's host and 12 on the training host"
    )


def test_an_address_where_nobody_listens_is_one_line() -> None:
    port = free_port()
    with workers(port, 2) as command:
        assert command.stderr is not None
        assert f"no job listens at 127.0.0.1:{port} yet (" in command.stderr.readline()
        command.terminate()
        assert command.stderr.read() == ""


def test_why_workers_are_refused_is_one_line(tmp_path: Path) -> None:
    port, about = free_port(), tmp_path / "numpy-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n")
    places = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    with loader_of(Noisy(16), port, persistent_workers=True) as loader:
        list(loader)
        with workers(port, 3, PYTHONPATH=places) as command:
            assert command.stderr is not None
            said = command.stderr.read()
            assert command.wait(120) == 1
    assert said == (
        f"stoker: 127.0.0.1:{port} refuses this worker: numpy is 0.1 on the worker's host and {np.__version__} on the "
        "training host\n"
    )


def test_another_secret(tmp_path: Path) -> None:
    port = free_port()
    with loader_of(Noisy(64, 0.002), port, persistent_workers=True) as loader:
        for _ in loader:
            pass
        other = tmp_path / "other"
        other.write_text(secrets.token_hex(32))
        other.chmod(0o600)
        with workers(port, 1, STOKER_SECRET_FILE=str(other)) as command:
            assert command.wait(120) == 1
            assert command.stderr is not None
            assert "the secret must be the same on both" in command.stderr.read()
        for _ in loader:
            pass
        assert loader.stats().remote == 0


def unseeded(dataset: Any, port: int | None, **options: Any) -> Any:
    torch.manual_seed(5)
    options = {"shuffle": True, "num_workers": 2, "persistent_workers": True, **options}
    if port is None:
        return torch.utils.data.DataLoader(dataset, 8, **options)
    plan = stoker.Plan(offload_ratio=1.0)
    return stoker.DataLoader(dataset, 8, offload=f"tcp://127.0.0.1:{port}", plan=plan, **options)


class Still(Noisy):
    """Samples that draw nothing."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.full((700,), index), index, {"draw": 0.5, "name": f"sample {index}"}


def test_data_that_draws_nothing_needs_no_seed() -> None:
    port = free_port()
    with workers(port), unseeded(Still(96, 0.004), port) as loader:
        found = epochs_of(loader, 2)
        epochs = 2 + until_used(loader)
        found += epochs_of(loader, 2)
    expected = epochs_of(unseeded(Still(96), None), epochs + 2)
    assert found == expected[:2] + expected[-2:]


def test_data_that_draws_needs_a_seed() -> None:
    port = free_port()
    said = r"offload=: everything is prepared on this host, because .* draws some.*stoker run --seed N"
    with workers(port), pytest.warns(UserWarning, match=said), unseeded(Noisy(96, 0.004), port) as loader:
        found = epochs_of(loader, 6)
        assert loader.stats().remote == 0
    assert found == epochs_of(unseeded(Noisy(96), None), 6)


def test_draws_that_only_a_remote_worker_notices(tmp_path: Path) -> None:
    marker = tmp_path / "drawn"

    class DrawsThere(Still):
        def __getitem__(self, index: int) -> Any:
            if b"stoker.remote" in Path("/proc/self/cmdline").read_bytes():
                np.random.random()
                marker.touch()
            return super().__getitem__(index)

    port, epochs = free_port(), 0
    with workers(port), unseeded(DrawsThere(96, 0.004), port) as loader:
        while not marker.exists():
            epochs_of(loader, 1)
            epochs += 1
            assert epochs < 200
        found = epochs_of(loader, 4)
        assert loader.stats().remote == 0
    assert found == epochs_of(unseeded(Still(96), None), epochs + 4)[epochs:]


class Surrounded(Noisy):
    """Samples that depend on the process they are made in."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        shift = int(os.environ.get("SHIFT_OF_SAMPLES", "0"))
        return torch.tensor([0.5, index + shift]), index, {"draw": 0.1, "name": os.path.basename(os.getcwd())}


def test_surroundings_travel_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHIFT_OF_SAMPLES", "7")
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float64)
    try:
        plain, port = loader_of(Surrounded(64), None), free_port()
        there = {"SHIFT_OF_SAMPLES": "3", "PWD": "/"}
        with workers(port, **there), loader_of(Surrounded(64, 0.004), port, persistent_workers=True) as loader:
            for _ in range(until_used(loader)):
                list(plain)
            for _ in range(3):
                ours, theirs = list(loader), list(plain)
                assert [batch[0].dtype for batch in ours] == [torch.float64] * len(ours)
                assert [flat(batch) for batch in ours] == [flat(batch) for batch in theirs]
    finally:
        torch.set_default_dtype(torch.float32)


def test_slow_batches_are_made_elsewhere_too() -> None:
    """Slower than the time that a silent worker has: the first batch may take longer."""
    port = free_port()
    with workers(port, 1), loader_of(Noisy(48, 0.35), port, persistent_workers=True) as loader:
        until_used(loader)


def test_a_relay_that_was_killed_is_replaced() -> None:
    port = free_port()
    with workers(port), loader_of(Noisy(64, 0.004), port) as loader:
        until_used(loader)
        relay = loader.here.relaying
        assert relay is not None
        psutil.Process(relay.pid).kill()
        before = loader.stats().remote
        for _ in range(200):
            for _ in loader:
                pass
            if loader.stats().remote > before:
                break
        else:
            raise AssertionError("no relay any more")


def test_a_dataset_may_have_no_length() -> None:
    class Endless(Dataset[Any]):
        def __getitem__(self, index: int) -> Any:
            return torch.rand(3) + index

    address = f"tcp://127.0.0.1:{free_port()}"
    with stoker.DataLoader(Endless(), 8, sampler=range(64), num_workers=1, seed=3, offload=address) as loader:
        assert len(list(loader)) == 8
        assert loader.here.relaying is not None and loader.here.relaying.is_there


def test_the_larger_loader_has_the_address() -> None:
    """Validation first, as a sanity check does."""
    port = free_port()
    with workers(port), loader_of(Noisy(16), port) as small, loader_of(Noisy(96, 0.004), port) as large:
        list(small)
        assert small.here.relaying is not None
        until_used(large)
        list(small)
        assert small.here.relaying is None


def test_closing_is_quick_although_others_were_forked() -> None:
    port = free_port()
    train = loader_of(Noisy(32), port)
    list(train)
    other = iter(loader_of(Noisy(32), None, persistent_workers=True))
    began = time.monotonic()
    train.close()
    assert train.here.relaying is None or not train.here.relaying.is_there
    assert time.monotonic() - began < 4.5  # after 5 s it would be killed
    del other


def test_a_port_of_somebody_else_is_named() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        loader = loader_of(Noisy(16), taken.getsockname()[1])
        with pytest.warns(UserWarning, match="cannot listen"):
            assert len(list(loader)) == 2


@pytest.mark.parametrize("world", [1, 2])
def test_an_address_of_another_job_is_named(
    world: int, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(world))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(world))
    port = free_port()
    taken = take_name(f"relay tcp://127.0.0.1:{port}")
    assert taken is not None
    with taken:
        assert len(list(loader_of(Noisy(16), port))) == 2
    said = [str(warning.message) for warning in recwarn if "another job on this host has" in str(warning.message)]
    assert len(said) == (1 if world == 1 else 0)  # another rank has it for this one, too


def test_what_cannot_be_started_is_not_tried_in_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    taken = socket.create_server(("127.0.0.1", 0))
    loader = loader_of(Noisy(16), taken.getsockname()[1])
    with pytest.warns(UserWarning, match="cannot listen"):
        list(loader)
    taken.close()
    for _ in range(3):
        list(loader)
        assert loader.here.relaying is None
    monkeypatch.setattr(offloading, "now", lambda: time.monotonic() + 1e6)  # much later
    list(loader)
    assert loader.here.relaying is not None
    loader.close()


def test_workers_are_needed() -> None:
    with pytest.raises(stoker.errors.ConfigError, match="num_workers=1 or more"):
        stoker.DataLoader(Noisy(16), 4, seed=1, offload="tcp://127.0.0.1:7100")


class _Filled:
    """A channel that has received."""

    name = b""

    def fill(self, room: memoryview) -> None:
        room[:] = bytes(len(room))


def test_a_batch_that_its_rank_does_not_take_is_left_to_own_workers(tmp_path: Path) -> None:
    import socket

    tmp_path.chmod(0o700)
    load()
    address = f"stoker-test-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{address}")
        listener.listen()
        offered = Offers(tmp_path, {"job": "j", "workers": 1, "prefetch": 2, "address": address}, MAY_BE_HELPED)
        offered.offer(0, b"work")
        ranks = Ranks(tmp_path, "j")
        ranks.look()
        (rank,) = ranks.there.values()
        assert rank.works.take(0, name_of(process.own())) == b"work"
        seat = RemoteSeat(_Filled(), Fields(0, 1, 2, 3, 4), BatchPace(), lambda seat: None, lambda task: None)  # type: ignore[arg-type]
        body = pack_made((0.0, None, None, None), bytes(8), is_pickled=False)
        connecting = seat._delivery(rank)
        assert connecting is not None
        listener.accept()[0].close()  # it has no descriptors left
        assert not seat._receive(Task(rank, 0, b"work"), Frame(Header(Word.MADE, 0, 0, len(body), 8), body))
        assert rank.works.left() == [0]
        offered.close()


@pytest.mark.parametrize(("asked", "cores", "count"), [(None, 2.5, 2), (None, 0.5, 1), (3, 8.0, 3)])
def test_there_is_a_worker_for_each_core_that_may_be_used(
    asked: int | None, cores: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "usable_cores", lambda: cores)
    assert worker._how_many(asked) == count


@pytest.mark.parametrize("asked", [0, -1])
def test_no_worker_at_all_is_an_error(asked: int) -> None:
    with pytest.raises(CommandError, match="must be 1 or more"):
        worker._how_many(asked)


@pytest.mark.parametrize("address", ["ray", "tcp://nobody", "tcp://:7", "host:5", "tcp://host:0", "tcp://host:²", 7])
def test_addresses_that_are_none(address: Any) -> None:
    with pytest.raises(stoker.errors.ConfigError, match="tcp://HOST:PORT"):
        stoker.DataLoader(Noisy(16), 4, num_workers=1, seed=1, offload=address)
