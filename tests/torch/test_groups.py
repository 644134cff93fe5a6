"""What a job sees of a group: the same batches as the others, each prepared once, and clear words when it does not fit."""

import copy
import gc
import json
import os
import pickle
import random
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.tries import HANG_S, fastest, in_some_try, seconds
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    WeightedRandomSampler,
    get_worker_info,
)

import stoker
from stoker.errors import ConfigError, ResourceError
from stoker.feed.likeness import describe, differences
from stoker.group import door as groups

BATCH = 4


class Pictures(Dataset[Any]):
    def __init__(self, count: int = 40, scale: float = 1.0, log: Path | None = None) -> None:
        self.count, self.scale, self.log = count, scale, log

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.log is not None:
            with self.log.open("a") as file:
                file.write(f"{index}\n")
        noise = random.random() + np.random.random() + float(torch.rand(()))
        return torch.full((3, 5), self.scale * (index + noise / 10)), index


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    gc.collect()
    assert not (groups.home() / name).exists(), "a group is left behind"


Make = Callable[..., stoker.DataLoader[Any]]


@pytest.fixture
def make(name: str) -> Iterator[Make]:
    made = []

    def make(dataset: Any = None, batch_size: int | None = BATCH, **options: Any) -> stoker.DataLoader[Any]:
        options = {"shuffle": None if "sampler" in options else True, "group": name, **options}
        made.append(stoker.DataLoader(Pictures() if dataset is None else dataset, batch_size, **options))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def together(*loaders: Any) -> list[list[Any]]:
    """An epoch of several members, batch by batch."""
    return [list(column) for column in zip(*zip(*loaders, strict=True), strict=True)]


def ids_of(batches: list[Any]) -> list[int]:
    return [int(index) for _, ids in batches for index in ids]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_both_see_the_same_and_everything_once(make: Make, tmp_path: Path, workers: int, kind: str) -> None:
    data = Pictures(log=tmp_path / "log") if kind == "processes" else Drawing(tmp_path / "log")
    first, second = (make(data, num_workers=n, workers=kind if n else "processes") for n in (workers, 0))
    for epoch in range(3):
        one, other = together(first, second)
        assert sorted(ids_of(one)) == list(range(40))
        assert ids_of(one) == ids_of(other)
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(one, other, strict=True))
        assert set(Counter((tmp_path / "log").read_text().split()).values()) == {epoch + 1}
    stats = first.stats().group
    assert (stats.members, stats.prepared, stats.repeated, stats.taken_over) == (2, 30, 0, 0)
    assert first.stats().samples == 120


