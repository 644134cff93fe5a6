"""torch is as we expect: a new torch that is not breaks here first, and says what is different.

What `expected.FACTS` says is checked at start-up, too. Here is what takes longer to see: what the private things do.
"""

import importlib
import inspect
import multiprocessing
import pickle
import queue
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import default_collate, get_worker_info

from stoker.internals import expected, names, tensors, worker_info
from stoker.internals.writers import WRITERS


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        if index == 11:
            raise KeyError("eleven")
        return torch.tensor(index)


class View:
    """A loader with some attributes replaced: torch's iterators ask for no more than attributes."""

    def __init__(self, loader: Any, **attributes: Any) -> None:
        self._loader = loader
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Asked:
    """A multiprocessing context that notes what it is asked for. Its processes do nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.queues: list[Any] = []
        self.processes: list[dict[str, Any]] = []

    def Queue(self) -> Any:  # noqa: N802
        self.calls.append("Queue")
        self.queues.append(Line())
        return self.queues[-1]

    def Event(self) -> Any:  # noqa: N802
        self.calls.append("Event")
        return multiprocessing.Event()

    def Process(self, **named: Any) -> Any:  # noqa: N802
        self.calls.append("Process")
        self.processes.append(named)
        return Idle()


class Line(queue.SimpleQueue[Any]):
    def close(self) -> None:
        pass

    def cancel_join_thread(self) -> None:
        pass


class Idle:
    pid = 2**22  # no process has it
    daemon = False

    def start(self) -> None:
        pass

    def join(self, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return False


def idle(**options: Any) -> tuple[Any, Asked]:
    """torch's iterator, whose workers never answer."""
    asked = Asked()
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2, **options)
    return names.WorkersIterator(View(loader, multiprocessing_context=asked)), asked  # type: ignore[arg-type]


def test_what_is_checked_at_start_up() -> None:
    assert list(expected.differences()) == []


def test_an_iterator_asks_its_context_in_the_order_that_lines_are_made_in() -> None:
    _, asked = idle()
    assert asked.calls == ["Queue", "Event", "Queue", "Process", "Queue", "Process"]


def test_a_process_is_the_worker_loop_with_its_queues_as_they_are() -> None:
    _, asked = idle()
    for number, process in enumerate(asked.processes):
        assert process.keys() == {"target", "args"}
        assert process["target"] is names.worker_loop
        told = inspect.signature(names.worker_loop).bind(*process["args"]).arguments
        assert told["index_queue"] is asked.queues[number + 1]
        assert told["data_queue"] is asked.queues[0]
        assert (told["worker_id"], told["num_workers"]) == (number, 2)
        assert told["auto_collation"] is True
        assert told["collate_fn"] is default_collate


def test_what_an_iterator_keeps_of_its_batches() -> None:
    iterator, asked = idle()
    assert iterator._send_idx == 4
    assert iterator._rcvd_idx == 0
    assert iterator._task_info == {0: (0,), 1: (1,), 2: (0,), 3: (1,)}  # batch i to worker i mod N
    assert asked.queues[1].get() == (0, [0, 1])
    iterator._data_queue.put((1, "second"))
    iterator._data_queue.put((0, "first"))
    assert next(iterator) == "first"
    assert iterator._task_info[1] == (1, "second")
    assert iterator._rcvd_idx == 1
    assert iterator._num_yielded == 1
    assert iterator._in_order is True


def test_what_has_not_come_in_time_is_told_by_a_pair() -> None:
    loader = torch.utils.data.DataLoader(Numbers(), num_workers=1, sampler=[])
    iterator: Any = iter(loader)
    assert iterator._try_get_data(0.01) == (False, None)
    assert iterator._workers[0].is_alive()
    iterator._shutdown_workers()
    assert iterator._shutdown is True
    assert not iterator._workers[0].is_alive()
    iterator._shutdown_workers()  # a second time does nothing


def test_dead_workers_are_told_by_a_runtime_error_that_says_worker() -> None:
    iterator, _ = idle()
    with pytest.raises(RuntimeError, match="worker"):
        iterator._try_get_data(0.01)


