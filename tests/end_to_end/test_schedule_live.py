"""The scheduler on a real Slurm: the same eight jobs as in the simulator, with the daemon killed in between."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.schedule_live import SCRIPT, live, storm
from benchmarks.slurm import Slurm, missing
from tests.tries import HANG_S, until

from stoker.schedule.job import Job, Placement, Server
from stoker.schedule.matrix import Matrix
from stoker.schedule.rules import Rules
from stoker.schedule.sensitivity import document
from stoker.schedule.simulate import Simulation
from stoker.schedule.state import State

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"a Slurm on this machine: {missing()}")

HUNGRY = Matrix((1.0, 2.0, 4.0, 8.0), (1.0, 2.0), ((1.0, 1.0), (2.0, 2.0), (4.0, 4.0), (6.0, 6.0)), (8.0, 1.0))
LIGHT = Matrix((1.0,), (1.0,), ((1.0,),), (1.0, 1.0))
PLAIN = """
import sys, time
from pathlib import Path
result = Path(sys.argv[1])
with result.with_suffix(".runs").open("a") as file:
    file.write("begin\\n")
while not (result.parent / "go").exists():
    time.sleep(0.05)
result.write_text("done")
"""


def shape(placement: Placement) -> tuple[tuple[int, float, float], ...]:
    """What a placement gives; nodes that are alike may be exchanged."""
    return tuple((share.gpus, share.cpus, share.memory_gb) for share in placement.shares)


def test_eight_jobs_have_what_the_simulator_says_and_survive_the_daemon(tmp_path: Path) -> None:
    kinds = {"hungry": HUNGRY, "light": LIGHT}
    chosen = ["hungry", "light"] * 4
    plain = tmp_path / "plain.py"
    plain.write_text(PLAIN)
    for kind, matrix in kinds.items():
        (tmp_path / f"{kind}.json").write_text(json.dumps(document(kind, matrix, {})))
    options = ["--round", "1", "--switch-cost", "1000", "--core", "0.2"]
    with Slurm(nodes=2, cpus=12, gpus=4, memory_mb=8000) as slurm, live(slurm, tmp_path / "state", *options) as one:
        jobs = []
        for number, kind in enumerate(chosen):
            result = str(tmp_path / f"result-{number}")
            trains = number == 0  # one is a real training, the others only wait
            words = [str(SCRIPT), result, "--samples", "40", "--gpu-ms", "5"] if trains else [str(plain), result]
            jobs.append(
                one.ask("submit", "--profile", str(tmp_path / f"{kind}.json"), "--iterations", "1000", "--", *words)
            )
        one.start()
        state = State(one.folder)
        begun = [tmp_path / f"result-{number}.runs" for number in range(1, 8)]
        until(lambda: all(path.exists() for path in begun))
        had = {known.lease.job_id: known.lease for known in state.leases(living=False)}
        quotas = {}
        for known in state.leases():
            marks = state.marks(known.lease)
            until(lambda marks=marks: marks.has("ready"))  # type: ignore[misc]
            group = Path((marks.read("ready") or {})["group"])
            if (group / "cpu.cfs_quota_us").exists():
                quotas[known.lease.job_id] = int((group / "cpu.cfs_quota_us").read_text()) / 10_000
        one.kill()
        (tmp_path / "go").touch()
        until(lambda: all((tmp_path / f"result-{number}").exists() for number in range(8)))
        assert state.jobs("queued"), "nobody was there to see them end"
        one.start()
        until(lambda: not state.jobs("queued"))
        assert [state.job(job).status for job in jobs] == ["done"] * 8
        assert [path.read_text() for path in begun] == ["begin\n"] * 7
        assert one.ask("why", jobs[0]) == "It is done, after 1 lease."
        state.close()
    servers = [Server(f"node{number}", 4, 12.0, 8.0) for number in range(2)]
    played = [Job(job, 1, 1000, kinds[kind]) for job, kind in zip(jobs, chosen, strict=True)]
    history = Simulation(played, servers, Rules("fifo", "tune", 1.0, 1000.0)).run()
    simulated = {segment.lease.job_id: segment.lease for segment in history.segments if segment.begin_s == 0}
    assert {job: shape(had[job].placement) for job in jobs} == {job: shape(simulated[job].placement) for job in jobs}
    for job, quota in quotas.items():
        assert quota == pytest.approx(had[job].placement.demand.cpus * 0.2, abs=1e-4)


def test_bad_jobs_are_named_and_others_go_on(tmp_path: Path) -> None:
    options = ["--round", "0.5", "--partition", "lab"]
    with Slurm(nodes=1, cpus=4, gpus=2, memory_mb=4000) as slurm, live(slurm, tmp_path / "state", *options) as one:
        good = tmp_path / "good.py"
        good.write_text("print('hello')")
        foreign = tmp_path / "foreign"
        other = ["sbatch", "-J", "other", "-o", str(foreign), "--mem=10", "--wrap", "sleep 1000"]
        assert "Submitted" in slurm.ask(*other)
        gone = tmp_path / "gone.py"
        gone.write_text("")
        large, absent, fine = (one.ask("submit", *more) for more in (["--gpus", "3", str(good)], [str(gone)], [str(good)]))
        gone.unlink()
        one.start()
        one.wait(HANG_S)
        assert "asks for 3 GPUs, and the largest server has 2" in one.ask("why", large)
        assert f"there is no file '{gone}'" in one.ask("why", absent)
        assert one.ask("why", fine) == "It is done, after 1 lease."
        assert slurm.ask("squeue", "-h", "-o", "%j %T") == "other RUNNING"


@pytest.mark.soak
def test_a_job_whose_share_changes_is_saved_and_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    profile, plain, gate = tmp_path / "hungry.json", tmp_path / "plain.py", tmp_path / "gate"
    profile.write_text(json.dumps(document("hungry", HUNGRY, {})))
    plain.write_text(PLAIN)
    training = [
        str(SCRIPT),
        str(tmp_path / "trained"),
        "--samples",
        "800",
        "--gate",
        str(gate),
        "--workers",
        "1",
        "--gpu-ms",
        "1",
    ]
    options = ["--round", "0.5", "--switch-cost", "0.01"]
    with Slurm(nodes=1, cpus=8, gpus=2, memory_mb=4000) as slurm, live(slurm, tmp_path / "state", *options) as one:
        job, other = (
            one.ask("submit", "--profile", str(profile), "--", *words)
            for words in (training, [str(plain), str(tmp_path / "other")])
        )
        one.start()
        state = State(one.folder)
        until(lambda: any(known.first_at for known in state.leases(job)))
        assert "it would be 1.50 times as fast with 1 GPU, 8 CPUs" in one.ask("why", job)
        (tmp_path / "go").touch()
        until(lambda: state.job(other).status == "done")
        until(lambda: [known.status for known in state.leases(job, living=False)] == ["ended", "given"])
        gate.touch()
        one.wait(HANG_S)
        first, second = state.leases(job, living=False)
        assert (first.code, second.code) == (75, 0)
        assert [known.lease.placement.demand.cpus for known in (first, second)] == [4.0, 8.0]
        assert "restored step" in (state.job_folder(job) / "output").read_text()
        state.close()
    alone = [
        sys.executable,
        "-m",
        "stoker",
        "run",
        "--seed",
        "1",
        "--",
        str(SCRIPT),
        str(tmp_path / "alone"),
        *training[2:],
    ]
    subprocess.run(alone, check=True)
    assert (tmp_path / "trained").read_text() == (tmp_path / "alone").read_text()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_or_run_twice_whatever_is_killed(tmp_path: Path, seed: int) -> None:
    with Slurm(nodes=2, cpus=12, gpus=4, memory_mb=40_000, patience_s=5) as slurm:
        found = storm(slurm, 20, seed, tmp_path)
    assert (found["jobs"], found["wrong"], found["twice"]) == (["done"] * 8, 0, 0), found
