"""moto's S3 over HTTP, in a process of its own: `python -m tests.source.moto_bucket OBJECTS` prints its address."""

import contextlib
import logging
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def moto_bucket(objects: int) -> Iterator[str]:
    """The address of a store with a bucket `bucket` of `data/0000000`, ..., each of some bytes."""
    words = [sys.executable, "-m", "tests.source.moto_bucket", str(objects)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdin is not None and serving.stdout is not None
        yield next(line.strip() for line in serving.stdout if line.startswith("http"))
        serving.stdin.close()  # it ends


def content(number: int) -> bytes:
    return b"content %d" % number


def main() -> None:
    from moto.s3.models import s3_backends
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    backend = s3_backends["123456789012"]["aws"]
    backend.create_bucket("bucket", "us-east-1")
    for number in range(int(sys.argv[1])):
        backend.put_object("bucket", f"data/{number:07}", content(number))
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    print(f"http://{host}:{port}", flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
