"""Page-locked slots, on a real GPU: `scripts/gpu` runs this."""

import os
import threading
from typing import Any

import pytest
import torch
from tests.datasets import Numbers

import stoker

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def pinned(dataset: Any, **options: Any) -> stoker.DataLoader[Any]:
    return stoker.DataLoader(dataset, pin_memory=True, **options)


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"persistent_workers": True}], ids=str)
def test_batches_are_page_locked_without_a_thread_or_a_copy(options: dict[str, Any]) -> None:
    before = threading.active_count()
    loader = pinned(Numbers(400, (64, 64)), batch_size=8, num_workers=2, **options)
    for _ in range(2):
        for values, labels in loader:
            assert values.is_pinned()
            assert labels.is_pinned()
            assert threading.active_count() == before
            assert (values.to("cuda", non_blocking=True)[:, 0, 0].cpu() == labels).all()
    loader.close()


def test_small_and_many_kept_batches_are_pinned_too() -> None:
    large = pinned(Numbers(200, (64, 64)), batch_size=4, num_workers=1)
    small = pinned(Numbers(8, (2,)), num_workers=1)
    kept = [*small, *large]  # in this order: a batch that is kept while workers are forked is not page-locked any more
    assert all(leaf.is_pinned() for batch in kept for leaf in batch)
    large.close()  # then they are no longer page-locked, but still there
    for values, labels in kept:
        assert (values.flatten(1)[:, 0] == labels).all()


@pytest.mark.parametrize("streams", ["default", "side", "many"])
def test_a_slot_is_not_refilled_while_a_stream_may_read_it(streams: str) -> None:
    """Copies are queued behind long work, and the batch is dropped at once."""
    count = 10_000 if streams == "many" else 2_000
    side = [torch.cuda.Stream() for _ in range({"default": 0, "side": 1, "many": 5}[streams])]
    used = side or [torch.cuda.default_stream()]
    loader = pinned(Numbers(count * 8, (48, 48)), batch_size=8, num_workers=4)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for number, (values, labels) in enumerate(loader):
        stream = used[number % len(used)]
        with torch.cuda.stream(stream):
            if number % 10 == 0:
                torch.cuda._sleep(2_000_000)  # about a millisecond
            copy, expected = values.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)
            del values, labels
            bad = (copy.flatten(1) != expected.reshape(-1, 1)).sum()
        stream.synchronize() if number % 500 == 499 else None
        torch.cuda.current_stream().wait_stream(stream)
        wrong += bad
    assert int(wrong) == 0


def test_a_kept_batch_survives_a_fork() -> None:
    iterator = iter(pinned(Numbers(64, (64, 64)), batch_size=4, num_workers=1))
    values, labels = next(iterator)
    child = os.fork()
    if not child:
        os._exit(0 if (values[:, 0, 0] == labels).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (values.cuda()[:, 0, 0].cpu() == labels).all()
    for values, labels in iterator:
        assert (values[:, 0, 0] == labels).all()


def test_new_shapes_grow_the_locked_slots() -> None:
    class Growing(Numbers):
        def __getitem__(self, index: int) -> Any:
            return torch.full((1000 * (index + 1),), float(index))

    for number, values in enumerate(pinned(Growing(100), num_workers=1)):
        assert values.is_pinned()
        assert values.shape == (1, 1000 * (number + 1))
        assert (values.to("cuda", non_blocking=True) == number).all()


def test_a_batch_that_outlives_its_loader_leaves_no_error_at_a_fork() -> None:
    loader = pinned(Numbers(64, (64, 64)), batch_size=4, num_workers=1)
    kept = list(loader)
    loader.close()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert int(torch.ones(3, device="cuda").sum()) == 3  # CUDA reports an error at the next call, whatever it is of
    assert (kept[0][0].flatten(1)[:, 0] == kept[0][1]).all()
