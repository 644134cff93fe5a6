"""A stand-in for a picture is what it stands for, whatever is done with it; crops, resizes and flips need no pixel."""

import copy
import io
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from tests.device import lookalike

from stoker.device import picture
from stoker.device.picture import StandIn, Undecoded
from stoker.device.recipe import is_for_hardware
from stoker.device.recorder import Recorder, Recording


def jpeg(mode: str = "RGB", width: int = 150, height: int = 110, **options: Any) -> bytes:
    coarse = Image.fromarray(np.random.default_rng(width).integers(0, 256, (7, 9, 3), dtype=np.uint8))
    place = io.BytesIO()
    coarse.resize((width, height), Image.Resampling.BICUBIC).convert(mode).save(place, "JPEG", quality=90, **options)
    return place.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(exif=exif)


@pytest.fixture(autouse=True)
def stands_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Does something with a worker's `Image.open`, the recording on."""
    lookalike.installed(monkeypatch)

    def within(act: Callable[[], Any]) -> Any:
        picture.begin()
        try:
            with Recording():
                return act()
        finally:
            Image.open = picture._really_open

    yield within
    Image.open = picture._really_open


def functional() -> Any:
    return sys.modules["torchvision.transforms.functional"]


CHAINS: dict[str, Callable[[Any], Any]] = {
    "random crop, to tensor": lambda x: lookalike.normalized(functional().to_tensor(lookalike.random_crop(x))),
    "middle, to tensor": lambda x: lookalike.normalized(functional().to_tensor(lookalike.middle(x))),
    "bytes, then float": lambda x: lookalike.normalized(
        functional().pil_to_tensor(lookalike.random_crop(x)).to(torch.float32) / 255
    ),
    "flip, crop, flip": lambda x: functional().to_tensor(
        x.transpose(Image.Transpose.FLIP_LEFT_RIGHT).crop((7, 9, 90, 80)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    ),
    "flip, resize, crop": lambda x: functional().to_tensor(
        x.transpose(Image.Transpose.FLIP_LEFT_RIGHT).resize((99, 55), Image.Resampling.BILINEAR).crop((3, 4, 67, 44))
    ),
    "crop, jitter": lambda x: lookalike.normalized(functional().to_tensor(lookalike.jittered(lookalike.random_crop(x)))),
    "jitter, flip, whole": lambda x: functional().to_tensor(
        lookalike.jittered(lookalike.middle(x)).transpose(Image.Transpose.FLIP_LEFT_RIGHT).crop((0, 0, 64, 64))
    ),
    "one enhancer, two factors": lambda x: functional().to_tensor(
        [enhancer := ImageEnhance.Contrast(x), enhancer.enhance(3.0), enhancer.enhance(0.2)][2]
    ),
    "copies": lambda x: functional().to_tensor(x.copy().convert("RGB").crop().resize(x.size).copy()),
}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("content", [jpeg(), jpeg("L"), jpeg(subsampling=0), jpeg(width=99, height=300)], ids=range(4))
def test_pictures_are_noted_and_made_the_same(chain: str, content: bytes, stands_in: Any) -> None:
    def prepare() -> Any:
        torch.manual_seed(3)
        random.seed(3)
        return CHAINS[chain](Image.open(io.BytesIO(content)).convert("RGB"))

    expected = prepare()
    drawn = torch.rand(())
    got = stands_in(prepare)
    assert type(got) is Recorder and got.notes is not None and type(got.notes.content) is Undecoded
    assert torch.equal(torch.rand(()), drawn)
    assert got.shape == expected.shape and got.stride() == expected.stride()
    exactly = chain != "flip, resize, crop"  # Pillow's weights are not symmetric to the last bit
    assert float((got - expected).abs().max()) <= (0 if exactly else 1.01 / 255)


OTHERS: dict[str, Callable[[Any], Any]] = {
    "array": lambda x: np.asarray(x).tolist(),
    "crop outside": lambda x: np.asarray(x.crop((-5, -5, 300, 90))).sum(),
    "two resizes": lambda x: np.asarray(x.resize((80, 70)).resize((60, 50))).tolist(),
    "lanczos": lambda x: np.asarray(x.resize((80, 70), Image.Resampling.LANCZOS)).tolist(),
    "resize in two steps": lambda x: np.asarray(x.resize((20, 20), reducing_gap=1.5)).tolist(),
    "resize of a box": lambda x: np.asarray(x.resize((20, 20), box=(1.5, 2.5, 80.0, 70.0))).tolist(),
    "rotate": lambda x: np.asarray(x.rotate(20)).sum(),
    "upside down": lambda x: np.asarray(x.transpose(Image.Transpose.FLIP_TOP_BOTTOM)).tolist(),
    "jitter after a crop": lambda x: np.asarray(ImageEnhance.Color(x.crop((5, 6, 70, 80))).enhance(1.4)).tolist(),
    "jitter, then a crop": lambda x: np.asarray(lookalike.jittered(x).crop((5, 6, 70, 80))).tolist(),
    "jitter, then a resize": lambda x: np.asarray(lookalike.jittered(x).resize((50, 40))).tolist(),
    "five steps of colour": lambda x: np.asarray(ImageEnhance.Color(lookalike.jittered(x)).enhance(0.7)).tolist(),
    "what an enhancer mixes with": lambda x: np.asarray(ImageEnhance.Contrast(x).degenerate).tolist(),
    "an enhancer of what was decoded meanwhile": lambda x: [
        enhancer := ImageEnhance.Color(x),
        x.load(),
        np.asarray(enhancer.enhance(1.3)).tolist(),
    ][2],
    "a sharper one": lambda x: np.asarray(ImageEnhance.Sharpness(x).enhance(2.0)).tolist(),
    "a factor without end": lambda x: np.asarray(ImageEnhance.Brightness(x).enhance(float("inf"))).tolist(),
    "gray": lambda x: np.asarray(x.convert("L")).tolist(),
    "thumbnail": lambda x: [x.thumbnail((30, 30)), x.size, np.asarray(x).tolist()][1:],
    "pixel": lambda x: x.load()[3, 4],
    "getpixel": lambda x: x.getpixel((5, 5)),
    "paste": lambda x: [x.paste((1, 2, 3), (0, 0, 9, 9)), np.asarray(x).tolist()][1],
    "statistics": lambda x: (x.getextrema(), x.histogram()[:20], x.getbbox()),
    "bytes": lambda x: x.tobytes(),
    "saved": lambda x: [place := io.BytesIO(), x.save(place, "PNG"), place.getvalue()][2],
    "split": lambda x: np.asarray(Image.merge("RGB", x.split()[::-1])).tolist(),
    "pickle": lambda x: np.asarray(pickle.loads(pickle.dumps(x))).tolist(),
    "deepcopy": lambda x: np.asarray(copy.deepcopy(x)).tolist(),
    "equal": lambda x: x.convert("RGB") == x.copy().convert("RGB"),
    "turned by exif": lambda x: np.asarray(ImageOps.exif_transpose(x)).tolist(),
    "facts": lambda x: (x.size, x.width, x.height, x.mode, x.getbands(), dict(x.getexif()), sorted(x.info)),
    "pad": lambda x: np.asarray(ImageOps.expand(x, 4)).sum(),
}


@pytest.mark.parametrize("use", OTHERS)
@pytest.mark.parametrize("is_converted", [False, True])
def test_whatever_else_is_done_with_it_it_is_real(use: str, is_converted: bool, stands_in: Any) -> None:
    content = turned()

    def act() -> Any:
        torch.manual_seed(3)
        opened = Image.open(io.BytesIO(content))
        return OTHERS[use](opened.convert("RGB") if is_converted else opened)

    assert stands_in(act) == act()


def test_what_a_file_says_of_itself(stands_in: Any) -> None:
    def facts() -> Any:
        opened: Any = Image.open(io.BytesIO(jpeg(width=400, height=300)))
        before = opened.format, opened.format_description, opened.layers, opened.quantization
        drafted = opened.draft("RGB", (100, 100))
        return before, drafted, opened.size, np.asarray(opened).tolist()

    assert stands_in(facts) == facts()


@pytest.mark.parametrize(
    ("content", "is_taken"),
    [
        (jpeg(), True),
        (jpeg("L"), True),
        (turned(), True),
        (jpeg(subsampling=0), True),
        (jpeg(subsampling=1), True),
        (jpeg(progressive=True), False),
        (jpeg("CMYK"), False),
        (jpeg(keep_rgb=True), False),
        (jpeg(width=50), False),
        (jpeg()[:-600], False),
        (b"", False),
        (b"\xff\xd8" + bytes(100), False),
        (jpeg()[:30] + b"\xff\xd9", False),
        (jpeg().replace(b"\x01\x22\x00", b"\x01\x41\x00"), False),
    ],
    ids=[
        "420",
        "gray",
        "exif",
        "444",
        "422",
        "progressive",
        "cmyk",
        "rgb",
        "small",
        "cut",
        "empty",
        "zeros",
        "short",
        "411",
    ],
)
def test_only_what_the_hardware_decodes_as_pillow_does_is_left_to_it(
    content: bytes, is_taken: bool, stands_in: Any
) -> None:
    assert is_for_hardware(content) is is_taken
    if is_taken:
        assert type(stands_in(lambda: Image.open(io.BytesIO(content)))) is StandIn


def test_other_files_and_damaged_ones_are_pillows(stands_in: Any, tmp_path: Any) -> None:
    place = io.BytesIO()
    Image.new("RGB", (90, 90)).save(place, "PNG")
    assert type(stands_in(lambda: Image.open(place))) is not StandIn
    with pytest.raises(OSError, match="truncated"):
        stands_in(lambda: Image.open(io.BytesIO(jpeg()[:-600])).load())
    with pytest.raises(Image.UnidentifiedImageError):
        stands_in(lambda: Image.open(io.BytesIO(b"no picture")))
    (tmp_path / "x.jpg").write_bytes(jpeg())
    with open(tmp_path / "x.jpg", "rb") as file:
        assert type(stands_in(lambda: Image.open(file).convert("RGB"))) is StandIn
    assert type(stands_in(lambda: Image.open(tmp_path / "x.jpg"))) is StandIn
