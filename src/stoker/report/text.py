"""A profile as text for a terminal: three bars, one sentence on the limit, what would help most, and how to do it. Pure.

Speed, bars and limit are those of one verdict, and every gain is told against that speed. Nothing here measures, predicts
or decides; numbers are rounded for people, and no line is longer than asked, unless it is a command.
"""

import shlex
import textwrap

from stoker.decide.forecast import Verdict, verdict
from stoker.decide.limit import handover_part
from stoker.decide.planner import decide
from stoker.decide.whatif import advise, no_advice
from stoker.profile import Advice, Profile
from stoker.report.words import is_handing_over, taken, unexplained
from stoker.units import whole_percents

_NAMES = {"compute": "compute", "prep": "prep stall", "fetch": "fetch stall"}
_COLOURS = {"compute": "32", "prep": "33", "fetch": "31"}
_LEAST_WIDTH = 40


def text_report(profile: Profile, plan: str | None = None, *, width: int = 80, colour: bool = False) -> str:
    """The whole report; `plan` is the path of the plan that was made of this profile."""
    width = max(_LEAST_WIDTH, width)
    seen = verdict(profile)
    advice = profile.advice or advise(profile)
    parts = [_head(profile, width), _bars(seen, width, colour), _fill(_sentence(profile, seen), width)]
    if advice:
        parts.append(
            "What would help most:\n" + "\n".join(_change(number, one, width) for number, one in enumerate(advice, 1))
        )
    elif seen.limit != "gpu":
        parts.append(_fill(no_advice(profile), width))
    if plan is not None and advice:
        parts += _do_it(profile, advice, plan, width)
    if profile.notes:
        parts.append("\n".join(_fill(f"Note: {note}", width) for note in profile.notes))
    return "\n\n".join(parts) + "\n"


def _head(profile: Profile, width: int) -> str:
    words = f"{profile.script}: " if profile.script else ""
    words += f"{profile.speed.cold:,.0f} samples/s" if profile.speed.cold else "speed from storage not measured"
    words += f", where the training loop alone could take {profile.rates.gpu:,.0f}"
    workers = f"{profile.workers} worker{'' if profile.workers == 1 else 's'}"
    ranks = f", {profile.world} ranks, each with these" if profile.world > 1 else ""
    cores = f"{profile.host.cores:g} core{'' if profile.host.cores == 1 else 's'}"
    cores += f" of which others took {profile.host.others:.1f}" if profile.host.others >= 0.05 else ""
    head = _fill(f"{words} (batch size {profile.batch_size}, {workers}{ranks}, {cores}, {profile.host.device})", width)
    return f"{head}\n{_fill(taken(profile), width)}".rstrip()


def _bars(seen: Verdict, width: int, colour: bool) -> str:
    parts = {"compute": seen.compute, "prep": seen.prep, "fetch": seen.fetch}
    room = width - 2 - 12 - 2 - 6
    lines = []
    for (name, part), percent in zip(parts.items(), whole_percents([*parts.values()]), strict=True):
        bar = _bar(part, room)
        shown = f"\x1b[{_COLOURS[name]}m{bar}\x1b[0m" if colour else bar
        lines.append(f"  {_NAMES[name]:12}{shown}  {percent:3}%")
    return "\n".join(lines)


def _bar(part: float, room: int) -> str:
    """As long as its part of the room, in eighths of a block."""
    eighths = round(part * room * 8)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8]).strip().ljust(room, " ")[:room]


def _sentence(profile: Profile, seen: Verdict) -> str:
    rates = profile.rates
    plus_minus = getattr(profile.confidence, {"gpu": "gpu", "prep": "prep", "fetch": "storage"}[seen.limit])
    sure = f" (±{plus_minus:.0%})" if plus_minus else ""
    if seen.limit == "gpu":
        if seen.stall < 0.005:
            return f"The training loop is the limit{sure}: it does not wait for data."
        waits = f"it waits for data during {seen.stall:.0%} of its time"
        return f"The training loop is the limit{sure}: {waits}. A faster loader would change little."
    who = f"{profile.workers} worker{'' if profile.workers == 1 else 's'}" if profile.workers else "the loop itself"
    many = "" if profile.workers > 1 else "s"
    could = f"and the loop could take {rates.gpu:,.0f}"
    if seen.limit == "prep" and is_handing_over(profile, seen):
        part = handover_part(seen.rate, rates)
        words = f"Handing over is the limit: batches are taken to the device during {part:.0%} of the time, {could}."
    elif seen.limit == "prep":
        beside = ", but fewer beside the loop" if rates.prep > rates.gpu else ""
        words = f"Preparing is the limit: {who} prepare{many} {rates.prep:,.0f} samples/s{sure}{beside}, {could}."
    elif not rates.storage:
        return f"Reading is the limit, {could}. How fast storage is by itself was not measured."
    else:
        words = f"Reading is the limit: {who} read{many} {rates.storage:,.0f} samples/s{sure} from storage, {could}."
    return f"{words} {unexplained(profile, seen)}".strip()


def _do_it(profile: Profile, advice: tuple[Advice, ...], plan: str, width: int) -> list[str]:
    """The command, if the plan makes the run faster; and what must be done in the script, which no plan changes."""
    decision = decide(profile)
    parts = []
    if decision.is_worth_it:
        words = f"Do it, for about {decision.after.rate:,.0f} samples/s:"
        parts.append(f"{words}\n  stoker run --plan {shlex.quote(plan)} {profile.script or 'SCRIPT'}")
    if any("num_workers" in one.apply for one in advice):
        says = "The script says num_workers itself, and that stays"
        says = says if "num_workers" in profile.fixed else "Where the script itself says num_workers, that stays"
        parts.append(_fill(f"({says}: change it there.)", width))
    return ["\n".join(parts)] if parts else []


def _change(number: int, advice: Advice, width: int) -> str:
    gain = f"{1 + advice.gain:.1f} times as fast" if advice.gain >= 0.995 else f"{advice.gain:.0%} faster"
    how = f"  [{advice.apply}]" if advice.apply else ""
    words = f"{number}. {advice.change}: about {advice.rate:,.0f} samples/s, {gain}{how}"
    return textwrap.fill(words, width, initial_indent="  ", subsequent_indent="     ", break_long_words=False)


def _fill(words: str, width: int) -> str:
    return textwrap.fill(words, width, break_long_words=False, break_on_hyphens=False)
