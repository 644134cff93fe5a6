"""How much other hosts prepare is measured and decided while a job runs, on real processes."""

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from tests.remote.test_remote import Noisy, flat, free_port, secret, workers

import stoker
from stoker.decide.looks import Known
from stoker.remote.measured import MeasuredFile

__all__ = ["secret"]


def loader_of(port: int | None, seconds: float, **options: Any) -> stoker.DataLoader:
    offload = {} if port is None else {"offload": f"tcp://127.0.0.1:{port}"}
    return stoker.DataLoader(
        Noisy(100_000, seconds), 4, num_workers=1, prefetch_factor=4, seed=3, shuffle=True, **offload, **options
    )


def stored() -> dict[str, Any]:
    path = Path(os.environ["XDG_CACHE_HOME"], "stoker", "offload.json")
    if not path.exists():
        return {}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return dict(json.loads(path.read_text())["measured"])


def kinds() -> list[str]:
    return sorted(key.split()[0] for key in stored())


def train(loader: Any, until: Any, step_s: float = 0.0, most_s: float = 100.0) -> list[Any]:
    """Train until something is so. Returns the batches."""
    found, deadline = [], time.monotonic() + most_s
    for batch in loader:
        found.append(flat(batch))
        time.sleep(step_s)
        if until():
            return found
        assert time.monotonic() < deadline, loader.stats()
    raise AssertionError("too few samples")


def test_the_loop_is_measured_and_a_part_goes_away_and_batches_are_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    with workers(port, 1), loader_of(port, 0.004) as loader:

        def is_known() -> bool:
            stats = loader.stats()
            return stats.remote > 100 and len(kinds()) == 3 and stats.remote_wanted > 0

        found = train(loader, is_known)
        stats = loader.stats()
        assert stats.remote_wanted >= 1
        assert stats.remote_workers == 1 and 0.1 < stats.remote_ratio <= 1 and stats.remote_bytes > 100 * 700 * 4
        assert found == [flat(batch) for _, batch in zip(found, loader_of(None, 0.0), strict=False)]
    assert kinds() == ["here", "loop", "there"]
    assert "everything is prepared on this host" not in capfd.readouterr().err
    # What is known is not measured again.
    with workers(port, 1), loader_of(port, 0.004) as loader:
        timed = []

        def is_used() -> bool:
            timed.extend(iterator._pool._timed for iterator in loader.here.iterators)
            return loader.stats().remote > 50

        train(loader, is_used)
        assert loader.stats().remote_ratio > 0.1 and loader.stats().remote_part == "all"
        assert set(timed) == {0}


@pytest.mark.soak
def test_a_loop_that_does_not_wait_sends_nothing_away(capfd: pytest.CaptureFixture[str]) -> None:
    port, said = free_port(), []

    def is_said() -> bool:
        said.append(capfd.readouterr().err)
        return "stoker: offload=: everything is prepared on this host: " in "".join(said)

    with workers(port, 1), loader_of(port, 0.001) as loader:
        train(loader, is_said, step_s=0.05)
        assert loader.stats().remote == 0 and loader.stats().remote_ratio == 0


@pytest.mark.parametrize(
    "content",
    [
        '{"version": 1, "measured": {"loop of another": {"rate": 1, "at": "x"}}}',
        '{"version": 1, "measured": {"loop of another": {"rate": NaN, "at": null}}}',
        '{"version": 1, "measured": {"loop mine": {"rate": %s}}}' % ("9" * 400),
        '{"version": 1, "measured": {"loop mine": {"rate": "7"}, "here": ["ab"]}}',
        "[" * 100_000,
        "\0",
    ],
    ids=["text", "no number", "huge", "pairs", "deep", "no JSON"],
)
def test_what_was_measured_and_is_damaged_is_measured_anew(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "stoker").mkdir(mode=0o700)
    (tmp_path / "stoker" / "offload.json").write_text(content)
    file = MeasuredFile("mine", "of mine")
    assert file.before() == Known()
    file.keep(Known(5.0, 4.0), None)
    assert MeasuredFile("mine", "of mine").before() == Known(5.0, 4.0)
