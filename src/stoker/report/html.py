"""A profile, or two of them as before and after, as one page of HTML that needs nothing else and asks nobody. Pure.

`page.html`, `page.css`, `charts.js` and `page.js` are the page, `words` has what it says, and `model.js` is the cost model
again, for the sliders. The template escapes all text of a profile; scripts get numbers only. The policy in the page allows
its own scripts, by their hash, and no request to anywhere.
"""

import base64
import hashlib
import importlib.util
import json
import math
import shlex
from dataclasses import asdict
from datetime import datetime
from importlib import import_module, resources
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from socket import gethostname
from typing import Any

from stoker.decide.forecast import Forecast, as_measured, verdict
from stoker.decide.model import Prediction, Share, predict
from stoker.decide.planner import decide, render
from stoker.decide.whatif import advise, no_advice
from stoker.errors import CommandError, ConfigError
from stoker.profile import Advice, Profile
from stoker.report import words

_MOST_WORKERS = 512
"""Beyond, neither the page nor the planner has an answer in time for people."""
_SLIDERS = {
    "workers": "Workers", "cores": "Cores", "cached": "Cache, as part of the dataset", "storage_factor": "Storage speed",
    "gpu_factor": "Compute (GPU) speed",
}  # fmt: skip
_NO_ANSWER = "the cost model has no answer for such rates"


def html_report(profile: Profile, plan: str = "plan.toml", *, before: Profile | None = None) -> str:
    """The whole page, in ASCII. `plan` is the path of the plan for the commands; `before` makes it a comparison."""
    scripts = [*charts_library(), *(ours(name) for name in ("model.js", "charts.js", "page.js"))]
    profiles = [profile] if before is None else [before, profile]
    predicted = [_predicted(one) for one in profiles]
    now = predicted[-1]
    advice = _advice(profile, now)
    per, samples = _per(profiles)
    text: str = template("page.html").render(
        title=f"{profile.script or 'a profile'} - stoker",
        script=profile.script or "(no script)",
        css=markup(ours("page.css")),
        allowed=markup(" ".join(map(hash_of, scripts))),
        colour="line" if before else {"gpu": "compute"}.get(limit := verdict(profile).limit, limit),
        headline=words.headline(profile, before),
        lead=words.lead(profile),
        tiles=words.tiles(profile, before),
        warnings=[
            *([f"Only what was measured can be shown: {now}."] if isinstance(now, str) else []),
            *(words.differences(before, profile) if before else []),
        ],
        per=per,
        timed=any(
            words.speed(one) or isinstance(found, Prediction) for one, found in zip(profiles, predicted, strict=True)
        ),
        ranks=profile.world > 1,
        advice=[words.change(profile, one) for one in advice],
        no_advice=_no_advice(profile, now),
        plan=_plan(profile, plan) if _plannable(profile, now) else None,
        predictable=isinstance(now, Prediction),
        stored=_stored(profile),
        compared=before is not None,
        sliders=_sliders(profile),
        tables=[_compared(profiles, predicted), _measured(profiles)],
        notes=[f"{name}{note}" for name, one in _named(profiles) for note in one.notes],
        footer=_footer(profiles),
        document=markup(json_text(_document(profiles, predicted, per, samples))),
        scripts=[markup(script) for script in scripts],
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()


def charts_library() -> tuple[str, ...]:
    """The scripts of Bokeh, which need not be imported; an error that says what to install, if it is not there."""
    found = importlib.util.find_spec("bokeh")
    if found is None or not found.submodule_search_locations or importlib.util.find_spec("jinja2") is None:
        raise CommandError("a page needs Bokeh: pip install 'stoker[report]'")
    folder = Path(found.submodule_search_locations[0]) / "server" / "static" / "js"
    try:
        return tuple(_ascii((folder / name).read_text("utf-8")) for name in ("bokeh.min.js", "bokeh-api.min.js"))
    except OSError as error:
        raise CommandError(f"Bokeh's scripts cannot be read ({error}): pip install --force-reinstall bokeh") from error


# ---- putting a page together


def template(name: str) -> Any:
    """One of our pages, to be filled: all text that it is given is escaped."""
    jinja2 = import_module("jinja2")  # only here: other commands start without it
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_visible
    )
    return environment.from_string(ours(name))


def _visible(value: Any) -> Any:
    return words.visible(value) if type(value) is str else value


def markup(text: str) -> Any:
    """Text of our own that is not to be escaped."""
    return import_module("markupsafe").Markup(text)


