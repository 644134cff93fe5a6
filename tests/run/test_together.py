"""Real jobs side by side: on a disk that is really slow, when one is killed, and what is refused before anything starts."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.slow_disk import slow_disk
from tests.tries import in_some_try, until

from stoker.cache.shelf import Shelf
from stoker.live import folder
from stoker.run.together.catalogue import Beside, Catalogue, Solo
from stoker.run.together.jobs import read_jobs

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "paired.py")
SIZE = 48 * 1024


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)


def make_data(where: Path, count: int, size: int = SIZE) -> Path:
    where.mkdir()
    for number in range(count):
        (where / f"{number:05}").write_bytes(os.urandom(size))
    os.sync()
    return where


def make_cold(data: Path) -> None:
    for path in data.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    for cache in Shelf().caches():
        if cache.name == str(data):
            Shelf().remove(cache)


def together(*words: object, join: Callable[[], None] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "stoker", "together", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=join)


def epochs_of(log: Path) -> list[list[int]]:
    return [[int(word) for word in line.split()] for line in log.read_text().splitlines()]


def know(*jobs: str, data: str = "d", **changes: float) -> None:
    """Let the catalogue have values for jobs, as if they had been measured."""
    catalogue, found = Catalogue(), read_jobs(jobs)
    values: dict[str, Any] = {"compute_s": 0.02, "wait_cold_s": 0.18, "wait_cached_s": 0.0, "startup_s": 1.0, **changes}
    for job in found:
        catalogue.keep_solo(
            job.key, Solo(**values, batch=8, samples=800, iterations=100, sample_bytes=SIZE, data=data, cold_iterations=50)
        )
        for other in found:
            if other.key != job.key:
                catalogue.keep_beside(job.key, other.key, Beside())


def jobs_on_a_slow_disk(tmp_path: Path, count: int, error: float | None) -> None:
    """Two jobs, measured while one of them works. With `error` the makespan must be as predicted, within a part of it."""
    rate = 10_000_000
    data = make_data(tmp_path / "data", count)
    jobs = [f"{SCRIPT} {data} --batch 16 --compute {ms} --log {tmp_path}/{ms}.log" for ms in (40, 20)]
    with slow_disk(data, rate) as join:
        if join is None:
            pytest.skip("a slow disk needs root and the blkio controller of cgroup v1")
        read = Path(f"/sys/fs/cgroup/blkio/stoker-test-{os.getpid()}/blkio.throttle.io_service_bytes")

        def check() -> None:
            make_cold(data)
            before = _read_bytes(read)
            told = together(*jobs, "--cache", "300MB", "--again", "--json", "out.json", join=join)
            assert told.returncode == 0, told.stderr
            assert " epochs, planned for" not in told.stdout
            delivered = _read_bytes(read) - before
            assert delivered == pytest.approx(count * SIZE, rel=0.02), "one dataset, with what was read to measure"
            document = json.loads((tmp_path / "out.json").read_text())
            assert "Makespan in seconds" in told.stdout and "Really:" in told.stdout
            assert document["real"]["codes"] == [0, 0]
            assert "beside the work of" in told.stderr
            assert document["simultaneous_s"] < document["sequential_s"]
            if error is not None:
                assert document["predicted"]["makespan_s"] <= 1.02 * document["simultaneous_s"]
                assert document["real"]["makespan_s"] == pytest.approx(document["predicted"]["makespan_s"], rel=error)

        in_some_try(check)
    first, second = (epochs_of(tmp_path / f"{ms}.log") for ms in (40, 20))
    assert first == second, "one order for both"
    assert sorted(first[0]) == list(range(count))


def test_two_jobs_on_a_slow_disk_read_everything_once(tmp_path: Path) -> None:
    jobs_on_a_slow_disk(tmp_path, 1280, error=None)


@pytest.mark.soak
def test_two_jobs_on_a_slow_disk_take_as_long_as_predicted(tmp_path: Path) -> None:
    jobs_on_a_slow_disk(tmp_path, 4000, error=0.05)


def _read_bytes(counts: Path) -> int:
    return sum(int(line.split()[-1]) for line in counts.read_text().splitlines() if " Read " in line)


def test_when_the_first_job_is_killed_the_second_goes_on_alone(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 800, 2000)
    jobs = [
        f"{SCRIPT} {data} --compute 50 --log {tmp_path}/first.log",
        f"{SCRIPT} {data} --compute 1 --log {tmp_path}/second.log",
    ]
    know(*jobs)
    words = [sys.executable, "-m", "stoker", "together", *jobs, "--cache", "10MB", "--json", "out.json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def victim() -> int:
        for seen in folder.loaders().values():
            if seen.facts.script == SCRIPT and seen.batches >= 20 and os.getpgid(seen.facts.pid) == seen.facts.pid:
                return seen.facts.pid
        return 0

    until(victim)
    os.kill(victim(), signal.SIGKILL)
    said, _ = process.communicate()
    document = json.loads((tmp_path / "out.json").read_text())
    assert process.returncode == 1
    assert sorted(document["real"]["codes"]) == [-signal.SIGKILL, 0]
    left = "first" if document["real"]["codes"][0] == 0 else "second"
    assert "ended with code -9" in said
    (epoch,) = epochs_of(tmp_path / f"{left}.log")
    assert sorted(epoch) == list(range(800)), "complete, without the one that was to read for it"
    others = [path.name for path in tmp_path.glob("*.log")]
    assert others == [f"{left}.log"]


def test_a_stop_of_the_whole_ends_the_jobs(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 800, 2000)
    jobs = [f"{SCRIPT} {data} --compute {ms} --log {tmp_path}/{ms}.log" for ms in (50, 51)]
    know(*jobs)
    words = [sys.executable, "-m", "stoker", "together", *jobs, "--cache", "10MB"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def living() -> list[int]:
        return [seen.facts.pid for seen in folder.loaders().values() if seen.facts.script == SCRIPT]

    until(living)
    process.terminate()
    process.communicate()
    assert process.returncode == 128 + signal.SIGINT, "as by Ctrl-C"
    assert not living()


def test_a_plan_starts_nothing_and_prints_the_delay_for_a_scheduler(tmp_path: Path) -> None:
    jobs = [f"{SCRIPT} {tmp_path} --lr {number}" for number in (1, 2)]
    know(*jobs)
    planned = together(*jobs, "--cache", "1GB", "--dry-run", "--json", "plan.json")
    assert planned.returncode == 0, planned.stderr
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["offset_s"] == pytest.approx(18.0, rel=0.02)
    assert "real" not in document
    assert {"version", "order", "offset_s", "predicted", "simultaneous_s", "sequential_s"} <= document.keys()
    delay = together(*jobs, "--cache", "1GB", "--print-delay")
    assert delay.stdout == "18\n"
    assert "the last to be started is B, 18" in delay.stderr
    assert document["delays_s"] == [0.0, pytest.approx(18.0, rel=0.02)]
    assert "\x1b" not in planned.stdout + planned.stderr + delay.stderr


def test_what_cannot_gain_is_told_before_anything_is_started(tmp_path: Path) -> None:
    jobs = [f"{SCRIPT} {tmp_path} --lr {number}" for number in (1, 2)]
    know(*jobs)
    small = together(*jobs, "--cache", "100KB")
    assert (small.returncode, small.stdout) == (1, "")
    assert "holds next to nothing" in small.stderr
    know(jobs[1], data="other")
    different = together(*jobs, "--cache", "1GB")
    assert different.returncode == 1 and "read different data" in different.stderr
    alone = together(jobs[0])
    assert alone.returncode == 1 and "two jobs are needed" in alone.stderr
    missing = together("no_such.py", "neither.py")
    assert missing.returncode == 1 and "no_such.py" in missing.stderr
    for told in (small, different, alone, missing):
        assert len(told.stderr.strip().splitlines()) <= 3 and "Traceback" not in told.stderr


def test_jobs_that_cannot_gain_are_found_out_when_they_have_begun(tmp_path: Path) -> None:
    one, other = make_data(tmp_path / "one", 400, 2000), make_data(tmp_path / "other", 400, 2000)
    told = together(f"{SCRIPT} {one}", f"{SCRIPT} {other}", "--cache", "10MB", "--epochs", "1,1")
    assert told.returncode == 1
    assert "read different data" in told.stderr and "Traceback" not in told.stderr
    told = together(f"{SCRIPT} {one}", f"{SCRIPT} {one} --compute 21", "--cache", "1KB", "--epochs", "1,1")
    assert told.returncode == 1
    assert "holds next to nothing" in told.stderr and "measured" not in told.stderr, "at their first batches"
    fails = tmp_path / "fails.py"
    fails.write_text("import sys\nsys.exit('there is no such model')\n")
    told = together(f"{SCRIPT} {one}", str(fails), "--cache", "10MB", "--epochs", "1,1")
    assert told.returncode == 1
    assert "ended with code 1 before its first batch" in told.stderr and "there is no such model" in told.stderr
    assert not [seen for seen in folder.loaders().values() if seen.facts.script == SCRIPT], "nothing is left running"


def test_a_job_joins_one_that_runs_already(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 800, 2000)
    alone = together(f"{SCRIPT} {data} --epochs 1", "--join", "auto")
    assert alone.returncode == 1 and "there is nothing to join" in alone.stderr
    nobody = together(f"{SCRIPT} {data} --epochs 1", "--join", os.getpid())
    assert nobody.returncode == 1 and f"with the pid {os.getpid()} runs here" in nobody.stderr
    both = together(f"{SCRIPT} {data} --epochs 1", "--join", "auto", "--offset", 3)
    assert both.returncode == 1 and "--offset is for jobs that are started together" in both.stderr
    first = [sys.executable, "-m", "stoker", "run", "--seed", "5", "--cache", "10MB", SCRIPT, str(data), "--compute", "30"]
    process = subprocess.Popen([*first, "--epochs", "3", "--log", "first.log"], stderr=subprocess.DEVNULL)
    try:
        until(lambda: any(seen.facts.pid == process.pid and seen.batches > 5 for seen in folder.loaders().values()))
        job = f"{SCRIPT} {data} --epochs 2 --compute 1 --log second.log"
        told = together(job, "--join", process.pid, "--json", "out.json")
    finally:
        process.terminate()
        process.wait()
    assert told.returncode == 0, told.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["order"] == ["A", "B"]
    assert document["real"]["passes"][1] == 2.0
    epochs = epochs_of(tmp_path / "second.log")
    assert [sorted(epoch) for epoch in epochs] == [list(range(800))] * 2
    (cache,) = [cache for cache in Shelf().caches() if cache.name == str(data)]
    assert cache.stats.items == 800


def test_jobs_that_make_their_loaders_anew_and_evaluate_are_followed_through_all_epochs(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 800, 2000)
    jobs = [f"{SCRIPT} {data} --anew --validate --epochs 3 --compute {ms} --log {tmp_path}/{ms}.log" for ms in (4, 3)]
    know(*jobs)
    told = together(*jobs, "--cache", "10MB", "--json", "out.json")
    assert told.returncode == 0, told.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["real"]["passes"] == [3.0, 3.0]
    for ms in (4, 3):
        assert [sorted(epoch) for epoch in epochs_of(tmp_path / f"{ms}.log")] == [list(range(800))] * 3


def test_of_several_jobs_that_run_the_best_is_joined(tmp_path: Path) -> None:
    data, other = make_data(tmp_path / "data", 800, 2000), make_data(tmp_path / "other", 800, 2000)
    lines = [f"{SCRIPT} {where} --compute {ms}" for where, ms in ((data, 200), (data, 201), (other, 202))]
    job = f"{SCRIPT} {data} --compute 1"
    know(lines[0], job)
    know(lines[1], wait_cold_s=0.03)
    know(lines[2], data="other", wait_cold_s=0.01)
    run = [sys.executable, "-m", "stoker", "run", "--seed", "5", "--cache", "10MB"]
    processes = [subprocess.Popen([*run, *line.split()], stderr=subprocess.DEVNULL) for line in lines]
    try:
        pids = {process.pid for process in processes}
        until(lambda: pids <= {seen.facts.pid for seen in folder.loaders().values() if seen.batches})
        told = together(job, "--join", "auto", "--epochs", 1, "--dry-run", "--json", "out.json")
        only = together(job, "--join", processes[2].pid, "--epochs", 1, "--dry-run")
    finally:
        for process in processes:
            process.terminate()
            process.wait()
    assert told.returncode == 0, told.stderr
    document = json.loads((tmp_path / "out.json").read_text())
    assert f"pid {processes[1].pid}" in document["jobs"][0]["name"], "the one that has soon read everything"
    assert only.returncode == 1 and "reads other data" in only.stderr
