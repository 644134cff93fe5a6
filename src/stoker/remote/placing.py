"""The process that has Ray in it: it places workers on a cluster's nodes, and takes them away again.

Ray starts threads, and ends its process when the cluster's head has gone for a minute. So it is neither in the training
process nor in the relay. Ray carries control only: workers dial the relay, and batches never pass through Ray.

    python -m stoker.remote.placing        (a `PlacingOrder` on standard input, then lines; ends when that is closed)

    in:   {"workers": 3}         how many are wanted from now on; null: as many as CPUs are free
    out:  {"there": 2}           so many run; the first line says that the cluster was reached
          {"trouble": "..."}     why there are none, or fewer
"""

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, Any

from stoker.remote import tending
from stoker.remote.cluster import CLIENT
from stoker.wire.addresses import is_local

_REACH_S = 5.0
_ROUND_S = 0.5
_LOOK_S = 3.0
"""Between two looks at which nodes there are."""
_PATIENCE_S = 30.0
"""If no worker is there by then, one line says so."""
_END_S = 5.0
_NODE = "ray.io/node-id"
_MOST_WORKERS = 120
"""The relay has room for so many."""


@dataclass(frozen=True, slots=True)
class PlacingOrder:
    """What this process is told first."""

    ray: str
    dial: str
    """The relay's address, as workers dial it."""
    secret: str
    workers: int | None
    resources: dict[str, float]
    labels: dict[str, str]


def how_many(told: int | None, asked: int | None, placed: int, pending: int, free: int) -> int:
    """How many workers should be placed.

    Told is what the training host decides, asked what the user names at most. With neither, all CPUs that are free are
    used; those that were asked for before come first.
    """
    most = _MOST_WORKERS if asked is None else min(asked, _MOST_WORKERS)
    if told is not None:
        return min(told, most)
    if asked is not None:
        return most
    return min(placed if pending else placed + free, most)


