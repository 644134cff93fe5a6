"""Run the tests that depend on torch's insides on the newest torch that pip would install.

    python scripts/newest_torch.py [OPTIONS OF PYTEST] [TESTS]        (with .venv/bin on the PATH)

It is laid out in a folder that goes before .venv on the PYTHONPATH, and kept for the next time in the user's cache, at
${XDG_CACHE_HOME:-~/.cache}/stoker. What pip gives is built for CUDA, and cannot be imported without two more gigabytes of
NVIDIA's libraries. Here nothing computes on a GPU: the CUDA runtime is installed, because torch asks it whether there is
one; in the place of each other library that is missing there is one of its name, whose functions end the process.
Where that does not work, everything is installed.

Without a network this is one line, and no error; if CI is set in the environment, it is one.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import NoReturn

FILES = ["torch/test_loader", "torch/test_threads", "torch/test_seeded", "tensor/test_rows", "torch/test_differential"]
SPARED = ["start_up", "torchrun", "lightning", "accelerate", "audio", "cache_for", "killed", "interrupted_anywhere"]
SPARED += ["exit_code", "failing_script", "in_a_package", "sitecustomize", "torchdata", "wrong_use"]
TESTS = [
    "tests/internals",
    *(f"tests/{name}.py" for name in FILES),
    *("tests/run/test_run.py", "tests/run/test_analyze.py"),
    # What needs many seconds, and is about this machine or about other packages, is left to the torch of .venv.
    *("-k", f"not ({' or '.join(SPARED)}) and (not test_analyze or preparing)"),
]
_CHECK = "import torch; torch.cuda.is_available(); torch.ones(2, 2) @ torch.ones(2, 2)"


class UnavailableError(Exception):
    """It cannot be had here."""


def main(arguments: list[str]) -> NoReturn:
    """Lay it out, and run the tests there."""
    try:
        newest = find_newest()
        if newest.partition("+")[0] == metadata.version("torch").partition("+")[0]:
            print(f"torch {newest} is the newest, and the one of .venv")
            sys.exit(0)
        folder = lay_out(newest)
    except (UnavailableError, OSError) as error:
        print(f"The newest torch is not tested: {error}", file=sys.stderr)
        sys.exit("CI" in os.environ)
    os.chdir(Path(__file__).parents[1])
    os.environ |= on_path(folder)
    if not any(Path(argument.partition("::")[0]).exists() for argument in arguments):
        arguments = [*TESTS, *arguments]
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])


def on_path(folder: Path) -> dict[str, str]:
    """The environment in which a folder's torch comes first."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))}


def find_newest() -> str:
    """The version that pip would install today."""
    impatient = ["--retries", "1", "--timeout", "20"]
    words = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-", *impatient, "torch"]
    report = json.loads(pip(*words))
    return str(report["install"][0]["metadata"]["version"])


def pip(*words: str) -> str:
    """What `pip install` prints."""
    done = subprocess.run([sys.executable, "-m", "pip", "install", *words], capture_output=True, text=True)
    if done.returncode:
        raise UnavailableError(f"pip cannot get it ({' '.join(done.stderr.split('ERROR: ')[-1].split())})")
    return done.stdout


def lay_out(version: str) -> Path:
    """The folder of this version; made, if this is the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker"
    tag = f"{sys.implementation.cache_tag}-{platform.machine()}"
    folder = cache / f"torch-{version}-{tag}"
    if folder.exists() and works(folder):
        return folder
    if shutil.which("gcc") is None:
        raise UnavailableError("there is no gcc")
    cache.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    print(f"torch {version} is laid out in {folder}, once", flush=True)
    made = Path(tempfile.mkdtemp(prefix="partial-", dir=cache))
    try:
        pip("--target", str(made), "--no-deps", f"torch=={version}")
        spare_cuda(made)
        if not works(made):
            print("It needs more than was thought: everything is installed", flush=True)
            shutil.rmtree(made)
            pip("--target", str(made), f"torch=={version}")
        if not works(made):
            raise UnavailableError(f"torch {version} cannot be imported")
        for old in cache.glob(f"torch-*-{tag}"):
            shutil.rmtree(old)
        made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"That took {time.monotonic() - began:.0f} s and {size / 1e9:.1f} GB", flush=True)
    return folder


def works(folder: Path) -> bool:
    """Whether torch computes there."""
    return not subprocess.run([sys.executable, "-c", _CHECK], env=on_path(folder), stderr=subprocess.DEVNULL).returncode


def spare_cuda(folder: Path) -> None:
    """Install the CUDA runtime, and let one library of ours stand under the names of all others that are missing."""
    (about,) = folder.glob("torch-*.dist-info/METADATA")
    runtime = re.search(r"(cuda-toolkit|nvidia-cuda-runtime\S*?)(?:\[.*\])?(==[\d.]+)", about.read_text())
    if runtime is None:
        return  # it is built without
    name, version = runtime.groups()
    pip("--target", str(folder), f"{name}[cudart]{version}" if name == "cuda-toolkit" else f"{name}{version}")
    libraries = folder / "torch" / "lib"
    needs = told("ldd", "-r", str(libraries / "libtorch_python.so"))
    functions: dict[str, list[str]] = {}
    for function, version in re.findall(r"undefined symbol: (\w+)(?:, version (\S+))?", needs):
        if not re.match("_?Py", function):
            functions.setdefault(version, []).append(function)
    code = "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for names in functions.values() for name in names)
    (libraries / "empty.c").write_text(code)
    (libraries / "empty.map").write_text(
        "".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in functions.items() if version)
    )
    words = ["-shared", "-nostdlib", "-fno-builtin", "-Wl,--version-script,empty.map", "empty.c", "-o", "empty.so"]
    subprocess.run(["gcc", *words], cwd=libraries, check=True)
    for missing in set(re.findall(r"(\S+) => not found", needs)):
        (libraries / missing).symlink_to("empty.so")


def told(*words: str) -> str:
    """What a command prints."""
    return subprocess.run(words, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(sys.argv[1:])
