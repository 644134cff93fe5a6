"""What `stoker run` says: scripts from elsewhere than a file, and errors without our own frames."""

import subprocess
import sys
from pathlib import Path

import pytest

LOOP = "import sys, torch\nfor batch in torch.utils.data.DataLoader(list(range(8)), batch_size=4): pass\nprint(sys.argv)\n"


def stoker_run(*words: str, given: str = "", before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stoker", *before, "run", *words]
    return subprocess.run(command, input=given, capture_output=True, text=True)


def test_a_script_from_standard_input() -> None:
    done = stoker_run("-", "--lr", "0.1", given=LOOP)
    assert (done.returncode, done.stdout) == (0, "['-', '--lr', '0.1']\n")
    assert "2 batches" in done.stderr


@pytest.mark.parametrize("where", ["tail", "device"])
def test_preparation_that_is_left_to_a_gpu_stays_here_where_there_is_none(where: str) -> None:
    loop = "import torch\ndata = list(torch.arange(8.0))\nprint(sum(map(sum, torch.utils.data.DataLoader(data, 4))))\n"
    done = stoker_run("--prep", where, "-", given=loop)
    assert (done.returncode, done.stdout) == (0, "tensor(28.)\n"), done.stderr


def test_code_on_the_command_line() -> None:
    done = stoker_run("-c", LOOP, "x")
    assert (done.returncode, done.stdout) == (0, "['-c', 'x']\n")
    assert "2 batches" in done.stderr
    done = stoker_run("-c")
    assert (done.returncode, done.stderr) == (1, "stoker: -c needs code\n")


def test_an_error_of_ours_shows_the_frames_of_the_script_alone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    loop = "    next(iter(torch.utils.data.DataLoader(torch.zeros(8))))"
    script.write_text(f"import torch\n\ndef train():\n{loop}\n\ntrain()\n")
    done = stoker_run("--cache", "900TB", str(script))
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    frames = [line.split(", ", 1)[1] for line in lines if line.startswith("  File ")]
    assert frames == ["line 6, in <module>", "line 4, in train"]
    assert lines[-1].startswith("stoker.errors.ConfigError: a cache of 900.0 TB cannot be held")
    whole = stoker_run("--cache", "900TB", str(script), before=("--debug",))
    assert "shelf.py" in whole.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('[loader]\nnum_workers = "4"', "num_workers in [loader] must be a whole number, not '4'"),
        ("[loader]\nworkers = 4", "workers in [loader] must be text in quotes, not 4"),
        ("[ranks]\nshare = 1", "share in [ranks] must be true or false, not 1"),
        ("[loader]\nprefetch = 0", "prefetch must be 1 or more"),
    ],
)
def test_errors_of_a_plan_name_the_file_and_speak_in_words(tmp_path: Path, content: str, said: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(f"version = 1\n{content}\n")
    done = stoker_run("--plan", str(plan), "-c", "")
    assert (done.returncode, done.stderr) == (1, f"stoker: the plan {plan}: {said}\n")
