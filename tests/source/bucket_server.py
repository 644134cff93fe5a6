"""A small S3 over real HTTP: it counts what it is asked, and fails as it is told.

It knows listings in pages, GET with ranges and If-Match, and HEAD. It does not look at signatures.
"""

import contextlib
import hashlib
import threading
import urllib.parse
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

MODIFIED = "2026-01-02T03:04:05.000Z"


class BucketServer:
    """`objects` is what is there, by key; `faults` what happens to the next requests for a key.

    A fault is a status (503), "cut" (the body ends early), or "gone" (the line is closed before an answer).
    """

    def __init__(self, bucket: str = "bucket", *, page: int = 1000) -> None:
        self.bucket, self.page = bucket, page
        self.objects: dict[str, bytes] = {}
        self.faults: defaultdict[str, deque[int | str]] = defaultdict(deque)
        self.asked: Counter[tuple[str, str]] = Counter()
        self.conditions: list[str | None] = []
        self.at_once = self.most_at_once = 0
        self.keys: list[str] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"bucket": self}))
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def gets(self) -> dict[str, int]:
        """How often each object was asked for."""
        return {key: count for (what, key), count in self.asked.items() if what == "GET"}

    @property
    def pages(self) -> int:
        """How many pages of listings were asked for."""
        return sum(count for (what, _), count in self.asked.items() if what == "LIST")

    def forget(self) -> None:
        """Count anew."""
        self.asked.clear()
        self.conditions.clear()

    @contextlib.contextmanager
    def counted(self, what: str, key: str) -> Iterator[int | str | None]:
        with self._lock:
            self.asked[what, key] += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            fault = self.faults[key].popleft() if self.faults[key] else None
        try:
            yield fault
        finally:
            with self._lock:
                self.at_once -= 1


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    bucket: BucketServer

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        name, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        if name != self.bucket.bucket:
            self._fail(404, "NoSuchBucket", "The specified bucket does not exist")
        elif key:
            with self.bucket.counted(self.command, key) as fault:
                self._object(key, fault)
        else:
            asked = dict(urllib.parse.parse_qsl(query))
            with self.bucket.counted("LIST", asked.get("prefix", "")) as fault:
                self._fault(fault) if isinstance(fault, int) else self._list(asked)

    def _list(self, asked: dict[str, str]) -> None:
        after = asked.get("continuation-token") or asked.get("start-after", "")
        prefix = asked.get("prefix", "")
        keys = [key for key in sorted(self.bucket.objects) if key.startswith(prefix) and key > after]
        some, is_cut = keys[: self.bucket.page], len(keys) > self.bucket.page
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{MODIFIED}</LastModified><ETag>{escape(etag(content))}</ETag>"
            f"<Size>{len(content)}</Size></Contents>"
            for key in some
            for content in [self.bucket.objects[key]]
        )
        more = f"<NextContinuationToken>{escape(some[-1])}</NextContinuationToken>" if is_cut else ""
        page = (
            f'<?xml version="1.0"?><ListBucketResult><Name>{self.bucket.bucket}</Name>{more}'
            f"<IsTruncated>{str(is_cut).lower()}</IsTruncated>{rows}</ListBucketResult>"
        )
        self._answer(200, page.encode(), {"Content-Type": "application/xml"})

    def _object(self, key: str, fault: int | str | None) -> None:
        condition = self.headers.get("If-Match")
        self.bucket.conditions.append(condition)
        content = self.bucket.objects.get(key)
        if isinstance(fault, int):
            self._fault(fault)
        elif fault == "gone":
            self.close_connection = True
        elif content is None:
            self._fail(404, "NoSuchKey", "The specified key does not exist.")
        elif condition is not None and condition != etag(content):
            self._fail(412, "PreconditionFailed", "")
        else:
            headers = {"ETag": etag(content), "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT"}
            wanted = self.headers.get("Range")
            if wanted is None:
                self._answer(200, content, headers, cut=fault == "cut")
                return
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(content)), len(content) - 1) + 1
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            self._answer(206, content[start:end], headers, cut=fault == "cut")

    def _fault(self, status: int) -> None:
        self._fail(status, {403: "AccessDenied", 401: "Unauthorized"}.get(status, "SlowDown"), "as it was told")

    def _fail(self, status: int, code: str, message: str) -> None:
        text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
        self._answer(status, text.encode(), {"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str], *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.wfile.flush()
        if cut:
            self.close_connection = True