def test_an_exception_arrives_wrapped_and_is_raised_where_a_batch_is_processed() -> None:
    iterator, _ = idle()
    try:
        Numbers()[11]
    except KeyError as error:
        wrapper = names.ExceptionWrapper((type(error), error, error.__traceback__), "in DataLoader worker process 0")
    wrapper = pickle.loads(pickle.dumps(wrapper))
    assert wrapper.exc_type is KeyError
    assert "eleven" in wrapper.exc_msg
    iterator._tasks_outstanding -= 1
    with pytest.raises(KeyError, match="in DataLoader worker process 0"):
        iterator._process_data(wrapper, 0)
    assert iterator._send_idx == 5  # and the next order was given


def test_a_fetcher_is_made_as_threads_make_it() -> None:
    fetcher: Any = names.DatasetKind.create_fetcher(names.DatasetKind.Map, Numbers(), True, default_collate, False)  # type: ignore[arg-type]
    assert fetcher.fetch([1, 2]).tolist() == [1, 2]
    stream: Any = names.DatasetKind.create_fetcher(names.DatasetKind.Iterable, [1, 2, 3], True, list, False)  # type: ignore[arg-type, no-untyped-call]
    assert [stream.fetch([0, 0]), stream.fetch([0, 0])] == [[1, 2], [3]]
    with pytest.raises(StopIteration):
        stream.fetch([0, 0])


def test_a_stream_keeps_its_iterator_and_whether_it_has_ended() -> None:
    stream: Any = names.DatasetKind.create_fetcher(names.DatasetKind.Iterable, [1, 2, 3], True, list, False)  # type: ignore[arg-type, no-untyped-call]
    assert (stream.dataset, stream.auto_collation, stream.collate_fn, stream.ended) == ([1, 2, 3], True, list, False)
    assert next(stream.dataset_iter) == 1
    assert (stream.fetch([0, 0, 0]), stream.ended) == ([2, 3], True)


def test_the_worker_loop_asks_for_fetchers_where_ours_steps_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names.DatasetKind, "create_fetcher", staticmethod(names.DatasetKind.create_fetcher))
    asked = []
    names.create_fetchers_by(lambda make, *arguments: asked.append(arguments) or make(*arguments))
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2)
    assert next(iter(loader)).tolist() == [0, 1]
    assert [arguments[0] for arguments in asked] == [names.DatasetKind.Map]


def test_an_iterator_with_no_workers_takes_what_it_is_shown() -> None:
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=2)
    view = View(loader, collate_fn=sum, _index_sampler=[[1, 2], [3, 4]], generator=torch.Generator())
    before = torch.get_rng_state()
    iterator: Any = names.InlineIterator(view)  # type: ignore[arg-type]
    assert isinstance(iterator, names.BaseIterator)
    assert [int(batch) for batch in iterator] == [3, 7]
    assert torch.equal(torch.get_rng_state(), before)  # the seed for workers was drawn from what was shown


def test_a_loader_asks_for_iterators_where_ours_steps_in() -> None:
    class Steps(torch.utils.data.DataLoader[Any]):
        def _get_iterator(self) -> Any:
            asked.append(self)
            return super()._get_iterator()

    asked: list[Any] = []
    loader = Steps(Numbers(), sampler=[1])
    assert len([*loader, *loader]) == 2
    assert asked == [loader, loader]
    kept = Steps(Numbers(), sampler=[1], num_workers=1, persistent_workers=True)
    assert iter(kept) is iter(kept) is kept._iterator
    kept._iterator = None  # ends its workers
    assert asked[2:] == [kept]


def test_the_worker_loop_reads_how_often_to_look_for_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(names.worker_globals, "MP_STATUS_CHECK_INTERVAL", names.worker_globals["MP_STATUS_CHECK_INTERVAL"])
    assert names.worker_loop.__globals__ is names.worker_globals  # type: ignore[attr-defined]
    names.look_for_parent_every(7.5)
    assert names.worker_globals["MP_STATUS_CHECK_INTERVAL"] == 7.5


