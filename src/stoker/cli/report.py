"""Make a page of HTML from a profile: where the time goes, what would help, and sliders to ask on.

PROFILE is what `stoker analyze` wrote. Two of them, before and after a change, are compared. The page is one file that
needs no network. To make it needs Bokeh: pip install 'stoker[report]'.
"""

import argparse
from pathlib import Path

from stoker.cli.places import check_page, plan_beside
from stoker.errors import ConfigError
from stoker.profile import Profile, write_text
from stoker.report.html import html_report


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("profiles", metavar="PROFILE", nargs="+", help="a profile.json; or two, before and after a change")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="report.html", help="where to write the page (default: %(default)s)"
    )
    parser.add_argument(
        "--plan", metavar="FILE", help="the plan that commands in the page name (default: as `analyze` calls it)"
    )


def run(options: argparse.Namespace) -> int:
    """Write the page."""
    if len(options.profiles) > 2:
        raise ConfigError(f"a page is of one profile, or of two as before and after, not of {len(options.profiles)}")
    *before, profile = map(Profile.load, options.profiles)
    check_page(Path(options.output))
    plan = options.plan or str(plan_beside(Path(options.profiles[-1])))
    write_text(options.output, html_report(profile, plan, before=before[0] if before else None))
    print(f"Written: {options.output}")
    return 0
