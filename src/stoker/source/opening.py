"""From what a user writes to a source: a folder, a glob, shards, a list; of files, or of objects in a store.

Nothing is guessed: what could be meant in two ways is an error that says what to write instead.
"""

import glob
import itertools
import os
import re
from collections.abc import Callable, Sequence
from typing import cast

from stoker.errors import ConfigError
from stoker.source.addresses import has_magic, local_path, parse, scheme_of
from stoker.source.files import Files
from stoker.source.objects import Objects, pattern_matches
from stoker.source.paths import PathLike, listed, matched
from stoker.source.reading import Source
from stoker.source.saved import HF_NAMES, hf_files
from stoker.source.tar import TarShards
from stoker.source.tar_index import SUFFIX
from stoker.source.tar_objects import TarObjects

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_SHARD = re.compile(r".*\.(tar|tar\.(gz|bz2|xz|zst)|tgz)", re.DOTALL | re.IGNORECASE)
_TABLE = re.compile(r".*\.(parquet|pq|arrow|feather|ipc)", re.DOTALL | re.IGNORECASE)
_PATTERN = re.compile(r"[*?\[{]")
_EACH_FILE = "stoker.source.files.Files(...) to have each file as a sample"
_EACH_OBJECT = "stoker.source.objects.Objects(...) to have each object as a sample"
_FORMS = (
    "a folder, a glob, a .tar file, 'shard-{000..012}.tar', a .parquet or .arrow file, a list of files or"
    " shards, objects in s3://, gs://, az:// or https://, or a source"
)


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
    entries = [_of_file_address(os.fspath(entry)) for entry in where]
    addressed = [scheme_of(entry) is not None for entry in entries]
    if any(addressed):
        if not all(addressed):
            raise ConfigError(
                f"both {entries[addressed.index(True)]!r} and {entries[addressed.index(False)]!r} are meant: give one kind"
            )
        return _open_objects([each for entry in entries for each in expand_braces(entry)])
    return _open_files([path for entry in entries for path in _each(entry)])


def open_stored(where: str) -> Source:
    """As `open_source`, but a table in a store is one sample, as it is one file of a mounted folder."""
    is_in_a_store = scheme_of(where) not in (None, "file")
    return _open_objects(expand_braces(where), are_tables_whole=True) if is_in_a_store else open_source(where)


def _open_tables(paths: list[str]) -> Source:
    from stoker.source.tables import Tables  # which needs PyArrow

    return Tables(paths)


_KINDS: tuple[tuple[str, re.Pattern[str], Callable[[list[str]], Source]], ...] = (
    ("shards", _SHARD, TarShards),
    ("tables", _TABLE, _open_tables),
)


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
    where = os.path.expanduser(_of_file_address(where))
    if scheme_of(where) is not None:
        return _open_objects(expand_braces(where))
    if os.path.isdir(where):
        return _open_folder(where)
    paths = _each(where)
    return _open_files(matched(where) if paths == [where] else paths)


def _each(where: str) -> list[str]:
    """What a path or pattern stands for. A plain path is not looked at: there may be a million of them."""
    where = os.path.expanduser(where)
    if not _PATTERN.search(where) or os.path.exists(where):
        return [where]
    return [path for each in expand_braces(where) for path in (matched(each) if glob.has_magic(each) else [each])]


def _of_file_address(where: str) -> str:
    return local_path(where) if scheme_of(where) == "file" else where


def _open_objects(addresses: list[str], *, are_tables_whole: bool = False) -> Source:
    """Objects by address, folder or pattern. Shards are those that are named so."""
    named = [parse(each) for each in addresses]
    if not are_tables_whole:
        _refuse_tables([str(each) for each in named])
    shards = [each for each in named if _SHARD.fullmatch(each.key)]
    if len(shards) == len(named):
        return TarObjects(
            [str(found) for each in named for found in (pattern_matches(each) if has_magic(each.key) else [each])]
        )
    if shards:
        other = next(each for each in named if each not in shards)
        raise ConfigError(
            f"both shards ({shards[0]}) and other objects ({other}) are meant: give one kind, or {_EACH_OBJECT}"
        )
    if len(named) > 1:
        return Objects(addresses)
    return _shards_or_objects(Objects(addresses[0]), are_tables_whole=are_tables_whole)


def _shards_or_objects(objects: Objects, *, are_tables_whole: bool) -> Source:
    """What lies in a folder may be shards."""
    addresses = [objects.address(number) for number in range(len(objects))] if objects.classes is None else []
    if not are_tables_whole:
        _refuse_tables(addresses)
    shards = [each for each in addresses if _SHARD.fullmatch(each)]
    if not shards:
        return objects
    others = [each for each in addresses if not _SHARD.fullmatch(each) and not each.endswith(SUFFIX)]
    if others:
        raise ConfigError(
            f"{objects.name} has both shards and others, {others[0]!r} among them: write {objects.name + '/*.tar'!r} for"
            f" the shards, or {_EACH_OBJECT}"
        )
    return TarObjects(shards)


def _refuse_tables(addresses: list[str]) -> None:
    """A whole table as one sample is hardly meant, and its rows are read from files alone."""
    table = next((each for each in addresses if _TABLE.fullmatch(each)), None)
    if table is not None:
        raise ConfigError(
            f"{table} is a table, and rows are read from files of this host alone: copy it, or mount its folder"
            f" (stoker run --mount); or {_EACH_OBJECT}"
        )


def _open_files(paths: list[str]) -> Source:
    for what, pattern, source in _KINDS:
        some = [path for path in paths if pattern.fullmatch(path)]
        if len(some) == len(paths):
            return source(paths)
        if some:
            other = next(path for path in paths if not pattern.fullmatch(path))
            raise ConfigError(
                f"both {what} ({some[0]}) and other files ({other}) are meant: give one kind, or {_EACH_FILE}"
            )
    return Files(paths)


def _open_folder(folder: str) -> Source:
    try:
        folders, files = listed(folder)
    except OSError as error:
        raise ConfigError(f"the folder {folder} cannot be listed: {error.strerror}") from error
    if any(name in files for name in HF_NAMES):
        return _open_tables(hf_files(folder))
    for what, pattern, source in _KINDS:
        some = [name for name in files if pattern.fullmatch(name)]
        others = folders + [name for name in files if name not in some and not name.endswith(SUFFIX)]
        if some and others:
            such = os.path.join(folder, "*" + os.path.splitext(some[0])[1])
            raise ConfigError(
                f"the folder {folder} has both {what} and others, {others[0]!r} among them: write {such!r} for the {what},"
                f" or {_EACH_FILE}"
            )
        if some:
            return source([os.path.join(folder, name) for name in some])
    return Files(folder)


def _is_path(entry: object) -> bool:
    return isinstance(entry, str | os.PathLike)
