"""The package as a whole."""

import subprocess
import sys

import stoker


def test_public_names_are_importable() -> None:
    assert dir(stoker) == sorted(stoker.__all__)
    for name in stoker.__all__:
        assert getattr(stoker, name) is not None


def test_importing_stoker_loads_nothing_heavy() -> None:
    code = (
        "import stoker, sys; print([n for n in ('torch', 'numpy', 'ray', 'scipy', 'multiprocessing') if n in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
