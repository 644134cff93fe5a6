"""Groups as `stoker top` sees them. Nothing here changes a group or waits for its lock."""

import contextlib
import json
import os
from collections.abc import Iterable

from stoker.group.door import GROUP_VERSION, NAME, home
from stoker.group.life import AWAITED, FRESH, LEAVING
from stoker.group.records import Member, Point
from stoker.group.state import GroupState
from stoker.group.table import glance
from stoker.host import folders, process
from stoker.host.locks import holder_of
from stoker.live import groups
from stoker.live.record import Seen


def groups_of(loaders: Iterable[Seen]) -> dict[groups.Key, groups.GroupView]:
    """The groups that loaders are in, as they are now."""
    found: dict[groups.Key, groups.GroupView] = {}
    namespace = process.namespace()
    for seen in loaders:
        facts = seen.facts
        if facts.key not in found and NAME.fullmatch(facts.group) and NAME.fullmatch(facts.stream):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # it has just gone
                folder = home() / facts.group
                folders.check(folder.parent.parent, folder.parent, folder)
                if json.loads((folder / facts.stream / "about").read_text())["version"] != GROUP_VERSION:
                    continue  # its table is of another version
                table = os.open(folder / facts.stream / "table", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    values, holder = glance(table), holder_of(table)
                finally:
                    os.close(table)
                if values is not None:
                    found[facts.key] = _group(
                        facts.key, GroupState.of(values), holder, is_here=facts.namespace == namespace
                    )
    return found


def _group(key: groups.Key, state: GroupState, holder: str, *, is_here: bool) -> groups.GroupView:
    """A group without its dead members. In a group of another container nobody here can tell which are dead."""
    everybody = {one for member in state.members.values() for one in (member.process, *member.workers)}
    living = {one for one in everybody if not is_here or process.is_alive(*one)}
    found = [(pid, process.find(pid)) for pid, _ in living] if is_here else []
    stopped = {pid for pid, one in found if one is not None and one.is_stopped}
    for number in [number for number, member in state.members.items() if member.process not in living]:
        del state.members[number]
    begun = [member for member in state.members.values() if member.phase != FRESH] or state.members.values()
    first = max((member.point for member in begun), default=(0, 0))
    members = []
    for member in state.members.values():
        workers = tuple(one[0] for one in member.workers if one in living)
        members.append(
            groups.MemberView(
                number=member.number,
                pid=member.process[0],
                script=member.label,
                workers=workers,
                epoch=member.epoch,
                step=member.step,
                behind=_behind(state, member.point, first),
                is_reading=_is_reading(member),
                is_passed=member.standing != AWAITED,
                stopped=tuple(sorted({member.process[0], *workers} & stopped)),
                waits=_waits(state, member),
            )
        )
    return groups.GroupView(
        *key,
        members=tuple(members),
        prepared=state.prepared,
        repeated=state.repeated,
        taken_over=state.taken_over,
        passed_by=state.passed_by,
        staging_bytes=state.room.staged_bytes,
        most_bytes=state.room.most_bytes,
        budget_bytes=state.room.budget_bytes,
        locked_by=int(holder.split()[-1]) if is_here and holder.split()[-1].isdigit() else 0,
    )


def _behind(state: GroupState, point: Point, first: Point) -> int:
    """The number of batches between two points. Epochs of unknown length count as long as known ones."""
    steps = max((epoch.steps for epoch in state.epochs.values()), default=0)
    return max(0, (first[0] - point[0]) * steps + first[1] - point[1])


def _is_reading(member: Member) -> bool:
    return member.is_reading and member.standing != LEAVING


def _waits(state: GroupState, member: Member) -> groups.Waits | None:
    if not _is_reading(member) or state.ready_batch(member.number) is not None:
        return None
    batch = state.batches.get(member.point)
    reason = state.reason(member.number)
    other = state.members.get(reason.member)
    if reason.kind != groups.ROOM and batch is not None:
        pid = batch.process[0]
    else:
        pid = other.process[0] if other is not None else 0
    return groups.Waits(reason.kind, None if other is None else other.number, pid)
