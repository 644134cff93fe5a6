"""Before a script is started under `--checkpoint`: files of the user's are put back, and it is decided how it begins."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from stoker.errors import CommandError, ConfigError
from stoker.run.restart.journal import recover
from stoker.run.restart.record import is_finished, newest
from stoker.run.restart.words import AGAIN


def begin(directory: Path, words: Sequence[str], restart_args: str | None) -> list[str] | None:
    """The command line to start; None if the run is finished, and there is nothing to start."""
    if os.environ.get("STOKER_DISABLE", "0") not in ("", "0"):
        raise ConfigError("--checkpoint needs our loader, which STOKER_DISABLE turns off: unset it")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        files, failed = recover(directory)
    except OSError as error:
        raise CommandError(f"--checkpoint {directory} is no place for checkpoints: {error.strerror}") from error
    if failed:
        raise CommandError("; ".join([*failed, AGAIN]))
    if not os.access(directory, os.W_OK):
        raise CommandError(f"--checkpoint {directory} is no place for checkpoints: this user may not write there")
    told = [f"{files} files that an interrupted restart had changed were put back"] if files else []
    if is_finished(directory, list(words)):
        told.append(
            f"this run is finished, and its last checkpoint is in {directory}: start it with more to do, or elsewhere"
        )
        _say(told)
        return None
    _say(told)
    return [*words, *_more(directory, restart_args)]


def _more(directory: Path, restart_args: str | None) -> list[str]:
    """The arguments that a restarted script gets in addition."""
    if restart_args is None:
        return []
    try:
        found = newest(directory)
        number = 0 if found is None else found.position.epoch
        words = [
            word.format(epoch=number, step=0 if found is None else found.position.updates)
            for word in shlex.split(restart_args)
        ]
    except (ValueError, KeyError, IndexError) as error:
        raise ConfigError(
            f"--restart-args knows {{epoch}} and {{step}}, and cannot make sense of {restart_args!r}"
        ) from error
    return [] if found is None else words


def _say(words: Sequence[str]) -> None:
    for word in words:
        print(f"stoker: {word}", file=sys.stderr, flush=True)
