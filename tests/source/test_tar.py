"""Tar shards: the oracle is the standard library's tarfile, and GNU tar where there is one."""

import contextlib
import errno
import gzip
import io
import os
import pickle
import shutil
import struct
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import ConfigError, SampleNotFound, SourceError
from stoker.source import files as files_module
from stoker.source import process, reading, tar_index
from stoker.source.reading import Foresighted, Named, Releasing
from stoker.source.tar import TarShards, members
from stoker.source.tar_index import SUFFIX, index_of, split_name
from stoker.testing import SourceContract

Sample = tuple[str, dict[str, bytes]]
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
SAMPLES: list[Sample] = [
    ("a/000", {"jpg": b"J" * 5000, "cls": b"3"}),
    ("a/001", {"jpg": b"", "seg.png": b"P" * 512, "cls": b"4"}),
    ("b/000", {"cls": b"5", "jpg": b"x" * 300_000}),
]


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RETRY_AFTER_S", (0, 0, 0))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pack(path: Path, samples: Iterable[Sample], tar_format: int = tarfile.GNU_FORMAT, **options: str) -> Path:
    with tarfile.open(path, "w", format=tar_format, encoding="utf-8", errors="surrogateescape") as archive:
        for name, contents in samples:
            for extension, content in contents.items():
                member = tarfile.TarInfo(f"{name}.{extension}")
                member.size = len(content)
                member.pax_headers = dict(options)
                archive.addfile(member, io.BytesIO(content))
    return path


def put(archive: tarfile.TarFile, name: str, content: bytes = b"", **attributes: object) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    for attribute, value in attributes.items():
        setattr(member, attribute, value)
    archive.addfile(member, io.BytesIO(content))


def contents_of(source: TarShards) -> list[Sample]:
    records = source.read(range(len(source)))
    return [
        (source.sample_name(number), {extension: bytes(content) for extension, content in members(record).items()})
        for number, record in enumerate(records)
    ]


