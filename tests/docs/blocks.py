"""The code blocks of README and docs: where each is, and which test runs it."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^(?:<!-- run by (\S+) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    run_by: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    """All of them, page by page."""
    found = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text()
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start(2)) + 1
            found.append(Block(str(path.relative_to(ROOT)), line, match[2], match[3], match[1]))
    return found


def command_lines(block: Block) -> list[str]:
    """The lines that call stoker, without what a reader is told beside them."""
    joined = re.sub(r"\s*\\\n\s*", " ", block.text).splitlines()
    lines = [line.strip().removeprefix("$ ") for line in joined]
    return [re.split(r"\s{2,}|\s+#", line)[0].rstrip(" &") for line in lines if re.match(r"stoker [a-z]", line)]
