"""The site: it is built without a warning, and no link of the pages beside it is broken."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from stoker.live.exposition import expose

ROOT = Path(__file__).parents[2]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "reference" / "metrics" / "index.html").read_text()
    families = [line.split()[2] for line in expose([], 0.0, 0.0, "").splitlines() if line.startswith("# HELP")]
    assert [name for name in families if f"<code>{name}</code>" not in page] == []
    assert "--fail-above" in (tmp_path / "site" / "reference" / "commands" / "index.html").read_text()


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("*.md")))
def test_links_beside_the_site_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


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
