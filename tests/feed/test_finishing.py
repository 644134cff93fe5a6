"""`prep="tail"` and `"device"`: batches are those of torch's loader, bit for bit, and what does not fit stays on the host.

The device is the processor here: what workers leave is done in the training process by other code than theirs would be.
`tests/gpu` has a GPU.
"""

import contextlib
import functools
import gc
import io
import random
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.device import lookalike
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

import stoker
from stoker.device import decoder
from stoker.errors import ConfigError
from stoker.feed import finishing
from stoker.feed.coming import Coming

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "device_of_training", lambda: torch.device("cpu"))


def prepared(index: int) -> torch.Tensor:
    """A crop, a flip, to tensor and normalize, as presets do it."""
    pixels = ((torch.arange(40 * 50 * 3) * (index + 1)) % 256).to(torch.uint8).view(40, 50, 3)
    top = int(torch.randint(8, ()))
    pixels = pixels[top : top + 32, 3:35].contiguous()
    if torch.rand(()) < 0.5:
        pixels = pixels.flip(1)
    numbers = pixels.permute(2, 0, 1).contiguous().to(torch.float32).div(255)
    return numbers.clone().sub_(torch.tensor(MEAN).view(-1, 1, 1)).div_(torch.tensor(STD).view(-1, 1, 1))


class Pictures(Dataset[Any]):
    def __init__(self, kind: str = "tuple") -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 27

    def __getitem__(self, index: int) -> Any:
        picture = prepared(index)
        if self.kind == "erased" and index % 3 == 0:
            picture[:, 4:9, 5:20] = 0.0
        if self.kind == "sizes" and index == 17:
            return prepared(index)[:, :20], index
        kinds: dict[str, Any] = {
            "alone": picture,
            "list": [picture, [index, picture.mul(2)]],
            "dict": {"image": picture, "label": index, "views": (prepared(index), picture)},
            "bytes": (picture, index, torch.full((64, 64), index, dtype=torch.uint8)),
        }
        return kinds.get(self.kind, (picture, index))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        yield from ((prepared(index), index) for index in range(info.id, 27, info.num_workers))


