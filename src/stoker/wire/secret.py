"""The secret that the hosts of a user share. It comes from a file of this user alone, and is never on a command line."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from stoker.errors import ConfigError

VARIABLE = "STOKER_SECRET_FILE"
LEAST_BYTES = 16
_MOST_BYTES = 4096


def shared_secret(environment: Mapping[str, str] = os.environ) -> bytes:
    """The secret in the file that the environment names. Raises ConfigError."""
    path = environment.get(VARIABLE)
    if not path:
        raise ConfigError(
            f"hosts need a shared secret: make one with `(umask 077; openssl rand -hex 32 > FILE)`, copy it to "
            f"every host, and set {VARIABLE}=FILE"
        )
    return read_secret(Path(path))


def read_secret(path: Path) -> bytes:
    """The secret in a file, without white space around it. Raises ConfigError."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{path} ({VARIABLE}) is not a file")
            if found.st_uid not in (os.getuid(), 0):
                raise ConfigError(f"{path} ({VARIABLE}) belongs to another user, who knows the secret in it")
            if found.st_mode & 0o077:
                raise ConfigError(f"other users may read {path} ({VARIABLE}): chmod 600 {path}")
            secret = file.read(_MOST_BYTES + 1).strip()
    except OSError as error:
        raise ConfigError(f"the secret cannot be read ({VARIABLE}): {error}") from error
    if not LEAST_BYTES <= len(secret) <= _MOST_BYTES:
        raise ConfigError(f"the secret in {path} ({VARIABLE}) must have {LEAST_BYTES} to {_MOST_BYTES:,} bytes")
    return secret


def _without_waiting(path: str, flags: int) -> int:
    """Open a file. A pipe would wait for somebody who writes to it."""
    return os.open(path, flags | os.O_NONBLOCK)
