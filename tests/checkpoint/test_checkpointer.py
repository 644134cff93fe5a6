"""The checkpointer in a loop: what it saves, what it refuses, and what it does when the world is against it."""

import gc
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tries import HANG_S

import stoker
from stoker.checkpoint.files import Directory
from stoker.errors import CheckpointError, ConfigError


class Box:
    """A state that is whatever was put in."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return {"state": self.state}

    def load_state_dict(self, state: Any) -> None:
        self.state = state["state"]


class Missing(Box):
    """Has no state when it is asked first."""

    def state_dict(self) -> Any:
        state, self.state_dict = None, super().state_dict  # type: ignore[method-assign]
        return state


def model_and_optimizer(width: int = 8, seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1))
    return model, torch.optim.Adam(model.parameters())


def train(checkpointer: Any, model: Any, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, model[0].in_features)).sum().backward()
        optimizer.step()
        checkpointer.step()


def restored(directory: Path, **stateful: Any) -> int | None:
    with stoker.Checkpointer(directory, **stateful) as checkpointer:
        return checkpointer.restore()


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right) and left.dtype == right.dtype and left.stride() == right.stride()
    if isinstance(left, (np.ndarray, np.generic)):
        return type(left) is type(right) and left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, dict):
        return type(left) is type(right) and list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


STATES: dict[str, Any] = {
    "scalars": [None, True, 1, -(10**30), 0.1, float("inf"), "text\n\u00e9", b"\0bytes", 1 + 2j],
    "containers": {"a": (1, [2, {3}]), 5: OrderedDict(x=1), ("k", 1): Counter("aab"), None: frozenset({1})},
    "tensors": [
        torch.arange(6).view(2, 3),
        torch.tensor(3.5),
        torch.empty(0, 3),
        torch.tensor([True]),
        torch.ones(2).bfloat16(),
    ],
    "strided": [
        torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1),
        torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    ],
    "sliced": torch.arange(20)[::3].clone(),
    "complex": torch.ones(3, dtype=torch.complex64),
    "arrays": [np.arange(5), np.float32(2.5), np.array("text"), np.zeros((0, 2)), np.arange(6).reshape(2, 3).T.copy()],
    "torch's own": [torch.float16, torch.Size([2, 3]), torch.device("cpu")],
}


@pytest.mark.parametrize("name", STATES)
def test_every_kind_of_state_comes_back(tmp_path: Path, name: str) -> None:
    with stoker.Checkpointer(tmp_path, every=1, box=Box(STATES[name])) as checkpointer:
        checkpointer.step()
    box = Box()
    assert restored(tmp_path, box=box) == 1
    assert same(box.state, STATES[name])


def test_what_would_need_pickle_is_refused_by_name_and_nothing_is_written(tmp_path: Path) -> None:
    with stoker.Checkpointer(tmp_path, every=1, box=Box({"deep": [1, lambda: 0]})) as checkpointer:
        with (
            pytest.warns(UserWarning, match="could not be written"),
            pytest.raises(CheckpointError, match=r"box\['state'\]\['deep'\]\[1\]"),
        ):
            checkpointer.step()
    assert Directory(tmp_path).names() == []


def test_a_state_that_is_missing_once_does_not_end_the_run_whatever_it_is_called(tmp_path: Path) -> None:
    with stoker.Checkpointer(tmp_path, every=1, **{"what cannot be saved": Missing(1)}) as checkpointer:
        with pytest.warns(UserWarning, match="returned None"):
            checkpointer.step()
        assert Directory(tmp_path).names() == []
        checkpointer.step()
    assert len(Directory(tmp_path).names()) == 1


def test_tied_and_shared_tensors_are_saved_once_and_stay_one(tmp_path: Path) -> None:
    shared = torch.rand(1000)
    with stoker.Checkpointer(tmp_path, every=1, box=Box([shared, shared, shared[:10]])) as checkpointer:
        checkpointer.step()
    box = Box()
    restored(tmp_path, box=box)
    assert box.state[0] is box.state[1]
    assert next(tmp_path.glob("*.data")).stat().st_size < 5000


def test_a_tensor_and_its_transpose_come_back_as_they_were(tmp_path: Path) -> None:
    weight = torch.arange(9.0).view(3, 3)
    with stoker.Checkpointer(tmp_path, every=1, box=Box([weight, weight.t()])) as checkpointer:
        checkpointer.step()
    box = Box()
    restored(tmp_path, box=box)
    assert torch.equal(box.state[0], weight)
    assert torch.equal(box.state[1], weight.t())


def test_a_milestone_is_of_its_moment_whatever_happens_to_the_weights_next(tmp_path: Path) -> None:
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2_000_000)) for _ in range(20)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with stoker.Checkpointer(tmp_path, model=model, optimizer=optimizer) as checkpointer:
        checkpointer.step(milestone=True)
        with torch.no_grad():
            for parameter in model:
                parameter.add_(1.0)
    assert restored(tmp_path, model=model, optimizer=optimizer) == 1
    assert all(not parameter.any() for parameter in model)


def test_damaged_ones_do_not_count_among_those_to_keep(tmp_path: Path) -> None:
    with stoker.Checkpointer(tmp_path, every=1, keep=2, box=Box(torch.rand(100))) as checkpointer:
        for _ in range(3):
            checkpointer.step()
    newest = Directory(tmp_path).names()[0]
    data = tmp_path / f"{newest}.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\1")
    with stoker.Checkpointer(tmp_path, every=1, keep=2, box=Box(torch.rand(100))) as checkpointer:
        with pytest.warns(UserWarning, match="damaged"):
            assert checkpointer.restore() == 2
        for _ in range(3):
            checkpointer.step()
    names = Directory(tmp_path).names()
    assert [int(name.split("-")[0]) for name in names] == [5, 4, 3]
    assert newest in names


def test_a_forked_child_ends_by_a_signal_as_it_would_without_us(tmp_path: Path) -> None:
    with stoker.Checkpointer(tmp_path, box=Box(1)):
        ready, tell = os.pipe()
        child = os.fork()
        if not child:
            os.write(tell, b"x")  # a signal before python is ready in a fork is lost, with us or without
            while True:
                time.sleep(0.01)
        os.read(ready, 1)
        os.close(ready)
        os.close(tell)
        os.kill(child, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM


def test_an_optimizer_with_other_groups_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    with stoker.Checkpointer(tmp_path, every=1, model=model, optimizer=optimizer) as checkpointer:
        train(checkpointer, model, optimizer, 1)
    other, _ = model_and_optimizer(seed=1)
    weights = other[0].weight.clone()
    with pytest.raises(CheckpointError, match="parameter groups"):
        restored(tmp_path, model=other, optimizer=torch.optim.Adam(other[0].parameters()))
    assert torch.equal(other[0].weight, weights)


def test_a_writer_that_cannot_be_started_again_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stoker.Checkpointer(tmp_path, every=1, box=Box(1)) as checkpointer:
        checkpointer.step()
        checkpointer._wait_saved()
        checkpointer._writer._process.kill()
        checkpointer._writer._process.wait()

        def refuse(*_: Any, **__: Any) -> None:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        with monkeypatch.context() as patch, pytest.warns(UserWarning, match="temporarily unavailable"):
            patch.setattr(subprocess, "Popen", refuse)
            checkpointer.step()
        checkpointer.step()
    assert restored(tmp_path, box=Box()) == 3


def test_a_run_goes_on_exactly(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    with stoker.Checkpointer(tmp_path, every=4, model=model, optimizer=optimizer) as checkpointer:
        assert checkpointer.restore() is None
        train(checkpointer, model, optimizer, 10)
    assert checkpointer.stats().checkpoints == 2
    expected = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = random.random(), np.random.rand(), torch.rand(1).item()
    other, its_optimizer = model_and_optimizer(seed=1)
    with stoker.Checkpointer(tmp_path, every=4, model=other, optimizer=its_optimizer) as checkpointer:
        assert checkpointer.restore() == 8
        train(checkpointer, other, its_optimizer, 2)
    assert same(dict(other.state_dict()), expected)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == after


def test_parameters_are_not_torn_by_the_next_update(tmp_path: Path) -> None:
    """Each update writes one number everywhere; a snapshot may hold only one. Large, so that copying takes a while."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(1_000_000)) for _ in range(20)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    with stoker.Checkpointer(tmp_path, every=1, model=model, optimizer=optimizer) as checkpointer:
        for _ in range(6):
            for parameter in model:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            checkpointer.step()
            assert checkpointer._copier._thread is not None  # the copy is beside the loop
        name = Directory(tmp_path).names()[0]
        _, pieces = Directory(tmp_path).load(name)
        for piece in pieces[:20]:
            assert len(np.unique(np.frombuffer(piece, np.float32)[:1_000_000])) == 1


