"""Traces, profiles and arrivals: what is read, and what is said of what cannot be."""

import json
from itertools import islice

import pytest
from tests.schedule.clusters import CONTENT, servers

from stoker.errors import ConfigError
from stoker.schedule.arrivals import CLASSES, draw, models_in_turn
from stoker.schedule.matrix import Matrix
from stoker.schedule.profiles import read_profiles
from stoker.schedule.trace import TraceBounds, check_sizes, from_start, read_trace, write_trace

MODEL = {"cpus": 1, "mem": 20, "iter_time": 0.5, "tput": [[0.5, 1], [0.5, 2]]}
SPLIT = (20, 70, 10)


def profile_file(tmp_path, **changes):
    models = {name: MODEL for models in CLASSES.values() for name in models} | {"res50": MODEL | changes}
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps({"cpu_axis": [1, 3], "mem_axis_gb": [20, 62.5], "profiles": {"models": models}}))
    return path


@pytest.fixture
def profiles(tmp_path):
    return read_profiles(profile_file(tmp_path), servers(1))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,res50,0.0,100\n", "trace.csv line 1: gpus is missing"),
        ("0,res50,0.0,100,1\n1,res50,,100,1\n", "trace.csv line 2: arrival_s is missing"),
        ("job_id,model,arrival_s,gpus\n0,res50,0.0,1\n", "trace.csv: the header has no total_iterations"),
        ("0,res50,soon,100,1\n", "line 1: arrival_s is a number of seconds, at least 0, not 'soon'"),
        ("0,res50,nan,100,1\n", "line 1: arrival_s is a number of seconds"),
        ("0,res50,0,100,0\n", "line 1: gpus is a number of GPUs, at least 1, not '0'"),
        ("0,res50,0,1.5,1\n", "line 1: total_iterations is a number of iterations"),
        ("0,vgg,0,100,1\n", "line 1: model: there is no profile of 'vgg'"),
        ("0,res50,0,100,1\n0,res50,0,100,1\n", "line 2: job_id: 0 is there twice"),
        ("", "trace.csv has no jobs"),
        ("timestamp,duration,num_gpus,cluster\n2017-10-09 07:01:55,,1,x\n", "line 2: duration is missing"),
        ("model,arrival_s,total_iterations,gpus\nres50,0,10,1\n", "the header has no job_id"),
        ("timestamp,duration,cluster\n2017-10-09 07:01:55,5,x\n", "the header has no num_gpus"),
        ("timestamp,duration,num_gpus,cluster\nnever,5,1,x\n", "line 2: timestamp is a time such as"),
    ],
)
def test_a_wrong_trace_is_named_by_line_and_field(tmp_path, profiles, text, words):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as raised:
        read_trace(path, profiles, SPLIT)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tput": [[0.5, None], [0.5, 2]]}, "models: res50: tput: row 1, column 2: there is a hole"),
        ({"tput": [[0.5, 1]]}, "models: res50: the matrix has 1 rows for 2 numbers of CPUs"),
        ({"tput": [[0.5, 1], [0.5]]}, "models: res50: the matrix's row for 3 CPUs has 1 of 2 values"),
        ({"tput": [[0.5, 1], [0, 2]]}, "models: res50: the matrix has no rate for 3 CPUs and 20 GB"),
        ({"iter_time": 0}, "iter_time, cpus and mem must be above 0"),
        ({"iter_time": "fast"}, "models: res50: iter_time: 'fast' is not a number"),
    ],
)
def test_a_matrix_with_holes_is_named(tmp_path, changes, words):
    with pytest.raises(ConfigError, match=words):
        read_profiles(profile_file(tmp_path, **changes), servers(1))


def test_what_is_no_profile_is_named(tmp_path):
    path = tmp_path / "profiles.json"
    for text, words in (("{", "is not JSON"), ("{}", "profiles is missing"), ('{"profiles": {}}', "no group")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=words):
            read_profiles(path, servers(1))


def test_a_job_larger_than_the_cluster_is_named(tmp_path, profiles):
    path = tmp_path / "trace.csv"
    path.write_text("0,res50,0,100,1\nbig,res50,0,100,9\n")
    with pytest.raises(ConfigError, match="job big asks for 9 GPUs, and the cluster has 8"):
        check_sizes(read_trace(path, profiles, SPLIT), 8)


