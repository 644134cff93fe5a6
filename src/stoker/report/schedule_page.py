"""A simulated schedule, in words and as one page of HTML that needs nothing else and asks nobody. Pure.

`schedule.html` and `schedule.js` are the page, with the style of `html`: it escapes all text, and scripts get numbers and
names as JSON.
"""

from collections import defaultdict
from typing import Any

from stoker.report.html import hash_of, json_text, made_here, markup, ours, template
from stoker.report.words import many
from stoker.schedule.simulate import History
from stoker.schedule.summary import completion_times_h

_MOST_BARS = 4000
_MOST_POINTS = 600
_MOST_ROWS = 128
_HOUR_S = 3600.0


def summary(name: str, document: dict[str, Any]) -> str:
    """The result in three lines."""
    times, used, decision = document["jct_h"], document["utilisation"], document["decision_s"]
    first, last = document["window"]
    return (
        f"{name}: {many(document['jobs'], 'job')} in {document['makespan_h']:.2f} h\n"
        f"  from arrival to end, jobs {first} to {last}: mean {times['mean']:.2f} h, median {times['p50']:.2f}, "
        f"p95 {times['p95']:.2f}, p99 {times['p99']:.2f}, p99.9 {times['p999']:.2f}\n"
        f"  given: {used['gpu']:.0%} of GPUs, {used['cpu']:.0%} of CPUs, {used['memory']:.0%} of memory; "
        f"idle GPUs while jobs wait: {document['fragmentation']:.1%}\n"
        f"  {many(document['rounds'], 'round')}, {many(document['switches'], 'lease')} changed or ended; a decision took "
        f"{_ms(decision['mean'])} ms, at most {_ms(decision['max'])}"
    )


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f}"


def schedule_page(name: str, history: History, document: dict[str, Any], window: tuple[int, int]) -> str:
    """The whole page, in ASCII; `document` is that of `--json`."""
    script = ours("schedule.js")
    bars, rows, until_h = _bars(history)
    times = sorted(completion_times_h(history, window))
    numbers = {
        "bars": bars,
        "rows": rows,
        "until": until_h,
        "models": sorted({job.model for job in history.jobs}),
        "times": [[times[number], (number + 1) / len(times)] for number in _picked(len(times))],
        "used": _used(history),
    }
    seconds = document["decision_s"]
    text: str = template("schedule.html").render(
        title=f"{name} - stoker",
        css=markup(ours("page.css")),
        allowed=markup(hash_of(script)),
        headline=(name, f": {many(document['jobs'], 'job')} in {document['makespan_h']:.1f} h"),
        lead=f"{many(len(history.servers), 'server')} with {many(sum(one.gpus for one in history.servers), 'GPU')}, "
        f"{many(document['rounds'], 'round')}; a decision took {_ms(seconds['mean'])} ms, at most "
        f"{_ms(seconds['max'])}.",
        tiles=_tiles(document),
        cut=until_h < max(history.ends_s.values()) / _HOUR_S - 1e-6 or rows[-1:] == ["..."],
        window=window,
        models=numbers["models"],
        tables=[_table(document)],
        footer=made_here(),
        document=markup(json_text(numbers)),
        script=markup(script),
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _tiles(document: dict[str, Any]) -> list[tuple[str, str]]:
    times, used = document["jct_h"], document["utilisation"]
    return [
        (f"{times['mean']:.2f} h", "from arrival to end, on average"),
        (f"{times['p99']:.2f} h", "for the slowest of 100"),
        (f"{document['makespan_h']:.2f} h", "until the last job ended"),
        (f"{used['gpu']:.0%}".replace("%", " %"), "of all GPUs were given to jobs"),
        (f"{used['cpu']:.0%}".replace("%", " %"), "of all CPUs"),
        (f"{used['memory']:.0%}".replace("%", " %"), "of all memory"),
    ]


def _table(document: dict[str, Any]) -> dict[str, Any]:
    times = document["jct_h"]
    names = {"mean": "mean", "p50": "median", "p95": "95 %", "p99": "99 %", "p999": "99.9 %"}
    rows = [(f"From arrival to end, {words}, hours", f"{times[key]:,.2f}") for key, words in names.items()]
    rows += [
        ("Makespan, hours", f"{document['makespan_h']:,.2f}"),
        ("GPUs idle while jobs wait", f"{document['fragmentation']:.1%}"),
        ("Leases changed or ended", f"{document['switches']:,}"),
        ("A decision, mean, seconds", f"{document['decision_s']['mean']:.4f}"),
        ("A decision, longest, seconds", f"{document['decision_s']['max']:.4f}"),
    ]
    return {"caption": "Times, GPUs and decisions", "head": ("", ""), "rows": rows}


def _bars(history: History) -> tuple[list[list[Any]], list[str], float]:
    """Leases as bars on GPUs: [row, rows high, begin, end, model, job, CPUs for each GPU]; the rows; until which hour."""
    models = {name: number for number, name in enumerate(sorted({job.model for job in history.jobs}))}
    model_of = {job.id: models[job.model] for job in history.jobs}
    rows: list[str] = []
    first_row: dict[str, int] = {}
    for server in history.servers:
        if len(rows) + server.gpus > _MOST_ROWS:
            break
        first_row[server.name] = len(rows)
        rows += [f"{server.name}" if not gpu else "" for gpu in range(server.gpus)]
    free_at: dict[str, list[float]] = {
        server.name: [0.0] * server.gpus for server in history.servers if server.name in first_row
    }
    bars: list[list[Any]] = []
    until_s = max(history.ends_s.values())
    for segment in sorted(history.segments, key=lambda one: (one.begin_s, one.lease.job_id)):
        if len(bars) >= _MOST_BARS:
            until_s = segment.begin_s
            break
        for share in segment.lease.placement.shares:
            if share.server in free_at:
                slots = free_at[share.server]
                taken = [number for number, at in enumerate(slots) if at <= segment.begin_s + 1e-6][: share.gpus]
                per_gpu = round(share.cpus / share.gpus, 2)
                for slot, high in _together(taken):
                    span = [segment.begin_s / _HOUR_S, segment.end_s / _HOUR_S]
                    row = first_row[share.server] + slot
                    bars.append([row, high, *span, model_of[segment.lease.job_id], segment.lease.job_id, per_gpu])
                for slot in taken:
                    slots[slot] = segment.end_s
    return bars, rows, until_s / _HOUR_S


def _together(slots: list[int]) -> list[tuple[int, int]]:
    """Runs of neighbours: the first, and how many."""
    runs: list[tuple[int, int]] = []
    for slot in slots:
        if runs and runs[-1][0] + runs[-1][1] == slot:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((slot, 1))
    return runs


def _used(history: History) -> list[list[float]]:
    """Parts of GPUs, CPUs and memory that are given, and jobs that wait, by hour: each the mean of some rounds."""
    gpus = sum(server.gpus for server in history.servers)
    cpus = sum(server.cpus for server in history.servers)
    memory = sum(server.memory_gb for server in history.servers)
    groups: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    every = max(1, len(history.used) // _MOST_POINTS)
    for number, ((at_s, a, b, c), waiting) in enumerate(zip(history.used, history.waiting, strict=True)):
        groups[number // every].append((at_s / _HOUR_S, a / gpus, b / cpus, c / memory, waiting))
    return [[round(sum(column) / len(column), 4) for column in zip(*rows, strict=True)] for rows in groups.values()]


def _picked(count: int) -> list[int]:
    """Numbers of a long list that are enough for a line."""
    every = max(1, count // _MOST_POINTS)
    return sorted({*range(0, count, every), count - 1})
