"""Tell low sounds from high ones: wav files, random gain and offset, a small convolution.

python audio.py FOLDER/sounds --epochs 2 --workers 2
"""

import argparse
from pathlib import Path

import numpy as np
import soundfile
import torch
import torch.utils.data as data
from torch import nn


class Sounds(data.Dataset):
    def __init__(self, folder):
        self.paths = sorted(Path(folder).glob("*.wav"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        wave, _ = soundfile.read(self.paths[index], dtype="float32")
        start = np.random.randint(len(wave) - 8000)
        return torch.from_numpy(wave[start : start + 8000]) * np.random.uniform(0.5, 1.5), int(
            "high" in self.paths[index].name
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    torch.set_num_threads(1)
    loader = data.DataLoader(
        Sounds(options.folder), batch_size=8, shuffle=True, num_workers=options.workers, drop_last=True
    )
    model = nn.Sequential(nn.Conv1d(1, 8, 64, stride=16), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(options.epochs):
        for waves, labels in loader:
            loss = nn.functional.cross_entropy(model(waves.float()[:, None]), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} loss {loss.item():.17g}", flush=True)


if __name__ == "__main__":
    main()