def test_what_is_drawn_is_written_and_read_again(tmp_path, profiles):
    jobs = draw(9, 500, SPLIT, profiles, seed=3, gpus="mixed")
    write_trace(tmp_path / "trace.csv", jobs)
    assert read_trace(tmp_path / "trace.csv", profiles, SPLIT) == jobs
    assert draw(9, 500, SPLIT, profiles, seed=3, gpus="mixed") == jobs
    hours = (jobs[-1].arrival_s - jobs[0].arrival_s) / 3600
    assert 500 / hours == pytest.approx(9, rel=0.15)
    minutes = [job.iterations * 0.5 / 60 for job in jobs]
    assert min(minutes) >= 10**1.5 * 0.99 and max(minutes) <= 10**4
    assert sum(one < 1000 for one in minutes) / 500 == pytest.approx(0.8, abs=0.06)
    assert sum(job.gpus == 1 for job in jobs) / 500 == pytest.approx(0.7, abs=0.06)


def test_a_trace_of_a_spreadsheet_begins_with_a_mark(tmp_path, profiles):
    path = tmp_path / "trace.csv"
    path.write_text("job_id,model,arrival_s,total_iterations,gpus\n7,res50,0,100,1\n", encoding="utf-8-sig")
    assert [job.id for job in read_trace(path, profiles, SPLIT)] == ["7"]


def test_classes_come_in_turn_by_their_shares(profiles):
    names = [one.name for one in islice(models_in_turn(SPLIT, profiles), 10)]
    of = {name: kind for kind, models in CLASSES.items() for name in models}
    kinds = [of[name] for name in names]
    assert [kinds.count(kind) for kind in CLASSES] == [2, 7, 1]
    assert kinds[0] == "language"
    assert [name for name in names if of[name] == "language"][:4] == ["gnmt", "transformer", "lstm", "gnmt"]
    assert {one.name for one in islice(models_in_turn((0, 0, 5), profiles), 4)} == {"m5", "deepspeech"}
    with pytest.raises(ConfigError, match="three parts"):
        next(models_in_turn((1, 2), profiles))


def test_a_digest_gives_its_jobs_models_by_the_split(tmp_path, profiles):
    path = tmp_path / "digest.csv"
    path.write_text(
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:10:00,600,4,0,x\n2017-10-09 07:00:00,60,1,0,y\n"
        "2017-10-09 07:05:00,60,64,0,y\n2017-10-09 07:06:00,6,1,0,y\n"
    )
    jobs = read_trace(path, profiles, SPLIT, TraceBounds((1, 16), (0.5, 100)))
    assert [(job.arrival_s, job.iterations, job.gpus, job.user) for job in jobs] == [(0, 120, 1, "y"), (600, 1200, 4, "x")]
    assert from_start(jobs[1:])[0].arrival_s == 0


def test_between_grid_points_the_largest_not_above_counts():
    matrix = Matrix((1, 3, 6), (20.83, 62.5), ((1, 2), (3, 4), (5, 6)), (6, 62.5))
    assert [matrix.rate(cpus, memory) for cpus, memory in ((0.5, 20), (1, 62.4), (5.99, 62.5), (6, 500))] == [1, 1, 4, 6]
    assert matrix.rate(3 - 1e-12, 62.5) == 4
    assert matrix.trimmed(5, 100) == (3, 62.5)
    assert CONTENT.trimmed(3, 62.5) == (1, 20)
    assert CONTENT.trimmed(0.5, 10) == (0.5, 10)


def test_the_group_of_profiles_is_that_of_the_servers(tmp_path):
    slow = {"models": {"res50": MODEL}, "models-4": {"res50": MODEL | {"iter_time": 0.25}}}
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps({"cpu_axis": [1, 3], "mem_axis_gb": [20, 62.5], "profiles": slow}))
    from stoker.schedule.job import Server

    assert read_profiles(path, [Server("s", 8, 24, 500)])["res50"].iteration_s == 0.5
    assert read_profiles(path, [Server("s", 8, 32, 500)])["res50"].iteration_s == 0.25
