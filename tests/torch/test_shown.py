"""Notebooks and debuggers: what is shown of a loader and a profile; code without a file or a main guard; breakpoints."""

import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import stoker

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "notebooks.md"
PROFILE = ROOT / "docs" / "examples" / "resnet18-h200.json"


def words_of(shown: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", shown))


def test_a_loader_shows_what_it_is_and_what_it_did() -> None:
    with stoker.DataLoader(TensorDataset(torch.arange(1000)), batch_size=10, num_workers=2, seed=3) as loader:
        before = words_of(loader._repr_html_())
        for _ in loader:
            pass
        after = words_of(loader._repr_html_())
    assert "TensorDataset, 1,000 samples" in before
    assert "100, of 10 samples each" in before  # "100 of 10" would read as how far it is
    assert "2 processes" in before
    assert "so far" not in before
    assert "100 batches, 1,000 samples" in after


def test_a_stream_and_a_loader_without_workers_are_shown() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(range(3))

    shown = words_of(stoker.DataLoader(Stream(), batch_size=None)._repr_html_())
    assert "of unknown number" in shown
    assert "the loop prepares its batches itself" in shown


def test_a_profile_shows_its_bar_and_no_markup_of_a_script() -> None:
    document = json.loads(PROFILE.read_text()) | {"script": "<img src=x> train.py", "stalls": {"prep": 0.25, "fetch": 0.5}}
    shown = stoker.Profile.of_document(document)._repr_html_()
    assert "<img" not in shown
    for part in ("computing 25 %", "waiting for preparing 25 %", "waiting for reading 50 %", "<img src=x> train.py"):
        assert part in words_of(shown)


def test_the_code_of_the_guide_runs_without_a_file_or_a_main_guard(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text(PROFILE.read_text())
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    cells = [re.sub(r"^(.*)\Z", r"print(\1._repr_html_())", block.strip(), flags=re.MULTILINE) for block in blocks]
    script = "\n".join(["import stoker, torch", "class Numbers(torch.utils.data.Dataset):", " def __len__(self): return 64",
                        " def __getitem__(self, index): return index", "dataset = Numbers()", *cells])  # fmt: skip
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 batches, 64 samples" in words_of(done.stdout)
    assert "Where the time goes" in done.stdout


class Stops(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        breakpoint()
        return index


@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"group": "debugged"}], ids=str)
def test_breakpoint_in_a_worker_process_says_where_it_would_stop(
    options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    with stoker.DataLoader(Stops(), num_workers=1, **options) as loader:  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match='num_workers=0, or workers="threads"'):
            next(iter(loader))


def test_breakpoint_in_a_thread_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: stopped.append(1))
    with stoker.DataLoader(Stops(), num_workers=1, workers="threads") as loader:
        assert len(list(loader)) == 4
    assert len(stopped) >= 4  # the loader tries a sample first


def test_a_debugger_that_was_chosen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "builtins.id")
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    with stoker.DataLoader(Stops(), num_workers=1) as loader:
        with pytest.raises(TypeError, match="id"):  # it was called
            next(iter(loader))
