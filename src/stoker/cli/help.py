"""What `stoker` says about itself: its commands in three groups, and the first steps when it is called without any."""

from collections.abc import Mapping

GROUPS = {
    "see": ("analyze", "report", "whatif", "top", "metrics", "doctor"),
    "fix": ("run", "plan", "cache", "checkpoint"),
    "share": ("together", "schedule", "worker"),
}
"""All commands, by what they are for."""

_MEANING = {
    "see": "where the time goes, and what would help",
    "fix": "run a script faster, and let it survive",
    "share": "several jobs, several hosts",
}

FIRST_STEPS = """\
Stoker keeps accelerators fed. Begin with a training script as it is:

  stoker analyze train.py                 where its time goes, what would help, and a plan: a minute
  stoker run --plan plan.toml train.py    the same script, with that plan
  stoker top                              what its loader does, live, in another terminal

In a script     from stoker import DataLoader, in the place of torch's
On this host    stoker doctor tells what is installed, and what would keep a run from being fast
All commands    stoker --help
"""

LAST_WORDS = """\
Start with `stoker analyze train.py`, then `stoker run --plan plan.toml train.py`. In a script: `from stoker import
DataLoader` in place of torch's. `stoker COMMAND --help` has the options of each."""


def in_groups(summaries: Mapping[str, str]) -> str:
    """The commands in their groups, each with its summary."""
    lines = ["Keeps accelerators fed."]
    for group, names in GROUPS.items():
        lines += ["", f"{group}: {_MEANING[group]}"]
        lines += [f"  {name:<12}{summaries[name]}" for name in names]
    return "\n".join(lines)
