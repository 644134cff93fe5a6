"""A profile, or two of them as before and after, as one page of HTML that needs nothing else and asks nobody. Pure.

The words are written here, from the profile and the cost model; `page.html`, `page.css`, `charts.js` and `page.js` show
them, and `model.js` is the cost model again, for the sliders. Whatever comes from a profile is escaped by the template;
scripts get numbers only. The page's policy allows its own scripts, by their hash, and no request to anywhere.
"""

import base64
import hashlib
import importlib.util
import json
import math
import re
import shlex
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import import_module, resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import stoker
from stoker.decide.model import Prediction, Share, predict
from stoker.decide.planner import decide, render
from stoker.decide.whatif import advise, as_measured
from stoker.errors import CommandError, ConfigError
from stoker.profile import Advice, Profile
from stoker.units import format_bytes

_MOST_WORKERS = 512
"""Beyond, neither the page nor the planner has an answer in time for people."""
_SLIDERS = {
    "workers": "Workers", "cores": "Cores", "cached": "Cache, as part of the dataset", "storage_factor": "Storage speed",
    "gpu_factor": "Compute (GPU) speed",
}  # fmt: skip
_LIMITS = {"gpu": "the training loop", "prep": "preparing samples", "fetch": "reading from storage"}
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def html_report(profile: Profile, plan: str = "plan.toml", *, before: Profile | None = None) -> str:
    """The whole page, in ASCII. `plan` is the path of the plan for the commands; `before` makes it a comparison."""
    scripts = [*charts_library(), *(_ours(name) for name in ("model.js", "charts.js", "page.js"))]
    profiles = [profile] if before is None else [before, profile]
    predicted = [_predicted(one) for one in profiles]
    now = predicted[-1]
    per = _per(profiles)
    text = _template().render(
        title=f"{profile.script or 'a profile'} - stoker",
        script=profile.script or "(no script)",
        css=_markup(_ours("page.css")),
        allowed=_markup(" ".join(map(_hash, scripts))),
        kind="compute" if profile.limit == "gpu" else profile.limit,
        headline=_headline(profile, before),
        lead=_lead(profile),
        tiles=_tiles(profile, before),
        warnings=_warnings(profiles, now),
        per=per[0],
        ranks=profile.world > 1,
        advice=[_advice(profile, one) for one in _changes(profile, now)],
        plan=_plan(profile, plan, now),
        predictable=isinstance(now, Prediction),
        stored=_stored(profile),
        compared=before is not None,
        sliders=_sliders(profile),
        tables=[_compared(profiles, predicted), _measured(profiles)],
        notes=[f"{name}{note}" for name, one in _named(profiles) for note in one.notes],
        footer=_footer(profiles),
        document=_markup(_json(_document(profiles, predicted, *per))),
        scripts=[_markup(script) for script in scripts],
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
        raise CommandError(f"Bokeh's scripts cannot be read: {error}: pip install --force-reinstall bokeh") from error


# ---- the parts of a page


def _template() -> Any:
    jinja2 = import_module("jinja2")  # only here: other commands start without it
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=_clean
    )
    return environment.from_string(_ours("page.html"))


def _clean(value: Any) -> Any:
    """Text without what could hide a part of it, or turn it around."""
    return _INVISIBLE.sub("\ufffd", value) if type(value) is str else value


def _markup(text: str) -> Any:
    """Text of our own that is not to be escaped."""
    return import_module("markupsafe").Markup(text)


def _ours(name: str) -> str:
    return _ascii(resources.files("stoker.report").joinpath(name).read_text("utf-8"))


def _ascii(script: str) -> str:
    """The same script in any encoding; what is not ASCII stands in strings and comments only."""
    return script.encode("ascii", "backslashreplace").decode()


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _json(document: object) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# ---- numbers in words


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "unlimited"
    if value >= 1e12 or 0 < value < 0.001:
        return f"{value:.2e}"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def _percent(part: float) -> str:
    return "<1\xa0%" if 0 < part < 0.005 else f"{100 * part:.0f}\xa0%"


def _rate(value: float, sure: float = 0.0) -> str:
    if not value:
        return "not measured"
    return f"{_number(value)}\xa0samples/s" + (f" \xb1{_percent(sure)}" if sure else "")


def _bytes(count: float) -> str:
    return format_bytes(count) if count < 1e15 else f"{count:.2e} B"


def _count(count: float, word: str) -> str:
    return f"{_number(count)} {word}{'' if count == 1 else 's'}"


# ---- what is said


def _stall(profile: Profile) -> float:
    return min(1.0, profile.stalls.prep + profile.stalls.fetch)


def _speed(profile: Profile) -> float:
    return profile.speed.cold or profile.speed.cached


def _waits(profile: Profile) -> str:
    return f"training waits for data {_percent(_stall(profile))} of the time"