class TestRecords(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> TarShards:
        return TarShards([pack(tmp_path / "0.tar", SAMPLES[:2]), pack(tmp_path / "1.tar", SAMPLES[2:])])

    @pytest.fixture
    def expected(self, tmp_path: Path) -> list[bytes]:
        """From the first header to the end of the last content: one block and the padded content for each but the last."""
        expected = []
        for shard in ("0.tar", "1.tar"):
            raw = (tmp_path / shard).read_bytes()
            with tarfile.open(tmp_path / shard) as archive:
                found = archive.getmembers()
            for sample in dict.fromkeys(member.name.partition(".")[0] for member in found):
                own = [member for member in found if member.name.startswith(sample + ".")]
                expected.append(raw[own[0].offset : own[-1].offset_data + own[-1].size])
        return expected

    def test_offers_all_there_is(self, source: TarShards) -> None:
        assert isinstance(source, Named)
        assert isinstance(source, Foresighted)
        assert isinstance(source, Releasing)

    def test_contents(self, source: TarShards) -> None:
        assert contents_of(source) == SAMPLES


class TestOneMember(SourceContract):
    @pytest.fixture
    def source(self, tmp_path: Path) -> TarShards:
        return TarShards(pack(tmp_path / "0.tar", SAMPLES), member="jpg")

    @pytest.fixture
    def expected(self) -> list[bytes]:
        return [contents["jpg"] for _, contents in SAMPLES]


# -- what is in a shard

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/."), min_size=1, max_size=8)
FOLDERS = st.lists(st.one_of(NAMES, st.just("long" * 30), st.just("v1.0")), max_size=3)
EXTENSIONS = st.text("abcz019.", min_size=1, max_size=6)
DRAWN = st.lists(
    st.tuples(
        st.tuples(FOLDERS, NAMES).map(lambda parts: "/".join([*parts[0], parts[1]])),
        st.dictionaries(EXTENSIONS, st.binary(max_size=1200), min_size=1, max_size=3),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda sample: sample[0],
)


@settings(max_examples=60, deadline=None)
@given(DRAWN, st.sampled_from(FORMATS[1:]), st.sampled_from([{}, {"comment": "x" * 700, "mtime": "1.5"}]), st.booleans())
def test_any_shard_is_read_as_it_was_packed(
    samples: list[Sample], tar_format: int, pax: dict[str, str], clutter: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pack(Path(folder) / "x.tar", samples, tar_format, **pax)
        if clutter:
            with tarfile.open(path, "a", format=tar_format) as archive:
                put(archive, "some/folder.d", type=tarfile.DIRTYPE)
                put(archive, "README", b"no sample")
                put(archive, "._apple", b"nor this")
        for _ in range(2):
            source = TarShards(path)
            assert contents_of(source) == samples
            index = index_of(str(path))
            assert [index.extensions_of(number) for number in range(len(index))] == [list(each) for _, each in samples]
            assert list(source.sizes(range(len(source)))) == [len(record) for record in source.read(range(len(source)))]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_is_an_error_or_harmless_but_nothing_else(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pack(Path(folder) / "x.tar", SAMPLES[:2], data.draw(st.sampled_from(FORMATS)), comment="y")
        raw = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            del raw[data.draw(st.integers(0, len(raw) - 1)) :]
        for _ in range(data.draw(st.integers(0, 4))):
            if raw:
                raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(raw)
        try:
            source = TarShards(path)
            records = source.read(range(len(source)))
        except (SourceError, ConfigError) as error:
            assert str(path) in str(error)
            assert os.listdir(folder) == ["x.tar"]
            return
        for record in records:  # tarfile passes over some damage of extended headers
            with contextlib.suppress(SourceError):
                members(record)


@pytest.mark.parametrize("tar_format", FORMATS)
def test_formats(tmp_path: Path, tar_format: int) -> None:
    assert contents_of(TarShards(pack(tmp_path / "x.tar", SAMPLES, tar_format))) == SAMPLES


@pytest.mark.parametrize("tar_format", FORMATS)
def test_names_of_any_bytes(tmp_path: Path, tar_format: int) -> None:
    samples = [(os.fsdecode(b"caf\xe9 \n\xff"), {"x": b"1"}), ("caf\u00e9", {"x": b"2"})]
    assert contents_of(TarShards(pack(tmp_path / "x.tar", samples, tar_format))) == samples


def test_binary_sizes(tmp_path: Path) -> None:
    """As beyond 8 GiB, where octal digits would not do."""
    path = pack(tmp_path / "x.tar", SAMPLES[:1])
    raw = bytearray(path.read_bytes())
    raw[124:136] = b"\x80" + (5000).to_bytes(11, "big")
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    path.write_bytes(raw)
    assert contents_of(TarShards(path)) == SAMPLES[:1]
    with tarfile.open(path, "w") as archive:
        put(archive, "a/000.jpg", b"J" * 5000, pax_headers={"size": "5000"})
    assert contents_of(TarShards(path)) == [("a/000", {"jpg": b"J" * 5000})]


@pytest.mark.skipif(not shutil.which("tar"), reason="needs tar")
@pytest.mark.parametrize("tar_format", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_shards_of_gnu_tar(tmp_path: Path, tar_format: str) -> None:
    lengths = {"v7": (1, 50), "ustar": (1, 50, 94)}.get(tar_format, (1, 50, 94, 99, 150))
    folder = "." if tar_format == "v7" else f"./d.1/{'f' * 60}"
    samples = [(f"{folder}/{'n' * length}", {"a": b"1" * length, "b.c": b"2"}) for length in lengths]
    for name, contents in samples:
        for extension, content in contents.items():
            (tmp_path / "in" / f"{name}.{extension}").parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "in" / f"{name}.{extension}").write_bytes(content)
    done = subprocess.run(
        ["tar", f"--format={tar_format}", "--sort=name", "-cf", tmp_path / "x.tar", "-C", tmp_path / "in", "."],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"not GNU tar: {done.stderr}")
    assert dict(contents_of(TarShards(tmp_path / "x.tar"))) == dict(samples)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("000.jpg", ("000", "jpg")),
        ("a.b/000.SEG.png", ("a.b/000", "seg.png")),
        ("./x.", ("./x", "")),
        ("README", None),
        (".hidden.jpg", None),
        ("a.b/README", None),
        ("a/", None),
    ],
)
def test_names_are_split_as_webdataset_does(name: str, parts: tuple[str, str] | None) -> None:
    assert split_name(name) == parts


def test_members_are_views(tmp_path: Path) -> None:
    record = TarShards(pack(tmp_path / "x.tar", SAMPLES)).read([0])[0]
    found = members(record)
    assert all(view.obj is record and view.readonly for view in found.values())
    assert members(bytearray(record)) == found
    for cut in (record[:700], record[100:], b"x" * 512):
        with pytest.raises(SourceError, match="no sample of a tar shard"):
            members(cut)


@pytest.mark.parametrize("member", ["jpg", ".JPG"])
def test_member_may_be_written_with_a_dot_or_in_capitals(tmp_path: Path, member: str) -> None:
    assert TarShards(pack(tmp_path / "x.tar", [("0", {"JPG": b"1"})]), member).read([0]) == [b"1"]


# -- what is wrong with a shard


def test_missing_member_is_named(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", SAMPLES)
    with pytest.raises(ConfigError, match=f"{path}, the sample 'a/000' has no member 'seg.png'; it has 'jpg', 'cls'"):
        TarShards(path, member="seg.png")


def broken(path: Path, kind: str) -> None:
    pack(path, SAMPLES)
    raw = path.read_bytes()
    if kind == "empty":
        raw = b""
    elif kind == "no samples":
        raw = bytes(10240)
    elif kind == "compressed":
        raw = gzip.compress(raw)
    elif kind == "text":
        raw = b"hello " * 1000
    elif kind == "cut in a content":
        raw = raw[:2000]
    elif kind == "cut after a content":
        with tarfile.open(path) as archive:
            raw = raw[: archive.getmembers()[1].offset]
    elif kind == "broken header":
        with tarfile.open(path) as archive:
            offset = archive.getmembers()[2].offset
        raw = raw[:offset] + b"broken" + raw[offset + 6 :]
    elif kind == "two in one":
        raw = raw + raw
    path.write_bytes(raw)
    with tarfile.open(path, "a") if kind in ("apart", "twice", "link", "hard link", "sparse") else io.BytesIO() as archive:
        if kind == "apart":
            put(archive, "a/000.txt")
        elif kind == "twice":
            put(archive, "b/000.JPG")
        elif kind == "link":
            put(archive, "c.jpg", type=tarfile.SYMTYPE, linkname="elsewhere")
        elif kind == "hard link":
            put(archive, "c.jpg", type=tarfile.LNKTYPE, linkname="b/000.jpg")
        elif kind == "sparse":
            put(archive, "c.jpg", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1"})


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("empty", SourceError, "damaged or no tar file: empty file"),
        ("no samples", ConfigError, "has no samples: files named like"),
        ("compressed", ConfigError, "is compressed, .*: gunzip it"),
        ("text", SourceError, "damaged or no tar file"),
        ("cut in a content", SourceError, "damaged or no tar file: unexpected end of data"),
        ("cut after a content", SourceError, "cut off: its end mark is missing"),
        ("broken header", SourceError, "there is no header at byte"),
        ("two in one", SourceError, "something follows its end mark"),
        ("apart", ConfigError, "members of the sample 'a/000' are not beside each other .*--sort=name"),
        ("twice", ConfigError, "the sample 'b/000' has two members 'jpg'"),
        ("link", ConfigError, "'c.jpg' is a link"),
        ("hard link", ConfigError, "'c.jpg' is a link"),
        ("sparse", ConfigError, "'c.jpg' is stored with holes"),
    ],
)
def test_faults_are_named_and_leave_nothing(tmp_path: Path, kind: str, error: type[Exception], said: str) -> None:
    good = pack(tmp_path / "good.tar", SAMPLES)
    TarShards(good)
    path = tmp_path / "x.tar"
    broken(path, kind)
    with pytest.raises(error, match=f"(?s){path}.*{said}"):
        TarShards([good, path])
    assert sorted(entry for entry in os.listdir(tmp_path) if "cache" not in entry) == [
        "good.tar",
        "good.tar" + SUFFIX,
        "x.tar",
    ]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("paths", "said"), [([], "list of paths is empty"), (["none.tar"], "there is no shard .*/none.tar")]
)
def test_no_shards(paths: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TarShards(paths)


# -- the index


def indexing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards that are indexed from now on."""
    made: list[str] = []
    real = tar_index._make
    monkeypatch.setattr(tar_index, "_make", lambda path: (made.append(path), real(path))[1])
    return made


def test_index_is_made_once_and_again_for_a_changed_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "x.tar", SAMPLES[:1])
    made = indexing(monkeypatch)
    for _ in range(3):
        assert contents_of(TarShards(path)) == SAMPLES[:1]
    assert made == [str(path)]
    assert (tmp_path / f"x.tar{SUFFIX}").is_file()
    pack(path, SAMPLES)
    assert contents_of(TarShards(path)) == SAMPLES
    os.utime(path, ns=(0, 5))
    assert contents_of(TarShards(path)) == SAMPLES
    assert len(made) == 3
    assert sorted(os.listdir(tmp_path)) == ["x.tar", f"x.tar{SUFFIX}"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "of another shard", "folder"])
def test_index_that_cannot_be_believed_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    path, other = pack(tmp_path / "x.tar", SAMPLES), pack(tmp_path / "y.tar", SAMPLES[:1])
    TarShards([path, other])
    index = tmp_path / f"x.tar{SUFFIX}"
    raw = index.read_bytes()
    index.unlink()
    if damage == "folder":
        index.mkdir()
    else:
        replacements = {
            "cut": raw[:-5],
            "flipped": raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:],
            "empty": b"",
            "foreign": os.urandom(len(raw)),
            "of another shard": (tmp_path / f"y.tar{SUFFIX}").read_bytes(),
        }
        index.write_bytes(replacements[damage])
    made = indexing(monkeypatch)
    for _ in range(2):
        assert contents_of(TarShards(path)) == SAMPLES
    assert made == [str(path)]


def test_index_goes_to_the_cache_folder_where_the_shard_may_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(tmp_path / "x.tar", SAMPLES)
    made = indexing(monkeypatch)
    real = open

    def read_only(where: str, mode: str = "r", **options: object) -> object:
        if "x" in mode and not str(where).startswith(str(tmp_path / "cache")):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(where, mode, **options)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", read_only)
    for _ in range(2):
        assert contents_of(TarShards(path)) == SAMPLES
    assert made == [str(path)]
    assert len(os.listdir(tmp_path / "cache/stoker")) == 1
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").touch()
    for _ in range(2):
        assert contents_of(TarShards(path)) == SAMPLES
    assert len(made) == 3
    assert sorted(os.listdir(tmp_path)) == ["cache", "x.tar"]


ONE = [("a", {"x": b"1" * 700}), ("b", {"x": b"2" * 100})]
OTHER = [("a", {"x": b"3" * 100}), ("b", {"x": b"4" * 700})]
WAYS = ["cp -p", "mv", "rsync -t"]


def replace_by(path: Path, samples: list[Sample], way: str) -> None:
    """Put a shard of the same size and time in the place of another."""
    before = path.stat()
    new = pack(path.with_name("new"), samples)
    assert new.stat().st_size == before.st_size
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    if way == "cp -p":
        with path.open("r+b") as file:
            file.write(new.read_bytes())
        shutil.copystat(new, path)
        new.unlink()
    elif way == "mv":
        new.rename(path)
    else:
        shutil.copy2(new, path.with_name(".x.tar.Zx81"))
        path.with_name(".x.tar.Zx81").rename(path)
        new.unlink()
    assert path.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.parametrize("way", WAYS)
def test_a_shard_of_the_same_size_and_time_has_another_index(tmp_path: Path, way: str) -> None:
    path = pack(tmp_path / "x.tar", ONE)
    assert contents_of(TarShards(path)) == ONE
    replace_by(path, OTHER, way)
    assert contents_of(TarShards(path)) == OTHER
    assert TarShards(path, "x").read([0, 1]) == [b"3" * 100, b"4" * 700]


@pytest.mark.parametrize("way", WAYS)
def test_replaced_while_it_is_open(tmp_path: Path, way: str) -> None:
    path = pack(tmp_path / "x.tar", ONE)
    source, unread = TarShards(path, "x"), TarShards(path, "x")
    assert source.read([0]) == [b"1" * 700]
    replace_by(path, OTHER, way)
    for each in (source, unread):
        with pytest.raises(SourceError, match=f"{path} was changed since it was opened"):
            each.read([1])


@pytest.mark.parametrize("way", [*WAYS, "chmod", "ln"])
def test_the_same_shard_is_read_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    path = pack(tmp_path / "x.tar", ONE)
    source = TarShards(path, "x")
    assert source.read([0]) == [b"1" * 700]
    if way == "chmod":
        path.chmod(0o600)
    elif way == "ln":
        os.link(path, tmp_path / "backup")
    else:
        replace_by(path, ONE, way)
    made = indexing(monkeypatch)
    assert source.read([0, 1]) == [b"1" * 700, b"2" * 100]
    assert source.sample_name(1) == "b"
    assert contents_of(TarShards(path)) == ONE
    assert not made


def test_an_index_that_came_with_its_shard_is_adopted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "x.tar", ONE)
    TarShards(path)
    (tmp_path / "there").mkdir()
    copy = tmp_path / "there" / "x.tar"
    for name in ("x.tar", f"x.tar{SUFFIX}"):
        shutil.copy2(tmp_path / name, tmp_path / "there" / name)
    made, compared = indexing(monkeypatch), []
    real = tar_index._digest
    monkeypatch.setattr(tar_index, "_digest", lambda *given: (compared.append(1), real(*given))[1])
    for _ in range(3):
        assert contents_of(TarShards(copy)) == ONE
    assert (made, compared) == ([], [1])


def test_a_sample_that_took_the_place_of_something_else_is_found(tmp_path: Path) -> None:
    def packed(path: Path, between: str) -> Path:
        with tarfile.open(path, "w") as archive:
            for name in ("a.x", between, "b.x"):
                put(archive, name, name[:1].encode() * 600)
        return path

    path = packed(tmp_path / "x.tar", "README")
    assert len(TarShards(path)) == 2
    stamp = path.stat()
    packed(path, "READ.x")
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert [name for name, _ in contents_of(TarShards(path))] == ["a", "READ", "b"]


@settings(max_examples=300)
@given(st.data())
def test_forged_indexes_are_made_anew(data: st.DataObject) -> None:
    """With right checksums, so that only what they say can tell."""
    with tempfile.TemporaryDirectory() as folder:
        path = pack(Path(folder) / "x.tar", SAMPLES[:2])
        TarShards(path)
        place = Path(folder) / f"x.tar{SUFFIX}"
        raw, header = bytearray(place.read_bytes()), tar_index._HEADER
        fields = list(header.unpack_from(raw))
        numbers = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-3, 20))
        if data.draw(st.booleans()):
            fields[data.draw(st.integers(6, 8))] = data.draw(numbers)
        for _ in range(data.draw(st.integers(0, 3))):
            at = header.size + 8 * data.draw(st.integers(0, 20))
            raw[at : at + 8] = struct.pack("<q", data.draw(numbers))
        if data.draw(st.booleans()):
            del raw[data.draw(st.integers(header.size, len(raw))) :]
        fields[-1] = zlib.crc32(bytes(raw[header.size :]))
        raw[: header.size] = header.pack(*fields)
        place.write_bytes(raw)
        with contextlib.suppress(SourceError):
            for record in TarShards(path).read([0, 1]):
                members(record)


def test_an_index_without_end_is_not_read(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", ONE)
    with (tmp_path / f"x.tar{SUFFIX}").open("wb") as file:
        file.truncate(1 << 43)
    assert contents_of(TarShards(path)) == ONE
    (tmp_path / f"x.tar{SUFFIX}").unlink()
    os.mkfifo(tmp_path / f"x.tar{SUFFIX}")
    assert contents_of(TarShards(path)) == ONE


# -- reading


def test_equal_bytes_have_equal_names_in_any_list(tmp_path: Path) -> None:
    first, second = pack(tmp_path / "0.tar", SAMPLES[:2]), pack(tmp_path / "1.tar", SAMPLES[2:])
    both, reversed_, last = TarShards([first, second]), TarShards([second, first]), TarShards([second])
    assert both.name == reversed_.name == last.name == str(tmp_path)
    assert both.key(2) == reversed_.key(0) == last.key(0)
    assert both.version(2) == last.version(0) != both.version(0)
    assert TarShards(second, member="jpg").key(0) != last.key(0)


def test_changed_shard_is_an_error_and_another_version(tmp_path: Path) -> None:
    path = pack(tmp_path / "x.tar", SAMPLES)
    source, fresh = TarShards(path), TarShards(path)
    version = source.version(0)
    source.read([0])
    with open(path, "r+b") as file:
        file.write(b"a/999")
    os.utime(path, ns=(0, 7))
    assert source.version(0) != version
    for each in (source, fresh):
        with pytest.raises(SourceError, match=f"{path} was changed since it was opened"):
            each.read([0])
        with pytest.raises(SourceError, match=f"{path} was changed since it was opened|damaged"):
            each.sample_name(0)
    path.unlink()
    with pytest.raises(SampleNotFound, match=f"sample 1 in {path} cannot be read: No such file"):
        source.read([1])
    source.expect([0, 1])
    source.release([0, 1])


def test_faults_that_pass_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TarShards(pack(tmp_path / "x.tar", SAMPLES), member="cls")
    fails, real = [3], os.pread

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        fails[0] -= 1
        if fails[0] >= 0:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(descriptor, length, offset)

    monkeypatch.setattr(files_module.os, "pread", pread)
    assert source.read([0]) == [b"3"]
    fails[0] = 99
    with pytest.raises(SourceError, match=r"sample 0 in .*/x\.tar cannot be read after 4 tries: Stale file handle"):
        source.read([0])


def test_only_so_many_shards_stay_open_and_none_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_files: int
) -> None:
    monkeypatch.setattr(process, "MOST_OPEN", 3)
    source = TarShards(
        [pack(tmp_path / f"{number}.tar", [(str(number), {"x": b"%d" % number})]) for number in range(8)], "x"
    )
    for _ in range(2):
        assert source.read(range(8)) == [b"%d" % number for number in range(8)]
    assert len(os.listdir("/proc/self/fd")) == open_files + 3
    copy = pickle.loads(pickle.dumps(source))
    assert len(os.listdir("/proc/self/fd")) == open_files + 3
    del source
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert copy.read([7]) == [b"7"]


def test_advice_is_for_the_range_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TarShards(pack(tmp_path / "x.tar", SAMPLES), member="jpg")
    index = index_of(source.paths[0])
    advised: list[tuple[int, int, int]] = []
    monkeypatch.setattr(files_module.os, "posix_fadvise", lambda _, *advice: advised.append(advice))
    source.release([0, 1, 2])
    offsets = index.only("jpg")[0].tolist()
    assert advised == [(offsets[0], 5000, os.POSIX_FADV_DONTNEED), (offsets[2], 300_000, os.POSIX_FADV_DONTNEED)]
    advised.clear()
    source.expect([2])
    assert advised[0] == (offsets[2], 128 << 10, os.POSIX_FADV_WILLNEED)
    assert sum(length for _, length, _ in advised) == 300_000
