"""From what a user writes to a source: a folder, a glob, shards, a list.

Nothing is guessed: what could be meant in two ways is an error that says what to write instead.
"""

import glob
import itertools
import os
import re
from collections.abc import Sequence
from typing import cast

from stoker.errors import ConfigError
from stoker.source.files import Files
from stoker.source.paths import PathLike, listed, matched
from stoker.source.reading import Source
from stoker.source.tar import TarShards
from stoker.source.tar_index import SUFFIX

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_SHARD = re.compile(r".*\.(tar|tar\.(gz|bz2|xz|zst)|tgz)", re.DOTALL | re.IGNORECASE)
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://|pipe:")
_PATTERN = re.compile(r"[*?\[{]")
_EACH_FILE = "stoker.source.files.Files(...) to have each file as a sample"
_FORMS = "a folder, a glob, a .tar file, 'shard-{000..012}.tar', a list of files or shards, or a source"


def open_source(where: Source | PathLike | Sequence[PathLike]) -> Source:
    """The samples of a folder, a glob, a tar shard, a list of files or of shards; a source is returned as it is."""
    if all(hasattr(where, name) for name in ("__len__", "sizes", "read")):
        return cast(Source, where)
    if isinstance(where, str | os.PathLike):
        return _open_one(os.fspath(where))
    if not isinstance(where, Sequence) or not all(map(_is_path, where)):
        raise ConfigError(f"a source is {_FORMS}, not {where!r:.200}")
    if not where:
        raise ConfigError("no samples: the list of paths is empty")
    return _open_files([path for entry in where for path in _each(os.fspath(entry))])


def expand_braces(text: str) -> list[str]:
    """All that a pattern like `shard-{000..012}.tar` or `{train,val}.tar` stands for, in order."""
    parts = _BRACES.split(text)
    choices = [[part] if number % 2 == 0 else _choices(part) for number, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def _choices(inside: str) -> list[str]:
    if bounds := _RANGE.fullmatch(inside):
        first, last = int(bounds[1]), int(bounds[2])
        width = len(bounds[1]) if bounds[1].startswith("0") or bounds[2].startswith("0") else 0
        step = 1 if first <= last else -1
        return [f"{number:0{width}d}" for number in range(first, last + step, step)]
    return inside.split(",") if "," in inside else [f"{{{inside}}}"]


def _open_one(where: str) -> Source:
    where = os.path.expanduser(where)
    if os.path.isdir(where):
        return _open_folder(where)
    paths = _each(where)
    return _open_files(matched(where) if paths == [where] else paths)


def _each(where: str) -> list[str]:
    """What a path or pattern stands for. A plain path is not looked at: there may be a million of them."""
    where = os.path.expanduser(where)
    if _ADDRESS.match(where):
        raise ConfigError(f"{where!r} is an address, and samples are read from file systems of this host: mount or copy it")
    if not _PATTERN.search(where) or os.path.exists(where):
        return [where]
    return [path for each in expand_braces(where) for path in (matched(each) if glob.has_magic(each) else [each])]


def _open_files(paths: list[str]) -> Source:
    shards = [path for path in paths if _SHARD.fullmatch(path)]
    if not shards:
        return Files(paths)
    if len(shards) == len(paths):
        return TarShards(paths)
    other = next(path for path in paths if not _SHARD.fullmatch(path))
    raise ConfigError(f"both shards ({shards[0]}) and other files ({other}) are meant: give one kind, or {_EACH_FILE}")


def _open_folder(folder: str) -> Source:
    try:
        folders, files = listed(folder)
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be listed: {error.strerror}") from error
    shards = [os.path.join(folder, name) for name in files if _SHARD.fullmatch(name)]
    if not shards:
        return Files(folder)
    others = folders + [name for name in files if not _SHARD.fullmatch(name) and not name.endswith(SUFFIX)]
    if others:
        raise ConfigError(
            f"the folder {folder} has both shards and others, {others[0]!r} among them: write"
            f" {os.path.join(folder, '*.tar')!r} for the shards, or {_EACH_FILE}"
        )
    return TarShards(shards)


def _is_path(entry: object) -> bool:
    return isinstance(entry, str | os.PathLike)
