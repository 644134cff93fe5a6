"""Where the time of a loop goes, and which stage is its limit: one rule for what was measured and for what is predicted.

    1/cold = 1/gpu + waiting for preparing + waiting for reading

The way to the device counts as preparing. All that is shown of a job comes from these parts: bars, limit, and what could be
gained. Pure.
"""

from stoker.profile import Rates, Speed, Stalls

HELD_UP = 0.1
"""A loop that waits for less than this part of its time is its own limit: a busy host alone makes one wait for some."""


def loop_rate(gpu: float, handover: float) -> float:
    """The loop with batches that are ready on the host: no loader makes it faster. A handover of 0 costs nothing."""
    return 1 / (1 / gpu + (1 / handover if handover else 0.0))


def handover_part(rate: float, rates: Rates) -> float:
    """The part of the time of a loop of that rate that goes into taking batches to the device."""
    return rate / rates.handover if rates.handover else 0.0


def stalls_of(speed: Speed) -> Stalls:
    """The parts of the measured time that the loop waits. Times that chance has put in the wrong order add nothing."""
    seen = speed.cold or speed.cached
    if not seen or not speed.synthetic:
        return Stalls(0.0, 0.0)
    seen_s, loop_s = 1 / seen, 1 / speed.synthetic
    if seen_s <= loop_s:
        return Stalls(0.0, 0.0)
    cached_s = min(seen_s, max(loop_s, 1 / (speed.cached or seen)))
    return Stalls((cached_s - loop_s) / seen_s, (seen_s - cached_s) / seen_s)


def limit_of(prep_stall: float, fetch_stall: float) -> str:
    """The stage that the loop waits for most, or the loop itself if it hardly waits."""
    if prep_stall + fetch_stall < HELD_UP:
        return "gpu"
    return "prep" if prep_stall >= fetch_stall else "fetch"
