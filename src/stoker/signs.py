"""Which signs are printed: where an encoding lacks one, another that means the same, or its escape. Never an error.

Text may contain any signs. Only this module knows how they are written to a terminal or file that has only ASCII: `ERRORS`
is the name of a codec's error handler, for `reconfigure(errors=...)` and `encode(...)`.
"""

import codecs
import sys

ERRORS = "stoker.signs"
_PLAIN = {
    **dict(zip("▏▎▍▌▋▊▉", "  .:-=+", strict=True)),  # the end of a bar
    **dict(zip("▁▂▃▄▅▆▇█", "_.-=+*%#", strict=True)),  # heights, and a bar
    "±": "+-",
    "→": "->",
    "\xa0": " ",
}


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(sign) or sign.encode("unicode_escape").decode() for sign in lacking), error.end


codecs.register_error(ERRORS, _replace)


def set_output() -> None:
    """Let this process print any text."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):  # None, or somebody else's, without
            reconfigure(errors=ERRORS)
