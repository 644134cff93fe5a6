"""What real code does to loaders. Each of these once went wrong, or could."""

import os
import select
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tests.datasets import Numbers, Stream
from tests.torch.test_differential import compare
from tests.tries import HANG_S, seconds
from torch.utils.data import SubsetRandomSampler, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

import stoker


class Seen(torch.utils.data.Dataset):
    """Tells what it was asked for."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: Any) -> str:
        return f"{type(index).__name__} {index!r}"


@pytest.mark.parametrize(
    "sampler",
    [
        SubsetRandomSampler(np.arange(4)),
        np.arange(4),
        [np.array([1, 2])],
        [bytearray(b"ab")],
        ["x"],
        [(1, "a")],
        [None],
        [True],
    ],
    ids=str,
)
def test_indices_arrive_as_they_are(sampler: Any) -> None:
    compare(Seen(), {"sampler": sampler, "num_workers": 1, "batch_size": None})
    compare(Seen(), {"sampler": sampler, "num_workers": 1, "batch_size": 2, "collate_fn": list})


def test_forked_children_may_iterate_an_inherited_loader() -> None:
    loader = stoker.DataLoader(Numbers(64, (64, 64)), batch_size=4, num_workers=1)
    next(iter(loader))
    children = []
    for _ in range(2):
        child = os.fork()
        if not child:
            good = all((values[:, 0, 0] == labels).all() for _ in range(3) for values, labels in loader)
            os._exit(0 if good else 1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]


def in_threads(samples: list[Any]) -> Any:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(default_collate, [samples[:2], samples[2:4], samples[4:6], samples[6:]]))


def test_a_collation_may_use_threads() -> None:
    for number, parts in enumerate(stoker.DataLoader(Numbers(64, (512, 512)), 8, num_workers=2, collate_fn=in_threads)):
        for part, (values, labels) in enumerate(parts):
            assert labels.tolist() == [8 * number + 2 * part, 8 * number + 2 * part + 1]
            assert (values == labels.reshape(-1, 1, 1)).all()


class Overlapping(Numbers):
    """Several tensors and arrays over one memory, and odd views."""

    def __getitem__(self, index: int) -> Any:
        array = np.arange(10.0) + index
        raw = torch.arange(22, dtype=torch.uint8)
        frozen = np.frombuffer(b"abcdef", np.uint8)
        return {"input": array[:-1], "full": array, "odd": raw[:16].view(torch.int64), "frozen": frozen.copy()}


def test_views_over_one_memory() -> None:
    compare(Overlapping(3), {"batch_size": None, "num_workers": 1})
    batch = next(iter(stoker.DataLoader(Overlapping(3), batch_size=None, num_workers=1)))
    batch["full"][0] = 77
    assert batch["input"][0] == 0


def tensor_and_array(samples: list[Any]) -> Any:
    stacked = default_collate(samples)[0]
    return stacked, stacked.numpy(), np.frombuffer(b"abc", np.uint8)


def test_arrays_in_a_batch_are_copies_and_can_be_written() -> None:
    for tensor, array, frozen in stoker.DataLoader(Numbers(8), 4, num_workers=1, collate_fn=tensor_and_array):
        before = array.copy()
        tensor.zero_()
        assert (array == before).all()
        frozen[0] = 1


def test_a_users_own_collation_of_tensors_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    def padded(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torch.nn.utils.rnn.pad_sequence(list(batch), batch_first=True)

    monkeypatch.setitem(default_collate_fn_map, torch.Tensor, padded)
    compare(Ragged(), {"batch_size": 3, "num_workers": 1})


class Ragged(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.full((index % 4 + 1,), index)


def test_a_timeout_is_not_up_when_a_worker_has_nothing_more() -> None:
    compare(Stream("int", 9), {"batch_size": 2, "num_workers": 2, "timeout": 30})


def test_an_exception_that_cannot_be_pickled_still_tells_its_story() -> None:
    class LocalError(Exception):
        pass

    class Raising(Numbers):
        def __getitem__(self, index: int) -> Any:
            raise LocalError("boom")

    with pytest.raises(RuntimeError, match="LocalError: boom"):
        next(iter(stoker.DataLoader(Raising(4), num_workers=1)))


SCRIPT = """
import signal, sys, torch, stoker
class Dataset(torch.utils.data.Dataset):
    def __len__(self): return 400
    def __getitem__(self, i):
        {body}
        return torch.zeros(1000)
{before}
loader = stoker.DataLoader(Dataset(), batch_size=4, num_workers=1, persistent_workers={persistent})
iterator = iter(loader)
for _ in range(3): next(iterator)
print("end")
"""


def run(body: str = "pass", before: str = "", persistent: bool = False) -> subprocess.CompletedProcess[str]:
    code = SCRIPT.format(body=body, before=before, persistent=persistent)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_script_that_ends_with_a_live_iterator_ends_quietly(persistent: bool) -> None:
    result = run(persistent=persistent)
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")


def test_a_program_that_wants_sigpipe_survives_the_death_of_a_worker() -> None:
    result = run("import os; os._exit(3)", "signal.signal(signal.SIGPIPE, signal.SIG_DFL)")
    assert result.returncode == 1
    assert "exited with code 3" in result.stderr


def test_a_slow_sampler_can_be_interrupted() -> None:
    class Slow:
        def __iter__(self) -> Any:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            while True:
                time.sleep(2 * HANG_S)
                yield 0

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            iter(stoker.DataLoader(Numbers(4), sampler=Slow(), num_workers=1))

    previous = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        assert seconds(interrupted) < HANG_S
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_long_orders_do_not_defeat_prefetching() -> None:
    reader, writer = os.pipe()

    class Light(Numbers):
        def __getitems__(self, indices: list[int]) -> Any:
            os.write(writer, b".")
            return [0]

    iterator = iter(stoker.DataLoader(Light(180_000), batch_size=30_000, num_workers=1))
    made = 0
    for number in range(5):
        next(iterator)
        while made < number + 2:  # the next one is prepared during the training step, without anybody asking for it
            assert select.select([reader], [], [], HANG_S)[0], f"{made} are prepared after {number + 1}"
            made += len(os.read(reader, 1))
    next(iterator)
    os.close(reader)
    os.close(writer)


def test_a_limit_on_the_size_of_files() -> None:
    code = SCRIPT.format(body="pass", before="", persistent=False)
    for limit, words in (("20000000", "end\n"), ("100", "")):
        command = ["sh", "-c", f"ulimit -f {limit}; exec {sys.executable} -c '{code}'"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
        assert result.stdout == words
    assert "raise `ulimit -f`" in result.stderr


class Ending(torch.utils.data.Dataset):
    """Has a sample that raises what means the end of something else."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 17:
            raise StopIteration("of an iterator in the dataset")
        return index


