"""What the gallery would notice of a restart that goes wrong, shown with runs that never took place."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.gallery.restarts import Reference, Watch, Wrong
from tests.gallery.started import Ended
from tests.gallery.table import Entry

ENTRY = Entry("any", "", 0, "prep", best=("best.pt",), rows=("log.csv",))
KILL = ("epoch 1 batch", 2)
RESTORED = "stoker: restored step 4, in epoch 1: 1 module"


def lines(*losses: int, epoch: int = 0) -> list[str]:
    """Lines of batches whose numbers begin anew, as they do after a restart."""
    return [f"epoch {epoch} batch {number} loss {float(loss).hex()}" for number, loss in enumerate(losses)]


WHOLE = [*lines(1, 2, 3, 4), "epoch 0 validation 0 loss " + (9.0).hex(), *lines(5, 6, 7, 8, epoch=1)]


def save(folder: Path, loss: float) -> None:
    torch.save({"loss": loss}, folder / "best.pt")
    with (folder / "log.csv").open("a") as file:
        file.write(f"0,{loss.hex()}\n")


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    """After a first start that was killed after six lines, and left a checkpoint, a best model and a log."""
    for name in ("reference", "out", "place"):
        (tmp_path / name).mkdir()
        if name != "place":
            save(tmp_path / name, 9.0)
    (tmp_path / "place" / "4.json").touch()
    reference = Reference(Ended(0, WHOLE), tmp_path / "reference")
    seen = Watch(ENTRY, reference, tmp_path / "out", tmp_path / "place")
    seen.start(0, Ended(-9, WHOLE[:6], was_killed=True), KILL)
    return seen


def test_a_restart_that_goes_on_where_it_was(watch: Watch) -> None:
    watch.start(1, Ended(0, [*lines(77), RESTORED, *lines(5, 6, 7, 8, epoch=1)]), None)
    watch.after_the_end(Ended(0, ["stoker: the run is at its end"]))
    assert not watch.refusal


@pytest.mark.parametrize(
    ("printed", "complaint"),
    [
        ([RESTORED, *lines(7, 8, epoch=1)], "left out 1 lines"),
        ([RESTORED, *lines(6, 8, epoch=1)], "differs 1 lines after it went on"),
        ([RESTORED, *lines(5, 6, 7, epoch=1)], "ended 1 lines too early"),
        ([RESTORED, *lines(5, 6, 7, 8)], "a loss that is none of the uninterrupted run's"),
        ([RESTORED, *WHOLE], "began anew"),
        (WHOLE, "did not restore anything"),
    ],
)
def test_losses_that_are_lost_wrong_or_trained_again(watch: Watch, printed: list[str], complaint: str) -> None:
    with pytest.raises(Wrong, match=complaint):
        watch.start(1, Ended(0, printed), None)


def test_files_that_a_restart_spoils(watch: Watch, tmp_path: Path) -> None:
    goes_on = Ended(0, [RESTORED, *lines(5, 6, 7, 8, epoch=1)])
    torch.save({"loss": 77.0}, tmp_path / "out" / "best.pt")
    with pytest.raises(Wrong, match=r"best\.pt holds a model that never was"):
        watch.start(1, goes_on, None)
    save(tmp_path / "out", 77.0)
    with pytest.raises(Wrong, match="has a row of an epoch that never was"):
        watch.start(1, goes_on, None)
    (tmp_path / "out" / "log.csv").write_text("")
    with pytest.raises(Wrong, match=r"log\.csv has lost"):
        watch.start(1, goes_on, None)


def test_a_file_that_is_another_in_the_end(watch: Watch, tmp_path: Path) -> None:
    for name, text in (("reference", "a"), ("out", "b")):
        (tmp_path / name / "model.pth").write_text(text)
    with pytest.raises(Wrong, match=r"model\.pth is another"):
        watch.start(1, Ended(0, [RESTORED, *lines(5, 6, 7, 8, epoch=1)]), None)


def test_ends(watch: Watch) -> None:
    with pytest.raises(Wrong, match="did not end"):
        watch.start(1, replace(Ended(-9), took_too_long=True), None)
    with pytest.raises(Wrong, match="ended with code 1 before 'epoch 1 batch': ValueError: no"):
        watch.start(1, Ended(1, ["ValueError: no"]), KILL)
    with pytest.raises(Wrong, match="it trained"):
        watch.after_the_end(Ended(0, lines(1)))
    watch.start(1, Ended(1, ["stoker: --checkpoint is refused: the loader looks ahead"]), None)
    assert watch.refusal == "stoker: --checkpoint is refused: the loader looks ahead"
