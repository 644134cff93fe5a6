import multiprocessing
import os
import pickle
import subprocess
import sys

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker import open_source
from stoker.errors import ConfigError, SourceError
from stoker.source.files import Files
from stoker.source.table_files import TableFile, row
from stoker.source.tables import Tables
from stoker.testing import SourceContract

TEXTS = [f"text {number} ".encode() * (number % 7) for number in range(100)]


def table(texts=TEXTS):
    return pa.table({"text": texts, "label": list(range(len(texts)))})


@pytest.fixture
def parquet(tmp_path):
    place = tmp_path / "rows.parquet"
    pq.write_table(table(), place, row_group_size=16)
    return place


@pytest.fixture(params=["parquet", "arrow file", "arrow stream", "parquet that is kept in part"])
def source(request, tmp_path, parquet):
    if request.param.startswith("parquet"):
        return Tables(parquet, "text", keep="1GB" if request.param == "parquet" else 1)
    place = tmp_path / "rows.arrow"
    new = pa.ipc.new_file if request.param == "arrow file" else pa.ipc.new_stream
    with new(str(place), table().schema) as file:
        file.write_table(table(), max_chunksize=16)
    return Tables(place, "text")


class TestContract(SourceContract):
    @pytest.fixture
    def expected(self):
        return TEXTS

    @pytest.fixture
    def source(self, source):
        return source


class TestContractOfWholeRows(SourceContract):
    @pytest.fixture
    def source(self, parquet):
        return open_source(parquet)

    @pytest.fixture
    def expected(self, parquet):
        source = Tables([str(parquet)])
        return [bytes(raw) for raw in source.read(range(100))]


def test_bytes_are_numbers_from_0_to_255_wherever_their_group_lies(tmp_path):
    texts = [bytes([200 + number]) * 100 for number in range(20)]
    pq.write_table(table(texts), tmp_path / "rows.parquet", row_group_size=2)
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table(texts).schema) as file:
        file.write_table(table(texts))
    kept, passing = (Tables(tmp_path / "rows.parquet", "text", keep=keep) for keep in ("1GB", 1))
    for source in (kept, passing, Tables(tmp_path / "rows.arrow", "text")):
        assert [(raw[0], memoryview(raw) == text) for raw, text in zip(source.read(range(20)), texts, strict=True)] == [
            (200 + number, True) for number in range(20)
        ]
    assert memoryview(open_source(tmp_path / "rows.parquet").read([0])[0])[0] == 255


def test_a_row_has_all_its_columns(parquet):
    source = open_source(str(parquet))
    for number in (0, 15, 16, 99):
        assert row(source.read([number])[0]) == {"text": TEXTS[number], "label": number}


def test_expected_rows_are_the_same_in_a_worker(parquet):
    dataset = stoker.Dataset(Tables(parquet, "text", keep="1kB"), whole)
    with stoker.DataLoader(dataset, batch_size=9, num_workers=2, shuffle=True, seed=1, collate_fn=list) as loader:
        assert sorted(raw for batch in loader for raw in batch) == sorted(TEXTS)


def whole(raw, index, rng):
    assert multiprocessing.current_process().daemon
    return bytes(raw)


def test_a_dataset_saved_by_hugging_face(tmp_path):
    images = [{"bytes": text + b"!", "path": "x.png"} for text in TEXTS]
    saved = datasets.Dataset.from_dict({"image": images, "label": list(range(100))})
    saved.save_to_disk(tmp_path / "saved", num_shards=3)
    assert row(open_source(tmp_path / "saved").read([57])[0]) == {"image": images[57], "label": 57}
    files = sorted((tmp_path / "saved").glob("*.arrow"))
    pixels = Tables(files, "image.bytes")
    order = np.random.default_rng(0).permutation(100).tolist()
    assert [bytes(raw) for raw in pixels.read(order)] == [images[number]["bytes"] for number in order]
    datasets.DatasetDict({"train": saved, "test": saved}).save_to_disk(tmp_path / "splits")
    with pytest.raises(ConfigError, match="has the splits train, test: give one"):
        open_source(tmp_path / "splits")


