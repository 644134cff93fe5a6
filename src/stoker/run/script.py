"""A script as python would run it, with a start-up hook in it and in every process that it starts.

This process becomes that python (`exec`): its arguments, `sys.path`, exit code, tracebacks and signals are python's own.
The hook comes by a folder at the head of PYTHONPATH that holds a `sitecustomize`; see `startup/sitecustomize.py`.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from stoker.errors import CommandError
from stoker.run.inject import SETTINGS

BEFORE_CODE = ("-m", "-c", "-")
"""Words that python takes in the place of a script: a module, code, and a script from standard input."""
STARTUP = Path(__file__).parent / "startup"


def command(words: Sequence[str]) -> list[str]:
    """What to execute for `SCRIPT`, `-m MODULE`, `-c CODE`, `-` (standard input), or a program such as torchrun."""
    if not words:
        raise CommandError("no script was given: the command ends with SCRIPT [ARGS...]")
    python = [sys.executable, *_interpreter_flags()]
    first = words[0]
    if first in BEFORE_CODE:
        if first != "-" and len(words) < 2:
            raise CommandError(f"{first} needs {'the name of a module' if first == '-m' else 'code'}")
        return [*python, *words]
    if Path(first).exists():
        return [*python, *words]
    program = shutil.which(first)
    if program is None:
        raise CommandError(f"there is no file {first!r}, and no program of that name")
    return [program, *words[1:]]


def _interpreter_flags() -> list[str]:
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def environment(settings: Mapping[str, Any], before: Mapping[str, str]) -> dict[str, str]:
    """The environment of the script and of all processes that it starts."""
    after = dict(before)
    parts = [part for part in before.get("PYTHONPATH", "").split(os.pathsep) if part and part != str(STARTUP)]
    after["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *parts])
    after[SETTINGS] = json.dumps(settings)
    if settings.get("analyze"):
        after["STOKER_READERS"] = "0"  # what a worker takes to read is measured in the worker
    return after


def execute(words: Sequence[str], settings: Mapping[str, Any]) -> NoReturn:
    """Become the script."""
    program = command(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(program[0], program, environment(settings, os.environ))
