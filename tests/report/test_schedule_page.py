"""The page of a simulated schedule, in a real browser: leases, completion times, and what was given."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests.report.test_html import Visit, _no_process_left, browser
from tests.schedule.clusters import CONTENT, HUNGRY, job, servers
from tests.tries import HANG_S

from stoker.report.schedule_page import schedule_page
from stoker.schedule.rules import Rules
from stoker.schedule.simulate import Simulation
from stoker.schedule.summary import summarise

__all__ = ["_no_process_left", "browser"]


@pytest.fixture
def seen(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    jobs = [
        job(f"j{number}", (CONTENT, HUNGRY)[number % 2], gpus=1 + number % 3, iterations=2000, model="ab"[number % 2])
        for number in range(20)
    ]
    history = Simulation(jobs, servers(2), Rules("srtf", "tune")).run()
    path = tmp_path / "page.html"
    path.write_text(schedule_page("SRTF, tune", history, summarise(history), (0, 20)), encoding="ascii")
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(HANG_S * 1000)
    yield Visit(context.new_page(), path)
    context.close()


def test_all_charts_are_drawn_and_nothing_is_asked_for(seen: Visit) -> None:
    assert not seen.complaints
    assert len(seen.requests) == 1
    assert seen.ask("() => document.querySelectorAll('#chart-gantt rect.bar').length") >= 20
    told = seen.ask("() => document.querySelector('#chart-gantt rect.bar title').textContent")
    assert "CPUs for each GPU" in told
    for name, lines in (("times", 1), ("used", 3), ("waiting", 1)):
        assert seen.ask(f"() => document.querySelectorAll('#chart-{name} path.line').length") == lines
    assert "NaN" not in seen.page.content()
    assert seen.ask("() => [...document.querySelectorAll('#legend li')].map((one) => one.textContent)") == ["a", "b"]


def test_charts_can_be_read_on_a_phone(seen: Visit) -> None:
    seen.page.set_viewport_size({"width": 375, "height": 740})
    assert seen.ask("() => document.documentElement.scrollWidth") <= 375
    heights = "() => [...document.querySelectorAll('svg text')].map((one) => one.getBoundingClientRect().height)"
    assert min(seen.ask(heights)) > 7
    assert seen.ask("() => document.querySelector('#chart-gantt').scrollWidth") > 700
