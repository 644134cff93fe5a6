"""Code blocks of the docs run, page by page, as a reader would paste them, over small data."""

import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.docs.blocks import Block, blocks
from tests.schedule.clusters import job, servers

import stoker

PAGES = (
    "caching",
    "checkpoints",
    "compatibility",
    "first",
    "groups",
    "schedule",
    "seeds",
    "sources",
    "streams",
    "together",
)
SKETCHED = re.compile(r"[(,] *\.\.\.[,)]|=\.\.\.")
"""A shape with `...` in the place of arguments: it compiles, and the tests of its page do the same with real ones."""


def pasted(page: str) -> list[Block]:
    """The blocks of a page that are not named to be run elsewhere."""
    mine = f"docs/{page}.md"
    return [one for one in blocks() if one.page == mine and one.language in ("python", "sh") and not one.run_by]


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(100))


def surroundings(folder: Path) -> dict[str, Any]:
    """What pages take for granted: a dataset, a model, pictures in folders, shards."""
    rng = np.random.default_rng(0)
    for number in range(8):
        picture = Image.fromarray(rng.integers(0, 256, (240, 240, 3), dtype=np.uint8))
        place = folder / "data" / "train" / "ab"[number % 2] / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        picture.save(place)
    (folder / "shards").mkdir()
    shutil.copytree(folder / "data" / "train", folder / "data" / "part-0")
    for shard in range(2):
        with tarfile.open(folder / "shards" / f"{shard}.tar", "w") as tar:
            for number in range(8):
                tar.add(folder / "data" / "train" / "ab"[number % 2] / f"{number}.jpg", f"{shard}{number}.jpg")
    dataset = torch.utils.data.TensorDataset(torch.arange(640.0).reshape(-1, 1), torch.arange(640))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {
        "stoker": stoker, "torch": torch, "np": np, "DataLoader": stoker.DataLoader, "dataset": dataset, "stream": Stream(),
        "model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10), "steps": 20,
        "path": folder / "state.pt", "servers": servers(1), "job": job("a"), "__name__": "pasted",
    }  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = surroundings(tmp_path)
    if page == "compatibility":
        names["Accelerator"] = pytest.importorskip("accelerate").Accelerator
    for block in pasted(page):
        if SKETCHED.search(block.text):
            continue
        capsys.readouterr()
        if block.language == "sh":
            subprocess.run(["sh", "-ec", block.text], check=True)
            continue
        exec(compile(block.text.replace("num_workers=8", "num_workers=2"), str(block), "exec"), names)
        shown = re.search(r"print\(.*\)  # ([0-9., ]+)$", block.text, re.MULTILINE)
        if shown is not None:
            said = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()]
            assert said == [float(one) for one in shown[1].split(",")], block
    for value in names.values():
        if isinstance(value, stoker.DataLoader):
            value.close()


def test_every_block_of_code_is_run_somewhere() -> None:
    """Counted: what is neither pasted here nor marked with the test that runs it is a sketch, and there are few."""
    code = [one for one in blocks() if one.language in ("python", "sh")]
    here = [one for page in PAGES for one in pasted(page)]
    sketches = [one for one in here if SKETCHED.search(one.text)]
    assert [str(one) for one in code if one not in here and not one.run_by] == []
    assert {one.page for one in sketches} == {"docs/groups.md"}
    assert len(sketches) <= 3
