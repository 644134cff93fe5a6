"""The jobs that are to run together: a command line in one word, or a file that names it.

    command = "train.py --lr 0.1 --epochs 3"      # as after `stoker run`; or a list of words
    epochs = 3                                    # if the command line does not say it as --epochs N does
    name = "small"                                # for what is told of it

An unknown key is an error. The number of epochs cannot be seen from outside a script, so it has to be said.
"""

import hashlib
import os
import platform
import re
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import ConfigError
from stoker.run.script import command

_EPOCHS = re.compile(r"--(?:num[-_]|max[-_]|n[-_])?(?:train[-_])?epochs?")
_KEYS = ("command", "epochs", "name")


@dataclass(frozen=True, slots=True)
class TogetherJob:
    """A command that trains."""

    name: str
    words: tuple[str, ...]
    epochs: int
    says_epochs: bool = True
    """Whether somebody said how many epochs there are; otherwise it is taken to be one."""
    folder: str = ""
    """Where it runs; empty is here."""

    @property
    def key(self) -> str:
        """What values that were measured are kept under: what is done in an iteration, where, and on which host.

        The script's text is part of it: another script of the same name has to be measured anew.
        """
        words = list(self.words)
        for number in reversed(range(len(words))):
            if _EPOCHS.fullmatch(words[number]):
                del words[number : number + 2]
            elif _EPOCHS.fullmatch(words[number].partition("=")[0]):
                del words[number]
        folder = self.folder or os.getcwd()
        return f"{platform.node()} {folder} {shlex.join(words)} {_contents(Path(folder, *self.words[:1]))}"


def read_jobs(texts: Sequence[str], epochs: str | None = None, *, first: int = 0) -> list[TogetherJob]:
    """The jobs of a command line, called A, B, ... from the first on. Refuses what cannot be started.

    `epochs` may say how many each has, as "3,5".
    """
    jobs = [_read(text, letter(number)) for number, text in enumerate(texts, first)]
    if epochs is not None:
        counts = [part.strip() for part in epochs.split(",")]
        if len(counts) != len(jobs) or not all(part.isdecimal() and int(part) for part in counts):
            raise ConfigError(f"--epochs has a number for each job, as in 3,5, not {epochs!r}")
        jobs = [TogetherJob(job.name, job.words, int(count)) for job, count in zip(jobs, counts, strict=True)]
    for job in jobs:
        command(job.words)  # raises what is wrong with it
    return jobs


def letter(number: int) -> str:
    """How a job is called: A, B, C, ..."""
    return chr(ord("A") + number) if number < 26 else f"job {number + 1}"


def epochs_of(words: Sequence[str]) -> int | None:
    """The number of epochs that a command line names, if it does."""
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        if _EPOCHS.fullmatch(name):
            value = value or (words[number + 1] if number + 1 < len(words) else "")
            if value.isdecimal() and int(value):
                return int(value)
    return None


def _contents(script: Path) -> str:
    """A name for what a script says; "-" for a module, whose place only its own start knows."""
    try:
        return hashlib.blake2b(script.read_bytes(), digest_size=8).hexdigest()
    except OSError:
        return "-"


def _read(text: str, name: str) -> TogetherJob:
    if text.endswith(".toml"):
        return _of_file(Path(text), name)
    return _job(_words(text), None, name, text)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is not a command line: {error}") from error


def _of_file(path: Path, name: str) -> TogetherJob:
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"the job {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the job {path} is not TOML: {error}") from error
    for key in document:
        if key not in _KEYS:
            raise ConfigError(f"the job {path} has an unknown key {key!r}: there are {', '.join(_KEYS)}")
    words, epochs, called = document.get("command"), document.get("epochs"), document.get("name", name)
    if isinstance(words, str):
        words = _words(words)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f"the job {path} needs a command: text, or a list of words")
    if epochs is not None and (type(epochs) is not int or epochs < 1):
        raise ConfigError(f"the job {path}: epochs is a whole number above 0, not {epochs!r}")
    if not isinstance(called, str) or not called.strip() or not called.isprintable():
        raise ConfigError(f"the job {path}: name is text in one line, not {called!r}")
    return _job(words, epochs, called, str(path))


def _job(words: list[str], epochs: int | None, name: str, where: str) -> TogetherJob:
    if words[:1] == ["stoker"] or words[:1] == ["python"]:
        raise ConfigError(f"{where!r}: say only what comes after `stoker run`, as in 'train.py --epochs 3'")
    if not words:
        raise ConfigError(f"{where!r} names no script: say what comes after `stoker run`, as in 'train.py --epochs 3'")
    if words[0] == "-":
        raise ConfigError(f"{where!r}: several jobs cannot all be read from standard input; put the script into a file")
    said = epochs or epochs_of(words)
    return TogetherJob(name, tuple(words), said or 1, said is not None)
