"""How two hosts find out that they know the same secret, before either says or reads anything else.

    asking side                     answering side
    HELLO      version, nonce   ->
                                <-  CHALLENGE  version, nonce
    RESPONSE   proof, name      ->                               a wrong one ends the connection: nothing was given
                                <-  WELCOME    proof, name, whether there is room

A proof is HMAC-SHA256, keyed with the secret, of the side's role, the version, both nonces and what is told beside it. Both
keys of the session, one for each direction, come from the secret and both nonces. All messages have a fixed length. HELLO
and CHALLENGE look the same in all versions, so that a version that differs can be named.
"""

import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

from stoker.errors import ConfigError
from stoker.wire.frames import VERSION, FrameError
from stoker.wire.streams import Stream, exactly

MAGIC = b"STOKER"
NAME_BYTES = 16
"""Bytes of the name that a process gives itself when it starts, at random: another name is another process."""
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_OPENING = struct.Struct(f"<6sH{_NONCE_BYTES}s")
_RESPONSE = struct.Struct(f"<{_PROOF_BYTES}s{NAME_BYTES}s")
_WELCOME = struct.Struct(f"<{_PROOF_BYTES}s{NAME_BYTES}sB")


class RefusedError(FrameError):
    """The other side does not know the secret, or does not speak this language."""


@dataclass(frozen=True, slots=True)
class Session:
    """What both sides know after the handshake."""

    sending_key: bytes
    receiving_key: bytes
    name: bytes
    """The other side's name."""


def fresh_name() -> bytes:
    """A name for a process."""
    return os.urandom(NAME_BYTES)


def ask(secret: bytes, name: bytes, stream: Stream, where: str) -> Session:
    """The asking side. Raises ConfigError when secrets or versions differ, OSError when the other side cannot be used."""
    ours = os.urandom(_NONCE_BYTES)
    stream.send(_OPENING.pack(MAGIC, VERSION, ours))
    try:
        magic, version, theirs = _OPENING.unpack(exactly(stream, _OPENING.size))
    except ConnectionError as error:
        raise ConnectionError(f"{where} ends the connection at once: is TLS on for both hosts, or for none?") from error
    if magic != MAGIC:
        raise ConfigError(f"{where} does not answer as Stoker does: is the address right, and TLS on for both or none?")
    if version != VERSION:
        raise ConfigError(
            f"{where} speaks version {version} of the wire, this host version {VERSION}: install the same Stoker on both"
        )
    nonces = ours + theirs
    stream.send(_RESPONSE.pack(_proof(secret, b"asks", nonces, name), name))
    try:
        proof, other, has_room = _WELCOME.unpack(exactly(stream, _WELCOME.size))
    except ConnectionError as error:
        raise ConfigError(f"{where} refuses this host: the secret must be the same on both") from error
    if not hmac.compare_digest(proof, _proof(secret, b"answers", nonces, other + bytes([has_room]))):
        raise ConfigError(f"{where} does not know the secret: it must be the same on both hosts")
    if not has_room:
        raise ConnectionRefusedError(f"{where} has as many connections as it allows")
    asking, answering = _keys(secret, nonces)
    return Session(asking, answering, other)


def answer(secret: bytes, name: bytes, stream: Stream, admit: Callable[[], bool]) -> Session:
    """The answering side. Raises RefusedError or OSError. `admit` says whether there is room for this guest."""
    magic, version, theirs = _OPENING.unpack(exactly(stream, _OPENING.size))
    if magic != MAGIC:
        raise RefusedError("not a greeting")
    ours = os.urandom(_NONCE_BYTES)
    stream.send(_OPENING.pack(MAGIC, VERSION, ours))
    if version != VERSION:
        raise RefusedError(f"version {version} of the wire")
    nonces = theirs + ours
    proof, other = _RESPONSE.unpack(exactly(stream, _RESPONSE.size))
    if not hmac.compare_digest(proof, _proof(secret, b"asks", nonces, other)):
        raise RefusedError("a wrong secret")
    has_room = admit()
    stream.send(_WELCOME.pack(_proof(secret, b"answers", nonces, name + bytes([has_room])), name, has_room))
    if not has_room:
        raise RefusedError("too many connections")
    asking, answering = _keys(secret, nonces)
    return Session(answering, asking, other)


def _proof(secret: bytes, role: bytes, nonces: bytes, told: bytes) -> bytes:
    content = b"stoker wire %d %b\0%b%b" % (VERSION, role, nonces, told)
    return hmac.digest(secret, content, "sha256")


def _keys(secret: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    """The keys of the asking and of the answering side, to send with."""
    session = _proof(secret, b"session", nonces, b"")
    asking = hashlib.blake2b(b"asking", key=session, digest_size=32).digest()
    return asking, hashlib.blake2b(b"answering", key=session, digest_size=32).digest()
