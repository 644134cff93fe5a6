"""What pages show of a terminal: commands shown with their output print it, and every other block names its test."""

import re
from pathlib import Path

import pytest
from tests.docs.blocks import ROOT, Block, blocks, command_lines

from stoker.cli import main
from stoker.profile import Profile
from stoker.report.text import text_report

HERE = str(Path(__file__).relative_to(ROOT))
DRAWINGS = 9
"""Blocks of `text`: pictures of how parts hang together. Nothing in them is typed or printed."""
TERMINAL = [block for block in blocks() if block.language == ""]
COMPARED = [block for block in TERMINAL if block.run_by == HERE]


@pytest.mark.parametrize("block", [block for block in COMPARED if block.text.startswith("$ ")], ids=str)
def test_a_command_prints_what_is_shown(
    block: Block, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    command, _, shown = block.text.removeprefix("$ stoker ").partition("\n")
    assert main(command.split()) == 0
    assert capsys.readouterr().out.strip("\n") == shown.strip("\n")


def test_the_report_of_the_example_is_the_one_that_is_shown() -> None:
    (block,) = [block for block in COMPARED if not block.text.startswith("$ ")]
    profile = Profile.load(ROOT / "docs" / "examples" / "resnet18-h200.json")
    assert text_report(profile, None, width=100).strip("\n") == block.text.strip("\n")


def test_every_block_of_a_terminal_has_its_test() -> None:
    assert [str(block) for block in TERMINAL if not block.run_by] == []
    assert len([block for block in blocks() if block.language == "text"]) == DRAWINGS


SCRIPTS_OWN = {"--epochs", "--lr", "--nproc-per-node", "--no-python", "--nnodes", "--node-rank", "--master-addr"}
"""Options of train.py and of torchrun."""
ELSEWHERE = [block for block in blocks() if block.run_by and "tests/docs/" not in block.run_by and command_lines(block)]


def said_by(test: str) -> str:
    """The text of a test, of what lies beside it, and of the benchmarks whose helpers tests use."""
    paths = [*(ROOT / test).parent.rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")]
    return "\n".join(path.read_text() for path in paths)


@pytest.mark.parametrize("block", ELSEWHERE, ids=str)
def test_the_named_test_uses_every_option_of_the_block(block: Block) -> None:
    assert block.run_by is not None
    words = said_by(block.run_by)
    options = {option for line in command_lines(block) for option in re.findall(r"(?<=\s)--[a-z][a-z-]+", line)}
    assert {option for option in options - SCRIPTS_OWN if option not in words} == set()