def batches(make: Any, dataset: Any, **options: Any) -> list[Any]:
    torch.manual_seed(3)
    shuffle = {} if isinstance(dataset, IterableDataset) else {"shuffle": True}
    loader = make(dataset, batch_size=8, num_workers=2, **shuffle, **options)
    return [batch for _ in range(1 + loader.persistent_workers) for batch in loader]


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from leaves(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from leaves(part)
    else:
        yield value


def assert_same(got: list[Any], expected: list[Any]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert type(one) is type(other)
        for leaf, wanted in zip(leaves(one), leaves(other), strict=True):
            assert type(leaf) is type(wanted)
            if isinstance(leaf, torch.Tensor):
                assert leaf.dtype == wanted.dtype and leaf.stride() == wanted.stride() and torch.equal(leaf, wanted)


@pytest.mark.parametrize("kind", ["tuple", "alone", "list", "dict", "bytes", "erased", "stream"])
def test_batches_are_torchs_bit_for_bit(kind: str) -> None:
    dataset: Any = Stream() if kind == "stream" else Pictures(kind)
    assert_same(batches(stoker.DataLoader, dataset, prep="tail"), batches(DataLoader, dataset))


SPAWNED: dict[str, Any] = {"multiprocessing_context": "spawn"}


@pytest.mark.parametrize(
    ("seed", "options"),
    [(None, {}), (7, {}), (None, {"persistent_workers": True}), (7, {"persistent_workers": True}), (7, SPAWNED)],
)
def test_in_both_regimes_and_by_all_workers(seed: int | None, options: dict[str, Any]) -> None:
    got = batches(stoker.DataLoader, Pictures(), prep="tail", seed=seed, **options)
    assert_same(got, batches(stoker.DataLoader, Pictures(), seed=seed, persistent_workers="persistent_workers" in options))


def test_samples_finished_on_the_device_are_counted() -> None:
    with stoker.DataLoader(Pictures(), batch_size=8, num_workers=2, prep="tail") as loader:
        list(loader)
        assert loader.stats().on_device == 27
    with stoker.DataLoader(Pictures("erased"), batch_size=9, num_workers=2, prep="tail") as loader:
        list(loader)
        assert loader.stats().on_device == 0  # in each batch some were needed as numbers in the worker


def test_a_slot_holds_a_quarter() -> None:
    used = {}
    for prep in ("host", "tail"):
        with stoker.DataLoader(Pictures("alone"), batch_size=32, num_workers=1, prep=prep) as loader:
            iterator: Any = iter(loader)
            next(iterator)
            used[prep] = int(iterator._slots.inbox._head.touched.max())
    assert used["tail"] < 0.3 * used["host"]


def test_an_error_in_a_worker_is_the_users() -> None:
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        batches(stoker.DataLoader, Pictures("sizes"), prep="tail")


def _mixed_up(samples: list[Any]) -> Any:
    return default_collate(samples)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"collate_fn": _mixed_up}, "another collate_fn"),
        ({"num_workers": 0}, "no workers"),
        ({"workers": "threads"}, "threads"),
        ({"ranks": "shared"}, "made for or by others"),
        ({"batch_size": None}, "another collate_fn"),
    ],
)
def test_what_does_not_fit_stays_on_the_host_and_is_named_once(options: dict[str, Any], why: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with stoker.DataLoader(Pictures("alone"), **{"num_workers": 1, "prep": "tail", **options}) as loader:
            next(iter(loader))
            next(iter(loader))
            assert loader.stats().on_device == 0
    said = [str(warning.message) for warning in caught if "prep=" in str(warning.message)]
    assert len(said) == 1 and why in said[0]


def test_without_a_device_everything_stays_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    parameter = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([parameter])
    with stoker.DataLoader(Pictures(), batch_size=8, num_workers=1, prep="tail") as loader:
        assert all(numbers.device.type == "cpu" for numbers, _ in loader)
        assert loader.stats().on_device == 0
    assert optimizer.param_groups


class NotBegun(torch.optim.Optimizer):
    """An optimizer of somebody's, which has no parameters yet, or never."""

    def __init__(self) -> None:
        pass


def test_each_rank_has_the_device_of_its_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    optimizers: list[Any] = [NotBegun(), torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))])]
    gc.collect()
    assert finishing.device_of_training() is None

    def on(*devices: int) -> list[Any]:
        return [SimpleNamespace(device=torch.device("cuda", device), is_cuda=True) for device in devices]

    groups = optimizers[1].param_groups
    groups.append({"params": on(0)})
    assert finishing.device_of_training() == torch.device("cuda", 0)  # this process has never chosen one
    groups.append({"params": on(0, 1)})
    assert finishing.device_of_training() == torch.device("cuda", 1)
    groups[-1] = {"params": on(0, 2)}
    assert finishing.device_of_training() is None  # a model in parts: nobody knows who gets the pictures


def test_a_plan_asks_for_it_and_the_script_wins() -> None:
    plan = stoker.Plan(prep="tail")
    assert stoker.DataLoader(Pictures(), plan=plan).prep == "tail"
    assert stoker.DataLoader(Pictures(), plan=plan, prep="host").prep == "host"
    with pytest.raises(ConfigError, match="prep must be one of 'host', 'tail', 'device'"):
        stoker.DataLoader(Pictures(), prep="gpu")
    with pytest.raises(ConfigError, match="where pixels are computed"):
        stoker.Plan.of_values({"prep": "gpu"})


