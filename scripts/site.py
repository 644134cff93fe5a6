"""What mkdocs asks of this project: pages of the reference that are made from the source, and the examples beside them."""

import argparse
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from stoker import cli
from stoker.cli.help import GROUPS
from stoker.live.exposition import expose

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made here, and the examples that pages link to."""
    pages = {"reference/commands.md": commands(), "reference/metrics.md": metrics()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    for path in sorted((ROOT / "examples").rglob("*.*")):
        if path.suffix in (".py", ".json"):
            files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Examples lie beside the pages here, not above them."""
    return re.sub(r"\]\((?:\.\./)+examples/(?=\w+/|\w+\.py)", "](examples/", markdown)


def commands() -> str:
    """Every command with its help, as the terminal shows it."""
    parser, _, _ = cli._parser([])
    (below,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    lines = ["# Commands", "", "Made from the source: what `stoker COMMAND --help` prints.", ""]
    for names in GROUPS.values():
        for name in names:
            lines += [f"## stoker {name}", "", "```text", below.choices[name].format_help().rstrip(), "```", ""]
            for action in below.choices[name]._actions:
                if isinstance(action, argparse._SubParsersAction):
                    for part, each in action.choices.items():
                        lines += [f"### stoker {name} {part}", "", "```text", each.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def metrics() -> str:
    """Every metric that Prometheus gets, as it is told of each: its text has all families, also those without a value."""
    told = [line.split(" ", 3)[1:] for line in expose([], 0.0, 0.0, "").splitlines() if line.startswith("#")]
    words = {name: rest for what, name, rest in told if what == "HELP"}
    kinds = {name: rest for what, name, rest in told if what == "TYPE"}
    lines = [
        "# Metrics",
        "",
        "Made from the source: what `stoker metrics` gives ([more](../top.md#prometheus-and-grafana)).",
        "",
        "| name | kind | |",
        "|---|---|---|",
    ]
    return "\n".join([*lines, *(f"| `{name}` | {kinds[name]} | {text} |" for name, text in words.items()), ""])
