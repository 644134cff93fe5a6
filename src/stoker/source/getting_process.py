"""A process that talks to object stores for another one, which may fork: see `getting`.

It is started with one end of a line. Orders come as JSON, answers go back as JSON and the content, in the order in which
they are there. It ends when the line does.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from stoker.source.getting import HEAD, GettingThreads, receive
from stoker.source.pieces import Answer, Outcome, Piece, words_of


def main() -> None:
    """Serve the process at the other end of the line."""
    line = socket.socket(fileno=int(sys.argv[1]))
    sending = threading.Lock()

    def send(number: int, answer: Any) -> None:
        said = json.dumps([number, *words_of(answer)]).encode()
        content = answer.content if isinstance(answer, Answer) else b""
        with sending, contextlib.suppress(OSError):  # the one who asked has gone
            line.sendall(HEAD.pack(len(said), len(content)) + said)
            if content:
                line.sendall(content)

    here = GettingThreads()
    while (head := receive(line, HEAD.size)) is not None:
        said = receive(line, HEAD.unpack(head)[0])
        if said is None:
            break
        number, what, *words = json.loads(said)
        if what == "get":
            here.begin(Piece(*words), then=_sender(send, number))
        else:
            threading.Thread(target=_list, args=(here, words, _sender(send, number)), daemon=True).start()
    os._exit(0)  # what is still on its way is for nobody


def _sender(send: Callable[[int, Any], None], number: int) -> Callable[[Any], None]:
    return lambda answer: send(number, answer)


def _list(here: GettingThreads, words: list[str], send: Callable[[Any], None]) -> None:
    try:
        for page in here.pages(*words):
            send(page)
    except Exception as error:  # the one who waits must hear of it
        send(Answer(Outcome.FAILED, str(error)))


if __name__ == "__main__":
    main()