def test_a_full_device_falls_back_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def move(content: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    expected = batches(DataLoader, Pictures())
    finishing._say_once.cache_clear()
    monkeypatch.setattr(finishing, "_moved", move)
    with pytest.warns(UserWarning, match="no memory left") as caught:
        assert_same(batches(stoker.DataLoader, Pictures(), prep="tail"), expected)
    assert len(caught) == 1


class OnProcessor:
    """Stands in for the decoder of a GPU."""

    def submit(self, files: torch.Tensor, table: torch.Tensor, shape: Any, ops: Any) -> Any:
        made = functools.partial(decoder.decoded_on_host, files, table, shape, ops)
        return SimpleNamespace(result=functools.cache(made), on_host=0)


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in_for_a_gpu(monkeypatch)


def stand_in_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pictures decoded by the processor, in the process that trains."""
    monkeypatch.setattr(decoder, "decoder_of", functools.cache(lambda _: OnProcessor()))
    monkeypatch.setattr(finishing, "_obstacle_to_decoding", lambda _: "")
    lookalike.installed(monkeypatch)


class Files(Dataset[Any]):
    """JPEG files, one of five progressive."""

    def __init__(self, broken: int = -1) -> None:
        self.files = []
        for number in range(27):
            pixels = np.random.default_rng(number).integers(0, 256, (7, 9, 3), dtype=np.uint8)
            place = io.BytesIO()
            picture = Image.fromarray(pixels).resize((90 + number, 120), Image.Resampling.BICUBIC)
            picture.save(place, "JPEG", progressive=number % 5 == 0)
            self.files.append(place.getvalue()[:-600] if number == broken else place.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        functional: Any = sys.modules["torchvision.transforms.functional"]
        picture = lookalike.random_crop(Image.open(io.BytesIO(self.files[index])).convert("RGB"))
        return lookalike.normalized(functional.to_tensor(picture)), index


@pytest.mark.usefixtures("decodes")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("seed", [None, 7])
def test_pictures_are_decoded_elsewhere(seed: int | None, persistent: bool) -> None:
    options = {"seed": seed, "persistent_workers": persistent}
    assert_same(
        batches(stoker.DataLoader, Files(), prep="device", **options), batches(stoker.DataLoader, Files(), **options)
    )


class Jittered(Files):
    """The same in other colours."""

    def __getitem__(self, index: int) -> Any:
        functional: Any = sys.modules["torchvision.transforms.functional"]
        picture = lookalike.random_crop(Image.open(io.BytesIO(self.files[index])).convert("RGB"))
        return functional.to_tensor(lookalike.jittered(picture)), index


@pytest.mark.usefixtures("decodes")
@pytest.mark.parametrize("seed", [None, 7])
def test_other_colours_travel_with_the_files(seed: int | None) -> None:
    assert_same(
        batches(stoker.DataLoader, Jittered(), prep="device", seed=seed), batches(stoker.DataLoader, Jittered(), seed=seed)
    )
    with stoker.DataLoader(Jittered(), batch_size=27, num_workers=1, prep="device") as loader:
        next(iter(loader))
        assert loader.stats().decoded_on_device == 21


@pytest.mark.usefixtures("decodes")
def test_files_travel_and_pixels_only_of_what_the_hardware_does_not_take() -> None:
    with stoker.DataLoader(Files(), batch_size=27, num_workers=1, prep="device") as loader:
        next(iter(loader))
        assert loader.stats().on_device == 27
        assert loader.stats().decoded_on_device == 21


@pytest.mark.usefixtures("decodes")
@pytest.mark.parametrize("seed", [None, 7])
def test_a_damaged_picture_raises_in_its_turn_and_the_loop_goes_on(seed: int | None) -> None:
    def outcomes(prep: str) -> list[Any]:
        random.seed(0)
        torch.manual_seed(3)
        loader: Any = stoker.DataLoader(Files(13), batch_size=4, num_workers=2, prep=prep, seed=seed)
        iterator, found = iter(loader), []
        while True:
            try:
                found.append(next(iterator)[1].tolist())
            except OSError as error:
                assert "truncated" in str(error)
                found.append(type(error))
            except StopIteration:
                return [*found, loader.stats().batches, loader.stats().samples]

    assert outcomes("device") == outcomes("host")


@pytest.mark.usefixtures("decodes")
@pytest.mark.parametrize("fails_at", ["submit", "result"])
@pytest.mark.parametrize(
    ("error", "words"),
    [(torch.OutOfMemoryError("CUDA out of memory"), "no memory left"), (RuntimeError("no C compiler"), "no C compiler")],
    ids=["full", "failing"],
)
def test_what_the_device_cannot_do_the_host_does(
    error: Exception, words: str, fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    expected = batches(stoker.DataLoader, Files())
    works = OnProcessor().submit
    finishing._say_once.cache_clear()
    monkeypatch.setattr(finishing, "_failed", {})
    failing = fail if fails_at == "submit" else lambda *_: SimpleNamespace(result=fail, on_host=0)
    monkeypatch.setattr(OnProcessor, "submit", lambda _, *packed: failing(*packed))
    with pytest.warns(UserWarning, match=words) as caught:
        torch.manual_seed(3)
        loader: Any = stoker.DataLoader(Files(), batch_size=8, num_workers=2, shuffle=True, prep="device")
        assert_same(list(loader), expected)
    assert len([one for one in caught if words in str(one.message)]) == 1
    assert loader.stats().decoded_on_device == 0
    assert finishing._failed.get(torch.device("cpu"), "").endswith("no C compiler") is (words == "no C compiler")
    monkeypatch.setattr(OnProcessor, "submit", lambda _, *packed: works(*packed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        list(loader)
    assert loader.stats().decoded_on_device == (0 if words == "no C compiler" else 21)


@pytest.mark.usefixtures("decodes")
def test_a_damaged_picture_is_not_the_devices_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header and its end are right: only who decodes it notices. The loop goes on, and so does the device."""
    monkeypatch.setattr(finishing, "_failed", {})
    files = Files()
    tables = files.files[13].index(b"\xff\xc4") + 5
    files.files[13] = files.files[13][:tables] + bytes([255] * 16) + files.files[13][tables + 16 :]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader: Any = stoker.DataLoader(files, batch_size=9, num_workers=1, prep="device")
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(OSError, match="broken data stream"):
            next(iterator)
        next(iterator)
    assert not finishing._failed and loader.stats().on_device == 27


@pytest.mark.usefixtures("decodes")
@pytest.mark.parametrize("seed", [None, 7])
def test_a_batch_that_is_decoded_ahead_was_not_seen_yet(seed: int | None) -> None:
    def loader() -> Any:
        torch.manual_seed(3)
        return stoker.DataLoader(Files(), batch_size=4, num_workers=2, prep="device", seed=seed, shuffle=True)

    first = loader()
    whole = [labels.tolist() for _, labels in first]
    second = loader()
    iterator = iter(second)
    for _ in range(3):
        next(iterator)
    state = second.state_dict()
    third = loader()
    third.load_state_dict(state)
    assert [labels.tolist() for _, labels in third] == whole[3:]


@pytest.mark.usefixtures("decodes")
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("seed", [None, 7])
def test_an_epoch_that_is_left_early_leaves_nothing_to_the_next(seed: int | None, persistent: bool) -> None:
    """What was decoded ahead is dropped, with its slots; the first batch stays what it was."""

    def epochs(prep: str) -> list[Any]:
        torch.manual_seed(3)
        random.seed(3)
        options: dict[str, Any] = {"batch_size": 4, "num_workers": 2, "seed": seed, "persistent_workers": persistent}
        with stoker.DataLoader(Files(), prep=prep, shuffle=True, **options) as loader:
            first = next(iter(loader))
            return [first, *loader]

    got, expected = epochs("device"), epochs("host")
    assert_same([labels for _, labels in got], [labels for _, labels in expected])
    if seed is None and persistent:  # workers that stay have drawn for one batch more, which was ordered ahead
        got, expected = got[:1], expected[:1]
    assert_same(got, expected)


@pytest.mark.usefixtures("decodes")
def test_validation_is_exact_unless_asked_for() -> None:
    expected = [numbers for numbers, _ in stoker.DataLoader(Files(), batch_size=9, num_workers=1, seed=7)]
    with torch.no_grad():
        planned: Any = stoker.DataLoader(Files(), batch_size=9, num_workers=1, seed=7, plan=stoker.Plan(prep="device"))
        got = [numbers for numbers, _ in planned]
        assert planned.stats().decoded_on_device == 0 and planned.stats().on_device == 27
        asked: Any = stoker.DataLoader(Files(), batch_size=9, num_workers=1, seed=7, prep="device")
        list(asked)
        assert asked.stats().decoded_on_device == 21
    assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_without_the_hardware_pictures_are_decoded_here_and_that_is_said() -> None:
    with pytest.warns(UserWarning, match="decoded on the host, and only finished on the device, because it is no GPU"):
        assert_same(batches(stoker.DataLoader, Pictures(), prep="device"), batches(DataLoader, Pictures()))


def test_an_error_keeps_nothing_on_the_device_alive() -> None:
    """Objects of CUDA that a forked child meets as garbage would end it: nothing may wait for the collector."""
    job: Any = decoder.DecodeJob.__new__(decoder.DecodeJob)
    job.ended, job.error = threading.Event(), OSError("image file is truncated")
    job.ended.set()
    iterator, coming, there = SimpleNamespace(_arrived=0, _is_due=False), Coming(1), weakref.ref(job)

    def fail() -> Any:
        raise OSError("again")

    gc.disable()
    try:
        with contextlib.suppress(OSError):
            job.result()
        kept = weakref.ref(coming)
        with contextlib.suppress(OSError):
            coming.take(iterator, fail)
        del job, coming, fail
        assert there() is None and kept() is None
    finally:
        gc.enable()
