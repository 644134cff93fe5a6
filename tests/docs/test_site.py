"""The site: it is built without a warning, and no link of the pages beside it is broken."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stoker_loader_batches_total" in (tmp_path / "site" / "reference" / "metrics" / "index.html").read_text()
    assert "--fail-above" in (tmp_path / "site" / "reference" / "commands" / "index.html").read_text()


@pytest.mark.parametrize("name", sorted(path.name for path in ROOT.glob("*.md")))
def test_links_beside_the_site_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []
