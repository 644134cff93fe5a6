"""Where in its loops a script is, and how it is brought there again: without torch, with functions that only count."""

import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.run.restart.loops import Surroundings, Surveyor
from stoker.run.restart.returning import Returning

Ask = Callable[[], None]


class Stop(Exception):  # noqa: N818
    """As if the script were killed."""


class Script:
    """A module whose `main(ask, log)` asks for batches, and logs what it does."""

    def __init__(self, folder: Path, text: str) -> None:
        self._path = folder / "script.py"
        self._path.write_text(text)

    def run(self, act: Callable[[int, Surroundings], None], prepare: Callable[[], None] | None = None) -> list[Any]:
        """Run it; `act` is called with the number of each request and what is around it."""
        spec = importlib.util.spec_from_file_location("script_of_a_test", self._path)
        assert spec is not None and spec.loader is not None
        module = sys.modules["script_of_a_test"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        surveyor, log, asked = Surveyor(), [], []

        def ask() -> None:
            asked.append(None)
            act(len(asked), surveyor.survey(sys._getframe(1)))

        if prepare is not None:
            prepare()
        ended: list[BaseException] = []

        def main() -> None:
            try:
                module.main(ask, log.append)
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=main)  # so that nothing of this test is around the script
        thread.start()
        thread.join()
        if ended and not isinstance(ended[0], Stop):
            raise ended[0]
        return log

    def at(self, number: int) -> Surroundings:
        """What is around a request, as a checkpoint holds it."""
        found: list[Surroundings] = []

        def act(count: int, around: Surroundings) -> None:
            if count == number:
                found.append(around)
                raise Stop

        self.run(act)
        return Surroundings.of_values(found[0].values())

    def from_there(self, around: Surroundings, *, past: bool = False) -> list[Any]:
        """What a restarted script logs from the moment that it is there."""
        returning = Returning(around, past=past)
        places: list[int] = []
        log: list[Any] = []

        def act(_: int, here: Surroundings) -> None:
            if not places and returning.is_there(here):
                returning.arrive(sys._getframe(2), 0)
                places.append(1)
            elif not places:
                raise AssertionError("it is not there")

        try:
            log = self.run(act, returning.put_names)
            assert "range" not in vars(sys.modules["script_of_a_test"])
        finally:
            returning.take_names()
        return log


EPOCHS = """
def train(ask, log, epoch):
    for batch in range(3):
        ask()
        log((epoch, batch))

def main(ask, log):
    numbers = [epoch for epoch in range(9)]
    for epoch in range(2, 10, 2):
        train(ask, log, epoch)
"""

STYLES = {
    "in a function": EPOCHS,
    "with a bar": EPOCHS.replace("range(2, 10, 2):", "tqdm(range(2, 10, 2)):").replace(
        "def main", "def tqdm(numbers):\n    yield from numbers\n\ndef main"
    ),
    "with a bar that has a name": EPOCHS.replace(
        "for epoch in range(2, 10, 2):", "bar = list(range(2, 10, 2))\n    for epoch in bar:"
    ),
    "in phases": """
def main(ask, log):
    for epoch in range(2, 10, 2):
        for phase in ["train", "val"]:
            for batch in range(3):
                if phase == "train":
                    ask()
                    log((epoch, batch))
""",
    "while": """
def main(ask, log):
    epoch = 2
    while epoch < 10:
        for batch in range(3):
            ask()
            log((epoch, batch))
        epoch += 2
""",
    "an attribute": """
class Trainer:
    def __init__(self):
        self.epoch, self.last = 2, 10
    def fit(self, ask, log):
        while True:
            for batch in range(3):
                ask()
                log((self.epoch, batch))
            self.epoch += 2
            if self.epoch >= self.last:
                break

def main(ask, log):
    Trainer().fit(ask, log)
""",
    "folds": """
def fit(fold, ask, log):
    for batch in range(3):
        ask()
        log((fold, batch))

def main(ask, log):
    for fold in range(2, 10, 2):
        fit(fold, ask, log)
""",
}
WHOLE = [(epoch, batch) for epoch in (2, 4, 6, 8) for batch in range(3)]


