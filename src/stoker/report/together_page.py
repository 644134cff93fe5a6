"""Jobs that run together, as one page of HTML that needs nothing else and asks nobody. Pure.

`together.html` and `together.js` are the page, with the style of `html`: it escapes all text, and scripts get numbers and
names as JSON.
"""

import importlib.util
from collections.abc import Sequence
from typing import Any

from stoker.errors import CommandError
from stoker.report.html import hash_of, json_text, made_here, markup, ours, template
from stoker.report.together import against, duration
from stoker.units import format_bytes

Points = Sequence[Sequence[tuple[float, float]]]


def check() -> None:
    """Raise an error that says what to install, if a page cannot be made."""
    if importlib.util.find_spec("jinja2") is None:
        raise CommandError("a page needs Jinja: pip install 'stoker[report]'")


def together_page(document: dict[str, Any], curves: dict[str, Any], lines: Points, points: Points) -> str:
    """The whole page, in ASCII.

    `document` is that of `stoker together --json`, `curves` has the corners of the makespan by the first job of a pair, and
    `lines` and `points` have the passes of each job, predicted and real.
    """
    script = ours("together.js")
    names = [job["name"] for job in document["jobs"]]
    predicted, real = document["predicted"], document.get("real")
    first, *later = (names[ord(one) - ord("A")] for one in document["order"])
    sign = -1 if document["order"][0] == "B" else 1
    happened = _point(real)
    numbers = {
        "curves": curves,
        "best": sign * document["offset_s"],
        "makespan": predicted["makespan_s"],
        "names": names,
        "real": happened,
        "lines": lines,
        "points": points,
    }
    text: str = template("together.html").render(
        title=f"{' and '.join(names)} - stoker",
        css=markup(ours("page.css")),
        allowed=markup(hash_of(script)),
        headline=(f"{first} first", f", {' and '.join(later)} {duration(document['offset_s'])} later"),
        lead=_lead(document),
        tiles=_tiles(document),
        paired=bool(curves),
        names=names,
        happened=happened is not None,
        tables=[_jobs(document, names), *(_corners(curves[one], names, one) for one in curves)],
        footer=made_here(),
        document=markup(json_text(numbers)),
        script=markup(script),
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _point(real: dict[str, Any] | None) -> dict[str, float] | None:
    """What happened to a pair, as a point beside its curve: below 0 the second began first."""
    if real is None or len(real["starts_s"]) != 2 or None in real["starts_s"]:
        return None
    first_s, second_s = real["starts_s"]
    return {"offset": second_s - first_s, "makespan": real["makespan_s"]}


def _lead(document: dict[str, Any]) -> str:
    real, span = document.get("real"), document["predicted"]["makespan_s"]
    if real is None:
        return f"Predicted are {duration(span)} for all. Nothing was started."
    took_s = real["makespan_s"]
    return f"All took {duration(took_s)}, where {duration(span)} were predicted ({against(took_s, span)})."


def _tiles(document: dict[str, Any]) -> list[tuple[str, str]]:
    predicted = document["predicted"]
    return [
        (duration(predicted["makespan_s"]), "predicted for all"),
        (duration(document["simultaneous_s"]), "if all begin at once"),
        (duration(document["sequential_s"]), "one after the other"),
        (duration(sum(predicted["times_s"])), "of the jobs' time"),
        (format_bytes(predicted["bytes_storage"]), "from storage"),
    ]


def _jobs(document: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    predicted, real = document["predicted"], document.get("real")
    rows = []
    for number, name in enumerate(names):
        took_s = None if real is None else real["times_s"][number]
        told = "" if took_s is None else f"{duration(took_s)} ({against(took_s, predicted['times_s'][number])})"
        rows.append((name, duration(document["starts_s"][number]), duration(predicted["times_s"][number]), told))
    return {"caption": "Jobs", "head": ("", "first batch at", "predicted time", "real time"), "rows": rows}


def _corners(corners: Sequence[Sequence[float]], names: Sequence[str], first: str) -> dict[str, Any]:
    leads, follows = names if first == "A" else reversed(names)
    rows = [tuple(f"{value:,.1f}" for value in corner) for corner in corners]
    head = ("offset", "makespan", *(f"{name} takes" for name in names))
    return {"caption": f"{leads} first, {follows} later, in seconds: all corners of the curve", "head": head, "rows": rows}
