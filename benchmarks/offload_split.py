"""Is the right part of the preparation sent to another host, and does it stay so? Two real hosts (see `hosts`).

--grid: in each setting (cores here and there, link, size of samples, what the loop takes) all parts from 0 to 1 are tried
in steps of 0.1, up and down again, then the loader decides. `chosen` is the part that it sends away, `low_end` what is sent
away at the smallest point whose rate is within 3 % of the plateau: the median of the rates within 5 % of the best, because
the best of eleven is partly luck. `may_be_sent` is what was allowed in both: where a link is the limit, less goes away.
`of_plateau` and `of_best` are the rate with the chosen part against both. `apart` is how far the two passes are apart at a
point, in the middle and at most.

--live: while a loader trains that has decided, one thing is changed at a time. `after_5s` is the rate from the fifth second
on against that of this host alone, as it is then; `after_15s` and `points` compare with sending away all that helps.

--slept: samples take a time instead of a processor, which is set on each host. That tells the same of the decision on a
machine that is busy with other things.

    sudo python benchmarks/offload_split.py --grid [--settings 0,1] [--live] [--changes 0,1] [--slept] [--seconds 2.5]
"""

import argparse
import json
import os
import select
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORT = 7100
PACE = "/dev/shm/pace"
_CORE_S = 0.0012
SETTINGS: list[dict[str, Any]] = [
    {"here": 0.3, "there": 0.3, "loop": 0},
    {"here": 0.3, "there": 0.6, "loop": 0},
    {"here": 0.3, "there": 0.6, "loop": 1.5},
    {"here": 0.3, "there": 0.3, "loop": 1.3},
    {"here": 0.3, "there": 0.6, "loop": 0, "link": 120},
    {"here": 0.3, "there": 0.6, "loop": 2.0, "data": "floats"},
]
"""Cores, the loop's limit in parts of what this host prepares alone (0: none), the link in Mbit/s, what samples are."""


class Slept:
    """Pictures that come after a while; how long that is, this host says."""

    def __init__(self, count: int, bank: int) -> None:
        self.count = count
        del bank

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        import numpy as np

        time.sleep(float(Path(PACE).read_text()))
        return np.full((224, 224, 3), index % 256, np.uint8), index


def set_cores(host: Any, cores: float, *, slept: bool) -> None:
    """Let a host be so fast."""
    if slept:
        host.run(["sh", "-c", f"echo {_CORE_S / cores} > {PACE}"])
    else:
        host.limit_cores(cores)


def be_a_trainer(asked: dict[str, Any]) -> None:
    """Train, and do what is said on standard input: another ratio, another limit of the loop, measuring for a while."""
    import torch

    import stoker
    import workloads

    torch.set_num_threads(1)
    words = os.fdopen(0, "rb", 0)  # unbuffered: what is there can be seen
    data = {"floats": workloads.FloatJpegs, "slept": Slept}.get(asked["data"], workloads.Jpegs)
    loader = stoker.DataLoader(
        data(10_000_000, bank=64),
        16,
        num_workers=1,
        prefetch_factor=4,
        seed=1,
        offload=f"tcp://{asked['address']}:{PORT}",
        plan=stoker.Plan(offload_ratio=0.0),
    )
    step_s, until, began, before = 0.0, 0.0, 0.0, loader.stats()
    for batch in loader:
        at = time.perf_counter()
        if until and at >= until:
            stats = loader.stats()
            samples, until = stats.samples - before.samples, 0.0
            found = {"rate": samples / (at - began), "remote": (stats.remote - before.remote) / samples}
            print(json.dumps(found | {"ratio": stats.remote_ratio, "workers": stats.remote_workers}), flush=True)
        if not until and select.select([words], [], [], 0)[0]:
            said = json.loads(words.readline() or "null")
            if said is None:
                break
            if "ratio" in said:
                relaying = loader.here.relaying
                assert relaying is not None
                relaying.limit(said["ratio"])
            step_s = 1 / said["loop"] if said.get("loop") else 0.0 if "loop" in said else step_s
            if "measure" in said:
                began, until, before = at, at + said["measure"], loader.stats()
        time.sleep(step_s * len(batch[0]))
    loader.close()


class Trainer:
    """A training process on a host, and how to talk to it."""

    def __init__(self, host: Any, asked: dict[str, Any], environment: dict[str, str]) -> None:
        import subprocess

        words = [sys.executable, __file__, json.dumps(asked | {"address": host.address})]
        self._process = host.start(words, env=environment, stdin=subprocess.PIPE)

    def say(self, **what: Any) -> None:
        """Tell it something."""
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def measure(self, seconds: float) -> dict[str, float]:
        """What it reaches for a while."""
        self.say(measure=seconds)
        return dict(json.loads(self._process.stdout.readline()))

    def end(self) -> None:
        """End it."""
        self._process.stdin.close()
        self._process.wait()


def start_workers(first: Any, second: Any, environment: dict[str, str], count: int = 1) -> Any:
    """Workers on the second host."""
    words = [sys.executable, "-m", "stoker", "worker", f"tcp://{first.address}:{PORT}", "-n", str(count)]
    return second.start(words, env=environment)


def until_there(trainer: Trainer, workers: int) -> None:
    """Wait until so many workers are there."""
    for _ in range(100):
        if trainer.measure(0.5)["workers"] >= workers:
            return
    raise SystemExit("workers do not come")


