"""Starting another Python beside this one: it finds the same packages, and nothing of the user's start-up runs in it."""

import os
import sys
from pathlib import Path

_QUIET = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def words_and_environment(module: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs a module of this package, and its environment. Raises OSError without an interpreter."""
    if not sys.executable:
        raise OSError("there is no interpreter to start another one with")
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # In their order: a module of the standard library may have a namesake beside this package.
    paths, ours = [os.path.abspath(one) for one in sys.path], str(Path(__file__).parents[2])
    paths = paths if ours in paths else [ours, *paths]
    # Without `site`: what the user's environment does to every Python is not meant for this one.
    words = [sys.executable, "-S", "-P", "-m", module]
    return words, {**own, **_QUIET, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
