"""What stands in for torchvision's `Image` is one: transforms that look at classes treat it as they treat that."""

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from stoker.device.recorder import Recorder, Recording
from stoker.device.samples import Worker
from stoker.device.tail import finish, finish_batch

MEAN, STD = torch.tensor((0.485, 0.456, 0.406)).view(-1, 1, 1), torch.tensor((0.229, 0.224, 0.225)).view(-1, 1, 1)
HELPERS = "torchvision.tv_tensors._torch_function_helpers"


class Image(torch.Tensor):
    """A tensor that is known to be a picture, in the manner of torchvision's: few functions of it give another one."""

    keeps_all = False
    KEEPING = frozenset({torch.Tensor.to, torch.Tensor.clone, torch.Tensor.detach, torch.Tensor.requires_grad_})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(cls, kind) for kind in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            given = func(*args, **kwargs or {})
        keeps = Image.keeps_all or (func in cls.KEEPING and isinstance(args[0], cls))
        if keeps and isinstance(given, torch.Tensor):
            return given if isinstance(given, cls) else given.as_subclass(cls)
        return given.as_subclass(torch.Tensor) if isinstance(given, cls) and not keeps else given

    @property
    def shape(self) -> Any:  # type: ignore[override]
        with torch._C.DisableTorchFunctionSubclass():
            return super().shape

    def __deepcopy__(self, memo: Any) -> Any:
        return self.clone()


Image.__module__ = "torchvision.tv_tensors._image"


@pytest.fixture(autouse=True)
def _told_to_keep_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module: Any = ModuleType(HELPERS)
    module._must_return_subclass = lambda: Image.keeps_all
    monkeypatch.setitem(sys.modules, HELPERS, module)
    yield
    Image.keeps_all = False


def kernel(function: Callable[[torch.Tensor], torch.Tensor], picture: Any) -> Any:
    """A transform works on a plain tensor, and gives what it was given."""
    return function(picture.as_subclass(torch.Tensor)).as_subclass(type(picture))


def pixels() -> torch.Tensor:
    return (torch.arange(3 * 40 * 50) % 256).to(torch.uint8).view(40, 50, 3).permute(2, 0, 1)


def opened() -> Any:
    return torch.as_tensor(pixels()).requires_grad_(False).as_subclass(Image)


def scaled(picture: Any) -> Any:
    return kernel(lambda plain: plain.to(torch.float32).mul_(1 / 255), picture)


def normalized(picture: Any) -> Any:
    return kernel(lambda plain: plain.sub(MEAN).div_(STD), picture)


def transformed(sample: list[Any]) -> list[Any]:
    """A transform of a whole sample: the pictures, or without any the first tensor."""
    pictures = [number for number, leaf in enumerate(sample) if isinstance(leaf, Image)]
    tensors = [number for number, leaf in enumerate(sample) if isinstance(leaf, torch.Tensor)]
    wanted = pictures or tensors[:1]
    return [normalized(leaf) if number in wanted else leaf for number, leaf in enumerate(sample)]


def test_a_picture_is_found_among_other_tensors() -> None:
    def prepare() -> Any:
        return transformed([torch.arange(6000.0).view(3, 40, 50), scaled(opened())])

    expected = prepare()
    with Recording():
        label, picture = prepare()
    assert torch.equal(label, expected[0])
    assert isinstance(picture, Recorder) and isinstance(picture, Image) and picture.noted is not None
    assert torch.equal(picture, expected[1])


def test_a_batch_of_them_is_left_to_the_device() -> None:
    worker = Worker()
    with Recording():
        samples = [(normalized(scaled(opened())), number) for number in range(3)]
        batch = torch.utils.data.default_collate(worker.settle(samples))
    rest = worker.take()
    assert rest is not None and batch[0].dtype is torch.uint8
    got = finish_batch(batch, rest[1], lambda content, ops: finish(content, ops, torch.contiguous_format))
    expected = torch.utils.data.default_collate([(normalized(scaled(opened())), number) for number in range(3)])
    assert type(got[0]) is type(expected[0]) is torch.Tensor
    assert torch.equal(got[0], expected[0])


