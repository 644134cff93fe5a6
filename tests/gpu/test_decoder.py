"""Pictures that are decoded on a real GPU, beside other work of it."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from stoker.device.recipe import BICUBIC, BILINEAR, Recipe, is_for_hardware, row_of_pixels

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TO_TENSOR = (("div", 255),)
DEVICE = torch.device("cuda", 0)


def jpeg(number: int, width: int, height: int, mode: str = "RGB", **options: Any) -> bytes:
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (max(3, height // 30), max(3, width // 30), 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def packed(files: list[bytes], recipes: list[Recipe]) -> tuple[torch.Tensor, torch.Tensor]:
    rows, offset = [], 0
    for file, recipe in zip(files, recipes, strict=True):
        rows.append(recipe.row(offset, len(file)))
        offset += len(file)
    return torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8), torch.tensor(rows)


def recipes(files: list[bytes], side: int, how: int) -> list[Recipe]:
    rng = np.random.default_rng(5)
    found = []
    for file in files:
        width, height = Image.open(io.BytesIO(file)).size
        wide, high = (int(rng.integers(40, side + 1)) for side in (width, height))
        left, top = int(rng.integers(0, width - wide + 1)), int(rng.integers(0, height - high + 1))
        recipe = Recipe(width, height, (left, top, wide, high)).resized((side + 7, side + 9), how)
        assert recipe is not None
        recipe = recipe.cropped((3, 5, 3 + side, 5 + side))
        assert recipe is not None
        found.append(recipe.flipped() if rng.random() < 0.5 else recipe)
    return found


@pytest.mark.parametrize("how", [BILINEAR, BICUBIC])
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pictures_are_pillows(how: int, mode: str) -> None:
    """Decoded, cropped, made smaller and larger, a window of that, flipped: nearly all bytes are equal, none is far off."""
    from stoker.device.decoder import decoded_on_host, decoder_of

    sizes = [(500, 375), (64, 64), (97, 131), (1999, 1333), (640, 3001), (65, 500)]
    kinds: list[dict[str, Any]] = [{"subsampling": 2}, {"subsampling": 1}, {"subsampling": 0}] if mode == "RGB" else [{}]
    files = [jpeg(number, *size, mode, **kind) for number, (size, kind) in enumerate((s, k) for s in sizes for k in kinds)]
    assert all(map(is_for_hardware, files))
    files, table = packed(files, recipes(files, 96, how))  # type: ignore[assignment]
    shape = (1 if mode == "L" else 3), 96, 96
    job = decoder_of(DEVICE).submit(files, table, shape, TO_TENSOR)
    off = (job.result().cpu() - decoded_on_host(files, table, shape, TO_TENSOR)).mul(255).abs()
    assert job.on_host == 0
    assert float(off.max()) < 2.5
    assert float((off > 0.5).float().mean()) < 0.02


def test_what_the_engine_refuses_does_not_spoil_the_batch() -> None:
    from stoker.device.decoder import decoded_on_host, decoder_of

    files = [jpeg(1, 300, 200), jpeg(2, 300, 200, progressive=True), jpeg(3, 300, 200)]
    contents, table = packed(files, [Recipe(300, 200, (10, 20, 200, 100)).resized((64, 64), BILINEAR)] * 3)  # type: ignore[list-item]
    job = decoder_of(DEVICE).submit(contents, table, (3, 64, 64), TO_TENSOR)
    off = (job.result().cpu() - decoded_on_host(contents, table, (3, 64, 64), TO_TENSOR)).mul(255).abs()
    assert job.on_host == 1
    assert float(off.max()) < 2.5
    damaged = bytes(files[0][:200]) + b"\xff\xd9"
    contents, table = packed([files[0], damaged], [Recipe(300, 200, (10, 20, 64, 64))] * 2)
    with pytest.raises(OSError, match="Truncated File Read"):
        decoder_of(DEVICE).submit(contents, table, (3, 64, 64), TO_TENSOR).result()


def test_batches_of_any_size_follow_each_other() -> None:
    """One file that the engine refuses makes it do all others one by one."""
    from stoker.device.decoder import decoder_of

    jobs = []
    for count in (64, 7, 1, 40, 64, 3):
        files = [jpeg(number, 300, 200, progressive=number == 5) for number in range(count)]
        table = [Recipe(300, 200, (10, 20, 64, 64))] * count
        jobs.append((count, decoder_of(DEVICE).submit(*packed(files, table), (3, 64, 64), TO_TENSOR)))
    for count, job in jobs:
        assert len(job.result()) == count
        assert job.on_host == (count > 5)


def test_pixels_travel_beside_files() -> None:
    from stoker.device.decoder import decoded_on_host, decoder_of

    file = jpeg(1, 300, 200)
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    contents = torch.frombuffer(bytearray(file + pixels.tobytes()), dtype=torch.uint8)
    table = torch.tensor([Recipe(300, 200, (10, 20, 64, 64)).row(0, len(file)), row_of_pixels(len(file), 64, 64, 3)])
    got = decoder_of(DEVICE).submit(contents, table, (3, 64, 64), TO_TENSOR).result().cpu()
    assert torch.equal(got[1], decoded_on_host(contents, table, (3, 64, 64), TO_TENSOR)[1])


def test_no_byte_is_wrong_while_other_streams_compute_and_a_graph_is_captured() -> None:
    """10,000 batches; each is poisoned when it is released, and compared with what it was when nothing else went on."""
    from stoker.device.decoder import decoder_of

    decoder = decoder_of(DEVICE)
    batches = []
    for number in range(8):
        files = [jpeg(10 * number + picture, 200 + 40 * picture, 160) for picture in range(4)]
        batches.append(packed(files, recipes(files, 64, BILINEAR)))
    expected = [decoder.submit(*batch, (3, 64, 64), TO_TENSOR).result().clone() for batch in batches]
    torch.cuda.synchronize()
    side = [torch.cuda.Stream() for _ in range(3)]
    work = [torch.randn(512, 512, device="cuda") for _ in side]
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    coming: list[Any] = []
    graphs = []
    for number in range(10_000):
        for stream, one in zip(side, work, strict=True):
            with torch.cuda.stream(stream):
                one.copy_((one @ one).tanh_())
        coming.append(decoder.submit(*batches[number % 8], (3, 64, 64), TO_TENSOR))
        if number % 1000 == 500:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y.add_(x)
            graphs.append(graph)
        if len(coming) > 2:
            result = coming.pop(0).result()
            wrong += (result != expected[(number - 2) % 8]).sum()
            result.fill_(float("nan"))
            del result
        if number % 7 == 0:
            garbage = torch.full((4, 3, 64, 64), float("nan"), device="cuda")
            del garbage
    for graph in graphs:
        graph.replay()
    assert int(wrong) == 0
    assert float(y.sum()) == 1000 * len(graphs)
