"""ARCHITECTURE.md is true of the code: its rooms are the contract's, what it names exists, and ways are short."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator

import pytest
from tests.docs.blocks import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text()
SOURCE = ROOT / "src" / "stoker"
MOST_MODULES = 8
"""From `dataset[i]` to the training loop."""


def section(title: str) -> str:
    return TEXT.split(f"## {title}\n")[1].split("\n## ")[0]


def columns() -> Iterator[tuple[str, list[str]]]:
    """The regimes, and the cells of each on a sample's way."""
    rows = [line.strip()[1:-1].split("|") for line in section("One sample's way").splitlines() if line.startswith("|")]
    head, body = rows[0], rows[2:]
    for number in range(1, len(head)):
        yield head[number].strip(), [row[number].strip() for row in body]


def modules(cells: list[str]) -> list[tuple[str, str | None]]:
    """Each module that cells name, with its class. In "feed/seeded, carrier" the second is in the folder of the first."""
    found = []
    for cell in cells:
        folder = ""
        for name in re.findall(r"[a-z_]+(?:/[a-z_]+)?(?:\.[A-Z]\w+)?(?=,|$)", cell):
            path, _, kind = name.partition(".")
            folder, _, leaf = path.rpartition("/") if "/" in path else (folder, "", path)
            if folder:
                found.append((f"{folder}/{leaf}", kind or None))
    return found


WAYS = list(columns())


@pytest.mark.parametrize(("regime", "cells"), WAYS, ids=[regime for regime, _ in WAYS])
def test_a_way_is_short_and_its_modules_exist(regime: str, cells: list[str]) -> None:
    named = modules(cells)
    for module, kind in named:
        tree = ast.parse((SOURCE / f"{module}.py").read_text())
        assert kind is None or kind in [each.name for each in tree.body if isinstance(each, ast.ClassDef)]
    assert 3 <= len({module for module, _ in named}) <= MOST_MODULES


def test_files_that_are_named_exist() -> None:
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)*)\.py`", section("To change ..., open ..."))
    assert len(named) > 50
    below = {path.stem for path in SOURCE.rglob("*.py")}
    assert [name for name in named if not ((SOURCE / f"{name}.py").exists() or ("/" not in name and name in below))] == []


def test_rooms_are_those_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = [set(re.findall(r"[a-z_]+", layer)) for layer in contracts[0]["layers"]]
    named = re.findall(r"[a-z_]+", section("Rooms").split("```")[1])
    assert contracts[0]["exhaustive"]
    assert set().union(*floors) <= set(named)
    inside = {path.stem for path in SOURCE.iterdir() if path.is_dir() or path.suffix == ".py"} - {"__init__", "__main__"}
    assert {name for name in inside if not name.startswith("__") and name != "py"} == set().union(*floors)


def test_no_two_public_classes_have_one_name() -> None:
    named = Counter(
        each.name
        for path in SOURCE.rglob("*.py")
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.ClassDef) and not each.name.startswith("_")
    )
    assert [name for name, number in named.items() if number > 1] == []
