"""The parser of all commands. An error has the usage of the command that it is about, and says what may be written."""

import argparse
import re
from typing import Any, NoReturn

_KINDS = {"int": "a whole number", "float": "a number"}


class Parser(argparse.ArgumentParser):
    """Also the class of the parsers below it."""

    _below: Any = None

    def add_subparsers(self, **words: Any) -> Any:
        """As of any parser."""
        self._below = super().add_subparsers(**words)
        return self._below

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As of any parser, but what is not known is an error here: parsers above would show a usage of their own."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end with code 2."""
        message = re.sub(r"invalid (int|float) value: (.*)", lambda found: f"{_KINDS[found[1]]}, not {found[2]}", message)
        if self._below is not None and message.endswith(f"required: {self._below.metavar}"):
            message += f" (one of {', '.join(self._below.choices)})"
        super().error(message)
