"""`stoker metrics`: what Prometheus is given, and how."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.loading import Together, Training
from tests.tries import HANG_S, until

from stoker.cli import main
from stoker.keeper.view import PeerView
from stoker.live.exposition import expose
from stoker.live.groups import GroupView, MemberView
from stoker.live.record import Facts, Seen

DASHBOARD = Path(__file__).parents[2] / "examples" / "grafana" / "stoker.json"
LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\})? ([0-9.e+-]+)')


def parse(text: str) -> dict[tuple[str, str], float]:
    """Read the text format, strictly: HELP and TYPE before values, families together, nothing twice."""
    assert text.endswith("\n")
    found: dict[tuple[str, str], float] = {}
    family, kind = "", ""
    families = []
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            families.append(family)
        elif line.startswith("# TYPE "):
            assert line.split()[2] == family
            kind = line.split()[3]
            assert (kind == "counter") == family.endswith("_total")
        else:
            match = LINE.fullmatch(line)
            assert match, line
            assert match[1] == family
            assert (match[1], match[2] or "") not in found
            found[match[1], match[2] or ""] = float(match[3])
    assert len(families) == len(set(families))
    return found


def test_other_hosts_have_counts_of_their_own() -> None:
    peers = [PeerView("node2:7001", 5, 40, 4000, 1, True, ""), PeerView("node3:7001", 0, 0, 0, 0, False, "refused")]
    values = parse(expose([], 0.0, 0.0, "0.1", peers=[(7, peer) for peer in peers]))
    labels = 'peer="node2:7001",keeper="7"'
    assert values["stoker_peer_hits_total", labels] == 40
    assert values["stoker_peer_received_bytes_total", labels] == 4000
    assert values["stoker_peer_late_answers_total", labels] == 1
    assert values["stoker_peer_suspect", labels] == 1
    assert values["stoker_peer_suspect", 'peer="node3:7001",keeper="7"'] == 0


def seen(**changes: object) -> Seen:
    facts = Facts(42, 0, 0, None, 0, 100.0, "processes", "train.py", "Pictures")
    base = Seen(facts, 10, 80, 2.5, 3.5, 0.5, 6, 2, 600, 200, 0, 2, 1, 4, 190.0, False, 189.0, 0, 8)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_text() -> None:
    values = parse(expose([seen()], 200.0, 1000.0, "0.1"))
    labels = 'script="train.py",dataset="Pictures",rank="",pid="42",loader="0"'
    assert values["stoker_loaders", ""] == 1
    assert values["stoker_loader_samples_total", labels] == 80
    assert values["stoker_loader_wait_seconds_total", labels] == 2.5
    assert values["stoker_loader_cache_hits_total", labels] == 6
    assert values["stoker_loader_epoch_progress_ratio", labels] == 0.5
    assert values["stoker_loader_waiting_seconds", labels] == 0
    assert values["stoker_loader_last_batch_timestamp_seconds", labels] == 990
    values = parse(expose([seen(asked_at=195.0)], 200.0, 1000.0, "0.1"))
    assert values["stoker_loader_waiting_seconds", labels] == 5


def test_two_loaders_of_a_process_and_odd_names() -> None:
    odd = 'a"b\\c\nd\x1b[31m\r.py'
    facts = replace(seen().facts, script=odd, rank=3)
    text = expose([seen(facts=facts), seen(facts=replace(facts, number=1))], 200.0, 1000.0, "0.1")
    assert len({labels for name, labels in parse(text) if name == "stoker_loader_batches_total"}) == 2
    assert 'script="a\\"b\\\\c\\nd\\\\x1b[31m\\\\x0d.py",dataset="Pictures",rank="3"' in text
    assert "\x1b" not in text
    assert parse(expose([], 0.0, 0.0, "0.1"))["stoker_loaders", ""] == 0


def in_group() -> tuple[Seen, dict[tuple[str, str], GroupView]]:
    members = tuple(
        MemberView(number, 42 + number, "train.py", (50,), 1, 9 - number, number, True, False, (), None)
        for number in range(2)
    )
    group = GroupView("search-7", "ab12", members, 30, 2, 1, 0, 1000, 2000, 4000, 0)
    return seen(facts=replace(seen().facts, group="search-7", stream="ab12", member=1)), {("search-7", "ab12"): group}


def test_groups_in_the_text() -> None:
    one, groups = in_group()
    values = parse(expose([seen(), one], 200.0, 1000.0, "0.1", groups))
    labels = 'group="search-7",dataset="Pictures",stream="ab12"'
    found = {name.removeprefix("stoker_group_"): value for (name, of), value in values.items() if of == labels}
    assert found == {
        "members": 2,
        "workers": 2,
        "prepared_batches_total": 30,
        "repeated_batches_total": 2,
        "taken_over_batches_total": 1,
        "passed_by_total": 0,
        "staging_bytes": 1000,
        "staging_budget_bytes": 4000,
        "lag_batches": 1,
    }
    of = 'script="train.py",dataset="Pictures",rank="",pid="42",loader="0",group="search-7"'
    assert values["stoker_loader_group_lag_batches", of] == 1


def test_the_dashboard_asks_for_what_there_is() -> None:
    one, groups = in_group()
    peers = [(7, PeerView("node2:7001", 5, 40, 4000, 1, True, ""))]
    known = {name for name, _ in parse(expose([seen(), one], 200.0, 1000.0, "0.1", groups, peers))}
    dashboard = json.loads(DASHBOARD.read_text())
    asked = {name for panel in dashboard["panels"] for target in panel.get("targets", ())
             for name in re.findall(r"stoker_[a-z_]+", target["expr"])}  # fmt: skip
    assert asked == known
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    cells = [(x, y) for place in places for x in range(place["x"], place["x"] + place["w"])
             for y in range(place["y"], place["y"] + place["h"])]  # fmt: skip
    assert len(set(cells)) == len(cells)  # none lies over another


def test_the_guide_names_every_metric() -> None:
    text = (Path(__file__).parents[2] / "docs" / "top.md").read_text()
    named = set()
    for row in re.findall(r"^\| (`stoker_.*?) \|", text, re.MULTILINE):
        first, *rest = re.findall(r"`(\w+)`", row)
        kind = re.match(r"stoker_(?:loader|group|peer)(?=_)", first)
        named |= {first, *(f"{kind[0]}{one}" if kind and one.startswith("_") else one for one in rest)}
    assert named == {line.split()[2] for line in expose([], 0.0, 0.0, "").splitlines() if line.startswith("# HELP")}


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Training]:
    place = tmp_path_factory.mktemp("metrics") / "own"
    made = Training(place, 5, "steady", "0")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STOKER_TOP", str(place))
            made.wait_until_ready()
            yield made
    finally:
        made.kill()


def samples(text: str, training: Training) -> float:
    (value,) = [
        value for (name, labels), value in parse(text).items()
        if name == "stoker_loader_samples_total" and f'rank="5",pid="{training.pid}"' in labels
    ]  # fmt: skip
    return value


def test_a_text_file(training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics"]) == 0
    printed = samples(capsys.readouterr().out, training)
    path = tmp_path / "stoker.prom"
    assert main(["metrics", "--textfile", str(path)]) == 0
    assert samples(path.read_text(), training) >= printed > 0
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(tmp_path) == ["stoker.prom"]


def test_a_text_file_again_and_again(training: Training, tmp_path: Path) -> None:
    path = tmp_path / "stoker.prom"
    words = [sys.executable, "-m", "stoker", "metrics", "--textfile", str(path), "--every", "0.05"]
    process = subprocess.Popen(words)
    try:
        counts: set[float] = set()
        deadline = time.monotonic() + HANG_S
        while len(counts) < 5:
            assert time.monotonic() < deadline
            if path.exists():
                counts.add(samples(path.read_text(), training))  # whole whenever it is read
    finally:
        process.send_signal(signal.SIGTERM)
    assert process.wait(HANG_S) == 0
    assert not list(tmp_path.iterdir())


def test_an_endpoint_on_loopback(training: Training) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "metrics", "--listen", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=HANG_S) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert samples(answer.read().decode(), training) > 0
        with pytest.raises(urllib.error.HTTPError, match="404") as error:
            urllib.request.urlopen(address.replace("metrics", "else"), timeout=HANG_S)
        error.value.close()
    finally:
        process.send_signal(signal.SIGINT)
    assert process.wait(HANG_S) == 0
    process.stdout.close()


def drip(address: str, stop: threading.Event) -> bool:
    """Send a request a byte at a time, until stopped (False) or cut off (True)."""
    host, port = address.removeprefix("http://").removesuffix("/metrics").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
        while not stop.wait(0.2):
            try:
                client.sendall(b"x")
                if select.select([client], [], [], 0)[0] and not client.recv(1):
                    return True
            except OSError:
                return True
        return False


@pytest.mark.parametrize("is_asked_to_end", [True, False], ids=["SIGTERM", "deadline"])
def test_a_client_that_drips_holds_nobody_up(training: Training, is_asked_to_end: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "metrics", "--listen", "0"], stdout=subprocess.PIPE, text=True
    )
    stop, ends = threading.Event(), []
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        client = threading.Thread(target=lambda: ends.append(drip(address, stop)))
        client.start()
        with urllib.request.urlopen(address, timeout=HANG_S) as answer:  # others are served meanwhile
            assert samples(answer.read().decode(), training) > 0
        if is_asked_to_end:
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0
        client.join(HANG_S)
    finally:
        stop.set()
        process.send_signal(signal.SIGTERM)
        client.join()
        process.wait(HANG_S)
        process.stdout.close()
    assert ends == [True]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--listen", "0.0.0.0:9123"], "0.0.0.0 can be reached from outside"),
        (["--listen", "[::]:9123"], "--public"),
        (["--listen", "nonsense"], "--listen takes a port"),
        (["--listen", "127.0.0.1:99999"], "--listen takes a port"),
        (["--listen", "9123", "--textfile", "x"], "choose one"),
        (["--every", "5"], "goes with --textfile"),
        (["--textfile", "x", "--every", "0"], "goes with --textfile"),
        (["--textfile", "/nowhere/x.prom"], "cannot write /nowhere/x.prom"),
    ],
)
def test_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", *words]) == 1
    assert message in capsys.readouterr().err


def test_a_real_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "own"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("STOKER_TOP", str(place))
    made = Together(place, f"test-metrics-{os.getpid()}", fast=("1", "0.01"), late=("0", "0.01"), doomed=("0", "0.01"))

    def look() -> dict[str, float]:
        assert main(["metrics"]) == 0
        found = parse(capsys.readouterr().out)
        return {name: value for (name, labels), value in found.items() if name.startswith("stoker_group_")}

    try:
        made.begin()
        until(lambda: look()["stoker_group_workers"] == 1)  # jobs without workers may be ready before a worker is
        before = look()
        assert before["stoker_group_members"] == 3
        os.kill(made["late"].pid, signal.SIGSTOP)
        os.kill(made["doomed"].pid, signal.SIGKILL)
        deadline = time.monotonic() + HANG_S
        while (after := look())["stoker_group_lag_batches"] < 5 or after["stoker_group_members"] > 2:
            assert time.monotonic() < deadline
        assert after["stoker_group_prepared_batches_total"] >= before["stoker_group_prepared_batches_total"] > 0
        assert 0 < after["stoker_group_staging_bytes"] <= after["stoker_group_staging_budget_bytes"]
    finally:
        made.kill()
