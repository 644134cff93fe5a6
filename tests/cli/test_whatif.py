"""`stoker whatif`, as a user runs it."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.test_profile import SMALLEST

from stoker.cli import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def path(tmp_path: Path) -> str:
    document = copy.deepcopy(SMALLEST)
    document["rates"]["storage_by_readers"] = {"1": 200.0, "2": 200.0}
    (tmp_path / "profile.json").write_text(json.dumps(document))
    return str(tmp_path / "profile.json")


def asked(path: str, capsys: Captured, *options: str) -> dict[str, Any]:
    assert main(["whatif", path, "--json", *options]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    return document


def test_all_tables(path: str, capsys: Captured) -> None:
    assert main(["whatif", path]) == 0
    text = capsys.readouterr().out
    for words in (
        "as measured",
        "4 cores, a worker each",
        "50% cached, keep-first",
        "50% cached, lru",
        "storage x 4",
        "device x 2",
    ):
        assert words in text
    assert "Smallest cache without a stall: 8" in text
    assert "Fewest cores without a stall: none; 8 cores give 200 samples/s of 1,000: storage gives only 200" in text


def test_json(path: str, capsys: Captured) -> None:
    document = asked(path, capsys)
    assert [row["cached"] for row in document["cache"]] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert document["cache"][-1]["rate"] == pytest.approx(SMALLEST["speed"]["cached"])
    assert (document["now"]["limit"], document["now"]["rate"]) == ("fetch", pytest.approx(SMALLEST["speed"]["cold"]))
    assert document["fewest_cores"]["value"] is None
    assert 0.8 < document["smallest_cache"]["value"] < 0.9
    assert document["advice"][0]["apply"] == "--cache 208MB"


def test_questions_are_asked_together(path: str, capsys: Captured) -> None:
    rows = asked(path, capsys, "--cores", "1,2", "--cache", "50%", "--storage", "41.6MB/s", "--gpu", "2")["asked"]
    assert [(row["workers"], row["cached"], row["gpu_factor"]) for row in rows] == [(1, 0.5, 2.0), (2, 0.5, 2.0)]
    assert rows[0]["storage_factor"] == pytest.approx(2.0)  # 104 kB each, 200 a second
    assert rows[0]["rate"] < rows[1]["rate"] < 800
    assert rows[0]["low"] < rows[0]["rate"] < rows[0]["high"]
    assert asked(path, capsys, "--storage", "2x")["asked"][0]["storage_factor"] == 2.0


def test_numbers_and_kinds_of_workers(path: str, capsys: Captured) -> None:
    rows = asked(path, capsys, "--workers", "1,3", "--kind", "threads")["asked"]
    assert [(row["workers"], row["cores"], row["threads"]) for row in rows] == [(1, None, True), (3, None, True)]
    (row,) = asked(path, capsys, "--cores", "4", "--workers", "8")["asked"]
    assert (row["workers"], row["cores"]) == (8, 4)
    assert main(["whatif", path, "--kind", "threads"]) == 0
    assert "2 threads, 0% cached" in capsys.readouterr().out


def with_device(path: str) -> str:
    document = json.loads(Path(path).read_text())
    document["workers_kind"] = "threads"
    document["on_device"] = [{"where": "tail", "prep": 1900.0, "loop": 990.0, "cached": 950.0}]
    Path(path).write_text(json.dumps(document))
    return path


def test_where_pixels_are_computed(path: str, capsys: Captured) -> None:
    found = asked(with_device(path), capsys, "--prep", "tail", "--cache", "1")
    assert found["asked"][0]["where"] == "tail" and found["now"]["where"] == "host"
    assert found["asked"][0]["rate"] == pytest.approx(950)
    assert found["asked"][0]["prep"] > 1000  # a rate
    assert not found["asked"][0]["threads"]  # these leave nothing to a device
    assert [row["where"] for row in asked(path, capsys)["prep"]] == ["host", "tail"]
    assert main(["whatif", path, "--prep", "tail"]) == 0
    assert "worker, 0% cached, --prep tail" in capsys.readouterr().out.replace("workers", "worker")
    assert main(["whatif", path, "--prep", "tail", "--kind", "threads"]) == 1
    assert "not with --kind threads" in capsys.readouterr().err


def test_a_table_for_people_has_its_columns_in_line(path: str, capsys: Captured) -> None:
    main(["whatif", path, "--cores", "1,16", "--cache", "0.35", "--storage", "3x", "--gpu", "1.5"])
    lines = [line for line in capsys.readouterr().out.splitlines() if ".." in line]
    assert len(lines) == 3
    assert len({line.index("..") for line in lines} | {len(line) for line in lines}) <= 4
    assert "16 workers, 35% cached, storage x 3, device x 1.5" in lines[2]


def test_several_hosts(path: str, capsys: Captured) -> None:
    document = asked(path, capsys, "--hosts", "2,4", "--cache", "25%", "--network", "125MB/s")
    assert [row["peers"] for row in document["asked"]] == [0.25, 0.75]
    two, four = document["hosts"]
    assert (four["hosts"], four["tiers"]) == (4, {"here": 0.25, "peer": 0.75, "storage": 0.0})
    assert two["rate"] < four["rate"] == pytest.approx(4 * document["asked"][1]["rate"])
    assert four["without_peers"] < four["rate"]
    assert main(["whatif", path, "--hosts", "4", "--cache", "0.25", "--network", "125MB/s"]) == 0
    text = capsys.readouterr().out
    assert "4 hosts, 2 workers, 25% cached, 75% from other hosts" in text
    assert "From a host's own cache 25%, from other hosts 75% (" in text
    assert "Smallest cache" not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cache", "1.5"], "the cache fraction is a number from 0 to 1"),
        (["--cache", "much"], "--cache is a number, not 'much'"),
        (["--cores", "0"], "--cores is a number from 1"),
        (["--cores", "1,x"], "--cores is a number from 1"),
        (["--workers", "2,0"], "--workers is a number from 1"),
        (["--storage", "530MB"], "--storage is text such as '530MB/s'"),
        (["--gpu", "-1"], "gpu must be more than 0"),
        (["--gpu", "nan"], "--gpu is a finite number"),
        (["--hosts", "0"], "--hosts is a number from 1"),
        (["--hosts", "2", "--cache", "0.5"], "give the rate of their links by --network"),
        (["--network", "1GB/s"], "say how many there are by --hosts"),
        (["--hosts", "2", "--network", "1Gbit"], "--network is text such as '530MB/s'"),
    ],
)
def test_wrong_use_is_one_line(path: str, capsys: Captured, options: list[str], message: str) -> None:
    assert main(["whatif", path, *options]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_what_was_not_measured(tmp_path: Path, capsys: Captured) -> None:
    document = copy.deepcopy(SMALLEST)
    document["rates"]["storage"] = 0.0
    path = tmp_path / "p.json"
    path.write_text(json.dumps(document))
    assert main(["whatif", str(path)]) == 0
    assert "lru" not in capsys.readouterr().out
    assert main(["whatif", str(path), "--storage", "530MB/s"]) == 1
    assert "say 2x instead" in capsys.readouterr().err
    document["rates"]["gpu"] = 0.0
    path.write_text(json.dumps(document))
    assert main(["whatif", str(path)]) == 1
    assert "the rate gpu was not measured" in capsys.readouterr().err
    assert main(["whatif", str(tmp_path / "none.json")]) == 1
    assert "cannot be read" in capsys.readouterr().err