def test_worker_info_is_made_by_keywords_and_kept_where_it_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(names.worker_globals, "_worker_info", None)
    assert get_worker_info() is None
    info = names.WorkerInfo(id=1, num_workers=2, seed=3, dataset="mine")  # type: ignore[arg-type]
    worker_info.set_of_process(info)
    assert get_worker_info() is info is worker_info.of_process()
    worker_info.answer_by(lambda of_process: (of_process, "and ours"))
    assert get_worker_info() == (info, "and ours")
    worker_info.answer_as_torch()
    assert get_worker_info() is info


def test_torchs_collation_asks_for_worker_info_from_its_own_module() -> None:
    assert default_collate.__globals__ is names.collate_globals
    assert names.collate.__globals__ is names.collate_globals  # type: ignore[attr-defined]
    assert "get_worker_info" in names.collate_tensors.__code__.co_names  # type: ignore[attr-defined]


def test_collation_is_by_a_map_that_others_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names.collations[torch.Tensor] is names.collate_tensors
    assert names.collations[np.ndarray] is names.collate_arrays
    assert names.collations[int] is names.collate_ints
    assert names.collations[float] is names.collate_floats
    assert not {tuple, list, dict} & names.collations.keys()
    monkeypatch.setitem(names.collations, int, lambda batch, *, collate_fn_map: "ours")
    assert default_collate([(1, 2.0)]) == ["ours", torch.tensor([2.0], dtype=torch.float64)]
    assert names.collate([1, 2], collate_fn_map={int: lambda batch, *, collate_fn_map: "given"}) == "given"


def test_pinning_asks_every_object_that_can() -> None:
    class Pins:
        def pin_memory(self, device: object = None) -> str:
            return "pinned"

    assert names.pin_memory(Pins()) == "pinned"
    assert names.pin_memory([Pins(), "text"]) == ["pinned", "text"]


def test_signal_handlers_of_workers_can_be_set() -> None:
    process = multiprocessing.get_context("fork").Process(target=names.set_worker_signal_handlers)
    process.start()
    process.join(120)
    assert process.exitcode == 0


def test_a_profiler_is_seen() -> None:
    assert names.profiler_enabled() is False
    with torch.autograd.profiler.profile():
        assert names.profiler_enabled() is True


def test_tensors_that_are_made_of_tensors_are_known() -> None:
    class Wrapper(torch.Tensor):
        def __tensor_flatten__(self) -> Any: ...

        @staticmethod
        def __tensor_unflatten__(*arguments: Any) -> Any: ...

    assert tensors.is_made_of_tensors(torch.zeros(1).as_subclass(Wrapper))
    assert not tensors.is_made_of_tensors(torch.zeros(1))


def test_changes_copies_and_storages_of_tensors() -> None:
    first, second = torch.zeros(3), torch.zeros(2)
    before = tensors.version_of(first)
    tensors.copy_all([first, second], [torch.ones(3), torch.ones(2)])
    assert first.tolist() + second.tolist() == [1.0] * 5
    assert tensors.version_of(first) > before
    assert tensors.storage_of(first.untyped_storage()) == tensors.storage_of(first[1:].untyped_storage())
    assert tensors.storage_of(first.untyped_storage()) != tensors.storage_of(second.untyped_storage())


@pytest.mark.parametrize(("module", "name", "position"), WRITERS)
def test_what_writes_files_without_python_is_where_we_look(
    module: str, name: str, position: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner: Any = importlib.import_module(module)
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    writes, paths = getattr(owner, last), []

    def tell(*arguments: Any, **named: Any) -> Any:
        paths.append(str(arguments[position]))
        return writes(*arguments, **named)

    monkeypatch.setattr(owner, last, tell)
    place = tmp_path / "file.pt"
    if outer:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.jit is deprecated
            torch.jit.script(torch.nn.Linear(1, 1)).save(str(place))
    else:
        torch.save({"a": 1}, place)
    assert place.exists()
    assert paths == [str(place)]


def test_numpy_is_seeded_in_a_worker_by_its_number() -> None:
    states = [list(names.worker_generator_state(5, worker)) for worker in (0, 1)]
    assert states[0] != states[1]
    for state in states:
        np.random.RandomState(state)
