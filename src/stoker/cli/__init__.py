"""The `stoker` command: one file per subcommand; here is only who is called, and what becomes of an error.

Exit codes: 0 fine, 1 error (one line on stderr), 2 usage, 3 a stall above the one that was allowed. As of any command, 130
if Ctrl-C ended it, and 141 if nobody reads its output any more (`| head -1`).
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import stoker
from stoker import signs
from stoker.cli.completion import SHELLS, completion
from stoker.cli.help import FIRST_STEPS, GROUPS, LAST_WORDS, in_groups
from stoker.cli.parser import Parser
from stoker.errors import StokerError
from stoker.run.script import BEFORE_CODE

_COMMANDS = tuple(sorted(name for names in GROUPS.values() for name in names))
_WITH_SCRIPT = ("analyze", "run")
_FLAGS = ("-h", "--help", "--debug", "--version", "--scratch", "--open")
"""Options without a value."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    signs.set_output()
    try:
        return _main(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _main(words: list[str]) -> int:
    parser, modules, asked = _parser(words)
    script: list[str] = []
    if asked in _WITH_SCRIPT:
        begin = words.index(asked) + 1
        own, script = _split(words[begin:])
        words = words[:begin] + own
    options = parser.parse_args(words)
    options.script = script
    if options.command is None:
        print(completion(parser, options.completion) if options.completion else FIRST_STEPS, end="")
        return 0
    try:
        code: int = modules[options.command].run(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where an error can be told
        return code
    except BrokenPipeError:
        _leave_output()
        return 128 + signal.SIGPIPE
    except (StokerError, OSError) as error:
        if options.debug:
            raise
        print(f"stoker: {error}", file=sys.stderr)
        if not isinstance(error, StokerError):
            _leave_output()
        return 1


def _parser(words: Sequence[str]) -> tuple[argparse.ArgumentParser, dict[str, Any], str | None]:
    """The parser, the modules of the commands that it knows, and the command that is asked for."""
    asked = next((word for word in words if word not in _FLAGS), None)
    names = [asked] if asked in _COMMANDS else list(_COMMANDS)  # what is not asked for is not loaded
    modules = {name: import_module(f"stoker.cli.{name}") for name in names}
    summaries = {name: (module.__doc__ or "").splitlines()[0] for name, module in modules.items()}
    formatter = argparse.RawDescriptionHelpFormatter
    parser = Parser(
        prog="stoker",
        usage="stoker [-h] [--version] [--debug] COMMAND ..." if len(names) > 1 else None,
        description=in_groups(summaries) if len(names) > 1 else None,
        epilog=LAST_WORDS,
        formatter_class=formatter,
        allow_abbrev=False,
    )
    version = f"stoker {stoker.__version__}" if "--version" in words else ""
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--debug", action="store_true", help="show the whole traceback of an error")
    parser.add_argument("--completion", choices=SHELLS, help='for your shell\'s start: eval "$(stoker --completion bash)"')
    # Without `prog` the usage of a command would begin with the usage above.
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog="stoker")
    for name, module in modules.items():
        # A short form of an option today may be that of two tomorrow.
        module.add_options(
            commands.add_parser(name, description=module.__doc__, formatter_class=formatter, allow_abbrev=False)
        )
    return parser, modules, asked


def _leave_output() -> None:
    """Drop output that could not be written, so that Python does not try again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own options, and the script with its own, among which there may be any."""
    number = 0
    while number < len(words) and words[number].startswith("-") and words[number] not in ("--", *BEFORE_CODE):
        number += 1 if words[number] in _FLAGS or "=" in words[number] else 2
    return list(words[:number]), list(words[number + (words[number : number + 1] == ["--"]) :])