def _headline(profile: Profile, before: Profile | None) -> tuple[str, str]:
    """What is the limit, and the rest of the sentence."""
    limit = _LIMITS[profile.limit]
    if before is not None and _speed(before) and _speed(profile):
        times = _speed(profile) / _speed(before)
        if 0.97 < times < 1.03:
            head = "As fast as before"
        else:
            head = f"{_number(times)} times as fast" if times > 1 else f"Slower: {_number(times)} times the speed"
        share = f"{_percent(_stall(before))} of the time before, {_percent(_stall(profile))} now"
        return head, f": training waited for data {share}. The limit is now {limit}."
    if profile.limit == "gpu":
        fed = (
            "does not wait for data"
            if _stall(profile) < 0.005
            else f"waits for data {_percent(_stall(profile))} of the time"
        )
        return "The training loop itself is the limit", f": it {fed}."
    return f"{limit[0].upper()}{limit[1:]} is the limit", f": {_waits(profile)}."


def _lead(profile: Profile) -> str:
    rates = profile.rates
    could = f"the training loop could take {_rate(rates.gpu, profile.confidence.gpu)}"
    if profile.limit == "gpu":
        return f"A faster loader would change little: {could}, and gets {_rate(_speed(profile))}."
    many = _count(profile.workers, "worker") if profile.workers else "The loop itself, without workers,"
    ending = "s" if profile.workers < 2 else ""
    if profile.limit == "prep":
        return f"{many} prepare{ending} {_rate(rates.prep, profile.confidence.prep)}; {could}."
    return f"{many} read{ending} {_rate(rates.storage, profile.confidence.storage)}; {could}."


def _tiles(profile: Profile, before: Profile | None) -> list[tuple[str, str]]:
    ran = _number(_speed(profile)) if _speed(profile) else "not measured"
    waits = _percent(_stall(profile))
    if before is not None:
        ran = f"{_number(_speed(before)) if _speed(before) else 'not measured'} \u2192 {ran}"
        waits = f"{_percent(_stall(before))} \u2192 {waits}"
    ranks = f" on each of {profile.world} ranks" if profile.world > 1 else ""
    alone = _number(profile.rates.gpu) if profile.rates.gpu else "not measured"
    return [
        (ran, f"samples/s as it ran{ranks}"),
        (alone, "samples/s that the training loop alone could take"),
        (waits, "of the time, the loop waits for data"),
    ]


def _warnings(profiles: list[Profile], now: Prediction | str) -> Iterable[str]:
    if isinstance(now, str):
        yield f"Only what was measured can be shown: {now}."
    if len(profiles) == 2:
        before, after = profiles
        differ = {
            "hosts": before.host.cores != after.host.cores or before.host.device != after.host.device,
            "batch sizes": before.batch_size != after.batch_size,
            "datasets": (before.dataset.samples, before.dataset.bytes) != (after.dataset.samples, after.dataset.bytes),
            "numbers of ranks": before.world != after.world,
        }
        named = [name for name, differs in differ.items() if differs]
        if named:
            yield f"The two profiles have different {' and '.join(named)}: more than one thing changed between them."


# ---- what is predicted


def _predicted(profile: Profile, share: Share | None = None) -> Prediction | str:
    """As it was measured, or why not."""
    rates = profile.rates
    most = max(profile.workers, rates.workers, *rates.prep_by_workers, *rates.prep_by_threads, *rates.storage_by_readers, 0)
    if most > _MOST_WORKERS:
        return f"{_number(most)} workers are too many for the cost model"
    try:
        found = predict(rates, share or as_measured(profile), profile.confidence)
    except ConfigError as error:
        return str(error)
    except ArithmeticError:
        return "the cost model has no answer for such rates"
    return found if math.isfinite(found.rate) and found.rate > 0 else "the cost model has no answer for such rates"


def _plannable(profile: Profile, now: Prediction | str) -> bool:
    return isinstance(now, Prediction) and max(profile.rates.cores, profile.host.cores) <= _MOST_WORKERS


def _changes(profile: Profile, now: Prediction | str) -> tuple[Advice, ...]:
    return profile.advice or (advise(profile) if _plannable(profile, now) else ())


@dataclass(frozen=True, slots=True)
class _Change:
    change: str
    effect: str
    commands: list[tuple[str, str]]


def _advice(profile: Profile, advice: Advice) -> _Change:
    gain = (
        f"{_number(round(1 + advice.gain, 2))} times as fast" if advice.gain >= 0.995 else f"{_percent(advice.gain)} faster"
    )
    words = advice.apply.split()
    arguments = " ".join(word for word in words if word.startswith("num_workers="))
    options = " ".join(word for word in words if not word.startswith("num_workers="))
    commands = []
    if arguments:
        commands.append(("In the script, as an argument of its DataLoader", arguments))
    if options:
        also = " as well" if arguments else ""
        commands.append((f"On the command line{also}", f"stoker run {options} {_script(profile)}"))
    change = advice.change[:1].upper() + advice.change[1:]
    return _Change(change, f"About {_rate(advice.rate)}, {gain}", commands)


