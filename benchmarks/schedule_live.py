"""The scheduler on a real Slurm of this machine: eight jobs, shared in proportion and by sensitivity, beside the simulator.

    python benchmarks/schedule_live.py              both mechanisms: makespans live and simulated, cores by their groups
    python benchmarks/schedule_live.py --kills 20   daemon, slurmctld, nodes and jobs are killed at random moments

Two nodes with four GPUs each; a CPU is a small part of a core, and all CPUs together are two cores. Four jobs prepare their
samples with much processor time, four hardly need any. Their matrices are measured first. What is trained is compared with
jobs that ran alone. Where there are kills, six of the eight jobs only count, and say if they are not alone.

One JSON line at the end. Needs root, two quiet cores, and Slurm (see `benchmarks/slurm.py`).
"""

import argparse
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.schedule.costs import start_cost
from stoker.schedule.job import Job, Server
from stoker.schedule.matrix import Matrix
from stoker.schedule.observing import observe
from stoker.schedule.rules import Rules
from stoker.schedule.sensitivity import document
from stoker.schedule.simulate import Simulation
from stoker.schedule.state import State

if TYPE_CHECKING:
    from slurm import Slurm

SCRIPT = Path(__file__).with_name("schedule_job.py")
CORE, CPUS, GPUS, NODES = 0.07, 12, 4, 2
"""All CPUs together are 1.7 cores: the rest is for Slurm, the daemon, and this."""
MEMORY_GB, MEMORY_PART = 40.0, 0.1
"""Of a node; and the part of it that Slurm holds a job to."""
ROUND_S = 5.0
KINDS = {
    "hungry": ["--samples", "240", "--batch", "4", "--prep-ms", "8", "--gpu-ms", "20", "--workers", "1"],
    "light": ["--samples", "240", "--batch", "4", "--prep-ms", "0.1", "--gpu-ms", "250", "--workers", "0"],
}
COUNTS = {"hungry": (3.0, 5.0), "light": (1.0, 3.0)}
"""Of CPUs, at which each is measured; 3 is a GPU's share."""
ITERATIONS_PER_EPOCH = 60