@pytest.mark.parametrize(
    "options", [{"seed": 1}, {"seed": 1, "num_workers": 1}, {"group": f"ending-{os.getpid()}"}], ids=str
)
def test_a_sample_is_never_left_out_of_its_batch(options: dict[str, Any]) -> None:
    """torch's loop ends there without a word; with positions it is an error."""
    with stoker.DataLoader(Ending(), 4, **options) as loader, pytest.raises(RuntimeError, match="StopIteration"):
        assert all(len(batch) == 4 for batch in loader)


class EndingTogether(Ending):
    """The same, asked for many at a time."""

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


@pytest.mark.parametrize("workers", ["processes", "threads"])
def test_a_batch_is_never_left_out_of_its_epoch(workers: str) -> None:
    with stoker.DataLoader(EndingTogether(), 4, seed=1, num_workers=1, workers=workers) as loader:
        iterator = iter(loader)
        assert [next(iterator).tolist()[0] for _ in range(4)] == [0, 4, 8, 12]
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(iterator)
        assert len(list(iterator)) == 5


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"group": f"threads-{os.getpid()}"}], ids=str)
def test_a_script_may_end_while_threads_are_at_work(options: dict[str, Any]) -> None:
    """Within torch's own code a thread that Python ends takes the process along."""
    script = f"""
import sys, torch, stoker
class Busy(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, index): return torch.full((50_000,), float(index)).sin()
iterator = iter(stoker.DataLoader(Busy(), 4, num_workers=4, workers="threads", **{options}))
next(iterator)
sys.exit(7)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-Wignore", "-c", script], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (7, "")


class Forking(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 5:
            child = os.fork()
            if not child:
                sys.exit(0)
            os.waitpid(child, 0)
        return index


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"group": f"forking-{os.getpid()}"}], ids=str)
def test_a_dataset_may_fork_a_child_that_exits(options: dict[str, Any]) -> None:
    with stoker.DataLoader(Forking(), 4, num_workers=1, **options) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"workers": "threads"}], ids=str)
def test_a_forked_child_takes_no_batch_away_from_its_parent(options: dict[str, Any]) -> None:
    iterator = iter(stoker.DataLoader(range(40), 4, num_workers=2, **options))
    seen = [next(iterator)]
    child = os.fork()
    if not child:
        try:
            next(iterator)
        except RuntimeError as error:
            os._exit(3 if "call iter() of the loader" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    seen += iterator
    assert torch.cat(seen).tolist() == list(range(40))


class Failing(Forking):
    def __getitem__(self, index: int) -> int:
        if index == 5:
            child = os.fork()
            if not child:
                raise LookupError("in the child")
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        return index


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"persistent_workers": True}], ids=str)
def test_a_dataset_whose_forked_child_raises(options: dict[str, Any]) -> None:
    """As under torch, the error is that batch's; unlike there, the child ends and everything goes on."""
    with stoker.DataLoader(Failing(), 2, num_workers=1, **options) as loader:
        for _ in range(2):
            seen: list[Any] = []
            iterator = iter(loader)
            while True:
                try:
                    seen.append(next(iterator).tolist())
                except StopIteration:
                    break
                except LookupError as error:
                    seen.append(str(error).splitlines()[-1])
            assert seen == [[0, 1], [2, 3], "LookupError: in the child", [6, 7]]


def test_a_child_that_a_thread_forked_ends_with_its_error(capfd: pytest.CaptureFixture[str]) -> None:
    with stoker.DataLoader(Failing(), 2, num_workers=1, workers="threads") as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert "LookupError: in the child" in capfd.readouterr().err


class Returning(Failing):
    def __getitem__(self, index: int) -> int:
        if index == 5 and os.fork() == 0:
            return 99
        return index


@pytest.mark.parametrize("options", [{}, {"workers": "threads"}], ids=str)
def test_a_child_that_comes_back_is_no_worker(options: dict[str, Any]) -> None:
    seen: list[int] = []
    with stoker.DataLoader(Returning(), 2, num_workers=1, **options) as loader:
        iterator = iter(loader)
        while True:
            try:
                seen += next(iterator).tolist()
            except StopIteration:
                break
            except RuntimeError as error:
                assert "a child must end by os._exit()" in str(error)
    assert [number for number in seen if number not in (4, 5)] == [0, 1, 2, 3, 6, 7]
    assert 99 not in seen
