"""README's first example as it stands there, with a dataset and a training step for it, on the CPU."""

import re
import sys
from pathlib import Path

import torch

README = (Path(__file__).parents[2] / "README.md").read_text()
CODE = re.search(r"```python\n(.*?)```", README, re.DOTALL)[1].replace('"cuda"', '"cpu"')  # type: ignore[index]
seen: list[int] = []


class Pictures:
    def __len__(self) -> int:
        return 600

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 32, 32), float(index)), index


def train(images: torch.Tensor, labels: torch.Tensor) -> None:
    assert (images[:, 0, 0, 0] == labels).all()
    seen.extend(labels.tolist())


if __name__ == "__main__":
    code = CODE.replace("num_workers=8", f"num_workers={sys.argv[1]}") if len(sys.argv) > 1 else CODE
    exec(code, {"dataset": Pictures(), "train": train, "__name__": "__main__"})
    assert sorted(seen) == sorted(list(range(600)) * 10)
