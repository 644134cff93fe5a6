"""What a user of torch's DataLoader relies on, beyond equal batches."""

import copy
import gc
import os
import pickle
import resource
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.datasets import Augmented, Numbers, Samples, Stream, Uncollected
from tests.tries import fastest, seconds
from torch.utils.data import get_worker_info

import stoker


def check(batch: Any, expected: list[int]) -> None:
    values, labels = batch
    assert labels.tolist() == expected
    assert torch.equal(values, torch.tensor(expected, dtype=torch.float32).reshape(-1, 1, 1).expand_as(values))


def test_a_whole_epoch_can_be_kept() -> None:
    kept = list(stoker.DataLoader(Numbers(400), batch_size=4, num_workers=2))
    for number, batch in enumerate(kept):
        check(batch, list(range(4 * number, 4 * number + 4)))


@pytest.mark.parametrize("keep", ["slice", "numpy", "dict", "mutated", "reshaped"])
def test_whatever_is_kept_of_a_batch_stays_valid(keep: str) -> None:
    kept: list[Any] = []
    for values, _ in stoker.DataLoader(Numbers(200), batch_size=4, num_workers=2):
        if keep == "slice":
            kept.append(values[1:3, 5])
        elif keep == "numpy":
            kept.append(values.numpy()[2])
        elif keep == "dict":
            kept.append({"x": [values.flatten()[:10]]})
        elif keep == "mutated":
            kept.append(values.add_(0.5))
        else:
            kept.append(values.view(-1)[-7:])
    for number, part in enumerate(kept):
        first = 4 * number
        if keep == "slice":
            assert part[:, 0].tolist() == [first + 1, first + 2]
        elif keep == "numpy":
            assert (part == first + 2).all()
        elif keep == "dict":
            assert (part["x"][0] == first).all()
        elif keep == "mutated":
            assert part[:, 0, 0].tolist() == [first + 0.5, first + 1.5, first + 2.5, first + 3.5]
        else:
            assert (part == first + 3).all()


def test_batches_are_views_of_shared_memory_and_can_be_written() -> None:
    loader = stoker.DataLoader(Numbers(16), batch_size=4, num_workers=1)
    for values, _ in loader:
        assert "stoker" in _mapping_of(values.data_ptr())
        values.mul_(2)
        values.detach_()


