"""`stoker schedule simulate` refuses what means nothing, in one line that names it, before it simulates anything."""

import json
import os
from pathlib import Path

import pytest

from stoker import cli
from stoker.schedule.arrivals import CLASSES
from stoker.schedule.simulate import Simulation

MODEL = {"cpus": 1, "mem": 20, "iter_time": 0.5, "tput": [[1]]}
MODELS = {name: MODEL for models in CLASSES.values() for name in models}
DRAWN = ["-", "--jobs-per-hour", "5"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    profiles = {"cpu_axis": [1], "mem_axis_gb": [20], "profiles": {"models": MODELS}}
    Path("models.json").write_text(json.dumps(profiles))
    Path("trace.csv").write_text("0,res50,0,100,1\n1,res50,0,100,1\n")
    Path("one.csv").write_text("0,res50,0,100,1\n")
    Path("endless.csv").write_text("0,res50,0,inf,1\n")
    Path("long.csv").write_text("0,res50,0,1e15,1\n")
    Path("late.csv").write_text("0,res50,1e300,1,1\n")
    Path("latin.csv").write_bytes(b"0,r\xe9s50,0,100,1\n")
    Path("early.csv").write_text("timestamp,duration,num_gpus,cluster\n0001-01-01 00:00:00,5,1,x\n")
    return tmp_path


def simulate(*words: str) -> int:
    given = " ".join(words)
    defaults = [] if "--servers" in given else ["--servers", "2"]
    defaults += [] if "--profiles" in given else ["--profiles", "models.json"]
    return cli.main(["schedule", "simulate", *words, *defaults, "--policy", "fifo", "--mechanism", "tune"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["endless.csv"], "line 1: total_iterations is a number of iterations, at least 1, not 'inf'"),
        (["long.csv"], "job 0 takes "),
        (["one.csv", "--round", "1e-9"], "rounds of 1e-09 s at its fastest, and 1e+07 are the most"),
        (["one.csv", "--switch-cost", "1e12"], "rounds of 300 s at its fastest"),
        (["one.csv", "--start-work", "1", "--core", "1e-300"], "rounds of 300 s at its fastest"),
        (["late.csv"], "job 0 arrives after 1e+300 s, and 1e+12 are the most"),
        (["early.csv"], "line 2: timestamp is a time such as"),
        (["latin.csv"], "the trace latin.csv is not text in UTF-8"),
        (["missing.csv"], "the trace missing.csv cannot be read: No such file"),
        (["."], "the trace . cannot be read: Is a directory"),
        (["trace.csv", "--profiles", "missing.json"], "the profiles missing.json cannot be read: No such file"),
        (["trace.csv", "--json", "nope/x"], "--json: nope/x cannot be written: nope is not a directory"),
        (["trace.csv", "--json", "."], "--json: . is a directory"),
        (["trace.csv", "--log", "nope/x"], "--log: nope/x cannot be written"),
        (["trace.csv", "--write-trace", "nope/x"], "--write-trace: nope/x cannot be written"),
        (["trace.csv", "--gpus", "0"], "--gpus must be at least 1, not 0"),
        (["trace.csv", "--gpus=-1"], "--gpus must be at least 1, not -1"),
        (["trace.csv", "--cpus", "nan"], "--cpus must be above 0 and finite, not nan"),
        (["trace.csv", "--memory", "much"], "--memory is a number of bytes"),
        (["trace.csv", "--servers", "4x0:24:500GB"], "--servers 4x0:24:500GB: there must be at least one server, with one"),
        (["trace.csv", "--servers", "4x8:24:500GB,0x8:24:500GB"], "--servers 0x8:24:500GB: there must be"),
        (["trace.csv", "--servers", "4x8:nan:500GB"], "--servers 4x8:nan:500GB: there must be"),
        (["trace.csv", "--servers", "4x8:inf:500GB"], "--servers 4x8:inf:500GB: there must be"),
        (["trace.csv", "--servers", "4x8:24:much"], "the memory of --servers is a number of bytes"),
        (["trace.csv", "--window=-5:10"], "--window is such as 4000:5000, two whole numbers"),
        (["trace.csv", "--window", "nan:3"], "--window is such as 4000:5000"),
        (["trace.csv", "--window", "0:nan"], "--window is such as 4000:5000"),
        (["trace.csv", "--window", "inf:"], "--window is such as 4000:5000"),
        (["trace.csv", "--window", "0.5:1.7"], "--window is such as 4000:5000"),
        (["trace.csv", "--keep-minutes", "nan:"], "--keep-minutes is such as 4000:5000, two numbers"),
        (["one.csv", "--window", "5:9"], "--window 5:9 has none of the jobs, whose arrivals are 0:1\n"),
        ([*DRAWN[:2], "nan"], "--jobs-per-hour must be above 0 and finite, not nan"),
        ([*DRAWN, "--seed=-1"], "--seed must be at least 0, not -1"),
        ([*DRAWN, "--job-gpus", "0"], "--job-gpus is a number, at least 1, or mixed, not '0'"),
        ([*DRAWN, "--split", "nan,1,1"], "--split has three numbers that are not below 0 and not all 0"),
        (["trace.csv", "--split", "0,0,0"], "--split has three numbers"),
        (["trace.csv", "--split", "1,inf,1"], "--split has three numbers"),
        (["trace.csv", "--round", "inf"], "--round must be above 0 and finite, not inf"),
        (["trace.csv", "--switch-cost", "nan"], "--switch-cost must be at least 0 and finite, not nan"),
        (["trace.csv", "--jobs=-1"], "--jobs must be at least 1, not -1"),
    ],
)
def test_one_line_names_it(words: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(Simulation, "run", lambda *_: pytest.fail("it was simulated"))
    assert simulate(*words) == 1
    out, told = capsys.readouterr()
    assert line in told
    assert told.count("\n") == 1
    assert out == ""


def test_one_job_is_one_job(capsys) -> None:
    assert simulate("one.csv") == 0
    out = capsys.readouterr().out
    assert "fifo with tune: 1 job in" in out
    assert "\n  1 round, 0 leases changed" in out


def test_a_result_goes_through_a_pipe_and_a_link(folder: Path) -> None:
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert simulate("trace.csv", "--json", "pipe") == 0
        assert json.loads(os.read(reader, 1 << 16))["jobs"] == 2
    finally:
        os.close(reader)
    assert Path("pipe").is_fifo()
    (folder / "elsewhere").mkdir()
    Path("link.json").symlink_to("elsewhere/result.json")
    assert simulate("trace.csv", "--json", "link.json") == 0
    assert Path("link.json").is_symlink()
    assert json.loads(Path("elsewhere/result.json").read_text())["jobs"] == 2
