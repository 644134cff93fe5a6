"""Five scripts of the gallery, each in some of its modes; `scripts/gallery` runs all of them in all modes."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.gallery.modes import FAILED, Gallery
from tests.gallery.table import BY_NAME
from tests.tries import in_some_try

MAKE_DATA = Path(__file__).parents[1] / "gallery" / "make_data.py"


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    work = tmp_path_factory.mktemp("gallery")
    subprocess.run([sys.executable, str(MAKE_DATA), str(work / "data")], check=True)
    return Gallery(work / "data", work, time_s=0.5)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("detection", "run"),
        ("glue_no_trainer", "checkpoint"),
        ("yolo", "run"),
        ("yolo", "analyze"),
        ("project", "cache"),
        ("project", "checkpoint"),
        ("failing", "run"),
    ],
)
def test_scripts_as_people_write_them(gallery: Gallery, name: str, mode: str) -> None:
    entry = BY_NAME[name]
    python = gallery.run(entry, "python")
    assert python.verdict != FAILED, f"the script itself: {python}"

    def check() -> None:
        outcome = gallery.run(entry, mode)
        assert outcome.verdict != FAILED, f"{name}, {mode}: {outcome}"

    in_some_try(check, tries=2 if mode == "analyze" else 1)  # other work on this host may hide what was planted
