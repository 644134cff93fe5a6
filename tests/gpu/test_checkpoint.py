"""Checkpoints of a run on a GPU: never torn in either mode, and a resumed run goes on exactly, dropout included."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.checkpoint.files import Directory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("mode", ["gpu", "cpu"])
def test_parameters_are_not_torn_by_the_next_update(tmp_path: Path, mode: str) -> None:
    """Each update writes one number everywhere; a snapshot may hold only one. The stream is kept busy meanwhile."""
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(20_000_000, device="cuda")) for _ in range(8)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    statistics = torch.zeros(5_000_000, device="cuda")
    model.register_buffer("statistics", statistics)
    busy = torch.randn(4096, 4096, device="cuda")
    with stoker.Checkpointer(tmp_path, every=2, keep=10, model=model, optimizer=optimizer) as checkpointer:
        for number in range(12):
            for parameter in model:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            checkpointer.step()
            checkpointer._copier.mode = mode
            model.statistics.add_(1.0)  # as a forward would
            for _ in range(number):
                busy = (busy @ busy).tanh()
    names = Directory(tmp_path).names()
    assert len(names) == 6
    for name in names:
        manifest, pieces = Directory(tmp_path).load(name)
        values = [np.unique(np.frombuffer(piece, np.float32)[:: len(piece) // 4 // 50_000 or 1]) for piece in pieces[:17]]
        assert all(len(value) == 1 for value in values), name
        order = [value[0] for value in values]
        assert manifest.step - 1 in order  # the buffer, as it was before the next forward changed it


@pytest.mark.parametrize("mode", ["gpu", "cpu"])
def test_a_run_goes_on_exactly(tmp_path: Path, mode: str) -> None:
    def run(steps: int, place: Path, seed: int) -> tuple[list[float], Any]:
        torch.manual_seed(seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256), torch.nn.Dropout(), torch.nn.Linear(256, 8)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), fused=mode == "gpu")
        losses = []
        with stoker.Checkpointer(place, every=3, model=model, optimizer=optimizer) as checkpointer:
            checkpointer._copier.mode, checkpointer._is_mode_known = mode, True
            done = checkpointer.restore() or 0
            for _ in range(done, steps):
                optimizer.zero_grad()
                loss = model(torch.randn(64, 256, device="cuda")).square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                checkpointer.step()
        return losses, {name: tensor.cpu() for name, tensor in model.state_dict().items()}

    whole, expected = run(20, tmp_path / "whole", 0)
    first, _ = run(11, tmp_path / "cut", 0)
    rest, end = run(20, tmp_path / "cut", 1)
    assert first + rest[2:] == whole
    assert all(torch.equal(end[name], expected[name]) for name in expected)


def test_the_mode_is_chosen_by_measurement(tmp_path: Path) -> None:
    model = torch.nn.Linear(8192, 8192).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with stoker.Checkpointer(tmp_path, every=3, model=model, optimizer=optimizer) as checkpointer:
        for _ in range(3):
            optimizer.step()
            checkpointer.step()
        assert checkpointer.stats().mode == "gpu"  # iterations are far too short to hide a copy to the host
