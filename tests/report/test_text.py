"""The text report, as it looks on a terminal."""

from dataclasses import replace
from typing import Any

import pytest
from tests.test_profile import SMALLEST

from stoker.decide.whatif import advise
from stoker.profile import Advice, Confidence, Host, Profile, Speed, Stalls
from stoker.report import words
from stoker.report.text import text_report

PROFILE = replace(Profile.of_document(SMALLEST), script="train.py --epochs 3")


def test_a_slow_disk() -> None:
    text = text_report(PROFILE, "plan.toml")
    assert (
        text
        == """\
train.py --epochs 3: 199 samples/s, where the training loop alone could take
1,000 (batch size 64, 2 workers, 2 cores, cpu)

  compute     ███████████▋                                                 20%
  prep stall                                                                0%
  fetch stall ██████████████████████████████████████████████▍              80%

Reading is the limit: 2 workers read 200 samples/s (±5%) from storage, and the
loop could take 1,000.

What would help most:
  1. cache 208 MB, 100% of the dataset: about 990 samples/s, 5.0 times as fast
     [--cache 208MB]

Do it, for about 990 samples/s:
  stoker run --plan plan.toml train.py --epochs 3
"""
    )


@pytest.mark.parametrize("width", [1, 40, 60, 100, 200])
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    for line in text_report(PROFILE, width=width).splitlines():
        assert len(line) <= max(40, width)


def test_bars_are_as_long_as_their_parts_and_in_colour_only_if_asked() -> None:
    half = replace(PROFILE, stalls=Stalls(0.25, 0.25))
    bars = text_report(half, width=122).splitlines()[2:6]
    assert [line.count("█") for line in bars if "stall" in line or "compute" in line] == [50, 25, 25]
    assert "\x1b" not in text_report(half)
    assert "\x1b[31m" in text_report(half, colour=True)


def test_a_loop_that_is_fed() -> None:
    fed = replace(
        PROFILE,
        limit="gpu",
        stalls=Stalls(0.0, 0.0),
        speed=Speed(100.0, 100.0, 100.0),
        rates=replace(PROFILE.rates, gpu=100.0),
    )
    text = text_report(fed, "plan.toml")
    assert "The training loop is the limit (±2%): it does not wait for data." in text
    assert "What would help" not in text
    assert "Do it" not in text
    assert "during 1% of its time" in text_report(replace(fed, stalls=Stalls(0.01, 0.0)))


def slow_prep(**values: Any) -> Profile:
    """Preparing by one worker is the limit, and more cores would help."""
    rates = replace(PROFILE.rates, prep=250.0, prep_by_workers={1: 250.0}, storage=1e5, workers=1, cores=1.0)
    seen = {"workers": 1, "rates": rates, "speed": Speed(1000.0, 250.0, 250.0), "stalls": Stalls(0.75, 0.0)}
    return replace(PROFILE, **seen | values)


def test_preparing_is_the_limit() -> None:
    text = text_report(slow_prep(), width=200)
    assert "Preparing is the limit: 1 worker prepares 250 samples/s (±3%), and the loop could take 1,000." in text


def test_the_limit_is_what_the_bars_say_whatever_the_document_calls_it() -> None:
    """Measured alone the stages are fast enough, but the loop waits for 56 % of its time."""
    rates = replace(PROFILE.rates, prep=5000.0, prep_by_workers={2: 5000.0}, storage=1e5, storage_by_readers={2: 1e5})
    odd = replace(PROFILE, limit="gpu", rates=rates, speed=Speed(1000.0, 450.0, 440.0), stalls=Stalls(0.54, 0.02))
    text = text_report(odd, width=400)
    assert "is the limit" in text
    assert "The training loop is the limit" not in text
    assert "Preparing is the limit: 2 workers prepare 5,000 samples/s (±3%), but fewer beside the loop" in text
    assert "By its stages one by one it would go at 1,000 samples/s: something else holds it up" in text
    assert "The training loop itself" not in words.headline(odd)[0]


