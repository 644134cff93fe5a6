"""Make docs/peers-compared.md and its picture: `python scripts/peers_page.py [LINES...]`, of `benchmarks/peers.py`.

The lines that the page shows are kept in docs/peers-compared.jsonl. New ones are joined to them: a run with
as many contenders takes the place of a whole table, one with fewer that of its contenders' rows.

In every table the contender that comes off best against Stoker stands first. One that is ahead needs a sentence on why.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from contenders import PINS, TITLES  # noqa: E402
from contenders.payloads import TITLES as WORKLOADS  # noqa: E402

WHY: dict[tuple[str, str], str] = {
    ("volumes", "dali"): (
        "nothing is prepared here but whole files read and copied. Its reader does that in C++, in threads that read ahead "
        "of what is asked for; workers of Stoker run the dataset's own Python. Which is ahead changes from round to round."
    ),
}
"""By workload and contender: why it gives more samples per second."""
BETTER = {
    "cold_samples_per_s": (
        "from a cold disk",
        "files of their own writers are few and large, and DALI reads ahead with its own threads, while workers of Stoker "
        "wait for one file each. Its cache is for that: what was read once stays.",
    ),
    "core_us": ("core time", "there are no processes to be started."),
    "first_batch_s": (
        "first batch",
        'threads begin at once, while processes are forked first. `workers="threads"` of Stoker begins so, too.',
    ),
    "memory_mb": (
        "memory",
        "Stoker keeps the memory of all batches that are under way or in use, to use it again; threads share what forked "
        "workers have a copy of.",
    ),
    "resume_s": ("resume", "less has to be started before the first batch."),
}
"""Other columns, and why some contenders are better there."""
_NOTABLE = 1.1
HEAD = """# Stoker and other loaders

The same bytes through each, in one run for each kind of data: `python benchmarks/peers.py > lines.jsonl`, then
`python scripts/peers_page.py lines.jsonl`. Measured on {days} with {host},
at a load of {load} (a comparison alone makes 2 to 3; the rest is other work).

Every contender has an environment of its own with pinned versions, two workers, and its data in the form that its guide
advises. All make samples with the same code, but for DALI, which has decoders of its own. They take turns, round by round,
and a ratio is of two that ran within seconds.

**How to read the first two columns**: 2.0 and "1.9 to 2.2" mean that Stoker gave twice as many samples per second, and
in one of {rounds} rounds at least 1.9 and at most 2.2 times as many. A contender that is
ahead stands first, with the reason.

![How many times as many samples Stoker gives](pictures/peers-compared.svg)
"""
NAMES = [
    "", "Stoker gives, times", "least to most", "samples/s", "from a cold disk", "core time, us a sample", "first batch, s",
    "memory, MB", "resume, s",
]  # fmt: skip
COLUMNS = f"\n| {' | '.join(NAMES)} |\n{'|---' * len(NAMES)}|"
TAIL = """
## What the columns mean

| | |
|---|---|
| samples/s | in the second half of an epoch, when what was prepared ahead is used up; files are in the page cache |
| from a cold disk | over a whole epoch, workers started, after the kernel was made to forget the files; a virtual disk |
| core time | processor time of all processes in an epoch, starting workers included, for each sample |
| first batch | from `iter()` to the first batch: workers that are spawned import everything anew, forked ones do not |
| memory | of all processes within an epoch, without pages of files, beyond that of the process with all its imports |
| resume | from a state in the middle of an epoch to the first batch of a new loader; "-": it has no state |

Every sample came exactly once from each{differ}. A resumed epoch gave the rest of the samples, each once{inexact}.

{again}{missing}\
Not compared: SPDL's own decoders, which need FFmpeg's libraries on the host; DALI on a GPU, which it is made for;
several hosts and object stores, which half of these are made for. Torch's and torchdata's loaders, SPDL, Grain, DALI and
ours read plain files; the others read files of their own writers, which is less work for a disk than many small files.

## Versions

