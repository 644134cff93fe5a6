import json
import os
from pathlib import Path

import pytest
from tests.cache.requests import Numbered

import stoker
from stoker.cache.cached import Cache
from stoker.cli import main
from stoker.source.files import Files


def test_ls_and_clear(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(tmp_path)]
    assert main(["cache", "ls", *where]) == 0
    assert capsys.readouterr().out == "no caches\n"
    idle, used = Cache("/data/idle", 100_000, tmp_path), Cache("/data/used", 100_000, tmp_path)
    for cache in (idle, used):
        cache.fetch(Numbered(range(10)))
    idle.close()
    assert main(["cache", "ls", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert any(line.endswith("/data/idle") and " 10 " in line and "10.0 KB" in line for line in lines)
    assert main(["cache", "ls", "--json", *where]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["/data/used"]["jobs"], rows["/data/idle"]["jobs"]) == (1, 0)
    assert rows["/data/used"]["payload_bytes"] == 10_000
    assert main(["cache", "clear", *where]) == 0
    said = capsys.readouterr().out
    assert "/data/used is used by 1 job, and stays" in said
    assert "given back" in said
    assert used.fetch(Numbered([1]))
    assert main(["cache", "clear", "/data/idle", *where]) == 1
    assert "there is no cache of '/data/idle'" in capsys.readouterr().err
    assert main(["cache", "clear", "/data/used", "--force", *where]) == 0
    capsys.readouterr()
    assert main(["cache", "ls", *where]) == 0
    assert capsys.readouterr().out == "no caches\n"


def test_a_folder_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for action in ("ls", "clear"):
        assert main(["cache", action, "--dir", str(tmp_path / "typo")]) == 1
        assert "there is no directory" in capsys.readouterr().err


def test_names_are_shown_as_they_are_and_are_harmless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("/data/Bücher/训练", "/data/\x1b[2J"):
        cache = Cache(name, 100_000, tmp_path)
        cache.fetch(Numbered(range(10)))
        cache.close()
    assert main(["cache", "ls", "--dir", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "  /data/Bücher/训练\n" in out
    assert "  /data/\\x1b[2J\n" in out
    assert main(["cache", "rm", "/data/\\x1b[2J", "--dir", str(tmp_path)]) == 0  # as it is shown
    capsys.readouterr()
    assert main(["cache", "ls", "--dir", str(tmp_path)]) == 0
    assert "x1b" not in capsys.readouterr().out


def test_empty_caches_are_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = Cache("/data/empty", 100_000, tmp_path)
    where = ["--dir", str(tmp_path)]
    assert main(["cache", "ls", *where]) == 0
    assert capsys.readouterr().out.endswith("/data/empty\n")  # a job uses it
    cache.close()
    assert main(["cache", "ls", *where]) == 0
    assert capsys.readouterr().out == "no caches\n"
    assert main(["cache", "rm", "/data/empty", *where]) == 0


def test_rm_and_what_it_would_remove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--dir", str(tmp_path)]
    for name in ("/data/a", "/data/b"):
        cache = Cache(name, 100_000, tmp_path)
        cache.fetch(Numbered(range(10)))
        cache.close()
    for words in (["rm", "/data/a"], ["clear", "/data/a"]):
        assert main(["cache", *words, "--dry-run", *where]) == 0
        out = capsys.readouterr().out
        assert out.startswith("/data/a would be removed: ")
        assert out.endswith("would be given back\n")
        assert "/data/b" not in out
    assert main(["cache", "rm", "/data/a", *where]) == 0
    capsys.readouterr()
    assert main(["cache", "ls", *where]) == 0
    out = capsys.readouterr().out
    assert "/data/b" in out
    assert "/data/a" not in out
    with pytest.raises(SystemExit):
        main(["cache", "rm", *where])


def test_pull_fills_the_cache_that_a_dataset_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, kept = tmp_path / "files", tmp_path / "kept"
    folder.mkdir()
    kept.mkdir()
    for number in range(150):
        (folder / f"{number:03}").write_bytes(b"x" * 1000)
        os.utime(folder / f"{number:03}", (1, 1))
    assert main(["cache", "pull", f"file://{folder}", "--dir", str(kept)]) == 0
    assert "150 items, 150 KB of 150 KB are in the cache" in capsys.readouterr().out
    dataset = stoker.Dataset(folder, lambda raw, index, rng: len(raw), cache="1MB", cache_dir=kept)
    with stoker.DataLoader(dataset, batch_size=10) as loader:
        assert sum(int(batch.sum()) for batch in loader) == 150_000
        assert (loader.stats().hits, loader.stats().misses) == (150, 0)
    assert main(["cache", "pull", str(folder), "--size", "10kB", "--dir", str(tmp_path / "kept")]) == 0
    assert main(["cache", "pull", str(tmp_path / "nowhere")]) == 1
    assert "no files at" in capsys.readouterr().err


def test_pull_fills_memory_and_then_the_disk_and_reads_no_more_than_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, disk = tmp_path / "files", f"{tmp_path / 'disk'}:40kB"
    folder.mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "disk").mkdir()
    for number in range(200):
        (folder / f"{number:03}").write_bytes(b"x" * 1000)
        os.utime(folder / f"{number:03}", (1, 1))
    read: list[int] = []
    whole = Files.read
    monkeypatch.setattr(Files, "read", lambda self, ids: read.extend(ids) or whole(self, ids))
    pull = ["cache", "pull", str(folder), "--dir", str(tmp_path / "kept"), "--cache-disk", disk]
    assert main([*pull, "--size", "30kB"]) == 0
    assert "30 items, 30.0 KB of 200 KB, and on the disk 40 items, 40.0 KB, are in the cache" in capsys.readouterr().out
    assert read == [*range(128)]  # in the second look nothing more fits
    read.clear()
    assert main([*pull, "--size", "30kB"]) == 0
    assert read == []
    assert main(pull) == 1
    assert "--cache-disk needs --size" in capsys.readouterr().err
