"""Tell what this host allows, and what to change.

Nothing is changed. Lines marked ! come with advice.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from stoker.errors import CommandError
from stoker.extras import EXTRAS, TORCH
from stoker.measure.findings import Finding, data_findings, findings


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="look at the place where a dataset lies, too")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options: argparse.Namespace) -> int:
    """Print the findings."""
    found = [*findings(), *_of_extras(), *_of_torch()]
    if options.data is not None:
        if not options.data.is_dir():
            raise CommandError(f"there is no folder {options.data}")
        found += data_findings(options.data)
    if options.json:
        print(json.dumps([asdict(finding) for finding in found], indent=2))
        return 0
    width = max(len(finding.topic) for finding in found)
    for finding in found:
        print(f"{'!' if finding.advice else ' '} {finding.topic:{width}}  {finding.fact}")
        if finding.advice:
            print(f"  {'':{width}}  -> {finding.advice}")
    return 0


def _of_extras() -> Iterator[Finding]:
    """Findings on the optional packages."""
    for extra in EXTRAS:
        if extra.is_installed:
            yield Finding(extra.name, extra.versions)
        else:
            yield Finding(extra.name, f"not installed: {extra.called}", f"For {extra.user}: `{extra.command}`.")


def _of_torch() -> list[Finding]:
    if not TORCH.is_installed:
        return []
    try:
        from stoker.tensor.facts import torch_findings
    except (ImportError, OSError) as error:  # a library that it is linked with
        return [Finding("accelerator", f"torch cannot be imported ({error})", "Install it anew.")]
    return torch_findings()
