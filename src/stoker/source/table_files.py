"""Files of rows: Parquet, and Arrow in both of its formats. PyArrow's one home.

All are read in groups of rows: a row group of Parquet, a record batch of Arrow. Arrow files are mapped, not read: their
groups cost nothing until their bytes are touched, and are shared by all processes of the host. PyArrow's own threads are
not used: they do not survive a fork, and a reader has waited for ever for one that prefetched for it (`pre_buffer`).
"""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.errors import ConfigError, SourceError
from stoker.memory import Bytes

PARQUET = (".parquet", ".pq")
_MAGIC = b"ARROW1"


class Values(NamedTuple):
    """One column of bytes or text of a group."""

    content: memoryview
    bounds: NDArray[np.int64]
    """Where each value begins, and at last where the last one ends."""


class TableFile:
    """One open file."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            if path.lower().endswith(PARQUET):
                self._parquet: Any = pq.ParquetFile(path, memory_map=True, pre_buffer=False)
                self._batches: list[Any] = []
                self.schema = self._parquet.schema_arrow
            else:
                self._parquet = None
                self._batches, self.schema = _mapped(path)
        except (pa.ArrowException, ValueError) as error:
            raise SourceError(f"the table {path} is damaged or of another format: {error}") from error

    @property
    def is_mapped(self) -> bool:
        """Whether its groups are pages of the file, which cost no memory of their own."""
        return self._parquet is None

    def rows(self) -> list[int]:
        """How many rows each group has."""
        if self._parquet is None:
            return [batch.num_rows for batch in self._batches]
        meta = self._parquet.metadata
        return [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]

    def group(self, number: int, columns: list[str] | None) -> Any:
        """The rows of a group, as a record batch."""
        try:
            if self._parquet is None:
                batch = self._batches[number]
                return batch if columns is None else batch.select(columns)
            table = self._parquet.read_row_group(number, columns=columns, use_threads=False).combine_chunks()
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SourceError(f"group {number} of the table {self._path} cannot be read: {error}") from error
        found = table.to_batches()
        if len(found) != 1:  # more than 2 GB of one column
            raise SourceError(f"group {number} of the table {self._path} is too large: write smaller row groups")
        return found[0]


def _mapped(path: str) -> tuple[list[Any], Any]:
    mapped = pa.memory_map(path)
    if mapped.read(len(_MAGIC)) == _MAGIC:
        mapped.seek(0)
        file = pa.ipc.open_file(mapped)
        return [file.get_batch(number) for number in range(file.num_record_batches)], file.schema
    mapped.seek(0)
    stream = pa.ipc.open_stream(mapped)
    return list(stream), stream.schema


def path_of(schema: Any, column: str) -> list[str]:
    """The names that lead to a column: `image.bytes` may be the name of one, or a field of the column `image`."""
    return [column] if column in schema.names else column.split(".")


def values_of(batch: Any, column: str, path: str) -> Values:
    """A column of a group; `image.bytes` is a field of the column `image`, or a column of this name."""
    first, *inner = path_of(batch.schema, column)
    array = batch.column(first)
    for name in inner:
        array = array.field(name) if not array.null_count and not array.offset else pc.struct_field(array, name)
    if (plain := _plain(array.type)) != array.type:
        array = array.cast(plain)
    if array.null_count:
        raise SourceError(f"the column {column!r} of {path} has rows without a value")
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, bounds, content = array.buffers()
    every = np.frombuffer(bounds, np.int64 if is_large else np.int32) if bounds is not None else np.zeros(1, np.int64)
    some = every[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return Values(_bytes_of(content if content is not None else b""), some)


def _bytes_of(buffer: Any) -> memoryview:
    """PyArrow's buffers have numbers with a sign, to Python."""
    return memoryview(buffer).cast("B")


def check_column(path: str, schema: Any, column: str) -> None:
    """Raise a ConfigError unless a column is there, and has values of bytes or text."""
    first, *inner = path_of(schema, column)
    kind = schema.field(first).type if first in schema.names else None
    for name in inner:
        names = [field.name for field in kind] if kind is not None and pa.types.is_struct(kind) else []
        kind = kind.field(name).type if kind is not None and name in names else None
    if kind is None:
        raise ConfigError(f"the table {path} has no column {column!r}; it has {', '.join(map(repr, schema.names))}")
    if _plain(kind) is None:
        inside = f": {', '.join(repr(f'{column}.{field.name}') for field in kind)}" if pa.types.is_struct(kind) else ""
        raise ConfigError(f"the column {column!r} of {path} is of type {kind}, and not bytes or text{inside}")


def _plain(kind: Any) -> Any:
    """The type in which bytes or text lie one after the other: of them, of their views and dictionaries. Or None."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    others = {pa.binary_view(): pa.large_binary(), pa.string_view(): pa.large_string()}
    kind = pa.binary() if pa.types.is_fixed_size_binary(kind) else others.get(kind, kind)
    return kind if kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()) else None


def encoded(batch: Any, number: int) -> Bytes:
    """One row with all its columns: a stream in Arrow's format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch.slice(number, 1))
    return _bytes_of(sink.getvalue())


def row(raw: Bytes) -> dict[str, Any]:
    """The columns of a row, by name."""
    with pa.ipc.open_stream(pa.py_buffer(raw)) as stream:
        found: dict[str, Any] = stream.read_next_batch().to_pylist()[0]
    return found
