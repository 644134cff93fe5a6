"""`stoker analyze`: what it says of scripts whose rates are planted, and of scripts that cannot be analysed."""

import argparse
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.slow_disk import slow_disk
from tests.tries import HANG_S, in_some_try, until

from stoker.cli import analyze as cli
from stoker.decide.model import Share, predict
from stoker.decide.whatif import no_advice
from stoker.errors import CommandError
from stoker.plan import Plan
from stoker.profile import Profile

SCRIPT = Path(__file__).parents[1] / "scripts" / "planted.py"
ANALYZE = [sys.executable, "-m", "stoker", "analyze"]
STRICT = SCRIPT.with_name("strict.py")
STYLES = SCRIPT.with_name("styles.py")
DDP = Path(__file__).parents[2] / "examples" / "unmodified" / "ddp.py"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for number in range(400):
        (folder / f"{number:03d}.bin").write_bytes(os.urandom(20_000))
    os.sync()  # what is not on disk cannot be forgotten
    return folder


def analyze(words: list[Any], folder: Path, phase_s: float = 0.4, **options: Any) -> "subprocess.CompletedProcess[str]":
    words = [*ANALYZE, "--json", folder / "profile.json", "--time", phase_s, *words]
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=200, **options)


def options_of(*words: str) -> argparse.Namespace:
    *own, script = words
    parser = argparse.ArgumentParser()
    cli.add_options(parser)
    options = parser.parse_args(own)
    options.script = [script]
    return options


def profile_of(words: list[Any], data: Path, folder: Path, *options: Any, phase_s: float = 0.4) -> Profile:
    done = analyze([*options, SCRIPT, data, *words], folder, phase_s)
    assert done.returncode == 0, done.stderr
    return Profile.load(folder / "profile.json")