def grid(
    setting: dict[str, Any], hosts: Any, environment: dict[str, str], seconds: float, *, slept: bool
) -> dict[str, Any]:
    """Try all parts, up and down, then let the loader decide."""
    first, second = hosts
    set_cores(first, setting["here"], slept=slept)
    set_cores(second, setting["there"], slept=slept)
    for host in hosts:
        host.limit_link(setting.get("link", 4000) * 1_000_000)
    trainer = Trainer(first, {"data": "slept" if slept else setting.get("data", "")}, environment)
    workers = start_workers(first, second, environment)
    until_there(trainer, 1)
    alone = trainer.measure(2 * seconds)["rate"]
    trainer.say(loop=setting["loop"] * alone)
    passes: list[list[dict[str, float]]] = [[] for _ in range(11)]
    for tenth in (*range(11), *reversed(range(11))):
        trainer.say(ratio=tenth / 10)
        trainer.measure(1.0)
        passes[tenth].append(trainer.measure(seconds))
    rates, sent = ([statistics.mean(one[name] for one in both) for both in passes] for name in ("rate", "remote"))
    apart = sorted(abs(up["rate"] - down["rate"]) / rate for (up, down), rate in zip(passes, rates, strict=True))
    trainer.say(ratio=None)
    trainer.measure(15)
    found = trainer.measure(3 * seconds)
    trainer.end()
    second.stop(workers)
    best = max(rates)
    plateau = statistics.median(rate for rate in rates if rate >= 0.95 * best)
    low_end = next(tenth for tenth, rate in enumerate(rates) if rate >= 0.97 * plateau)
    measured = {"chosen": found["remote"], "low_end": sent[low_end], "may_be_sent": [found["ratio"], low_end / 10]}
    measured |= {"of_plateau": found["rate"] / plateau, "of_best": found["rate"] / best}
    tried = {"grid": [round(rate) for rate in rates], "sent": [round(part, 2) for part in sent]}
    tried |= {"apart": [round(statistics.median(apart), 3), round(apart[-1], 3)]}
    return {"setting": setting, **measured, "alone": alone, **tried}


def live(hosts: Any, environment: dict[str, str], seconds: float, which: list[int], *, slept: bool) -> list[dict[str, Any]]:
    """Change one thing at a time while it trains."""
    first, second = hosts
    for host in hosts:
        set_cores(host, 0.3, slept=slept)
        host.limit_link(4_000_000_000)
    trainer = Trainer(first, {"data": "slept" if slept else ""}, environment)
    workers = [start_workers(first, second, environment)]
    until_there(trainer, 1)
    trainer.say(ratio=None)
    trainer.measure(15)

    def join() -> None:
        workers.append(start_workers(first, second, environment))
        if not slept:
            second.limit_cores(0.6)
        until_there(trainer, 2)

    def leave() -> None:
        second.stop(workers.pop())

    changes: list[tuple[str, Callable[[], object]]] = [
        ("the link has 50 Mbit/s", lambda: second.limit_link(50_000_000)),
        ("the link is as before", lambda: second.limit_link(4_000_000_000)),
        ("remote has half its cores", lambda: set_cores(second, 0.15, slept=slept)),
        ("remote is as before", lambda: set_cores(second, 0.3, slept=slept)),
        ("this host has half its cores", lambda: set_cores(first, 0.15, slept=slept)),
        ("this host is as before", lambda: set_cores(first, 0.3, slept=slept)),
        ("a worker joins", join),
        ("a worker leaves", leave),
    ]
    found = []
    for name, change in [changes[number] for number in which]:
        change()
        trainer.measure(5)
        soon = trainer.measure(seconds)
        trainer.measure(10 - seconds)
        later = trainer.measure(seconds)
        trainer.say(ratio=0.0)
        trainer.measure(1)
        alone = trainer.measure(seconds)
        trainer.say(ratio=1.0)
        trainer.measure(2)
        best = trainer.measure(seconds)
        trainer.say(ratio=None)
        trainer.measure(6)
        points = 100 * (later["remote"] - best["remote"])
        of = {"after_5s": soon["rate"] / alone["rate"], "after_15s": later["rate"] / max(best["rate"], alone["rate"])}
        rates = {"soon": soon["rate"], "later": later["rate"], "alone": alone["rate"], "all": best["rate"]}
        found.append({"change": name, **of, "points": points, "chosen": later["remote"], **rates})
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    trainer.end()
    for one in workers:
        second.stop(one)
    return found


def main() -> None:
    """Print a line for all settings and changes."""
    import harness
    from hosts import with_secret

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", action="store_true", help="compare with all parts in steps of 0.1")
    parser.add_argument("--live", action="store_true", help="change things while it trains")
    parser.add_argument("--slept", action="store_true", help="samples that take a time instead of a processor")
    parser.add_argument("--settings", default=",".join(map(str, range(len(SETTINGS)))), help="which, by number")
    parser.add_argument("--changes", default="0,1,2,3,4,5,6,7", help="which of --live, by number, in pairs")
    parser.add_argument("--seconds", type=float, default=2.5, help="for each rate (default: 2.5)")
    options = parser.parse_args()
    rows, changes = [], []
    with with_secret(2) as (hosts, environment):
        cache = environment["XDG_CACHE_HOME"]
        for number in map(int, options.settings.split(",")) if options.grid else ():
            own = environment | {"XDG_CACHE_HOME": f"{cache}-{number}"}
            rows.append(grid(SETTINGS[number], hosts, own, options.seconds, slept=options.slept))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        if options.live:
            changes = live(
                hosts, environment, options.seconds, [*map(int, options.changes.split(","))], slept=options.slept
            )
    worst = min([row["of_plateau"] for row in rows] + [change["after_15s"] for change in changes], default=0.0)
    harness.report("the part that another host prepares, decided by measuring", ratio=worst, grid=rows, live=changes)


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("{"):
        be_a_trainer(json.loads(sys.argv[1]))
    else:
        main()
