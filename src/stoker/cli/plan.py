"""Plan the workers, queues and cache of a job with several ranks on several hosts, from its profile.

PROFILE is what `stoker analyze` wrote on one host. Hosts are taken to be like that one, with storage that gives each of
them as much; the ranks of a host share its cores, its storage and one cache. Printed is what each rank and each host
gets, and why.

With -o the part that a loader obeys is written: `stoker run --plan plan.toml train.py` on every rank fills in what the
script does not say itself. The number of threads that read ahead is written where there is a cache and more than usual
are needed. How many workers would prepare is printed only.

  stoker plan profile.json --gpus 8                       eight ranks on a host like this
  stoker plan profile.json --hosts 4 --gpus 8 -o plan.toml
"""

import argparse
from pathlib import Path

from stoker.cli import places
from stoker.decide.planner import render
from stoker.decide.ranks import RanksDecision, decide_ranks
from stoker.profile import Profile, write_text


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("profile", metavar="PROFILE", help="a profile.json")
    parser.add_argument("--hosts", metavar="N", type=int, default=1, help="how many hosts there are (default: 1)")
    parser.add_argument("--gpus", metavar="M", type=int, help="ranks on each host, one for each GPU (default: as measured)")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the plan here, as plan.toml say")


def run(options: argparse.Namespace) -> int:
    """Print the plan, and write it if a place for it is named."""
    profile = Profile.load(options.profile)
    gpus = profile.world if options.gpus is None else options.gpus
    target = Path(options.out) if options.out else None
    if target:
        places.check_plan(target)
    made = decide_ranks(profile, options.hosts, gpus)
    print(f"{_count(options.hosts, 'host')} with {_count(gpus, 'rank')} each, from {options.profile}\n")
    print(_table(made))
    if target:
        head = f"made of {Path(options.profile).name} by stoker plan --hosts {options.hosts} --gpus {gpus}"
        text = render(made.decision.plan, made.decision.reasons, head)
        kept = places.set_plan_aside(target) if target.exists() and target.read_text() != text else None
        write_text(target, text)
        print(f"\nWritten: {target}." + (f" What was there before: {kept}." if kept else ""))
    return 0


def _table(made: RanksDecision) -> str:
    rows = [("", "per rank", "per host", ""), *((row.name, row.rank, row.host, row.reason) for row in made.rows)]
    name, rank, host = (max(len(row[column]) for row in rows) for column in range(3))
    return "\n".join(f"{row[0]:{name}}  {row[1]:>{rank}}  {row[2]:>{host}}  {row[3]}".rstrip() for row in rows)


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"
