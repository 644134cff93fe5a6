import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import pytest
from tests.source.bucket_server import BucketServer, etag
from tests.source.moto_bucket import content, moto_bucket
from tests.tries import until

import stoker
from stoker import open_source
from stoker.errors import ConfigError, SampleNotFound, SourceError
from stoker.host import process
from stoker.source import getting
from stoker.source.files import Files
from stoker.source.objects import Objects
from stoker.source.opening import open_stored
from stoker.source.tar import members
from stoker.source.tar_objects import TarObjects
from stoker.testing import SourceContract

CONTENTS = {f"data/{label}/{number}.bin": f"{label} {number} ".encode() * 50 for label in "ba" for number in range(4)}


@pytest.fixture(autouse=True)
def a_process_of_our_own():
    """The next test's process has the next test's environment."""
    yield
    getting._close()
    getting._getter = None


@pytest.fixture
def server(monkeypatch, tmp_path):
    serving = BucketServer(page=5)
    for name, value in {
        "AWS_ENDPOINT_URL": serving.address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    serving.objects.update(CONTENTS)
    yield serving
    serving.close()


class TestContract(SourceContract):
    @pytest.fixture
    def source(self, server):
        return open_source("s3://bucket/data/")

    @pytest.fixture
    def expected(self):
        return [CONTENTS[key] for key in sorted(CONTENTS)]


class TestContractOfShards(SourceContract):
    @pytest.fixture
    def source(self, server, tmp_path):
        server.objects["shards/0.tar"] = shard(tmp_path, {"a.txt": b"first", "b.txt": b""})
        server.objects["shards/1.tar"] = shard(tmp_path, {"c.txt": b"third" * 1000})
        return TarObjects(["s3://bucket/shards/0.tar", "s3://bucket/shards/1.tar"], member="txt")

    @pytest.fixture
    def expected(self):
        return [b"first", b"", b"third" * 1000]


def shard(folder: Path, content: dict[str, bytes]) -> bytes:
    place = folder / "shard.tar"
    with tarfile.open(place, "w") as archive:
        for name, raw in content.items():
            (folder / name).write_bytes(raw)
            archive.add(folder / name, name)
    return place.read_bytes()


def test_one_listing_and_one_get_for_each_sample(server):
    source = open_source("s3://bucket/data/")
    assert server.pages == 2  # of five each
    assert not server.gets
    ids = list(range(len(source)))
    source.expect(ids)
    assert [bytes(raw) for raw in source.read(ids)] == [CONTENTS[key] for key in sorted(CONTENTS)]
    assert server.gets == dict.fromkeys(CONTENTS, 1)
    assert server.pages == 2
    assert None not in server.conditions
    assert list(source.sizes(ids)) == [len(CONTENTS[key]) for key in sorted(CONTENTS)]
    assert sum(server.asked.values()) == len(ids) + 2


def test_the_order_and_labels_are_those_of_a_folder(server, tmp_path):
    names = ["b/2", "b/10", "b-c/1", "a/sub/x", "a/sub-1/x", "a/y", "a/.hidden", ".gone/1", "loose", "é/ü %41"]
    server.objects = {f"tree/{name}": name.encode() for name in names} | {"tree/": b"", "tree/a/": b"", "tree/a/sub/": b""}
    for name in names:
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(name.encode())
    source, files = open_source("s3://bucket/tree"), Files(tmp_path / "tree")
    ids = list(range(len(files)))
    assert [bytes(raw) for raw in source.read(ids)] == files.read(ids)
    assert source.classes == files.classes
    assert list(source.labels) == list(files.labels)


def test_a_folder_that_is_empty_is_no_sample(server):
    server.objects = {"tree/": b"", "tree/1": b"one", "tree/2": b"", "tree/new/": b"", "tree/new/er/": b""}
    source = open_source("s3://bucket/tree")
    assert [bytes(raw) for raw in source.read(range(len(source)))] == [b"one", b""]
    assert {key: count for (what, key), count in server.asked.items() if what == "HEAD"} == {"tree/2": 1, "tree/new/er": 1}
    with pytest.raises(ConfigError, match="empty folders"):
        open_source("s3://bucket/tree/new/")


def test_patterns_lists_and_file_addresses(server, tmp_path):
    def read(where):
        source = open_source(where)
        return [bytes(raw) for raw in source.read(range(len(source)))]

    assert read("s3://bucket/data/a/*.bin") == [CONTENTS[f"data/a/{number}.bin"] for number in range(4)]
    assert read("s3://bucket/**/1.bin") == [CONTENTS["data/a/1.bin"], CONTENTS["data/b/1.bin"]]
    assert read("s3://bucket/data/b/{3..2}.bin") == [CONTENTS["data/b/3.bin"], CONTENTS["data/b/2.bin"]]
    assert read(["s3://bucket/data/b/3.bin", "s3://bucket/data/a/0.bin"]) == [
        CONTENTS["data/b/3.bin"],
        CONTENTS["data/a/0.bin"],
    ]
    (tmp_path / "with space").mkdir()
    (tmp_path / "with space" / "one").write_bytes(b"1")
    assert read(f"file://{tmp_path}/with%20space") == [b"1"]
    for wrong, named in {
        "s3://bucket/none/": "no objects in s3://bucket/none/",
        "s3://bucket/data/a/0.bin": "a single object is given in a list",
        "s3://bucket/data/*.jpg": "no objects match",
        "s3://other/data/": "NoSuchBucket",
        "ftp://host/x": "known are",
        "https://host/x?y=1": "query",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(named)):
            open_source(wrong)
    with pytest.raises(ConfigError, match="give one kind"):
        open_source(["s3://bucket/data/a/0.bin", str(tmp_path)])


@pytest.mark.parametrize("faults", [[503], [429, 429], [500, 503], ["cut"], ["gone"]], ids=str)
def test_what_may_pass_is_tried_again(server, faults):
    source = open_source("s3://bucket/data/")
    server.faults["data/a/1.bin"].extend(faults)
    assert bytes(source.read([1])[0]) == CONTENTS["data/a/1.bin"]
    assert server.gets["data/a/1.bin"] == 1 + len(faults)
    server.faults["data/"].extend([503])
    assert len(open_source("s3://bucket/data/")) == 8


def test_a_changed_object_is_read_anew(server):
    source = open_source("s3://bucket/data/")
    before = source.version(0), source.version(1), source.key(0)
    server.objects["data/a/0.bin"] = b"other"
    with pytest.warns(UserWarning, match="s3://bucket/data/a/0.bin was changed since it was listed"):
        assert [bytes(raw) for raw in source.read([0, 1])] == [b"other", CONTENTS["data/a/1.bin"]]
    assert source.version(0) != before[0]
    assert (source.version(1), source.key(0)) == before[1:]
    assert source.sizes([0]) == [5]
    server.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bytes(source.read([0])[0]) == b"other"
    assert server.gets == {"data/a/0.bin": 1}
    assert open_source("s3://bucket/data/").version(0) == source.version(0)


def test_an_object_that_is_gone_or_refused_is_named(server):
    source = open_source("s3://bucket/data/")
    del server.objects["data/a/2.bin"]
    with pytest.raises(SampleNotFound, match=re.escape("s3://bucket/data/a/2.bin cannot be read: it is not there")):
        source.read([1, 2])
    server.faults["data/a/3.bin"].append(403)
    with pytest.raises(SampleNotFound, match=r"s3://bucket/data/a/3.bin .* refuses \(AccessDenied"):
        source.read([3])
    server.faults["data/"].append(403)
    with pytest.raises(ConfigError, match=r"s3://bucket/data/ cannot be listed: AccessDenied"):
        open_source("s3://bucket/data/")


def test_without_credentials_the_error_says_what_to_set(server, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.address)
    with pytest.raises(ConfigError, match="no credentials were found: set AWS_PROFILE"):
        open_source("s3://bucket/data/")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    getting._close()
    getting._getter = None  # a process has the environment of its start
    assert len(open_source("s3://bucket/data/")) == 8


@pytest.mark.parametrize(
    ("said", "setting"),
    [
        ("Error performing GET http://169.254.169.254/computeMetadata/v1/instance/token", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("Error performing GET http://169.254.169.254/metadata/identity/oauth2/token", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("Generic MicrosoftAzure error: Account must be specified", "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_other_stores_say_what_to_set_too(said, setting):
    code = f"from stoker.source.stores import _answer; print(_answer(ValueError({said!r})).text)"
    asked = [sys.executable, "-c", code]  # which loads obstore: not in a process that forks workers
    said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"no credentials were found: set {setting}")


@pytest.mark.parametrize("where", ["s3://bucket/t/1.parquet", "s3://bucket/t/", "s3://bucket/t/*.parquet"])
def test_tables_in_a_store_are_not_taken_for_samples(server, where):
    server.objects |= {"t/1.parquet": b"PAR1", "t/2.parquet": b"PAR1"}
    with pytest.raises(ConfigError, match=r"s3://bucket/t/.*\.parquet is a table, and rows are read from files"):
        open_source(where)
    assert len(Objects("s3://bucket/t/")) == len(open_stored("s3://bucket/t/")) == len(open_stored("s3://bucket/t/*")) == 2


def test_a_profile_of_boto3_is_used(server, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[work]\naws_access_key_id = from-profile\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_PROFILE", "work")
    assert len(open_source("s3://bucket/data/")) == 8
    assert all("Credential=from-profile/" in signed for signed in server.signed)
    getting._close()
    getting._getter = None
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match=r"the AWS profile cannot be used: The config profile .nobody."):
        open_source("s3://bucket/data/")


def test_a_shard_is_read_by_ranges_and_indexed_once(server, tmp_path):
    server.objects["shards/0.tar"] = shard(tmp_path, {"a.txt": b"first", "a.cls": b"7", "b.txt": b"second"})
    source = open_source("s3://bucket/shards/")
    assert {name: bytes(raw) for name, raw in members(source.read([0])[0]).items()} == {"txt": b"first", "cls": b"7"}
    server.forget()
    again = open_source("s3://bucket/shards/0.tar")
    assert not server.gets  # its index is kept
    assert bytes(again.read([1])[0]) == bytes(source.read([1])[0])
    server.objects["shards/0.tar"] = shard(tmp_path, {"a.txt": b"FIRST", "a.cls": b"7", "b.txt": b"second"})
    with pytest.raises(SourceError, match="was changed since it was opened"):
        again.read([0])
    assert bytes(members(open_source("s3://bucket/shards/0.tar").read([0])[0])["txt"]) == b"FIRST"
    server.objects["shards/1.tar"] = server.objects["shards/0.tar"][:2000]
    with pytest.raises(SourceError, match=r"shards/1\.tar is damaged"):
        open_source("s3://bucket/shards/1.tar")


def test_a_listing_is_kept_as_long_as_one_says(server, monkeypatch):
    monkeypatch.setenv("STOKER_LISTING_AGE", "3600")
    first = open_source("s3://bucket/data/")
    server.objects["data/a/new.bin"] = b"new"
    server.forget()
    second = open_source("s3://bucket/data/")
    assert not server.pages
    assert [second.address(number) for number in range(8)] == [first.address(number) for number in range(8)]
    assert bytes(second.read([7])[0]) == CONTENTS["data/b/3.bin"]
    monkeypatch.delenv("STOKER_LISTING_AGE")
    assert len(open_source("s3://bucket/data/")) == 9


def test_a_web_server_is_read_by_a_list_of_names(server):
    address = f"{server.address}/bucket/web"
    names = ["a/1", "b/2"]
    server.objects |= {f"web/{name}": name.encode() for name in names}
    with pytest.raises(ConfigError, match=r"index\.txt is not there"):
        open_source(address + "/")
    server.objects["web/index.txt"] = "\n".join(names).encode()
    server.objects["web/sized.txt"] = "\n".join(f"{name}\t3\t{etag(name.encode())}" for name in names).encode()
    server.objects["web/out.txt"] = b"../secret"
    for where in (address + "/", address + "/sized.txt"):
        source = open_source(where)
        assert source.classes == ["a", "b"]
        assert [bytes(raw) for raw in source.read([0, 1])] == [b"a/1", b"b/2"]
        assert source.sizes([0, 1]) == [3, 3]
    with pytest.raises(ConfigError, match="no name below"):
        open_source(address + "/out.txt")
    assert ("HEAD", "web/a/1") in server.asked  # only where the list has no sizes
    assert server.asked["HEAD", "web/a/1"] == 1


def test_google_cloud_storage(server, monkeypatch):
    key = {
        "gcs_base_url": server.address,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))
    source = open_source("gs://bucket/data/")
    assert [bytes(raw) for raw in source.read(range(8))] == [CONTENTS[key] for key in sorted(CONTENTS)]


def test_the_process_beside_is_started_again_if_it_is_killed(server):
    source = open_source("s3://bucket/data/")
    beside = getting.getter()
    source.expect([0, 1, 2])
    os.kill(beside._process.pid, signal.SIGKILL)
    assert bytes(source.read([1])[0]) == CONTENTS["data/a/1.bin"]
    assert getting.getter() is not beside


def test_the_process_beside_ends_with_its_parent(server):
    script = (
        "import os, sys, stoker\n"
        "from stoker.source import getting\n"
        "stoker.open_source('s3://bucket/data/')\n"
        "if os.fork():\n"
        "    print(getting.getter()._process.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "sys.stdin.read()\n"  # a child lives on
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        beside = int(parent.stdout.readline())
        until(lambda: not os.path.exists(f"/proc/{beside}") or process.find(beside).is_dead)
        parent.stdin.close()


def test_the_parent_reads_then_workers_then_the_parent_again(server):
    server.objects = {f"data/{number:03}": f"{number}".encode() * 9 for number in range(64)}
    dataset = stoker.Dataset("s3://bucket/data/", length_of)
    assert dataset[0] == 9
    for _ in range(2):
        with stoker.DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context="fork") as loader:
            assert sum(int(batch.sum()) for batch in loader) == sum(map(len, server.objects.values()))
            assert dataset[63] == 18
    assert dataset[1] == 9


def length_of(raw, index, rng):
    return len(raw)


def test_one_get_for_each_miss_and_none_for_a_hit(server, tmp_path):
    server.objects = {f"data/{number:03}": f"{number}".encode() * 50 for number in range(96)}
    dataset = stoker.Dataset("s3://bucket/data/", whole, cache="1MB", cache_dir=tmp_path / "kept")
    with stoker.DataLoader(dataset, batch_size=8, num_workers=2, shuffle=True, seed=3, collate_fn=list) as loader:
        for _ in range(2):
            seen = [raw for batch in loader for raw in batch]
            assert sorted(seen) == sorted(server.objects.values())
            assert server.gets == dict.fromkeys(server.objects, 1)
    assert server.pages == 20


def whole(raw, index, rng):
    return bytes(raw)


def test_moto_agrees(monkeypatch, tmp_path):
    with moto_bucket(2100) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "x")
        source = open_source("s3://bucket/data/")
        assert len(source) == 2100
        ids = [2099, 0, 1000, 7]
        assert [bytes(raw) for raw in source.read(ids)] == [content(number) for number in ids]
        with pytest.raises(ConfigError, match="NoSuchBucket"):
            open_source("s3://nobody/data/")


@pytest.mark.soak
def test_a_hundred_thousand_objects_of_moto(server, monkeypatch):
    with moto_bucket(100_000) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        source = open_source("s3://bucket/data/")
        assert len(source) == 100_000
        ids = list(range(0, 100_000, 97))
        source.expect(ids)
        assert [bytes(raw) for raw in source.read(ids)] == [content(number) for number in ids]


@pytest.mark.soak
def test_a_hundred_thousand_objects_each_got_once(server, tmp_path):
    server.page = 1000
    server.objects = {f"data/{number:06}": b"%d" % number for number in range(100_000)}
    dataset = stoker.Dataset("s3://bucket/data/", whole, cache="100MB", cache_dir=tmp_path / "kept")
    assert server.pages == 100
    failing = {f"data/{number:06}": ["cut", 503, 429, "gone"][number % 4] for number in range(0, 100_000, 997)}
    for key, fault in failing.items():
        server.faults[key].append(fault)
    with stoker.DataLoader(dataset, batch_size=64, num_workers=2, shuffle=True, seed=3, collate_fn=list) as loader:
        for _ in range(2):
            assert sorted(int(raw) for batch in loader for raw in batch) == list(range(100_000))
            assert server.gets == {key: 1 + (key in failing) for key in server.objects}
    assert server.pages == 100
