"""Arrow schemas of DataFrames, and Spark's schemas of what Arrow holds."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from onceward.core.errors import ConfigurationError, SchemaError
from onceward.core.kit.rows import with_leaves

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

    from onceward.core.contract.source import ResettableSource


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert timestamps to UTC: Spark uses the session's zone in a task, and UTC in the driver.

    So keys, folders and texts that are made of an instant are the same whoever writes it, and in whatever session.
    """
    schema = _in_utc(batch.schema)
    return batch if schema is None else batch.cast(schema)


@functools.lru_cache(64)
def _in_utc(schema: pa.Schema) -> pa.Schema | None:
    """Return the schema in UTC; None if it is that already."""
    schema_ = pa.schema([field.with_type(with_leaves(field.type, _zone_in_utc)) for field in schema], schema.metadata)
    return None if schema_ == schema else schema_


def _zone_in_utc(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema that batches of a DataFrame have, with timestamps in UTC.

    Raises:
        SchemaError: Spark cannot hand a column to Python.
    """
    from pyspark.errors import PySparkTypeError  # noqa: PLC0415 - needs a Spark installation

    fields = []
    for field in schema:
        try:
            fields += _to_arrow(type(schema)([field]))
        except PySparkTypeError:
            raise SchemaError(
                f"column {field.name} has type {field.dataType.simpleString()}, which Spark cannot pass to Python: "
                "cast it, for example to a string"
            ) from None
    arrow = pa.schema(fields)
    return _in_utc(arrow) or arrow


def _to_arrow(schema: StructType) -> pa.Schema:
    """Convert a schema. pyspark 4.2 needs the zone (an assertion fails without); before, there was no such argument."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - imports pyarrow

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return cast("pa.Schema", to_arrow_schema(schema, timezone="UTC"))
    return cast("pa.Schema", to_arrow_schema(schema))


def spark_schema(source: ResettableSource) -> StructType:
    """Return the schema that Spark gives to the rows of a source.

    Raises:
        ConfigurationError: Spark has no type for a column; the message names it.
    """
    from pyspark.errors import PySparkTypeError  # noqa: PLC0415 - needs a Spark installation
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415
    from pyspark.sql.types import StructType  # noqa: PLC0415

    fields: list[StructField] = []
    for field in source.schema:
        try:
            fields += from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True)
        except PySparkTypeError:
            raise ConfigurationError(
                f"column {field.name} of the source has type {field.type}, which Spark cannot read from Python: give "
                "the source a schema with another type (a FileSource takes schema=…)"
            ) from None
    return StructType(fields)
