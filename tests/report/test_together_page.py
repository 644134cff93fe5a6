"""The page of jobs that run together, in a real browser: the curve, the slider, and what happened."""

import re
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from playwright.sync_api import Browser
from tests.report.test_html import Visit, _no_process_left, browser
from tests.tries import HANG_S

from stoker.decide.stagger import stagger
from stoker.report.together_page import together_page
from stoker.run.together.catalogue import Solo
from stoker.run.together.jobs import TogetherJob
from stoker.run.together.planning import TogetherPlan, make_plan, times_of

__all__ = ["_no_process_left", "browser"]
ONE = Solo(
    0.3, 0.7, 0.0, startup_s=5.0, batch=8, samples=800, iterations=100, sample_bytes=1e5, data="d", cold_iterations=50
)
OTHER = Solo(
    0.1, 0.9, 0.0, startup_s=5.0, batch=8, samples=800, iterations=100, sample_bytes=1e5, data="d", cold_iterations=50
)
OUTSIDE = "<script>alert(1)</script>"


def planned(*names: str) -> TogetherPlan:
    jobs = [TogetherJob(name, ("train.py", name), 1) for name in names]
    solo = [ONE, OTHER, ONE][: len(names)]
    return make_plan(jobs, solo, [[]] * len(names), 10**9, objective="makespan", ready=0.0)


def page_of(plan: TogetherPlan, real: dict[str, Any] | None = None) -> str:
    points = [[(1.0, 0.01), (50.0, 0.5)], [(95.0, 0.4)], []][: len(plan.jobs)] if real else [[] for _ in plan.jobs]
    return together_page(plan.document() | ({"real": real} if real else {}), dict(plan.curves), plan.lines, points)


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(HANG_S * 1000)

    def one(text: str) -> Visit:
        path = tmp_path / "page.html"
        path.write_text(text, encoding="ascii")
        return Visit(context.new_page(), path)

    yield one
    context.close()


def shown(visit: Visit, identity: str) -> str:
    return str(visit.ask(f"() => document.getElementById('{identity}').textContent"))


def test_axes_have_round_numbers_and_the_page_says_when_and_where(visit: Any) -> None:
    seen = visit(page_of(planned("large", "small")))
    numbers = "(chart) => [...document.querySelectorAll(`#${chart} text`)].map((one) => one.textContent)"
    curve, progress = (seen.page.evaluate(numbers, chart) for chart in ("chart-curve", "chart-progress"))
    assert curve == ["-100", "-50", "0", "50", "100", "100", "110", "120", "130"]
    assert progress == ["0", "25", "50", "75", "100", "0", "0.25", "0.5", "0.75", "1"]
    last = seen.ask("() => document.querySelector('footer').textContent")
    assert re.match(rf"Page made \d{{4}}-\d\d-\d\d \d\d:\d\d on {re.escape(gethostname())} by stoker", last)


def test_charts_can_be_read_on_a_phone(visit: Any) -> None:
    seen = visit(page_of(planned("large", "small")))
    seen.page.set_viewport_size({"width": 375, "height": 740})
    assert seen.ask("() => document.documentElement.scrollWidth") <= 375
    heights = "() => [...document.querySelectorAll('svg text')].map((one) => one.getBoundingClientRect().height)"
    assert min(seen.ask(heights)) > 7


def test_the_slider_tells_what_python_predicts(visit: Any) -> None:
    plan = planned("large", "small")
    seen = visit(page_of(plan))
    assert not seen.complaints and len(seen.requests) == 1
    assert shown(seen, "result-makespan") == f"{plan.outcome.makespan_s:.0f}\N{NO-BREAK SPACE}s"
    model = stagger(times_of(ONE, []), times_of(OTHER, []), iterations=(100, 100))
    ends = [-max(offset for offset, *_ in dict(plan.curves)["B"]), max(offset for offset, *_ in dict(plan.curves)["A"])]
    for key, offset in (("Home", ends[0]), ("End", ends[1])):
        seen.move("offset", key)
        starts = (0.0, offset) if offset >= 0 else (-offset, 0.0)
        expected = model._stage.play(starts).makespan_s
        assert shown(seen, "result-makespan") == f"{expected:.0f}\N{NO-BREAK SPACE}s"
    seen.ask("() => document.getElementById('reset').click()")
    assert shown(seen, "result-makespan") == f"{plan.outcome.makespan_s:.0f}\N{NO-BREAK SPACE}s"


def test_what_happened_is_on_the_charts(visit: Any) -> None:
    real = {"makespan_s": 102.0, "starts_s": [0.0, 91.0], "times_s": [102.0, 10.0], "bytes_storage": 1, "codes": [0, 0]}
    seen = visit(page_of(planned("large", "small"), real))
    assert not seen.complaints
    assert seen.ask("() => document.querySelectorAll('#chart-progress circle.real').length") == 3
    assert seen.ask("() => document.querySelectorAll('#chart-curve circle.real').length") == 1
    assert "+2.0" in seen.ask("() => document.querySelector('.lead').textContent")
    late = visit(page_of(planned("large", "small"), real | {"makespan_s": 240.0, "starts_s": [0.0, 230.0]}))
    lies = late.ask("() => [...document.querySelectorAll('#chart-curve circle')].map((one) => +one.getAttribute('cx'))")
    assert all(0 < x < 900 for x in lies), "a point beyond the curve is on the chart, too"
    widths = seen.ask("() => [document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1]


def test_text_from_outside_stays_text_and_three_jobs_have_no_slider(visit: Any) -> None:
    seen = visit(page_of(planned(OUTSIDE, "b", "c")))
    assert not seen.complaints
    assert seen.ask("() => document.getElementById('slider-offset')") is None
    assert OUTSIDE in seen.ask("() => document.body.innerText")