CASES = {
    "the loop": (["--compute", 0.03, "--prep", 0.001], "gpu"),
    "preparing": (["--compute", 0.004, "--prep", 0.004], "prep"),
    "reading, many workers": (["--compute", 0.004, "--prep", 0.001, "--latency", 0.02, "--workers", 4], "fetch"),
    "everything in the loop": (["--compute", 0.002, "--prep", 0.003, "--workers", 0, "--batch", 8], "prep"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_limit_and_the_rates(name: str, data: Path, tmp_path: Path) -> None:
    words, limit = CASES[name]
    planted = dict(zip(words[::2], words[1::2], strict=True))
    in_some_try(lambda: check_profile(profile_of(words, data, tmp_path, phase_s=1), planted, limit))
    plan = Plan.load(tmp_path / "plan.toml")
    assert plan.num_workers is not None


def check_profile(profile: Profile, planted: dict[str, Any], limit: str) -> None:
    assert profile.limit == limit
    batch, workers = planted.get("--batch", 16), planted.get("--workers", 2)
    rates = profile.rates
    # Sleeps are never shorter than asked for, and on a busy machine much longer.
    assert 0.3 < rates.gpu / (batch / planted["--compute"]) < 1.1
    assert 0.3 < rates.prep / (max(1, workers) / planted["--prep"]) < 1.1
    if "--latency" in planted:
        assert 0.3 < rates.storage / (workers / planted["--latency"]) < 1.1
        assert profile.stalls.fetch > 0.5
    if limit == "gpu":
        assert profile.stalls.prep + profile.stalls.fetch < 0.1
        assert not profile.advice
    else:
        # Where the host is too busy for rates to be sure, that is said in the place of advice.
        assert profile.advice or any("quiet host" in words for words in (*profile.notes, no_advice(profile)))
    assert profile.dataset.bytes == 400 * 20_000


def test_a_disk_with_a_quota(data: Path, tmp_path: Path) -> None:
    def check() -> None:
        done = analyze([SCRIPT, data, "--compute", 0.02, "--prep", 0.012], tmp_path, 1, preexec_fn=join)
        assert done.returncode == 0, done.stderr
        rates = Profile.load(tmp_path / "profile.json").rates
        quota = 2_000_000 / 20_480  # files fill whole blocks
        assert list(rates.storage_by_readers.values()) == [pytest.approx(quota, rel=0.15)] * 3
        assert rates.storage_rested > 2 * quota  # a worker who prepares for 12 ms does not wait for it
        one, two = (predict(rates, Share(workers=workers)).rate for workers in (1, 2))
        assert one == pytest.approx(rates.prep_by_workers[1], rel=0.15)
        assert two == pytest.approx(quota, rel=0.15)

    with slow_disk(data, 2_000_000) as join:
        if join is None:
            pytest.skip("a disk cannot be limited here: that needs root, and the blkio controller of cgroup v1")
        in_some_try(check)


def test_the_report_is_for_people_and_a_stall_above_what_is_allowed_for_programs(data: Path, tmp_path: Path) -> None:
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}

    def check() -> None:
        words = ["--fail-above", 20, SCRIPT, data, "--compute", 0.002, "--prep", 0.004, "--latency", 0.002]
        done = analyze(words, tmp_path, env=plain)
        assert done.returncode == 3, done.stderr
        warning, word = done.stderr.splitlines()  # quiet in a pipe
        assert "--scratch" in warning
        assert "more than 20 %" in word
        assert "Preparing is the limit" in done.stdout
        assert re.search(r"prep stall +#+\S* +\d+%", done.stdout)
        # Where the host is too busy for rates to be sure, that is said in the place of a plan.
        is_planned = f"stoker run --plan {tmp_path / 'plan.toml'}" in done.stdout
        assert is_planned or "quiet host" in " ".join(done.stdout.split())
        assert all(len(line) <= 80 for line in done.stdout.splitlines() if "stoker" not in line)  # commands are not broken

    in_some_try(check)


def test_a_part_that_is_cached(data: Path, tmp_path: Path) -> None:
    profile = profile_of(["--compute", 0.002, "--prep", 0.002], data, tmp_path, "--cache", 0.5)
    assert profile.cached == 0.5


def test_a_stream(data: Path, tmp_path: Path) -> None:
    def check() -> None:
        profile = profile_of(["--kind", "stream", "--compute", 0.002], data, tmp_path, "--loader", 1)
        assert "stream" in profile.notes[0]
        assert profile.rates.storage == 0
        assert profile.limit == "prep"

    in_some_try(check)


WORDS = {
    "none": "the script iterated no DataLoader",
    "empty": "the script ended before the analysis did",
}


@pytest.mark.parametrize("kind", WORDS)
def test_scripts_that_cannot_be_analysed(kind: str, data: Path, tmp_path: Path) -> None:
    done = analyze([SCRIPT, data, "--kind", kind], tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"stoker: nothing was measured: {WORDS[kind]}")
    assert not (tmp_path / "profile.json").exists()


def test_a_loader_that_does_not_shuffle_and_ends(data: Path, tmp_path: Path) -> None:
    done = analyze([SCRIPT, data, "--kind", "in order", "--prep", 0.002], tmp_path)
    assert done.returncode == 0, done.stderr
    assert Profile.load(tmp_path / "profile.json").dataset.samples == 400


def test_a_loader_that_is_not_there(data: Path, tmp_path: Path) -> None:
    done = analyze(["--loader", 3, SCRIPT, data, "--kind", "short"], tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("asks for more loaders than the 1 that the script iterated")


def test_a_script_that_ends_before_the_analysis_is_started_again(data: Path, tmp_path: Path) -> None:
    done = analyze([SCRIPT, data, "--kind", "short", "--compute", 0.01], tmp_path)
    assert done.returncode == 0, done.stderr
    again = [line for line in done.stderr.splitlines() if "started again" in line]
    assert 1 <= len(again) <= 3
    assert 0.3 < Profile.load(tmp_path / "profile.json").rates.gpu / (16 / 0.01) < 1.1


def test_a_script_that_fails_by_itself(data: Path, tmp_path: Path) -> None:
    plain = subprocess.run([sys.executable, SCRIPT, data, "--kind", "failing"], capture_output=True, text=True)
    done = analyze([SCRIPT, data, "--kind", "failing", "--epochs", 1], tmp_path)
    assert done.returncode == plain.returncode == 1
    _, *traceback, word = done.stderr.splitlines()
    assert traceback == plain.stderr.splitlines()
    assert word == "stoker: nothing was measured: the script ended with code 1"


@pytest.mark.parametrize("kind", ["batch sampler", "endless", "made anew", "in the middle", "no update"])
def test_nothing_that_a_training_loop_can_see_changes(kind: str, tmp_path: Path) -> None:
    """The script checks the number and contents of its batches; an iteration takes 20 ms, whatever comes in between."""

    def check() -> None:
        done = analyze([STRICT, "--kind", kind], tmp_path)
        assert done.returncode == 0, done.stderr
        profile = Profile.load(tmp_path / "profile.json")
        assert profile.dataset.samples == 90  # not the validation's, which is larger, shuffles, and comes first
        assert profile.batch_size == 8
        assert 0.3 < profile.rates.gpu / (8 / 0.02) < 1.1

    in_some_try(check)


@pytest.mark.parametrize("kind", ["mean", "split", "accuracy", "pair", "whole batches", "holes"])
def test_styles_that_are_easily_misunderstood(kind: str, tmp_path: Path) -> None:
    def check() -> None:
        done = analyze([STYLES, kind], tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        profile = Profile.load(tmp_path / "profile.json")
        assert profile.dataset.samples == 400
        assert 0.3 < profile.rates.gpu / (8 / 0.02) < 1.1
        assert profile.speed.cached < 1.1 * 8 / 0.02

    in_some_try(check)


@pytest.mark.parametrize(("kind", "words"), [("empty", "gives no batches"), ("once", "it can be read once only")])
def test_loaders_that_have_nothing_to_give(kind: str, words: str, tmp_path: Path) -> None:
    done = analyze([STYLES, kind], tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("stoker: nothing was measured: the training loader")
    assert words in done.stderr.splitlines()[-1]


def test_a_script_that_ends_by_ctrl_c_is_not_started_again(tmp_path: Path) -> None:
    words = [*ANALYZE, "--json", str(tmp_path / "profile.json"), str(STYLES), "early"]
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=temporary
    )
    until(lambda: any('"loaders": 1' in path.read_text() for path in tmp_path.glob("stoker-*/measured.json")))
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert "started again" not in err
    assert "ended early" in out


SLOW = """if True:
    import time, torch
    model, data = torch.nn.Linear(1, 1), torch.utils.data.TensorDataset(torch.zeros(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while True:
        for number, (x,) in enumerate(torch.utils.data.DataLoader(data, 4, shuffle=True)):
            model(x).sum().backward()
            optimizer.step()
            if number == 6: time.sleep(3600)
"""


def test_a_script_that_stops_asking_is_stopped_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    for name, value in {"_LEAST_S": 6.0, "_GRACE_S": 4.0}.items():
        monkeypatch.setattr(f"stoker.run.starts.{name}", value)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="nothing was measured"):
        cli.run(options_of("--time", "0.2", str(tmp_path / "slow.py")))


SCRATCHED = """if True:
    import pathlib, runpy, sys
    pathlib.Path("best.pt").write_text("worse")
    pathlib.Path("new.txt").write_text("new")
    pathlib.Path("old.txt").unlink()
    sys.argv = [sys.argv[1], "--epochs", "1000"]
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_scratch_leaves_the_users_files_alone(tmp_path: Path) -> None:
    for name in ("best.pt", "old.txt"):
        (tmp_path / name).write_text("good")
    (tmp_path / "script.py").write_text(SCRATCHED)
    out = tmp_path.parent / "out of scratch"
    out.mkdir()
    done = analyze(["--scratch", "script.py", STRICT], out, cwd=tmp_path)
    if "--scratch cannot be had" in done.stderr and os.getuid():
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert {path.name: path.read_text() for path in tmp_path.glob("*.*t")} == {"best.pt": "good", "old.txt": "good"}
    assert (out / "profile.json").exists()


def test_scratch_is_refused_where_it_cannot_be_had(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can take a right away from itself")
    (tmp_path / "script.py").write_text("open('written', 'w')")
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]
    words = [*without, *ANALYZE, "--scratch", "script.py"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("stoker: --scratch cannot be had: a mount namespace of its own is not permitted")
    assert not (tmp_path / "written").exists()


def test_no_such_script(tmp_path: Path) -> None:
    done = analyze([tmp_path / "nothing.py"], tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert analyze(["--cache", 2, SCRIPT], tmp_path).returncode == 1


@pytest.mark.parametrize("option", ["--json", "--plan", "--html"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(option: str, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nothing" / "file")[: 2 if option == "--json" else 1]:
        done = analyze([option, place, tmp_path / "nothing.py"], tmp_path)
        assert done.returncode == 1
        assert str(place) in done.stderr
        assert "nothing.py" not in done.stderr


def test_ctrl_c_ends_both_with_one_line(data: Path, tmp_path: Path) -> None:
    words = [*ANALYZE, "--json", str(tmp_path / "profile.json"), str(SCRIPT), str(data), "--compute", "0.01"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + HANG_S
    while not any(map(_children, _children(process.pid))):  # until the script's loader has workers
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 128 + signal.SIGINT
    assert err.splitlines()[-1] == "stoker: interrupted, nothing was measured"
    assert "KeyboardInterrupt" not in err


FAR = """if True:
    import stoker, time, torch

    class Far:  # the kernel keeps nothing of it, so that the analysis has to
        def __len__(self): return 400
        def sizes(self, ids): return [1000 for _ in ids]
        def read(self, ids): return time.sleep(0.001 * len(ids)) or [bytes(1000) for _ in ids]

    dataset = stoker.Dataset(Far(), lambda raw, index, rng: torch.tensor(list(raw[:8])))
    while True:
        for batch in torch.utils.data.DataLoader(dataset, 8, shuffle=True, num_workers=1): time.sleep(0.003)
"""


@pytest.mark.parametrize(("how", "whom"), [("SIGINT", "all"), ("SIGTERM", "us"), ("SIGKILL", "script"), ("SIGKILL", "all")])
def test_however_it_ends_no_cache_is_left(how: str, whom: str, tmp_path: Path) -> None:
    (tmp_path / "far.py").write_text(FAR)
    words = [*ANALYZE, "--json", str(tmp_path / "profile.json"), "--time", "1", "--loader", "1", str(tmp_path / "far.py")]
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True, env=temporary)
    deadline = time.monotonic() + HANG_S
    left: set[Path] = set()
    while not left:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        (script,) = _children(process.pid) or [0]
        for link in Path(f"/proc/{script}/fd").glob("*"):
            with contextlib.suppress(OSError):
                left |= {path.parent.parent for path in [link.readlink()] if path.parent.name == "jobs"}
    os.kill({"all": -process.pid, "us": process.pid, "script": int(script)}[whom], signal.Signals[how])
    process.communicate(timeout=HANG_S)
    assert process.returncode
    if (how, whom) == ("SIGKILL", "all"):  # nobody was there to do it; the next who looks does
        subprocess.run([sys.executable, "-m", "stoker", "cache", "ls"], check=True, capture_output=True)
    else:
        assert not list(tmp_path.glob("stoker-*"))
    assert not Path(f"/proc/{script}").exists() or "Z" in Path(f"/proc/{script}/stat").read_text().split()[2]
    assert not any(folder.exists() for folder in left)


def _children(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_progress_on_a_terminal(data: Path, tmp_path: Path) -> None:
    master, slave = pty.openpty()
    words = [*ANALYZE, "--json", str(tmp_path / "p.json"), "--time", "0.4", str(SCRIPT), str(data), "--compute", "0.01"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    shown = b""
    while True:
        try:
            part = os.read(master, 65536)
        except OSError:
            break
        if not part:
            break
        shown += part
    process.communicate()
    os.close(master)
    bars = re.findall(r"stoker: (█*)░* (\d+) s, (about \d+ s|a moment) left: ([^\r]*)", shown.decode())
    assert bars[0][3].rstrip() == "the script starts"  # blanks wipe out what was longer
    assert int(bars[0][1]) == 0
    assert len({what for *_, what in bars}) > 3
    lengths = [len(bar) for bar, *_ in bars]
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0]


def test_a_live_page_becomes_the_report(data: Path, tmp_path: Path) -> None:
    """Its browser is a command that notes what it is given, and what the page says then."""
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\necho "$1" > "$0.asked"\ncp "${1#file://}" "$0.saw"\n')
    browser.chmod(0o700)
    options = ["--open", "--json", str(tmp_path / "p.json"), "--time", "0.4"]
    words = [*ANALYZE, *options, str(SCRIPT), str(data), "--compute", "0.01"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "BROWSER": str(browser)})
    assert done.returncode == 0, done.stderr
    page = tmp_path / "p.html"
    assert (tmp_path / "browser.asked").read_text().strip() == page.as_uri()
    assert 'http-equiv="refresh"' in (tmp_path / "browser.saw").read_text()
    assert "The script starts" in (tmp_path / "browser.saw").read_text()
    assert "refresh" not in page.read_text().partition("<body>")[0]
    assert "What would help most" in page.read_text()


def test_a_live_page_of_a_script_that_fails_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(5)")
    environment = {
        name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    }
    words = [*ANALYZE, "--open", "train.py"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 5
    assert f"there is no browser to open here; the page is {tmp_path / 'profile.html'}" in done.stderr
    page = (tmp_path / "profile.html").read_text()
    assert "Nothing was measured" in page
    assert "refresh" not in page


def test_both_ranks_do_it_together(data: Path, tmp_path: Path) -> None:
    words = ["torchrun", "--standalone", "--nproc-per-node", 2, DDP, "--epochs", 100000]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = analyze(words, tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": path}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert profile["world"] == 2
    assert profile["rates"]["gpu"] > 0


def test_as_a_user_without_root_on_files_of_others(data: Path, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    place = tmp_path / "of nobody"
    place.mkdir()
    for folder in (*tmp_path.parents, tmp_path, place, *data.parents, data):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o777 if folder == place else 0o755)
    # Python itself may lie where only root can look: that much is left to nobody.
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    nobody += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    words = [*nobody, *ANALYZE, "--json", place / "profile.json", "--time", 0.4, SCRIPT, data, "--compute", 0.004]
    environment = {**os.environ, "HOME": str(place), "STOKER_TOP": "0"}

    def check() -> None:
        done = subprocess.run(
            [str(word) for word in words], capture_output=True, text=True, timeout=200, env=environment, cwd=place
        )
        assert done.returncode == 0, done.stderr
        profile = Profile.load(place / "profile.json")
        assert not [note for note in profile.notes if "cold" in note]  # the files could be made cold, and were seen to be
        assert profile.rates.storage > 0
        assert (place / "profile.json").stat().st_uid == 65534

    in_some_try(check)
