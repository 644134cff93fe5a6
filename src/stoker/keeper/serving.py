"""The keeper's main loop: who comes, what they say, who leaves. It ends when nobody is left.

A line ends with its process: the kernel closes it, and tells of the end of the process itself, too, in case a child of it
holds the line. What comes over a line is plain numbers and JSON, never pickled objects.
"""

import contextlib
import os
import selectors
import signal
import socket
from pathlib import Path

from stoker.host.sockets import other_end
from stoker.keeper import door, messages
from stoker.keeper.house import House
from stoker.memory import keep_freed


class _Caller:
    """A process that has a line to this keeper."""

    def __init__(self, line: socket.socket, pid: int) -> None:
        self.line, self.pid = line, pid
        self.process = -1
        with contextlib.suppress(OSError):  # a process of another namespace, perhaps: then its line alone tells
            self.process = os.pidfd_open(pid)

    def close(self) -> None:
        self.line.close()
        if self.process >= 0:
            os.close(self.process)


class KeeperServing:
    """One keeper."""

    def __init__(self, entry: Path, descriptor: int, listening: socket.socket) -> None:
        self._entry, self._descriptor, self._listening = entry, descriptor, listening
        self._selector = selectors.DefaultSelector()
        self._callers: dict[int, _Caller] = {}
        state = door.read_state(descriptor) or {}
        self._about = {**state, "pid": os.getpid()}
        self._writes = 1
        self._house = House()
        listening.setblocking(False)
        self._selector.register(listening, selectors.EVENT_READ, None)

    def run(self) -> None:
        """Serve until the last has left."""
        self._publish()
        is_news = True
        while True:
            events = self._selector.select(
                self._house.look_s / 2 if is_news or not self._callers else self._house.look_again_s
            )
            is_news = is_news or bool(events)
            for key, _ in events:
                if key.data is None:
                    self._welcome()
                else:
                    self._hear(key.data, is_process=key.fileobj != key.data.line)
            if self._house.govern():
                self._publish()
                is_news = False
            if not self._callers and self._ends():
                return

    def _welcome(self) -> None:
        try:
            line, _ = self._listening.accept()
        except OSError:
            return
        pid, user = other_end(line)
        if user != os.getuid():
            line.close()
            return
        line.setblocking(False)
        caller = _Caller(line, pid)
        self._callers[line.fileno()] = caller
        self._selector.register(line, selectors.EVENT_READ, caller)
        if caller.process >= 0:
            self._selector.register(caller.process, selectors.EVENT_READ, caller)

    def _hear(self, caller: _Caller, *, is_process: bool) -> None:
        if caller.line.fileno() not in self._callers:
            return  # both of its descriptors told of its end
        try:
            while not is_process and (said := messages.receive(caller.line)) is not None:
                self._house.hear(caller.line, caller.pid, said)
        except BlockingIOError:
            return
        except (OSError, ValueError):  # it is gone, or says what nobody of ours would
            pass
        self._part(caller)

    def _part(self, caller: _Caller) -> None:
        if self._callers.pop(caller.line.fileno(), None) is not None:
            self._house.leave(caller.line.fileno())
            self._selector.unregister(caller.line)
            if caller.process >= 0:
                self._selector.unregister(caller.process)
            caller.close()

    def _publish(self) -> None:
        self._writes += 1
        with contextlib.suppress(OSError):
            door.write_state(self._descriptor, self._writes, {**self._about, **self._house.state()})

    def _ends(self) -> bool:
        """End, unless somebody has come meanwhile. Nobody can come while the lock is held."""
        try:
            with door.locked(self._entry.parent.parent, 0.0):
                is_asked = bool(self._selector.select(0))
                if is_asked:
                    return False
                self._entry.unlink(missing_ok=True)
                self._listening.close()
        except BlockingIOError:
            return False  # somebody is just coming, or another keeper of the user's goes
        except OSError:
            pass  # the home of all entries has been removed
        self._house.close()
        return True


def serve(entry: str, descriptor: int, listening: int) -> None:
    """Serve those who come to a socket until the last has left."""
    keep_freed()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for a training process, if at all
    KeeperServing(Path(entry), descriptor, socket.socket(fileno=listening)).run()
    os._exit(0)  # a reader may still wait for storage