def test_buffers_and_averages_are_copied_before_step_returns(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    average = torch.optim.swa_utils.AveragedModel(model)
    with stoker.Checkpointer(tmp_path, every=3, model=model, optimizer=optimizer, average=average) as checkpointer:
        for number in range(3):
            average.update_parameters(model)
            train(checkpointer, model, optimizer, 1)
            if number == 2:
                statistics = {name: value.clone() for name, value in model[1].named_buffers()}
                averaged = {name: value.clone() for name, value in average.named_parameters()}
        model.train()
        model(torch.randn(4, 8))
        average.update_parameters(model)
    other, its_optimizer = model_and_optimizer(seed=1)
    its_average = torch.optim.swa_utils.AveragedModel(other)
    assert restored(tmp_path, model=other, optimizer=its_optimizer, average=its_average) == 3
    assert same(dict(other[1].named_buffers()), statistics)
    assert same({name: value.detach() for name, value in its_average.named_parameters()}, averaged)


def test_a_parameter_changed_by_somebody_else_while_it_is_copied_is_noticed(tmp_path: Path) -> None:
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2_000_000)) for _ in range(30)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with (
        stoker.Checkpointer(tmp_path, every=2, model=model, optimizer=optimizer) as checkpointer,
        pytest.warns(UserWarning) as told,
    ):
        for _ in range(20):
            checkpointer.step()
            with torch.no_grad():
                for parameter in model:
                    parameter.add_(1.0)  # not an optimizer
    assert any("something other than an optimizer" in str(warning.message) for warning in told)
    for name in Directory(tmp_path).names():
        _, pieces = Directory(tmp_path).load(name)
        assert len({float(value) for piece in pieces[:30] for value in np.frombuffer(piece, np.float32)[:: 10**5]}) == 1


