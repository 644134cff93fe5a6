"""Draw the pictures of docs/how.md: `python scripts/pictures.py`. A picture is rows of boxes with arrows between them."""

from pathlib import Path
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
PICTURES = {
    "loader": [
        [
            "dataset[i]|in a worker process",
            "a slot|shared memory: collated in place",
            "a view|no copy, no pickle",
            "your loop",
        ],
        ["its last tensor is gone", "the slot is free again"],
    ],
    "analyze": [
        ["your script|as it is", "batches on the device|how fast could the loop be?", "cached batches|waits for preparing"],
        ["cold batches|waits for reading", "profile.json|what was measured", "plan.toml|what would help"],
    ],
    "cache": [
        ["worker opens a file", "in the cache?|one for the whole host", "bytes, with a checksum"],
        ["if not: storage|one reader for each file", "kept, while there is room|never thrown out"],
    ],
    "group": [
        ["workers of job A, B, C", "every batch, once|one shared memory", "a copy for each job|same order, every sample"],
    ],
    "ranks": [
        [
            "rank 1: its queue is full|a worker has nothing to do",
            "takes an order of rank 0",
            "rank 0 gets its batch|sooner, and bit for bit the same",
        ],
    ],
    "readers": [
        [
            "queued batches|of all ranks and jobs",
            "readers|one process for the whole host",
            "cache, or staging|before a worker asks",
            "workers|prepare, and wait for no read",
        ],
    ],
    "peers": [
        ["a read", "this host's cache", "caches of other hosts|by TCP, with a secret", "storage|once for all hosts"],
    ],
    "offload": [
        [
            "trainer|orders",
            "relay|one process on its host",
            "workers on other hosts|their cores prepare",
            "batches|back into slots",
        ],
    ],
    "prep": [
        [
            "a worker|reads, draws random numbers",
            "file and notes|crop, resize, flip, normalize",
            "the GPU|decodes, and does what is noted",
            "your loop|its batch is on the GPU",
        ],
    ],
    "checkpoint": [
        [
            "optimizer.step()",
            "a copy|beside forward and backward",
            "a process of its own|writes, reads back, renames",
        ],
        ["killed at any moment", "the newest that is whole", "goes on|in the middle of an epoch"],
    ],
    "together": [
        [
            "job A starts|and fills the cache",
            "wait for the best moment|by A's progress",
            "job B starts|reads what A has cached",
        ],
    ],
    "schedule": [
        [
            "a job's matrix|speed by cores and memory",
            "every job has its share|none is slower",
            "what one does not use|goes to one that does",
        ],
    ],
}
WIDE, HIGH, GAP, EDGE = 210, 56, 34, 12
STYLE = "font-family:system-ui,sans-serif;text-anchor:middle"


def drawn(rows: list[list[str]]) -> str:
    """One picture, as SVG. Its own light ground makes it readable on dark pages, too."""
    width = EDGE * 2 + max(len(row) for row in rows) * (WIDE + GAP) - GAP
    height = EDGE * 2 + len(rows) * (HIGH + EDGE) - EDGE
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" style="{STYLE}">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#f6f7f9"/>',
    ]
    for line, row in enumerate(rows):
        top = EDGE + line * (HIGH + EDGE)
        for number, box in enumerate(row):
            left = EDGE + number * (WIDE + GAP)
            title, _, note = box.partition("|")
            middle = left + WIDE / 2
            parts.append(f'<rect x="{left}" y="{top}" width="{WIDE}" height="{HIGH}" rx="6" fill="#fff" stroke="#546e7a"/>')
            parts.append(_text(middle, top + (24 if note else 33), 14, "#1c2529", title))
            if note:
                parts.append(_text(middle, top + 43, 11.5, "#455a64", note))
            if number:
                at = top + HIGH / 2
                parts.append(f'<path d="M{left - GAP + 4} {at}H{left - 10}" stroke="#bf360c" stroke-width="2"/>')
                parts.append(f'<path d="M{left - 3} {at}l-9 -5v10z" fill="#bf360c"/>')
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, size: float, colour: str, words: str) -> str:
    return f'<text x="{x:g}" y="{y}" font-size="{size}" fill="{colour}">{escape(words)}</text>'


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, rows in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(drawn(rows))