@pytest.mark.parametrize("style", STYLES)
def test_loops_begin_where_they_were(style: str, tmp_path: Path) -> None:
    script = Script(tmp_path, STYLES[style])
    assert script.run(lambda number, around: None) == WHOLE
    for number in (1, 5, 12):
        around = script.at(number)
        assert not around.unknown
        assert script.from_there(around) == WHOLE[number - 1 :]


def test_loops_that_are_past(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Script(tmp_path, EPOCHS.replace("for batch in range(3):", "for batch in [0]:"))
    around = script.at(2)
    assert script.from_there(around, past=True) == [(6, 0), (8, 0)]
    with pytest.raises(SystemExit):
        script.from_there(script.at(4), past=True)
    assert "is after number 8 of the loop in line 9" in capsys.readouterr().err


def test_a_trange(tmp_path: Path) -> None:
    text = EPOCHS.replace("for epoch in range(2, 10, 2)", "for epoch in trange(2, 10, 2, disable=True)")
    script = Script(tmp_path, "from tqdm import trange\n" + text)
    assert script.from_there(script.at(5)) == WHOLE[4:]


UNKNOWN = {
    "another value than the first": (
        "for epoch in range(2, 10, 2)",
        "for epoch in [2, 4, 6, 8]",
        "line 9 of script.py cannot",
    ),
    "a variable that is changed": (
        "        train(ask, log, epoch)",
        "        train(ask, log, epoch)\n        epoch = 0",
        "line 9",
    ),
    "a generator": ("for epoch in range(2, 10, 2)", "for epoch in (n for n in [2, 4, 6, 8])", "line 9"),
}


@pytest.mark.parametrize("why", UNKNOWN)
def test_loops_that_cannot_be_entered_in_the_middle(why: str, tmp_path: Path) -> None:
    before, after, message = UNKNOWN[why]
    script = Script(tmp_path, EPOCHS.replace(before, after))
    assert message in script.at(5).unknown


def test_the_first_value_needs_no_entering(tmp_path: Path) -> None:
    script = Script(tmp_path, EPOCHS.replace("for epoch in range(2, 10, 2)", "for epoch in [2, 4, 6, 8]"))
    assert not script.at(2).unknown


def test_the_same_loop_called_from_elsewhere_is_another(tmp_path: Path) -> None:
    text = (
        EPOCHS.replace("def main(ask, log):", "def fit(ask, log):")
        + "\ndef main(ask, log):\n    fit(ask, log)\n    fit(ask, log)\n"
    )
    script = Script(tmp_path, text)
    second = script.at(len(WHOLE) + 5)  # in the second fit
    seen: list[bool] = []
    returning = Returning(second, past=False)
    script.run(lambda number, here: seen.append(returning.is_there(here)), returning.put_names)
    returning.take_names()
    assert seen == [False] * 12 + [True] * 8  # the first fit is whole, and the second begins where it was


def test_edits_elsewhere_do_not_matter(tmp_path: Path) -> None:
    around = Script(tmp_path, EPOCHS).at(5)
    edited = Script(tmp_path, "# a comment\nx = 5\n" + EPOCHS)
    assert edited.from_there(around) == WHOLE[4:]


def test_an_enumerate_goes_on_counting(tmp_path: Path) -> None:
    text = """
def main(ask, log):
    def batches():
        for _ in "abc":
            ask()
            yield _
    for number, letter in enumerate("xy"):
        for batch, _ in enumerate(batches(), start=1):
            log((number, batch))
"""
    script = Script(tmp_path, text)
    around = script.at(1)
    returning = Returning(around, past=False)

    def act(number: int, here: Surroundings) -> None:
        if number == 1:
            returning.arrive(sys._getframe(2), 7)

    log = script.run(act, returning.put_names)
    assert log == [(0, 8), (0, 9), (0, 10), (1, 1), (1, 2), (1, 3)]
    assert "enumerate" not in vars(sys.modules["script_of_a_test"])
