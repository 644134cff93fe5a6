"""How much goes to other hosts, look by look, in worlds whose best split is known."""

import random
from dataclasses import dataclass, replace

import pytest

from stoker.decide.looks import Known, Look
from stoker.decide.offload import Remote, best_ratio, rate_at
from stoker.decide.split import CALM, Split, SplitStage


@dataclass
class World:
    """A host that trains and others that help, in samples per second."""

    loop: float
    local: float
    remote: float
    """Of one worker."""
    workers: int = 2
    cost: float = 0.1
    is_asynchronous: bool = False
    """Whether the loop runs ahead of its device, so that only waiting is seen."""
    noise: float = 0.0

    def __post_init__(self) -> None:
        self.timings: list[float] = []
        self.random = random.Random(1)

    @property
    def remotes(self) -> Remote:
        return Remote(self.remote * self.workers, self.cost, max(1, self.workers))

    @property
    def best(self) -> float:
        """The fastest of all."""
        return max(rate_at(ratio / 1000, self.loop, self.local, self.remotes) for ratio in range(1001))

    def look(self, split: Split, seconds: float = 1.0) -> Look:
        """What a second at the split's ratio looks like: works are pulled, so remote workers make no more than they can."""
        can = self.remotes.rate
        balanced = can / (self.local + can * (1 - self.cost)) if can else 0.0
        ratio = min(split.most, balanced)
        total = rate_at(ratio, self.loop, self.local, self.remotes) * (1 + self.random.uniform(-self.noise, self.noise))
        there, here = total * ratio, total * (1 - ratio)
        waited = max(0.0, 1 - total / self.loop)
        if self.is_asynchronous:
            waited = 0.9 if waited > CALM else 0.0
        if split.timings > len(self.timings):
            self.timings.append(self.loop * (1 + self.random.uniform(-self.noise, self.noise)))
        busy = (here + self.cost * there) / self.local
        return Look(
            seconds,
            here * seconds,
            there * seconds,
            total * seconds,
            waited,
            min(1.0, busy),
            there / can if can else 0.0,
            self.workers,
            cpu_here=here * seconds * 0.01,
            cpu_there=there * seconds * 0.01 * self.cost,
            timings=tuple(self.timings),
        )


def after(world: World, split: Split, looks: int) -> float:
    """The rate that the last of so many looks has."""
    rate = 0.0
    for _ in range(looks):
        look = world.look(split)
        split.look(look)
        rate = look.taken / look.seconds
    return rate


WORLDS = [
    World(loop, local, remote, workers, cost, is_asynchronous, noise)
    for loop in (120.0, 150.0, 300.0, 1000.0)
    for local, remote, workers in ((100.0, 100.0, 1), (100.0, 100.0, 3), (100.0, 30.0, 2), (100.0, 15.0, 1))
    for cost in (0.02, 0.3)
    for is_asynchronous in (False, True)
    for noise in (0.0, 0.01)
]


@pytest.mark.parametrize("world", WORLDS)
def test_the_low_end_of_the_plateau_is_found(world: World) -> None:
    split = Split()
    after(world, split, 25)
    rate = sum(after(world, split, 1) for _ in range(10)) / 10
    best = best_ratio(world.loop, world.local, world.remotes, margin=0.0)
    if world.best < 1.1 * world.local:
        assert split.ratio == 0 or rate >= 0.97 * world.best
    else:
        assert rate >= 0.97 * world.best
        limit = world.remotes.rate / (world.local + world.remotes.rate * (1 - world.cost))
        assert min(split.ratio, limit) == pytest.approx(best, abs=0.1)


def test_nothing_is_sent_where_the_loop_does_not_wait() -> None:
    world, split = World(100, 100.5, 100), Split()
    after(world, split, 20)
    assert split.ratio == 0 and split.timings == 0  # the loop was not held up
    assert split.decision is not None and "hardly waits" in split.decision.reason
    assert CALM > 1 - 100 / 100.5


def test_nothing_is_sent_where_the_gain_is_small() -> None:
    world, split = World(108, 100, 100), Split()
    after(world, split, 20)
    assert split.ratio == 0
    assert split.decision is not None
    assert split.decision.reason == "this host prepares 100 samples/s, and the loop takes 108"


def test_a_second_start_measures_nothing() -> None:
    world, first = World(300, 100, 100), Split()
    after(world, first, 20)
    again = Split(first.known)
    assert again.stage is SplitStage.LIVE
    world.timings.clear()
    rates = [after(world, again, 1) for _ in range(4)]
    assert again.timings == 0 and min(rates[1:]) >= 0.97 * world.best


def test_another_kind_of_remote_worker_measures_only_that() -> None:
    world, split = World(300, 100, 100), Split(Known(loop=300, local=100, cpu_here=0.01))
    assert split.stage is SplitStage.LIVE
    split.look(world.look(split))
    assert split.stage is SplitStage.ALL
    after(world, split, 6)
    assert split.timings == 0 and split.ratio == pytest.approx(best_ratio(300, 100, world.remotes), abs=0.1)


