"""On a GPU machine: what `prep="tail"` and `prep="device"` give a script in the manner of torchvision's reference.

python gpu_prep.py [pixels] [beside] [train] [jitter] [analyze] [--rounds N]

pixels: how far the device's pictures are from the CPU's. beside: how much a loop on synthetic data is slowed by decoding
beside it. train: images per second and processor time, unmodified under python, and under `stoker run --prep`. jitter:
the same with colour jitter. analyze: the gain that `stoker analyze` predicts for the same script, and the one that comes.
"""

import argparse
import io
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

import harness
import stoker
import workloads
from stoker.decide.forecast import Forecast, as_measured
from stoker.feed.coming import AHEAD
from stoker.measure import files
from stoker.profile import Profile

SCRIPT = Path(__file__).parent / "gpu_prep_script.py"
KINDS = {
    "python": [],
    "host": ["-m", "stoker", "run"],
    "tail": ["-m", "stoker", "run", "--prep", "tail"],
    "device": ["-m", "stoker", "run", "--prep", "device"],
    "loop alone": [],
}


def write(where: tuple[str, int]) -> None:
    folder, number = where
    path = Path(folder) / str(number % 4) / f"{number:05d}.jpg"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(workloads.jpeg(number % 64))


def train(rounds: int, *own: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written(folder)
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                found[kind].append(once(kind, folder, *own, *(["--synthetic"] if kind == "loop alone" else [])))
    speed, processor = (
        harness.Outcome({kind: [run[name] for run in runs] for kind, runs in found.items()})
        for name in ("images_per_s", "processor_s")
    )
    harness.report(
        " ".join(["ResNet-18, 14 workers,", torch.cuda.get_device_name(), *own]),
        ratio=speed.ratio("device", "python"),
        tail_ratio=speed.ratio("tail", "python"),
        of_loop_alone=speed.ratio("device", "loop alone"),
        processor_ratio=processor.ratio("device", "python"),
        images_per_s=speed.medians(),
        processor_s=processor.medians(),
    )


def written(folder: str) -> None:
    """Make the files of the data."""
    with ProcessPoolExecutor() as pool:
        list(pool.map(write, [(folder, number) for number in range(8192)], chunksize=64))


def once(kind: str, folder: str, *own: str) -> dict[str, float]:
    """What the script says of its speed."""
    command = [sys.executable, "-W", "ignore", *KINDS[kind], str(SCRIPT), folder, *own]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(kind, found, done.stderr.strip()[-200:], flush=True)
    return found


def analyze(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written(folder)
        with tempfile.TemporaryDirectory() as place:
            path = Path(place, "profile.json")
            words = ["-m", "stoker", "analyze", "--time", "4", "--json", str(path), str(SCRIPT), folder, "--times", "500"]
            done = subprocess.run([sys.executable, "-W", "ignore", *words], capture_output=True, text=True)
            print(done.stdout, done.stderr[-2000:], flush=True)
            profile = Profile.load(path)
        print(json.dumps(profile.document()["on_device"]), flush=True)
        forecast, now = Forecast.of(profile), replace(as_measured(profile), cached=1.0)
        files.warm([str(path) for path in Path(folder).glob("*/*.jpg")])
        kinds = ["host", *forecast.on_device]
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind in kinds:
                found[kind].append(once(kind, folder)["images_per_s"])
        real = {kind: statistics.median(rates) for kind, rates in found.items()}
        for kind in forecast.on_device:
            expected = forecast.rate(replace(now, prep=kind))
            gains = {"predicted_gain": expected / forecast.rate(now), "gain": real[kind] / real["host"]}
            both = {"predicted": expected, "real": real[kind], "predicted_host": forecast.rate(now), "host": real["host"]}
            harness.report(f"analyze: --prep {kind}", ratio=gains["predicted_gain"] / gains["gain"], **gains, **both)


def odd_picture(number: int) -> bytes:
    """A picture of 200 to 4,000 pixels, of the kinds that are found in folders."""
    rng = np.random.default_rng(number)
    width, height = (int(200 * 20 ** rng.random()) for _ in range(2))
    coarse = rng.integers(0, 256, (max(3, height // 40), max(3, width // 40), 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 6, (height, width, 1)).astype(np.float32)
    picture = Image.fromarray(np.clip(np.asarray(picture, np.float32) + grain, 0, 255).astype(np.uint8))
    draw = rng.random()
    options: dict[str, Any] = {"quality": int(rng.integers(70, 96)), "subsampling": 0 if rng.random() < 0.25 else 2}
    if draw < 0.1:
        picture = picture.convert("L")
        options.pop("subsampling")
    elif draw < 0.15:
        picture = picture.convert("CMYK")
    elif draw < 0.25:
        options["progressive"] = True
    elif draw < 0.32:
        exif = Image.Exif()
        exif[0x0112] = 6
        options["exif"] = exif
    file = io.BytesIO()
    picture.save(file, "JPEG", **options)
    return file.getvalue()


class Odd(Dataset[Any]):
    """Pictures of all kinds, cropped and flipped at random."""

    def __init__(self, files: list[bytes]) -> None:
        from torchvision import transforms

        parts = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        self.files, self.transform = files, transforms.Compose(parts)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(io.BytesIO(self.files[index])).convert("RGB")), index


def pixels(count: int = 1000) -> None:
    with ProcessPoolExecutor() as pool:
        files = list(pool.map(odd_picture, range(count), chunksize=8))
    parameter = torch.nn.Parameter(torch.zeros(1, device="cuda"))
    optimizer = torch.optim.SGD([parameter])
    batches = {}
    for prep in ("host", "device"):
        with stoker.DataLoader(Odd(files), 100, num_workers=14, seed=1, prep=prep) as loader:
            batches[prep] = torch.cat([pictures.cpu() for pictures, _ in loader])
            print(prep, loader.stats().on_device, "on the device", flush=True)
    assert optimizer.param_groups
    off = (batches["device"] - batches["host"]).mul(255).double()
    mean, square = off.abs().mean((1, 2, 3)), off.square().mean((1, 2, 3))
    psnr = 10 * torch.log10(255**2 / square.clamp_min(1e-6))
    harness.report(
        "pixels of the device against the CPU's",
        ratio=float(off.abs().mean()),
        mean_of_255=float(off.abs().mean()),
        largest_mean_of_a_picture=float(mean.max()),
        largest=float(off.abs().max()),
        lowest_psnr_db=float(psnr.min()),
        equal_pictures=int((square == 0).sum()),
        pictures=count,
    )


def beside(rounds: int = 3, steps: int = 150) -> None:
    import torchvision

    from stoker.device.decoder import decoder_of
    from stoker.device.recipe import Recipe

    torch.backends.cudnn.benchmark = True
    content = [workloads.jpeg(number % 64) for number in range(256)]
    rows, offset = [], 0
    for file in content:
        rows.append(Recipe(500, 375, (100, 50, 300, 280), (224, 224), 2, (0, 0, 224, 224)).row(offset, len(file)))
        offset += len(file)
    files = torch.from_numpy(np.frombuffer(b"".join(content), np.uint8).copy()).pin_memory()
    table = torch.tensor(rows)
    model = torchvision.models.resnet18().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    images, labels = torch.randn(256, 3, 224, 224, device="cuda"), torch.zeros(256, dtype=torch.int64, device="cuda")
    decoder = decoder_of(torch.device("cuda", 0))

    def loop(decodes: bool) -> float:
        jobs: list[Any] = []
        for step in range(steps + 20):
            if step == 20:
                torch.cuda.synchronize()
                began = time.perf_counter()
            if decodes:
                jobs.append(decoder.submit(files, table, (3, 224, 224), (("div", 255),)))
                if len(jobs) > AHEAD:
                    jobs.pop(0).result()
            with torch.amp.autocast("cuda"):
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            loss.item()
        torch.cuda.synchronize()
        return 256 * steps / (time.perf_counter() - began)

    found: dict[bool, list[float]] = {False: [], True: []}
    loop(True)
    for _ in range(rounds):
        for decodes in (False, True):
            found[decodes].append(loop(decodes))
    alone, decoding = (statistics.median(found[decodes]) for decodes in (False, True))
    harness.report("a loop on synthetic data, decoding beside it", ratio=decoding / alone, alone=alone, decoding=decoding)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["pixels", "beside", "train"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    parts: dict[str, Callable[[], None]] = {"pixels": pixels, "beside": beside, "train": partial(train, options.rounds)}
    parts["jitter"] = partial(train, options.rounds, "--jitter")
    parts["analyze"] = partial(analyze, options.rounds)
    for part in options.parts:
        parts[part]()


if __name__ == "__main__":
    main()