def _changed_by_another_name(picture: Any) -> list[Any]:
    plain = picture.as_subclass(torch.Tensor)
    plain.mul_(2)
    picture.sub_(1)
    again = plain.as_subclass(type(picture))
    again[0] = 5.0
    plain.add_(1)
    return [picture, plain, again]


def _made_by_torch(picture: Any) -> list[Any]:
    """A real tensor gets the class of what is beside it."""
    real = torch.ones(3, 40, 50).as_subclass(type(picture))
    return [
        real,
        real + 1,
        real.to(torch.float64),
        real.mul_(3),
        real,
        real.clone(),
        scaled(real),
        real.shape,
        real * picture,
    ]


USES: dict[str, Callable[[Any], Any]] = {
    "all that keep": lambda x: [x.to(torch.float32), x.clone(), x.detach(), x.requires_grad_(False), torch.as_tensor(x)],
    "some that do not": lambda x: [
        x * 2,
        x.mul(2),
        x + 1,
        torch.sub(x, 1),
        x.contiguous(),
        torch.clone(x),
        x[0],
        x.flatten(),
    ],
    "in place": lambda x: [x.mul_(2), x, x.add_(1), x],
    "names": _changed_by_another_name,
    "made by torch": _made_by_torch,
    "same": lambda x: [x.to(torch.float32) is x, x.as_subclass(Image) is x, x.mul(1) is x, torch.as_tensor(x) is x],
    "facts": lambda x: [x.shape, x.dtype, x.ndim, x.device, x.size(1), x.stride(), x.requires_grad, x.is_floating_point()],
    "class": lambda x: [{Image: 3, torch.Tensor: 4}[type(x)], type(x) in (Image,), type(x) in (torch.Tensor,)],
    "other class": lambda x: [x.as_subclass(Other), x.as_subclass(torch.nn.Parameter)],
    "double": lambda x: [x.to(torch.float64), x.half(), x.to(torch.zeros(1))],
    "deepcopy": copy.deepcopy,
    "stack": lambda x: torch.stack([x, x]),
    "erase": lambda x: [x.__setitem__((0, slice(3)), 0.5), x],
    "print": lambda x: repr(x)[-20:],
    "numpy": lambda x: x.numpy().sum(),
}


class Other(torch.Tensor):
    """A class of somebody's."""


@pytest.mark.parametrize("keeps_all", [False, True])
@pytest.mark.parametrize("use", USES)
def test_whatever_is_done_with_it_it_is_what_it_stands_for(use: str, keeps_all: bool) -> None:
    Image.keeps_all = keeps_all
    with Recording():
        picture = scaled(opened())
        assert picture.noted is not None
        got = USES[use](picture)
    expected = USES[use](scaled(opened()))
    assert _plain(got) == _plain(expected)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [_plain(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return value
    plain = value.as_subclass(torch.Tensor)
    kinds = [kind for kind in (Image, Other, torch.nn.Parameter) if isinstance(value, kind)]
    return kinds, value.dtype, value.stride(), plain.tolist()


def test_bytes_are_a_picture_too() -> None:
    with Recording():
        picture: Any = torch.as_tensor(pixels().contiguous()).as_subclass(Image)
        assert isinstance(picture, Image) and picture.noted is not None and picture.dtype is torch.uint8
        assert isinstance(scaled(picture), Image)
        halves = picture[:, :20]
    assert type(halves) is torch.Tensor and torch.equal(halves, pixels()[:, :20])


def test_only_torchvisions_is_known_to_be_nothing_more() -> None:
    class Own(Image):
        pass

    own: Any = type("Image", (torch.Tensor,), {"said": property(lambda self: type(self) is own)})
    with Recording():
        numbers = pixels().to(torch.float32)
        assert type(numbers.as_subclass(Own)) is Own
        assert numbers.as_subclass(own).said


def test_it_travels_as_what_it_is() -> None:
    with Recording():
        picture = pickle.loads(pickle.dumps(scaled(opened()).as_subclass(torch.Tensor)))
    assert torch.equal(picture, scaled(opened()))