def test_only_so_many_are_kept_and_milestones_for_ever(tmp_path: Path) -> None:
    with stoker.Checkpointer(tmp_path, every=2, keep=3, box=Box(1)) as checkpointer:
        for step in range(1, 13):
            checkpointer.step(milestone=step == 5)
    assert [int(name.split("-")[0]) for name in Directory(tmp_path).names()] == [11, 9, 7, 5]


def test_damaged_ones_are_passed_by_said_and_left_alone(tmp_path: Path) -> None:
    with stoker.Checkpointer(tmp_path, every=1, keep=3, box=Box(torch.rand(100))) as checkpointer:
        for _ in range(3):
            checkpointer.step()
    newest, middle, oldest = Directory(tmp_path).names()
    data = tmp_path / f"{newest}.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\1")
    (tmp_path / f"{middle}.data").unlink()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"}
    with pytest.warns(UserWarning, match="damaged") as told:
        assert restored(tmp_path, box=Box()) == 1
    assert len(told) == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"} == before
    (tmp_path / f"{oldest}.json").write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(CheckpointError, match="none of the checkpoints"):
        restored(tmp_path, box=Box())
    # The steps are done again, beside what was damaged.
    with pytest.warns(UserWarning), stoker.Checkpointer(tmp_path, every=1, box=Box(1)) as checkpointer:
        with pytest.raises(CheckpointError):
            checkpointer.restore()
    assert (tmp_path / f"{newest}.json").read_bytes() == before[f"{newest}.json"]


