"""What the daemon knows, in SQLite: jobs, their leases, and what happened. It is written before anything is done of it.

`submit`, `cancel` and `ls` use the same file, beside the daemon. A job is `new` until the daemon has taken it, then
`queued`, then `done`, `failed` or `cancelled`. A lease is `planned`, then `given` as soon as it may have been started,
then `ended`.
"""

import contextlib
import json
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import CommandError, ConfigError
from stoker.schedule.job import Job, Lease, Placement, ServerShare
from stoker.schedule.marks import Marks, write_document
from stoker.schedule.matrix import Matrix, Reads, flat

_VERSION = 1
_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, gpus INTEGER, iterations INTEGER, matrix TEXT, user TEXT, model TEXT,
    restartable INTEGER, words TEXT, at REAL, status TEXT DEFAULT 'new', wants_cancel INTEGER DEFAULT 0,
    done REAL DEFAULT 0, attained_s REAL DEFAULT 0, deaths INTEGER DEFAULT 0, died_at INTEGER DEFAULT -1,
    ended_at REAL, code INTEGER, word TEXT DEFAULT '', why TEXT DEFAULT '');
CREATE TABLE leases (
    job INTEGER, number INTEGER, placement TEXT, rate REAL, proportional_rate REAL, since REAL,
    status TEXT DEFAULT 'planned', ending TEXT DEFAULT '', given_at REAL, first_at REAL, told_at REAL, ended_at REAL,
    code INTEGER, word TEXT DEFAULT '', PRIMARY KEY (job, number));
CREATE TABLE events (at REAL, job INTEGER, lease INTEGER, word TEXT);
"""
ENDED = "done", "failed", "cancelled"
UNKNOWN_ITERATIONS = 10**9
_DIGITS = 19
"""No number of a job has so many: SQLite's end there."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A job as it is submitted."""

    words: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    matrix: Matrix | None = None
    """What cores and memory do for it, where that is known."""
    gpus: int = 1
    iterations: int = UNKNOWN_ITERATIONS
    user: str = ""
    model: str = ""
    seed: int = 1
    restartable: bool = True
    options: tuple[str, ...] = ()
    """Of `stoker run`."""
    came_at: float | None = None
    """When somebody asked for it; now, if that is not said."""


@dataclass(frozen=True, slots=True)
class KnownJob:
    """A job, and how it stands."""

    job: Job
    is_profiled: bool
    """Whether the job's matrix was measured; otherwise it says nothing."""
    words: tuple[str, ...]
    status: str
    wants_cancel: bool
    done: float
    attained_s: float
    deaths: int
    """In a row, since its last checkpoint."""
    died_at: int
    """The iterations of that checkpoint."""
    ended_at: float | None
    code: int | None
    word: str
    why: str


@dataclass(frozen=True, slots=True)
class KnownLease:
    """A lease, and how it stands."""

    lease: Lease
    status: str
    ending: str
    """Why it is to end; nothing if it is not."""
    given_at: float | None
    first_at: float | None
    """When it got its first batch."""
    told_at: float | None
    ended_at: float | None
    code: int | None


