"""A hint on what holds a training loop up: which process it waits for, or which stage is the limit. Pure."""

from collections.abc import Callable

from stoker.live import groups
from stoker.live.doing import STOPPED
from stoker.live.groups import GroupView, MemberView, Waits
from stoker.live.row import LoaderRow

_BOUND = 0.1
"""A loop that waits for this share of its time has a limit to be named."""
_BUSY = 0.9
_SOON_S = 0.5
"""In a group it is known from the start who must read first, so a wait for that has a name early."""


def stall(row: LoaderRow, words: str) -> str:
    """The process that a stalled loop waits for, in words."""
    seen = row.seen
    if seen.facts.group:
        who = f"process {seen.late_pid}, in" if seen.late_pid else "others, in"
        who, words = f"{who} the group {seen.facts.group}", words if seen.late_pid else ""
    elif not seen.workers:
        who = f"its own process {seen.facts.pid}, which prepares the batches itself"
    elif seen.facts.kind == "threads":
        who = f"a worker thread of process {seen.facts.pid}"
    elif seen.late_pid:
        who = f"worker pid {seen.late_pid}"
    else:
        who = f"one of {seen.workers} workers" if seen.workers > 1 else "its only worker"
        words = ""
    pid = seen.late_pid or seen.facts.pid
    doing = f" ({words}; `py-spy dump --pid {pid}` shows where)" if words else ""
    return f"waiting {row.waiting_s:.0f} s for {who}{doing}"


def limit(row: LoaderRow) -> str:
    """The limit of a loop that waits for a good part of its time, in words."""
    seen, group = row.seen, row.group
    workers, whose, are = seen.workers, "workers", "are"
    if group is not None:
        workers, whose = group.workers, _workers(group)
        are = "is" if workers == 1 else "are"
    words = []
    if row.waiting >= _BOUND and row.state in ("waits", "trains") and row.batches_per_s:
        if row.fetch is not None and row.fetch > 0.5:
            words.append("fetch-bound: " + ("no cache" if row.hits is None else f"hits {_percent(row.hits)}"))
        elif not workers and (group is not None or not seen.facts.group):
            words.append("prep-bound: the loop prepares its batches itself (num_workers=0)")
        elif row.busy is not None and row.busy >= _BUSY:
            words.append(f"prep-bound: {whose} {are} busy {_percent(row.busy)} of the time")
        elif row.busy is not None:
            words.append(f"waits with {whose} {_percent(row.busy)} busy: single slow batches, or too many small ones")
    if seen.faults:
        often = "once" if seen.faults == 1 else f"{seen.faults} times"
        words.append(f"the cache failed {often}, and storage was read instead")
    return "; ".join(words)


def _workers(group: GroupView) -> str:
    return f"the {f'{group.workers} workers' if group.workers != 1 else 'only worker'} of the group {group.name}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


# ---- in a group

Doing = Callable[[int], str]
"""What a process is busy with, in words."""


def in_group(row: LoaderRow, own: MemberView, slow: Waits | None, doing: Doing) -> str:
    """The hint for a loader of a group. `slow` is what it waited for just now; the row's workers are the group's."""
    assert row.group is not None
    waits = own.waits if row.waiting_s else None
    is_due = row.is_stalled and row.waiting_s > 0
    is_next = waits is not None and waits.kind == groups.ROOM and (is_due or row.waiting_s >= _SOON_S)
    stopped = _stopped(row.group, own, also_passed=is_due)
    if stopped is not None and not (is_next and waits is not None and waits.pid == stopped[1]):
        words = _is_stopped(row.group, own, *stopped)
        return f"waiting {row.waiting_s:.0f} s: {words}" if is_due else words
    if waits is not None and (is_due or is_next):
        return f"waiting {row.waiting_s:.0f} s for {_awaited(row.group, own, waits, doing)}"
    if is_due and row.group.locked_by:
        holder = f"process {row.group.locked_by}, which holds the lock of the group {row.group.name}"
        return f"waiting {row.waiting_s:.0f} s for {holder} ({doing(row.group.locked_by)})"
    if row.is_stalled:
        return row.hint
    if slow is not None and row.waiting >= _BOUND and row.group.member(slow.member) not in (None, own):
        return f"waits for {_awaited(row.group, own, slow, doing)}"
    return limit(row)


def _stopped(group: GroupView, own: MemberView, *, also_passed: bool) -> tuple[MemberView, int] | None:
    """A suspended process that others will wait for: the loader's own, or else the last member's."""
    found = [one for one in group.members if one.stopped and (one is own or also_passed or not one.is_passed)]
    found.sort(key=lambda one: (one is not own, one.is_passed, -one.behind))
    if not found:
        return None
    return found[0], found[0].pid if found[0].pid in found[0].stopped else found[0].stopped[0]


def _is_stopped(group: GroupView, own: MemberView, member: MemberView, pid: int) -> str:
    others = len(group.members) - 1
    if pid != member.pid:
        whose = "" if member is own else f" of {member.name}, in the group {group.name},"
        return f"worker pid {pid}{whose} is {STOPPED} (`kill -CONT {pid}`)"
    if member is own:
        held_up = f"; {others} others in the group {group.name} wait for it" if others > 1 else ""
        held_up = f"; another in the group {group.name} waits for it" if others == 1 else held_up
        return f"{STOPPED} (`kill -CONT {pid}`){held_up}"
    return f"{member.name} is {STOPPED} (`kill -CONT {pid}`), {behind(member)} in the group {group.name}"


def _awaited(group: GroupView, own: MemberView, waits: Waits, doing: Doing) -> str:
    member = group.member(waits.member)
    if waits.kind == groups.NOBODY:
        return f"workers, of which the group {group.name} has none"
    if member is None:
        return f"one of {_workers(group)}" if group.workers > 1 else _workers(group)
    if waits.kind == groups.ROOM:
        where = "" if member.is_reading else " and is not within an epoch"
        words = doing(member.pid).removeprefix("prep: ").removeprefix("fetch: ")
        words = f"{words}: `kill -CONT {member.pid}`" if member.pid in member.stopped else words
        return f"{member.name}, which is {behind(member)} in the group {group.name}{where} ({words})"
    if waits.pid == member.pid:
        who = "itself" if member.workers else "itself, without workers"
    else:
        who = f"worker pid {waits.pid}"
    words = f"{doing(waits.pid)}; `py-spy dump --pid {waits.pid}` shows where"
    if member is own:
        return f"{who} ({words})"
    return f"{member.name}, which prepares it in the group {group.name}: {who} ({words})"


def behind(member: MemberView) -> str:
    """How far a member is behind, in words."""
    return f"{member.behind:,} batch{'' if member.behind == 1 else 'es'} behind"
