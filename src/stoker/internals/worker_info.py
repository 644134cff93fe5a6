"""torch's answer to `get_worker_info()`: one for the whole process, in a variable of a private module.

Others may answer in its place. The function's code is replaced, not the function: user code may have imported it before.
"""

from collections.abc import Callable
from typing import Any

from torch.utils.data import get_worker_info

from stoker.internals.names import worker_globals

_VARIABLE = "_worker_info"
_torchs_code = get_worker_info.__code__


def of_process() -> Any:
    """What torch would answer in this process."""
    return worker_globals[_VARIABLE]


def set_of_process(info: Any) -> None:
    """Set torch's answer in this process."""
    worker_globals[_VARIABLE] = info


def can_be_answered() -> bool:
    """Whether torch's function does nothing but return its variable, so that it can be replaced."""
    return _torchs_code.co_names == (_VARIABLE,)


def answer_by(answer: Callable[[Any], Any]) -> None:
    """From now on `answer` is asked, with what torch would have answered."""
    worker_globals["_stoker_worker_info"] = answer
    get_worker_info.__code__ = _ask.__code__


def answer_as_torch() -> None:
    """Undo `answer_by`."""
    get_worker_info.__code__ = _torchs_code


def _ask() -> Any:
    # Runs as the code of torch's function, among the names of its module.
    return _stoker_worker_info(_worker_info)  # type: ignore[name-defined] # noqa: F821
