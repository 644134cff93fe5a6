"""`stoker schedule simulate`: published figures, its documents, and that its log holds what the rules promise."""

import heapq
import json
from collections import defaultdict
from pathlib import Path

import pytest
from tests.schedule.clusters import CONTENT, DATA, HUNGRY, job, needs_data, servers

from stoker import cli
from stoker.report.schedule_page import schedule_page
from stoker.schedule.arrivals import draw
from stoker.schedule.profiles import read_profiles
from stoker.schedule.rules import Rules
from stoker.schedule.simulate import Simulation
from stoker.schedule.summary import completion_times_h, summarise
from stoker.schedule.trace import read_trace

STATIC = DATA / "synergy_static_100job_60_30_10.csv"
PROFILES = DATA / "synergy_profiles.json"


def simulate(*words: object) -> int:
    return cli.main(["schedule", "simulate", *map(str, words)])


def static(mechanism: str, **rules: object) -> float:
    jobs = read_trace(STATIC, read_profiles(PROFILES, servers(4)), (20, 70, 10))
    history = Simulation(jobs, servers(4), Rules("fifo", mechanism, **rules)).run()  # type: ignore[arg-type]
    return float(summarise(history)["makespan_h"])


@needs_data
def test_the_static_trace_takes_as_long_as_published():
    makespan = {mechanism: static(mechanism) for mechanism in ("proportional", "tune", "opt")}
    assert makespan["proportional"] == pytest.approx(15.67, rel=0.05)
    assert makespan["tune"] <= 11.9
    assert makespan["opt"] <= makespan["tune"]
    assert static("tune", as_published=True) == pytest.approx(11.33, rel=0.05)


@needs_data
def test_proportional_shares_make_the_cluster_a_queue_of_its_gpus():
    jobs = draw(2.5, 400, (20, 70, 10), read_profiles(PROFILES, servers(4)), seed=1, gpus=1)
    free, exact_h = [0.0] * 32, []
    for one in jobs:
        end_s = max(one.arrival_s, heapq.heappop(free)) + one.iterations / one.matrix.rate(3, 62.5)
        heapq.heappush(free, end_s)
        exact_h.append((end_s - one.arrival_s) / 3600)
    history = Simulation(jobs, servers(4), Rules("fifo", "proportional")).run()
    assert summarise(history)["jct_h"]["mean"] == pytest.approx(sum(exact_h) / len(exact_h), rel=0.02)


@needs_data
@pytest.mark.parametrize("mechanism", ["tune", "opt"])
def test_the_log_holds_what_the_rules_promise(tmp_path: Path, mechanism: str):
    trace, log, out = (tmp_path / name for name in ("trace.csv", "log.jsonl", "out.json"))
    code = simulate(
        "-", "--jobs-per-hour", 4, "--jobs", 150, "--job-gpus", "mixed", "--seed", 7, "--split", "60,30,10",
        "--profiles", PROFILES, "--policy", "srtf", "--mechanism", mechanism, "--servers", 3,
        "--write-trace", trace, "--log", log, "--json", out,
    )  # fmt: skip
    assert code == 0
    document = json.loads(PROFILES.read_text())
    models, cpu_axis, memory_axis = document["profiles"]["models"], document["cpu_axis"], document["mem_axis_gb"]
    jobs = {row[0]: row for row in (line.split(",") for line in trace.read_text().splitlines()[1:])}

    def tput(model: str, cpus: float, memory_gb: float) -> float:
        row = max([number for number, value in enumerate(cpu_axis) if value <= cpus + 1e-9], default=0)
        column = max([number for number, value in enumerate(memory_axis) if value <= memory_gb + 1e-9], default=0)
        return float(models[model]["tput"][row][column])

    rounds: dict[float, dict[str, list[dict[str, float]]]] = defaultdict(lambda: defaultdict(list))
    for line in log.read_text().splitlines():
        row = json.loads(line)
        rounds[row["time_s"]][row["job"]].append(row)
    done: dict[str, float] = defaultdict(float)
    for now, leases in rounds.items():
        given: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        for name, shares in leases.items():
            _, model, arrival_s, _, gpus = jobs[name]
            assert float(arrival_s) <= now
            assert sum(share["gpus"] for share in shares) == int(gpus)
            parts = [(one["cpus"] / one["gpus"], one["memory_gb"] / one["gpus"]) for one in shares]
            assert len({(round(cpus, 6), round(memory_gb, 6)) for cpus, memory_gb in parts}) == 1
            assert len(shares) == 1 or int(gpus) > 1
            per_gpu = shares[0]["cpus"] / shares[0]["gpus"], shares[0]["memory_gb"] / shares[0]["gpus"]
            rate = tput(model, *per_gpu) / models[model]["iter_time"]
            assert shares[0]["rate"] == pytest.approx(rate)
            assert rate >= tput(model, 3, 62.5) / models[model]["iter_time"] * (1 - 1e-9)
            done[name] += 300 * rate
            for share in shares:
                for number, what in enumerate(("gpus", "cpus", "memory_gb")):
                    given[share["server"]][number] += share[what]  # type: ignore[index]
        for used in given.values():
            assert used[0] <= 8 and used[1] <= 24 + 1e-5 and used[2] <= 500 + 1e-5
    for name, (_, model, _, iterations, _) in jobs.items():
        assert int(iterations) <= done[name] * (1 + 1e-9)
        assert done[name] < int(iterations) + 300 * 3 / models[model]["iter_time"]  # the last round is used in part
    result = json.loads(out.read_text())
    assert result["rounds"] == len(rounds)
    assert set(result) == {
        "version", "makespan_h", "jct_h", "jobs", "window", "rounds", "decision_s", "utilisation", "fragmentation",
        "switches",
    }  # fmt: skip
    assert set(result["jct_h"]) == {"mean", "p50", "p95", "p99", "p999"}
    assert set(result["utilisation"]) == {"gpu", "cpu", "memory"}