{versions}
"""


Rows = list[dict[str, Any]]


def joined(every: Rows) -> tuple[Rows, Rows]:
    """Of several runs: for each workload the largest, the latest of these, and what smaller runs after it did again."""
    rows, again = [], []
    for workload in WORKLOADS:
        runs: dict[str, Rows] = {}
        for row in every:
            if row["workload"] == workload:
                runs.setdefault(row["run"], []).append(row)
        if not runs:
            continue
        whole = max(runs, key=lambda run: (len(runs[run]), run))
        shown = {row["contender"]: row for row in runs[whole]}
        for run in sorted(runs):
            if run > whole:
                shown |= {row["contender"]: row for row in runs[run] if row["contender"] != "stoker"}
        rows += shown.values()
        again += [row for row in shown.values() if row["run"] != whole]
    return rows, again


def main(*paths: str) -> None:
    """Write the page, and keep the lines that it is made of."""
    kept = ROOT / "docs" / "peers-compared.jsonl"
    texts = [path.read_text() for path in [kept, *map(Path, paths)] if path.exists()]
    rows, repeated = joined([json.loads(line) for text in texts for line in text.splitlines() if line.startswith("{")])
    ours = {row["workload"]: row for row in rows if row["contender"] == "stoker"}
    others = {(row["workload"], row["contender"]): row for row in rows if row["contender"] != "stoker"}
    again = {f"{TITLES[row['contender']]} ({row['workload']})" for row in repeated}
    days = " and ".join(sorted({row["run"].split()[0] for row in rows}))
    rounds = " or ".join(map(str, sorted({row["rounds"] for row in rows})))
    loads = sorted({row["load"] for row in rows})
    load = f"{loads[0]:.0f}" if loads[0] == loads[-1] else f"{loads[0]:.0f} to {loads[-1]:.0f}"
    text = HEAD.format(days=days, host=" and ".join(sorted({row["host"] for row in rows})), rounds=rounds, load=load)
    bars: dict[str, list[dict[str, Any]]] = {}
    for workload, title in WORKLOADS.items():
        some = [row for row in rows if row["workload"] == workload]
        if not some:
            continue
        done = sorted((row for row in some if "ratio" in row), key=lambda row: (row["contender"] == "stoker", row["ratio"]))
        bars[title] = [row for row in done if row["contender"] != "stoker"]
        ahead = [row for row in bars[title] if row["ratio"] < 1]
        text += f"\n## {title}\n{COLUMNS}\n" + "\n".join(map(_row, done)) + "\n"
        text += "".join(f"\n{TITLES[row['contender']]} is ahead: {WHY[workload, row['contender']]}\n" for row in ahead)
        text += "".join(f"\n{TITLES[row['contender']]} did not run: {row['failed']}.\n" for row in some if row["failed"])
    differ = [f"{TITLES[row['contender']]} ({row['workload']})" for row in rows if not row["same"] and not row["failed"]]
    inexact = [f"{TITLES[row['contender']]} ({row['workload']})" for row in rows if row.get("exact") is False]
    missing = [title for title in WORKLOADS.values() if title not in bars]
    text += _ahead(ours, [row for row in others.values() if "ratio" in row])
    text += TAIL.format(
        differ=f", but for {', '.join(differ)}" if differ else ", with the same bytes where nothing is drawn at random",
        again=f"Measured again later, in turns with Stoker alone: {', '.join(sorted(again))}.\n\n" if again else "",
        missing=f"Not measured on this machine so far: {'; '.join(missing)}.\n\n" if missing else "",
        inexact=f", but for {', '.join(inexact)}" if inexact else "",
        versions="\n".join(f"- {TITLES[name]}: {', '.join(pins) or 'of this environment'}" for name, pins in PINS.items()),
    )
    (ROOT / "docs" / "peers-compared.md").write_text(text)
    kept.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (ROOT / "docs" / "pictures" / "peers-compared.svg").write_text(picture(bars))


def _ahead(ours: dict[str, dict[str, Any]], others: list[dict[str, Any]]) -> str:
    """Who is better by a tenth or more in a column beside the first, and why."""
    lines = ["\n## Where others are ahead in something else\n"]
    for column, (name, why) in BETTER.items():
        more_is_better = column == "cold_samples_per_s"
        found = []
        for row in others:
            if (own := ours[row["workload"]][column]) and (value := row[column]):
                times = value / own if more_is_better else own / value
                found += [f"{TITLES[row['contender']]} ({row['workload']}, {times:.1f} times)"] if times >= _NOTABLE else []
        if found:
            lines.append(f"- **{name}**: {', '.join(found)}. Why: {why}")
    return "\n".join(lines) + "\n" if len(lines) > 1 else ""


def _row(row: dict[str, Any]) -> str:
    low, high = row["spread"]
    ours = row["contender"] == "stoker"
    resume = "-" if row["resume_s"] is None else f"{row['resume_s']:.2f}"
    cells = [
        f"**{TITLES['stoker']}**" if ours else TITLES[row["contender"]],
        "" if ours else f"{row['ratio']:.2f}",
        "" if ours else f"{low:.2f} to {high:.2f}",
        f"{row['samples_per_s']:,.0f}",
        f"{row['cold_samples_per_s']:,.0f}",
        f"{row['core_us']:,.0f}",
        f"{row['first_batch_s']:.2f}",
        f"{row['memory_mb']:,.0f}",
        resume,
    ]
    return f"| {' | '.join(cells)} |"


def picture(bars: dict[str, list[dict[str, Any]]]) -> str:
    """Ratios as bars from 1, on a scale of powers, with their spread. Readable on light and dark."""
    line, left, width = 22, 210, 760
    values = [value for rows in bars.values() for row in rows for value in row["spread"]]
    least, most = math.log(min([0.5, *values])), math.log(max([2.0, *values]))

    def x(value: float) -> float:
        return left + (width - left - 60) * (math.log(value) - least) / (most - least)

    parts, y = [], 30
    for title, rows in bars.items():
        parts.append(f'<text x="8" y="{y}" font-weight="600">{escape(title)}</text>')
        for row in rows:
            y += line
            start, end = sorted((x(1), x(row["ratio"])))
            colour = "#0072b2" if row["ratio"] >= 1 else "#d55e00"
            low, high = map(x, row["spread"])
            parts += [
                f'<text x="{left - 10}" y="{y}" text-anchor="end">{escape(TITLES[row["contender"]])}</text>',
                f'<rect x="{start:.1f}" y="{y - 11}" width="{max(1.0, end - start):.1f}" height="13" fill="{colour}"/>',
                f'<path d="M{low:.1f} {y - 5}H{high:.1f}" stroke="#57606a" stroke-width="2"/>',
                f'<text x="{max(end, high) + 6:.1f}" y="{y}">{row["ratio"]:.1f}</text>',
            ]
        y += 2 * line
    marks = [value for value in (0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if least <= math.log(value) <= most]
    scale = [
        f'<path d="M{x(one):.1f} 36V{y - line}" stroke="#8c959f" stroke-width="{1 if one == 1 else 0.3}"/>' for one in marks
    ]
    scale += [f'<text x="{x(one):.1f}" y="{y - 4}" text-anchor="middle">{one:g}</text>' for one in marks]
    style = "<style>text{fill:#24292f}@media(prefers-color-scheme:dark){text{fill:#e6edf3}}</style>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 10}" width="{width}" role="img" '
        f'aria-label="How many times as many samples per second Stoker gives" style="font:13px system-ui,sans-serif">'
        f"{style}{''.join(scale)}{''.join(parts)}</svg>\n"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
