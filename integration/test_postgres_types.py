"""Every Arrow type that is taken arrives as it was, through COPY and through the staging table."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pytest

from onceward.connectors.database.engines import transaction
from onceward.connectors.database.postgres.connection import CopyWriter
from onceward.connectors.database.postgres.loader import lock_and_read
from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import PostgresError, SchemaError

from .postgres_kit import Database, context, fresh_database, make_sink, write
from .sql_kit import VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.testing.services import PostgresServer

pytestmark = pytest.mark.postgres

BERLIN = dt.timezone(dt.timedelta(hours=2))
MOMENT = dt.datetime.fromisoformat("2024-02-29T23:59:59.999999")
INSTANT = MOMENT.replace(tzinfo=dt.UTC)
OLD = dt.datetime.fromisoformat("0001-01-01")
LATE = dt.datetime.fromisoformat("9999-12-31T23:59:59.999999")
ID = uuid.UUID("12345678-1234-5678-1234-56789abcdef0")
D = Decimal

# Arrow type, values, PostgreSQL type, what PostgreSQL then holds (None: the values themselves)
Case: TypeAlias = tuple[pa.DataType, list[Any], str, list[Any] | None]
CASES: list[Case] = [
    (pa.int8(), [-128, 127, None], "smallint", None),
    (pa.int16(), [-(2**15), 2**15 - 1, None], "smallint", None),
    (pa.int32(), [-(2**31), 2**31 - 1, None], "integer", None),
    (pa.int64(), [-(2**63), 2**63 - 1, None], "bigint", None),
    (pa.int16(), [-5, 5], "bigint", None),
    (pa.uint8(), [0, 255, None], "smallint", None),
    (pa.uint16(), [0, 65535, None], "integer", None),
    (pa.uint32(), [0, 2**32 - 1, None], "bigint", None),
    (pa.uint64(), [0, 2**64 - 1, None], "numeric", [D(0), D(2**64 - 1), None]),
    (pa.int64(), [-(2**63), 7], "numeric(20,0)", [D(-(2**63)), D(7)]),
    (pa.int32(), [-7], "numeric(10,2)", [D("-7.00")]),
    (pa.int32(), [2**31 - 1], "double precision", [2.0**31 - 1]),
    (pa.int16(), [12345], "real", [12345.0]),
    (pa.float16(), [1.5, None], "real", None),
    (pa.float32(), [1.5, float("inf"), float("-inf"), None], "real", None),
    (pa.float32(), [0.5], "double precision", None),
    (pa.float64(), [0.1, -1e300, 5e-324, None], "double precision", None),
    (pa.decimal128(10, 2), [D("1.10"), D("-12345678.99"), D("0.00"), D("-0.01"), None], "numeric(10,2)", None),
    (pa.decimal128(38, 0), [D(10**38 - 1), D(-(10**37))], "numeric", None),
    (pa.decimal128(38, 38), [D("0." + "12345678901234567890123456789012345678")], "numeric", None),
    (pa.decimal128(5, -2), [D("12300")], "numeric", None),
    (pa.decimal128(5, 1), [D("1.5")], "numeric(12,4)", None),
    (pa.decimal32(5, 2), [D("1.25"), None], "numeric(10,2)", None),
    (pa.decimal64(15, 3), [D("1.125")], "numeric", None),
    (pa.decimal256(30, 5), [D("1.00001"), None], "numeric", None),
    (pa.string(), ["", "ü€😀", "tab\tnewline\n\\N", None], "text", None),
    (pa.large_string(), ["a", None], "varchar(10)", None),
    (pa.string_view(), ["a long enough string view", "b", None], "text", None),
    (pa.string(), ["äö ", "   ", "", None], "varchar(3)", None),
    (pa.string_view(), ["äö ", None], "varchar(3)", None),
    (pa.string(), ["ab"], "char(4)", ["ab  "]),
    (pa.string(), ["happy", None], "mood", None),
    (pa.string(), ["x@y"], "email", None),
    (pa.binary(), [b"", b"\x00\xff", None], "bytea", None),
    (pa.large_binary(), [b"abc", None], "bytea", None),
    (pa.binary_view(), [b"abc", None], "bytea", None),
    (pa.binary(3), [b"abc", None], "bytea", None),
    (pa.bool_(), [True, False, None], "boolean", None),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1), None], "date", None),
    (pa.date64(), [dt.date(2024, 2, 29), None], "date", None),
    (pa.timestamp("s"), [MOMENT.replace(microsecond=0)], "timestamp", None),
    (pa.timestamp("ms"), [MOMENT.replace(microsecond=5000)], "timestamp", None),
    (pa.timestamp("us"), [MOMENT, OLD, LATE, MOMENT.replace(year=1904), None], "timestamp", None),
    (pa.timestamp("ns"), [MOMENT], "timestamp", None),
    (pa.timestamp("us", "UTC"), [INSTANT, None], "timestamptz", None),
    (pa.timestamp("ns", "Europe/Berlin"), [INSTANT.astimezone(BERLIN)], "timestamptz", [INSTANT]),
    (pa.time32("s"), [dt.time(1, 2, 3)], "time", None),
    (pa.time32("ms"), [dt.time(1, 2, 3, 4000)], "time", None),
    (pa.time64("us"), [dt.time(23, 59, 59, 999999), dt.time(0), None], "time", None),
    (pa.time64("ns"), [dt.time(1, 2, 3, 4)], "time", None),
    (pa.duration("us"), [dt.timedelta(days=3, microseconds=1), dt.timedelta(microseconds=-1), None], "interval", None),
    (pa.duration("s"), [dt.timedelta(days=400)], "interval", None),
    (pa.duration("us"), [dt.timedelta(days=400, microseconds=1)], "interval(6)", None),
    (pa.string(), [str(ID), str(ID).upper(), "{" + ID.hex + "}", None], "uuid", [ID, ID, ID, None]),
    (pa.large_string(), [ID.hex], "uuid", [ID]),
    (pa.string_view(), [str(ID), None], "uuid", [ID, None]),
    (pa.binary(16), [ID.bytes, None], "uuid", [ID, None]),
    (pa.uuid(), [ID.bytes, None], "uuid", [ID, None]),
    (pa.string(), ['{"a": [1, null]}', "null", None], "json", [{"a": [1, None]}, None, None]),
    (pa.string(), ['{"a": [1, null]}', '"ü"', None], "jsonb", [{"a": [1, None]}, "ü", None]),
    (pa.large_string(), ["[1]", None], "jsonb", [[1], None]),
    (pa.string_view(), ["[1]", None], "jsonb", [[1], None]),
    (pa.json_(), ['{"a": 1}', None], "jsonb", [{"a": 1}, None]),
    (pa.list_(pa.int32()), [[1, None, 3], [], None], "integer[]", None),
    (pa.large_list(pa.int64()), [[1], None], "bigint[]", None),
    (pa.list_(pa.int16()), [[1, None], [], None], "bigint[]", None),
    (pa.list_(pa.int32(), 2), [[1, 2], [3, None], None], "integer[]", None),
    (pa.list_view(pa.int32()), [[1, 2], None], "integer[]", None),
    (pa.list_(pa.string()), [["a", "", None], None], "text[]", None),
    (pa.list_(pa.string()), [["a", "b"], [], None], "varchar(5)[]", None),
    (pa.list_(pa.string()), [["happy", None]], "mood[]", ["{happy,NULL}"]),
    (pa.list_(pa.string()), [["x@y"]], "email[]", ["{x@y}"]),
    (pa.list_(pa.float64()), [[0.5, None]], "double precision[]", None),
    (pa.list_(pa.bool_()), [[True, None]], "boolean[]", None),
    (pa.list_(pa.decimal128(10, 2)), [[D("1.50"), None]], "numeric(10,2)[]", None),
    (pa.list_(pa.binary()), [[b"\x00", None]], "bytea[]", None),
    (pa.list_(pa.date32()), [[dt.date(2024, 2, 29), None]], "date[]", None),
    (pa.list_(pa.timestamp("us")), [[MOMENT, None]], "timestamp[]", None),
    (pa.list_(pa.timestamp("us", "UTC")), [[INSTANT, None], [], None], "timestamptz[]", None),
    (pa.list_(pa.string()), [[str(ID), None]], "uuid[]", [[ID, None]]),
    (pa.list_(pa.string()), [['{"a": 1}', None]], "jsonb[]", [[{"a": 1}, None]]),
    (pa.list_(pa.string()), [['{"a": 1}', None]], "json[]", [[{"a": 1}, None]]),
    (pa.null(), [None, None], "text", None),
    (pa.null(), [None], "inet", None),
    (pa.null(), [None], "integer[]", None),
    (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a", None], "text", None),
    (pa.dictionary(pa.int8(), pa.string()), [str(ID), None], "uuid", [ID, None]),
    (pa.dictionary(pa.int8(), pa.int64()), [5, None], "bigint", None),
    (pa.int32(), [5], "positive", None),
]


@pytest.fixture(scope="module")
def types_database(server: PostgresServer) -> Iterator[Database]:
    with fresh_database(server) as fresh:
        fresh.run("CREATE TYPE mood AS ENUM ('happy', 'sad')")
        fresh.run("CREATE DOMAIN positive AS integer CHECK (VALUE > 0)")
        fresh.run("CREATE DOMAIN email AS varchar(20) CHECK (VALUE LIKE '%@%')")
        yield fresh


def make_table(database: Database, declared: str) -> None:
    database.run("DROP TABLE IF EXISTS words")
    database.run(f"CREATE TABLE words (n integer, value {declared})")


def batch_of(values: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(len(values)), pa.int32()), "value": values})


def array_of(arrow: pa.DataType, values: list[Any]) -> pa.Array:
    if isinstance(arrow, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(arrow, pa.array(values, arrow.storage_type))
    if pa.types.is_dictionary(arrow):
        return pa.array(values, arrow.value_type).dictionary_encode().cast(arrow)
    if arrow == pa.decimal128(5, -2):
        return pa.array(values, pa.decimal128(7, 0)).cast(arrow)
    return pa.array(values, arrow)


@pytest.mark.parametrize("how", ["prepared", "staging"])
@pytest.mark.parametrize("case", CASES, ids=[f"{case[0]}-{case[2]}" for case in CASES])
def test_values_arrive_as_they_were(types_database: Database, how: str, case: Case) -> None:
    arrow, values, declared, held = case
    make_table(types_database, declared)
    array = array_of(arrow, values)
    sink = make_sink(types_database, how)
    sink.validate(batch_of(array).schema)
    longer = pa.concat_arrays([array, array, array])
    middle = batch_of(longer).slice(len(array), len(array))
    committable = write(sink, context(), batch_of(array), middle)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    expected = values if held is None else held
    assert [row[0] for row in types_database.run("SELECT value FROM words ORDER BY n")] == expected * 2


DECLARED = (
    *("smallint", "integer", "bigint", "numeric", "numeric(12,4)", "numeric(3,1)", "real", "double precision", "money"),
    *("boolean", "text", "varchar(3)", "char(3)", "bpchar", '"char"', "name", "bytea", "bit(3)", "varbit", "uuid"),
    *("date", "time", "time(0)", "timetz", "timestamp", "timestamp(3)", "timestamptz", "timestamptz(0)", "interval"),
    *("json", "xml", "inet", "cidr", "macaddr", "tsvector", "point", "int4range", "oid", "bigserial", "mood"),
)


@pytest.mark.parametrize("declared", DECLARED)
def test_what_is_read_back_is_what_was_given_or_it_is_refused(types_database: Database, declared: str) -> None:
    """Less the blanks with which char(n) fills up."""
    make_table(types_database, declared)
    read = {"real": "value::float8", "json": "value::text"}.get(declared, "value")
    for arrow, values in VALUES:
        for value in pa.array(values, arrow).to_pylist():
            try:
                write_now(types_database, batch_of(pa.array([value], arrow)))
            except (PostgresError, SchemaError):
                continue
            [(found,)] = types_database.run(f"SELECT {read} FROM words")
            padded = value.ljust(3) if declared == "char(3)" else value
            assert found == padded, f"{arrow} {value!r}"
            assert isinstance(found, (type(value), int | float | D))
            types_database.run("DELETE FROM words")


def write_now(database: Database, batch: pa.RecordBatch) -> None:
    """Write rows in a transaction of their own, as an attempt does."""
    target = make_sink(database).target
    with transaction(target, "cannot write") as connection:
        table = lock_and_read(connection, target.table)
        assert table is not None
        writer = CopyWriter(connection, table, batch.schema)
        try:
            writer.write(batch)
            writer.finish()
        except BaseException:
            writer.cancel()
            raise


def test_not_a_number_arrives_as_such(types_database: Database) -> None:
    make_table(types_database, "double precision")
    sink = make_sink(types_database)
    sink.commit(write(sink, context(), batch_of(pa.array([float("nan")]))))
    assert types_database.run("SELECT value::text FROM words") == [("NaN",)]


def test_text_reaches_a_database_of_another_encoding(server: PostgresServer, types_database: Database) -> None:
    types_database.run("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
    latin = Database(server, "latin")
    make_table(latin, "text")
    sink = make_sink(latin)
    sink.commit(write(sink, context(), batch_of(pa.array(["ü"]))))
    assert latin.run("SELECT ascii(value), octet_length(value) FROM words") == [(252, 1)]
    with pytest.raises(PostgresError, match="SQLSTATE 22P05"):
        write(sink, context(2), batch_of(pa.array(["€"])))
    latin.look.close()


def test_large_batches_with_every_pattern_of_nulls_arrive_whole(types_database: Database) -> None:
    make_table(types_database, "bigint[]")
    values = [None if n % 7 == 0 else [n, None] if n % 3 == 0 else list(range(n % 5)) for n in range(150_000)]
    sink = make_sink(types_database)
    sink.commit(write(sink, context(), batch_of(pa.array(values, pa.list_(pa.int32())))))
    assert [row[0] for row in types_database.run("SELECT value FROM words ORDER BY n")] == values


REFUSED: list[tuple[pa.DataType, str, str]] = [
    (pa.int64(), "integer", "may not fit"),
    (pa.int32(), "smallint", "may not fit"),
    (pa.uint64(), "bigint", "may not fit"),
    (pa.uint16(), "smallint", "may not fit"),
    (pa.int64(), "double precision", "may be rounded"),
    (pa.float64(), "real", "may be rounded"),
    (pa.float64(), "numeric", "may be rounded"),
    (pa.decimal128(10, 3), "numeric(10,2)", "would round"),
    (pa.decimal256(50, 2), "numeric", "more than 38 digits"),
    (pa.float64(), "bigint", "may not fit"),
    (pa.int32(), "text", "cast it to string"),
    (pa.string(), "integer", "may not fit"),
    (pa.string(), "date", "cast it to date"),
    (pa.string(), "inet", "no conversion to this type"),
    (pa.struct([("a", pa.int32())]), "text", "to_json"),
    (pa.map_(pa.string(), pa.int32()), "jsonb", "to_json"),
    (pa.timestamp("us"), "timestamp with time zone", "in which zone"),
    (pa.timestamp("us", "UTC"), "timestamp without time zone", "which zone's clock"),
    (pa.timestamp("us"), "date", "cast it to date"),
    (pa.binary(8), "uuid", "16 bytes"),
    (pa.list_(pa.list_(pa.int32())), "integer[]", "lists of lists"),
    (pa.list_(pa.int64()), "integer[]", "may not fit"),
    (pa.int32(), "integer[]", "as a list"),
    (pa.bool_(), "integer", "may not fit"),
    (pa.month_day_nano_interval(), "interval", "cast it to a duration"),
    (pa.int64(), "numeric(10,-2)", "would round"),
    (pa.decimal128(5, 0), "numeric(10,-2)", "would round"),
    (pa.list_(pa.int32()), "numeric(10,-2)[]", "would round"),
    (pa.duration("us"), "interval day to minute", "cuts durations"),
    (pa.duration("us"), "interval year", "cuts durations"),
    (pa.duration("s"), "interval(0)", "cuts durations"),
    (pa.list_(pa.duration("us")), "interval(3)[]", "cuts durations"),
]


@pytest.mark.parametrize(("arrow", "declared", "why"), REFUSED, ids=[f"{case[0]}-{case[1]}" for case in REFUSED])
def test_what_does_not_fit_is_refused_before_anything_is_written(
    types_database: Database, arrow: pa.DataType, declared: str, why: str
) -> None:
    make_table(types_database, declared)
    schema = pa.schema([("n", pa.int32()), ("value", arrow)])
    with pytest.raises(SchemaError, match=why) as caught:
        make_sink(types_database).validate(schema)
    assert f"column 'value': {arrow} does not fit into {declared}" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "declared", "why"),
    [
        (pa.array([1], pa.timestamp("ns")), "timestamp", "would lose data"),
        (pa.array([-(2**63)]).cast(pa.timestamp("us")), "timestamp", "4713 BC"),
        (pa.array([1], pa.time64("ns")), "time", "would lose data"),
        (pa.array([1], pa.duration("ns")), "interval", "would lose data"),
        (pa.array(["not one"]), "uuid", "'not one' is not a UUID"),
        (pa.array(["1234567812345678123456789abcdef "]), "uuid", "is not a UUID"),
        (pa.array(["too long"]), "varchar(3)", "a value has 8 characters and the column has room for 3"),
        (pa.array(["äöü", None, "äöü "]), "varchar(3)", "a value has 4 characters and the column has room for 3"),
        (pa.array(["x@y" + 18 * " "]).cast(pa.large_string()), "email", "a value has 21 characters"),
        (pa.array(["abc "]).cast(pa.string_view()), "varchar(3)", "a value has 4 characters"),
        (pa.array([["abc", "abc "], None]), "varchar(3)[]", "a value has 4 characters"),
        (pa.array(["abc "]).dictionary_encode(), "varchar(3)", "a value has 4 characters"),
        (pa.array(["abc "]), "char(3)", "a value has 4 characters"),
        (pa.array(["a", None, "a "]), "char(3)", "ends with a blank: char.n. does not tell it"),
        (pa.array([["a "]]), "char(3)[]", "ends with a blank"),
        (pa.array([1], pa.timestamp("us")), "timestamp(3)", "the column keeps 3 digits of a second's fraction"),
        (pa.array([1], pa.timestamp("us", "UTC")), "timestamptz(0)", "the column keeps 0 digits"),
        (pa.array([1000], pa.time64("us")), "time(2)", "the column keeps 2 digits"),
        (pa.array([[1]], pa.list_(pa.timestamp("us"))), "timestamp(0)[]", "the column keeps 0 digits"),
    ],
)
def test_a_value_that_cannot_be_kept_fails_the_attempt_and_names_the_column(
    types_database: Database, values: pa.Array, declared: str, why: str
) -> None:
    make_table(types_database, declared)
    with pytest.raises(SchemaError, match=f"'value'.*{why}"):
        write(make_sink(types_database), context(), batch_of(values))
    assert types_database.rows() == []


@pytest.mark.parametrize(
    ("values", "declared", "state"),
    [
        (pa.array(["a\0b"]), "text", "22021"),
        (pa.array(["angry"]), "mood", "22P02"),
        (pa.array(["{"]), "jsonb", "22P02"),
        (pa.array([-1], pa.int32()), "positive", "23514"),
        (pa.array([10**9], pa.int32()), "numeric(3,0)", "22003"),
    ],
)
def test_a_value_that_the_server_refuses_fails_the_attempt_with_its_words(
    types_database: Database, values: pa.Array, declared: str, state: str
) -> None:
    make_table(types_database, declared)
    with pytest.raises(PostgresError, match=f"SQLSTATE {state}"):
        write(make_sink(types_database), context(), batch_of(values))
    assert (types_database.rows(), types_database.prepared()) == ([], [])
