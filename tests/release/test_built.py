"""Wheel and sdist, as a release has them, tried in clean environments of every Python here that Stoker supports."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TRIED = """
import importlib.util, stoker
assert "site-packages" in stoker.__file__, stoker.__file__
assert stoker.__version__ == "{version}", stoker.__version__
if importlib.util.find_spec("torch") is None:
    try:
        stoker.DataLoader
    except ModuleNotFoundError as error:
        assert "pip install 'stoker[torch]'" in str(error), error
    else:
        raise SystemExit("no hint")
"""


def python(version: str) -> str | None:
    """The program of a Python, on the PATH or where pyenv keeps them."""
    found = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}*/bin/python")]
    for path in filter(None, found):
        code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([path, "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return str(path)
    return None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made of it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def test_the_wheel_carries_the_package_and_nothing_else(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[1]).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"stoker"}
    assert not [name for name in names if "tests/" in name or name.rpartition("/")[2].startswith("test_")]
    assert "stoker/py.typed" in names
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    assert source <= set(names)


def test_the_sdist_has_what_a_build_needs(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src/stoker/__init__.py", "PKG-INFO"} <= names


@pytest.mark.parametrize("program", [one for one in map(python, VERSIONS) if one])
def test_the_wheel_runs_in_a_clean_environment(program: str, built: tuple[Path, Path], tmp_path: Path) -> None:
    place = tmp_path / "venv"
    subprocess.run([program, "-m", "venv", str(place)], check=True)
    own = str(place / "bin" / "python")
    subprocess.run([own, "-m", "pip", "install", "--quiet", str(built[1])], check=True, capture_output=True)
    wheel = built[1].name.split("-")[1]
    environment = {"PATH": str(place / "bin")}
    for words in (
        ["python", "-c", TRIED.format(version=wheel)],
        ["stoker", "--version"],
        ["stoker"],
        ["stoker", "doctor"],
        ["stoker", "whatif", str(ROOT / "docs" / "examples" / "resnet18-h200.json"), "--cores", "32"],
    ):
        words[0] = str(place / "bin" / words[0])
        done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert done.returncode == 0, f"{words}: {done.stderr}"


def test_a_clone_without_tags_and_a_copy_without_git_have_a_version(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src", tmp_path / "src")
    code = "from hatchling.metadata.core import ProjectMetadata; from hatchling.plugin.manager import PluginManager; "
    code += "print(ProjectMetadata('.', PluginManager()).version)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert told.stdout == "0.1.0.dev0\n", told.stderr
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-c", "init.defaultBranch=main"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True, cwd=tmp_path)
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "dev" in told.stdout, told.stderr
    subprocess.run([*git, "tag", "v1.2.3"], check=True, cwd=tmp_path)
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert told.stdout == "1.2.3\n", told.stderr
