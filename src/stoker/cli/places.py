"""Where `analyze`, `plan` and `report` write, so that nothing of the user's is lost.

A file that is not a document of the same kind is never replaced: the command says so before it does anything else. The
profile that was there becomes NAME.bak, to be compared with. A plan is replaced if it is as an analysis left it, which its
time tells: it is that of the profile. One that was changed since, or comes from elsewhere, becomes NAME.bak, or NAME.bak2.
"""

import itertools
import json
import os
from pathlib import Path

from stoker.errors import CommandError


def plan_beside(profile: Path) -> Path:
    """Where the plan of a profile is, if nobody says otherwise: plan.toml, or X.plan.toml for X.json."""
    if not profile.name:
        raise CommandError(f"{profile} is a directory")
    return profile.with_name("plan.toml" if profile.name == "profile.json" else f"{profile.stem}.plan.toml")


def check_differ(*paths: Path) -> None:
    """Refuse one place for two documents."""
    if len({path.absolute() for path in paths}) < len(paths):
        raise CommandError(
            "the profile, the plan and the page need a file each: --json, --plan and --html name the same one"
        )


def check_profile(path: Path) -> None:
    """Refuse a place for a profile at which there is something else."""
    _check(path)
    if path.exists() and not _is_profile(path):
        raise CommandError(f"{path} is there already, and is not a profile: choose another name")


def check_plan(path: Path) -> None:
    """Refuse a place for a plan at which there is something else."""
    _check(path)
    if path.exists() and "version = " not in _text(path):
        raise CommandError(f"{path} is there already, and is not a plan: choose another name")


def check_page(path: Path) -> None:
    """Refuse a place for a page at which there is something else."""
    _check(path)
    if path.exists() and not _text(path).lstrip().lower().startswith("<!doctype html"):
        raise CommandError(f"{path} is there already, and is not a page: choose another name")


def check_output(path: Path, option: str) -> None:
    """Refuse a place for a result at which it cannot be written; a pipe or a device can."""
    try:
        if path.is_dir() or not path.exists() or path.is_file():
            _check(path)
        elif not os.access(path, os.W_OK):
            raise CommandError(f"{path} cannot be written: this user may not write to it")
    except CommandError as error:
        raise CommandError(f"{option}: {error}") from None


def _check(path: Path) -> None:
    if path.is_dir():
        raise CommandError(f"{path} is a directory")
    if path.exists() and not path.is_file():
        raise CommandError(f"{path} is not a file that could be replaced")
    folder = Path(os.path.realpath(path)).parent if path.is_symlink() else path.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise CommandError(f"{path} cannot be written: {folder} is not a directory that this user may write to")


def _is_profile(path: Path) -> bool:
    try:
        document = json.loads(_text(path))
    except ValueError:
        return False
    return isinstance(document, dict) and "stoker" in document


def _text(path: Path) -> str:
    return path.read_text("utf-8", "replace")


def set_aside(profile: Path, plan: Path) -> list[Path]:
    """Make room for a profile and its plan. Where to find what was there, as far as it is kept."""
    kept = []
    if plan.exists() and not (profile.exists() and plan.stat().st_mtime_ns == profile.stat().st_mtime_ns):
        kept.append(set_plan_aside(plan))
    if profile.exists():
        kept.append(profile.rename(profile.with_name(f"{profile.name}.bak")))
    return kept


def set_plan_aside(plan: Path) -> Path:
    """Give a plan another name, under which it is kept."""
    names = (plan.with_name(f"{plan.name}.bak{number or ''}") for number in itertools.chain([0], itertools.count(2)))
    return plan.rename(next(name for name in names if not name.exists()))


def mark(plan: Path, profile: Path) -> None:
    """Give a plan the time of the profile that it was made of."""
    made = profile.stat().st_mtime_ns
    os.utime(plan, ns=(made, made))
