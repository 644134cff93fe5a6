"""Whether a group has processor time to spare, by what the kernel counts of it."""

from pathlib import Path

from stoker.host.throttling import Throttling


def test_a_group_that_is_stopped_in_most_periods_has_none_to_spare(tmp_path: Path) -> None:
    stat = tmp_path / "cpu.stat"

    def counted(periods: int, throttled: int) -> None:
        stat.write_text(f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 5\n")

    counted(1000, 1000)
    throttling = Throttling([tmp_path, tmp_path / "none"])
    assert not throttling.is_starved(0.0)  # what was before does not count
    counted(1100, 1080)
    assert not throttling.is_starved(0.5)
    assert throttling.is_starved(1.0)
    counted(1200, 1140)  # bursts
    assert not throttling.is_starved(2.0)
    assert not throttling.is_starved(3.0)


def test_without_a_quota_there_is(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 5\nnr_periods 0\nnr_throttled 0\n")
    throttling = Throttling([tmp_path])
    assert not throttling.is_starved(0.0)
    (tmp_path / "cpu.stat").write_text("no numbers")
    assert not throttling.is_starved(5.0)
