"""Lines between a process and its workers."""

import multiprocessing
import os
import queue
from typing import Any

import pytest
from tests.tries import HANG_S

from stoker.slots.context import LinedContext
from stoker.slots.lines import OrderLine
from stoker.slots.messages import Plain


def echo(orders: Any, reports: Any) -> None:
    """A worker that reports what it is asked, until it is asked for nothing."""
    while True:
        try:
            order = orders.get(timeout=100)
        except queue.Empty:
            continue
        if order is None:
            return
        if order == "die":
            os._exit(3)
        reports.put((0, Plain((order,)) if isinstance(order, str) else order))


class Begin:
    """Nothing to prepare."""

    def __call__(self, worker: int, reports: Any) -> None:
        pass

    def sent_to(self, worker: int) -> "Begin":
        return self


begin = Begin()


def explain(error: Exception, report: Any) -> str:
    """What is reported instead."""
    return str(error)


def start(method: str, workers: int) -> tuple[LinedContext, Any, list[Any], list[Any]]:
    context = LinedContext(
        multiprocessing.get_context(method), workers, begin, lambda *values: ("arrived", *values), explain
    )
    with context.starting():
        reports, _ = context.Queue(), context.Event()
        orders, processes = [], []
        for _ in range(workers):
            orders.append(context.Queue())
            processes.append(context.Process(target=echo, args=(orders[-1], reports)))
            processes[-1].start()
    return context, reports, orders, processes


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_messages_of_every_kind_and_size_arrive(method: str) -> None:
    context, reports, orders, processes = start(method, 2)
    for line in orders:
        for message in ([1, 2, 3], ValueError("x"), list(range(200_000)), b"y" * 1_000_000, "plain"):
            line.put(message)
    received = [reports.get(timeout=HANG_S)[1] for _ in range(10)]
    assert sum(isinstance(message, ValueError) for message in received) == 2
    assert received.count(list(range(200_000))) == 2
    assert received.count(b"y" * 1_000_000) == 2
    assert received.count(("arrived", "plain")) == 2
    for line in orders:
        line.put(None)
    for process in processes:
        process.join()
    context.close()


def test_a_dead_worker_is_noticed_at_once() -> None:
    context, reports, orders, processes = start("fork", 2)
    orders[0].put("die")
    with pytest.raises(queue.Empty):
        reports.get()  # without a timeout: it would wait for ever
    processes[0].join()
    assert processes[0].exitcode == 3
    orders[1].put([1])
    assert reports.get(timeout=HANG_S) == (0, [1])
    orders[0].put([1] * 100_000)  # to nobody: neither an error nor a wait
    orders[1].put(None)
    processes[1].join()
    context.close()


def test_a_worker_ends_when_nobody_can_order_anything_any_more() -> None:
    context, _, orders, processes = start("fork", 1)
    orders[0].close()
    processes[0].join(HANG_S)
    assert processes[0].exitcode == 0
    context.close()


def test_a_full_line_does_not_block() -> None:
    line = OrderLine(lambda: None)
    for _ in range(100):
        line.put(b"z" * 100_000)
    assert line.backlog
    line.close()
    assert not line.backlog


def test_reports_to_itself_wake_the_reader() -> None:
    context = LinedContext(multiprocessing, 1, begin, tuple, explain)
    reports = context.Queue()
    reports.put((None, None))
    assert reports.get(timeout=HANG_S) == (None, None)
    with pytest.raises(queue.Empty):
        reports.get(timeout=0.01)
    context.close()
