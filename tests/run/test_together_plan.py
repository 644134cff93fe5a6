"""Jobs as they are named, what is kept of them, and the starts that follow; without running any."""

import io
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.cli.together import LINE_AGAIN, _tell, report
from stoker.errors import CommandError, ConfigError
from stoker.live.record import Facts, Seen
from stoker.report.together import duration, plot, value_at
from stoker.run.together.catalogue import Beside, Catalogue, Solo
from stoker.run.together.conducting import Real, RealJob, _has_come, _slower, _Watched
from stoker.run.together.jobs import TogetherJob, epochs_of, read_jobs
from stoker.run.together.planning import ProgressMark, make_plan
from stoker.run.together.running import Running

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "paired.py")
SOLO = Solo(0.1, 0.9, 0.0, 5.0, batch=8, samples=800, iterations=100, sample_bytes=1e5, data="d", cold_iterations=50)

FACTS = Facts(1, 1, 1, None, 0, 0.0, "processes", "s", "d", cache="c")
SEEN = Seen(FACTS, 1, 8, 0.0, 0, 0, 0, 8, 0, 800, 0, 1, 0, 1, 1.0, False, 1.0, 0, 100)


def job(name: str, epochs: int = 1) -> TogetherJob:
    return TogetherJob(name, (SCRIPT, name), epochs)


@pytest.mark.parametrize("words", ["--epochs 3", "--epochs=3", "--num-epochs 3", "--num_train_epochs 3", "--max_epochs=3"])
def test_a_command_line_says_how_many_epochs_there_are(words: str) -> None:
    (found,) = read_jobs([f"{SCRIPT} data {words} --lr 1"])
    assert (found.epochs, found.says_epochs) == (3, True)
    (other,) = read_jobs([f"{SCRIPT} data {words.replace('3', '7')} --lr 1"])
    assert other.key == found.key, "what an iteration takes does not depend on it"