class Drawing(Dataset[Any]):
    """Draws from what it is given, as datasets for threads do."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def __len__(self) -> int:
        return 40

    def __getsample__(self, index: int, rng: np.random.Generator) -> tuple[torch.Tensor, int]:
        with self.log.open("a") as file:
            file.write(f"{index}\n")
        return torch.full((3, 5), index + rng.random()), index


def test_epochs_differ_and_are_those_of_the_seed(make: Make) -> None:
    loader = make(num_workers=1, seed=5)
    plain = stoker.DataLoader(Pictures(), BATCH, shuffle=True, seed=5)
    epochs = [list(loader) for _ in range(3)]
    assert all(
        torch.equal(ours, theirs)
        for epoch in epochs
        for (ours, _), (theirs, _) in zip(epoch, plain if epoch else [], strict=True)
    )
    assert len({tuple(ids_of(epoch)) for epoch in epochs}) == 3


def test_changes_in_place_stay_with_their_job(make: Make) -> None:
    first, second = make(num_workers=1), make()
    for (mine, mine_ids), (theirs, theirs_ids) in zip(first, second, strict=True):
        before = theirs.clone()
        mine.mul_(-1)
        mine_ids.zero_()
        assert torch.equal(theirs, before)
        assert torch.equal(theirs.floor()[:, 0, 0].long(), theirs_ids)


def test_batches_can_be_kept(make: Make) -> None:
    loader = make(num_workers=1)
    kept = [batch for _ in range(4) for batch in loader]
    for pictures, ids in kept:
        assert torch.equal(pictures.floor()[:, 0, 0].long(), ids)


def test_a_member_joins_for_the_first_epoch_that_has_not_begun(make: Make) -> None:
    first, second = make(seed=3), make(seed=3)
    begun = iter(first)
    next(begun)
    late = make(seed=3)
    both = [batch for pair in zip(begun, list(second)[1:], strict=True) for batch in pair]
    assert len(both) == 18
    assert first._progress.epoch == second._progress.epoch == 0
    batches = together(late, first)
    assert late._progress.epoch == first._progress.epoch == 1
    assert ids_of(batches[0]) == ids_of(batches[1])


def test_training_and_validation_under_one_name(make: Make) -> None:
    train, val = make(Pictures(40)), make(Pictures(12), shuffle=False)
    other_train, other_val = make(Pictures(40)), make(Pictures(12), shuffle=False)
    one, other = together(train, other_train)
    assert ids_of(one) == ids_of(other)
    assert ids_of(together(val, other_val)[1]) == list(range(12))
    assert train.stats().group.members == val.stats().group.members == 2


def _scaled(value: torch.Tensor, scale: float) -> torch.Tensor:
    return value * scale


class Transformed(Pictures):
    def __init__(self, transform: Callable[[Any], Any]) -> None:
        super().__init__()
        self.transform = transform


OTHERS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "length": (partial(Pictures, 44), {}, r"samples is 44 here and 40 in the group"),
    "attribute": (partial(Pictures, scale=2.0), {}, r"dataset.scale is 2.0 here and 1.0 in the group"),
    "batch size": (Pictures, {"batch_size": 8}, r"batch is 8 here and 4 in the group"),
    "order": (Pictures, {"shuffle": False}, r"shuffle is False here and True in the group"),
    "seed": (Pictures, {"seed": 9}, r"seed is 9 here and 7 in the group"),
    "last batch": (Pictures, {"drop_last": True}, r"drop_last is True here and False in the group"),
    "collate": (Pictures, {"collate_fn": list}, r"collate_fn is builtins.list here and "),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_does_not_fit_is_refused_with_the_difference(name: str, case: str) -> None:
    kind, options, words = OTHERS[case]
    with stoker.DataLoader(Pictures(), BATCH, shuffle=True, seed=7, group=name) as loader:
        groups._entered.clear()  # as in another process
        with pytest.raises(ConfigError, match=words):
            stoker.DataLoader(kind(), **{"batch_size": BATCH, "shuffle": True, "group": name, **options})
        assert loader.stats().group.members == 1
        assert len(list(loader)) == 10


def test_a_transform_that_does_not_fit(name: str) -> None:
    with stoker.DataLoader(Transformed(partial(_scaled, scale=1.0)), BATCH, group=name):
        groups._entered.clear()
        with pytest.raises(ConfigError, match=r"dataset.transform\[2\]\['scale'\] is 3.0 here and 1.0 in the group"):
            stoker.DataLoader(Transformed(partial(_scaled, scale=3.0)), BATCH, group=name)


def test_likeness_names_what_differs() -> None:
    def function(x: int, y: int = 2) -> int:
        return x + y

    same = describe(Transformed(function), "dataset")
    assert same == describe(Transformed(function), "dataset")
    assert not differences(same, dict(same))
    assert differences(same, describe(Transformed(lambda x: x), "dataset"))
    assert "dataset.transform" in differences(same, describe(Transformed(lambda x: x + 1), "dataset"))[0]
    arrays = [describe({"a": np.arange(1000), "b": torch.arange(n)}, "x") for n in (5, 5, 6)]
    assert arrays[0] == arrays[1] != arrays[2]
    endless: list[Any] = []
    endless.append(endless)
    assert describe(endless, "x")
    paths = [[f"/data/{number}" for number in range(100_000)] for _ in range(2)]
    assert describe(paths[0], "x") == describe(paths[1], "x")
    assert describe(paths[0], "x") != describe(paths[0][:-1], "x")


@pytest.mark.parametrize("bad", ["", "a b", "../x", "x" * 65, ".hidden", "a/b", 7, "ä"])
def test_names_that_are_none(bad: Any) -> None:
    with pytest.raises(ConfigError, match="group must be a name"):
        stoker.DataLoader(Pictures(), BATCH, group=bad)


def test_options_that_mean_nothing(name: str) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(ConfigError, match="map-style"):
        stoker.DataLoader(Stream(), group=name)
    with pytest.raises(ConfigError, match="generator"):
        stoker.DataLoader(Pictures(), shuffle=True, generator=torch.Generator(), group=name)
    with pytest.raises(ConfigError, match="group_patience_s"):
        stoker.DataLoader(Pictures(), group=name, group_patience_s=-1)
    with pytest.raises(ConfigError, match="group_bytes"):
        stoker.DataLoader(Pictures(), group=name, group_bytes="much")


def test_a_group_of_another_version(name: str) -> None:
    with stoker.DataLoader(Pictures(), BATCH, group=name):
        (about,) = (groups.home() / name).glob("*/about")
        content = json.loads(about.read_text())
        groups._entered.clear()
        about.write_text(json.dumps({**content, "version": 99}))
        with pytest.raises(ConfigError, match="version 99, and this is"):
            stoker.DataLoader(Pictures(), BATCH, group=name)
        about.write_text(json.dumps({**content, "namespace": 1}))
        with pytest.raises(ConfigError, match="another container"):
            stoker.DataLoader(Pictures(), BATCH, group=name)


@pytest.mark.parametrize("other", [{"version": "99"}, {"namespace": 1}])
def test_what_a_dead_group_of_another_version_or_container_left_is_in_nobodys_way(name: str, other: dict[str, Any]) -> None:
    left = groups.home() / name / "0123456789abcdef"
    with stoker.DataLoader(Pictures(), BATCH, group=f"{name}-now"):
        (about,) = (groups.home() / f"{name}-now").glob("*/about")
        left.mkdir(mode=0o700, parents=True)
        left.parent.chmod(0o700)
        (left / "about").write_text(json.dumps({**json.loads(about.read_text()), **other}))
    with stoker.DataLoader(Pictures(), BATCH, group=name) as loader:
        assert not left.exists()
        assert len(list(loader)) == 10


class Failing(Pictures):
    def __getitem__(self, index: int) -> Any:
        if index == 17:
            raise KeyError("seventeen is missing")
        return super().__getitem__(index)


def test_an_error_is_raised_in_every_job_and_the_rest_comes(make: Make) -> None:
    for loader in (make(Failing(), num_workers=1), make(Failing())):
        iterators = iter(loader), iter(make(Failing()))
        seen: list[list[int]] = [[], []]
        failed = [0, 0]
        for _ in range(10):
            for number, iterator in enumerate(iterators):
                try:
                    seen[number] += next(iterator)[1].tolist()
                except KeyError as error:
                    assert "seventeen is missing" in str(error)
                    failed[number] += 1
        assert failed == [1, 1]
        assert seen[0] == seen[1] and len(seen[0]) == 36
        break


def _fail_at_start(number: int) -> None:
    raise FileNotFoundError("no such disk")


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_a_worker_that_cannot_begin(make: Make, kind: str) -> None:
    with pytest.raises(FileNotFoundError, match="no such disk"):
        list(make(Plain(), num_workers=2, workers=kind, worker_init_fn=_fail_at_start))


class Plain(Pictures):
    def __getitem__(self, index: int) -> int:
        return index


class Telling(Pictures):
    def __getitem__(self, index: int) -> tuple[int, int]:
        info = get_worker_info()
        assert info is not None and info.dataset is self
        return info.id, info.num_workers


@pytest.mark.parametrize("kind", ["processes", "threads"])
def test_workers_know_who_they_are(make: Make, kind: str) -> None:
    rows = {
        tuple(row)
        for batch in make(Telling(), num_workers=2, workers=kind)
        for row in zip(*(c.tolist() for c in batch), strict=True)
    }
    assert rows <= {(0, 2), (1, 2)} and rows


class Odd(Pictures):
    """Samples that only pickle can describe."""

    def __getitem__(self, index: int) -> Any:
        return {"name": f"sample {index}", "sparse": torch.eye(3).to_sparse(), "set": {index}}


def as_they_are(samples: list[Any]) -> Any:
    return samples, torch.ones(2, requires_grad=True)


def test_batches_of_anything(make: Make) -> None:
    first, second = make(Odd(), num_workers=1, collate_fn=as_they_are), make(Odd(), collate_fn=as_they_are)
    for one, other in zip(first, second, strict=True):
        assert [row["name"] for row in one[0]] == [row["name"] for row in other[0]]
        assert all(torch.equal(row["sparse"].to_dense(), torch.eye(3)) for row in one[0])
        assert other[1].requires_grad


def nothing(samples: list[Any]) -> None:
    return None


def test_batches_of_nothing(make: Make) -> None:
    first, second = make(num_workers=1, collate_fn=nothing), make(collate_fn=nothing)
    assert together(first, second) == [[None] * 10, [None] * 10]


def test_samples_by_themselves(make: Make) -> None:
    rows = list(make(batch_size=None, num_workers=1))
    assert sorted(index for _, index in rows) == list(range(40))


def test_samplers(make: Make) -> None:
    weights = [1.0] * 39 + [40.0]
    loaders = [make(sampler=WeightedRandomSampler(weights, 60), num_workers=n, seed=5) for n in (1, 0)]
    one, other = together(*loaders)
    assert ids_of(one) == ids_of(other)
    assert Counter(ids_of(one)).most_common(1)[0][0] == 39
    assert len({float(row[0, 0]) for pictures, _ in one for row in pictures}) == 60  # each time drawn anew


class Unsteady(torch.utils.data.Sampler[int]):
    """Gives another order in every process."""

    def __init__(self, first: int) -> None:
        self._first = [first]

    def __likeness__(self) -> str:
        return "steady"

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[int]:
        return iter([(self._first[0] + number) % 40 for number in range(40)])


def test_a_sampler_that_does_not_agree_is_found_out(make: Make) -> None:
    first, second = make(sampler=Unsteady(0)), make(sampler=Unsteady(1), num_workers=1)
    iterators = iter(first), iter(second)
    next(iterators[0])
    with pytest.raises(ConfigError, match="gives other samples in epoch 0"):
        for _ in range(10):
            next(iterators[1])
    second.close()
    assert len(list(iterators[0])) == 9  # it is nothing to the others


def test_ranks_of_jobs_share_with_their_like(make: Make) -> None:
    data = Pictures()
    samplers = [[DistributedSampler(data, 2, rank, seed=1) for rank in range(2)] for _ in range(2)]
    loaders = []
    for sampler in [sampler for job in samplers for sampler in job]:
        groups._entered.clear()  # as in another process
        loaders.append(make(data, sampler=sampler))
    a0, a1, b0, b1 = loaders
    ids = [ids_of(epoch) for pair in ((a0, b0), (a1, b1)) for epoch in together(*pair)]
    assert ids[0] == ids[1] and ids[2] == ids[3]
    assert sorted(ids[0] + ids[2]) == list(range(40))


def test_ranks_of_a_job_that_comes_late_read_the_same_epoch(make: Make) -> None:
    """Each rank has a group of its own, and those may be at different epochs when the ranks come."""
    data = Pictures()

    def rank(number: int) -> Any:
        groups._entered.clear()  # as in another process
        return make(data, sampler=DistributedSampler(data, 2, number, seed=1))

    early = [rank(0), rank(1)]
    for number in range(2):
        list(early[number])
    late = [rank(0)]
    for number in range(2):
        list(early[number])
    late.append(rank(1))
    for _ in range(3):
        assert sorted(ids_of([*late[0], *late[1]])) == list(range(40))


class Slow(Pictures):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.03)
        return super().__getitem__(index)


def test_workers_end_what_they_are_at(make: Make, tmp_path: Path) -> None:
    """A job that leaves early has not prepared for nothing."""
    leaving, staying = (make(Slow(log=tmp_path / "log"), num_workers=1) for _ in range(2))
    for _ in zip(range(2), leaving, staying):  # noqa: B905
        pass
    leaving.close()
    assert len(list(staying)) == 10
    counts = Counter((tmp_path / "log").read_text().split())
    stats = staying.stats().group
    assert (stats.taken_over, stats.repeated) == (0, 0)
    assert sum(counts.values()) <= 80


def test_an_epoch_that_is_left(make: Make) -> None:
    loader = make(num_workers=1)
    next(iter(loader))
    with loader.here.member.seat.staging.table.look() as group:
        (member,) = group.members.values()
        assert (member.point, member.is_reading) == ((1, 0), False)  # the others are not held up by it
    assert len(list(loader)) == 10
    assert loader._progress.epoch == 1


def test_one_iterator_at_a_time(make: Make) -> None:
    loader = make()
    old, new = iter(loader), iter(loader)
    next(old)
    next(new)
    with pytest.raises(RuntimeError, match="another iter"):
        next(old)
    assert len(list(new)) == 9


def test_two_loaders_of_one_script_over_the_same_data(make: Make) -> None:
    """They cannot read at the same time, so neither waits for the other."""
    first, second = make(Pictures(200), num_workers=1), make(Pictures(200))

    def read() -> None:
        assert sorted(ids_of(list(first))) == sorted(ids_of(list(second))) == list(range(200))

    assert fastest(lambda: seconds(read), 10.0) < 10.0


def test_resume_in_step(make: Make) -> None:
    whole = [make(num_workers=1), make()]
    batches = together(*whole)[0]
    assert len(batches) == 10
    first, second = make(num_workers=1), make()
    state = None
    for step, _ in enumerate(zip(first, second, strict=True)):
        if step == 3:
            state = json.loads(json.dumps(first.state_dict()))
            break
    assert state is not None and state["_num_yielded"] == 4
    first.close()
    back = make(num_workers=1)
    back.load_state_dict(state)
    assert back.stats().group.resumed == "in step"
    assert back.state_dict() == state
    rest = list(back)
    assert [len(rest), back._progress.epoch] == [6, state["epoch"]]


def test_resume_when_the_others_are_beyond(make: Make) -> None:
    first, second = make(num_workers=1, seed=1), make(seed=1)
    state = None
    known = []
    for step, (batch, _) in enumerate(zip(first, second, strict=True)):
        known.append(batch)
        if step == 3:
            state = first.state_dict()
    assert state is not None
    list(second)
    first.close()
    back = make(num_workers=1, seed=1)
    back.load_state_dict(state)
    assert back.stats().group.resumed == "catching up"
    rest = list(back)
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(rest, known[4:], strict=True))
    assert len(rest) == 6
    assert back.stats().group.repeated >= 6
    assert ids_of(together(back, second)[0])
    assert back._progress.epoch == second._progress.epoch


def test_an_iterator_from_before_a_state_was_loaded_reads_no_more(make: Make) -> None:
    loader = make()
    before = iter(loader)
    next(before)
    state = loader.state_dict()
    next(before)
    loader.load_state_dict(state)
    with pytest.raises(RuntimeError, match="another iter"):
        next(before)
    del before
    assert len(list(loader)) == 9


def test_a_state_of_another_loader_is_refused(make: Make) -> None:
    state = stoker.DataLoader(Pictures(), 8, shuffle=True, seed=3).state_dict()
    with pytest.raises(ConfigError, match="belongs to another loader"):
        make(seed=3).load_state_dict(state)


def test_copies_of_a_loader(make: Make) -> None:
    loader = make(num_workers=1)
    for other in (copy.copy(loader), pickle.loads(pickle.dumps(loader))):
        assert len(list(other)) == 10
        other.close()
    assert loader.stats().group.members == 1


def test_a_loader_that_is_forgotten_leaves(name: str) -> None:
    loader = stoker.DataLoader(Pictures(), BATCH, num_workers=1, group=name)
    next(iter(loader))
    del loader
    gc.collect()
    assert not (groups.home() / name).exists()


def test_a_closed_loader_begins_anew(make: Make) -> None:
    loader = make(num_workers=1)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(RuntimeError, match="was closed"):
        next(iterator)
    assert len(list(loader)) == 10


def test_a_timeout_names_who_is_late(make: Make, name: str) -> None:
    slow = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n" + _JOIN, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert slow.stdout is not None and slow.stdout.readline() == "joined\n"

    def check() -> None:
        loader = make(Pictures(400), num_workers=1, timeout=2)
        with pytest.raises(RuntimeError) as caught:
            list(loader)
        assert re.search(rf"timed out after 2 seconds, waiting for .*pid {slow.pid}", str(caught.value))
        assert f"(pid {slow.pid})" in loader.stats().group.last
        assert loader.stats().group.waited_for[loader.stats().group.last] > 0.5
        loader.close()

    in_some_try(check)
    slow.communicate("\n")
    assert slow.returncode == 0


_JOIN = """
from tests.torch.test_groups import *
loader = stoker.DataLoader(Pictures(400), BATCH, shuffle=True, group=sys.argv[1])
print("joined", flush=True)
sys.stdin.readline()
loader.close()
"""


def test_a_batch_that_is_too_large(make: Make) -> None:
    loader = make(num_workers=1, group_bytes=100)
    with pytest.raises((ResourceError, RuntimeError), match="raise group_bytes"):
        next(iter(loader))


def test_other_start_methods(make: Make) -> None:
    loader = make(num_workers=1, multiprocessing_context="spawn")
    assert sorted(ids_of(list(loader))) == list(range(40))


def test_a_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with stoker.DataLoader(Pictures(), BATCH, plan=stoker.Plan(group=name)) as loader:
        assert loader.group == name
        assert loader.stats().group.name == name
    monkeypatch.setenv("STOKER_DISABLE", "1")
    loader = stoker.DataLoader(Pictures(), BATCH, group=name)
    assert len(list(loader)) == 10
    assert loader.stats().group is None


def test_no_group_no_word_of_it(recwarn: pytest.WarningsRecorder) -> None:
    loader = stoker.DataLoader(Subset(Pictures(), range(8)), BATCH)
    list(loader)
    assert loader.stats().group is None
    assert isinstance(loader, DataLoader)
    assert not [w for w in recwarn if "group" in str(w.message)]


def test_a_job_forks(make: Make) -> None:
    """What a child does with a loader that it inherits is its own affair."""
    loader = make(num_workers=1)
    iterator = iter(loader)
    next(iterator)
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
            os._exit(1)
        except RuntimeError:
            pass
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader.group = None
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(iterator)) == 9


def test_jobs_under_stoker_run(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "stoker", "run", "--group", name, str(script), str(log)]
    jobs = [
        subprocess.Popen([*command, rate], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rate in ("0.1", "0.2", "0.3")
    ]
    for job in jobs:
        assert job.stdout is not None and job.stdout.readline() == "made\n"
    told = [job.communicate("\n", timeout=HANG_S) for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0, 0], told
    assert len({out for out, _ in told}) == 1
    assert set(Counter(log.read_text().split()).values()) == {2}
    assert all(f"group {name}" in err for _, err in told)
    refused = subprocess.run([*command[:5], "a b", str(script)], capture_output=True, text=True)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)


_SCRIPT = """
import random, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self): return 32
    def __getitem__(self, index):
        with open(sys.argv[1], "a") as file: file.write(f"{index}\\n")
        return index, random.random()

loader = DataLoader(Data(), batch_size=4, shuffle=True, num_workers=1)
print("made", flush=True)
sys.stdin.readline()
for epoch in range(2):
    print([batch[0].tolist() + batch[1].tolist() for batch in loader])
"""
