"""Two ranks of one job on a GPU, each with preparation there."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

SCRIPT = """
import sys
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from tests.gpu.test_prep import Files

if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Conv2d(3, 2, 3).cuda())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    files = Files("v1")
    sampler = DistributedSampler(files, seed=1)
    loader = DataLoader(files, 4, sampler=sampler, num_workers=2)
    out = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        torch.manual_seed(epoch)
        for pictures, numbers in loader:
            device = pictures.device
            model(pictures.cuda()).mean().backward()
            optimizer.step()
            out.append((str(device), numbers.tolist(), pictures.cpu()))
    torch.save(out, f"{sys.argv[1]}-{dist.get_rank()}.pt")
    dist.destroy_process_group()
"""


def test_each_rank_has_its_samples_decoded_on_its_device(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    found = {}
    for prep in ("host", "device"):
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node=2"]
        words = [sys.executable, "-m", "stoker", "run", "--seed", "3", "--prep", prep, str(script), str(tmp_path / prep)]
        root = str(Path(__file__).parents[2])
        paths = f"PYTHONPATH={root}:{':'.join(sys.path)}"
        done = subprocess.run([*launch, "env", paths, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found[prep] = [torch.load(tmp_path / f"{prep}-{rank}.pt") for rank in range(2)]
    for here, there in zip(found["host"], found["device"], strict=True):
        assert [numbers for _, numbers, _ in there] == [numbers for _, numbers, _ in here]
        assert {device for device, _, _ in here} == {"cpu"}
        assert all(device.startswith("cuda") for device, _, _ in there)
        for (_, _, wanted), (_, _, got) in zip(here, there, strict=True):
            assert float((got - wanted).abs().max()) * 255 * 0.225 < 3
    for epoch in range(2):
        batches = [batch for rank in found["device"] for batch in rank[6 * epoch : 6 * epoch + 6]]
        assert sorted(number for _, numbers, _ in batches for number in numbers) == list(range(48))