def _mapping_of(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line
    return ""


def test_a_batch_kept_across_a_fork_belongs_to_both() -> None:
    loader = stoker.DataLoader(Numbers(80, (128, 128)), batch_size=4, num_workers=1)
    iterator = iter(loader)
    batch = next(iterator)
    reader, writer = os.pipe()
    ready_reader, ready_writer = os.pipe()
    child = os.fork()
    if not child:
        os.read(ready_reader, 1)  # the parent has moved on by then
        os.write(writer, bytes([int((batch[0][2] == 2).all())]))
        os._exit(0)
    assert "stoker" not in _mapping_of(batch[0].data_ptr())
    check(batch, [0, 1, 2, 3])
    batch[0].zero_()
    del batch
    rest = [labels.tolist() for _, labels in iterator]
    os.write(ready_writer, b"x")
    assert os.read(reader, 1) == b"\x01"
    os.waitpid(child, 0)
    assert rest == [list(range(n, n + 4)) for n in range(4, 80, 4)]
    for descriptor in (reader, writer, ready_reader, ready_writer):
        os.close(descriptor)


def test_memory_of_a_finished_epoch_is_kept_for_the_next_and_given_back_by_close() -> None:
    loader = stoker.DataLoader(Numbers(64, (512, 512)), batch_size=4, num_workers=2)
    for _ in loader:
        pass
    after_first = _shared_bytes()
    assert after_first > 8 << 20
    for _ in loader:
        pass
    assert _shared_bytes() < after_first + (9 << 20)
    held = next(iter(loader))
    loader.close()
    gc.collect()
    assert _shared_bytes() < 2 * held[0].nbytes
    check(held, [0, 1, 2, 3])
    del held
    assert _shared_bytes() == 0


def _shared_bytes() -> int:
    """What the anonymous files of this process occupy."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        try:
            if "memfd:stoker" in os.readlink(path):
                total += os.stat(path).st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def test_keeping_many_and_letting_go_returns_the_memory() -> None:
    loader = stoker.DataLoader(Numbers(240, (512, 512)), batch_size=4, num_workers=1)
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(40)]
    for number, batch in enumerate(kept):
        check(batch, list(range(4 * number, 4 * number + 4)))
    while_kept = _shared_bytes()
    del kept, batch
    for batch in iterator:
        del batch
    assert _shared_bytes() < while_kept / 2


@pytest.mark.parametrize("workers", [0, 2])
def test_several_iterators_may_be_live(workers: int) -> None:
    loader = stoker.DataLoader(Numbers(40), batch_size=4, num_workers=workers)
    for left, right in zip(loader, loader, strict=True):
        assert torch.equal(left[0], right[0])


def test_early_break_ends_the_workers_at_once() -> None:
    loader = stoker.DataLoader(Numbers(4000), batch_size=4, num_workers=2)

    def take_one() -> None:
        for _batch in loader:
            break

    assert fastest(lambda: seconds(take_one), 1.0) < 1.0


def test_persistent_workers_are_kept_and_go_with_close() -> None:
    class Pids(Numbers):
        def __getitem__(self, index: int) -> int:
            return os.getpid()

    loader = stoker.DataLoader(Pids(8), num_workers=2, persistent_workers=True)
    first, second = ({int(pid) for pid in loader} for _ in range(2))
    assert first == second
    loader.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in first)
    assert {int(pid) for pid in loader}.isdisjoint(first)
    loader.close()


def test_persistent_workers_survive_breaks() -> None:
    loader = stoker.DataLoader(Numbers(400, (64, 64)), batch_size=4, num_workers=2, persistent_workers=True)
    for _ in range(30):
        for number, batch in enumerate(loader):
            check(batch, list(range(4 * number, 4 * number + 4)))
            if number == 5:
                break
    loader.close()


def test_a_batch_goes_to_the_worker_it_would_under_torch() -> None:
    class Who(Numbers):
        def __getitem__(self, index: int) -> int:
            return get_worker_info().id

    assert [int(worker) for worker in stoker.DataLoader(Who(10), num_workers=2)] == [0, 1] * 5


def test_worker_info_seed_and_init_are_torchs() -> None:
    def outcome(kind: type) -> list[Any]:
        seen = []

        def init(worker: int) -> None:
            info = get_worker_info()
            info.dataset.marks = [worker, info.num_workers, info.seed, torch.get_num_threads()]

        class Marked(Numbers):
            def __getitem__(self, index: int) -> Any:
                return torch.tensor([*self.marks, torch.initial_seed()])

        torch.manual_seed(5)
        for batch in kind(Marked(6), num_workers=2, worker_init_fn=init):
            seen += batch.tolist()
        return seen

    assert outcome(stoker.DataLoader) == outcome(torch.utils.data.DataLoader)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("options", [{}, {"group": f"collected-{os.getpid()}"}], ids=str)
def test_only_a_forked_worker_leaves_what_it_inherited_uncollected(method: str, options: dict[str, Any]) -> None:
    """A worker that is started anew collects everything at its end, or extension modules report leaks."""
    with stoker.DataLoader(Uncollected(4), num_workers=1, multiprocessing_context=method, **options) as loader:
        assert {bool(is_told) for is_told in loader} == {method == "fork"}


def test_pickling_and_copying_between_and_during_epochs() -> None:
    loader = stoker.DataLoader(Augmented(8), batch_size=2, num_workers=1, shuffle=True)
    iterator = iter(loader)
    next(iterator)
    for twin in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader), copy.copy(loader)):
        assert len(list(twin)) == 4
        assert twin.stats().batches >= 4
    assert len(list(iterator)) == 3


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"workers": "threads"}], ids=str)
def test_a_copy_has_workers_and_a_place_of_its_own(options: dict[str, Any]) -> None:
    with stoker.DataLoader(Numbers(8), 2, num_workers=1, persistent_workers=True, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        for twin in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader), copy.copy(loader)):
            with twin:
                assert len(list(twin)) == 4
        assert loader.state_dict()["_num_yielded"] == loader.stats().batches == 1
        assert len(list(iterator)) == 3


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"workers": "threads"}, {"persistent_workers": True}], ids=str)
def test_an_iterator_of_a_closed_loader_does_not_seem_to_be_at_its_end(options: dict[str, Any]) -> None:
    loader = stoker.DataLoader(Numbers(8), 2, num_workers=1, **options)
    whole = iter(loader)
    assert len(list(whole)) == 4
    part = iter(loader)
    next(part)
    loader.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="was closed"):
            next(part)
    assert part is whole or next(whole, None) is None  # as it is with persistent workers
    assert loader.state_dict()["_num_yielded"] == 1
    with loader:
        loader.load_state_dict(loader.state_dict())
        assert len(list(loader)) == 3


def test_attributes_are_as_read_only_as_torchs() -> None:
    loader = stoker.DataLoader(Numbers(8), batch_size=2, num_workers=2)
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"):
        with pytest.raises(ValueError, match="attribute should not be set"):
            setattr(loader, name, 1)
    loader.num_workers = 1
    loader.timeout = 20
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert len(list(loader)) == len(loader) == 4


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_profiler_range_is_torchs() -> None:
    from torch.profiler import profile

    for workers, name in ((0, "_SingleProcessDataLoaderIter"), (1, "_MultiProcessingDataLoaderIter")):
        with profile() as recorded:
            list(stoker.DataLoader(Numbers(4), num_workers=workers))
        assert f"enumerate(DataLoader)#{name}.__next__" in {event.key for event in recorded.key_averages()}


def test_stream_that_is_longer_than_it_said_warns() -> None:
    class Liar(Stream):
        def __len__(self) -> int:
            return 2

    places = []
    for kind in (stoker.DataLoader, torch.utils.data.DataLoader):
        loader = kind(Liar("int", 9), num_workers=1)
        assert len(loader) == 2
        with pytest.warns(UserWarning, match="Length of IterableDataset") as caught:
            list(loader)
        places.append((caught[0].filename, len(caught)))
    assert places[0] == places[1]


def test_timeout_says_who_is_late() -> None:
    class Late(Numbers):
        def __getitem__(self, index: int) -> int:
            time.sleep(100)
            return 0

    loader = stoker.DataLoader(Late(4), num_workers=1, timeout=0.5)
    with pytest.raises(
        RuntimeError, match=r"DataLoader timed out after 0.5 seconds.* worker 0 \(pid \d+\), which is alive"
    ):
        next(iter(loader))
    loader.close()


def test_what_cannot_be_pickled_is_an_error_not_a_hang() -> None:
    loader = stoker.DataLoader(Numbers(4), num_workers=1, collate_fn=lambda samples: threading.Lock())
    with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object"):
        next(iter(loader))


def within_itself(samples: list[Any]) -> list[Any]:
    batch: list[Any] = [samples[0][0]]
    batch.append(batch)
    return batch


def test_a_batch_may_hold_itself() -> None:
    batch = next(iter(stoker.DataLoader(Numbers(4), num_workers=1, collate_fn=within_itself)))
    assert batch[1] is batch
    assert batch[0].shape == (64, 64)


def test_an_unpicklable_dataset_under_spawn_is_one_clear_error() -> None:
    dataset = Numbers(4)
    dataset.transform = lambda x: x  # type: ignore[attr-defined]
    loader = stoker.DataLoader(dataset, num_workers=1, multiprocessing_context="spawn")
    with (
        pytest.raises(AttributeError, match=r"Can't (pickle|get) local object") as caught,
        pytest.warns(UserWarning, match="Got pickle error"),
    ):
        iter(loader)
    assert caught.value.__notes__ == [
        "The dataset cannot be sent to a worker process that is started by 'spawn'. Define what it refers to at the top of "
        "a module (no lambdas, no local classes), or pass multiprocessing_context='fork'."
    ]


def test_user_code_in_the_worker_may_keep_what_it_collated() -> None:
    class Keeping:
        def __init__(self) -> None:
            self.before: list[Any] = []

        def __call__(self, samples: list[Any]) -> Any:
            batch = torch.utils.data.default_collate(samples)
            self.before.append((batch[1].tolist(), batch[0]))
            return torch.tensor([bool((kept[:, 0, 0] == torch.tensor(labels)).all()) for labels, kept in self.before])

    for flags in stoker.DataLoader(Numbers(200), batch_size=4, num_workers=1, collate_fn=Keeping()):
        assert flags.all()


def test_a_dataset_may_collate_by_itself() -> None:
    class Collating(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.utils.data.default_collate([Numbers.__getitem__(self, index)] * 2)

    for number, (values, labels) in enumerate(stoker.DataLoader(Collating(12), batch_size=3, num_workers=2)):
        assert values.shape == (3, 2, 64, 64)
        assert labels.tolist() == [[3 * number + k] * 2 for k in range(3)]


@pytest.mark.parametrize("count", [1, 300])
def test_batches_of_many_or_large_pieces(count: int) -> None:
    def many(samples: list[Any]) -> Any:
        return [torch.full((100,), number) for number in range(count)] + [b"z" * 100_000, np.arange(count)]

    for batch in stoker.DataLoader(Numbers(6), num_workers=2, collate_fn=many):
        assert [int(tensor[99]) for tensor in batch[:count]] == list(range(count))
        assert batch[count] == b"z" * 100_000
        assert batch[count + 1].tolist() == list(range(count))


def test_shapes_may_change_from_batch_to_batch() -> None:
    sizes = [10, 100_000, 3, 2_000_000, 50]
    for batch, size in zip(stoker.DataLoader(Sized(sizes), num_workers=1), sizes, strict=True):
        assert batch.shape == (1, size)
        assert (batch == size).all()


class Sized(torch.utils.data.Dataset):
    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.sizes[index],), float(self.sizes[index]))


def test_huge_errors_and_index_lists_pass_through() -> None:
    class Wordy(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 70_000:
                raise ValueError("x" * 300_000)
            return index

    loader = stoker.DataLoader(Wordy(100_000), batch_size=50_000, num_workers=1)
    iterator = iter(loader)
    assert len(next(iterator)) == 50_000
    with pytest.raises(ValueError, match=r"x{300000}"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("workers", [0, 2])
def test_stats(workers: int) -> None:
    class Slow(Numbers):
        def __getitem__(self, index: int) -> int:
            time.sleep(0.01)
            return index

    loader = stoker.DataLoader(Slow(20), batch_size=3, num_workers=workers)
    assert loader.stats() == stoker.LoaderStats(0, 0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0.0, 0)
    took_s = seconds(lambda: list(loader))
    stats = loader.stats()
    assert (stats.batches, stats.samples, stats.workers) == (7, 20, workers)
    assert 0.2 <= stats.prep_s <= took_s * max(1, workers)
    assert 0.03 <= stats.first_batch_s <= took_s
    assert stats.wait_s <= took_s
    with pytest.raises(AttributeError):
        stats.batches = 3  # type: ignore[misc]


def test_the_off_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_DISABLE", "1")
    iterator = iter(stoker.DataLoader(Numbers(4), num_workers=1))
    assert type(iterator) is torch.utils.data.dataloader._MultiProcessingDataLoaderIter
    check(next(iterator), [0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
def test_pin_memory_without_an_accelerator_warns_as_torch_does() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(stoker.DataLoader(Numbers(4), num_workers=1, pin_memory=True))
    assert any("no accelerator is found" in str(warning.message) for warning in caught)


def test_iteration_goes_on_after_an_error() -> None:
    loader = stoker.DataLoader(Samples("int", 8, {2: "key", 5: "odd"}), num_workers=2)
    seen: list[Any] = []
    iterator = iter(loader)
    for _ in range(8):
        try:
            seen.append(int(next(iterator)))
        except KeyError as error:
            assert "Original Traceback" in str(error)
            seen.append("key")
        except Exception as error:
            seen.append(type(error).__name__)
    assert seen == [0, 1, "key", 3, 4, "OddError", 6, 7]


def test_no_thread_of_ours_in_the_training_process() -> None:
    before = set(threading.enumerate())
    iterator = iter(stoker.DataLoader(Numbers(40), batch_size=4, num_workers=2))
    next(iterator)
    assert set(threading.enumerate()) == before


def test_batches_kept_from_one_epoch_are_safe_in_the_next() -> None:
    loader = stoker.DataLoader(Numbers(40), batch_size=4, num_workers=2)
    kept = [batch for _ in range(4) for batch in loader]
    for number, batch in enumerate(kept):
        check(batch, list(range(4 * (number % 10), 4 * (number % 10) + 4)))


class Freed(torch.utils.data.Dataset[Any]):
    """Each sample needs much memory at once, and tells how many pages the process got for it."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        parts = [np.ones(1 << 17) for _ in range(16)]
        del parts
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.parametrize("options", [{}, {"seed": 1}], ids=["torch's order", "a seed"])
def test_workers_use_memory_that_they_freed_again(options: dict[str, Any]) -> None:
    pages = [int(page) for page in stoker.DataLoader(Freed(), None, num_workers=1, **options)]
    assert min(pages[4:]) < 400  # of the 4,096 pages that are filled in each
