"""Which Arrow columns fit into which SQL columns, and which values are refused when they are written."""

from __future__ import annotations

import datetime as dt
import decimal
import struct
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql

from onceward.connectors.database.column_matching import make_plan
from onceward.connectors.database.conversions import UnfitError
from onceward.connectors.database.described_table import Column, DescribedTable
from onceward.connectors.database.mariadb import MariaDb
from onceward.connectors.database.postgres.catalog import PgTable, PgType
from onceward.connectors.database.postgres.connection import conversions_for
from onceward.connectors.database.postgres.conversions import TYPES, encode_arrays, encode_uuids
from onceward.connectors.database.postgres.conversions import copy_conversion as postgres_conversion
from onceward.connectors.database.postgres.staging import keeps_values
from onceward.connectors.database.sqlite import Sqlite
from onceward.connectors.database.target import TableName
from onceward.core.errors import SchemaError

if TYPE_CHECKING:
    from onceward.connectors.database.dialect import RowDialect

DAY = dt.date(2024, 2, 29)
UTC_MOMENT = dt.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=dt.UTC)
MOMENT = UTC_MOMENT.replace(tzinfo=None)
ALL = ("mariadb", "sqlite")
DIALECTS: dict[str, RowDialect] = {"mariadb": MariaDb(), "sqlite": Sqlite()}


def values(array: pa.Array, column: Any, backend: str) -> list[Any]:
    step = DIALECTS[backend].types.conversion(array.type, column)
    return step.python(step.prepare(array))


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize(
    ("array", "column"),
    [
        (pa.array([1, None], pa.int64()), sa.BIGINT()),
        (pa.array([1, None], pa.int8()), sa.INTEGER()),
        (pa.array([1, None], pa.uint16()), sa.INTEGER()),
        (pa.array([1.5, None], pa.float64()), sa.Double()),
        (pa.array([1.5, None], pa.float32()), sa.Double()),
        (pa.array(["ä", None], pa.string()), sa.TEXT()),
        (pa.array(["ä", None], pa.large_string()), sa.VARCHAR(1)),
        (pa.array(["ä", "b"]).dictionary_encode(), sa.TEXT()),
        (pa.array([b"x", None], pa.binary()), sa.LargeBinary()),
        (pa.array([DAY, None], pa.date32()), sa.DATE()),
        (pa.array([True, None], pa.bool_()), sa.Boolean()),
        (pa.nulls(2), sa.TEXT()),
    ],
)
def test_values_come_through_unchanged(array: pa.Array, column: Any, backend: str) -> None:
    assert values(array, column, backend) == array.to_pylist()


@pytest.mark.parametrize(
    ("array", "column", "backend", "given"),
    [
        (pa.array([1], pa.uint64()), mysql.BIGINT(unsigned=True), "mariadb", 1),
        (pa.array([1], pa.int64()), mysql.BIGINT(unsigned=True), "mariadb", 1),
        (pa.array([True]), mysql.TINYINT(display_width=1), "mariadb", True),
        (
            pa.array([decimal.Decimal("1.50")], pa.decimal128(10, 2)),
            sa.Numeric(12, 4),
            "mariadb",
            decimal.Decimal("1.50"),
        ),
        (pa.array([MOMENT], pa.timestamp("us")), mysql.DATETIME(fsp=6), "mariadb", MOMENT),
        (pa.array([UTC_MOMENT], pa.timestamp("us", "Asia/Tokyo")), mysql.TIMESTAMP(fsp=6), "mariadb", MOMENT),
        (pa.array([UTC_MOMENT], pa.timestamp("us", "Asia/Tokyo")), sa.DATETIME(), "sqlite", MOMENT),
        (pa.array([dt.time(1, 2, 3)], pa.time64("us")), mysql.TIME(), "mariadb", dt.time(1, 2, 3)),
        (pa.array(["x"]), sa.types.NullType(), "sqlite", "x"),
        (pa.array(["c,a"]), mysql.SET("a", "b", "c"), "mariadb", "c,a"),
        (pa.array([""]), mysql.SET("a"), "mariadb", ""),
        (pa.array(["a "]), mysql.VARCHAR(5), "mariadb", "a "),
    ],
)
def test_values_of_each_database_come_through(array: pa.Array, column: Any, backend: str, given: Any) -> None:
    assert values(array, column, backend) == [given]