def ours(name: str) -> str:
    """A file of ours beside this one."""
    return _ascii(resources.files("stoker.report").joinpath(name).read_text("utf-8"))


def _ascii(script: str) -> str:
    """The same script in any encoding; what is not ASCII stands in strings and comments only."""
    return script.encode("ascii", "backslashreplace").decode()


def hash_of(script: str) -> str:
    """How a page's policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def json_text(document: object) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# ---- what is predicted


def _predicted(profile: Profile, share: Share | None = None) -> Prediction | str:
    """The speed predicted from the stages alone, or why there is no prediction."""
    rates = profile.rates
    most = max(profile.workers, rates.workers, *rates.prep_by_workers, *rates.prep_by_threads, *rates.storage_by_readers, 0)
    if most > _MOST_WORKERS:
        return f"{words.number(most)} workers are too many for the cost model"
    try:
        found = predict(rates, share or as_measured(profile), profile.confidence)
    except ConfigError as error:
        return str(error)
    except ArithmeticError:
        return _NO_ANSWER
    return found if math.isfinite(found.rate) and found.rate > 0 else _NO_ANSWER


def _plannable(profile: Profile, now: Prediction | str) -> bool:
    return isinstance(now, Prediction) and max(profile.rates.cores, profile.host.cores) <= _MOST_WORKERS


def _advice(profile: Profile, now: Prediction | str) -> tuple[Advice, ...]:
    return profile.advice or (advise(profile) if _plannable(profile, now) else ())


def _no_advice(profile: Profile, now: Prediction | str) -> str:
    if not _plannable(profile, now):
        return "Nothing could be tried: there is no prediction for this profile and this host."
    if verdict(profile).limit == "gpu":
        return "Nothing that Stoker could change: the loop is fed."
    return no_advice(profile)


def _plan(profile: Profile, path: str) -> dict[str, str] | None:
    """The plan, if it makes the run faster."""
    decision = decide(profile)
    if not decision.is_worth_it:
        return None
    command = f"stoker run --plan {shlex.quote(path)} {words.script(profile)}"
    stays = "The script says num_workers itself, and that stays" if "num_workers" in profile.fixed else ""
    return {
        "command": command,
        "text": render(decision.plan, decision.reasons),
        "effect": f"About {words.rate(decision.after.rate)}, {words.times_as_fast(decision.gain)}",
        "stays": stays or "What the script itself says, such as num_workers, stays",
    }


# ---- tables and footer


def _named(profiles: list[Profile]) -> list[tuple[str, Profile]]:
    names = ("",) if len(profiles) == 1 else ("Before: ", "After: ")
    return list(zip(names, profiles, strict=True))


def _compared(profiles: list[Profile], predicted: list[Prediction | str]) -> dict[str, Any]:
    rows = []
    for (name, profile), found in zip(_named(profiles), predicted, strict=True):
        rows.append(_compare(f"{name}as it ran, {words.percent(profile.cached)} cached", words.speed(profile), found))
        if _stored(profile) and profile.speed.cached:
            share = Share(workers=profile.workers, cached=1.0, threads=profile.workers_kind == "threads")
            rows.append(_compare(f"{name}everything cached", profile.speed.cached, _predicted(profile, share)))
    return {"caption": "Predicted against measured", "head": ["samples/s", "measured", "predicted", "off"], "rows": rows}


def _compare(name: str, measured: float, found: Prediction | str) -> tuple[str, ...]:
    seen = words.number(measured) if measured else "-"
    if isinstance(found, str):
        return name, seen, "-", "-"
    off = 100 * (found.rate / measured - 1) if measured else 0.0
    return name, seen, words.number(found.rate), f"{off:+.0f}\xa0%" if abs(off) >= 0.5 else "0\xa0%" if measured else "-"


def _measured(profiles: list[Profile]) -> dict[str, Any]:
    columns = [_facts(profile) for profile in profiles]
    for part in dict.fromkeys(one.where for profile in profiles for one in profile.on_device):
        for column, profile in zip(columns, profiles, strict=True):
            seen = next((one.cached for one in profile.on_device if one.where == part), 0.0)
            column[f"With --prep {part}, data in memory, samples/s"] = words.number(seen) if seen else "not measured"
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return {
        "caption": "What was measured",
        "head": ["", *(["Before", "After"] if len(profiles) == 2 else [""])],
        "rows": rows,
    }


def _facts(profile: Profile) -> dict[str, str]:
    rates, sure, data = profile.rates, profile.confidence, profile.dataset
    size = words.size(data.bytes) + ("" if data.bytes_known else ", an estimate") if data.bytes else "unknown"
    return {
        "The training loop alone, samples/s": words.within(rates.gpu, sure.gpu),
        "Preparing alone, samples/s": words.within(rates.prep, sure.prep),
        "Storage alone, samples/s": words.within(rates.storage, sure.storage),
        "The cache alone, samples/s": words.within(rates.cache, sure.cache),
        "Waiting for preparing": words.percent(profile.stalls.prep),
        "Waiting for reading": words.percent(profile.stalls.fetch),
        "Workers": f"{words.number(profile.workers)} ({profile.workers_kind})" if profile.workers else "none",
        "Batch size": words.number(profile.batch_size),
        "Samples": words.number(data.samples) if data.samples else "unknown",
        "Bytes": size,
        "In the cache": words.percent(profile.cached),
        "Ranks": words.number(profile.world),
        "Cores that others took meanwhile": words.number(profile.host.others),
    }


def _footer(profiles: list[Profile]) -> list[str]:
    lines = []
    for name, profile in _named(profiles):
        host = profile.host
        memory = f", {words.size(host.memory_bytes)} of memory" if host.memory_bytes else ""
        cores = words.many(host.cores, "core") if host.cores else "an unknown number of cores"
        by = f"by stoker {profile.stoker} on {cores}{memory}, {host.device}."
        lines.append(f"{name}{words.taken(profile)} {by[0].upper()}{by[1:]}" if profile.taken else f"{name}Measured {by}")
    made = f"Page made by stoker {version_of('stoker')}; charts by Bokeh {version_of('bokeh')}."
    about = (
        "Rates are samples per second, bands are 95\xa0% intervals. This file holds everything it shows, and asks nobody."
    )
    return [*lines, f"{made} {about}"]


def made_here() -> str:
    """The last line of a page of what this host has just done: when, where, by which version."""
    moment = f"{datetime.now():%Y-%m-%d %H:%M} on {words.visible(gethostname())}"
    return f"Page made {moment} by stoker {version_of('stoker')}. This file holds everything it shows, and asks nobody."


def version_of(package: str) -> str:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:  # run from a folder that was not installed
        return "(version unknown)"


# ---- what the scripts are given


def _stored(profile: Profile) -> bool:
    return bool(profile.rates.storage) or any(profile.rates.storage_by_readers.values())


def _sliders(profile: Profile) -> list[tuple[str, str]]:
    each = " for each rank" if profile.world > 1 else ""
    sliders = _SLIDERS | ({"prep": "Preparing that the GPU does"} if profile.on_device else {})
    return [(field, name + (each if field in ("workers", "cores") else "")) for field, name in sliders.items()]


def _per(profiles: list[Profile]) -> tuple[str, float]:
    """What the time is of: an epoch of one rank, if all profiles have the same."""
    counts = {profile.dataset.samples / profile.world for profile in profiles}
    return ("time per epoch", counts.pop()) if len(counts) == 1 and 0 not in counts else ("time per 1,000 samples", 1000.0)


def _document(profiles: list[Profile], predicted: list[Prediction | str], per: str, samples: float) -> dict[str, Any]:
    names = ("",) if len(profiles) == 1 else ("before", "after")
    return {
        "per": per,
        "samples": samples,
        "profiles": [
            {
                "name": name,
                "rates": asdict(one.rates),
                "confidence": asdict(one.confidence),
                "workers": one.workers,
                "workers_kind": one.workers_kind,
                "cached": one.cached,
                "sample_bytes": one.dataset.sample_bytes * one.world,
                "dataset_bytes": one.dataset.bytes,
                **(_forecasts(one) if isinstance(found, Prediction) else {"scale": None, "on_device": {}}),
                "measured": _parts(one),
                "predictable": isinstance(found, Prediction),
            }
            for name, one, found in zip(names, profiles, predicted, strict=True)
        ],
    }


def _forecasts(profile: Profile) -> dict[str, Any]:
    forecast = Forecast.of(profile)
    there = {part: {"rates": asdict(one.rates), "scale": asdict(one.scale)} for part, one in forecast.on_device.items()}
    return {"scale": asdict(forecast.scale), "on_device": there}


def _parts(profile: Profile) -> dict[str, float] | None:
    if not words.speed(profile):
        return None
    seen = verdict(profile)
    return {"rate": seen.rate, "prep": seen.prep, "fetch": min(seen.fetch, 1 - seen.prep)}
