"""The text report, as it looks on a terminal."""

from dataclasses import replace

import pytest
from tests.test_profile import SMALLEST

from stoker.profile import Advice, Profile, Stalls
from stoker.report.text import text_report

PROFILE = replace(Profile.of_document(SMALLEST), script="train.py --epochs 3")


def test_a_slow_disk() -> None:
    text = text_report(PROFILE, "plan.toml", blocks=False)
    assert (
        text
        == """\
train.py --epochs 3: 199 samples/s, where the training loop alone could take
1,000 (batch size 64, 2 workers, 2 cores, cpu)

  compute     ############..............................................   20%
  prep stall  ..........................................................    0%
  fetch stall ##############################################............   80%

Reading is the limit: 2 workers read 200 samples/s (±5%) from storage, and the
loop could take 1,000.

What would help most:
  1. cache 208 MB, 100% of the dataset: about 1,000 samples/s, 5.0 times as fast
     [--cache 208MB]

Do it:  stoker run --plan plan.toml train.py --epochs 3
"""
    )


@pytest.mark.parametrize("width", [1, 40, 60, 100, 200])
@pytest.mark.parametrize("blocks", [True, False])
def test_no_line_is_longer_than_the_terminal(width: int, blocks: bool) -> None:
    for line in text_report(PROFILE, width=width, blocks=blocks).splitlines():
        assert len(line) <= max(40, width)


def test_bars_are_as_long_as_their_parts_and_in_colour_only_if_asked() -> None:
    half = replace(PROFILE, stalls=Stalls(0.25, 0.25))
    bars = text_report(half, width=122, blocks=True).splitlines()[2:6]
    assert [line.count("█") for line in bars if "stall" in line or "compute" in line] == [50, 25, 25]
    assert "\x1b" not in text_report(half)
    assert "\x1b[31m" in text_report(half, colour=True)


def test_a_loop_that_is_fed() -> None:
    fed = replace(PROFILE, limit="gpu", stalls=Stalls(0.0, 0.0), rates=replace(PROFILE.rates, gpu=100.0))
    text = text_report(fed, "plan.toml")
    assert "The training loop is the limit (±2%): it does not wait for data." in text
    assert "What would help" not in text
    assert "Do it" not in text
    assert "during 1% of its time" in text_report(replace(fed, stalls=Stalls(0.01, 0.0)))


def test_preparing_is_the_limit() -> None:
    text = text_report(replace(PROFILE, limit="prep", workers=1), width=200)
    assert "Preparing is the limit: 1 worker prepares 1,500 samples/s (±3%), and the loop could take 1,000." in text


def test_advice_of_the_document_notes_and_odd_paths() -> None:
    told = replace(PROFILE, advice=(Advice("8 workers", 300.0, 0.5, "num_workers=8"),), notes=("storage is a guess.",))
    text = text_report(told, "my plan.toml")
    assert "1. 8 workers: about 300 samples/s, 50% faster  [num_workers=8]" in text
    assert "--plan 'my plan.toml' train.py" in text
    assert "that stays: change it there" in text
    assert "Note: storage is a guess." in text
