"""The site: it is built without a warning, it can be read on a phone and by keyboard, and no link beside it is broken."""

import inspect
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright
from tests.tries import HANG_S

import stoker
from stoker.cli.help import GROUPS
from stoker.live.exposition import expose

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(built)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return built


def test_the_reference_is_made_from_the_source(site: Path) -> None:
    page = (site / "reference" / "metrics" / "index.html").read_text()
    families = [line.split()[2] for line in expose([], 0.0, 0.0, "").splitlines() if line.startswith("# HELP")]
    assert [name for name in families if f"<code>{name}</code>" not in page] == []
    assert "--fail-above" in (site / "reference" / "commands" / "index.html").read_text()


def test_the_reference_has_the_usage_of_each_command_and_the_arguments_of_each_class(site: Path) -> None:
    usages = re.findall(r"usage: (stoker \S+)", (site / "reference" / "commands" / "index.html").read_text())
    assert {f"stoker {name}" for names in GROUPS.values() for name in names} == set(usages)
    page = re.sub(r"<[^>]+>", "", (site / "reference" / "api" / "index.html").read_text())
    for call in (stoker.DataLoader, stoker.Dataset, stoker.Checkpointer):
        shown = page.partition(f"{call.__name__}(")[2].partition("\n)")[0]
        missing = [name for name in inspect.signature(call.__init__).parameters if f"{name}:" not in shown]
        assert missing == ["self"]


def test_pages_fit_a_phone_and_go_by_keyboard(site: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        assert "CI" not in os.environ
        pytest.skip("no browser")
    focused = "() => [document.activeElement.textContent, getComputedStyle(document.activeElement).outlineStyle]"
    alone = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=alone, timeout=HANG_S * 1000)
        page = started.new_page(viewport={"width": 375, "height": 740})
        page.set_default_timeout(HANG_S * 1000)
        for name in ("", "how", "troubleshooting", "peers-compared", "reference/metrics"):
            page.goto((site / name / "index.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 375, name
            assert page.evaluate("[...document.images].every((one) => one.alt)"), name
        page.goto((site / "how" / "index.html").as_uri())
        widths = page.evaluate(
            "[...document.querySelectorAll('article img')].map((one) => one.getBoundingClientRect().width)"
        )
        assert min(widths) > 600  # scrolled sideways, and not made too small to be read
        page.goto((site / "index.html").as_uri())
        page.locator("article h1").click()
        seen = []
        for _ in range(8):
            page.keyboard.press("Tab")
            seen.append(page.evaluate(focused))
        started.close()
    assert ["The first five minutes", "solid"] in seen
    assert {outline for _, outline in seen} == {"solid"}


def test_words_of_a_picture_stay_in_their_boxes() -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        assert "CI" not in os.environ
        pytest.skip("no browser")
    outside = """() => {
        const boxes = [...document.querySelectorAll("rect[stroke]")].map((one) => one.getBBox());
        const inside = (text, box) => text.x >= box.x && text.x + text.width <= box.x + box.width && text.y >= box.y
            && text.y + text.height <= box.y + box.height;
        return [...document.querySelectorAll("text")].filter((one) => !boxes.some((box) => inside(one.getBBox(), box)))
            .map((one) => one.textContent);
    }"""
    pictures = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=browser, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=HANG_S * 1000
        )
        page = started.new_page()
        page.set_default_timeout(HANG_S * 1000)
        found = {}
        for picture in pictures:
            page.goto(picture.as_uri())
            if page.locator("rect[stroke]").count():  # of boxes: the other one is a chart
                found[picture.stem] = page.evaluate(outside)
        started.close()
    assert len(found) > 10
    assert {name: words for name, words in found.items() if words} == {}


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("*.md")))
def test_links_beside_the_site_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_what_the_readme_installs_for_the_site_has_what_makes_it() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    (group,) = re.findall(r"`mkdocs serve`[^`]*`pip install --group (\w+)`", (ROOT / "README.md").read_text())
    assert "mkdocs-material" in groups[group]


def test_the_reference_has_every_public_name() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)}
    assert set(stoker.__all__) - {"__version__"} - shown == set()


def test_the_reference_has_every_variable() -> None:
    page = (ROOT / "docs" / "reference" / "files.md").read_text()
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    asked = {name for text in sources for name in re.findall(r'"(STOKER_[A-Z_]+)"', text)}
    assert len(asked) > 10
    assert {name for name in asked if f"`{name}" not in page} == set()
