"""A change column: which rows of an upsert delete. Pure.

The values are those of the usual change feeds: Debezium's `op` (c, u, r, d), Delta Lake's `_change_type` (insert,
update_preimage, update_postimage, delete) and Flink's RowKind (+I, -U, +U, -D). What was there before an update says
nothing that the row after it does not say, so such rows are passed over.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from onceward.core.errors import SchemaError

DELETE: Final = "onceward_delete"
"""Column of the staging table."""

_UPSERTS: Final = ("insert", "update", "upsert", "update_postimage", "c", "u", "r", "+i", "+u")
_DELETES: Final = ("delete", "d", "-d")
_PASSED_OVER: Final = ("update_preimage", "-u")


def without_change(schema: pa.Schema, change: str) -> pa.Schema:
    """The schema of what is written into the table.

    Raises:
        SchemaError: The change column is not there, or holds no text.
    """
    if not change:
        return schema
    if schema.names.count(change) != 1:
        raise SchemaError(f"change column {change!r} is not in the data, which has {schema.names}")
    kind = schema.field(change).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise SchemaError(f"change column {change!r} holds {kind}: it must be text, one of {', '.join(_all())}")
    return schema.remove(schema.get_field_index(change))


def split_changes(batch: pa.RecordBatch, change: str) -> tuple[pa.RecordBatch, pa.Array]:
    """The rows to write, without the change column, and for each whether it deletes (bool).

    Raises:
        SchemaError: A value of the change column is none that is known.
    """
    values = pc.utf8_lower(batch.column(change).cast(pa.string()))
    known = pc.is_in(values, value_set=pa.array(_all()))
    if not pc.all(known, min_count=0).as_py():
        strange = values.filter(pc.invert(known))[0].as_py()
        raise SchemaError(f"change column {change!r} holds {strange!r}: give one of {', '.join(_all())}")
    rows = batch.remove_column(batch.schema.get_field_index(change))
    kept = pc.invert(pc.is_in(values, value_set=pa.array(_PASSED_OVER)))
    deletes = pc.is_in(values, value_set=pa.array(_DELETES))
    return rows.filter(kept), deletes.filter(kept)


def _all() -> tuple[str, ...]:
    return (*_UPSERTS, *_DELETES, *_PASSED_OVER)
