"""Sockets within this host: who is at the other end, and names that one process has at a time. The kernel sees to both."""

import hashlib
import os
import socket
import struct

_CREDENTIALS = struct.Struct("3i")


def other_end(connection: socket.socket) -> tuple[int, int]:
    """The pid and the user of the process at the other end."""
    pid, user, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, user


def check_same_user(connection: socket.socket) -> None:
    """Raise PermissionError unless the process at the other end is this user's."""
    _, user = other_end(connection)
    if user != os.getuid():
        raise PermissionError(f"user {user} is at the other end of a socket between processes of one user")


def take_name(what: str) -> socket.socket | None:
    """A name for as long as the socket is open; None if a living process of this user has it."""
    name = hashlib.blake2b(what.encode(), digest_size=16).hexdigest()
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        taken.bind(f"\0stoker-{os.getuid()}-{name}")
    except OSError:
        taken.close()
        return None
    return taken
