"""What an analysis measures with a part of preparing done by the device, with what stands in for the device."""

import math
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.feed.test_finishing import Files, decodes
from tests.tries import HANG_S
from torch.utils.data import Dataset

import stoker
from stoker.device.decoder import COLUMNS
from stoker.feed import finishing
from stoker.feed.coming import AHEAD
from stoker.feed.finishing import Decoding
from stoker.measure.series import Series
from stoker.run import on_device, starts
from stoker.run.agenda import Agenda
from stoker.run.loop_clock import LoopClock
from stoker.run.measured import Measured
from stoker.run.on_device import may_help, steps_on_device
from stoker.run.preparing import next_of
from stoker.run.subject import Subject

__all__ = ["decodes"]
SHAPE = 3, 40, 40


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    trains_here(monkeypatch)


def trains_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the processor stand in for the device of training."""
    monkeypatch.setattr(finishing, "device_of_training", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)


class Bytes(Dataset[Any]):
    """Samples that end in a conversion to numbers; each is told by its number."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.full(SHAPE, index, dtype=torch.uint8).to(torch.float32).div(255), index


class Numbers(Dataset[Any]):
    """Samples that leave nothing to a device."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), index), index


def found_with(seen: float, loop: float) -> Measured:
    return Measured(batch=4, workers=2, gpu=Series([loop], [1.0]), cached=Series([seen], [1.0]))


def agenda_of(found: Measured, deadline: float = math.inf) -> Agenda:
    return Agenda(found, iterations=8, phase_s=0.3, deadline=deadline, tell=lambda *_: None, save=lambda: None)


def measured(dataset: Any, check: Any, **options: Any) -> Measured:
    """Do all steps with a loop that hands each batch to `check`. Ranks of a process group do them together."""
    found = found_with(100.0, 1000.0)
    loader = stoker.DataLoader(dataset, batch_size=4, num_workers=2, **{"shuffle": True, **options})
    subject = Subject(loader)
    batches = subject.batches(24)
    agenda = agenda_of(found)
    agree: dict[str, Any] = {"agree": agenda.ranks.largest_of} if agenda.ranks.world > 1 else {}
    clock = LoopClock(rounds=2, batch=4, iterations=8, phase_s=0.3, deadline=math.inf, **agree)
    for phase, series, source in steps_on_device(subject, agenda, batches, agenda.finish):
        clock.begin(phase, series, time.perf_counter())
        while True:
            clock.asked(time.perf_counter())
            if clock.is_over:
                break
            batch = next_of(source)
            clock.given(time.perf_counter())
            check(*batch)
    return found


def test_the_tail_is_measured_with_batches_that_are_right_each_time() -> None:
    def check(numbers: torch.Tensor, indices: torch.Tensor) -> None:
        expected = indices.to(torch.uint8).to(torch.float32).div(255).view(-1, 1, 1, 1).expand(-1, *SHAPE)
        assert torch.equal(numbers, expected)
        numbers.fill_(-1)
        indices.fill_(-1)

    found = measured(Bytes(), check)
    for rates in (found.prep_on_device, found.loop_on_device, found.cached_on_device):
        assert rates["tail"].rate > 0
    assert found.done[:3] == ["prep tail", "loop tail", "cached tail"]
    assert "what the GPU could prepare" in found.parts
    assert any("GPU" in note or "device" in note for note in found.notes)  # this host has no engine for files


@pytest.mark.parametrize("seed", [None, 7])
def test_decoding_is_measured_too(seed: int | None, decodes: None) -> None:
    seen = []
    found = measured(Files(), lambda numbers, *_: seen.append(float(numbers.mean())), seed=seed)
    assert list(found.prep_on_device) == list(found.loop_on_device) == list(found.cached_on_device) == ["tail", "device"]
    assert all(series.rate > 0 for series in found.cached_on_device.values())
    assert all(map(math.isfinite, seen))


def test_what_leaves_nothing_to_the_device_is_not_measured() -> None:
    found = measured(Numbers(), lambda *_: None)
    assert not found.prep_on_device and not found.done
    assert "--prep tail was not measured: it leaves nothing of these samples to the GPU" in found.notes


def test_it_is_tried_where_the_loop_waits_for_preparing() -> None:
    assert may_help(found_with(100.0, 1000.0))
    assert not may_help(found_with(995.0, 1000.0))
    assert not may_help(Measured(gpu=Series([1000.0], [1.0])))
    fixed = found_with(100.0, 1000.0)
    fixed.fixed = ["prep"]
    assert not may_help(fixed)


def test_what_was_measured_is_a_document(tmp_path: Any) -> None:
    found = found_with(100.0, 1000.0)
    found.prep_on_device["tail"] = Series([640.0], [1.0])
    found.granted_s = 12.0
    found.save(tmp_path / "found.json")
    assert Measured.load(tmp_path / "found.json") == found


class Careful(Files):
    """Its own code leaves out a picture that is damaged inside, which only who decodes it notices."""

    def __init__(self) -> None:
        super().__init__()
        tables = self.files[13].index(b"\xff\xc4") + 5
        self.files[13] = self.files[13][:tables] + bytes([255] * 16) + self.files[13][tables + 16 :]

    def __getitem__(self, index: int) -> Any:
        try:
            return super().__getitem__(index)
        except OSError:
            return super().__getitem__(index + 1)


def test_a_picture_whose_damage_the_dataset_catches_does_not_end_the_analysis(decodes: None) -> None:
    found = measured(Careful(), lambda *_: None)
    for rates in (found.prep_on_device, found.loop_on_device, found.cached_on_device):
        assert list(rates) == ["tail"]
    (note,) = [note for note in found.notes if "--prep device" in note]
    assert "it failed (OSError: broken data stream" in note
    assert {"prep device", "loop device", "cached device"} <= set(found.done)  # another start has nothing to do


def test_a_device_that_fails_is_why_and_not_the_samples(decodes: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("no C compiler")

    failed: dict[Any, str] = {}
    monkeypatch.setattr(finishing, "_failed", failed)
    monkeypatch.setattr(finishing, "_obstacle_to_decoding", lambda device: failed.get(device, ""))
    monkeypatch.setattr(finishing.Finishing, "_submit", fail)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = measured(Files(), lambda *_: None)
    assert list(found.prep_on_device) == ["tail"]
    assert any(
        "--prep device was not measured: the GPU failed: RuntimeError: no C compiler" in note for note in found.notes
    )


@pytest.mark.parametrize("deadline", [math.inf, 0.0], ids=["done", "too late"])
def test_workers_are_not_started_where_nothing_is_to_be_measured(deadline: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_with(100.0, 1000.0)
    if deadline:
        found.done = [f"{what} {part}" for part in ("tail", "device") for what in ("prep", "loop", "cached")]
    subject = SimpleNamespace(on_device=lambda *_: pytest.fail("workers"))
    assert not list(steps_on_device(subject, agenda_of(found, deadline), [], lambda _: None))  # type: ignore[arg-type]


def test_beside_the_loop_as_many_are_decoded_as_ahead_of_it() -> None:
    begun: list[Any] = []

    def finish(batch: Any, rest: Any) -> Any:
        begun.append(batch)
        return Decoding([batch], [])

    kept = SimpleNamespace(kept=[SimpleNamespace(fresh=lambda: (0, ()))], finish=finish)
    batches = on_device._finished_beside(kept, "device")  # type: ignore[arg-type]
    for taken in range(1, 4):
        next(batches)
        assert len(begun) == taken + AHEAD


@pytest.mark.parametrize("part", ["tail", "device"])
def test_what_is_kept_is_in_no_slot(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot is page-locked, and is not copied where something page-locked is asked for."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    slot = torch.arange(48, dtype=torch.uint8)
    table = torch.zeros((1, len(COLUMNS)), dtype=torch.int64)
    batch, rest = (
        ([slot, 3], ("tail", [((0,), False, ())])) if part == "tail" else (([None, 3], [(slot, table)]), (part, ()))
    )
    kept = on_device._Unfinished(batch, rest)
    expected = slot.clone()
    slot.zero_()  # a worker has the slot again
    again, _ = kept.fresh()
    assert torch.equal(again[0] if part == "tail" else again[1][0][0], expected)


def test_time_is_granted_once_however_often_the_script_is_started() -> None:
    found = found_with(100.0, 1000.0)
    first = agenda_of(found, 100.0)
    first.grant(72.0)
    assert (first.deadline, found.granted_s) == (172.0, 72.0)
    second = agenda_of(found, 100.0)
    second.grant(72.0)
    assert (second.deadline, found.granted_s) == (100.0, 72.0)


def test_a_start_after_one_that_was_granted_time_has_what_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, limits = tmp_path / "measured.json", []

    def run(words: Any, settings: Any, limit_s: float, show: Any) -> tuple[int, float]:
        limits.append(limit_s)
        Measured(loaders=1, granted_s=72.0).save(place)
        return 0, time.monotonic()

    monkeypatch.setattr(starts, "_run_script", run)
    settings = {"phase_s": 6.0, "measured": str(place), "loader": None}
    starts.measure(["script.py"], settings, lambda: None)
    assert limits[0] == pytest.approx(135.0)
    assert limits[1:] == pytest.approx([207.0] * 3, abs=1.0)


def test_a_script_has_the_time_that_it_was_granted_and_is_told_what_it_took(tmp_path: Path) -> None:
    place = tmp_path / "measured.json"
    Measured(began=1.0, granted_s=5.0).save(place)  # of an earlier start: that is in the limit

    def show() -> None:
        Measured(began=2.0, granted_s=6.0).save(place)

    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    starts._wait(process, place, 1.0, show)
    assert 2.0 < time.monotonic() - began < 5.0
    found = Measured.load(place)
    assert found is not None and "after 2 s" in found.word and "after 2 s" in found.notes[0]


def test_a_script_whose_time_was_over_with_its_first_start_was_started_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "measured.json"

    def run(*_: Any) -> tuple[int, float]:
        Measured(loaders=1).save(place)
        return 0, time.monotonic() - 1000.0

    monkeypatch.setattr(starts, "_run_script", run)
    _, found = starts.measure(["script.py"], {"phase_s": 6.0, "measured": str(place), "loader": None}, lambda: None)
    assert found is not None
    assert found.notes == ["the script ended before all was measured, although it was started once"]


RANK = """
import sys
import pytest, torch
from tests.feed.test_finishing import Files, stand_in_for_a_gpu
from tests.run.test_on_device import Careful, measured, trains_here
from stoker.feed import finishing

