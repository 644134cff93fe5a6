"""Checkpoints of sharded state: torch.distributed.checkpoint writes and reads the shards, this module makes them durable.

    0000000120-3f9c21aa/         what torch writes: files of shards, and .metadata
    0000000120-3f9c21aa.json     the manifest: the length and checksum of each file; its last line is its own

    torch writes into X.partial  ->  each file is read, fsynced and read again, by the process that has written it
    fsync X.partial              ->  rename to X, fsync directory
    write X.json.partial, fsync  ->  rename to X.json, fsync directory      now it counts

An error in one process is raised in all, so that none goes on with another state. torch unpickles what it reads, so it gets
only files that this user owns, and only after every byte was compared.
"""

import contextlib
import os
import re
import secrets
import shutil
import stat
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

from stoker.checkpoint.files import Damaged, DataRange, Directory, Manifest, to_text
from stoker.checkpoint.ranks import ranks_here
from stoker.errors import CheckpointError, ConfigError

_PARTIAL = ".partial"
_LEFT_OVER = re.compile(r"\d{10,}-[0-9a-f]{8}(\.json)?\.partial")
_OF_A_RANK = re.compile(r"__(\d+)_.*")
_CHUNK = 16 << 20


class ShardedCheckpoints:
    """A directory of checkpoints of sharded state, on a file system that all processes share.

    A state is what torch.distributed.checkpoint takes: a dictionary with DTensors in it, as `get_state_dict` gives it for
    models under `fully_shard`. All processes make one of these, and call the same methods in the same order.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Directory(Path(directory).absolute())
        self._path = self._directory.path
        self._disk = self._directory.disk
        self._ranks = ranks_here()
        self._world = len(self._ranks.exchange(None))

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint. When this returns it is on the device, and was read back."""
        name = self._ranks.exchange(f"{step:010d}-{secrets.token_hex(4)}")[0]
        partial = self._path / f"{name}{_PARTIAL}"
        try:
            self._all(self._make, partial)
            self._all(self._write, partial, state)
            files = [file for files in self._all(self._seal, partial) for file in files]
            self._all(self._commit, name, step, sorted(files))
        except CheckpointError as error:
            self._remove(name)
            raise CheckpointError(f"the checkpoint of step {step} could not be written: {error}") from error

    def load(self, state: dict[str, Any]) -> int | None:
        """Load the newest whole checkpoint into a state, in place; its step. None only if there is none at all.

        Damaged ones are passed by with a warning, and left as they are. If none of several is whole: CheckpointError.
        """
        names = self._all(self._directory.names)[0]
        problems: list[str] = []
        for name in names:
            try:
                step: int = self._all(self._verify, name)[0]
            except Damaged as damage:
                problems.append(f"{name}: {damage}")
                warnings.warn(f"a damaged checkpoint was passed by and left as it is: {problems[-1]}", stacklevel=2)
                continue
            except CheckpointError as error:
                raise CheckpointError(f"{self._path / name}: {error}") from error
            try:
                self._all(self._read, self._path / name, state)
            except CheckpointError as error:
                raise CheckpointError(f"{self._path / name} does not fit this run: {error}") from error
            return step
        if problems:
            raise CheckpointError(f"none of the {len(names)} checkpoints in {self._path} is whole: {'; '.join(problems)}")
        return None

    def prune(self, keep: int) -> list[str]:
        """Remove whole checkpoints but the `keep` newest, and the leftovers of interrupted saves.

        Checkpoints with missing files, or files of another length, are damaged: they do not count, and are left alone.
        """
        if keep < 1:
            raise ConfigError("keep is 1 or more")
        removed: list[str] = self._all(self._prune, keep)[0]
        return removed

    def _all(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function in every process. Returns the results by rank. If one fails, all raise: Damaged, or worse."""
        said: dict[str, Any]
        cause: BaseException | None = None
        try:
            said = {"done": work(*arguments)}
        except Damaged as error:
            said, cause = {"damaged": str(error)}, error
        except (Exception, CheckpointException) as error:
            said, cause = {"failed": _words(error)}, error
        everybody = self._ranks.exchange(said)
        for kind, error_of in (("failed", CheckpointError), ("damaged", Damaged)):
            words = dict.fromkeys(one[kind] for one in everybody if kind in one)
            if words:
                raise error_of("; ".join(words)) from cause
        return [one["done"] for one in everybody]

    # ---- what each process does to save

    def _make(self, partial: Path) -> None:
        if self._ranks.rank == 0:
            self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial.mkdir(mode=0o700)

    def _write(self, partial: Path, state: dict[str, Any]) -> None:
        writer = FileSystemWriter(partial, sync_files=False)  # it syncs before it flushes; see _seal
        with _silent_about_being_alone():
            state_dict_saver.save(state, storage_writer=writer, process_group=self._ranks.group)

    def _seal(self, partial: Path) -> list[tuple[str, int, int]]:
        """Sync the files of this process to the device. Returns their names, lengths and checksums."""
        sealed = []
        for path in partial.iterdir():
            match = _OF_A_RANK.fullmatch(path.name)
            if (int(match[1]) if match else 0) != self._ranks.rank:
                continue
            with path.open("rb", buffering=0) as file:
                checksum = _checksum(file)
                os.fsync(file.fileno())
                with contextlib.suppress(OSError):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # read it from the device
                length = file.seek(0, os.SEEK_END)
                file.seek(0)
                if _checksum(file) != checksum:
                    raise CheckpointError(f"{path.name} reads back differently")
            sealed.append((path.name, length, checksum))
        return sealed

    def _commit(self, name: str, step: int, files: list[tuple[str, int, int]]) -> None:
        if self._ranks.rank != 0:
            return
        partial = self._path / f"{name}{_PARTIAL}"
        if {file for file, *_ in files} != set(os.listdir(partial)):
            raise CheckpointError(
                f"not all processes have written to one directory: {self._path} must be shared by all nodes"
            )
        self._disk.settle(partial)
        self._disk.rename(partial, self._path / name)
        self._disk.settle(self._path)
        pieces = tuple(DataRange(0, length, checksum) for _, length, checksum in files)
        text = to_text(Manifest(step, False, pieces, {"files": [file for file, *_ in files]}))
        unfinished = self._path / f"{name}.json{_PARTIAL}"
        self._disk.write(unfinished, [text])
        self._disk.rename(unfinished, self._path / f"{name}.json")
        self._disk.settle(self._path)

    def _remove(self, name: str) -> None:
        """Remove the files of a failed save."""
        if self._ranks.rank == 0:
            with contextlib.suppress(OSError):
                self._disk.unlink(self._path / f"{name}.json")
                self._disk.unlink(self._path / f"{name}.json{_PARTIAL}")
            for folder in (self._path / name, self._path / f"{name}{_PARTIAL}"):
                shutil.rmtree(folder, ignore_errors=True)

    # ---- what each process does to load

    def _verify(self, name: str) -> int:
        """Compare this process's share of the files with their checksums. Returns the step."""
        manifest, files = self._manifest(name)
        try:
            _check_owner(self._path / f"{name}.json")
            _check_owner(self._path / name)
            for file, piece in files[self._ranks.rank :: self._world]:
                path = self._path / name / file
                status = _check_owner(path)
                if not stat.S_ISREG(status.st_mode):
                    raise Damaged(f"{file} is not a file")
                if status.st_size != piece.length:
                    raise Damaged(f"{file} has {status.st_size:,} bytes instead of {piece.length:,}")
                with path.open("rb", buffering=0) as content:
                    if _checksum(content) != piece.checksum:
                        raise Damaged(f"{file} is damaged")
        except OSError as error:
            raise Damaged(f"{error.filename or name} cannot be read ({error.strerror})") from error
        return manifest.step

    def _manifest(self, name: str) -> tuple[Manifest, list[tuple[str, DataRange]]]:
        manifest = self._directory.manifest(name)
        if not isinstance(manifest.document, dict) or "files" not in manifest.document:
            raise CheckpointError("it is no checkpoint of sharded state: use another directory for these")
        files = manifest.document["files"]
        if not isinstance(files, list) or len(files) != len(manifest.pieces) or not all(map(_is_plain_name, files)):
            raise Damaged("its manifest makes no sense")
        return manifest, list(zip(files, manifest.pieces, strict=True))

    def _read(self, folder: Path, state: dict[str, Any]) -> None:
        with _silent_about_being_alone():
            state_dict_loader.load(state, storage_reader=FileSystemReader(folder), process_group=self._ranks.group)

    # ---- what the first process does to prune

    def _prune(self, keep: int) -> list[str]:
        if self._ranks.rank != 0:
            return []
        whole = [name for name in self._directory.names() if self._looks_whole(name)]
        for name in whole[keep:]:
            self._disk.unlink(self._path / f"{name}.json")
            self._disk.settle(self._path)
            self._disk.rename(self._path / name, self._path / f"{name}{_PARTIAL}")
        for entry in os.listdir(self._path) if self._path.exists() else []:
            if _LEFT_OVER.fullmatch(entry):
                if (self._path / entry).is_dir():
                    shutil.rmtree(self._path / entry)
                else:
                    self._disk.unlink(self._path / entry)
        return whole[keep:]

    def _looks_whole(self, name: str) -> bool:
        try:
            _, files = self._manifest(name)
            return all((self._path / name / file).stat().st_size == piece.length for file, piece in files)
        except (CheckpointError, OSError):
            return False


def _is_plain_name(name: Any) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\0"} & set(name)


def _checksum(file: Any) -> int:
    checksum, room = 0, memoryview(bytearray(_CHUNK))
    while count := file.readinto(room):
        checksum = zlib.crc32(room[:count], checksum)
    return checksum


def _check_owner(path: Path) -> os.stat_result:
    status = path.lstat()
    if status.st_uid != os.geteuid():
        raise CheckpointError(
            f"{path} belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}. A checkpoint of "
            "sharded state is unpickled, which can run anything, so only one's own are loaded. If you trust it, chown it."
        )
    return status


def _words(error: BaseException) -> str:
    """An error in one line. torch's own text has the tracebacks of all ranks."""
    if isinstance(error, CheckpointException):
        return "; ".join(f"rank {rank}: {failure!r}" for rank, (failure, _) in error.failures.items())
    return str(error) or repr(error)


@contextlib.contextmanager
def _silent_about_being_alone() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is .*unavailable", UserWarning)
        yield
