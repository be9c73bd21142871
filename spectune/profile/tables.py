"""Tables of evidence: written to parquet, read back strictly, and their columns as arrays.

They are read as Arrow tables, without pandas, whose import alone takes longer than an answer.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from spectune.errors import ProfileError

if TYPE_CHECKING:
    import pandas as pd

AGAIN = "run spectune profile again"


def to_arrow(frame: "pd.DataFrame", schema: pa.Schema) -> pa.Table:
    """The columns of the schema, as it has them."""
    return pa.Table.from_pandas(frame[schema.names], schema=schema, preserve_index=False).replace_schema_metadata(None)


def write_table(frame: "pd.DataFrame", schema: pa.Schema, path: Path) -> str:
    """Write a table as its schema has it; SHA-256 of the file."""
    return store(to_arrow(frame, schema), path)


def store(table: pa.Table, path: Path) -> str:
    """Write a table as it is; SHA-256 of the file."""
    pq.write_table(table, path, compression="zstd")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_table(path: Path, schema: pa.Schema, digest: str | None) -> pa.Table:
    """The table in a file of that SHA-256. Raises: ProfileError for any other file, other columns, NaN or infinity."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ProfileError(f"{path.parent} lacks {path.name}", AGAIN) from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise ProfileError(f"{path} is cut short or was changed: its digest is not the recorded one", AGAIN)
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read()  # pq.read_table would import pandas
    except pa.ArrowException as error:
        raise ProfileError(f"{path} is not parquet: {error}", AGAIN) from error
    if not table.schema.equals(schema):
        raise ProfileError(f"{path} has other columns than this version of spectune writes", AGAIN)
    _require_finite(table, path)
    return table


def _require_finite(table: pa.Table, path: Path) -> None:
    for field in table.schema:
        column = table.column(field.name)
        flat = pc.list_flatten(column) if pa.types.is_list(field.type) else column
        if pa.types.is_floating(flat.type) and not pc.all(pc.is_finite(flat.drop_null()), min_count=0).as_py():
            raise ProfileError(f"{path}: {field.name} holds NaN or infinity", AGAIN)


def rows_where(table: pa.Table, **values: Any) -> pa.Table:
    """The rows whose columns have these values; None is a null."""
    mask = np.ones(table.num_rows, np.bool_)
    for name, value in values.items():
        mask &= np.array([one == value for one in table[name].to_pylist()], np.bool_)
    return rows_at(table, np.flatnonzero(mask))


def rows_at(table: pa.Table, places: NDArray[np.int64]) -> pa.Table:
    """These rows, in this order."""
    buffer = pa.py_buffer(np.ascontiguousarray(places, np.int64))
    return table.take(pa.Array.from_buffers(pa.int64(), len(places), [None, buffer]))  # pa.array would import pandas


def numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """[rows] of a column of numbers without nulls."""
    return _as_lies(column.combine_chunks()).astype(np.float64)


def integers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """[rows] of a column of whole numbers without nulls."""
    return _as_lies(column.combine_chunks()).astype(np.int64)


def labels(column: pa.ChunkedArray) -> NDArray[np.object_]:
    """[rows] of any column, as Python has them."""
    return np.array(column.to_pylist(), dtype=object)


def lengths(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """[rows] entries of each list; 0 where it is null."""
    return np.diff(_as_lies(column.combine_chunks().offsets)).astype(np.int64)


def padded(column: pa.ChunkedArray, fill: float = 0.0) -> NDArray[np.float64]:
    """[longest, rows] of a column of lists, filled up behind the shorter ones."""
    counts = lengths(column)
    found = np.full((len(column), int(counts.max(initial=0))), fill)
    found[np.arange(found.shape[1])[None, :] < counts[:, None]] = _as_lies(column.combine_chunks().flatten())
    return np.ascontiguousarray(found.T)


def _as_lies(array: pa.Array) -> NDArray[Any]:
    """Numbers handed over where they lie in memory; to_numpy would import pandas."""
    return np.from_dlpack(pc.cast(array, pa.uint8()) if pa.types.is_boolean(array.type) else array)