class Placing:
    """The actors of one run."""

    def __init__(self, ray: Any, order: PlacingOrder, say: Any) -> None:
        self._ray, self._order, self._say = ray, order, say
        self._there: dict[Any, bool] = {}
        """By actor, the oldest first: whether its worker runs."""
        self._calls: dict[Any, Any] = {}
        """What each actor will tell, by the call that waits for it."""
        self._refused: set[str] = set()
        """Names of hosts where no worker can be."""
        self._nodes: list[dict[str, Any]] = []
        self._looked_at = -_LOOK_S
        self._began = time.monotonic()
        self._has_waited = False
        self._class = ray.remote(tending.Tending)

    def round(self, told: int | None) -> None:
        """Hear what actors tell, and place or end some."""
        before = sum(self._there.values())
        self._hear()
        if time.monotonic() - self._looked_at >= _LOOK_S:
            self._looked_at = time.monotonic()
            self._nodes = [node for node in self._ray.nodes() if node["Alive"]]
            is_free_asked = told is None and self._order.workers is None
            free = self._free() if is_free_asked and all(self._there.values()) else 0
            self._settle(told, free)
        elif told is not None:
            self._settle(told, 0)
        there = sum(self._there.values())
        if there != before:
            self._say(there=there)
        is_known_why = there or self._has_waited or self._refused  # a host that cannot have one was named
        if not is_known_why and time.monotonic() - self._began > _PATIENCE_S and told != 0:
            self._has_waited = True
            self._say(
                trouble=f"Ray has started no worker on another node in {_PATIENCE_S:g} s: perhaps no CPU is free there"
            )

    def close(self) -> None:
        """End all actors."""
        self._settle(0, 0)

    def _settle(self, told: int | None, free: int) -> None:
        pending = sum(not is_there for is_there in self._there.values())
        wanted = how_many(told, self._order.workers, len(self._there), pending, free)
        while len(self._there) < wanted:
            self._place()
        while len(self._there) > wanted:
            waiting = [actor for actor, is_there in self._there.items() if not is_there]
            self._end(waiting[-1] if waiting else list(self._there)[-1])

    def _place(self) -> None:
        apart = [node["NodeID"] for node in self._nodes if not self._may_be(node)]
        labels = self._order.labels | ({_NODE: f"!in({','.join(apart)})"} if apart else {})
        # A strategy keeps it out of a placement group that this process may have been started in.
        actor = self._class.options(
            num_cpus=1,
            resources=self._order.resources or None,
            label_selector=labels or None,
            scheduling_strategy="SPREAD",
            max_restarts=-1,
        ).remote(self._order.dial, self._order.secret)
        self._there[actor] = False
        self._calls[actor.word.remote()] = actor

    def _end(self, actor: Any) -> None:
        self._there.pop(actor)
        self._calls = {call: one for call, one in self._calls.items() if one is not actor}
        self._ray.kill(actor)

    def _hear(self) -> None:
        if not self._calls:
            time.sleep(_ROUND_S)
            return
        done, _ = self._ray.wait(list(self._calls), timeout=_ROUND_S)
        for call in done:
            actor = self._calls.pop(call)
            try:
                word = self._ray.get(call)
            except self._ray.exceptions.RayActorError:  # it is being started again, perhaps on another node
                self._there[actor] = False
                word = {}
                time.sleep(_ROUND_S)
            self._calls[actor.word.remote()] = actor
            if "there" in word:
                self._there[actor] = True
            elif "trouble" in word:
                self._refused.add(word["host"])
                self._end(actor)
                self._say(trouble=word["trouble"])

    def _may_be(self, node: dict[str, Any]) -> bool:
        """Whether workers may be on a node."""
        return node["NodeManagerHostname"] not in self._refused and not is_local(node["NodeManagerAddress"])

    def _free(self) -> int:
        """How many more workers have room on nodes that are there."""
        need = {"CPU": 1.0} | self._order.resources
        free = self._available()
        return sum(
            int(min(free.get(node["NodeID"], {}).get(name, 0.0) / count for name, count in need.items()))
            for node in self._nodes
            if self._may_be(node) and self._order.labels.items() <= node["Labels"].items()
        )

    def _available(self) -> dict[str, dict[str, float]]:
        """What each node has left."""
        if not self._order.ray.startswith(CLIENT):
            return _available_here()
        here: dict[str, dict[str, float]] = self._ray.get(self._ray.remote(num_cpus=0)(_available_here).remote())
        return here


def _available_here() -> dict[str, dict[str, float]]:
    from ray._private import state  # there is no public name for it, and totals do not tell what others use

    found: dict[str, dict[str, float]] = state.available_resources_per_node()
    return found


class _Told:
    """What standard input says."""

    def __init__(self, words: IO[str]) -> None:
        self.workers: int | None = None
        self.is_over = False
        self._words = words
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._words:
            self.workers = json.loads(line)["workers"]
        self.is_over = True
        time.sleep(_END_S)
        os._exit(1)  # Ray hangs. Its actors end with this process


def _reach(address: str) -> None:
    """Raise OSError unless somebody listens there. Ray itself tries for half a minute."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), _REACH_S).close()


def main() -> int:
    """Place workers, as the document on standard input says."""
    order = PlacingOrder(**json.loads(sys.stdin.readline()))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints is not for the relay

    def say(**words: Any) -> None:
        with contextlib.suppress(OSError):  # the relay has gone: standard input says so, too
            print(json.dumps(words), file=out, flush=True)

    told = _Told(sys.stdin)
    try:
        _reach(order.ray)
        import ray
        import ray.cloudpickle

        ray.cloudpickle.register_pickle_by_value(tending)
        ray.init(address=order.ray, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray's own are of many kinds
        say(trouble=f"the Ray cluster at {order.ray} cannot be used: {_one_line(error)}")
        return 1
    placing = Placing(ray, order, say)
    say(there=0)
    try:
        while not told.is_over:
            placing.round(told.workers)
        placing.close()
    except Exception as error:  # as above
        say(trouble=f"the Ray cluster at {order.ray} has gone: {_one_line(error)}")
        return 1
    ray.shutdown()
    return 0


def _one_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    if "Traceback" in text:  # of another process, and the error is in its last line
        text = text.splitlines()[-1]
    return " ".join(text.split())[:400].rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