class State:
    """The file, and the folder that it is in."""

    def __init__(self, folder: Path, *, make: bool = False) -> None:
        path = folder / "state.sqlite"
        if make:
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise CommandError(f"the scheduler's folder {folder} cannot be made: {error.strerror}") from None
        elif not path.exists():
            raise CommandError(
                f"there is no scheduler in {folder}: `stoker schedule run` or `submit` with --state makes one"
            )
        self.folder = folder.absolute()
        try:
            self._open(path)
        except sqlite3.DatabaseError as error:
            raise CommandError(f"{path} cannot be used as a scheduler's state: {error}") from None
        self.token: str = self._base.execute("SELECT value FROM facts WHERE name='token'").fetchone()[0]

    def _open(self, path: Path) -> None:
        self._base = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._base.row_factory = sqlite3.Row
        self._base.execute("PRAGMA journal_mode=WAL")
        self._base.execute("PRAGMA synchronous=FULL")
        with self.decision():
            version = self._base.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                for statement in _TABLES.split(";"):
                    self._base.execute(statement)
                self._base.execute("INSERT INTO facts VALUES ('token', ?)", (secrets.token_hex(4),))
                self._base.execute(f"PRAGMA user_version={_VERSION}")
            elif version != _VERSION:
                raise ConfigError(f"{path} has version {version}, and this Stoker knows {_VERSION}")

    def close(self) -> None:
        """Let go of the file."""
        self._base.close()

    @contextlib.contextmanager
    def decision(self) -> Iterator[None]:
        """All that is written inside is written at once, or not at all. May be nested."""
        if self._base.in_transaction:
            yield
            return
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    # ---- jobs

    def submit(self, wish: Wish) -> str:
        """Add a job; its id."""
        matrix = wish.matrix and json.dumps(_matrix_document(wish.matrix))
        words, came_at = json.dumps(wish.words), wish.came_at or time.time()
        values = wish.gpus, wish.iterations, matrix, wish.user, wish.model, wish.restartable, words, came_at
        columns = "gpus, iterations, matrix, user, model, restartable, words, at"
        with self.decision():
            number = self._base.execute(f"INSERT INTO jobs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values).lastrowid
            folder = self.job_folder(str(number))
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            document = {
                "words": wish.words, "folder": wish.folder, "environment": wish.environment, "seed": wish.seed,
                "restartable": wish.restartable, "options": wish.options,
            }  # fmt: skip
            write_document(folder / "job.json", document)
        return str(number)

    def job_folder(self, job_id: str) -> Path:
        """Where a job's files are."""
        return self.folder / "jobs" / job_id

    def marks(self, lease: Lease) -> Marks:
        """Where a lease's files are."""
        return Marks(self.job_folder(lease.job_id), lease.number)

    def name(self, lease: Lease) -> str:
        """By which the cluster knows a lease, and no other of any scheduler."""
        return f"stoker-{self.token}-{lease.job_id}-{lease.number}"

    def is_own(self, name: str) -> bool:
        """Whether the cluster knows a lease of this scheduler by a name."""
        return name.startswith(f"stoker-{self.token}-")

    def jobs(self, *statuses: str) -> list[KnownJob]:
        """Those of these statuses, or all, in the order in which they came."""
        marks = ", ".join("?" * len(statuses))
        where = f"WHERE status IN ({marks})" if statuses else ""
        return [_job(row) for row in self._base.execute(f"SELECT * FROM jobs {where} ORDER BY id", statuses)]

    def job(self, job_id: str) -> KnownJob:
        """One of them."""
        is_number = job_id.isdecimal() and len(job_id) < _DIGITS
        row = self._base.execute("SELECT * FROM jobs WHERE id=?", (job_id,)).fetchone() if is_number else None
        if row is None:
            raise CommandError(f"there is no job {job_id}: `stoker schedule ls` lists those that are")
        return _job(row)

    def change_job(self, job_id: str, **values: Any) -> None:
        """Set columns of a job."""
        self._change("jobs", values, "id=?", (job_id,))

    def learn(self, job_id: str, matrix: Matrix) -> None:
        """A job's matrix is another one than was thought."""
        self.change_job(job_id, matrix=json.dumps(_matrix_document(matrix)))

    def ask_cancel(self, job_id: str) -> bool:
        """Have a job ended; whether it was still there."""
        with self.decision():
            if self.job(job_id).status in ENDED:
                return False
            self.change_job(job_id, wants_cancel=1)
            self.note(job_id, None, "it was cancelled")
        return True

    # ---- leases

    def plan(self, lease: Lease) -> None:
        """Add a lease that is to be given."""
        shares = [[share.server, share.gpus, share.cpus, share.memory_gb] for share in lease.placement.shares]
        values = (lease.job_id, lease.number, json.dumps(shares), lease.rate, lease.proportional_rate, lease.since_s)
        columns = "job, number, placement, rate, proportional_rate, since"
        self._base.execute(f"INSERT INTO leases ({columns}) VALUES (?, ?, ?, ?, ?, ?)", values)

    def leases(self, job_id: str | None = None, *, living: bool = True) -> list[KnownLease]:
        """Those that have not ended, or all, oldest first."""
        where = " AND ".join(["1", *(["status != 'ended'"] if living else []), *(["job=?"] if job_id else [])])
        query = f"SELECT * FROM leases WHERE {where} ORDER BY since, job, number"
        return [_lease(row) for row in self._base.execute(query, (job_id,) if job_id else ())]

    def latest_leases(self, count: int, *known: str) -> list[KnownLease]:
        """The last of those of which these columns are known, oldest first."""
        where = " AND ".join(f"{name} IS NOT NULL" for name in known)
        query = f"SELECT * FROM leases WHERE {where} ORDER BY since DESC, job DESC, number DESC LIMIT ?"
        return [_lease(row) for row in self._base.execute(query, (count,))][::-1]

    def change_lease(self, lease: Lease, **values: Any) -> None:
        """Set columns of a lease."""
        self._change("leases", values, "job=? AND number=?", (lease.job_id, lease.number))

    def note(self, job_id: str, lease: int | None, word: str) -> None:
        """Write down what happened."""
        self._base.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (time.time(), job_id, lease, word))

    def events(self, job_id: str) -> list[tuple[float, int | None, str]]:
        """What happened to a job."""
        rows = self._base.execute("SELECT at, lease, word FROM events WHERE job=? ORDER BY rowid", (job_id,))
        return [(row["at"], row["lease"], row["word"]) for row in rows]

    def _change(self, table: str, values: dict[str, Any], where: str, key: Sequence[Any]) -> None:
        columns = ", ".join(f"{name}=?" for name in values)
        self._base.execute(f"UPDATE {table} SET {columns} WHERE {where}", (*values.values(), *key))


def _matrix_document(matrix: Matrix) -> list[Any]:
    reads = matrix.reads and (matrix.reads.iteration_bytes, matrix.reads.process_gb, matrix.reads.dataset_gb)
    return [matrix.cpus, matrix.memory_gb, matrix.rates, matrix.wanted, reads]


def _job(row: sqlite3.Row) -> KnownJob:
    matrix = flat(1.0)
    if row["matrix"]:
        cpus, memory, rates, wanted, *reads = json.loads(row["matrix"])  # older states end there
        known = Reads(*reads[0]) if reads and reads[0] else None
        matrix = Matrix(tuple(cpus), tuple(memory), tuple(map(tuple, rates)), tuple(wanted), known)
    job = Job(
        str(row["id"]),
        row["gpus"],
        row["iterations"],
        matrix,
        row["at"],
        row["model"],
        row["user"],
        bool(row["restartable"]),
    )
    same = (row[name] for name in ("done", "attained_s", "deaths", "died_at", "ended_at", "code", "word", "why"))
    return KnownJob(
        job, bool(row["matrix"]), tuple(json.loads(row["words"])), row["status"], bool(row["wants_cancel"]), *same
    )


def _lease(row: sqlite3.Row) -> KnownLease:
    placement = Placement(tuple(ServerShare(*share) for share in json.loads(row["placement"])))
    lease = Lease(str(row["job"]), row["number"], placement, row["rate"], row["proportional_rate"], row["since"])
    same = (row[name] for name in ("status", "ending", "given_at", "first_at", "told_at", "ended_at", "code"))
    return KnownLease(lease, *same)
