"""What a sink's `validate` accepts, its `write` takes: every Arrow type, as a value, key, folder or change column."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pgpq
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from onceward.connectors.database import mariadb_types, sqlite_types
from onceward.connectors.database.column_matching import split_changes, without_change
from onceward.connectors.database.conversions import UnfitError, as_read_back
from onceward.connectors.database.postgres.catalog import PgType
from onceward.connectors.database.postgres.conversions import copy_conversion as postgres_conversion
from onceward.connectors.files.sink import FileSink
from onceward.connectors.kafka.messages import MessageArray, Rows, check_message_columns, hashed_message_columns
from onceward.connectors.redis.forms import KeyTemplate, check_form, to_entries
from onceward.core.contract.row_hash import RowHash
from onceward.core.errors import SchemaError
from onceward.core.kit.rows import check_columns as check_json
from onceward.core.kit.rows import has_nulls, json_rows

from .arrays_kit import ARRAYS
from .sink_kit import context

if TYPE_CHECKING:
    from pathlib import Path

    from onceward.types import FileFormat


NAMES: Final = (
    *("bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "varchar", "bytea"),
    *("date", "time", "timestamp", "timestamptz", "uuid", "interval", "jsonb", "json"),
)


def twice(array: pa.Array) -> pa.Array:
    """The first value, two times."""
    return pa.concat_arrays([array.slice(0, 1)] * 2)


each_type = pytest.mark.parametrize("array", ARRAYS, ids=lambda array: str(array.type)[:60])


@pytest.mark.slow
@each_type
@pytest.mark.parametrize("partition_by", [(), ("value",)])
def test_a_type_that_the_file_sink_accepts_can_be_written(
    tmp_path: Path, array: pa.Array, partition_by: tuple[str, ...]
):
    for format_ in ("parquet", "csv", "jsonl", "arrow"):
        _write_files(tmp_path / format_, array, format_, partition_by)


def _write_files(folder: Path, array: pa.Array, format_: FileFormat, partition_by: tuple[str, ...]) -> None:
    batch = pa.record_batch({"value": array, "n": [1, 2]})
    sink = FileSink("files", folder, format=format_, partition_by=partition_by)
    try:
        sink.validate(batch.schema)
    except SchemaError:
        return
    transaction = sink.begin(context("files"))
    sink.write(transaction, batch)
    assert sink.pre_commit(transaction).rows == 2


@each_type
def test_a_type_that_the_kafka_sink_accepts_can_be_written(array: pa.Array):
    for column in ("key", "value", "topic", "headers"):
        _write_messages(array, column)


def _write_messages(array: pa.Array, column: str) -> None:
    filled = twice(array)
    columns = {"value": pa.array(["v", "w"]), "topic": pa.array(["t", "t"]), column: filled}
    if column == "headers":
        offsets = pa.array([0, 1, 2], pa.int32())
        header = pa.StructArray.from_arrays([filled, filled], ["key", "value"])
        columns["headers"] = pa.ListArray.from_arrays(offsets, header)
    batch = pa.record_batch(columns)
    topic = None if column == "topic" else "t"
    try:
        check_message_columns(batch.schema, topic, "sink")
    except SchemaError:
        return
    assert len(Rows(batch, topic)) == len(MessageArray(batch, topic)) == 2
    RowHash().add(hashed_message_columns(batch, own_topic=topic is None))


@each_type
def test_a_type_that_the_redis_sink_accepts_can_be_written(array: pa.Array):
    batch = pa.record_batch({"value": twice(array), "n": [1, 2]})
    for key, form in product(("k:{value}", "k:{n}"), ("hash", "list", "stream")):
        try:
            check_form("redis", form, KeyTemplate(key), batch.schema, 1)
        except SchemaError:
            continue
        assert len(to_entries("redis", form, KeyTemplate(key), batch)) == 2


@each_type
def test_a_type_that_the_http_sink_accepts_can_be_written(array: pa.Array):
    batch = pa.record_batch({"value": array})
    try:
        check_json("http", batch.schema)
    except SchemaError:
        return
    assert len(json_rows("http", batch)) == 2


@each_type
def test_a_type_that_the_postgres_sink_accepts_can_be_written(array: pa.Array):
    if int(pa.__version__.split(".")[0]) < 25 and "values=string_view" in str(array.type):
        pytest.skip("pgpq ends the process at such a dictionary of an older pyarrow, which Spark never makes")
    listed = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), array)
    for name in NAMES:
        kind = PgType(1, name)
        for values, wanted in ((array, kind), (listed, PgType(2, f"_{name}", element=kind))):
            with suppress(UnfitError):
                _encode(values, postgres_conversion(values.type, wanted))


def _encode(array: pa.Array, step: Any) -> None:
    with suppress(ValueError):  # "c" is no UUID
        made = step.convert(array)
        assert made.type == step.wire
        schema = pa.schema([pa.field("c", made.type)])
        encoder: Any = pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, {"c": step.builder(schema.field(0))})
        encoder.write_header()
        encoder.write_batch(pa.RecordBatch.from_arrays([made], schema=schema))


COLUMNS: Final = (
    *(kind(unsigned=unsigned) for kind in (mysql.TINYINT, mysql.SMALLINT, mysql.INTEGER) for unsigned in (False, True)),
    *(mysql.BIGINT(unsigned=unsigned) for unsigned in (False, True)),
    *(mysql.FLOAT(), mysql.DOUBLE(), mysql.DECIMAL(10, 2), mysql.DECIMAL(65, 0)),
    *(mysql.VARCHAR(3), mysql.CHAR(3), mysql.TEXT(), mysql.TINYTEXT(), mysql.LONGTEXT(), mysql.ENUM("c", "d")),
    *(mysql.VARBINARY(3), mysql.BINARY(1), mysql.BLOB(), mysql.LONGBLOB(), mysql.JSON(), mysql.BIT(1), mysql.YEAR()),
    *(mysql.DATE(), mysql.DATETIME(), mysql.DATETIME(fsp=6), mysql.TIMESTAMP(fsp=6), mysql.TIME(), mysql.TIME(fsp=6)),
    *(sa.types.NullType(), sa.TEXT(), sa.INTEGER(), sa.REAL(), sa.BLOB(), sa.NUMERIC(10, 2), sa.BOOLEAN()),
    *(sa.DATE(), sa.DATETIME(), sa.TIME()),
)
"""As reflection makes them on MariaDB; the last ones are SQLite's."""


@each_type
def test_a_type_that_a_sink_of_python_values_accepts_can_be_written(array: pa.Array):
    for types, column in product((mariadb_types.TYPES, sqlite_types.TYPES), COLUMNS):
        with suppress(UnfitError):
            step = types.conversion(array.type, column)
            made = step.prepare(array)
            assert len(step.python(made)) == len(array)
            kind = types.read_back(column)
            if kind is not None and not pa.types.is_null(made.type):
                as_read_back(made, kind)


@each_type
def test_a_type_that_a_change_column_accepts_can_be_read(array: pa.Array):
    batch = pa.record_batch({"value": [1, 2], "change": twice(array)})
    try:
        without_change(batch.schema, "change")
    except SchemaError:
        return
    rows, deletes = split_changes(batch, "change")
    assert (rows.num_rows, deletes.to_pylist()) == (2, [False, False])


def test_a_null_among_a_dictionarys_values_is_a_null():
    """`null_count` is 0 then: such nulls passed the check of a key, and an upsert wrote the row again and again."""
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    assert array.null_count == 0
    assert has_nulls(array)
    assert not has_nulls(array.slice(0, 1))
    assert not has_nulls(pa.array(["a", "b"]).dictionary_encode())
