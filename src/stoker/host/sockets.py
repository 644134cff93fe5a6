"""Who is at the other end of a socket within this host: the kernel says it, and nobody can pretend."""

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
