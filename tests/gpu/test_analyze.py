"""`stoker analyze` on a GPU: batches of any class are given to the loop on the device, fresh each time."""

import subprocess
import sys
from pathlib import Path

import pytest

from stoker.profile import Profile

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys, time
from collections import UserDict
from dataclasses import dataclass
import torch
from torch.utils.data import DataLoader, Dataset

KIND = sys.argv[1]


class Numbers(Dataset):
    def __len__(self): return 640

    def __getitem__(self, index):
        time.sleep(0.004)
        return torch.full((3, 64, 64), float(index)), index % 2


@dataclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor

    def to(self, device):
        return Pair(self.x.to(device), self.y.to(device))


class Encoding(UserDict):
    def to(self, device):
        return Encoding({name: value.to(device) for name, value in self.data.items()})


class Graph:
    def __init__(self, x, y): self.x, self.y, self.stores = x, y, [{"x": x}]

    def to(self, device):
        return Graph(self.x.to(device), self.y.to(device))


def collate(samples):
    x, y = torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])
    kinds = {"tuple": (x, y), "user dict": Encoding(x=x, y=y), "dataclass": Pair(x, y), "object": Graph(x, y)}
    return kinds[KIND]


model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 2)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 1e-9)
loader = DataLoader(Numbers(), 16, shuffle=True, num_workers=2, collate_fn=collate)
log = open(sys.argv[2], "a")
while True:
    for batch in loader:
        if KIND == "tuple":
            x, y = batch
            was_there = x.is_cuda
            x, y = x.cuda(), y.cuda()
        elif KIND == "user dict":
            was_there = batch["x"].is_cuda
            batch = batch.to("cuda")
            x, y = batch.pop("x"), batch.pop("y")
        else:
            was_there = batch.x.is_cuda
            batch = batch.to("cuda")
            x, y = batch.x, batch.y
        assert torch.equal(x[:, 0, 0, 0].long() % 2, y), "a batch was changed before"
        x.sub_(1e6)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.005)
        print("there" if was_there else "not there", file=log, flush=True)
"""


@pytest.mark.parametrize("kind", ["tuple", "user dict", "dataclass", "object"])
def test_the_loop_alone_has_its_batches_on_the_device(kind: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ["--json", "profile.json", "--time", "1", "script.py", kind, "log"]
    done = subprocess.run([sys.executable, "-m", "stoker", "analyze", *words], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    profile = Profile.load(tmp_path / "profile.json")
    assert profile.host.device != "cpu"
    assert not any("cannot be put on the device" in note for note in profile.notes)
    seen = (tmp_path / "log").read_text().splitlines()
    assert seen.count("there") > 20
    assert seen.count("not there") > 20
    assert profile.limit == "prep"
    assert 0.5 < profile.rates.gpu / (16 / 0.005) < 1.1


PICTURES = """
import torch
from torch.utils.data import DataLoader
from tests.gpu.test_prep import Files


class More(Files):
    def __len__(self): return 4096

    def __getitem__(self, index): return super().__getitem__(index % 48)


if __name__ == "__main__":
    model = torch.nn.Conv2d(3, 2, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    loader = DataLoader(More("v1"), 64, shuffle=True, num_workers=2, collate_fn=COLLATE)
    while True:
        for pictures, _ in loader:
            pictures = pictures.cuda()
            assert -3 < float(pictures.mean()) < 3
            model(pictures).mean().backward()
            optimizer.step()
"""


def analysed(tmp_path: Path, collate: str) -> Profile:
    root = Path(__file__).parents[2]
    (tmp_path / "script.py").write_text(
        f"import sys; sys.path.append({str(root)!r})\n" + PICTURES.replace("COLLATE", collate)
    )
    words = [sys.executable, "-m", "stoker", "analyze", "--json", "profile.json", "--time", "1", "script.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return Profile.load(tmp_path / "profile.json")


def test_what_the_device_may_do_is_measured_and_advised(tmp_path: Path) -> None:
    profile = analysed(tmp_path, "None")
    tail, device = profile.on_device
    assert (tail.where, device.where) == ("tail", "device")
    assert device.prep > 2 * profile.rates.prep
    assert device.cached > 2 * profile.speed.cached
    assert device.loop < 1.1 * profile.rates.gpu
    assert any(one.apply == "--prep device" for one in profile.advice)


def test_what_the_device_cannot_do_is_not_advised(tmp_path: Path) -> None:
    profile = analysed(tmp_path, "lambda samples: torch.utils.data.default_collate(samples)")
    assert profile.on_device == ()
    assert any("--prep was not measured: only what torch's default_collate" in note for note in profile.notes)
    assert not any("--prep" in one.apply for one in profile.advice)