def test_a_column_may_have_a_dot_in_its_name(tmp_path):
    flat = pa.table(
        {"image": [b"whole"] * 9, "image.bytes": TEXTS[:9], "image.path": [{"bytes": text} for text in TEXTS[:9]]}
    )
    pq.write_table(flat, tmp_path / "rows.parquet", row_group_size=4)
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), flat.schema) as file:
        file.write_table(flat)
    for name in ("rows.parquet", "rows.arrow"):
        found = [
            [bytes(raw) for raw in Tables(tmp_path / name, column).read(range(9))] for column in ("image", "image.bytes")
        ]
        assert found == [[b"whole"] * 9, TEXTS[:9]]


@pytest.mark.parametrize(
    "kind",
    [pa.binary_view(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.binary())],
    ids=str,
)
@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow"])
def test_bytes_and_text_in_whatever_form(tmp_path, name, kind):
    texts = pa.array(TEXTS[:40])
    texts = texts.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else texts.cast(kind)
    odd = pa.table({"text": texts})
    if name == "rows.parquet":
        pq.write_table(odd, tmp_path / name, row_group_size=16)
    else:
        with pa.ipc.new_file(str(tmp_path / name), odd.schema) as file:
            file.write_table(odd, max_chunksize=16)
    for keep in ("1GB", 1):
        assert [bytes(raw) for raw in Tables(tmp_path / name, "text", keep=keep).read([39, 0, 17])] == [
            TEXTS[39],
            TEXTS[0],
            TEXTS[17],
        ]


def test_bytes_of_one_length_are_bytes(tmp_path):
    pq.write_table(pa.table({"id": pa.array([b"abc", b"def"], pa.binary(3))}), tmp_path / "rows.parquet")
    assert [bytes(raw) for raw in Tables(tmp_path / "rows.parquet", "id").read([1, 0])] == [b"def", b"abc"]


def test_a_dictionary_with_a_value_that_is_none_is_an_error_where_it_is_used(tmp_path):
    words = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["one", None]))
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), pa.schema({"word": words.type})) as file:
        file.write_table(pa.table({"word": words}))
    with pytest.raises(SourceError, match="rows without a value"):
        Tables(tmp_path / "rows.arrow", "word").read([0])


def test_an_empty_dataset_saved_by_hugging_face_has_no_rows(tmp_path):
    datasets.Dataset.from_dict({"text": ["one"]}).select([]).save_to_disk(tmp_path)
    with pytest.raises(ConfigError, match=r"no rows in .*: an empty dataset"):
        open_source(tmp_path)


def test_what_a_path_means(tmp_path, parquet):
    pq.write_table(table(TEXTS[:3]), tmp_path / "a.parquet")
    assert len(open_source(tmp_path)) == 103  # by name
    assert row(open_source(str(tmp_path / "*.parquet")).read([3])[0])["label"] == 0
    assert row(open_source([tmp_path / "a.parquet", parquet]).read([102])[0])["label"] == 99
    (tmp_path / "README.md").write_text("words")
    with pytest.raises(ConfigError, match=r"both tables and others, 'README.md'"):
        open_source(tmp_path)
    assert len(Files(tmp_path)) == 3


