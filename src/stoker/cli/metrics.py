"""Give the numbers of `stoker top` to Prometheus.

Without options they are printed once. A text file is for the node exporter's textfile collector; it is replaced as a
whole, and with --every it is removed at the end. An endpoint serves /metrics on this host alone.
"""

import argparse
import contextlib
import http.server
import ipaddress
import math
import os
import select
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import stoker
from stoker.cli.top import look_at_groups
from stoker.errors import CommandError
from stoker.keeper.view import keepers
from stoker.live import folder
from stoker.live.exposition import CONTENT_TYPE, expose

_LOOPBACK = "127.0.0.1"
_PATIENCE_S = 5.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of this command."""
    parser.add_argument("--textfile", type=Path, metavar="FILE", help="write them to a file (its name should end in .prom)")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="write the file again and again")
    parser.add_argument("--listen", metavar="[HOST:]PORT", help=f"serve them at /metrics; HOST is {_LOOPBACK} by default")
    parser.add_argument("--public", action="store_true", help="allow a HOST that can be reached from outside this host")


def run(options: argparse.Namespace) -> int:
    """Print, write or serve them."""
    if options.every is not None and (options.textfile is None or not options.every > 0):
        raise CommandError("--every is a number of seconds, and goes with --textfile")
    if options.textfile is not None and options.listen is not None:
        raise CommandError("--textfile and --listen are two ways to the same: choose one")
    if options.listen is not None:
        return _serve(*_address(options.listen, is_public=options.public))
    if options.textfile is None:
        print(_text(), end="")
    elif options.every is None:
        _write(options.textfile)
    else:
        with _asked_to_end() as is_asked:
            try:
                _write(options.textfile)
                while not is_asked(options.every):
                    _write(options.textfile)
            finally:
                options.textfile.unlink(missing_ok=True)
    return 0


def _text() -> str:
    try:
        seen = folder.loaders()
    except OSError as error:
        raise CommandError(f"cannot look at what loaders have published: {error}") from error
    groups = look_at_groups(seen.values())
    peers = [(keeper.pid, peer) for keeper in keepers() for peer in keeper.peers]
    return expose(seen.values(), time.monotonic(), time.time(), stoker.__version__, groups, peers)


def _write(path: Path) -> None:
    """Replace the file as a whole; anybody may read it, as the node exporter is another user."""
    unseen = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(unseen, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(_text())
            unseen.rename(path)
        finally:
            unseen.unlink(missing_ok=True)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error


@contextlib.contextmanager
def _asked_to_end() -> Iterator[Callable[[float | None], bool]]:
    """A function that waits for so many seconds, or for ever, and says whether this process was asked to end meanwhile.

    By a pipe that Python writes to as the signal arrives: another thread may get it, and then the one that waits here runs
    no handler until it wakes.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    woken = signal.set_wakeup_fd(writer)
    try:
        yield lambda seconds: bool(select.select([reader], [], [], seconds)[0])
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _address(text: str, *, is_public: bool) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or _LOOPBACK
    if not port.isdigit() or not 0 <= int(port) <= 65535:
        raise CommandError(f"--listen takes a port, or host:port such as {_LOOPBACK}:9123, not {text!r}")
    try:
        found = [info[4][0] for info in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)]
    except OSError as error:
        raise CommandError(f"there is no address {host!r}: {error}") from error
    if not is_public and not all(ipaddress.ip_address(str(address).split("%")[0]).is_loopback for address in found):
        raise CommandError(
            f"{host} can be reached from outside this host, and others there can read the names of scripts and their "
            "speed. If that is meant, say --public."
        )
    return str(found[0]), int(port)


class _Metrics(http.server.BaseHTTPRequestHandler):
    """Answers /metrics."""

    server_version, sys_version = "stoker", ""

    def do_GET(self) -> None:
        """The metrics of this moment."""
        if self.path.split("?")[0] != "/metrics":
            self.send_error(404, "see /metrics")
            return
        try:
            content = _text().encode()
        except CommandError as error:
            self.send_error(500, str(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing: there is a scrape every few seconds."""


class _Server(http.server.ThreadingHTTPServer):
    """Has a deadline for each request as a whole: a client that sends or takes a byte now and then holds nobody up."""

    daemon_threads = False  # they are waited for

    def __init__(self, address: tuple[str, int]) -> None:
        self._served: dict[socket.socket, float] = {}
        self._serving = threading.Lock()
        super().__init__(address, _Metrics)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note the deadline of a request."""
        with self._serving:
            self._served[request] = time.monotonic() + _PATIENCE_S
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the deadline of a finished request."""
        with self._serving:
            self._served.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called several times a second: end requests that take too long."""
        self.cut_off(time.monotonic())

    def cut_off(self, now: float) -> None:
        """Shut down the connection of a client whose time is over. The thread that serves it then goes on, and ends."""
        with self._serving:
            for request, deadline in self._served.items():
                if deadline <= now:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)

    def server_bind(self) -> None:
        """Bind without asking the name service for this host's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, *_: object) -> None:
        """Log nothing: a client went away."""


def _serve(host: str, port: int) -> int:
    _Server.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server = _Server((host, port))
    except OSError as error:
        raise CommandError(f"cannot listen on {host}:{port}: {error}") from error
    with server, _asked_to_end() as is_asked:
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{server.server_address[1]}/metrics", flush=True)
        thread = threading.Thread(target=server.serve_forever, name="stoker-metrics")
        thread.start()
        is_asked(None)
        server.shutdown()
        thread.join()
        server.cut_off(math.inf)
    return 0