class Late(Careful):
    def __len__(self): return 10**5

    def __getitem__(self, index): return super().__getitem__(13 if index > 60 and index % 16 == 0 else index % 5 + 1)

class Whole(Files):
    def __len__(self): return 10**5

    def __getitem__(self, index): return super().__getitem__(index % 5 + 1)

if __name__ == "__main__":
    how, place, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.distributed.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    monkeypatch = pytest.MonkeyPatch()
    trains_here(monkeypatch), stand_in_for_a_gpu(monkeypatch)
    if rank and how == "cannot":
        monkeypatch.setattr(finishing, "_obstacle_to_decoding", lambda _: "it has no engine")
    found = measured(Late() if rank and how == "fails" else Whole(), lambda *_: None, shuffle=False)
    torch.distributed.barrier()
    rates = found.prep_on_device, found.loop_on_device, found.cached_on_device
    print({kind: [round(one[kind].rate) for one in rates] for kind in rates[0]}, found.done)
    print(*found.notes)
    torch.distributed.destroy_process_group()
"""


@pytest.mark.parametrize(("how", "words"), [("cannot", "it has no engine"), ("fails", "it failed (OSError: broken data")])
def test_ranks_go_together_where_one_of_them_cannot_go_on(how: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    root, place = str(Path(__file__).parents[2]), str(tmp_path / "ranks")
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "rank.py", how, place, str(rank)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        (first, errors), (second, others) = (rank.communicate(timeout=HANG_S) for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], errors + others
    assert first.splitlines()[0] == second.splitlines()[0]
    assert first.startswith("{'tail': [")
    assert "'device'" not in first.splitlines()[0].partition("}")[0]
    assert "another rank" in first and words in second
