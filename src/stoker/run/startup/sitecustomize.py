"""Runs at the start of every python under `stoker run`, in the place of a `sitecustomize` of the user, which comes next."""

import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))


def _chain() -> None:
    """Run the sitecustomize that python would have found without us."""
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _here]
    ours = sys.modules.pop("sitecustomize")
    spec = importlib.util.find_spec("sitecustomize")
    sys.modules["sitecustomize"] = ours  # python looks for what it has imported under this name
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _inject() -> None:
    home = os.path.dirname(os.path.dirname(os.path.dirname(_here)))
    added = importlib.util.find_spec("stoker") is None
    if added:
        sys.path.append(home)
    from stoker.run import inject

    inject.install()


try:
    _inject()
finally:
    _chain()
