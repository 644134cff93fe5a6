"""A group on this host: jobs of one user that read the same batches, each of which is prepared once.

    /dev/shm/stoker-UID/groups/NAME/door            locked by whoever comes or goes
    /dev/shm/stoker-UID/groups/NAME/TOKEN/about     what its members have in common
    /dev/shm/stoker-UID/groups/NAME/TOKEN/table     who is where; the rules are in `slots`

Loaders of one script, for training and for validation, each have a TOKEN. The batches lie in memory without a name, which
a member opens through another that lives (`/proc/PID/fd/N`, this user's alone): it is gone with the last of them, however
that went, and no size of /dev/shm bounds it. Who is alive is what the kernel says; whoever waits looks from time to time.
"""

import contextlib
import json
import marshal
import os
import re
import secrets
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import ConfigError, MemberLost, ResourceError
from stoker.live import groups, process
from stoker.live.record import Seen
from stoker.memory import PAGE, Bytes, Memory, check_alone, headroom_bytes
from stoker.stage.room import Room
from stoker.stage.slots import BATCHES, LAYOUT, NOWHERE, READY, WORK, Batch, Draw, Member, Place, Reason, Slots
from stoker.stage.table import (
    _HALF_BYTES,
    _HALVES_AT,
    _HOLDS_AT,
    _MAGIC,
    Table,
    _holder_of,
    close_lock,
    inside,
    locked,
    open_lock,
    when_outside,
)

VERSION = f"1.{LAYOUT:08x}"
LOOK_S = 0.1
"""How often one who waits asks the kernel who is alive."""
HELPS_AFTER_S = 1.0
"""So long a member without workers waits for those of others to begin with what it needs."""
PASSED_BY_AFTER_S = 30.0
"""So long the others wait for a member that is not even within an epoch."""
_TMPFS = Path("/dev/shm")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STRIDE = 1 << 38
_SLOTS = 1 << 12
_RESERVE_BYTES = 64 << 20
_MOST_BYTES = 4 << 30
_GLANCES = 100

Differences = Callable[[dict[str, Any]], list[str]]
"""What keeps a loader from joining one that is described so, in words."""


@dataclass(frozen=True, slots=True)
class GroupStats:
    """A group, as one of its members sees it."""

    name: str
    members: int
    """Loaders that are in it now."""
    workers: int
    """Workers of all of them."""
    prepared: int
    """Batches that were prepared, by anybody, since the group was opened."""
    repeated: int
    """Of those, how many had been prepared before: for one that came back, or to make room."""
    taken_over: int
    """Of those, how many somebody else had claimed who then left or died."""
    passed_by: int
    """How often a member was not waited for any more."""
    staging_bytes: int
    """Memory that holds batches now."""
    most_bytes: int
    """The most that it ever was."""
    budget_bytes: int
    """The most that it may be."""
    last: str
    """The member that is furthest behind, if that is another one."""
    waited_for: dict[str, float]
    """Seconds that this member waited, by whom for."""
    catches_up: bool
    """Whether nobody waits for this member now; its own workers prepare what it lacks."""
    resumed: str
    """How it came back from a state: "", "in step" or "catching up"."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a member's workers find the group."""

    folder: str
    member: int
    pid: int
    descriptor: int


