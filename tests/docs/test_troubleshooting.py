"""The page "Troubleshooting": every error text that it quotes is one that the source can say."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## By error text")[2]
QUOTED = [text for row in PAGE.splitlines()[4:] if row.startswith("|") for text in re.findall("`(.*?)`", row.split("|")[1])]


def said(path: Path) -> str:
    """All texts of a file, with what is filled in left out."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


@pytest.fixture(scope="module")
def source() -> str:
    from stoker.extras import EXTRAS

    texts = [said(path) for path in (ROOT / "src").rglob("*.py")]
    return "\n".join([*texts, *(f"{extra.user} needs {extra.called}" for extra in EXTRAS)])


def test_there_are_some() -> None:
    assert len(QUOTED) > 10


@pytest.mark.parametrize("text", QUOTED)
def test_the_source_says_it(text: str, source: str) -> None:
    assert text in source
