"""The rules of a group: whatever its jobs do, everybody reads everything once and in order, and nobody waits for ever."""

import contextlib
import marshal
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker.group import life, rules
from stoker.group.answers import Draw, LetGo, Prepare, Task, TooLarge, WaitForRoom
from stoker.group.life import AWAITED, COPYING, FILLING, LEAVING, PASSED_BY, READY, WAITING, WANTS_ROOM
from stoker.group.records import NOWHERE, Point, Reason
from stoker.group.room import ProcessId, Slot, StagingRoom
from stoker.group.rules import Group

MOST_ROUNDS = 2000


class Hand:
    """Somebody who prepares: a worker, or a reader that has to do it itself."""

    def __init__(self, process: ProcessId) -> None:
        self.process = process
        self.point: Point | None = None
        self.size = 0
        self.slot = NOWHERE

    def __repr__(self) -> str:
        return f"<{self.process[0]} has {self.point}, {self.size} bytes in {self.slot}>"


class Job:
    """A member, as the process that it is."""

    def __init__(self, number: int, process: ProcessId) -> None:
        self.number = number
        self.process = process
        self.own = Hand(process)
        self.hands: list[Hand] = []
        self.prepares = True
        self.expected: Point | None = None
        self.slot = NOWHERE
        self.is_late = False


class World:
    """Jobs and their workers, each of which does one transaction at a time."""

    def __init__(self, budget: int, lengths: list[int], sizes: list[int]) -> None:
        self.group = Group(StagingRoom(budget), cores=1 + budget % 3)
        self.budget, self.lengths, self.sizes = budget, lengths, sizes
        self.jobs: dict[int, Job] = {}
        self.orphans: list[tuple[int, Hand]] = []
        self.dead: set[ProcessId] = set()
        self.content: dict[int, Point | None] = {}
        self.published: list[Point] = []
        self.finished: list[tuple[int, int]] = []
        self.now = 0.0
        self._pids = 0

    @contextlib.contextmanager
    def change(self) -> Iterator[Group]:
        """As the table does it: whole or not at all, from values and back to values."""
        self.now += 1
        before = self.group.values()
        group = Group.of(marshal.loads(marshal.dumps(before)))
        assert group.values()[1:4] == before[1:4]
        yield group
        self.group = Group.of(marshal.loads(marshal.dumps(group.values())))
        self.check()

    def is_alive(self, pid: int, started: int) -> bool:
        return (pid, started) not in self.dead

    def process(self) -> ProcessId:
        self._pids += 1
        return self._pids, 0

    def steps_of(self, epoch: int) -> int:
        return self.lengths[epoch % len(self.lengths)]

    def size_of(self, point: Point) -> int:
        return self.sizes[(7 * point[0] + point[1]) % len(self.sizes)]

    # ---- what members do

    def join(self, workers: int, *, counts: bool = False) -> Job:
        process = self.process()
        with self.change() as group:
            number = group.join(process, "job", 3, self.now, counts=counts)
        job = self.jobs[number] = Job(number, process)
        for _ in range(workers):
            self.add_worker(job)
        return job

    def add_worker(self, job: Job) -> None:
        job.prepares = False
        job.hands.append(Hand(self.process()))
        with self.change() as group:
            group.add_worker(job.number, job.hands[-1].process)

    def begin(self, job: Job) -> None:
        with self.change() as group:
            group.begin(job.number, self.now)
            member = group.members[job.number]
            assert member.is_reading
            job.expected, job.slot = member.point, NOWHERE

    def rest(self, job: Job) -> None:
        with self.change() as group:
            group.rest(job.number, self.now)
        job.expected, job.slot = None, NOWHERE

    def restore(self, job: Job, point: Point) -> bool:
        with self.change() as group:
            in_step = group.restore(job.number, point, self.now)
            assert group.members[job.number].point == point
        job.expected, job.slot = None, NOWHERE
        return in_step

    def pass_by(self, number: int) -> None:
        with self.change() as group:
            group.pass_by(number)

    def leave(self, job: Job) -> None:
        with self.change() as group:
            group.leave(job.number, self.is_alive)
        self._forget(job)

    def die(self, job: Job, *, alone: bool) -> None:
        """Killed; its workers go with it, or find out later."""
        self.dead.add(job.process)
        self._forget(job)
        job.own.point = None
        if not alone:
            for hand in job.hands:
                self.dead.add(hand.process)

    def _forget(self, job: Job) -> None:
        del self.jobs[job.number]
        self.orphans += [(job.number, hand) for hand in (*job.hands, job.own)]

    def sweep(self) -> None:
        with self.change() as group:
            group.sweep(self.is_alive)

    def read(self, job: Job) -> bool:
        """One thing that a reader does. False if it can only wait."""
        if job.expected is None:
            return False
        if job.own.point is not None:
            return self.work(job.number, job.own)
        if job.slot != NOWHERE:
            assert self.content[job.slot] == job.expected, "somebody wrote while it was copied"
            with self.change() as group:
                group.finish_copying(job.number, self.now)
            job.expected, job.slot = (job.expected[0], job.expected[1] + 1), NOWHERE
            job.is_late = False
            return True
        own: Task | None = None
        was_waiting = self.group.members[job.number].phase == WAITING
        with self.change() as group:
            member = group.members[job.number]
            if member.standing == LEAVING:
                return False
            assert member.point == job.expected
            if group.has_read_all(job.number):
                group.finish_epoch(job.number)
                assert job.expected[1] >= self.steps_of(job.expected[0])
                self.finished.append((job.number, job.expected[0]))
                job.expected = None
                return True
            batch = group.ready_batch(job.number)
            if batch is not None:
                group.start_copying(job.number)
                assert batch.point == job.expected
                job.slot = batch.slot
                assert self.content[job.slot] == job.expected
                return True
            group.start_waiting(job.number)
            if job.prepares and group.lacks_workers(job.number, is_late=job.is_late):
                own = group.claim(job.number, job.process)
                self._take_on(job.own, own, group)
        return own is not None or not was_waiting

    # ---- what workers do

    def _take_on(self, hand: Hand, task: Task | None, group: Group) -> None:
        if isinstance(task, Draw):
            group.draw(task.epoch, self.steps_of(task.epoch), "")
        elif task is not None:
            epoch, step = task.point
            assert step < self.steps_of(epoch)
            hand.point, hand.size, hand.slot = task.point, self.size_of(task.point), NOWHERE

    def work(self, number: int, hand: Hand) -> bool:
        """One thing that a worker does, or a reader that prepares. False if it can only wait."""
        if hand.point is None:
            with self.change() as group:
                if number not in group.members:
                    return False
                task = group.claim(number, hand.process)
                self._take_on(hand, task, group)
            return task is not None
        if hand.slot == NOWHERE:
            return self._find_slot(number, hand)
        self.content[hand.slot] = hand.point  # until here it may write
        with self.change() as group:
            if group.publish(hand.point, hand.process, hand.slot, hand.size):
                self.published.append(hand.point)
            else:
                group.let_go(hand.point, hand.process, hand.slot)
            hand.point, hand.slot = None, NOWHERE
        return True

    def _find_slot(self, number: int, hand: Hand) -> bool:
        assert hand.point is not None
        with self.change() as group:
            reserved = group.reserve(hand.point, hand.process)
            if reserved is not None:
                self._discard(reserved)
                if hand.size <= reserved.size:
                    hand.slot = reserved.number
                    return True
                group.give_back(hand.point, hand.process, reserved.number)  # the batch turns out to be larger
        was = self.group.batches.get(hand.point)
        has_waited = was is not None and was.state == WANTS_ROOM
        with self.change() as group:
            before = values_of(group)
            answer = group.assign_slot(hand.point, hand.process, hand.size) if number in group.members else LetGo()
            assert not isinstance(answer, LetGo | TooLarge) or values_of(group) == before, "a refusal changes something"
            if isinstance(answer, Slot):
                hand.slot = answer.number
                self._discard(answer)
        match answer:
            case LetGo():
                with self.change() as group:
                    group.let_go(hand.point, hand.process)
                hand.point = None
            case TooLarge(budget_bytes):
                assert hand.size > budget_bytes
                hand.size = 1  # an error is staged in place of the batch
        return answer != WaitForRoom() or not has_waited

    def _discard(self, slot: Slot) -> None:
        for one in (slot.number, *slot.given_back):
            self.content[one] = None

    # ---- what always holds

    def hands(self) -> Iterator[tuple[int, Hand]]:
        for job in self.jobs.values():
            for hand in (*job.hands, job.own):
                yield job.number, hand
        yield from self.orphans

    def check(self) -> None:
        group = self.group
        assert group.room.staged_bytes <= self.budget
        assert group.room.most_bytes <= self.budget
        writers = [hand for _, hand in self.hands() if hand.slot != NOWHERE and hand.process not in self.dead]
        assert len({hand.slot for hand in writers}) == len(writers), "a slot has two writers"
        in_use = [batch.slot for batch in group.batches.values() if batch.slot != NOWHERE]
        assert len(set(in_use)) == len(in_use), "two batches in one slot"
        assert not set(in_use) & group.room.lost.keys()
        written = {hand.slot for hand in writers}
        for batch in group.batches.values():
            assert (batch.slot != NOWHERE) == (batch.state in (FILLING, READY))
            assert batch.state != READY or batch.slot not in written, "a batch is overwritten"
            holders = [hand for _, hand in self.hands() if hand.point == batch.point and hand.process == batch.process]
            assert batch.state == READY or batch.process in self.dead or len(holders) == 1
        for member in group.members.values():
            batch_here = group.batches.get(member.point)
            assert member.phase != COPYING or (batch_here is not None and batch_here.state == READY)

    # ---- everybody goes on

    def run_to_the_end(self, seed: int, stopped: set[int]) -> None:
        """All go on, but for members that are stopped, whom others pass by. Nobody must wait for ever."""
        order = random.Random(seed)
        for _ in range(MOST_ROUNDS):
            self.sweep()
            going = [job for job in self.jobs.values() if job.number not in stopped]
            if all(job.expected is None for job in going):
                return
            turns: list[Any] = [(self.read, job) for job in going]
            turns += [(self.work, job.number, hand) for job in going for hand in job.hands if hand.process not in self.dead]
            turns += [
                (self.work, *orphan) for orphan in self.orphans if orphan[1].point and orphan[1].process not in self.dead
            ]
            order.shuffle(turns)
            has_gone_on = [act(*arguments) for act, *arguments in turns]
            if not any(has_gone_on) and not self._lose_patience(going, stopped):
                raise AssertionError(f"all wait for ever: {self.group}, {list(self.hands())}")
        raise AssertionError(f"nobody comes to an end: {self.group}")

    def _lose_patience(self, going: list[Job], stopped: set[int]) -> bool:
        """Time goes by."""
        hopeful = [job for job in going if job.expected is not None and job.prepares and not job.is_late]
        for job in hopeful:
            job.is_late = True
        if hopeful:
            return True
        for job in going:
            if job.expected is not None:
                reason = self.group.reason(job.number)
                late = self.group.members.get(reason.member)
                if reason.kind == "asleep":
                    with self.change() as group:
                        group.stop_waiting(reason.member)
                    return True
                may_be_passed = reason.kind == "room" and late is not None and not late.is_reading
                if reason.member != job.number and (may_be_passed or reason.member in stopped):
                    self.pass_by(reason.member)
                    return True
        return False