def test_a_script_that_was_changed_has_to_be_measured_anew(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("one")
    (job,) = read_jobs([f"{script} data"])
    measured_as = job.key
    assert job.key == measured_as
    script.write_text("two")
    assert job.key != measured_as


def test_jobs_in_files(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f'command = "{SCRIPT} data --lr 1"\nepochs = 4\nname = "large"\n')
    first, second = read_jobs([str(path), f"{SCRIPT} data"])
    assert (first.name, first.epochs, first.words) == ("large", 4, (SCRIPT, "data", "--lr", "1"))
    assert (second.name, second.epochs, second.says_epochs) == ("B", 1, False)
    assert [one.epochs for one in read_jobs([str(path), f"{SCRIPT} data"], "2,5")] == [2, 5]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("command = 3", "needs a command"),
        ('command = "x"\nepoch = 3', "unknown key 'epoch'"),
        ('command = "x"\nepochs = 0', "above 0"),
        ("command =", "is not TOML"),
        ('command = "train.py \'x"', "is not a command line"),
        ('command = ""', "names no script"),
        ("command = []", "names no script"),
        (f'command = "{SCRIPT}"\nname = ""', "text in one line"),
        (f'command = "{SCRIPT}"\nname = "a\\nb"', "text in one line"),
    ],
)
def test_files_that_make_no_sense(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_jobs([str(path)])


def test_commands_that_cannot_be_started_are_told_before_anything_is() -> None:
    with pytest.raises(CommandError, match="no_such"):
        read_jobs([SCRIPT, "no_such_script.py"])
    with pytest.raises(ConfigError, match="after `stoker run`"):
        read_jobs([f"python {SCRIPT}"])
    with pytest.raises(ConfigError, match="standard input"):
        read_jobs([SCRIPT, "- --lr 1"])
    with pytest.raises(ConfigError, match="--epochs"):
        read_jobs([SCRIPT, SCRIPT], "3")
    assert epochs_of(["--epochs", "many"]) is None


def test_the_catalogue_keeps_what_was_measured_for_its_owner_alone(tmp_path: Path) -> None:
    catalogue = Catalogue(tmp_path / "new" / "together.json")
    assert catalogue.solo("a") is None and catalogue.beside("a", "b") is None
    catalogue.keep_solo("a", SOLO)
    catalogue.keep_beside("a", "b", Beside(0.5, None, 0.2))
    again = Catalogue(catalogue.path)
    assert again.solo("a") == SOLO
    assert again.beside("a", "b") == Beside(0.5, None, 0.2)
    assert again.beside("b", "a") is None
    assert catalogue.path.stat().st_mode & 0o077 == catalogue.path.parent.stat().st_mode & 0o077 == 0
    for damage in (
        "{",
        "[]",
        json.dumps({"version": 9}),
        json.dumps({"version": 2, "solo": {"a": {"batch": 1}}, "pairs": {}}),
    ):
        catalogue.path.write_text(damage)
        assert catalogue.solo("a") is None
    catalogue.keep_solo("a", SOLO)
    assert catalogue.solo("a") == SOLO


def test_the_second_job_is_started_early_by_as_long_as_it_takes_to_its_first_batch() -> None:
    plan = make_plan([job("A"), job("B")], [SOLO, SOLO], [[], []], 10**9, objective="makespan", ready=0.0)
    assert plan.outcome.makespan_s == pytest.approx(100.0)
    assert plan.offset_s == pytest.approx(90.0)
    first, second = plan.starts
    assert (first.after, first.held, first.delay_s) == (None, None, 0.0), "it waits for nobody"
    assert second.after is not None and second.held is not None
    assert second.after.job == second.held.job == first.number
    assert second.after.passes == pytest.approx(0.825), "5 s of 100, and a half to spare, before the other is to be at 90 %"
    assert second.held.passes == pytest.approx(0.9)
    assert second.delay_s == pytest.approx(90.0), "both take 5 s to start"


def test_later_jobs_are_started_earlier_when_start_ups_take_longer_than_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan([job("A"), job("B")], [SOLO, SOLO], [[], []], 10**9, objective="makespan", ready=0.0)
    monkeypatch.setattr(time, "monotonic", lambda: 107.0)
    run = Running("A", 1)
    run.began_at = 100.0
    watched = {0: _Watched(run, 100, 1)}
    assert _slower(plan, watched, {}) == pytest.approx(7 / 5), "it has no batch after 7 s, where 5 s were expected"
    run.ended_at = 106.0
    assert _slower(plan, watched, {}) == 1.0, "it has ended without one"
    run.first_at, run.ended_at = 110.0, None
    assert _slower(plan, watched, {}) == pytest.approx(2.0)
    assert _slower(plan, watched, {0: run}) == 1.0, "one that was running before says nothing of today"
    _, second = plan.starts_if(2.0)
    assert second.after is not None and second.held is not None
    assert second.after.passes == pytest.approx(0.75), "10 s of 100, and a half to spare, before the other is to be at 90 %"
    assert second.held.passes == pytest.approx(0.9), "its moment stays"
    assert plan.starts_if(1.0) == plan.starts
    run.first_at, run.ended_at = None, 101.0
    assert _slower(plan, watched, {}) == 1.0, "it has failed before its first batch"


def test_nobody_waits_for_ever_for_a_job_that_gets_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    run, moment = Running("A", 1), ProgressMark(0, 0.9)
    monkeypatch.setattr(run, "look", lambda: run.seen)
    watched = _Watched(run, 100, 1)

    def has_come_after(seconds: float, batches: int) -> bool:
        now[0] += seconds
        run.seen = replace(SEEN, batches=batches) if batches else None
        run.first_at = 1.0 if batches else None
        watched.look()
        return _has_come(moment, {0: watched})

    assert not has_come_after(500.0, 0), "jobs may start slowly"
    assert has_come_after(200.0, 0), "but not for ever"
    assert [has_come_after(50.0, batches) for batches in (1, 2, 3)] == [False] * 3, "a slow one is waited for"
    assert has_come_after(70.0, 3), "it hangs, or evaluates: what it has read is there, and the next can begin"
    assert not has_come_after(1.0, 4)
    run.is_paused = True
    assert not has_come_after(1000.0, 4), "it is held itself"


def test_beside_a_job_that_runs_the_delay_counts_from_now() -> None:
    jobs = [job("A"), job("B")], [SOLO, SOLO], [[], []], 10**9
    plan = make_plan(*jobs, objective="makespan", ready=0.0, runs=0, elapsed_s=20.0)
    assert plan.starts[1].delay_s == pytest.approx(65.0), "first batch at 90 s, 5 s to start, 20 s are over"
    late = make_plan(*jobs, objective="makespan", ready=0.0, runs=1, elapsed_s=95.0)
    assert late.outcome.starts_s == (pytest.approx(100.0), 0.0), "no start can be earlier than now"
    assert late.starts[1].delay_s == pytest.approx(0.0)


def test_a_job_that_takes_long_to_start_is_started_first() -> None:
    slow = Solo(
        0.1, 0.0, 0.0, startup_s=30.0, batch=8, samples=800, iterations=100, sample_bytes=1e5, data="d", cold_iterations=50
    )
    plan = make_plan([job("A"), job("B")], [SOLO, slow], [[], []], 10**9, objective="makespan", ready=1.0)
    assert plan.offset_s == pytest.approx(0.0, abs=1e-4)
    assert [start.number for start in plan.starts] == [1, 0]
    assert plan.starts[1].delay_s == pytest.approx(25.0)
    assert plan.delays_s == plan.document()["delays_s"] == [pytest.approx(25.0), 0.0], "by job"
    assert plan.starts[1].spare_s == pytest.approx(2.5)
    assert [start.held for start in plan.starts] == [ProgressMark(0, 0.0), ProgressMark(1, 0.0)], (
        "both go on from their first batch"
    )


def test_a_cache_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="next to nothing"):
        make_plan([job("A"), job("B")], [SOLO, SOLO], [[], []], 1000, objective="makespan", ready=0.0)


