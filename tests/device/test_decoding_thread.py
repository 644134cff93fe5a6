"""The thread that decodes answers every job, whatever fails; without a device, by what stands in for its parts."""

import contextlib
import gc
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from stoker.device import decoder
from stoker.device.decoder import Decoder

LONGEST_S = 120.0


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A decoder of the processor, whose parts do nothing."""
    nothing = SimpleNamespace(synchronize=lambda: None, wait_event=lambda _: None)
    events = type("Event", (), {"record": lambda *_: None})
    contexts = {name: lambda *_: contextlib.nullcontext() for name in ("device", "stream")}
    parts = {"Event": events, "current_stream": lambda *_: nothing, "set_device": lambda *_: None, **contexts}
    for name, part in parts.items():
        monkeypatch.setattr(decoder.torch.cuda, name, part)
    monkeypatch.setattr(decoder.ctypes, "CDLL", lambda _: SimpleNamespace(cuThreadExchangeStreamCaptureMode=lambda _: 0))
    monkeypatch.setattr(decoder, "Nvjpeg", lambda: None)
    monkeypatch.setattr(decoder.torch.cuda, "Stream", lambda: nothing)
    monkeypatch.setitem(__import__("sys").modules, "stoker.device.kernels", SimpleNamespace(draw=None))
    made: Any = Decoder(torch.device("cpu"))
    made._do = lambda job: None
    yield made
    made.close()


def submitted(thread: Any) -> Any:
    return thread.submit(torch.zeros(4, dtype=torch.uint8), torch.zeros((1, 15), dtype=torch.int64), (3, 8, 8), ())


def error_of(job: Any) -> BaseException | None:
    assert job.ended.wait(LONGEST_S), "nobody has answered"
    try:
        job.result()
    except Exception as error:
        return error.with_traceback(None)
    return None


def fails(*_: Any) -> Any:
    raise RuntimeError("the device is gone")


@pytest.mark.parametrize("part", ["set_device", "stream", "synchronize", "work"])
def test_every_job_is_answered(thread: Any, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if part == "work":
        thread._do = fails
    elif part == "synchronize":
        thread._stream.synchronize = fails
    else:
        monkeypatch.setattr(decoder.torch.cuda, part, fails)
    jobs = [submitted(thread) for _ in range(3)]
    found = [error_of(job) for job in jobs]
    if part == "synchronize":  # of the last work, which was done
        assert found == [None] * 3
    else:
        assert [str(error) for error in found] == ["the device is gone"] * 3


def test_a_job_that_nobody_waits_for_is_gone_with_its_error(thread: Any) -> None:
    """A damaged picture's error, which came of another one, does not keep the job's events until the collector comes."""

    def work(job: Any) -> None:
        try:
            raise ValueError("a marker is missing")
        except ValueError as error:
            raise OSError("Truncated File Read") from error

    thread._do = work
    gc.disable()
    try:
        job = submitted(thread)
        ended, there = job.ended, weakref.ref(job)
        assert ended.wait(LONGEST_S)
        assert isinstance(job.error, OSError)
        del job
        thread.close()
        assert there() is None
    finally:
        gc.enable()


def test_a_job_that_came_before_the_thread_could_begin_is_gone_with_its_error(
    thread: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoder.torch.cuda, "set_device", fails)
    there = []
    for _ in range(2):
        job = submitted(thread)
        there.append(weakref.ref(job))
        with contextlib.suppress(RuntimeError):
            job.ended.wait(LONGEST_S)
            job.result()
        del job
    assert submitted(thread).ended.wait(LONGEST_S), "the thread has begun with another job"
    assert there[0]() is None


def test_the_thread_stands_still_while_a_fork_is_made(thread: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that another thread makes meanwhile is not let go on, as nobody has stopped it."""
    monkeypatch.setattr(decoder, "_decoders", {torch.device("cpu"): SimpleNamespace(each=[thread])})
    began, goes_on = threading.Event(), threading.Event()

    def work(job: Any) -> None:
        began.set()
        goes_on.wait(LONGEST_S)

    thread._do = work
    job = submitted(thread)
    assert began.wait(LONGEST_S)
    forking = threading.Thread(target=decoder._stand_still)
    forking.start()
    goes_on.set()
    forking.join(LONGEST_S)
    assert job.ended.is_set()
    another = submitted(thread)
    new: Any = SimpleNamespace(each=[SimpleNamespace(standing_still=threading.Lock())])
    decoder._decoders[torch.device("meta")] = new
    assert not another.ended.is_set()
    decoder._go_on()
    assert error_of(another) is None


def test_what_another_thread_holds_for_its_own_fork_is_not_let_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Any] = []
    monkeypatch.setattr(decoder, "_held", held)
    another = threading.Lock()

    def release() -> None:
        another.acquire()
        held.append(another)

    held.append(SimpleNamespace(release=release))
    decoder._go_on()
    assert another.locked()
    assert held == [another]