def values_of(group: Group) -> list[Any]:
    """What a group consists of now, which later changes do not touch."""
    values: list[Any] = marshal.loads(marshal.dumps(group.values()))
    return values


def go_on(world: World, chance: random.Random, many: int) -> None:
    """Everybody does a little."""
    jobs = list(world.jobs.values())
    turns: list[Any] = [(world.read, job) for job in jobs]
    turns += [(world.work, job.number, hand) for job in jobs for hand in job.hands]
    turns += [(world.work, number, hand) for number, hand in world.orphans if hand.process not in world.dead]
    for _ in range(many if turns else 0):
        act, *arguments = chance.choice(turns)
        act(*arguments)


DISTURBANCES = ["rest", "restore", "pass_by", "leave", "kill", "kill alone", "kill worker", "retire"]


def disturb(world: World, job: Job, how: str, chance: random.Random) -> None:
    is_reader_free = job.own.point is None
    if how == "rest" and is_reader_free:
        world.rest(job)
    elif how == "restore" and is_reader_free:
        epoch = max(0, world.group.members[job.number].epoch + chance.randint(-2, 1))
        world.restore(job, (epoch, chance.randint(0, world.steps_of(epoch))))
    elif how == "pass_by":
        world.pass_by(job.number)
    elif how == "leave":
        world.leave(job)
    elif how == "retire" and is_reader_free:
        with world.change() as group:
            group.retire(job.number)
        go_on(world, chance, 10)
        world.leave(job)
    elif how in ("kill", "kill alone"):
        world.die(job, alone=how == "kill alone")
    elif how == "kill worker" and job.hands:
        # It is replaced at once: a job does not go on without the workers that it has begun with.
        world.dead.add(job.hands.pop(chance.randrange(len(job.hands))).process)
        world.add_worker(job)