@pytest.mark.parametrize(
    ("arrow", "column", "backend"),
    [
        (pa.int64(), sa.INTEGER(), "mariadb"),
        (pa.int64(), mysql.MEDIUMINT(), "mariadb"),
        (pa.uint64(), sa.BIGINT(), "sqlite"),
        (pa.int64(), sa.Double(), "mariadb"),
        (pa.int64(), sa.Numeric(10, 2), "mariadb"),
        (pa.int64(), sa.TEXT(), "sqlite"),
        (pa.string(), sa.BIGINT(), "sqlite"),
        (pa.float64(), mysql.FLOAT(precision=10), "mariadb"),
        (pa.float64(), mysql.FLOAT(), "mariadb"),
        (pa.float64(), mysql.DOUBLE(10, 2), "mariadb"),
        (pa.float32(), mysql.FLOAT(7, 2), "mariadb"),
        (pa.int8(), mysql.DOUBLE(10, 2), "mariadb"),
        (pa.float64(), sa.Numeric(), "mariadb"),
        (pa.decimal128(10, 2), sa.Numeric(10, 1), "mariadb"),
        (pa.decimal128(10, 2), sa.Numeric(10, 2), "sqlite"),
        (pa.timestamp("us", "UTC"), mysql.DATETIME(fsp=6), "mariadb"),
        (pa.timestamp("us"), mysql.TIMESTAMP(fsp=6), "mariadb"),
        (pa.duration("s"), sa.BIGINT(), "mariadb"),
        (pa.struct([("a", pa.int64())]), sa.TEXT(), "mariadb"),
        (pa.list_(pa.int64()), sa.TEXT(), "mariadb"),
        (pa.binary(), sa.TEXT(), "mariadb"),
        (pa.bool_(), sa.BIGINT(), "mariadb"),
    ],
)
def test_types_that_would_lose_something_are_refused(arrow: pa.DataType, column: Any, backend: str) -> None:
    with pytest.raises(UnfitError):
        DIALECTS[backend].types.conversion(arrow, column)


