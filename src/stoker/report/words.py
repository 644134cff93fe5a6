"""What a page says of a profile: numbers, sentences, and commands to copy. Pure; nothing here predicts or decides.

Text of a profile is passed on unchanged: the page that shows it escapes it.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from stoker.decide.forecast import Verdict, as_measured, verdict
from stoker.decide.limit import handover_part
from stoker.decide.model import predict
from stoker.errors import ConfigError
from stoker.profile import Advice, Profile
from stoker.units import format_bytes

LIMITS = {"gpu": "the training loop", "prep": "preparing samples", "fetch": "reading from storage"}
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def visible(text: str) -> str:
    """Text without what could hide a part of it, or turn it around."""
    return _INVISIBLE.sub("\ufffd", text)


# ---- numbers; the same as in page.js


def number(value: float) -> str:
    """Three digits or more, with an exponent where these do not suffice."""
    if not math.isfinite(value):
        return "unlimited"
    if value >= 1e12 or 0 < value < 0.001:
        return f"{value:.2e}"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if digits else text


def percent(part: float) -> str:
    """A fraction, without decimals; something is never nothing."""
    return "<1\xa0%" if 0 < part < 0.005 else f"{100 * part:.0f}\xa0%"


def within(value: float, sure: float) -> str:
    """A rate and the half-width of its interval; no unit."""
    return number(value) + (f"\xa0\xb1{percent(sure)}" if sure else "") if value else "not measured"


def rate(value: float, sure: float = 0.0) -> str:
    """A rate with its unit, for a sentence."""
    words = f"{number(value)}\xa0samples/s" if value else "an unknown number of samples/s"
    return words + (f"\xa0\xb1{percent(sure)}" if sure and value else "")


def size(count: float) -> str:
    """Bytes, however many."""
    return format_bytes(count) if count < 1e15 else f"{count:.2e} B"


def many(count: float, word: str) -> str:
    """A count and its noun."""
    return f"{number(count)} {word}{'' if count == 1 else 's'}"


# ---- sentences


def taken(profile: Profile) -> str:
    """When and where it was measured, and how busy that host was; empty where the profile does not say when."""
    if not profile.taken:
        return ""
    where = f" on {profile.host.name}" if profile.host.name else ""
    others = profile.host.others
    busy = f"other work took {number(others)} of its cores" if others >= 0.05 else "other work took no cores from it"
    return f"Measured {profile.taken}{where}; {busy}."


_UNEXPLAINED = 1.25
"""A job that goes so many times slower than its stages, measured one by one, is held up by something else as well."""


def unexplained(profile: Profile, seen: Verdict) -> str:
    """A sentence where the stages, measured one by one, do not explain how slow the loop is; nothing elsewhere."""
    try:
        expected = predict(profile.rates, as_measured(profile)).rate
    except (ConfigError, ArithmeticError):
        return ""
    if not seen.rate or expected < _UNEXPLAINED * seen.rate:
        return ""
    return (
        f"By its stages one by one it would go at {expected:,.0f} samples/s: something else holds it up, too, "
        "such as other work on this host."
    )


def is_handing_over(profile: Profile, seen: Verdict) -> bool:
    """Whether what the loop waits for is the way to the device, more than preparing."""
    return handover_part(seen.rate, profile.rates) > seen.prep / 2


def stall(profile: Profile) -> float:
    """The part of the time that the loop waits."""
    return verdict(profile).stall


def speed(profile: Profile) -> float:
    """Samples per second as it ran; 0 is unknown."""
    return profile.speed.cold or profile.speed.cached


def headline(profile: Profile, before: Profile | None = None) -> tuple[str, str]:
    """The one sentence of a page: what it is about, and the rest of it."""
    seen = verdict(profile)
    limit, waiting = LIMITS[seen.limit], percent(seen.stall)
    if before is not None and speed(before) and speed(profile):
        waited = f"training waited for data {percent(stall(before))} of the time before, {waiting} now"
        return _times(speed(profile) / speed(before)), f": {waited}. The limit is now {limit}."
    if seen.limit == "gpu":
        fed = "does not wait for data" if seen.stall < 0.005 else f"waits for data {waiting} of the time"
        return "The training loop itself is the limit", f": it {fed}."
    return f"{limit[0].upper()}{limit[1:]} is the limit", f": training waits for data {waiting} of the time."


def _times(times: float) -> str:
    if 0.97 < times < 1.03:
        return "As fast as before"
    return f"{number(times)} times as fast" if times > 1 else f"Slower, at {number(times)} times the speed"


def lead(profile: Profile) -> str:
    """The sentence below the headline: why that is so."""
    rates, sure, seen = profile.rates, profile.confidence, verdict(profile)
    could = f"the training loop could take {rate(rates.gpu, sure.gpu)}"
    if seen.limit == "gpu":
        return f"A faster loader would change little: {could}, and gets {rate(speed(profile))}."
    who = many(profile.workers, "worker") if profile.workers else "The loop itself, without workers,"
    ending = "s" if profile.workers < 2 else ""
    if seen.limit == "prep" and is_handing_over(profile, seen):
        part = percent(handover_part(seen.rate, rates))
        words = f"Most of it goes into taking batches to the device, {part} of the time; {could}."
    elif seen.limit == "prep":
        words = f"{who} prepare{ending} {rate(rates.prep, sure.prep)}; {could}."
    else:
        words = f"{who} read{ending} {rate(rates.storage, sure.storage)}; {could}."
    return f"{words} {unexplained(profile, seen)}".strip()


def tiles(profile: Profile, before: Profile | None = None) -> list[tuple[str, str]]:
    """The three numbers to remember."""
    ran, waits = within(speed(profile), 0), percent(stall(profile))
    if before is not None:
        ran, waits = f"{within(speed(before), 0)} \u2192 {ran}", f"{percent(stall(before))} \u2192 {waits}"
    ranks = f" on each of {profile.world} ranks" if profile.world > 1 else ""
    return [
        (ran, f"samples/s as it ran{ranks}"),
        (within(profile.rates.gpu, 0), "samples/s that the training loop alone could take"),
        (waits, "of the time, the loop waits for data"),
    ]


def differences(before: Profile, after: Profile) -> Iterable[str]:
    """What makes two profiles hard to compare."""
    differ = {
        "hosts": (before.host.cores, before.host.device) != (after.host.cores, after.host.device),
        "batch sizes": before.batch_size != after.batch_size,
        "datasets": (before.dataset.samples, before.dataset.bytes) != (after.dataset.samples, after.dataset.bytes),
        "numbers of ranks": before.world != after.world,
    }
    named = " and ".join(name for name, differs in differ.items() if differs)
    if named:
        yield f"The two profiles have different {named}: more than one thing changed between them."


# ---- advice


@dataclass(frozen=True, slots=True)
class WordedAdvice:
    """One piece of advice: what, how much it gives, and what to copy, with words on where it goes."""

    change: str
    effect: str
    commands: list[tuple[str, str]]


def change(profile: Profile, advice: Advice) -> WordedAdvice:
    """Advice for people."""
    words = advice.apply.split()
    arguments = " ".join(word for word in words if word.startswith("num_workers="))
    options = " ".join(word for word in words if not word.startswith("num_workers="))
    commands = []
    if arguments:
        itself = ", which says it itself" if "num_workers" in profile.fixed else ""
        commands.append((f"In the script{itself}, as an argument of its DataLoader", arguments))
    if options:
        also = " as well" if arguments else ""
        commands.append((f"On the command line{also}", f"stoker run {options} {script(profile)}"))
    effect = f"About {rate(advice.rate)}, {times_as_fast(advice.gain)}"
    return WordedAdvice(advice.change[:1].upper() + advice.change[1:], effect, commands)


def times_as_fast(gain: float) -> str:
    """A gain, against the speed as it ran."""
    return f"{number(round(1 + gain, 2))} times as fast" if gain >= 0.995 else f"{percent(gain)} faster"


def script(profile: Profile) -> str:
    """In one line: what is copied must not press Enter by itself."""
    return " ".join(visible(profile.script).split()) or "SCRIPT"
