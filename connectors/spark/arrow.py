"""Spark's schema as Arrow's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that batches of a DataFrame have; a timestamp is in UTC here, in batches in the session's zone.

    pyspark 4.2 wants the zone said, and fails an assertion without it; before, there was no such argument.
    """
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - imports pyarrow

    try:
        found: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    except TypeError:
        found = to_arrow_schema(schema)
    return found