def test_bad_input_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    with stoker.Checkpointer(tmp_path, every=1, model=model, optimizer=optimizer) as checkpointer:
        train(checkpointer, model, optimizer, 2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"}
    wider, its_optimizer = model_and_optimizer(9)
    weights = wider[0].weight.clone()
    with pytest.raises(
        CheckpointError, match=r"another model: model.0.weight has shape \(9, 9\), in the checkpoint \(8, 8\)"
    ):
        restored(tmp_path, model=wider, optimizer=its_optimizer)
    assert torch.equal(wider[0].weight, weights)
    with pytest.raises(CheckpointError, match="holds model, optimizer, and this run gives box"):
        restored(tmp_path, box=Box())
    with stoker.Checkpointer(tmp_path, box=Box()) as checkpointer, pytest.raises(CheckpointError, match="call restore"):
        checkpointer.step()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"} == before
    with pytest.raises(ConfigError, match=r"loader has no state_dict.*stoker.DataLoader"):
        stoker.Checkpointer(tmp_path, loader=torch.utils.data.DataLoader([1]))
    with pytest.raises(ConfigError, match="nothing to save"):
        stoker.Checkpointer(tmp_path)
    with pytest.raises(ConfigError, match="fraction"):
        stoker.Checkpointer(tmp_path, overhead=5, box=Box())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="need a directory"):
        stoker.Checkpointer(tmp_path / "file", box=Box())


def test_a_loader_of_another_dataset_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    def loader(count: int) -> Any:
        return stoker.DataLoader(list(range(count)), 2, seed=1)

    model, optimizer = model_and_optimizer()
    with stoker.Checkpointer(tmp_path, every=1, model=model, optimizer=optimizer, loader=loader(8)) as checkpointer:
        train(checkpointer, model, optimizer, 1)
    other, its_optimizer = model_and_optimizer(seed=1)
    weights = other[0].weight.clone()
    with pytest.raises(CheckpointError, match="loader refuses its state"):
        restored(tmp_path, model=other, optimizer=its_optimizer, loader=loader(9))
    assert torch.equal(other[0].weight, weights)


def test_two_runs_in_one_directory(tmp_path: Path) -> None:
    with stoker.Checkpointer(tmp_path, every=1, box=Box(1)) as checkpointer:
        checkpointer.step()
        with (
            stoker.Checkpointer(tmp_path, box=Box()) as other,
            pytest.raises(CheckpointError, match=f"process {os.getpid()}"),
        ):
            other.restore()
    assert restored(tmp_path, box=Box()) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MB."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_does_not_end_the_run(small_disk: Path) -> None:
    box = Box(torch.zeros(1000))
    with stoker.Checkpointer(small_disk, every=1, keep=1, box=box) as checkpointer:
        checkpointer.step()
        box.state = torch.zeros(10**6)
        with pytest.warns(UserWarning, match=r"No space left.*step 1 stays") as told:
            for _ in range(5):
                checkpointer.step()
            checkpointer._wait_saved()
        assert len(told) == 1
        assert checkpointer.stats().failures == 5
        assert Directory(small_disk).verify(Directory(small_disk).names()[0]).step == 1
        box.state = torch.zeros(1000)
        checkpointer.step()
    assert restored(small_disk, box=Box()) == 7
    assert sorted(path.suffix for path in small_disk.iterdir()) == ["", ".data", ".json"]


def test_a_disk_that_becomes_read_only_does_not_end_the_run(small_disk: Path) -> None:
    with stoker.Checkpointer(small_disk, every=1, box=Box(1)) as checkpointer:
        checkpointer.step()
        checkpointer._wait_saved()
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        with pytest.warns(UserWarning, match="Read-only"):
            checkpointer.step()
            checkpointer._wait_saved()
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
        checkpointer.step()
    assert restored(small_disk, box=Box()) == 3


def test_a_writer_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with stoker.Checkpointer(tmp_path, every=1, box=Box(torch.zeros(10**6))) as checkpointer:
        checkpointer.step()
        checkpointer._wait_saved()
        checkpointer._writer._process.send_signal(signal.SIGSTOP)
        checkpointer.step()
        checkpointer._writer._process.kill()
        with pytest.warns(UserWarning, match=r"has died.*step 1 stays"):
            checkpointer.step()
        checkpointer._wait_saved()
        checkpointer._writer._process.kill()  # while it has nothing to do: nobody needs to know
        checkpointer._writer._process.wait()
        checkpointer.step()
        checkpointer._wait_saved()
        assert checkpointer.stats().last_step == 4
    assert restored(tmp_path, box=Box()) == 4


