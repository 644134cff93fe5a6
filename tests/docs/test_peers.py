"""The comparison with other loaders: it runs on small data, and its page has those first that are ahead, with a reason."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def page_maker() -> Any:
    spec = importlib.util.spec_from_file_location("peers_page", ROOT / "scripts" / "peers_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_loaders_are_compared_on_the_same_bytes(tmp_path: Path) -> None:
    words = ["--folder", str(tmp_path), "--only", "torch", "--workload", "text", "--rounds", "1", "--part", "0.01"]
    command = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "peers.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ours, torchs = map(json.loads, done.stdout.splitlines())
    assert (ours["contender"], torchs["contender"]) == ("stoker", "torch")
    for row in (ours, torchs):
        assert not row["failed"]
        assert row["same"]
        assert row["samples_per_s"] > 0
        assert row["memory_mb"] > 0
    assert ours["exact"]
    assert torchs["resume_s"] is None


def line(contender: str, ratio: float) -> dict[str, Any]:
    return {
        "workload": "jpeg", "contender": contender, "ratio": ratio, "spread": [0.9 * ratio, 1.1 * ratio], "failed": "",
        "samples_per_s": 1000.0, "cold_samples_per_s": 900.0, "core_us": 5.0, "first_batch_s": 0.1, "memory_mb": 10.0,
        "resume_s": None, "same": True, "rounds": 5, "host": "python 3", "pins": [], "run": "2026-01-02 03:04:05",
        "load": 2.4,
    }  # fmt: skip


def test_who_is_ahead_stands_first_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = page_maker()
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    monkeypatch.setattr(maker, "ROOT", tmp_path)
    monkeypatch.setattr(maker, "WHY", {("jpeg", "dali"): "its decoder is its own."})
    lines = tmp_path / "lines.jsonl"
    rows = [line("stoker", 1.0), line("torch", 1.2), line("dali", 0.8)]
    lines.write_text("\n".join(map(json.dumps, rows)))
    maker.main(str(lines))
    page = (tmp_path / "docs" / "peers-compared.md").read_text()
    assert page.index("| DALI on CPU | 0.80 | 0.72 to 0.88 |") < page.index("| torch DataLoader | 1.20 |")
    assert "DALI on CPU is ahead: its decoder is its own." in page
    assert "at a load of 2 (" in page
    assert "DALI on CPU</text>" in (tmp_path / "docs" / "pictures" / "peers-compared.svg").read_text()
    lines.write_text("\n".join(map(json.dumps, [*rows, line("grain", 0.9)])))
    with pytest.raises(KeyError, match="grain"):
        maker.main(str(lines))


def test_runs_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = page_maker()
    (tmp_path / "docs" / "pictures").mkdir(parents=True)
    monkeypatch.setattr(maker, "ROOT", tmp_path)

    def page(run: str, *rows: dict[str, Any]) -> str:
        lines = tmp_path / "lines.jsonl"
        lines.write_text("\n".join(json.dumps(row | {"run": run}) for row in rows))
        maker.main(str(lines))
        return str((tmp_path / "docs" / "peers-compared.md").read_text())

    text = page("2026-01-02 03:04:05", line("stoker", 1.0), line("torch", 1.2), line("dali", 1.3))
    assert re.search(r"^Not measured on this machine so far: 3 KB samples.*; FLAC.*; JSON lines.*\.$", text, re.MULTILINE)
    heard = [row | {"workload": "audio"} for row in (line("stoker", 1.0), line("torch", 2.0))]
    text = page("2026-01-03 00:00:00", *heard)  # another workload is added
    assert "Measured on 2026-01-02 and 2026-01-03" in text
    assert "so far: 3 KB samples" in text
    assert "; FLAC" not in text
    assert "| DALI on CPU | 1.30 |" in text
    text = page("2026-01-04 00:00:00", line("stoker", 1.0), line("dali", 1.5))  # one contender of a table
    assert "| torch DataLoader | 1.20 |" in text
    assert "| DALI on CPU | 1.50 |" in text
    assert "Measured again later, in turns with Stoker alone: DALI on CPU (jpeg)." in text
    text = page("2026-01-05 00:00:00", *(line(name, 1.7) for name in ("stoker", "torch", "dali")))  # a whole table
    assert "1.20" not in text
    assert "Measured again" not in text
