"""What preparation on other hosts would gain, as `stoker analyze --offload` says it. Pure."""

from collections.abc import Mapping

from stoker.decide.offload import Remote, decide

_WORDS = {
    "all": "reading, preparing and collating there",
    "prepare": "reading here, the rest there",
    "samples": "reading and preparing there, collating here",
}
"""What the ways to divide a sample's preparation are called."""


def offload_lines(loop: float, local: float, remotes: Mapping[str, Remote]) -> list[str]:
    """A section: what was measured of each way, what each would give, and what is chosen."""
    lines = ["", "Preparation on other hosts"]
    for part, remote in remotes.items():
        alone = decide(loop, local, {part: remote}, worth=1.0)
        count = f"{remote.workers} worker{'' if remote.workers == 1 else 's'}"
        lines.append(
            f"  {_WORDS.get(part, part)}: {count} prepare {remote.rate:,.0f} samples/s; each costs this host "
            f"{remote.cost:.0%} of preparing it"
        )
        if alone.ratio:
            lines.append(
                f"    {alone.ratio:.0%} there: {alone.rate:,.0f} samples/s instead of {local:,.0f} "
                f"({alone.rate / local:.2f}x); {alone.workers} of them would remove the stall"
            )
    chosen = decide(loop, local, remotes)
    which = f" ({_WORDS[chosen.part]})" if chosen.part in _WORDS and len(remotes) > 1 else ""
    lines.append(f"  {f'Worth it{which}' if chosen.ratio else 'Nothing would be sent there'}: {chosen.reason}")
    return lines
