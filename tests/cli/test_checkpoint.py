"""`stoker checkpoint`, as a user runs it."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import stoker


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stoker", "checkpoint", *map(str, arguments)], capture_output=True, text=True
    )


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, torch.nn.Module]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with stoker.Checkpointer(tmp_path / "c", every=1, model=model, optimizer=optimizer) as checkpointer:
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            checkpointer.step()
    return tmp_path / "c", model


def test_ls_and_verify(saved: tuple[Path, torch.nn.Module]) -> None:
    place, _ = saved
    head, *lines = command("ls", place).stdout.splitlines()
    assert head.split() == ["step", "written", "size", "state", "name"]
    today = time.strftime("%Y-%m-%d", time.localtime())
    shape = re.compile(rf" +(\d) +{today} \d\d:\d\d +[\d.]+ K?B +listed +000000000\d-\w+")
    assert [found and found[1] for found in map(shape.fullmatch, lines)] == ["2", "1"]
    rows = json.loads(command("verify", place, "--json").stdout)
    assert [row["state"] for row in rows] == ["whole", "whole"]
    newest = next(place.glob("0000000002-*.data"))
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    done = command("verify", place)
    assert done.returncode == 1
    assert "damaged" in done.stdout.splitlines()[1]
    assert "whole" in done.stdout.splitlines()[2]


def test_export(saved: tuple[Path, torch.nn.Module], tmp_path: Path) -> None:
    place, model = saved
    assert command("export", place, tmp_path / "all.pt").returncode == 0
    loaded = torch.load(tmp_path / "all.pt", weights_only=True)
    assert loaded["step"] == 2
    assert torch.equal(loaded["model"]["weight"], model.weight)
    assert command("export", place, tmp_path / "m.safetensors", "--part", "model", "--step", 2).returncode == 0
    assert torch.equal(load_file(tmp_path / "m.safetensors")["bias"], model.bias)


def test_wrong_use_is_one_line(saved: tuple[Path, torch.nn.Module], tmp_path: Path) -> None:
    place, _ = saved
    (tmp_path / "exists.pt").touch()
    for words, message in [
        (("ls", tmp_path / "none"), "there is no directory"),
        (("ls", tmp_path), "there are no checkpoints"),
        (("export", place, tmp_path / "x.pt", "--part", "other"), "it has model, optimizer"),
        (("export", place, tmp_path / "x.pt", "--step", 9), "no whole checkpoint of step 9"),
        (("export", place, tmp_path / "exists.pt"), "exists already"),
        (("export", place, tmp_path / "none" / "x.pt"), "there is no directory"),
    ]:
        done = command(*words)
        assert done.returncode == 1
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
