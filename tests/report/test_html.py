"""The page, in a browser: what it asks for, what it says, what the sliders compute, and that nothing is cut."""

import importlib.util
import json
import math
import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from tests.report.profiles import AFTER, ODD, ON_DEVICE, OUTSIDE, USUAL, random_case
from tests.tries import HANG_S

from stoker.decide.forecast import Forecast, Scale
from stoker.decide.model import Share, predict
from stoker.errors import CommandError
from stoker.profile import LIMITS, Profile
from stoker.report import html, words
from stoker.report.html import html_report

CASES = 600
MODEL = Path(html.__file__).with_name("model.js").read_text()
# Elements that are narrower than what they hold, or that stick out of the window, as far as they are seen at all.
CUT = """() => [...document.querySelectorAll("body *")].filter((one) => {
  const box = one.getBoundingClientRect();
  if (!box.width || !box.height || one.closest(".paper") || box.right < 0) return false;
  const hides = getComputedStyle(one).overflowX !== "visible" && one.tagName !== "INPUT";
  return box.right > document.documentElement.clientWidth + 1 || (hides && one.scrollWidth > one.clientWidth + 1);
}).map((one) => one.outerHTML.slice(0, 120))"""
# Pairs of neighbours that lie on each other.
OVERLAP = """() => {
  const found = [];
  const on = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]) > 1;
  const parents = "body, header, main, section, ul, ol, .sliders, .slider, .whatif, .pair, .command";
  for (const parent of document.querySelectorAll(parents)) {
    const all = [...parent.children].map((one) => [one, one.getBoundingClientRect()]);
    const seen = all.filter(([, box]) => box.width && box.height);
    seen.forEach(([one, a], number) => seen.slice(number + 1).forEach(([other, b]) => {
      const over = on(a, b, "left", "right") && on(a, b, "top", "bottom");
      if (over) found.push([one, other].map((it) => it.outerHTML.slice(0, 80)));
    }));
  }
  return found;
}"""


@pytest.fixture(autouse=True)
def _no_process_left() -> None:
    """A browser begins and ends processes as it likes; it is ended below."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no browser is installed: see scripts/system-packages")
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=alone, timeout=HANG_S * 1000)
        yield started
        started.close()


PAINTED = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Holds as soon as the page shows what it was told."""