def test_a_directory_that_is_removed_under_a_running_job(tmp_path: Path) -> None:
    place = tmp_path / "gone"
    with stoker.Checkpointer(place, every=1, box=Box(1)) as checkpointer:
        checkpointer.step()
        checkpointer._wait_saved()
        shutil.rmtree(place)
        with pytest.warns(UserWarning, match="could not be written"):
            checkpointer.step()
            checkpointer._wait_saved()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_and_ends_with_a_code_that_says_so(tmp_path: Path, scripts: Path, number: signal.Signals) -> None:
    words = [
        sys.executable,
        "-W",
        "ignore",
        str(scripts / "train.py"),
        str(tmp_path / "c"),
        str(tmp_path / "losses"),
        "100000",
    ]
    process = subprocess.Popen([*words, "--pause", "0.001"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    while len((tmp_path / "losses").read_text().splitlines() if (tmp_path / "losses").exists() else []) < 3:
        pass
    process.send_signal(number)
    process.communicate(timeout=HANG_S)
    assert process.returncode == 75
    reached = int((tmp_path / "losses").read_text().splitlines()[-1].split()[0])
    newest = Directory(tmp_path / "c").names()[0]
    assert Directory(tmp_path / "c").verify(newest).step == reached


def test_the_users_own_signal_handler_is_called_too_and_put_back(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        with stoker.Checkpointer(tmp_path / "one", box=Box(1)):
            pass
        os.kill(os.getpid(), signal.SIGUSR1)
        assert len(heard) == 1
        with stoker.Checkpointer(tmp_path / "two", box=Box(1)) as checkpointer, pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGUSR1)
            checkpointer.step()
        assert ended.value.code == 75
        assert len(heard) == 2
    finally:
        signal.signal(signal.SIGUSR1, before)
        signal.signal(signal.SIGTERM, terminate)


def test_in_a_thread_it_works_without_signals(tmp_path: Path) -> None:
    def work() -> None:
        with stoker.Checkpointer(tmp_path, every=1, box=Box(1)) as checkpointer:
            checkpointer.step()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert restored(tmp_path, box=Box()) == 1


def test_the_policy_is_kept_so_that_a_resume_does_not_profile_again(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    with stoker.Checkpointer(tmp_path, model=model, optimizer=optimizer) as checkpointer:
        while checkpointer.stats().checkpoints < 2:
            train(checkpointer, model, optimizer, 1)
    with stoker.Checkpointer(tmp_path, model=model, optimizer=optimizer) as checkpointer:
        checkpointer.restore()
        assert checkpointer._timetable.is_planned
        assert checkpointer.stats().interval > 1


def test_nothing_is_left_behind(tmp_path: Path, open_files: int) -> None:
    for _ in range(3):
        with stoker.Checkpointer(tmp_path, every=1, box=Box(torch.zeros(10**5))) as checkpointer:
            checkpointer.restore()
            checkpointer.step()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert not [thread for thread in threading.enumerate() if "stoker" in thread.name]


def test_forked_workers_in_the_middle_of_a_copy(tmp_path: Path) -> None:
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(2_000_000)) for _ in range(10)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = stoker.DataLoader(list(range(8)), 4, num_workers=2, seed=1)
    with stoker.Checkpointer(tmp_path, every=1, model=model, optimizer=optimizer, loader=loader) as checkpointer:
        for _ in range(4):
            for _ in loader:
                optimizer.step()
                checkpointer.step()
        assert checkpointer.stats().failures == 0
    assert restored(tmp_path, model=model, optimizer=optimizer, loader=loader) == 8


@pytest.mark.parametrize("is_there", [True, False], ids=["dies", "dies, and its directory goes"])
def test_a_trainer_that_dies_while_its_writer_starts(tmp_path: Path, is_there: bool) -> None:
    trainer = subprocess.Popen(["true"])
    trainer.wait()
    ours, theirs = socket.socketpair()
    folder = tmp_path if is_there else tmp_path / "gone"
    with ours, theirs:
        outcome = subprocess.run(
            [sys.executable, "-m", "stoker.checkpoint.persist", folder, "0", str(theirs.fileno()), "2", str(trainer.pid)],
            pass_fds=[theirs.fileno()], capture_output=True, text=True, timeout=HANG_S,
        )  # fmt: skip
    assert (outcome.returncode, outcome.stderr) == (0, "")