def _script(profile: Profile) -> str:
    """In one line: what is copied must not press Enter by itself."""
    return " ".join(_clean(profile.script).split()) or "SCRIPT"


def _plan(profile: Profile, path: str, now: Prediction | str) -> dict[str, str] | None:
    if not _plannable(profile, now) or not any(one.apply for one in _changes(profile, now)):
        return None
    decision = decide(profile)
    command = f"stoker run --plan {shlex.quote(path)} {_script(profile)}"
    return {"command": command, "text": render(decision.plan, decision.reasons)}


# ---- tables, footer, and what the scripts are given


def _named(profiles: list[Profile]) -> list[tuple[str, Profile]]:
    names = ("",) if len(profiles) == 1 else ("Before: ", "After: ")
    return list(zip(names, profiles, strict=True))


def _compared(profiles: list[Profile], predicted: list[Prediction | str]) -> dict[str, Any]:
    rows = []
    for (name, profile), found in zip(_named(profiles), predicted, strict=True):
        rows.append(_compare(f"{name}as it ran, {_percent(profile.cached)} cached", _speed(profile), found))
        if _stored(profile) and profile.speed.cached:
            share = Share(workers=profile.workers, cached=1.0, threads=profile.workers_kind == "threads")
            rows.append(_compare(f"{name}everything cached", profile.speed.cached, _predicted(profile, share)))
    return {"caption": "Predicted against measured", "head": ["samples/s", "measured", "predicted", "off by"], "rows": rows}


def _compare(words: str, measured: float, found: Prediction | str) -> tuple[str, ...]:
    seen = _number(measured) if measured else "-"
    if isinstance(found, str):
        return words, seen, "-", "-"
    return words, seen, _number(found.rate), f"{100 * (found.rate / measured - 1):+.0f}\xa0%" if measured else "-"


def _measured(profiles: list[Profile]) -> dict[str, Any]:
    columns = [_facts(profile) for profile in profiles]
    rows = [(name, *(column[name] for column in columns)) for name in columns[0]]
    return {
        "caption": "What was measured",
        "head": ["", *(["Before", "After"] if len(profiles) == 2 else [""])],
        "rows": rows,
    }


def _facts(profile: Profile) -> dict[str, str]:
    rates, sure, data = profile.rates, profile.confidence, profile.dataset
    size = _bytes(data.bytes) + ("" if data.bytes_known else ", an estimate") if data.bytes else "unknown"
    return {
        "The training loop alone": _rate(rates.gpu, sure.gpu),
        "Preparing alone": _rate(rates.prep, sure.prep),
        "Storage alone": _rate(rates.storage, sure.storage),
        "The cache alone": _rate(rates.cache, sure.cache),
        "Waiting for preparing": _percent(profile.stalls.prep),
        "Waiting for reading": _percent(profile.stalls.fetch),
        "Workers": f"{_number(profile.workers)} {profile.workers_kind}" if profile.workers else "none",
        "Batch size": _number(profile.batch_size),
        "Samples": _number(data.samples) if data.samples else "unknown",
        "Bytes": size,
        "In the cache": _percent(profile.cached),
        "Ranks": _number(profile.world),
    }


def _footer(profiles: list[Profile]) -> Iterable[str]:
    for name, profile in _named(profiles):
        host = profile.host
        memory = f", {_bytes(host.memory_bytes)} of memory" if host.memory_bytes else ""
        where = f"{_count(host.cores, 'core')}{memory}, {host.device}"
        yield f"{name}Measured by stoker {profile.stoker} on {where}."
    yield (
        f"Page made by stoker {stoker.__version__}; charts by Bokeh {version('bokeh')}. Rates are samples per second, "
        "bands are 95\xa0% intervals. This file holds everything it shows, and asks nobody."
    )


def _stored(profile: Profile) -> bool:
    return bool(profile.rates.storage) or any(profile.rates.storage_by_readers.values())


def _sliders(profile: Profile) -> list[tuple[str, str]]:
    each = " for each rank" if profile.world > 1 else ""
    return [(field, words + (each if field in ("workers", "cores") else "")) for field, words in _SLIDERS.items()]


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
                "measured": _parts(one),
                "predictable": isinstance(found, Prediction),
            }
            for name, one, found in zip(names, profiles, predicted, strict=True)
        ],
    }


def _parts(profile: Profile) -> dict[str, float] | None:
    if not _speed(profile):
        return None
    return {
        "rate": _speed(profile),
        "prep": profile.stalls.prep,
        "fetch": min(profile.stalls.fetch, 1 - profile.stalls.prep),
    }