def test_the_way_to_the_device_is_not_called_preparing() -> None:
    rates = replace(
        PROFILE.rates, prep=1e5, prep_by_workers={2: 1e5}, storage=1e5, storage_by_readers={2: 1e5}, handover=1500.0
    )
    far = replace(PROFILE, rates=rates, speed=Speed(1000.0, 600.0, 600.0), stalls=Stalls(0.4, 0.0))
    text = text_report(far, width=400)
    assert "Handing over is the limit: batches are taken to the device during 40% of the time" in text
    assert "Nothing here would help" in text


def test_gains_are_told_against_the_first_figure() -> None:
    """The model says 250 where 200 were measured: none of that is a gain."""
    off = slow_prep(speed=Speed(1000.0, 200.0, 200.0), stalls=Stalls(0.8, 0.0), host=Host(1.0, 8 * 10**9, "cpu"))
    (first, *_) = advise(off)
    assert first.change == "2 cores with a worker each"
    assert first.rate == pytest.approx(400, rel=1e-3)
    assert first.gain == pytest.approx(400 / 200 - 1, rel=1e-3)
    text = text_report(off, width=200)
    assert text.startswith("train.py --epochs 3: 200 samples/s")
    assert "about 400 samples/s, 2.0 times as fast" in text


def test_what_is_inside_the_bands_is_not_advised_but_said() -> None:
    sure = slow_prep()
    assert advise(sure)
    unsure = replace(sure, confidence=Confidence(prep=0.4))
    assert advise(unsure) == ()
    text = text_report(unsure, "plan.toml", width=400)
    assert (
        "Nothing here is sure to help. The best that was tried is 2 cores with a worker each, about 500 samples/s" in text
    )
    assert "Do it" not in text


def test_a_loop_that_is_held_up_always_hears_what_would_help() -> None:
    """Nothing would: a store that is used up, and no room for a cache."""
    rates = replace(PROFILE.rates, prep=1e5, prep_by_workers={1: 5e4, 2: 1e5}, gpu=1000.0)
    held_up = replace(PROFILE, rates=replace(rates, storage=0.0, cache=0.0, loop_cores=2.0), workers=2)
    held_up = replace(held_up, speed=Speed(1000.0, 500.0, 500.0), stalls=Stalls(0.5, 0.0))
    assert advise(held_up) == ()
    text = text_report(held_up, "plan.toml", width=400)
    assert "Nothing here would help: other numbers of workers, twice the cores were tried" in text
    assert "Do it" not in text


def test_a_plan_promises_nothing_that_the_script_has_fixed() -> None:
    few = slow_prep(rates=replace(slow_prep().rates, prep_by_workers={1: 250.0, 2: 500.0, 4: 990.0}, cores=4.0))
    text = text_report(few, "plan.toml", width=200)
    assert "Do it, for about 990 samples/s:" in text
    assert "(Where the script itself says num_workers, that stays: change it there.)" in text
    text = text_report(replace(few, fixed=("num_workers",)), "plan.toml", width=200)
    assert "4 workers: about 990 samples/s, 4.0 times as fast  [num_workers=4]" in text
    assert "Do it" not in text
    assert "(The script says num_workers itself, and that stays: change it there.)" in text


def test_others_who_used_the_cores_are_told_in_the_first_line() -> None:
    busy = replace(PROFILE, host=replace(PROFILE.host, others=0.83))
    assert "2 cores of which others took 0.8, cpu)" in text_report(busy, width=200)


def test_advice_of_the_document_notes_and_odd_paths() -> None:
    told = replace(PROFILE, advice=(Advice("8 workers", 300.0, 0.5, "num_workers=8"),), notes=("storage is a guess.",))
    text = text_report(told, "my plan.toml")
    assert "1. 8 workers: about 300 samples/s, 50% faster  [num_workers=8]" in text
    assert "--plan 'my plan.toml' train.py" in text
    assert "that stays: change it there" in text
    assert "Note: storage is a guess." in text