CHANGES = {
    "the link slows": {"remote": 20.0},
    "the link is nearly gone": {"remote": 2.0},
    "remote is busy": {"remote": 50.0},
    "this host is busy": {"local": 50.0},
    "this host is free": {"local": 180.0},
    "workers come": {"workers": 4},
    "workers go": {"workers": 1},
    "all workers go": {"workers": 0},
    "the loop is slower": {"loop": 200.0},
    "the loop is faster": {"loop": 400.0},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_followed(change: str) -> None:
    world, split = World(300, 100, 100, workers=2), Split()
    after(world, split, 20)
    for name, value in CHANGES[change].items():
        setattr(world, name, value)
    assert after(world, split, 5) >= 0.98 * min(world.loop, world.local)
    after(world, split, 10)
    assert after(world, split, 1) >= 0.97 * world.best
    limit = world.remotes.rate / (world.local + world.remotes.rate * (1 - world.cost))
    assert min(split.ratio, limit) == pytest.approx(best_ratio(world.loop, world.local, world.remotes, 0.0), abs=0.1)


def test_a_link_that_comes_back_is_noticed() -> None:
    world, split = World(300, 100, 100, workers=2), Split()
    after(world, split, 20)
    world.remote = 1.0
    after(world, split, 10)
    assert split.ratio == 0
    world.remote = 100.0
    after(world, split, 40)
    assert after(world, split, 1) >= 0.97 * world.best


def test_validation_is_no_slow_loop() -> None:
    world, split = World(300, 100, 100, workers=2), Split()
    after(world, split, 20)
    ratio = split.ratio
    for _ in range(10):
        split.look(Look(1.0, 0, 0, 0, 0.0, 0.0, 0.0, 2))
    assert split.ratio == ratio
    assert after(world, split, 2) >= 0.97 * world.best


def test_remote_workers_are_measured_only_when_they_could_help() -> None:
    world, split = World(108, 100, 100), Split()
    after(world, split, 20)
    assert not split.known.there
    world.local = 60.0
    after(world, split, 15)
    assert split.known.there and after(world, split, 1) >= 0.97 * world.best


def test_workers_are_asked_for_where_there_are_none() -> None:
    world, split = World(300, 100, 100, workers=0), Split()
    after(world, split, 12)
    assert split.decision is not None and split.decision.workers == 1
    world.workers = 1
    after(world, split, 10)
    world.workers = 0
    after(world, split, 5)
    assert split.decision.workers == 3  # 2 of them cost as much as a ninth of what they make


PARTS = ("all", "prepare", "samples")


@pytest.mark.parametrize("winner", PARTS)
@pytest.mark.parametrize("loop", [150.0, 1000.0])
def test_the_part_that_gives_most_is_chosen(winner: str, loop: float) -> None:
    rates = {part: 100.0 if part == winner else 15.0 for part in PARTS}
    world, split = World(loop, 100, 0, cost=0.02), Split(parts=PARTS)

    def looks(count: int) -> float:
        rate = 0.0
        for _ in range(count):
            world.remote = rates[split.part]
            rate = after(world, split, 1)
        return rate

    looks(25)
    assert split.part == winner and looks(1) >= 0.97 * world.best
    again = Split(split.known, PARTS)
    again.look(world.look(again))
    assert again.stage is SplitStage.LIVE and again.part == winner
    rates[winner] = 2.0  # its link is nearly gone
    looks(15)
    assert split.part != winner and looks(1) >= 0.97 * world.best


def test_a_part_that_turns_out_to_be_of_no_use_is_left() -> None:
    world, split = World(1000, 100, 100, cost=0.02), Split(parts=PARTS)
    for _ in range(25):
        after(world, split, 1)
        if split.part == "prepare":
            split.parts = ("all", "samples")
    assert split.part == "all" and split.known.there["prepare"].rate == 0
    assert set(split.known.there) == set(PARTS)


def test_works_of_another_part_are_not_counted() -> None:
    world, split = World(1000, 100, 100, cost=0.02), Split(parts=PARTS)
    while split.part == "all":
        after(world, split, 1)
    world.remote = 5.0
    for _ in range(5):
        split.look(replace(world.look(split), is_mixed=True))
    assert split.stage is SplitStage.ALL and split.part == "prepare" and "prepare" not in split.known.there


def test_another_part_may_become_better() -> None:
    world, split = World(1000, 100, 100, cost=0.02), Split(parts=PARTS)
    rates = {"all": 100.0, "prepare": 10.0, "samples": 10.0}
    total = 0.0
    for look in range(400):
        if look == 50:
            rates["prepare"] = 300.0
        world.remote = rates[split.part]
        total += after(world, split, 1)
    assert split.part == "prepare"
    assert total > 0.9 * (50 * 300 + 350 * 100)  # what is tried costs little


def test_workers_that_are_just_beginning_are_waited_for() -> None:
    world, split = World(1000, 100, 100, cost=0.02), Split()
    while split.stage is not SplitStage.ALL:
        after(world, split, 1)
    for _ in range(3):
        split.look(replace(world.look(split), there=0.0, busy_there=1.0))
    after(world, split, 4)
    assert split.known.there["all"].rate == pytest.approx(100, rel=0.1)
