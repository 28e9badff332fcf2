"""What a change column says: which rows of an upsert delete.

Its values are those of the usual change feeds: Debezium's `op` (c, u, r, d), Delta Lake's `_change_type` (insert,
update_preimage, update_postimage, delete) and Flink's RowKind (+I, -U, +U, -D). What was there before an update says
nothing that the row after it does not say, so such rows are ignored.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from onceward.core.errors import SchemaError

from .conversions import is_text

_UPSERTS: Final = ("insert", "update", "upsert", "update_postimage", "c", "u", "r", "+i", "+u")
_DELETES: Final = ("delete", "d", "-d")
_IGNORED: Final = ("update_preimage", "-u")
_CHANGES: Final = (*_UPSERTS, *_DELETES, *_IGNORED)


def without_change(schema: pa.Schema, change: str | None) -> pa.Schema:
    """The schema of what is written into the table.

    Raises:
        SchemaError: The change column is not there, or holds no text.
    """
    if not change:
        return schema
    if schema.names.count(change) != 1:
        raise SchemaError(f"change column {change!r} is not in the data, which has {schema.names}")
    kind = schema.field(change).type
    if not is_text(kind.value_type if pa.types.is_dictionary(kind) else kind):
        raise SchemaError(f"change column {change!r} holds {kind}: it must be text, one of {', '.join(_CHANGES)}")
    return schema.remove(schema.get_field_index(change))


def split_changes(batch: pa.RecordBatch, change: str) -> tuple[pa.RecordBatch, pa.Array]:
    """The rows to write, without the change column, and for each whether it deletes (bool).

    Raises:
        SchemaError: A value of the change column is none that is known.
    """
    values = pc.utf8_lower(batch.column(change).cast(pa.string()))
    known = pc.is_in(values, value_set=pa.array(_CHANGES))
    if not pc.all(known, min_count=0).as_py():
        strange = values.filter(pc.invert(known))[0].as_py()
        raise SchemaError(f"change column {change!r} holds {strange!r}: give one of {', '.join(_CHANGES)}")
    rows = batch.remove_column(batch.schema.get_field_index(change))
    kept = pc.invert(pc.is_in(values, value_set=pa.array(_IGNORED)))
    deletes = pc.is_in(values, value_set=pa.array(_DELETES))
    return rows.filter(kept), deletes.filter(kept)
