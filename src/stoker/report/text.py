"""A profile as text for a terminal: three bars, one sentence on the limit, what would help most, and how to do it. Pure.

Nothing here measures, predicts or decides; numbers are rounded for people, and no line is longer than asked, unless it is
a command.
"""

import shlex
import textwrap

from stoker.decide.whatif import advise
from stoker.profile import Advice, Profile

_NAMES = {"compute": "compute", "prep": "prep stall", "fetch": "fetch stall"}
_COLOURS = {"compute": "32", "prep": "33", "fetch": "31"}
_LEAST_WIDTH = 40


def text_report(
    profile: Profile, plan: str | None = None, *, width: int = 80, colour: bool = False, blocks: bool = True
) -> str:
    """The whole report; `plan` is the path of the plan that was made of this profile."""
    width = max(_LEAST_WIDTH, width)
    advice = profile.advice or advise(profile)
    parts = [_head(profile, width), _bars(profile, width, colour, blocks), _fill(_sentence(profile), width)]
    if advice:
        parts.append(
            "What would help most:\n" + "\n".join(_change(number, one, width) for number, one in enumerate(advice, 1))
        )
    if plan is not None and any(one.apply for one in advice):
        parts.append(f"Do it:  stoker run --plan {shlex.quote(plan)} {profile.script or 'SCRIPT'}")
        if any("num_workers" in one.apply for one in advice):
            parts[-1] += "\n" + _fill("(Where the script itself says num_workers, that stays: change it there.)", width)
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
    return _fill(f"{words} (batch size {profile.batch_size}, {workers}{ranks}, {cores}, {profile.host.device})", width)


def _bars(profile: Profile, width: int, colour: bool, blocks: bool) -> str:
    prep, fetch = profile.stalls.prep, profile.stalls.fetch
    parts = {"compute": max(0.0, 1 - prep - fetch), "prep": prep, "fetch": fetch}
    room = width - 2 - 12 - 2 - 6
    lines = []
    for name, part in parts.items():
        bar = _bar(part, room, blocks)
        shown = f"\x1b[{_COLOURS[name]}m{bar}\x1b[0m" if colour else bar
        lines.append(f"  {_NAMES[name]:12}{shown}  {part:4.0%}")
    return "\n".join(lines)


def _bar(part: float, room: int, blocks: bool) -> str:
    """As long as its part of the room; eighths of a block where there are blocks."""
    if not blocks:
        return ("#" * round(part * room)).ljust(room, ".")
    eighths = round(part * room * 8)
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8]).strip().ljust(room, " ")[:room]


def _sentence(profile: Profile) -> str:
    rates = profile.rates
    stall = profile.stalls.prep + profile.stalls.fetch
    plus_minus = getattr(profile.confidence, {"gpu": "gpu", "prep": "prep", "fetch": "storage"}[profile.limit])
    sure = f" (±{plus_minus:.0%})" if plus_minus else ""
    if profile.limit == "gpu":
        waits = f"it waits for data during {stall:.0%} of its time" if stall >= 0.005 else "it does not wait for data"
        little = " A faster loader would change little." if stall < 0.05 else ""
        return f"The training loop is the limit{sure}: {waits}.{little}"
    who = f"{profile.workers} worker{'' if profile.workers == 1 else 's'}" if profile.workers else "the loop itself"
    many = "" if profile.workers > 1 else "s"
    could = f"and the loop could take {rates.gpu:,.0f}"
    if profile.limit == "prep":
        return f"Preparing is the limit: {who} prepare{many} {rates.prep:,.0f} samples/s{sure}, {could}."
    return f"Reading is the limit: {who} read{many} {rates.storage:,.0f} samples/s{sure} from storage, {could}."


def _change(number: int, advice: Advice, width: int) -> str:
    gain = f"{1 + advice.gain:.1f} times as fast" if advice.gain >= 0.995 else f"{advice.gain:.0%} faster"
    how = f"  [{advice.apply}]" if advice.apply else ""
    words = f"{number}. {advice.change}: about {advice.rate:,.0f} samples/s, {gain}{how}"
    return textwrap.fill(words, width, initial_indent="  ", subsequent_indent="     ", break_long_words=False)


def _fill(words: str, width: int) -> str:
    return textwrap.fill(words, width, break_long_words=False, break_on_hyphens=False)
