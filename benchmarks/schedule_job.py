"""A small training job: each sample costs so much processor time, each iteration so much time of a pretended GPU.

    python benchmarks/schedule_job.py RESULT --samples 256 --epochs 4 --prep-ms 2 --gpu-ms 10

Writes a checksum of the trained weights to RESULT: it is the same however often the job was stopped and went on.
"""

import argparse
import hashlib
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

_FEATURES = 64


class Samples(Dataset[torch.Tensor]):
    """Samples that cost processor time, the same amount of work each."""

    def __init__(self, count: int, rounds: int) -> None:
        self.count, self.rounds = count, rounds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        digest = hashlib.pbkdf2_hmac("sha256", b"%d" % index, b"sample", self.rounds, _FEATURES)
        noise = torch.rand(_FEATURES)
        return torch.frombuffer(bytearray(digest), dtype=torch.uint8).float() / 255 + noise


def rounds_for(milliseconds: float) -> int:
    """How many rounds of work take so long on a core: fixed, so that all jobs of all runs do the same."""
    return max(1, round(milliseconds * 1500))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("result", type=Path)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--prep-ms", type=float, default=1.0)
    parser.add_argument("--gpu-ms", type=float, default=5.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--gate", type=Path, help="as long as this file is not there, an iteration takes .2 s")
    options = parser.parse_args()
    torch.manual_seed(3)
    torch.set_num_threads(1)
    model = torch.nn.Linear(_FEATURES, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    data = Samples(options.samples, rounds_for(options.prep_ms))
    loader = DataLoader(data, options.batch, shuffle=True, num_workers=options.workers)
    for _ in range(options.epochs):
        for batch in loader:
            loss = (model(batch) - batch.mean(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            is_held = options.gate is not None and not options.gate.exists()
            time.sleep(0.2 if is_held else options.gpu_ms / 1000)
    weights = b"".join(value.detach().numpy().tobytes() for value in model.state_dict().values())
    options.result.write_text(hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
