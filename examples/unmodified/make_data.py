"""Make the pictures and sounds that the other examples read: `python make_data.py FOLDER`."""

import argparse
import os
from pathlib import Path

import numpy as np
from PIL import Image

MADE_AT = 1_700_000_000
"""Hosts that share their caches take files for the same if their times agree."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", type=int, default=192)
    parser.add_argument("--sounds", type=int, default=64)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    for number in range(options.pictures):
        label = ("calm", "busy")[number % 2]
        detail = (8, 64)[number % 2]
        coarse = Image.fromarray(rng.integers(0, 256, (detail, detail, 3), dtype=np.uint8))
        path = options.folder / "pictures" / label / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse.resize((320, 240), Image.Resampling.BICUBIC).save(path, quality=90)
        os.utime(path, (MADE_AT, MADE_AT))
    if options.sounds:
        import soundfile

        seconds = np.arange(16000) / 16000
        for number in range(options.sounds):
            wave = np.sin(2 * np.pi * (200, 600)[number % 2] * seconds) + rng.normal(0, 0.3, len(seconds))
            path = options.folder / "sounds" / f"{('low', 'high')[number % 2]}-{number:04d}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, (wave / 4).astype(np.float32), 16000)
            os.utime(path, (MADE_AT, MADE_AT))


if __name__ == "__main__":
    main()
