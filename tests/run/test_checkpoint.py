"""`stoker run --checkpoint`: scripts as people write them are killed, and go on as if they had not been."""

from pathlib import Path

import pytest
from tests.run.restarted import Script, Starter

HEAD = """
import os, random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.full((8,), index / self.count) + random.random() + torch.randn(8), index % 3

def network():
    torch.manual_seed(0)
    random.seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 3))

def train(model, optimizer, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
"""

BEST = (
    HEAD
    + """
def validate(model, loader):
    model.eval()
    with torch.no_grad():
        loss = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in loader)
    model.train()
    return loss

def main(workers, epochs):
    model = network()
    loader = DataLoader(Noisy(60), 5, shuffle=True, num_workers=workers)
    valid = DataLoader(Noisy(20), 5, num_workers=workers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    best = float("inf")
    for epoch in range(epochs):
        for batch, (x, y) in enumerate(loader):
            print(f"epoch {epoch} batch {batch} loss {train(model, optimizer, x, y).hex()}", flush=True)
        schedule.step()
        loss = validate(model, valid)
        print(f"epoch {epoch} validation {loss.hex()}", flush=True)
        if loss < best:
            best = loss
            torch.save({"loss": loss, "model": model.state_dict()}, "best.pt")

main(int(sys.argv[1]), int(sys.argv[2]))
"""
)

MOMENTS = ("epoch 0 batch 7", "epoch 2 batch 5", "epoch 3 validation")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loop_begins_with_the_epoch_it_was_in(workers: int, starter: Starter, tmp_path: Path) -> None:
    script = Script(starter, tmp_path, BEST, workers, 5)
    ended = script.check_restarts(*MOMENTS)
    assert not any(line.startswith("epoch 0") for line in ended.lines)  # nothing is passed
    assert "restored step 45, in epoch 4: 1 module, 1 optimizer, 1 scheduler, the training loader" in ended.ours[0]
