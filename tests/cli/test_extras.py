"""Without the packages that only a part of Stoker needs: one line that says what to install, before anything takes long."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cache.requests import Numbered

import stoker
from stoker.cache.cached import Cache
from stoker.cache.shelf import Shelf

PLANTED = Path(__file__).parents[1] / "scripts" / "planted.py"
WITHOUT = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda _, name, *rest: None if name in {names} else find(name, *rest))
"""


def run(folder: Path, names: list[str], *words: object) -> "subprocess.CompletedProcess[str]":
    """A command where some packages are not installed."""
    place = folder / "without"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(WITHOUT.format(names=set(names)))
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "stoker", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, cwd=folder)


@pytest.mark.parametrize(
    ("missing", "words", "line"),
    [
        ("lmdb", ["cache", "ls"], "a cache needs LMDB and xxhash: pip install 'stoker[cache]'"),
        ("lmdb", ["cache", "clear"], "a cache needs LMDB and xxhash: pip install 'stoker[cache]'"),
        ("lmdb", ["run", "--cache", "1MB", "script.py"], "a cache needs LMDB and xxhash: pip install 'stoker[cache]'"),
        ("lmdb", ["run", "--plan", "plan.toml", "script.py"], "a cache needs LMDB and xxhash: pip install 'stoker[cache]'"),
        ("bokeh", ["analyze", "--html", "page.html", "script.py"], "a page needs Bokeh: pip install 'stoker[report]'"),
        ("torch", ["checkpoint", "export", ".", "x"], "training needs PyTorch: pip install 'stoker[torch]'"),
        (
            "safetensors",
            ["checkpoint", "export", ".", "x.safetensors"],
            "an export as safetensors needs safetensors: pip install 'stoker[export]'",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_one_line_says_what_to_install(missing: str, words: list[str], line: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('it ran')\n")
    (tmp_path / "plan.toml").write_text("version = 1\n[cache]\ncapacity_bytes = 1000000\n")
    done = run(tmp_path, [missing], *words)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"stoker: {line}\n")


@pytest.fixture
def _cache_of_somebody() -> Iterator[None]:
    name = f"of somebody ({os.getpid()})"
    cache = Cache(name, 10_000)
    cache.fetch(Numbered(range(3)))
    cache.close()
    yield
    for found in Shelf().caches():
        if found.name == name:
            Shelf().remove(found)


@pytest.mark.usefixtures("_cache_of_somebody")
def test_an_analysis_of_files_needs_no_cache(tmp_path: Path) -> None:
    """Caches of other jobs are there, too, and nobody has to look into them."""
    (tmp_path / "data").mkdir()
    for number in range(64):
        (tmp_path / "data" / f"{number}.bin").write_bytes(os.urandom(2000))
    done = run(tmp_path, ["lmdb", "bokeh", "safetensors"], "analyze", "--time", 0.2, PLANTED, "data", "--compute", 0.002)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "profile.json").read_text())["rates"]["storage"] > 0


def test_doctor_tells_which_are_there(tmp_path: Path) -> None:
    there = run(tmp_path, [], "doctor").stdout
    assert "lmdb " in there
    assert "bokeh " in there
    without = run(tmp_path, ["lmdb", "torch"], "doctor")
    assert without.returncode == 0, without.stderr
    assert "not installed: LMDB and xxhash" in without.stdout
    assert "pip install 'stoker[cache]'" in without.stdout
    assert "not installed: PyTorch" in without.stdout


def test_a_loader_says_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.extras.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="a cache needs LMDB"):
        stoker.DataLoader(list(range(8)), cache="1MB", cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["DataLoader", "Dataset"])
def test_without_torch_a_name_says_what_to_install(name: str, tmp_path: Path) -> None:
    code = f"import stoker; print('imported'); from stoker import {name}"
    (tmp_path / "sitecustomize.py").write_text(WITHOUT.format(names={"torch"}))
    path = os.pathsep.join([str(tmp_path), str(Path(stoker.__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout == "imported\n"
    assert done.stderr.count("Traceback") == 1
    last = done.stderr.splitlines()[-1]
    assert last == f"ModuleNotFoundError: stoker.{name} needs PyTorch: pip install 'stoker[torch]'"