def test_a_job_that_has_other_epochs_than_was_said_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    plan = make_plan([job("A", 2), job("B", 2)], [SOLO, SOLO], [[], []], 10**9, objective="makespan", ready=0.0)
    jobs = (RealJob("A", 0, 0.0, 210.0, 2.0, 0, ()), RealJob("B", 0, 90.0, 130.0, 4.0, 0, ()))
    report(plan, Real(jobs))
    told = capsys.readouterr().out
    assert "B: passed its data 4 times, planned for were 2" in told
    assert "A: passed" not in told
    assert "(+90.9 % against the prediction)" in told


def test_three_jobs_have_a_list_of_starts() -> None:
    plan = make_plan([job("A"), job("B"), job("C")], [SOLO] * 3, [[], [], []], 10**9, objective="balanced", ready=0.0)
    assert len(plan.starts) == 3
    assert plan.document()["order"][0] in "ABC"
    assert plan.outcome.makespan_s <= 1.01 * plan.simultaneous_s < plan.sequential_s


def test_the_plot_shows_the_curve_and_the_best_offset() -> None:
    corners = [(0.0, 20.0), (5.0, 10.0), (10.0, 15.0)]
    assert [value_at(corners, at) for at in (0, 2.5, 5, 7.5, 12)] == [20, 15, 10, 12.5, 17]
    lines = plot(corners, 5.0, width=60).splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[0].strip().startswith("20.0 |*")
    assert lines[9].strip().startswith("10.0 |") and "O" in lines[9]
    assert duration(75.04) == "75.0 s" and duration(3720) == "1 h 2 min"


def test_what_goes_on_is_told_in_one_line_however_long_names_are(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(said, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    _tell("train_a_model.py (pid 123456) 42 %, B waits until train_a_model.py (pid 123456) is at 88 %")
    line = said.getvalue().removeprefix(LINE_AGAIN)
    assert len(line) < 60 and "\n" not in line, "a longer one would wrap, and be told again and again"
    assert line.startswith("stoker: train_a_model.py (pid 123456) 42 %")
