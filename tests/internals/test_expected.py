"""A torch that is not as expected: loaders are torch's own, and what only ours can do is refused. These tests change it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.internals import expected, names

FAKES = {
    "a name is gone": ("import torch._utils as owner; del owner.ExceptionWrapper", "ExceptionWrapper"),
    "a worker is told more": (
        """
        import torch.utils.data._utils.worker as owner
        before = owner._worker_loop
        def _worker_loop(dataset_kind, dataset, index_queue, data_queue, done_event, auto_collation, collate_fn, drop_last,
                         base_seed, init_fn, worker_id, num_workers, persistent_workers, shared_seed, priority=0):
            before(dataset_kind, dataset, index_queue, data_queue, done_event, auto_collation, collate_fn, drop_last,
                   base_seed, init_fn, worker_id, num_workers, persistent_workers, shared_seed)
        owner._worker_loop = _worker_loop
        """,
        "_worker_loop takes (dataset_kind, dataset, ",
    ),
    "a parameter is named otherwise": (
        """
        from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as owner
        def _process_data(self, data, worker_id):
            return before(self, data, worker_id)
        before, owner._process_data = owner._process_data, _process_data
        """,
        "_process_data takes (self, data, worker_id)",
    ),
    "an attribute is named otherwise": (
        """
        from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as owner
        def _try_put_index(self):
            return before(self)
        before, owner._try_put_index = owner._try_put_index, _try_put_index
        """,
        "_try_put_index does not use _next_index",
    ),
    "worker info is kept elsewhere": (
        """
        import torch.utils.data._utils.worker as owner
        def get_worker_info():
            return globals()["_worker_info"]
        owner.get_worker_info.__code__ = get_worker_info.__code__
        """,
        "get_worker_info",
    ),
}

ASK = """
import json, os, sys, warnings
import torch.utils.data
import stoker
from stoker.errors import StokerError

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return torch.tensor(index * index)

def refusal(act):
    try:
        act()
    except StokerError as error:
        return str(error)

said = {}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for name, options in {"seed": {"seed": 1}, "group": {"group": "g"}, "cache": {"cache": "1MB"},
                          "threads": {"workers": "threads", "num_workers": 1}}.items():
        said[name] = refusal(lambda: stoker.DataLoader(Squares(), **options))
    plan = stoker.Plan(workers="threads", num_workers=2, group="g", cache_bytes=1 << 20)
    loaders = [stoker.DataLoader(Squares(), batch_size=4), stoker.DataLoader(Squares(), batch_size=4, plan=plan)]
    found = [[batch.tolist() for batch in loader] for loader in loaders]
    state = loaders[0].state_dict()
    loaders[0].load_state_dict(state)
    said["the middle"] = refusal(lambda: loaders[0].load_state_dict({**state, "_num_yielded": 1}))
    kinds = [type(iter(loader)).__name__ for loader in loaders]
    os.environ["STOKER_DISABLE"] = "1"
    stoker.DataLoader(Squares(), seed=1)
