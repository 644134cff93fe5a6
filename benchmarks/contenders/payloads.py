"""The bytes of each workload, and the code that makes samples of them: the same for all contenders."""

import io
import json
import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image
from torch.utils.data import Dataset

CROP = 224
VOLUME = (64, 128, 128)
HEARD = 64_000
TOKENS = 512
VOCABULARY = 32_000


@dataclass(frozen=True)
class Workload:
    """Some samples: how many, how they look in storage, and what is done with one."""

    name: str
    count: int
    batch: int
    payload: Callable[[int], bytes]
    prepare: Callable[[bytes], Any]
    is_random: bool = False
    """Whether samples differ from epoch to epoch, so that contents cannot be compared."""
    in_files: bool = True
    """One file for each, or all in one with a table of where each is."""

    def part(self, share: float) -> "Workload":
        """The same with fewer samples: whole batches for eight shards and two workers."""
        step = 16 * self.batch
        return replace(self, count=max(step, int(self.count * share) // step * step))


def _small(number: int) -> bytes:
    return np.random.default_rng(number).integers(0, 256, 3072, dtype=np.uint8).tobytes()


def _image(payload: bytes) -> Any:
    return np.frombuffer(payload, np.uint8).reshape(32, 32, 3)


def _volume(number: int) -> bytes:
    return np.random.default_rng(number).random(VOLUME, dtype=np.float32).tobytes()


def _floats(payload: bytes) -> Any:
    return np.frombuffer(payload, np.float32).reshape(VOLUME)


_pictures: dict[int, bytes] = {}


def _jpeg(number: int) -> bytes:
    """A picture with the detail of a photograph, one of 128."""
    from workloads import jpeg

    number %= 128
    if number not in _pictures:
        _pictures[number] = jpeg(number)
    return _pictures[number]


def _cropped(payload: bytes) -> Any:
    picture = Image.open(io.BytesIO(payload)).convert("RGB")
    left, top = np.random.randint(0, picture.width - CROP), np.random.randint(0, picture.height - CROP)
    return np.asarray(picture.crop((left, top, left + CROP, top + CROP)))


def _speech(number: int) -> bytes:
    """Five seconds of tones and breath, as FLAC at 16 kHz."""
    rng = np.random.default_rng(number % 64)
    time = np.arange(80_000) / 16_000
    tones = sum(np.sin(2 * np.pi * frequency * time) for frequency in rng.uniform(80, 2000, 6)) / 12
    file = io.BytesIO()
    soundfile.write(file, (tones + rng.normal(0, 0.02, len(time))).astype(np.float32), 16_000, format="FLAC")
    return file.getvalue()


def _heard(payload: bytes) -> Any:
    samples, _ = soundfile.read(io.BytesIO(payload), dtype="float32")
    start = np.random.randint(0, len(samples) - HEARD)
    return samples[start : start + HEARD]


def _document(number: int) -> bytes:
    rng = np.random.default_rng(number)
    words = ["".join(map(chr, rng.integers(97, 123, length))) for length in rng.integers(2, 10, 200)]
    chosen = rng.integers(0, len(words), int(rng.integers(100, 500)))
    return json.dumps({"text": " ".join(words[one] for one in chosen)}).encode()


def _tokens(payload: bytes) -> Any:
    """Words as numbers, in plain Python, cut or filled up to one length."""
    words = json.loads(payload)["text"].split()[:TOKENS]
    numbers = [zlib.crc32(word.encode()) % VOCABULARY for word in words]
    return np.array(numbers + [0] * (TOKENS - len(numbers)), np.int64)


WORKLOADS = {
    one.name: one
    for one in (
        Workload("small", 25_600, 256, _small, _image, in_files=False),
        Workload("volumes", 192, 4, _volume, _floats),
        Workload("jpeg", 3072, 64, _jpeg, _cropped, is_random=True),
        Workload("audio", 3072, 64, _speech, _heard, is_random=True),
        Workload("text", 8192, 64, _document, _tokens, in_files=False),
    )
}
TITLES = {
    "small": "3 KB samples, batch 256",
    "volumes": "4 MB volumes of floats, batch 4",
    "jpeg": "JPEG 500 x 375, decoded, cropped at random, batch 64",
    "audio": "FLAC of 5 s, decoded, cut at random, batch 64",
    "text": "JSON lines to tokens in Python, batch 64",
}


class Payloads:
    """The bytes of a workload as a dataset of files, or of parts of one file."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self.workload, self.folder = workload, folder
        self.starts = None if workload.in_files else np.load(folder / "starts.npy")
        self._file: tuple[int, int] | None = None

    def __len__(self) -> int:
        return self.workload.count

    def path(self, number: int) -> Path:
        """The file of a sample."""
        return self.folder / f"{number:06}.bin"

    def read(self, number: int) -> bytes:
        """The bytes of a sample."""
        if self.starts is None:
            with open(f"{self.folder}/{number:06}.bin", "rb", buffering=0) as file:
                return file.read()
        start, end = int(self.starts[number]), int(self.starts[number + 1])
        if self._file is None or self._file[0] != os.getpid():
            self._file = os.getpid(), os.open(self.folder / "all.bin", os.O_RDONLY)
        return os.pread(self._file[1], end - start, start)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        return ((number, self.read(number)) for number in range(len(self)))


class Samples(Dataset[Any]):
    """What a user would write for torch: sample `i`, and its number."""

    def __init__(self, workload: Workload, folder: Path) -> None:
        self.payloads, self.prepare = Payloads(workload, folder), workload.prepare

    def __len__(self) -> int:
        return len(self.payloads)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return self.prepare(self.payloads.read(number)), number


def write(workload: Workload, folder: Path) -> None:
    """Write the payloads, once for all contenders that read plain files."""
    if workload.in_files:
        for number in range(workload.count):
            (folder / f"{number:06}.bin").write_bytes(workload.payload(number))
        return
    ends = [0]
    with open(folder / "all.bin", "wb") as file:
        for number in range(workload.count):
            ends.append(ends[-1] + file.write(workload.payload(number)))
    np.save(folder / "starts.npy", np.array(ends))
