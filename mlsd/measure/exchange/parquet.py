"""Parquet of trials or rounds, typed and compressed; needs pyarrow."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO

from mlsd.errors import InputError
from mlsd.measure.exchange.tables import column_kind, trial_table
from mlsd.measure.store.rows import TrialFilter
from mlsd.measure.store.store import Store

if TYPE_CHECKING:
    from mlsd.measure.exchange import Content

_BATCH_ROWS = 50_000


def write(store: Store, out: BinaryIO, chosen: TrialFilter, content: Content) -> int:
    """Write the table in batches; returns how many rows. Raises: InputError without pyarrow."""
    arrow, parquet = _arrow()
    table = store.rounds(chosen) if content == "rounds" else trial_table(store, chosen)
    types = {"text": arrow.string(), "integer": arrow.int64(), "number": arrow.float64(), "flag": arrow.bool_()}
    schema = arrow.schema([(column, types[column_kind(column)]) for column in table.columns])
    count = 0
    with parquet.ParquetWriter(out, schema) as writer:
        while rows := list(islice(table.rows, _BATCH_ROWS)):
            columns = [list(column) for column in zip(*rows, strict=True)]
            writer.write_table(arrow.Table.from_arrays([*map(arrow.array, columns, schema.types)], schema=schema))
            count += len(rows)
    return count


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError(
            "Parquet needs the package pyarrow, which is not installed.", hint="pip install 'mlsd[parquet]'"
        ) from error
    return pyarrow, parquet
