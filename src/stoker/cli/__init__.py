"""The `stoker` command: one file per subcommand; here is only who is called, and what becomes of an error.

Exit codes: 0 fine, 1 error (one line on stderr), 2 usage.
"""

import argparse
import sys
from collections.abc import Sequence

import stoker
from stoker.cli import cache, checkpoint, doctor, run, whatif
from stoker.errors import StokerError

_COMMANDS = {"cache": cache, "checkpoint": checkpoint, "doctor": doctor, "run": run, "whatif": whatif}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="stoker",
        description="Keeps accelerators fed.",
        epilog="Start with `stoker run train.py`. In a script: `from stoker import DataLoader` in place of torch's.",
    )
    parser.add_argument("--version", action="version", version=f"stoker {stoker.__version__}")
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in _COMMANDS.items():
        summary = (module.__doc__ or "").splitlines()[0]
        module.add_options(commands.add_parser(name, help=summary, description=module.__doc__))
    words = list(sys.argv[1:] if arguments is None else arguments)
    script: list[str] = []
    if "run" in words[:2] and not {"-h", "--help"} & set(words[: words.index("run") + 2]):
        begin = words.index("run") + 1
        own, script = run.split(words[begin:])
        words = words[:begin] + own
    options = parser.parse_args(words)
    options.script = script
    try:
        code: int = _COMMANDS[options.command].run(options)
        return code
    except StokerError as error:
        if options.debug:
            raise
        print(f"stoker: {error}", file=sys.stderr)
        return 1
