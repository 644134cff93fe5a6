"""Code blocks of README and docs are what they say: commands have these options, documents are read, code compiles."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from tests.docs.blocks import ROOT, Block, blocks, command_lines

import stoker
from stoker import cli

ALL = blocks()
COMMANDS = [(block, line) for block in ALL for line in command_lines(block)]
SKETCHES = {"docs/groups.md"}
"""Pages that show a shape with `...` in the place of arguments."""


def only(language: str) -> list[Block]:
    return [block for block in ALL if block.language == language]


@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=str)
def test_the_command_has_these_options(block: Block, line: str) -> None:
    words = shlex.split(line)[1:]
    parser, _, asked = cli._parser(words)
    if asked in cli._WITH_SCRIPT:
        begin = words.index(asked) + 1
        own, script = cli._split(words[begin:])
        assert script, f"{block}: no script in {line!r}"
        words = words[:begin] + own
    parser.parse_args(words)


PLANS = [block for block in only("toml") if "version = 1" in block.text]
"""The others are jobs of `stoker together`, which tests/run/test_together.py reads."""


@pytest.mark.parametrize("block", PLANS, ids=str)
def test_a_plan_is_one(block: Block, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(block.text)
    stoker.Plan.load(tmp_path / "plan.toml")


@pytest.mark.parametrize("block", only("yaml"), ids=str)
def test_steps_of_a_workflow_call_commands_that_are_there(block: Block) -> None:
    steps = yaml.safe_load(block.text)
    calls = [step["run"] for step in steps if "run" in step]
    assert calls
    for call in calls:
        test_the_command_has_these_options(block, call)


@pytest.mark.parametrize("block", only("json"), ids=str)
def test_json_is_json(block: Block) -> None:
    json.loads(block.text)


@pytest.mark.parametrize("block", only("python"), ids=str)
def test_code_compiles(block: Block) -> None:
    text = block.text.replace("...", "None") if block.page in SKETCHES else block.text
    if block.page in SKETCHES and "(None)" in text:
        text = text.replace("(None)", "()")
    compile(text.replace(", None,", ","), str(block), "exec")


def test_the_tests_that_run_blocks_are_there() -> None:
    assert [block for block in ALL if block.run_by and not (ROOT / block.run_by).exists()] == []