class Visit:
    """A page that was opened, and all that it asked for and complained about."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("body[data-ready]", state="attached")

    def ask(self, script: str, argument: Any = None) -> Any:
        return self.page.evaluate(script, argument)

    def move(self, field: str, key: str, times: int = 1) -> None:
        for _ in range(times):
            self.page.locator(f"#slider-{field}").press(key)
        self.ask(PAINTED)


@pytest.fixture
def visit(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    opened = []

    def one(profile: Profile, before: Profile | None = None, width: int = 1440, **how: Any) -> Visit:
        path = tmp_path / "page.html"
        path.write_text(html_report(profile, before=before), encoding="ascii")
        context = browser.new_context(viewport={"width": width, "height": 740}, **how)
        context.set_default_timeout(HANG_S * 1000)
        opened.append(context)
        return Visit(context.new_page(), path)

    yield one
    for context in opened:
        context.close()


def numbers(prediction: dict[str, Any]) -> dict[str, float]:
    """All of it, the limit as a number of its own."""
    return prediction | {"limit": LIMITS.index(prediction["limit"])}


def test_the_model_of_the_page_is_the_model_of_python(browser: Browser) -> None:
    draw = random.Random(8)
    cases = [random_case(draw) for _ in range(CASES)]
    page = browser.new_page()
    page.evaluate(MODEL)
    asked = [{"rates": asdict(one), "share": asdict(share), "confidence": asdict(sure)} for one, share, sure in cases]
    ask = "(asked) => asked.map((one) => stokerModel.predict(one.rates, one.share, one.confidence))"
    for answer, case in zip(page.evaluate(ask, asked), cases, strict=True):
        assert numbers(answer) == pytest.approx(numbers(asdict(predict(*case))), rel=1e-6, abs=1e-6), case
    scales = [
        Scale(draw.uniform(0.5, 1.5), draw.uniform(0.5, 1.5), draw.choice([0.0, 0.3, 1.0]), draw.choice([1.0, 1.1]))
        for _ in cases
    ]
    asked = [one | {"scale": asdict(scale)} for one, scale in zip(asked, scales, strict=True)]
    ask = "(asked) => asked.map((one) => stokerModel.forecast(one.rates, one.scale, one.share, one.confidence))"
    for answer, case, scale in zip(page.evaluate(ask, asked), cases, scales, strict=True):
        told, share, sure = case
        expected = numbers(asdict(Forecast(told, sure, scale)(share)))
        assert numbers(answer) == pytest.approx(expected, rel=1e-6, abs=1e-6), case
    page.close()


def test_a_page_asks_nobody_and_has_no_complaint(visit: Any, tmp_path: Path) -> None:
    seen = visit(USUAL, AFTER)
    assert seen.complaints == []
    assert seen.requests == [(tmp_path / "page.html").as_uri()]
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    assert seen.ask("() => fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')") == "refused"


def test_a_slider_for_what_the_gpu_does_where_that_was_measured(visit: Any) -> None:
    seen = visit(ON_DEVICE, AFTER)
    assert "With --prep tail, data in memory, samples/s" in seen.page.inner_text("body")
    rates = []
    for step in [("cached", "End", 1), ("prep", "ArrowRight", 1), ("prep", "ArrowRight", 1), ("workers", "Home", 1)]:
        seen.move(*step)
        found = seen.ask("() => stokerPage")
        expected = Forecast.of(ON_DEVICE)(Share(**found["share"]))
        assert numbers(found["prediction"]) == pytest.approx(numbers(asdict(expected)), rel=1e-3, abs=1e-6)
        rates.append(expected.rate)
    assert found["share"]["prep"] == "device"
    assert rates[1:3] == [pytest.approx(1050), pytest.approx(3250)]
    assert seen.page.inner_text("#value-prep") == "from files on (--prep device)"
    assert visit(USUAL).page.query_selector("#slider-prep") is None
    assert seen.complaints == []


@pytest.mark.parametrize("profile", [USUAL, ODD["unknown bytes, many ranks"]])
def test_each_slider_moves_the_prediction_to_what_python_computes(visit: Any, profile: Profile) -> None:
    seen = visit(profile)
    steps = [
        (), ("workers", "ArrowRight", 3), ("cores", "ArrowRight", 1), ("cached", "PageUp", 2),
        ("storage_factor", "ArrowRight", 3), ("gpu_factor", "End", 1),
        ("workers", "Home", 1), ("cached", "End", 1), ("storage_factor", "Home", 1),
    ]  # fmt: skip
    rates = set()
    for step in steps:
        if step:
            seen.move(*step)
        found = seen.ask("() => stokerPage")
        expected = Forecast.of(profile)(Share(**found["share"]))
        assert numbers(found["prediction"]) == pytest.approx(numbers(asdict(expected)), rel=1e-3, abs=1e-6)
        assert seen.page.inner_text("#result-rate") == words.number(expected.rate)
        rates.add(expected.rate)
    assert len(rates) > 6
    assert asdict(Share(**found["share"])) | {"storage_factor": 0.1, "gpu_factor": 32} == found["share"]
    seen.page.press("#reset", "Enter")
    seen.ask(PAINTED)
    assert seen.ask("() => stokerPage.prediction.rate") == pytest.approx(profile.speed.cold, rel=1e-3)
    assert seen.complaints == []


@pytest.mark.parametrize("name", ["usual", "before and after", *ODD])
def test_nothing_is_cut_and_nothing_overlaps(visit: Any, name: str) -> None:
    profile = AFTER if name == "before and after" else ODD.get(name, USUAL)
    seen = visit(profile, USUAL if name == "before and after" else None, color_scheme="dark")
    if seen.page.query_selector("summary"):
        seen.page.press("summary", "Enter")
    if seen.page.query_selector("#reset"):
        seen.move("workers", "End")
    for width in (1440, 800, 360):
        seen.page.set_viewport_size({"width": width, "height": 740})

        for _ in range(50):  # the charts follow
            seen.page.wait_for_timeout(100)
            if not seen.ask(CUT) + seen.ask(OVERLAP) and seen.ask("() => document.documentElement.scrollWidth") == width:
                break
        assert seen.ask("() => document.documentElement.scrollWidth") == width
        assert seen.ask(CUT) == []
        assert seen.ask(OVERLAP) == []
    assert seen.complaints == []
    assert seen.ask("() => typeof hacked") == "undefined"


def test_axes_and_units_are_named(visit: Any) -> None:
    named = visit(USUAL).ask(
        "() => Bokeh.documents.flatMap((one) => one.roots()).flatMap((fig) => "
        "[...fig.xaxes, ...fig.yaxes].filter((axis) => axis.visible).map((axis) => axis.axis_label))"
    )
    on_paper_too = 2 * ["time per epoch (s)", "part of the dataset in the cache (%)", "samples/s", "workers", "samples/s"]
    assert sorted(named) == sorted(on_paper_too)


def test_the_limit_is_said_first(visit: Any) -> None:
    assert words.headline(USUAL) == ("Reading from storage is the limit", ": training waits for data 90\xa0% of the time.")
    assert words.headline(ODD["no stall"]) == ("The training loop itself is the limit", ": it does not wait for data.")
    seen = visit(USUAL)
    assert seen.page.inner_text("h1") == "Reading from storage is the limit: training waits for data 90\xa0% of the time."
    assert seen.ask("() => document.querySelector('h1').getBoundingClientRect().bottom < 200")


def test_before_and_after() -> None:
    faster = html_report(USUAL, before=ODD["one worker"])
    assert "As fast as before" in faster
    assert "different batch sizes" in html_report(AFTER, before=USUAL)
    assert "different" not in re.sub(r"<script>.*?</script>", "", faster, flags=re.DOTALL)


def test_text_from_outside_is_text(visit: Any) -> None:
    seen = visit(ODD["text from outside"])
    said = seen.page.inner_text("body")
    assert said.count("</script><img src=x onerror='hacked=1'>\ufffd{{ 7 * 7 }}") >= 5
    assert seen.ask("() => document.images.length") == 0
    assert "\n" not in seen.ask("() => document.querySelector('#command-1-1').textContent")
    assert seen.ask("() => typeof hacked") == "undefined"
    numbers = seen.ask("() => document.querySelector('#document').textContent")
    assert "hacked" not in numbers
    assert json.loads(numbers)["profiles"][0]["rates"]["gpu"] == 3748.0
    assert OUTSIDE[:9] not in html_report(ODD["text from outside"]).partition("<body>")[2].partition("<script")[0]


SAID = """() => {
    const button = document.querySelector('button[data-copies=command-plan]');
    globalThis.said = [];
    new MutationObserver(() => said.push(button.textContent)).observe(button, { childList: true });
}"""


def test_commands_are_copied_by_keyboard(visit: Any) -> None:
    seen = visit(USUAL, permissions=["clipboard-read", "clipboard-write"])
    seen.page.focus("button[data-copies=command-plan]")
    seen.ask(SAID)
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_function("() => said.includes('Copied')")
    copied = seen.ask("() => navigator.clipboard.readText()")
    assert copied == "stoker run --plan plan.toml train.py --epochs 3 --learning-rate 0.001"
    reached = set()
    for _ in range(30):
        seen.page.keyboard.press("Tab")
        reached.add(seen.ask("() => document.activeElement.id || document.activeElement.dataset.copies || ''"))
    assert {"theme", "slider-workers", "slider-gpu_factor", "command-plan"} <= reached


def test_light_dark_and_paper(visit: Any) -> None:
    ground = "() => getComputedStyle(document.body).backgroundColor"
    seen = visit(USUAL, color_scheme="dark")
    dark = seen.ask(ground)
    seen.page.press("#theme", "Enter")
    seen.page.wait_for_selector("body[data-ready]", state="attached")
    light = seen.ask(ground)
    assert dark != light
    seen.page.press("#theme", "Enter")
    seen.page.wait_for_selector("body[data-ready]", state="attached")
    assert seen.ask(ground) == dark
    seen.page.emulate_media(media="print", color_scheme="dark")
    assert seen.ask(ground) == "rgb(255, 255, 255)"
    shown = "(name) => [...document.querySelectorAll(name)].map((one) => one.getBoundingClientRect().width)"
    assert seen.ask(shown, ".chart > .paper") == [660, 660, 660]
    assert seen.ask(shown, ".screen, button, .sliders") == pytest.approx(
        [0] * len(seen.ask(shown, ".screen, button, .sliders"))
    )
    assert len(seen.page.pdf(format="A4")) > 10_000
    assert seen.complaints == []


def test_a_page_is_ascii_and_has_no_number_that_json_lacks() -> None:
    for profile in [USUAL, *ODD.values()]:
        page = html_report(profile)
        assert page.isascii()
        document = re.search(r'id="document">(.*?)</script>', page)
        assert document
        json.loads(document[1], parse_constant=pytest.fail)


def test_numbers_for_people() -> None:
    assert [words.number(value) for value in (0, 0.5, 3.14159, 20.0, 361.4, 12345.6, 1e15, 1e-5, math.inf)] == [
        "0", "0.5", "3.14", "20", "361", "12,346", "1.00e+15", "1.00e-05", "unlimited",
    ]  # fmt: skip
    assert [words.percent(part) for part in (0, 0.001, 0.5, 1)] == ["0\xa0%", "<1\xa0%", "50\xa0%", "100\xa0%"]


def test_without_bokeh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match=re.escape("a page needs Bokeh: pip install 'stoker[report]'")):
        html_report(USUAL)