class Live:
    """A daemon over a Slurm, and the commands of a user."""

    def __init__(self, slurm: "Slurm", folder: Path, *options: str) -> None:
        self.slurm, self.folder, self._options = slurm, folder, options
        self.environment = slurm.environment | {"STOKER_SCHEDULE": str(folder)}
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the daemon."""
        with (self.folder.parent / "daemon.log").open("ab") as log:
            self._daemon = subprocess.Popen(self._words("run", *self._options), env=self.environment, stderr=log)

    def kill(self) -> None:
        """Kill the daemon by SIGKILL."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon.wait()

    def ask(self, *words: str) -> str:
        """What a command prints."""
        done = subprocess.run(self._words(*words), env=self.environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def wait(self, limit_s: float) -> None:
        """Until no job is left."""
        state = State(self.folder)
        deadline = time.monotonic() + limit_s
        while state.jobs("new", "queued"):
            assert time.monotonic() < deadline, self.ask("ls")
            time.sleep(0.1)
        state.close()

    @staticmethod
    def _words(*words: str) -> list[str]:
        return [sys.executable, "-m", "stoker", "schedule", *words]


@contextlib.contextmanager
def live(slurm: "Slurm", folder: Path, *options: str) -> Iterator[Live]:
    """A daemon that ends with this."""
    one = Live(slurm, folder, *options)
    try:
        yield one
    finally:
        one.kill()


def measured(kind: str, place: Path) -> Matrix:
    """Rates by CPUs, from runs under quotas."""
    words = [str(SCRIPT), str(place / "profiled"), *KINDS[kind], "--epochs", "1000"]
    counts, share = COUNTS[kind], MEMORY_GB / GPUS
    few, many = (observe(words, count * CORE, 5.0).rate for count in counts)
    if many < 1.1 * few:
        return Matrix((counts[0],), (share,), ((few,),), (counts[0], share))
    return Matrix(counts, (share,), ((few,), (many,)), (counts[1], share))


def submit(one: Live, place: Path, matrices: dict[str, Matrix], epochs: dict[str, int]) -> list[tuple[str, str]]:
    """Four jobs of each kind, in turn; their ids and kinds."""
    jobs = []
    for number in range(8):
        kind = ("hungry", "light")[number % 2]
        profile = place / f"{kind}.json"
        profile.write_text(json.dumps(document(kind, matrices[kind], {})))
        words = _training(place, number, kind, epochs)
        iterations = str(epochs[kind] * ITERATIONS_PER_EPOCH)
        jobs.append((one.ask("submit", "--profile", str(profile), "--iterations", iterations, "--", *words), kind))
    return jobs


@functools.cache
def alone(kind: str, epochs: int, folder: str) -> str:
    """What a job of a kind comes to that was never interrupted."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        result = Path(place, "alone")
        command = [sys.executable, "-m", "stoker", "run", "--seed", "1", "--", str(SCRIPT), str(result), *KINDS[kind]]
        subprocess.run([*command, "--epochs", str(epochs), "--gpu-ms", "0"], check=True, stderr=subprocess.DEVNULL)
        return result.read_text()


def check(place: Path, one: Live, jobs: list[tuple[str, str]], epochs: dict[str, int]) -> int:
    """How many of the jobs have another result than one that ran alone."""
    expected = {kind: alone(kind, epochs[kind], str(place.parent)) for kind in KINDS}
    state = State(one.folder)
    wrong = 0
    for number, (job, kind) in enumerate(jobs):
        result = place / f"result-{number}"
        wrong += state.job(job).status != "done" or not result.exists() or result.read_text() != expected[kind]
    state.close()
    return wrong


def as_said(state: State) -> list[tuple[float, float]]:
    """For each lease that runs: what its groups allow beyond what the engine gave, in cores and as a part of the memory."""
    pairs = []
    for known in state.leases():
        ready = state.marks(known.lease).read("ready")
        demand = known.lease.placement.demand
        if ready and ready["group"]:
            group = Path(ready["group"])
            with contextlib.suppress(OSError):
                quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
                given = demand.memory_gb * 1000 * (1 << 20) * MEMORY_PART
                limit = _memory_limit(ready["pid"])
                if limit:
                    pairs.append((quota / period - demand.cpus * CORE, limit / given - 1))
    return pairs


def _memory_limit(pid: int) -> int:
    """Of the group that Slurm has made for the job of a process; 0 if it has just ended."""
    lines = (line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    group = Path("/sys/fs/cgroup/memory", next(path for _, name, path in lines if name == "memory").lstrip("/"))
    limits = [one / "memory.limit_in_bytes" for one in (group, *group.parents) if one.name.startswith("job_")]
    return min((int(limit.read_text()) for limit in limits), default=0)


def costs_of(
    state: State, place: Path, jobs: list[tuple[str, str]], epochs: dict[str, int], matrices: dict[str, Matrix]
) -> dict[str, Any]:
    """Of jobs with one lease: what they took beside their iterations, by cores, and their speed over the promised one."""
    costs, speeds = [], []
    for number, (job, kind) in enumerate(jobs):
        leases = state.leases(job, living=False)
        trained_at, ended_at = (place / f"result-{number}").stat().st_mtime, state.job(job).ended_at
        known = leases[0]
        if len(leases) == 1 and known.first_at and known.given_at and ended_at:
            trained_s = trained_at - known.first_at
            cpus = known.lease.placement.demand.cpus
            costs.append((cpus * CORE, ended_at - known.given_at - trained_s))
            promised = matrices[kind].rate(*known.lease.placement.per_gpu)
            speeds.append((kind, epochs[kind] * ITERATIONS_PER_EPOCH / trained_s / promised))
    if not costs:  # every job had several leases
        costs = [
            (known.lease.placement.demand.cpus * CORE, known.first_at - known.given_at)
            for known in state.leases(living=False)
            if known.first_at and known.given_at
        ]
    by_kind = {kind: [round(speed, 3) for other, speed in speeds if other == kind] for kind in KINDS}
    told = [[round(cores, 3), round(seconds, 1)] for cores, seconds in costs]
    return {"costs": costs, "beside_iterations_s": told, "speed_over_promised": by_kind}


def makespan(mechanism: str, matrices: dict[str, Matrix], epochs: dict[str, int], place: Path) -> dict[str, Any]:
    """Eight jobs live, and the same through the simulator with what a lease cost beside its iterations."""
    place.mkdir()
    memory_mb = int(MEMORY_GB * 1000)
    options = ["--round", str(ROUND_S), "--core", str(CORE), "--mechanism", mechanism]
    from slurm import Slurm

    with Slurm(NODES, CPUS, GPUS, memory_mb, MEMORY_PART) as slurm, live(slurm, place / "state", *options) as one:
        jobs = submit(one, place, matrices, epochs)
        one.start()
        state = State(one.folder)
        pairs: list[tuple[float, float]] = []
        while state.jobs("new", "queued"):
            time.sleep(0.5)
            pairs += as_said(state)
        leases = state.leases(living=False)
        begin = min(known.given_at or 0 for known in leases)
        took_s = max(state.job(job).ended_at or 0 for job, _ in jobs) - begin
        beside = costs_of(state, place, jobs, epochs, matrices)
        wrong = check(place, one, jobs, epochs)
        state.close()
    servers = [Server(f"node{number}", GPUS, float(CPUS), MEMORY_GB) for number in range(NODES)]
    played = [Job(job, 1, epochs[kind] * ITERATIONS_PER_EPOCH, matrices[kind]) for job, kind in jobs]
    same_s, work_s = start_cost(beside.pop("costs"))
    rules = Rules("fifo", mechanism, ROUND_S, same_s, start_work_s=work_s, core=CORE)
    history = Simulation(played, servers, rules).run()
    simulated_s = max(history.ends_s.values())
    return {
        "live_s": round(took_s, 1),
        "simulated_s": round(simulated_s, 1),
        "ratio": round(took_s / simulated_s, 3),
        "wrong": wrong,
        "leases": len(leases),
        "start_s": [round(same_s, 1), round(work_s, 2)],
        **beside,
        "cores_off": round(max((abs(cores) for cores, _ in pairs), default=1.0), 4),
        "memory_off": round(max((abs(memory) for _, memory in pairs), default=1.0), 4),
        "looks": len(pairs),
    }


COUNTING = """
import fcntl, os, sys, time
from pathlib import Path
result, steps = Path(sys.argv[1]), int(sys.argv[2])
alone = open(result.with_suffix(".alone"), "a")
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    result.with_suffix(".twice").touch()
    raise SystemExit(9)
count = result.with_suffix(".count")
done = int(count.read_text()) if count.exists() else 0
while done < steps:
    time.sleep(0.1)
    done += 1
    partial = result.with_suffix(".partial")
    partial.write_text(str(done))
    partial.rename(count)
result.write_text("counted")
"""


def storm(slurm: "Slurm", kills: int, seed: int, place: Path) -> dict[str, object]:
    """Eight jobs, while something is killed again and again. Six only count, and say if one of theirs runs beside them."""
    chance = random.Random(seed)
    epochs = {"hungry": 1, "light": 1}
    counting = place / "count.py"
    counting.write_text(COUNTING)
    done: list[str] = []
    options = ["--round", "1", "--core", "0.3"]
    with live(slurm, place / "state", *options) as one:
        trained = [
            (one.ask("submit", "--", *_training(place, number, kind, epochs)), kind) for number, kind in enumerate(KINDS)
        ]
        counted = [place / f"counted-{number}" for number in range(6)]
        for result in counted:
            one.ask("submit", "--", str(counting), str(result), str(25 * kills))
        one.start()
        state = State(one.folder)
        while len(done) < kills and state.jobs("new", "queued"):
            time.sleep(chance.uniform(0.2, 3))
            done.append(_strike(one, state, chance))
        one.wait(600)
        leases = len(state.leases(living=False))
        statuses = [known.status for known in state.jobs()]
        words = [known.word for known in state.jobs() if known.word]
        state.close()
        wrong = check(place, one, trained, epochs) + sum(not result.exists() for result in counted)
    twice = len(list(place.glob("*.twice")))
    return {
        "kills": done, "seed": seed, "wrong": wrong, "twice": twice, "leases": leases, "jobs": statuses, "words": words
    }  # fmt: skip


def _training(place: Path, number: int, kind: str, epochs: dict[str, int]) -> list[str]:
    return [str(SCRIPT), str(place / f"result-{number}"), *KINDS[kind], "--epochs", str(epochs[kind])]


def _strike(one: Live, state: State, chance: random.Random) -> str:
    """Kill something; what it was."""
    slurm, what = one.slurm, chance.choice(["daemon", "slurmctld", "job", "wrapper", "node"])
    if what == "daemon":
        one.kill()
        one.start()
    elif what == "slurmctld":
        slurm.kill("slurmctld")
        slurm.start_controller()
    elif what == "node":
        name = chance.choice(slurm.names)
        slurm.kill(name)
        time.sleep(chance.choice([0.5, 12]))  # after the longer one Slurm holds it for lost
        slurm.start_node(name)
    else:
        ready = [found for known in state.leases() if (found := state.marks(known.lease).read("ready"))]
        with contextlib.suppress(OSError):
            pid = int(chance.choice(ready)["pid"]) if ready else 0
            if what == "wrapper" and pid:
                pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            if (
                pid > 1
                and b"stoker" in Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            ):
                os.kill(pid, signal.SIGKILL)
    return what


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mechanism", action="append", choices=["proportional", "tune"])
    parser.add_argument("--hungry-epochs", type=int, default=12)
    parser.add_argument("--light-epochs", type=int, default=1)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="schedule-live-"))
    load = Path("/proc/loadavg").read_text().split()[0]
    try:
        if options.kills:
            from slurm import Slurm

            with Slurm(NODES, CPUS, GPUS, int(MEMORY_GB * 1000), patience_s=5) as slurm:
                print(json.dumps(storm(slurm, options.kills, options.seed, place) | {"load": load}))
            return
        epochs = {"hungry": options.hungry_epochs, "light": options.light_epochs}
        matrices = {kind: measured(kind, place) for kind in KINDS}
        rates = {
            kind: dict(zip(one.cpus, (round(row[0], 3) for row in one.rates), strict=True))
            for kind, one in matrices.items()
        }
        print(json.dumps({"rates": rates}), flush=True)
        found = {}
        for name in options.mechanism or ["proportional", "tune"]:
            found[name] = makespan(name, matrices, epochs, place / name)
            print(json.dumps({name: found[name]}), flush=True)
        gain = found["proportional"]["live_s"] / found["tune"]["live_s"] if len(found) == 2 else None
        print(json.dumps({"rates": rates, **found, "gain": gain and round(gain, 3), "load": load}))
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