def test_errors_name_file_and_column(tmp_path, parquet):
    with pytest.raises(ConfigError, match="no column 'picture'; it has 'text', 'label'"):
        Tables(parquet, "picture")
    with pytest.raises(ConfigError, match=r"'label' of .* is of type int64, and not bytes or text"):
        Tables(parquet, "label")
    pq.write_table(pa.table({"image": [{"bytes": b"1", "path": "x"}]}), tmp_path / "i.parquet")
    with pytest.raises(ConfigError, match=r"not bytes or text: 'image\.bytes', 'image\.path'"):
        Tables(tmp_path / "i.parquet", "image")
    pq.write_table(pa.table({"text": ["one", None]}), tmp_path / "n.parquet")
    with pytest.raises(SourceError, match=r"the column 'text' of .*n\.parquet has rows without a value"):
        Tables(tmp_path / "n.parquet", "text").read([0])
    damaged = tmp_path / "damaged.parquet"
    damaged.write_bytes(parquet.read_bytes()[:-9])
    with pytest.raises(SourceError, match=r"damaged\.parquet is damaged or of another format"):
        open_source(damaged)
    with pytest.raises(ConfigError, match="there is no table"):
        Tables(tmp_path / "none.parquet")


def test_groups_that_stay_lie_in_memory_of_the_source(tmp_path):
    place = tmp_path / "rows.parquet"
    raws = [bytes([number]) * 10_000 for number in range(100)]
    pq.write_table(table(raws), place, row_group_size=25)
    stays, goes = Tables(place, "text"), Tables(place, "text", keep=300_000)
    before = pa.total_allocated_bytes()
    assert stays.read(range(100)) == raws
    assert pa.total_allocated_bytes() - before < 250_000  # PyArrow's own is free for the next group
    assert goes.read(range(100)) == raws
    assert len(goes._held.get()._held) == 1
    with pytest.raises(TypeError):
        stays.read([3])[0][0] = 1


def test_where_not_all_groups_can_stay_those_that_came_first_do(tmp_path, monkeypatch):
    place, read, whole = tmp_path / "rows.parquet", [], TableFile.group
    raws = [bytes([number]) * 1000 for number in range(200)]
    pq.write_table(table(raws), place, row_group_size=10)
    monkeypatch.setattr(
        TableFile, "group", lambda self, number, columns: read.append(number) or whole(self, number, columns)
    )
    source = Tables(place, "text", keep=125_000)  # PyArrow counts some bytes more for those that pass
    for epoch in range(3):
        assert [bytes(source.read([number])[0]) for number in range(200)] == raws
        assert len(source._held.get()._held) <= 12
        assert read == [*range(20)] if epoch == 0 else len(read) <= 13
        read.clear()


@pytest.mark.parametrize("keep", ["1GB", 1])
def test_a_table_that_changes_is_an_error_and_never_other_rows(parquet, keep):
    source = Tables(parquet, "text", keep=keep)
    version, first = source.version(0), bytes(source.read([1])[0])
    os.link(parquet, parquet.with_name("link"))  # its rows are the same
    assert bytes(source.read([40])[0]) == TEXTS[40]
    pq.write_table(table(TEXTS[::-1]), parquet.with_name("new"), row_group_size=16)
    os.replace(parquet.with_name("new"), parquet)
    with pytest.raises(SourceError, match=r"rows\.parquet was changed since it was opened"):
        source.read([99])
    with pytest.raises(SourceError, match="was changed since it was opened"):
        pickle.loads(pickle.dumps(source)).read([1])
    assert source.version(0) == version != Tables(parquet, "text").version(0)  # no cache has these rows for the new ones
    assert first == TEXTS[1]


@pytest.mark.parametrize(("name", "said"), [("state.json", "{}"), ("state.json", "7"), ("dataset_dict.json", "no JSON")])
def test_a_note_that_is_not_of_hugging_face_is_named(tmp_path, name, said):
    (tmp_path / name).write_text(said)
    with pytest.raises(ConfigError, match=rf"{name} is none that `datasets` writes"):
        open_source(tmp_path)


COUNT_THREADS = """
import os, sys
import stoker.source.table_files
from stoker.source.tables import Tables

before = len(os.listdir("/proc/self/task"))
rows = Tables(sys.argv[1], "text")
rows.read(range(100))
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_pyarrow_reads_in_the_thread_that_asks(parquet):
    """A thread of its own that reads ahead does not survive a fork, and has left a reader waiting for ever."""
    done = subprocess.run([sys.executable, "-c", COUNT_THREADS, str(parquet)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
