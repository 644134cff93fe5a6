"""Turn the lines of `scripts/bench` into docs/results.md."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def main(path: str) -> None:
    """Write the page."""
    answers = [json.loads(line) for line in Path(path).read_text().splitlines() if line.startswith("{")]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    lines = [
        "# Results",
        "",
        f"Made by `scripts/bench` and `scripts/results.py` at commit {commit}, on a virtual machine: {answers[0]['host']}.",
        "Contenders take turns in one run; a ratio is the median over rounds. The machine is noisy: read the ratios, not",
        "the figures. `ratio` is how many times better Stoker is than torch's own loader, unless the row says otherwise.",
        "Rows that name a GPU were measured by `scripts/gpu` on that machine (16 cores, Python 3.12, torch 2.11).",
        "",
        "| question | ratio | more |",
        "|---|---|---|",
    ]
    for answer in answers:
        more = {key: value for key, value in answer.items() if key not in ("question", "ratio", "host")}
        lines.append(f"| {answer['question']} | {answer['ratio']:.2f} | {'; '.join(_words(more))} |")
    lines += [
        "",
        "`of_limit` compares with the limit of the machine: two cores that do nothing but run the user's `__getitem__`.",
        "For samples that are in memory already that limit has no copy in it, and no loader can come near.",
        "`same` says that the bytes of both loaders were compared in the same run. Memory is a worker's proportional share",
        "(PSS); there, less than 1 is better.",
        "",
    ]
    (ROOT / "docs" / "results.md").write_text("\n".join(lines))


def _words(more: dict[str, Any]) -> list[str]:
    return [f"{key.replace('_', ' ')} {_value(value)}" for key, value in more.items()]


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_value(part)}" for name, part in value.items())
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and value < 1000
        else f"{value:,.0f}"
        if isinstance(value, float)
        else str(value)
    )


if __name__ == "__main__":
    main(sys.argv[1])