json.dump({"said": said, "found": found, "kinds": kinds, "warnings": [str(one.message) for one in caught]}, sys.stdout)
"""


def changing(fake: str) -> str:
    lines = fake.strip("\n").splitlines()
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)


@pytest.mark.parametrize("fake", FAKES)
def test_loaders_are_torchs_own_and_what_only_ours_can_do_is_refused(fake: str) -> None:
    change, differs = FAKES[fake]
    if "dataset_holder" in names.worker_loop.__code__.co_varnames:
        change, differs = (text.replace("dataset, ", "dataset_holder, ") for text in (change, differs))
    done = subprocess.run([sys.executable, "-c", changing(change) + ASK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["found"] == [[[0, 1, 4, 9], [16, 25, 36, 49], [64, 81]]] * 2
    assert told["kinds"] == ["_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"]
    (warning,) = told["warnings"]
    for words in (torch.__version__, differs, "2.11 to 2.15"):
        assert words in warning
    asked = {"seed": "seed=", "group": "group=", "cache": "cache=", "threads": "workers='threads'"}
    for name, words in {**asked, "the middle": "going on from the middle of an epoch"}.items():
        assert told["said"][name].startswith(f"{words} does not work here: torch {torch.__version__} ")
        assert differs in told["said"][name]
        assert "Install torch 2.11 to 2.15, or a newer Stoker" in told["said"][name]


@pytest.fixture
def changed(tmp_path: Path) -> dict[str, str]:
    """The environment of a python whose torch differs."""
    (tmp_path / "sitecustomize.py").write_text(
        "from stoker.run.inject import after_import\n"
        "after_import('torch.utils.data._utils.worker', lambda m: delattr(m, '_generate_state'))\n"
    )
    before = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), before]))}


SCRIPT = """
import subprocess, sys
import torch
from torch.utils.data import DataLoader, TensorDataset
if "again" not in sys.argv:
    subprocess.run([sys.executable, __file__, "again"], check=True)
loader = DataLoader(TensorDataset(torch.arange(10)), batch_size=5)
print(type(loader).__module__, sum(len(batch) for batch, in loader))
"""


def stoker(environment: dict[str, str], *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "stoker", *words], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("options", [[], ["--workers", "threads", "--group", "g"]])
def test_run_is_plain_python_with_one_line(changed: dict[str, str], tmp_path: Path, options: list[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = stoker(changed, "run", *options, str(script))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "torch.utils.data.dataloader 10\n" * 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"stoker: torch {torch.__version__} loads data in another way")
    assert "_generate_state" in line
    assert ("without a plan or options of ours" in line) == bool(options)


def test_run_with_checkpoints_is_refused(changed: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = stoker(changed, "run", "--checkpoint", str(tmp_path / "saved"), str(script))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("stoker: --checkpoint needs our loader, and torch")


def test_analyze_refuses_with_one_line(changed: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = stoker(changed, "analyze", "--json", str(tmp_path / "profile.json"), str(script))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].startswith("stoker: nothing was measured: torch")
    assert not (tmp_path / "profile.json").exists()


def test_doctor_says_so(changed: dict[str, str]) -> None:
    findings = json.loads(stoker(changed, "doctor", "--json").stdout)
    (found,) = [finding for finding in findings if finding["topic"] == "torch's loading"]
    assert found["fact"].startswith("not as expected: ")
    assert "2.11 to 2.15" in found["advice"]


def test_checkpoints_can_still_be_saved(changed: dict[str, str], tmp_path: Path) -> None:
    script = (
        "import sys, torch, stoker\n"
        "model = torch.nn.Linear(2, 2)\n"
        "checkpointer = stoker.Checkpointer(sys.argv[1], every=1, model=model)\n"
        "checkpointer.step()\n"
        "checkpointer.close()\n"
    )
    words = [sys.executable, "-c", script, str(tmp_path / "saved")]
    done = subprocess.run(words, capture_output=True, text=True, env=changed)
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / "saved").iterdir())


def others(count: int) -> Callable[..., None]:
    """A function with other parameters than any."""
    made: dict[str, Any] = {}
    exec(f"def changed({', '.join(f'p{number}' for number in range(count))}): pass", made)
    return made["changed"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("fact", expected.FACTS, ids=lambda fact: fact.name)
def test_every_expected_function_is_looked_at(fact: expected.Fact, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(expected.differences())
    owner, _, name = fact.name.rpartition(".")
    holder = getattr(names, owner) if owner else names
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, others(40))
        assert any("takes (p0, p1, " in words for words in expected.differences())
    with monkeypatch.context() as patch:
        patch.setattr(holder, name, lambda *arguments, **named: None)  # a library around torch's
        assert not list(expected.differences())


def test_a_method_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(names.WorkersIterator, "_try_put_index")
    assert list(expected.differences()) == ["_MultiProcessingDataLoaderIter has no _try_put_index"]
