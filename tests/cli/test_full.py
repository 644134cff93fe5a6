"""Every command where /dev/shm, the folder that it works in and the one for temporary files are full."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tries import HANG_S

import stoker

PROFILE = Path(__file__).parents[2] / "docs" / "examples" / "resnet18-h200.json"
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for (x,) in DataLoader(TensorDataset(torch.ones(16, 1)), 2, num_workers=2):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
print("trained")
"""
MOUNTED = """
mount -t tmpfs -o size=1m tmpfs /dev/shm && mount -t tmpfs -o size=1m tmpfs "$1" || exit 99
cp -r "$0"/* "$1"; cd "$1"; mkdir temporary; export TMPDIR="$1/temporary"; shift
cat /dev/zero > /dev/shm/full 2> /dev/null; cat /dev/zero > full 2> /dev/null
"$@"; code=$?
ls >&2
exit $code
"""
NO_SPACE = "No space left on device"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    shutil.copy(PROFILE, folder / "profile.json")
    (folder / "train.py").write_text(SCRIPT)
    with stoker.Checkpointer(folder / "saved", every=1, box=Box()) as checkpointer:
        checkpointer.step()
    return folder


class Box:
    """Something with a state."""

    def state_dict(self) -> dict[str, int]:
        return {"number": 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == self.state_dict()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare, to mount and fill")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("top --once", ""),
        ("metrics", ""),
        ("cache ls", ""),
        ("cache clear --force", ""),
        ("checkpoint ls saved", ""),
        ("checkpoint verify saved", ""),
        ("checkpoint export saved out.pt", NO_SPACE),
        ("checkpoint export saved out.safetensors", NO_SPACE),
        ("report profile.json", NO_SPACE),
        ("plan profile.json", ""),
        ("run train.py", ""),
        ("run --checkpoint new train.py", NO_SPACE),
    ],
)
def test_it_works_or_one_line_says_that_there_is_no_room(words: str, said: str, template: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "stoker", *words.split()]
    outer = ["unshare", "--mount", "sh", "-c", MOUNTED, str(template), str(tmp_path), *command]
    done = subprocess.run(outer, capture_output=True, text=True, timeout=HANG_S)
    if done.returncode == 99:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    said_lines = done.stderr.splitlines()
    errors = [line for line in said_lines if line.startswith("stoker: ") and "waiting for data" not in line]
    assert "Traceback" not in done.stderr
    if said:
        assert done.returncode == 1
        assert len(errors) == 1
        assert said in errors[0]
    else:
        assert (done.returncode, errors) == (0, []), done.stderr
    assert not [line for line in said_lines if line.startswith(("out.", "report"))], "half a file is left"
    assert words != "run train.py" or "trained" in done.stdout