def may_be_stopped(world: World) -> list[int]:
    """All but those who are in the middle of copying, which is short: their bytes are not to be had."""
    return [
        job.number
        for job in world.jobs.values()
        if job.slot == NOWHERE and all(hand.slot == NOWHERE for hand in (*job.hands, job.own))
    ]


class Groups(RuleBasedStateMachine):
    """Jobs come, go, die, are restored and stopped at any moment."""

    @initialize(
        budget=st.integers(1, 12),
        lengths=st.lists(st.integers(0, 7), min_size=1, max_size=3).filter(any),
        sizes=st.lists(st.integers(1, 5), min_size=1, max_size=7),
        workers=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    )
    def open(self, budget: int, lengths: list[int], sizes: list[int], workers: list[int]) -> None:
        self.world = World(budget, lengths, sizes)
        self.is_undisturbed = True
        for count in workers:
            self.world.join(count)

    def a_job(self, data: st.DataObject) -> Job:
        return data.draw(st.sampled_from([job for _, job in sorted(self.world.jobs.items())]))

    def some(self) -> bool:
        return bool(self.world.jobs)

    @precondition(lambda self: len(self.world.jobs) < 4)
    @rule(workers=st.integers(0, 2), counts=st.booleans())
    def join(self, workers: int, counts: bool) -> None:
        self.world.join(workers, counts=counts)

    @rule()
    def all_begin(self) -> None:
        for job in self.world.jobs.values():
            if job.expected is None:
                self.world.begin(job)

    @precondition(some)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.world.begin(self.a_job(data))

    @precondition(some)
    @rule(data=st.data(), many=st.integers(1, 6))
    def read(self, data: st.DataObject, many: int) -> None:
        job = self.a_job(data)
        for _ in range(many):
            self.world.read(job)

    @precondition(lambda self: any(True for _ in self.world.hands()))
    @rule(data=st.data(), many=st.integers(1, 6))
    def work(self, data: st.DataObject, many: int) -> None:
        world = self.world
        hands = [(number, job_hand) for number, job_hand in world.hands() if job_hand.process not in world.dead]
        readers = {id(job.own) for job in world.jobs.values()}
        hands = [pair for pair in hands if id(pair[1]) not in readers]
        if hands:
            number, hand = data.draw(st.sampled_from(hands))
            for _ in range(many):
                world.work(number, hand)

    @rule(seed=st.integers(0, 99), many=st.integers(1, 40))
    def go_on(self, seed: int, many: int) -> None:
        go_on(self.world, random.Random(seed), many)

    @precondition(some)
    @rule(data=st.data(), how=st.sampled_from(DISTURBANCES), seed=st.integers(0, 999))
    def disturb(self, data: st.DataObject, how: str, seed: int) -> None:
        self.is_undisturbed = False
        disturb(self.world, self.a_job(data), how, random.Random(seed))

    @rule()
    def sweep(self) -> None:
        self.world.sweep()

    @precondition(some)
    @rule(data=st.data(), seed=st.integers(0, 99))
    def all_go_on(self, data: st.DataObject, seed: int) -> None:
        """But for some that are stopped."""
        world, may_stop = self.world, may_be_stopped(self.world)
        stopped = data.draw(st.sets(st.sampled_from(may_stop))) if may_stop else set()
        self.is_undisturbed = self.is_undisturbed and not stopped
        world.run_to_the_end(seed, stopped)

    @invariant()
    def each_once(self) -> None:
        """Unless somebody dies, is restored or dropped, or makes room."""
        world = getattr(self, "world", None)
        if world is not None and self.is_undisturbed and not world.group.repeated and not world.group.taken_over:
            assert len(set(world.published)) == len(world.published) == world.group.prepared

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.run_to_the_end(0, set())


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_whatever_happens_all_come_to_an_end(first: int) -> None:
    for seed in range(first, first + 100):
        chance = random.Random(seed)
        lengths = [chance.randint(0, 9) for _ in range(2)] + [5]
        world = World(chance.randint(1, 16), lengths, [chance.randint(1, 5) for _ in range(chance.randint(1, 6))])
        for _ in range(chance.randint(1, 4)):
            world.join(chance.choice([0, 0, 1, 2, 3]), counts=bool(seed % 2))
        for _ in range(chance.randint(1, 8)):
            for job in list(world.jobs.values()):
                if job.expected is None and chance.random() < 0.6:
                    world.begin(job)
            go_on(world, chance, chance.randint(1, 60))
            if world.jobs and chance.random() < 0.6:
                disturb(world, chance.choice(list(world.jobs.values())), chance.choice(DISTURBANCES), chance)
            if len(world.jobs) < 4 and chance.random() < 0.2:
                world.join(chance.randint(0, 2), counts=bool(seed % 2))
        may_stop = may_be_stopped(world)
        world.run_to_the_end(seed, set(chance.sample(may_stop, chance.randint(0, len(may_stop) // 2))))


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# ---- the rules, one by one


def a_world(budget: int = 1000, length: int = 10, size: int = 1, sizes: list[int] | None = None) -> World:
    return World(budget, [length], sizes or [size])


def read_all(world: World, job: Job, up_to: int) -> None:
    """A member reads until it is before a step; others' workers do what they can meanwhile."""
    for _ in range(500):
        if job.expected is None or (job.expected[1] >= up_to and job.slot == NOWHERE):
            return
        world.read(job)
        for other in list(world.jobs.values()):
            for hand in other.hands:
                world.work(other.number, hand)
    raise AssertionError("it does not get there")


def point_of(world: World, job: Job) -> Point:
    return world.group.members[job.number].point


def test_a_member_joins_for_the_first_epoch_that_has_not_begun() -> None:
    world = a_world()
    first = world.join(1)
    assert point_of(world, world.join(0)) == (0, 0)
    world.begin(first)
    assert point_of(world, world.join(0)) == (0, 0)  # nobody has read of it
    read_all(world, first, 1)
    assert point_of(world, world.join(0)) == (1, 0)


def test_one_that_is_passed_by_catches_up_with_its_own_workers() -> None:
    world = a_world(length=40)
    fast, slow = world.join(1), world.join(1)
    world.begin(fast)
    world.begin(slow)
    read_all(world, fast, 16)
    assert world.group.reason(fast.number) == Reason("room", slow.number)
    world.pass_by(slow.number)
    read_all(world, fast, 30)
    assert world.group.members[slow.number].standing == PASSED_BY
    read_all(world, slow, 30)
    assert world.group.members[slow.number].standing == AWAITED
    assert world.group.repeated > 0
    world.run_to_the_end(0, set())
    assert sorted(world.finished) == [(fast.number, 0), (slow.number, 0)]


def test_one_that_was_passed_by_begins_with_the_others() -> None:
    world = a_world()
    fast, slow = world.join(1), world.join(1)
    for _ in range(2):
        world.begin(fast)
        world.pass_by(slow.number)
        read_all(world, fast, 10)
    world.begin(fast)
    read_all(world, fast, 3)
    world.begin(slow)
    assert point_of(world, slow) == (3, 0)
    assert world.group.members[slow.number].standing == AWAITED


def test_one_that_counts_its_epochs_itself_reads_all_of_them() -> None:
    world = a_world()
    first = world.join(1)
    for _ in range(2):
        world.begin(first)
        read_all(world, first, 10)
        world.read(first)
    late = world.join(1, counts=True)
    for epoch in range(3):
        world.begin(late)
        assert point_of(world, late) == (epoch, 0)
        assert world.group.members[late.number].standing == (PASSED_BY if epoch < 2 else AWAITED)
        read_all(world, late, 10)
        world.read(late)


def test_workers_of_one_that_is_passed_by_go_on_for_the_others() -> None:
    world = a_world(length=40)
    brings, needs = world.join(2), world.join(0)
    world.begin(needs)
    world.pass_by(brings.number)
    read_all(world, needs, 40)
    assert {batch.member for batch in world.group.batches.values()} <= {brings.number}
    assert world.group.prepared == 40


def test_a_state_is_restored_in_step_or_has_to_catch_up() -> None:
    world = a_world(length=40)
    one, two = world.join(1), world.join(1)
    world.begin(one)
    read_all(world, one, 5)
    assert world.restore(two, (0, 3))  # it was waited for at the beginning, so all is there
    world.begin(two)
    assert point_of(world, two) == (0, 3)
    read_all(world, two, 10)
    read_all(world, one, 10)
    assert not world.restore(two, (0, 4))
    assert world.group.members[two.number].standing == PASSED_BY
    world.begin(two)
    world.run_to_the_end(0, set())
    assert len(world.finished) == 2


def test_alone_every_state_is_in_step() -> None:
    world = a_world()
    only = world.join(1)
    world.begin(only)
    read_all(world, only, 8)
    assert world.restore(only, (0, 2))  # in the middle of an epoch, too
    world.begin(only)
    assert point_of(world, only) == (0, 2)
    world.run_to_the_end(0, set())


def test_a_whole_search_is_restored_in_step() -> None:
    world = a_world()
    jobs = [world.join(1) for _ in range(4)]
    for job in jobs[:3]:
        assert world.restore(job, (7, 3))
    assert [point_of(world, job) for job in jobs] == [(7, 3)] * 3 + [(8, 0)]
    assert world.restore(jobs[3], (9, 0))
    assert [point_of(world, job) for job in jobs] == [(7, 3)] * 3 + [(9, 0)]


def test_half_of_the_room_is_for_those_behind() -> None:
    world = a_world(budget=8, length=20)
    behind, ahead = world.join(1), world.join(1)
    world.group.largest = 1
    world.begin(behind)
    read_all(world, behind, 1)
    world.restore(ahead, (1, 0))
    world.begin(ahead)
    for _ in range(100):
        world.read(ahead)
        world.work(ahead.number, ahead.hands[0])
    assert sum(batch.epoch == 1 for batch in world.group.batches.values()) <= 4
    assert world.group.reason(ahead.number) == Reason("room", behind.number)
    world.run_to_the_end(0, set())


def test_the_first_in_line_takes_the_room_of_those_behind_it() -> None:
    world = a_world(budget=4, length=4, sizes=[3, 1, 1, 1])
    job = world.join(2)
    world.begin(job)
    slow, quick = job.hands
    world.work(job.number, slow)  # says how long the epoch is
    world.work(job.number, slow)
    for _ in range(9):
        world.work(job.number, quick)
    assert (slow.point, sorted(world.group.batches)) == ((0, 0), [(0, 0), (0, 1), (0, 2), (0, 3)])
    world.work(job.number, slow)
    assert slow.slot != NOWHERE
    assert world.group.dropped == {(0, 3), (0, 2)}
    world.run_to_the_end(0, set())
    assert world.group.repeated == 2


def test_one_who_waits_for_room_gives_up_for_what_comes_first() -> None:
    world = a_world(budget=4, length=5, sizes=[1, 1, 1, 3, 1])
    job = world.join(2)
    world.begin(job)
    first, second = job.hands
    world.work(job.number, first)
    world.work(job.number, first)
    for _ in range(6):
        world.work(job.number, second)
    world.work(job.number, second)
    assert (first.point, second.point) == ((0, 0), (0, 3))
    world.work(job.number, second)
    assert world.group.batches[0, 3].state == WANTS_ROOM
    assert not world.work(job.number, second)
    world.dead.add(first.process)
    job.hands.remove(first)
    world.run_to_the_end(0, set())
    assert world.group.taken_over >= 1


def test_what_a_worker_may_still_write_to_is_not_given_away() -> None:
    world = a_world(budget=2, length=4)
    leaves, stays = world.join(1), world.join(1)
    world.begin(stays)
    hand = leaves.hands[0]
    while hand.slot == NOWHERE:
        world.work(leaves.number, hand)
    world.leave(leaves)
    assert world.group.room.lost == {hand.slot: hand.process}
    read_all(world, stays, 4)
    assert world.group.room.lost
    world.work(leaves.number, hand)  # it may not publish, and lets go
    assert not world.group.room.lost


def test_a_member_may_stop_in_the_middle_of_an_epoch() -> None:
    world = a_world()
    one, two = world.join(1), world.join(1)
    world.begin(one)
    world.begin(two)
    read_all(world, two, 2)
    world.rest(two)
    assert point_of(world, two) == (1, 0)
    read_all(world, one, 10)
    world.rest(two)
    assert point_of(world, two) == (1, 0)


# ---- states and answers


def a_member_that_is(phase: int) -> tuple[Group, int]:
    """A member in a phase, and the batch that it reads next is ready; another member has prepared it."""
    world = a_world()
    other, job = world.join(1), world.join(0)
    world.begin(other)
    group = world.group
    if phase != life.FRESH:
        group.begin(job.number, 0.0)
    if phase == life.RESTING:
        group.rest(job.number, 0.0)
    if phase in (life.WAITING, life.COPYING):
        group.start_waiting(job.number)
    while group.ready_batch(job.number) is None:
        assert world.work(other.number, other.hands[0])
        group = world.group
    if phase == life.COPYING:
        group.start_copying(job.number)
    assert group.members[job.number].phase == phase
    return group, job.number


def do(group: Group, event: str, number: int) -> None:
    arguments: dict[str, tuple[Any, ...]] = {"restore": ((0, 0), 1.0)}
    arguments |= dict.fromkeys(("begin", "rest", "finish_copying"), (1.0,))
    getattr(group, event)(number, *arguments.get(event, ()))


@pytest.mark.parametrize("phase", range(5), ids=life.PHASE_NAMES)
@pytest.mark.parametrize("event", life.PHASES)
def test_a_member_changes_its_phase_as_the_table_says_or_not_at_all(event: str, phase: int) -> None:
    group, number = a_member_that_is(phase)
    if event == "finish_epoch":
        group.epochs[0].steps = 0
    after = life.PHASES[event].get(phase)
    if after is not None:
        do(group, event, number)
        assert group.members[number].phase == after
    elif event in ("rest", "stop_waiting"):  # nothing is to be done
        do(group, event, number)
        assert group.members[number].phase == phase
    elif event == "begin":  # it rests before, for a moment
        do(group, event, number)
        assert group.members[number].phase == life.READING
    else:
        before = values_of(group)
        with pytest.raises(life.IllegalChange, match=f"{event}: .*{life.PHASE_NAMES[phase]}"):
            do(group, event, number)
        assert values_of(group) == before


def test_only_what_is_ready_is_copied_and_only_what_was_read_is_over() -> None:
    world = a_world()
    job = world.join(1)
    world.begin(job)
    with pytest.raises(life.IllegalChange, match="not ready"):
        world.group.start_copying(job.number)
    with pytest.raises(life.IllegalChange, match="to read"):
        world.group.finish_epoch(job.number)


def test_one_that_is_about_to_leave_is_never_waited_for_again() -> None:
    world = a_world()
    stays, leaves = world.join(1), world.join(1)
    for standing in (AWAITED, PASSED_BY):
        group = Group.of(world.group.values())
        member = group.members[leaves.number]
        if standing == PASSED_BY:
            group.pass_by(leaves.number)
        assert member.standing == standing
        group.retire(leaves.number)
        for happens in (
            lambda group=group: group.retire(leaves.number),
            lambda group=group: group.pass_by(leaves.number),
            lambda group=group: group.begin(leaves.number, 1.0),
            lambda group=group: group.rest(leaves.number, 1.0),
            lambda group=group: group.restore(leaves.number, (5, 0), 1.0),
            lambda group=group: group.begin(leaves.number, 1.0),
        ):
            happens()
            assert member.standing == LEAVING
            assert [one.number for one in group.awaited()] == [stays.number]
            assert group.claim(leaves.number, leaves.hands[0].process) is None
    with pytest.raises(life.IllegalChange, match="LEAVING"):
        member.change_standing("catch_up")


def test_one_that_retires_keeps_what_it_copies_and_frees_what_it_waits_for() -> None:
    for phase, is_kept in ((life.COPYING, True), (life.WAITING, False)):
        group, number = a_member_that_is(phase)
        batch = group.ready_batch(number)
        assert batch is not None
        assert group.is_held(batch.point)
        group.retire(number)
        assert group.is_held(batch.point) is is_kept


def test_all_states_are_in_the_diagrams() -> None:
    text = rules.__doc__ or ""
    for name in (*life.BATCH_NAMES, *life.PHASE_NAMES, *life.STANDING_NAMES, *life.PHASES, *life.STANDINGS):
        assert f" {name} " in text
        assert not hasattr(life, name) or isinstance(getattr(life, name), int)
    for names in (life.BATCH_NAMES, life.PHASE_NAMES, life.STANDING_NAMES):
        assert [getattr(life, name) for name in names] == list(range(len(names)))


def test_a_process_that_asks_for_room_is_answered() -> None:
    world = a_world(budget=5, length=4)
    job = world.join(3)
    world.begin(job)
    one, two, three = (hand.process for hand in job.hands)
    group = world.group
    assert group.claim(job.number, one) == Draw(0)
    group.draw(0, 4, "")
    assert [group.claim(job.number, process) for process in (one, two, three)] == [Prepare((0, step)) for step in range(3)]
    assert group.assign_slot((0, 0), two, 3) == LetGo()  # it is another's
    assert group.assign_slot((0, 3), two, 3) == LetGo()  # nobody has claimed it
    assert group.assign_slot((0, 2), three, 9) == TooLarge(5)
    assert group.reserve((0, 0), one) is None  # no size is known yet
    assert group.assign_slot((0, 0), one, 4) == Slot(0, 4)
    assert group.assign_slot((0, 1), two, 2) == WaitForRoom()
    assert group.batches[0, 1].state == WANTS_ROOM
    assert group.publish((0, 0), one, 0, 4)
    group.start_copying(job.number)
    assert group.assign_slot((0, 1), two, 2) == WaitForRoom()
    group.finish_copying(job.number, 1.0)
    assert group.assign_slot((0, 1), two, 5) == Slot(0, 5)
    assert not group.publish((0, 1), one, 0, 5)
    assert group.publish((0, 1), two, 0, 5)
