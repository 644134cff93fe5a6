"""From what a user writes to a source."""

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.errors import ConfigError
from stoker.source.files import Files
from stoker.source.opening import expand_braces, open_source
from stoker.source.tar import TarShards, members
from stoker.testing import Synthetic


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (
        "images/cat/1.jpg",
        "images/dog/2.jpg",
        "flat/1.jpg",
        "flat/2.png",
        "mixed/1.jpg",
        "mixed/readme",
        "odd[1]/x",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    for name in ("shards/s-08.tar", "shards/s-09.tar", "shards/s-10.tar", "mixed/s.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        with tarfile.open(tmp_path / name, "w") as archive:
            content = name.encode()
            member = tarfile.TarInfo("000.txt")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    monkeypatch.chdir(tmp_path)
    return tmp_path


SHARDS = ["shards/s-08.tar", "shards/s-09.tar", "shards/s-10.tar"]


@pytest.mark.parametrize(
    ("where", "kind", "paths"),
    [
        ("images", Files, ["images/cat/1.jpg", "images/dog/2.jpg"]),
        (Path("images"), Files, ["images/cat/1.jpg", "images/dog/2.jpg"]),
        ("odd[1]", Files, ["odd[1]/x"]),
        ("flat/*.jpg", Files, ["flat/1.jpg"]),
        ("flat/{1.jpg,2.png}", Files, ["flat/1.jpg", "flat/2.png"]),
        ("flat/2.png", Files, ["flat/2.png"]),
        (["flat/2.png", Path("odd[1]/x")], Files, ["flat/2.png", "odd[1]/x"]),
        (("images/*/*.jpg", "flat/*.jpg"), Files, ["images/cat/1.jpg", "images/dog/2.jpg", "flat/1.jpg"]),
        ("shards", TarShards, SHARDS),
        ("shards/s-09.tar", TarShards, SHARDS[1:2]),
        ("shards/*.tar", TarShards, SHARDS),
        ("shards/s-{08..10}.tar", TarShards, SHARDS),
        (SHARDS[::-1], TarShards, SHARDS[::-1]),
        (["shards/s-{08,10}.tar", "mixed/s.tar"], TarShards, [SHARDS[0], SHARDS[2], "mixed/s.tar"]),
    ],
)
def test_what_is_written_and_what_is_meant(folder: Path, where: object, kind: type, paths: list[str]) -> None:
    for _ in range(2):  # the second time with indices beside the shards
        source = open_source(where)  # type: ignore[arg-type]
        assert type(source) is kind
        assert [os.path.relpath(path, folder) for path in source.paths] == paths
        contents = source.read(range(len(source)))
        if kind is TarShards:
            contents = [bytes(members(content)["txt"]) for content in contents]
        assert [content.decode() for content in contents] == paths


def test_a_source_is_returned_as_it_is() -> None:
    source = Synthetic(3, 10)
    assert open_source(source) is source


def test_home_is_understood(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder))
    assert len(open_source("~/flat/*")) == len(open_source(["~/flat/1.jpg", "~/flat/2.png"])) == 2


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("nowhere", "no files at 'nowhere': there is no such file or folder"),
        ("shards/none.tar", "no files at 'shards/none.tar'"),
        ("shards/s-{08..11}.tar", r"there is no shard .*/shards/s-11\.tar"),
        ("flat/*.gif", r"no files match 'flat/\*\.gif'"),
        ([], "the list of paths is empty"),
        ("mixed", r"both shards and others, '1\.jpg' among them: write 'mixed/\*\.tar'"),
        (["flat/1.jpg", "mixed/s.tar"], r"both shards \(mixed/s.tar\) and other files \(flat/1.jpg\)"),
        ("ftp://host/s-{00..10}.tar", "is an address"),
        ("pipe:cat x.tar", "is an address"),
        (3, "a source is a folder, a glob"),
        ([1, 2], "a source is a folder, a glob"),
        ({"flat/1.jpg"}, "a source is a folder, a glob"),
        (None, "a source is a folder, a glob"),
    ],
)
def test_what_cannot_be_meant_is_said(where: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_source(where)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("a", ["a"]),
        ("{000..002}.tar", ["000.tar", "001.tar", "002.tar"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}-{1..2}", ["a-1", "a-2", "b-1", "b-2"]),
        ("x{a}y{}", ["x{a}y{}"]),
        ("{a,}", ["a", ""]),
    ],
)
def test_braces(text: str, expanded: list[str]) -> None:
    assert expand_braces(text) == expanded


def test_importing_it_loads_no_torch(run_python: Callable[[str], str]) -> None:
    assert run_python("import stoker.testing, stoker.source.opening, sys; print('torch' in sys.modules)") == "False"
