"""Matching Arrow columns to table columns, and binary images, without a server."""

from __future__ import annotations

import struct
import uuid

import pyarrow as pa
import pytest
from sqlalchemy.dialects import postgresql

from onceward.connectors.database.plan import Column
from onceward.connectors.database.postgres.catalog import PgType, Table
from onceward.connectors.database.postgres.conversions import conversion, encode_arrays, encode_uuids
from onceward.connectors.database.postgres.copy import plan_copy
from onceward.connectors.database.tables import column_type
from onceward.core.errors import SchemaError

INT8 = PgType(20, "int8")
TEXT = PgType(25, "text")
ID = uuid.UUID("12345678-1234-5678-1234-56789abcdef0")


def table(*columns: Column) -> Table:
    return Table(1, "public", "t", "r", "p", columns)


def test_the_plan_follows_the_data_not_the_order_of_the_table() -> None:
    target = table(Column("id", INT8, "bigint"), Column("word", TEXT, "text"), Column("note", TEXT, "text"))
    plan = plan_copy(pa.schema([("word", pa.string()), ("id", pa.int32())]), target)
    assert plan.schema.names == ["word", "id"]
    assert plan.wire_schema().types == [pa.string(), pa.int64()]


def test_a_column_given_twice_is_refused() -> None:
    schema = pa.schema([("id", pa.int64()), ("id", pa.int64())])
    with pytest.raises(SchemaError, match=r"\['id'\] are given more than once"):
        plan_copy(schema, table(Column("id", INT8, "bigint")))


def test_data_without_columns_is_refused() -> None:
    with pytest.raises(SchemaError, match="no columns"):
        plan_copy(pa.schema([]), table(Column("id", INT8, "bigint")))


@pytest.mark.parametrize("not_null", [True, False])
@pytest.mark.parametrize("has_default", [True, False])
def test_only_a_required_column_without_default_must_be_given(not_null: bool, has_default: bool) -> None:
    target = table(Column("id", INT8, "bigint"), Column("x", TEXT, "text", not_null=not_null, has_default=has_default))
    schema = pa.schema([("id", pa.int64())])
    if not_null and not has_default:
        with pytest.raises(SchemaError, match=r"'x' \(text\) is not null"):
            plan_copy(schema, target)
    else:
        plan_copy(schema, target)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_uuid_becomes_its_sixteen_bytes(kind: pa.DataType) -> None:
    texts = pa.array([None, str(ID), None, ID.hex.upper(), f"{{{ID}}}"], kind).slice(1)
    assert encode_uuids(texts).to_pylist() == [ID.bytes, None, ID.bytes, ID.bytes]


def test_no_uuids_become_no_bytes() -> None:
    assert encode_uuids(pa.array([], pa.string())).to_pylist() == []
    assert encode_uuids(pa.array([None, None], pa.string())).to_pylist() == [None, None]


def test_an_array_is_marked_with_its_element_type_and_tells_of_nulls() -> None:
    inner = conversion(pa.string(), PgType(1043, "varchar"))
    images = encode_arrays(inner, 1043, pa.array([["a", None], [], None])).to_pylist()
    assert images[0] == struct.pack(">iiIii", 1, 1, 1043, 2, 1) + b"\0\0\0\1a" + b"\xff\xff\xff\xff"
    assert images[1] == struct.pack(">iiI", 0, 0, 1043)
    assert images[2] is None


@pytest.mark.parametrize(
    ("arrow", "declared"),
    [
        (pa.int8(), "smallint"),
        (pa.uint32(), "bigint"),
        (pa.uint64(), "numeric(20, 0)"),
        (pa.decimal128(12, 3), "numeric(12, 3)"),
        (pa.decimal128(5, -2), "numeric(7, 0)"),
        (pa.timestamp("ns"), "timestamp without time zone"),
        (pa.timestamp("ms", "UTC"), "timestamp with time zone"),
        (pa.time32("s"), "time without time zone"),
        (pa.duration("s"), "interval"),
        (pa.binary(4), "bytea"),
        (pa.list_(pa.float32()), "real[]"),
        (pa.list_(pa.list_(pa.float32())), None),
        (pa.dictionary(pa.int8(), pa.string()), "text"),
        (pa.uuid(), "uuid"),
        (pa.json_(), "jsonb"),
        (pa.struct([("a", pa.int8())]), None),
        (pa.null(), None),
    ],
)
def test_a_created_column_holds_every_value_of_its_arrow_type(arrow: pa.DataType, declared: str | None) -> None:
    column = column_type(arrow, "postgresql")
    assert (None if column is None else column.compile(dialect=postgresql.dialect()).lower()) == declared
