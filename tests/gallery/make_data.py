"""Make what the gallery's scripts read: `python make_data.py FOLDER`. The same bytes each time.

pictures/{train,val}/{calm,busy}/NNN.png    240 and 48 pictures of 24 x 24
masks/NNN.png                               one for each training picture
large/{train,val}/{calm,busy}/NNN.npy       240 and 24 arrays of 100 KB: on a slow disk reading them is what takes time
digits.npz                                  arrays as MNIST has them
text.txt                                    a text of one line, for language models
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

SPLITS = {"train": 240, "val": 48}
LARGE = {"train": 240, "val": 24}


def picture(rng: np.random.Generator, label: int) -> Image.Image:
    detail = (3, 12)[label]
    return Image.fromarray(rng.integers(0, 256, (detail, detail, 3), dtype=np.uint8)).resize((24, 24))


def placed(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def main() -> None:
    folder = Path(sys.argv[1])
    rng = np.random.default_rng(0)
    for split, count in SPLITS.items():
        for number in range(count):
            label = number % 2
            picture(rng, label).save(placed(folder / "pictures" / split / ("calm", "busy")[label] / f"{number:03d}.png"))
    for number in range(SPLITS["train"]):
        mask = np.zeros((24, 24), np.uint8)
        mask[: number % 24, : (number * 7) % 24] = 1
        Image.fromarray(mask).save(placed(folder / "masks" / f"{number:03d}.png"))
    for split, count in LARGE.items():
        for number in range(count):
            path = placed(folder / "large" / split / ("calm", "busy")[number % 2] / f"{number:03d}.npy")
            np.save(path, rng.integers(0, 256, (320, 320), dtype=np.uint8))
    images = rng.integers(0, 256, (288, 12, 12), dtype=np.uint8)
    np.savez(folder / "digits.npz", images=images, labels=rng.integers(0, 10, 288))
    (folder / "text.txt").write_text(" ".join(f"word{n}" for n in rng.zipf(1.5, 4000) % 50))


if __name__ == "__main__":
    main()
