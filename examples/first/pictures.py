"""Make 600 pictures to train on: python examples/first/pictures.py FOLDER."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)
for number in range(600):
    path = folder / ("calm", "busy")[number % 2] / f"{number:03d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(rng.integers(0, 256, (60, 60, 3), dtype=np.uint8))
    coarse.resize((500, 375), Image.Resampling.BICUBIC).save(path, quality=90)
print(f"600 pictures in {folder}")