def test_a_job_frees_its_place_at_the_next_round_and_a_start_costs_what_was_said():
    jobs = [job("a", gpus=8, iterations=310), job("b", gpus=8, iterations=100)]
    history = Simulation(jobs, servers(1), Rules("fifo", "tune", switch_cost_s=20)).run()
    assert history.ends_s == {"a": 330, "b": 600 + 20 + 100}
    assert history.switches == 0


def test_jobs_end_that_take_turns_even_if_a_start_takes_longer_than_a_round():
    jobs = [job(name, gpus=8, iterations=1000) for name in "ab"]
    history = Simulation(jobs, servers(1), Rules("las", "tune", switch_cost_s=400)).run()
    assert set(history.ends_s) == {"a", "b"}


def test_idle_time_is_passed_over():
    jobs = [job("a", iterations=10), job("b", iterations=10, arrival_s=1e6)]
    history = Simulation(jobs, servers(1), Rules("fifo", "tune")).run()
    assert history.ends_s["b"] == 1_000_200 + 10
    assert len(history.used) == 2
    assert completion_times_h(history, (1, 2)) == [pytest.approx(210 / 3600)]


def test_a_job_that_changes_places_loses_no_iteration():
    matrices = CONTENT, HUNGRY
    jobs = [job(f"j{number}", matrices[number % 2], gpus=1 + number % 4, iterations=2000) for number in range(30)]
    history = Simulation(jobs, servers(1), Rules("las", "tune", switch_cost_s=7)).run()
    done: dict[str, float] = defaultdict(float)
    for segment in history.segments:
        done[segment.lease.job_id] += segment.lease.rate * max(0.0, segment.end_s - segment.begin_s - 7)
    assert history.switches > 30
    assert all(value == pytest.approx(2000) for value in done.values())


@needs_data
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["missing.csv", "--servers", 1], "No such file"),
        (["big.csv", "--servers", 1], "job 0 asks for 9 GPUs, and the cluster has 8"),
        (["big.csv", "--servers", "0"], "--servers must be at least 1"),
        (["big.csv", "--servers", "2x8"], "--servers is a number, or such as 4x8:24:500GB"),
        (["big.csv", "--servers", 2, "--window", "5:9"], "--window 5:9 has none of the jobs, whose arrivals are 0:1"),
        (["big.csv", "--servers", 2, "--window", "5"], "--window is such as 4000:5000"),
        (["big.csv", "--servers", 2, "--split", "a"], "--split has three numbers"),
        (["big.csv", "--servers", 2, "--round", 0], "--round must be above 0"),
        (["-", "--servers", 2], "give a TRACE, or - with --jobs-per-hour"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(tmp_path: Path, monkeypatch, capsys, words, line):
    monkeypatch.chdir(tmp_path)
    Path("big.csv").write_text("0,res50,0,100,9\n")
    assert simulate(*words, "--profiles", PROFILES, "--policy", "fifo", "--mechanism", "tune") == 1
    told = capsys.readouterr().err
    assert line in told
    assert told.count("\n") == 1


@needs_data
def test_servers_of_different_kinds_and_a_window(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = simulate(
        "-", "--jobs-per-hour", 2, "--jobs", 40, "--profiles", PROFILES, "--policy", "drf", "--mechanism", "tune",
        "--servers", "2x8:24:500GB,1x4:32:256GB", "--window", "10:30", "--html", "page.html",
    )  # fmt: skip
    assert code == 0
    out, err = capsys.readouterr()
    assert "drf with tune: 40 jobs in" in out
    assert "jobs 10 to 30" in out
    assert err == ""
    assert "<h1" in Path("page.html").read_text("ascii")


def test_names_in_a_page_are_text():
    evil = "<script>alert(1)</script>"
    jobs = [job("a", iterations=10, model=evil), job(evil, iterations=10, model="m")]
    history = Simulation(jobs, servers(1), Rules("fifo", "tune")).run()
    page = schedule_page(evil, history, summarise(history), (0, 2))
    assert evil not in page
    assert "\\u003cscript" in page