def check_name(name: object) -> str:
    """Refuse what is not a name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"group must be a name of at most 64 letters, digits, dots, hyphens and underscores, not {name!r}"
        )
    return name


def home() -> Path:
    """Where the groups of this user are."""
    return _TMPFS / f"stoker-{os.getuid()}" / "groups"


def default_bytes() -> int:
    """How much memory a group may use for batches, if nobody says."""
    return max(1 << 20, min(_MOST_BYTES, headroom_bytes() // 4))


class Staging:
    """The group as one process of it sees it: its table, and its memory."""

    def __init__(self, address: Address) -> None:
        self.folder = Path(address.folder)
        self.member = address.member
        self.table = Table(self.folder / "table", Slots.of)
        descriptor = address.descriptor
        if address.pid != os.getpid():
            descriptor = os.open(f"/proc/{address.pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        self.memory = Memory(_STRIDE * _SLOTS, descriptor=descriptor)
        self.process = own_process()
        self.meanwhile: Callable[[], Callable[[float], object] | None] = lambda: None
        """A reference to what a reader does from time to time while it waits for room, told since when."""
        self._looked_at = 0.0

    def look_around(self) -> None:
        """Whoever is dead has gone."""
        self._looked_at = time.monotonic()
        with self.table.look() as slots:
            everybody = {p for m in slots.members.values() for p in (m.process, *m.workers)} | {*slots.room.lost.values()}
        if not all(process.is_alive(*one) for one in everybody):
            with self.table.change() as slots:
                slots.sweep(process.is_alive)

    # ---- for those who prepare

    def next_work(self, goes_on: Callable[[], bool]) -> Place | Draw | None:
        """What this process shall prepare; None when its member has gone."""
        while goes_on():
            if time.monotonic() - self._looked_at > LOOK_S:
                self.look_around()
            ticket = self.table.ticket(WORK)
            with self.table.change() as slots:
                if self.member not in slots.members or slots.members[self.member].is_leaving:
                    return None
                found: Place | Draw | None = slots.claim(self.member, self.process)
            if found is not None:
                return found
            self.table.wait(WORK, ticket, LOOK_S)
            self.look_around()
        return None

    def drawn(self, epoch: int, steps: int, digest: str) -> str:
        """Say what an epoch consists of. The digest that holds in the group."""
        with self.table.change() as slots:
            return str(slots.draw(epoch, steps, digest))

    def publish(self, place: Place, parts: list[Bytes]) -> bool:
        """Stage a batch that this process has claimed. False if it is another's by now. Waits for room, if need be."""
        length = sum(part.nbytes for part in parts)
        size = -(-length // PAGE) * PAGE
        slot = NOWHERE
        try:
            slot = self._place(place, size)
            offset = slot * _STRIDE
            for part in parts:
                _all_of(os.pwrite, self.memory.descriptor, part, offset)
                offset += part.nbytes
            with self.table.change() as slots:
                if slots.publish(place, self.process, slot, length):
                    return True
        except KeyError:
            pass
        except ResourceError:
            raise  # what is staged in its place is this process's to say
        except BaseException:
            self.let_go(place, slot)
            raise
        self.let_go(place, slot)
        return False

    def let_go(self, place: Place, slot: int = NOWHERE) -> None:
        """Give up what this process has claimed."""
        with self.table.change() as slots:
            slots.let_go(place, self.process, slot)

    def _place(self, place: Place, size: int) -> int:
        began = time.monotonic()
        while True:
            ticket = self.table.ticket(WORK)
            with self.table.change() as slots:
                if self.member not in slots.members:
                    raise KeyError(place)
                before = slots.room.staged_bytes
                try:
                    found = slots.place(place, self.process, size)
                except ValueError:
                    raise ResourceError(
                        f"a batch has {size:,} bytes, and all batches of the group may use {slots.room.budget_bytes:,}: "
                        "raise group_bytes, where the group is opened"
                    ) from None
                if found is not None:
                    slot, given_back = found
                    for one in given_back:
                        self.memory.discard(one * _STRIDE, _STRIDE)
                    more = slots.room.staged_bytes - before
                    if more > 0 and headroom_bytes() < more + _RESERVE_BYTES:
                        raise ResourceError(
                            f"not enough memory to stage another batch of {size:,} bytes for the group: lower group_bytes"
                        )
                    return int(slot)
                is_reader = not slots.members[self.member].workers
            self.table.wait(WORK, ticket, LOOK_S)
            self.look_around()
            act = self.meanwhile() if is_reader else None
            if act is not None:
                act(began)

    def copy(self, batch: Batch, room: Bytes) -> None:
        """Copy the bytes of a staged batch."""
        _all_of(_read_into, self.memory.descriptor, room, batch.slot * _STRIDE)

    def close(self) -> None:
        """This process needs the group no more."""
        self.memory.close()
        self.table.close()


class Seat:
    """A member of a group, in the process that reads. It is left by `close`, or with the process."""

    def __init__(self, name: str, about: dict[str, Any], differences: Differences, budget_bytes: int, label: str) -> None:
        self.name = name
        self.owner = os.getpid()
        self.address, self.about = _enter(name, about, differences, budget_bytes, label)
        self.staging = Staging(self.address)
        self.staging.meanwhile = weakref.WeakMethod(self._lose_patience)
        self.waited_for: dict[str, float] = {}
        self.resumed = ""
        self._patience_s = float("inf")
        self.close = weakref.finalize(self, _leave, self.staging, self.owner)
        _seats.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process joined. A forked child inherits the object, not the seat."""
        return self.owner == os.getpid() and self.close.alive

    def begin(self) -> Place:
        """The next epoch begins, or one that was restored goes on."""
        with self.staging.table.change() as slots:
            self._check(slots)
            slots.begin(self.address.member, time.monotonic())
            place: Place = slots.members[self.address.member].place
            return place

    def rest(self) -> None:
        """Nothing more is read of this epoch: the others wait until the next one begins, and not for long. Any time."""
        when_outside(self._rest)

    def _rest(self) -> None:
        if self.is_ours:
            with self.staging.table.change() as slots:
                self._check(slots)
                slots.rest(self.address.member, time.monotonic())

    def retire(self) -> None:
        """This job is about to leave: nobody waits for it, and its workers end what they are at."""
        with self.staging.table.change() as slots:
            if self.address.member in slots.members:
                slots.retire(self.address.member)

    def restore(self, place: Place) -> None:
        """Go on from a place where this job was before."""
        with self.staging.table.change() as slots:
            self._check(slots)
            in_step = slots.restore(self.address.member, place, time.monotonic())
        self.resumed = "in step" if in_step else "catching up"

    @contextlib.contextmanager
    def batch(self, wait: "Wait") -> Iterator[Batch | Place | Draw | None]:
        """The next batch to copy, within this; or what this process has to prepare itself; or None: the epoch is over."""
        self._patience_s = float("inf") if wait.patience_s is None else wait.patience_s
        try:
            got = self._take(wait)
        except BaseException:
            if self.is_ours:
                self._wait_no_more()
            raise
        yield got
        if isinstance(got, Batch):
            with self.staging.table.change() as slots:
                self._check(slots)
                slots.read(self.address.member, time.monotonic())

    def _wait_no_more(self) -> None:
        with self.staging.table.change() as slots:
            if self.address.member in slots.members:
                slots.wait_no_more(self.address.member)

    def _take(self, wait: "Wait") -> Batch | Place | Draw | None:
        number, table = self.address.member, self.staging.table
        began = time.monotonic()
        while True:
            ticket = table.ticket(BATCHES)
            with table.change() as slots:
                self._check(slots)
                if slots.is_over(number):
                    return None
                batch: Batch | None = slots.take(number)
                if batch is not None:
                    return batch
                if wait.prepares and slots.lacks_workers(number, is_late=time.monotonic() - began > HELPS_AFTER_S):
                    own: Place | Draw | None = slots.claim(number, self.staging.process)
                    if own is not None:
                        return own
                reason = slots.reason(number)
                late = slots.members.get(reason.member)
            waited_s = time.monotonic() - began
            if late is not None and waited_s >= self._patience_with(late, reason) and self._lose_patience(began):
                continue
            who = "workers" if late is None else "own workers" if late.number == number else name_of(late)
            before = time.monotonic()
            table.wait(BATCHES, ticket, LOOK_S)
            after = time.monotonic()
            self.waited_for[who] = self.waited_for.get(who, 0.0) + after - before
            if after - before >= LOOK_S / 2:
                wait.look(who, late.process[0] if late is not None else 0, after - began)
                self.staging.look_around()

    def _lose_patience(self, began: float) -> bool:
        """Whether this member, which has been waiting for so long, goes on without somebody from now on."""
        number = self.address.member
        with self.staging.table.change() as slots:
            self._check(slots)
            reason = slots.reason(number)
            late = slots.members.get(reason.member)
            if late is None or time.monotonic() - max(began, late.moved_at) < self._patience_with(late, reason):
                return False
            if reason.kind == "asleep":
                slots.wait_no_more(late.number)
            else:
                slots.pass_by(late.number)
            return True

    def _patience_with(self, late: Member, reason: Reason) -> float:
        """How long to wait for another. One of this very process cannot read on while this one waits."""
        if reason.kind == "asleep":
            return LOOK_S
        if reason.kind != "room":
            return self._patience_s if late.number != self.address.member else float("inf")
        if late.process == self.staging.process:
            return 0.0
        return self._patience_s if late.is_reading else min(self._patience_s, PASSED_BY_AFTER_S)

    def _check(self, slots: Slots) -> None:
        if self.address.member not in slots.members:
            raise MemberLost(
                f"this job is no longer in the group {self.name!r}: it was taken for dead. Are its members in one space of "
                "process ids (one container)?"
            )

    def stats(self) -> GroupStats:
        """The group as it is now."""
        with self.staging.table.look() as slots:
            own = slots.members.get(self.address.member)
            awaited = [member for member in slots.members.values() if not member.is_passed]
            last = min(awaited, key=lambda member: member.place, default=None)
            is_other = own is not None and last is not None and last.place < own.place
            return GroupStats(
                name=self.name,
                members=len(slots.members),
                workers=sum(len(member.workers) for member in slots.members.values()),
                prepared=slots.prepared,
                repeated=slots.repeated,
                taken_over=slots.taken_over,
                passed_by=slots.passed_by,
                staging_bytes=slots.room.staged_bytes,
                most_bytes=slots.room.most_bytes,
                budget_bytes=slots.room.budget_bytes,
                last=name_of(last) if is_other and last is not None else "",
                waited_for=dict(self.waited_for),
                catches_up=own is not None and own.is_passed,
                resumed=self.resumed,
            )


@dataclass(slots=True)
class Wait:
    """How a member waits."""

    prepares: bool
    """Whether it prepares batches itself when there is no worker."""
    patience_s: float | None
    """How long it waits for another that is within an epoch; None for ever."""
    look: Callable[[str, int, float], None]
    """Told from time to time who is waited for, its pid, and for how long by now; may raise."""


def _all_of(move: Callable[[int, Any, int], int], descriptor: int, content: Bytes, offset: int) -> None:
    """Not by a mapping: each process would pay for every page of every slot when it first touches it."""
    done = 0
    while done < content.nbytes:
        moved = move(descriptor, content[done:], offset + done)
        if not moved:
            raise MemberLost("a staged batch is shorter than it should be")
        done += moved


def _read_into(descriptor: int, room: Any, offset: int) -> int:
    return os.preadv(descriptor, [room], offset)


def name_of(member: Member) -> str:
    """A member in words."""
    return f"{member.label} (pid {member.process[0]})"


def own_process() -> tuple[int, int]:
    """This process, as others know it."""
    found = process.find(os.getpid())
    return os.getpid(), found.started if found is not None else 0


_seats: "weakref.WeakSet[Seat]" = weakref.WeakSet()
_entered: dict[str, set[str]] = {}
"""By the names of groups, the tokens that loaders of this process have joined."""


def _after_fork_in_child() -> None:
    """A child is not the job: it must not keep its memory and locks."""
    global _at_door
    _at_door = threading.Lock()  # another thread may have held it, and is not here to let go of it
    _entered.clear()
    for seat in list(_seats):
        if seat.close.alive:
            seat.close.detach()
            seat.staging.close()


os.register_at_fork(after_in_child=_after_fork_in_child)


# ---- coming and going, one at a time

_at_door = threading.Lock()
"""Held while a thread of this process is at the door of a group."""


def _enter(
    name: str, about: dict[str, Any], differences: Differences, budget_bytes: int, label: str
) -> tuple[Address, dict[str, Any]]:
    about = {"version": VERSION, "namespace": process.namespace(), **about}
    with _door(name) as folder:
        found: list[tuple[Path, dict[str, Any]]] = []
        for stream in sorted(folder.iterdir()):
            if stream.is_dir():
                theirs = _living(stream)
                if theirs is not None:
                    found.append((stream, theirs))
        entered = _entered.setdefault(name, set())
        misfits = []
        for stream, theirs in found:
            if theirs.get("rank") != about.get("rank"):
                continue  # another process of such a job
            what = _strangers(about, theirs) or differences(theirs)
            if not what:
                try:
                    address = _join(stream, label)
                except ResourceError:
                    if _living(stream) is not None:
                        raise
                    continue  # the last member has just gone
                entered.add(stream.name)
                return address, theirs
            if stream.name not in entered:
                misfits.append(what)
        if misfits:
            # Those that this job has joined already are its other loaders. One that it has not is what this one should be.
            what = min(misfits, key=len)
            raise ConfigError(f"this loader does not fit the group {name!r}: " + "; ".join(what))
        stream = _open(folder, about, budget_bytes)
        entered.add(stream.name)
        return _join(stream, label, opens=True), about


def _strangers(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    if theirs["version"] != ours["version"]:
        return [f"it was opened by a stoker whose groups have version {theirs['version']}, and this is {ours['version']}"]
    if theirs["namespace"] != ours["namespace"]:
        return ["it was opened in another container: members must see each other's processes"]
    return []


@contextlib.contextmanager
def _door(name: str) -> Iterator[Path]:
    """Alone with a group's folder, which is there."""
    folder = home() / name
    with inside(), _at_door:
        yield from _doors(folder)


def _doors(folder: Path) -> Iterator[Path]:
    for one in (home().parent, home()):
        one.mkdir(mode=0o700, exist_ok=True)
        check_alone(one)
    path = folder / "door"
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            check_alone(folder)
            descriptor = open_lock(path, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue  # the last member has just gone, and taken the folder along
        try:
            with locked(descriptor, path):
                try:
                    is_same = os.path.samestat(os.fstat(descriptor), os.stat(path))
                except FileNotFoundError:
                    is_same = False
                if is_same:
                    yield folder
                    return
        finally:
            close_lock(descriptor)


def _open(folder: Path, about: dict[str, Any], budget_bytes: int) -> Path:
    """A new one, with nobody in it yet. If this process dies on the way, the next at the door removes what is there."""
    stream = folder / secrets.token_hex(8)
    stream.mkdir(mode=0o700)
    Table.create(stream / "table", Slots(Room(budget_bytes)).values())
    path = stream / "about"
    path.touch(mode=0o600)
    path.write_text(json.dumps(about))
    return stream


def _living(stream: Path) -> dict[str, Any] | None:
    """What is common to the members of one; None if all are dead, and then it is removed."""
    with contextlib.suppress(FileNotFoundError, ValueError):  # its opener died while opening
        about: dict[str, Any] = json.loads((stream / "about").read_text())
        if about["version"] != VERSION:
            return about
        table = Table(stream / "table", Slots.of)
        try:
            with table.change() as slots:
                if about["namespace"] == process.namespace():  # elsewhere pids mean something else
                    slots.sweep(process.is_alive)
                if slots.members:
                    return about
        finally:
            table.close()
    shutil.rmtree(stream, ignore_errors=True)
    return None


def _join(stream: Path, label: str, *, opens: bool = False) -> Address:
    table = Table(stream / "table", Slots.of)
    own = own_process()
    try:
        descriptor = os.memfd_create("stoker", os.MFD_CLOEXEC) if opens else _open_memory(table)
        try:
            os.ftruncate(descriptor, _STRIDE * _SLOTS)
            with table.change() as slots:
                number = slots.join(own, label, descriptor, time.monotonic())
        except BaseException:
            os.close(descriptor)
            raise
    finally:
        table.close()
    return Address(str(stream), number, own[0], descriptor)


def _open_memory(table: Table) -> int:
    with table.look() as slots:
        members = list(slots.members.values())
    failure: OSError | None = None
    for member in members:
        try:
            return os.open(f"/proc/{member.process[0]}/fd/{member.descriptor}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            failure = error
    raise ResourceError(f"the group's memory cannot be opened through any of its members: {failure}")


def _leave(staging: Staging, owner: int) -> None:
    """A member goes. It may be the garbage collector who says so, at any line."""
    when_outside(lambda: _leave_now(staging, owner))


def _leave_now(staging: Staging, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            leave(staging)
        staging.close()


def leave(staging: Staging) -> None:
    """Take a member's leave, for it or for one that is dead. The last one takes everything along."""
    folder = staging.folder
    with staging.table.change() as slots:  # first, as the door may not open: too many files are open, perhaps
        slots.leave(staging.member, process.is_alive)
    with _door(folder.parent.name) as group:
        with staging.table.change() as slots:
            slots.sweep(process.is_alive)
        if not slots.members:
            shutil.rmtree(folder, ignore_errors=True)
        if not any(one.is_dir() for one in group.iterdir()):
            shutil.rmtree(group, ignore_errors=True)


def sweep() -> None:
    """Remove groups whose members are all dead."""
    if not home().is_dir():
        return
    for group in list(home().iterdir()):
        with contextlib.suppress(OSError), _door(group.name) as folder:
            for stream in list(folder.iterdir()):
                if stream.is_dir():
                    _living(stream)
            if not any(one.is_dir() for one in folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)


# ---- looking from outside


def groups_of(loaders: Iterable[Seen]) -> dict[groups.Key, groups.Group]:
    """The groups that loaders are in, as they are now. Nothing is changed, and nobody is waited for or kept waiting."""
    found: dict[groups.Key, groups.Group] = {}
    namespace = process.namespace()
    for seen in loaders:
        facts = seen.facts
        if facts.key not in found and _NAME.fullmatch(facts.group) and _NAME.fullmatch(facts.stream):
            folder = home() / facts.group
            with contextlib.suppress(OSError, ValueError, TypeError):  # it has just gone, or is of another version
                for one in (home().parent, home(), folder):
                    check_alone(one)
                table = os.open(folder / facts.stream / "table", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    slots, holder = _glance(table), _holder_of(table)
                finally:
                    os.close(table)
                if slots is not None:
                    found[facts.key] = _group(facts.key, slots, holder, is_here=facts.namespace == namespace)
    return found


def _glance(table: int) -> Slots | None:
    """A table, without its lock, which one that is stopped may hold. None if it never rests.

    The half that holds is not written to; and if another came to hold and this one again, it does not read the same twice.
    """
    if os.pread(table, len(_MAGIC), 0) != _MAGIC:
        return None
    before = None
    for _ in range(_GLANCES):
        held = int.from_bytes(os.pread(table, 8, _HOLDS_AT), "little")
        start = _HALVES_AT + (held & 1) * _HALF_BYTES
        length = int.from_bytes(os.pread(table, 8, start), "little")
        content = os.pread(table, min(length, _HALF_BYTES), start + 8)
        if before == (held, content):
            return Slots.of(marshal.loads(content))
        before = held, content
    return None


def _group(key: groups.Key, slots: Slots, holder: str, *, is_here: bool) -> groups.Group:
    """A group as others see it, without the dead; in another container nobody can be judged."""
    everybody = {one for member in slots.members.values() for one in (member.process, *member.workers)}
    living = {one for one in everybody if not is_here or process.is_alive(*one)}
    found = [(pid, process.find(pid)) for pid, _ in living] if is_here else []
    stopped = {pid for pid, one in found if one is not None and one.is_stopped}
    for number in [number for number, member in slots.members.items() if member.process not in living]:
        del slots.members[number]
    begun = [member for member in slots.members.values() if not member.is_fresh] or slots.members.values()
    first = max((member.place for member in begun), default=(0, 0))
    members = []
    for member in slots.members.values():
        workers = tuple(one[0] for one in member.workers if one in living)
        members.append(
            groups.Member(
                number=member.number,
                pid=member.process[0],
                script=member.label,
                workers=workers,
                epoch=member.epoch,
                step=member.step,
                behind=_behind(slots, member.place, first),
                is_reading=member.is_reading,
                is_passed=member.is_passed,
                stopped=tuple(sorted({member.process[0], *workers} & stopped)),
                waits=_waits(slots, member),
            )
        )
    return groups.Group(
        *key,
        members=tuple(members),
        prepared=slots.prepared,
        repeated=slots.repeated,
        taken_over=slots.taken_over,
        passed_by=slots.passed_by,
        staging_bytes=slots.room.staged_bytes,
        most_bytes=slots.room.most_bytes,
        budget_bytes=slots.room.budget_bytes,
        locked_by=int(holder.split()[-1]) if is_here and holder.split()[-1].isdigit() else 0,
    )


def _behind(slots: Slots, place: Place, first: Place) -> int:
    """Batches between two places, as if all epochs had as many as those that are known."""
    steps = max((epoch.steps for epoch in slots.epochs.values()), default=0)
    return max(0, (first[0] - place[0]) * steps + first[1] - place[1])


def _waits(slots: Slots, member: Member) -> groups.Waits | None:
    batch = slots.batches.get(member.place)
    if not member.is_reading or (batch is not None and batch.state == READY):
        return None
    reason = slots.reason(member.number)
    other = slots.members.get(reason.member)
    if reason.kind != groups.ROOM and batch is not None:
        pid = batch.process[0]
    else:
        pid = other.process[0] if other is not None else 0
    return groups.Waits(reason.kind, None if other is None else other.number, pid)
