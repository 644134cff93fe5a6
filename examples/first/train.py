"""Train on a folder of pictures: python examples/first/train.py FOLDER. The loader is written as most are at first.

The accelerator is imagined: the loop waits for as long as one would compute, so that the example needs none.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*/*.jpg"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        picture = Image.open(self.paths[index]).convert("RGB").resize((224, 224))
        return torch.from_numpy(np.array(picture)), self.paths[index].parent.name == "busy"


loader = DataLoader(Pictures(sys.argv[1]), batch_size=16, shuffle=True)
for epoch in range(3):
    began = time.perf_counter()
    for _pictures, _labels in loader:
        time.sleep(0.04)  # forward, backward, update
    print(f"epoch {epoch}: {len(loader.dataset) / (time.perf_counter() - began):.0f} samples/s", flush=True)