@pytest.mark.parametrize(
    ("array", "column", "backend", "why"),
    [
        (pa.array(["äöü"]), sa.VARCHAR(2), "mariadb", "3 characters"),
        (pa.array(["ä" * 200]), mysql.TINYTEXT(), "mariadb", "400 bytes"),
        (pa.array(["x"]), mysql.ENUM("a", "b"), "mariadb", "'x' is not one of"),
        (pa.array([-1]), mysql.BIGINT(unsigned=True), "mariadb", "negative"),
        (pa.array([float("nan")]), mysql.DOUBLE(), "mariadb", "not a number"),
        (pa.array([float("inf")]), mysql.DOUBLE(), "mariadb", "infinite"),
        (pa.array([float("nan")]), sa.REAL(), "sqlite", "not a number"),
        (pa.array([MOMENT], pa.timestamp("us")), mysql.DATETIME(), "mariadb", "would be cut"),
        (pa.array([1], pa.timestamp("ns")), sa.DateTime(), "mariadb", "lose data"),
        (pa.array([10**18], pa.timestamp("us")), sa.DateTime(), "sqlite", "years 1 to 9999"),
        (pa.array([10**7], pa.date32()), sa.DATE(), "mariadb", "years 1 to 9999"),
        (pa.array([1 << 51], pa.timestamp("us", "UTC")), mysql.TIMESTAMP(fsp=6), "mariadb", "1970 to 2038"),
        (pa.array([b"abc"]), mysql.VARBINARY(2), "mariadb", "3 bytes"),
        (pa.array([b"a"]), mysql.BINARY(2), "mariadb", "fill it up"),
        (pa.array([b""]), mysql.BINARY(2), "mariadb", "fill it up"),
        (pa.array(["a", "a "]), mysql.CHAR(5), "mariadb", "ends with a blank: MariaDB cuts"),
        (pa.array(["3"]), mysql.SET("a", "b"), "mariadb", "'3' is not a set of"),
        (pa.array(["a,a"]), mysql.SET("a", "b"), "mariadb", "'a,a' is not a set of"),
        (pa.array([-1.0]), mysql.DOUBLE(unsigned=True), "mariadb", "negative"),
        (pa.array([-1], pa.int8()), mysql.DECIMAL(5, 0, unsigned=True), "mariadb", "negative"),
        (
            pa.array([decimal.Decimal(-1)], pa.decimal128(3, 0)),
            mysql.DECIMAL(5, 0, unsigned=True),
            "mariadb",
            "negative",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused(array: pa.Array, column: Any, backend: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        values(array, column, backend)


@pytest.mark.parametrize("backend", ALL)
@pytest.mark.parametrize(
    "arrow",
    [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
        *(pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.date32()),
        *(pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.time64("us")),
    ],
    ids=str,
)
def test_a_table_that_is_created_takes_the_type_it_was_created_for(arrow: pa.DataType, backend: str) -> None:
    types = DIALECTS[backend].types
    column = types.column_type(arrow)
    assert column is not None
    types.conversion(arrow, column)


# Columns


def plain(name: str, kind: Any, **more: Any) -> Column:
    return Column(name, kind, str(kind), **more)


def table(*columns: Column) -> DescribedTable:
    return DescribedTable(None, "words", columns)


def in_sqlite(definition: str) -> DescribedTable:
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE words ({definition})")
        described = Sqlite().describe(connection, TableName(None, "words"))
    engine.dispose()
    assert described is not None
    return described


def test_columns_that_do_not_fit_are_all_named_with_their_types() -> None:
    schema = pa.schema([("id", pa.string()), ("Word", pa.string()), ("more", pa.int64())])
    with pytest.raises(SchemaError) as caught:
        make_plan(schema, table(plain("id", sa.BIGINT()), plain("word", sa.TEXT(), not_null=True)), DIALECTS["sqlite"])
    for words in ("'Word' (string) is not in the table (it has 'word'", "'more' (int64)", "'word' (TEXT) is not null"):
        assert words in str(caught.value)
    with pytest.raises(SchemaError, match="column 'id': string does not fit into BIGINT"):
        make_plan(pa.schema([("id", pa.string())]), table(plain("id", sa.BIGINT())), DIALECTS["sqlite"])


def test_columns_that_fill_themselves_may_be_left_out() -> None:
    made = in_sqlite(
        "id INTEGER PRIMARY KEY, made TEXT DEFAULT 'x' NOT NULL, double BIGINT AS (n * 2) NOT NULL, n BIGINT"
    )
    plan = make_plan(pa.schema([("n", pa.int64())]), made, DIALECTS["sqlite"])
    assert list(plan.pieces(pa.record_batch([[1, 2]], names=["n"]))) == [[{"c0": 1}, {"c0": 2}]]
    with pytest.raises(SchemaError, match=r"'double'.*generated"):
        make_plan(pa.schema([("double", pa.int64())]), made, DIALECTS["sqlite"])


def test_a_null_for_a_not_null_column_or_a_key_is_refused_when_it_is_written() -> None:
    made = table(plain("id", sa.BIGINT()), plain("n", sa.BIGINT(), not_null=True))
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    bad = pa.record_batch([[1], [None]], schema=schema)
    with pytest.raises(SchemaError, match="column 'n' has nulls"):
        make_plan(schema, made, DIALECTS["mariadb"]).check(bad)
    with pytest.raises(SchemaError, match="column 'id' has nulls"):
        make_plan(schema, made, DIALECTS["mariadb"], ["id"]).check(pa.record_batch([[None], [1]], schema=schema))


@pytest.mark.parametrize(
    ("given", "fills"),
    [({"nullable": False, "autoincrement": True}, True), ({"nullable": False, "default": "7"}, False)],
    ids=["auto_increment", "default"],
)
def test_a_null_is_taken_only_where_the_database_makes_a_number_of_it(given: dict[str, Any], fills: bool) -> None:
    reflected: Any = {"name": "id", "type": sa.BIGINT(), "default": None, **given}
    column = MariaDb()._column(reflected, ["id"])
    plan = make_plan(pa.schema([("id", pa.int64())]), table(column, plain("n", sa.BIGINT())), DIALECTS["mariadb"])
    null = pa.record_batch([pa.nulls(1, pa.int64())], schema=plan.schema)
    if fills:
        plan.check(null)
        return
    with pytest.raises(SchemaError, match="column 'id' has nulls"):
        plan.check(null)


@pytest.mark.parametrize(
    ("collation", "refused"),
    [("", True), ("utf8mb4_bin", True), ("utf8mb4_general_ci", True), ("utf8mb4_nopad_bin", False)],
)
def test_a_key_that_mariadbs_collation_may_take_for_another_one_is_refused(collation: str, refused: bool) -> None:
    schema = pa.schema([("id", pa.string()), ("word", pa.string())])
    columns = [plain(name, mysql.VARCHAR(9), collation=collation) for name in schema.names]
    plan = make_plan(schema, table(*columns), DIALECTS["mariadb"], ["id"])
    plan.check(pa.record_batch([["a"], ["a "]], schema=schema))
    padded = pa.record_batch([["a "], ["a"]], schema=schema)
    if not refused:
        plan.check(padded)
        return
    with pytest.raises(SchemaError, match=r"column 'id': a value ends with a blank.*NO PAD, such as utf8mb4_nopad_bin"):
        plan.check(padded)


def test_columns_given_twice_none_at_all_and_missing_keys_are_refused() -> None:
    made = table(plain("n", sa.BIGINT()))
    with pytest.raises(SchemaError, match="more than once"):
        make_plan(pa.schema([("n", pa.int64()), ("n", pa.int64())]), made, DIALECTS["sqlite"])
    with pytest.raises(SchemaError, match="no columns"):
        make_plan(pa.schema([]), made, DIALECTS["sqlite"])
    with pytest.raises(SchemaError, match=r"key columns \['id'\] are not in the data"):
        make_plan(pa.schema([("n", pa.int64())]), made, DIALECTS["sqlite"], ["id"])


# PostgreSQL: what COPY is given

INT8 = PgType(20, "int8")
TEXT = PgType(25, "text")
ID = uuid.UUID("12345678-1234-5678-1234-56789abcdef0")


def postgres_table(*columns: Column) -> PgTable:
    return PgTable("public", "t", columns, oid=1)


def test_the_plan_follows_the_data_not_the_order_of_the_table() -> None:
    target = postgres_table(Column("id", INT8, "bigint"), Column("word", TEXT, "text"), Column("note", TEXT, "text"))
    found = conversions_for(pa.schema([("word", pa.string()), ("id", pa.int32())]), target)
    assert [step.wire for step in found] == [pa.string(), pa.int64()]


@pytest.mark.parametrize("not_null", [True, False])
@pytest.mark.parametrize("has_default", [True, False])
def test_only_a_required_column_without_default_must_be_given(not_null: bool, has_default: bool) -> None:
    target = postgres_table(
        Column("id", INT8, "bigint"), Column("x", TEXT, "text", not_null=not_null, has_default=has_default)
    )
    schema = pa.schema([("id", pa.int64())])
    if not_null and not has_default:
        with pytest.raises(SchemaError, match=r"'x' \(text\) is not null"):
            conversions_for(schema, target)
    else:
        conversions_for(schema, target)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_a_uuid_becomes_its_sixteen_bytes(kind: pa.DataType) -> None:
    texts = pa.array([None, str(ID), None, ID.hex.upper(), f"{{{ID}}}"], kind).slice(1)
    assert encode_uuids(texts).to_pylist() == [ID.bytes, None, ID.bytes, ID.bytes]


def test_an_empty_column_and_a_column_of_nulls_can_be_encoded_as_uuids() -> None:
    assert encode_uuids(pa.array([], pa.string())).to_pylist() == []
    assert encode_uuids(pa.array([None, None], pa.string())).to_pylist() == [None, None]


def test_an_array_is_marked_with_its_element_type_and_tells_of_nulls() -> None:
    inner = postgres_conversion(pa.string(), PgType(1043, "varchar"))
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
    column = TYPES.column_type(arrow)
    assert (None if column is None else column.compile(dialect=postgresql.dialect()).lower()) == declared


# Staged rows, and a table that was altered since


def numeric(precision: int, scale: int) -> PgType:
    return PgType(1700, "numeric", ((precision << 16) | scale) + 4)


def text(name: str, length: int = -5) -> PgType:
    return PgType(1043, name, length + 4)


@pytest.mark.parametrize(
    ("staged", "now", "kept"),
    [
        (PgType(21, "int2"), PgType(20, "int8"), True),
        (PgType(20, "int8"), PgType(23, "int4"), False),
        (PgType(20, "int8"), PgType(1700, "numeric"), True),
        (PgType(20, "int8"), numeric(30, 0), False),
        (PgType(700, "float4"), PgType(701, "float8"), True),
        (PgType(701, "float8"), PgType(700, "float4"), False),
        (numeric(5, 2), numeric(6, 2), True),
        (numeric(6, 2), numeric(5, 2), False),
        (numeric(6, 2), numeric(7, 1), False),
        (numeric(6, 2), PgType(1700, "numeric"), True),
        (PgType(1700, "numeric"), numeric(6, 2), False),
        (text("varchar", 3), text("varchar", 4), True),
        (text("varchar", 4), text("varchar", 3), False),
        (text("varchar"), text("varchar", 3), False),
        (text("varchar", 3), text("text"), True),
        (text("bpchar", 3), text("varchar", 3), True),
        (text("bpchar", 3), text("varchar", 2), False),
        (text("text"), text("varchar", 3), False),
        (text("text"), PgType(19, "name"), False),
        (text("text"), text("bpchar", 3), False),
        (PgType(1114, "timestamp", 3), PgType(1114, "timestamp", 6), True),
        (PgType(1114, "timestamp", 3), PgType(1114, "timestamp"), True),
        (PgType(1114, "timestamp"), PgType(1114, "timestamp", 3), False),
        (PgType(1114, "timestamp"), PgType(1184, "timestamptz"), False),
        (PgType(1184, "timestamptz"), PgType(1082, "date"), False),
        (PgType(9, "int8"), PgType(99, "int8"), True),
        (PgType(1, "_int4", element=PgType(23, "int4")), PgType(2, "_int8", element=PgType(20, "int8")), True),
        (PgType(1, "_int8", element=PgType(20, "int8")), PgType(2, "_int4", element=PgType(23, "int4")), False),
        (PgType(1, "_int8", element=PgType(20, "int8")), PgType(20, "int8"), False),
    ],
)
def test_a_type_keeps_staged_values_only_if_it_is_the_same_or_wider(staged: PgType, now: PgType, kept: bool) -> None:
    assert keeps_values(staged, now) is kept


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    ("name", "kind", "number"),
    [
        ("timestamp", pa.timestamp("us"), -(2**63) + 946_684_800_000_000),
        ("timestamp", pa.timestamp("us"), -(2**63)),
        ("timestamptz", pa.timestamp("us", "UTC"), -(2**63) + 946_684_799_999_999),
        ("date", pa.date32(), -(2**31) + 10_957),
        ("date", pa.date32(), -(2**31)),
        ("date", pa.date32(), 2**31 - 1),
    ],
)
def test_a_time_that_overflows_into_an_infinity_is_refused(
    name: str, kind: pa.DataType, number: int, listed: bool
) -> None:
    """A number that became PostgreSQL's smallest was written as -infinity."""
    array = pa.array([0, None, number], pa.int32() if name == "date" else pa.int64()).view(kind)
    target = PgType(1, name)
    if listed:
        target = PgType(2, f"_{name}", element=target)
        array = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), array)
    with pytest.raises(ValueError, match="lies before the year 4713 BC, or after"):
        postgres_conversion(array.type, target).convert(array)
