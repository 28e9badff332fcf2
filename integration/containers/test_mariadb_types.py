"""What MariaDB holds of a value is what was given, for each type that a column can have; or the value is refused."""

from __future__ import annotations

import datetime as dt
import time
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from sqlalchemy import make_url

from onceward.connectors.database.column_matching import InsertWriter, make_plan
from onceward.connectors.database.engines import close_idle, transaction
from onceward.connectors.database.mariadb import MariaDb
from onceward.connectors.database.sink import SqlAlchemySink
from onceward.connectors.database.tables import describe
from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import ConfigurationError, SchemaError, SqlError

from ..postgres_kit import SCHEMA, SCOPE, context, write
from ..sql_kit import VALUES, MariaDatabase, maria_database, write_lines_and_words

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.core.contract.transaction import Committable
    from onceward.testing.containers import MariaDbContainer

pytestmark = pytest.mark.containers

TYPES: Final = (
    *("tinyint", "smallint", "mediumint", "int", "bigint", "int zerofill", "bigint unsigned", "boolean", "bit(8)"),
    *("decimal(12,4)", "decimal(3,1)", "decimal(20,0) unsigned", "decimal(5,1) unsigned", "float", "double"),
    *("float(7,2)", "double(10,2)", "double(10,2) unsigned", "double unsigned", "float unsigned", "float(30)"),
    *("char(3)", "varchar(3)", "nchar(3)", "varchar(300)", "tinytext", "text", "mediumtext", "longtext", "json"),
    *("varchar(300) character set latin1", "varchar(300) character set utf8mb3", "tinytext character set utf32"),
    *(
        "char(3) character set ucs2",
        "enum('a','c','abc')",
        "set('a','b','c')",
        "set('3','a')",
        "uuid",
        "inet6",
        "inet4",
    ),
    *("binary(3)", "varbinary(3)", "tinyblob", "blob", "mediumblob", "longblob", "year", "date", "time", "time(6)"),
    *("datetime", "datetime(3)", "datetime(6)", "timestamp null", "timestamp(6) null", "point"),
)


@pytest.fixture(scope="module")
def types_database(mariadb_container: MariaDbContainer) -> Iterator[MariaDatabase]:
    with maria_database(mariadb_container.url) as fresh:
        fresh.run("SET time_zone = '+00:00'")
        yield fresh
        close_idle()


def commit(sink: SqlAlchemySink, committable: Committable) -> None:
    """Ask again until the server has seen the writer's session end."""
    until = time.monotonic() + 5
    while (status := sink.commit(committable).status) is CommitStatus.RETRY_LATER and time.monotonic() < until:
        time.sleep(0.002)
    assert status is CommitStatus.COMMITTED


def as_read(value: Any, declared: str) -> Any:
    """A value as a client reads it: of single precision with all its bits, of a time its distance from midnight."""
    if isinstance(value, dt.time):
        return dt.timedelta(
            hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond
        )
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    if isinstance(value, str) and declared.startswith("set("):
        return set(value.split(","))
    return value


@pytest.mark.parametrize("declared", TYPES)
def test_what_is_read_back_is_what_was_given_or_it_is_refused(types_database: MariaDatabase, declared: str) -> None:
    table = f"t{TYPES.index(declared)}"
    types_database.run(f"CREATE TABLE {table} (value {declared}) CHARACTER SET utf8mb4")
    target = types_database.sink(table=table).target
    described = describe(target, target.table)
    assert described is not None
    exact = "value + 0e0" if declared.startswith("float") else "value"
    for arrow, values in VALUES:
        for value in pa.array(values, arrow).to_pylist():
            batch = pa.record_batch({"value": pa.array([value], arrow)})
            try:
                plan = make_plan(batch.schema, described, MariaDb())
                with transaction(target, "cannot write") as connection:
                    InsertWriter(connection, plan).write(batch)
            except (SchemaError, SqlError):
                continue
            [(found,)] = types_database.run(f"SELECT {exact} FROM {table}")
            assert as_read(found, declared) == as_read(value, declared), f"{arrow} {value!r}"
            types_database.run(f"DELETE FROM {table}")


@pytest.mark.parametrize(
    ("declared", "array", "why"),
    [
        ("double(10,2)", pa.array([1.239]), "rounds to 2 digits: make it DOUBLE"),
        ("float(7,2)", pa.array([1.239], pa.float32()), "rounds to 2 digits: make it DOUBLE"),
        ("char(5)", pa.array(["a "]), "ends with a blank: MariaDB cuts blanks at the end of a CHAR"),
        ("set('a','b')", pa.array(["3"]), r"'3' is not a set of \['a', 'b'\]"),
        (
            "decimal(5,1) unsigned",
            pa.array([Decimal("-1.0")], pa.decimal128(5, 1)),
            "negative and the column is unsigned",
        ),
    ],
)
def test_a_value_that_mariadb_would_change_is_refused_with_its_column(
    types_database: MariaDatabase, declared: str, array: pa.Array, why: str
) -> None:
    types_database.run("DROP TABLE IF EXISTS words")
    types_database.run(f"CREATE TABLE words (value {declared})")
    sink, batch = types_database.sink(), pa.record_batch({"value": array})
    with suppress(SchemaError):  # for its type; and the table is read anew
        sink.validate(batch.schema)
    with pytest.raises(SchemaError, match=f"column 'value'.*{why}"):
        write(sink, context(), batch)


@pytest.mark.parametrize("how", ["prepared", "staging"])
def test_the_id_zero_is_the_id_zero(types_database: MariaDatabase, how: str) -> None:
    types_database.run("DROP TABLE IF EXISTS words")
    types_database.run("CREATE TABLE words (id bigint AUTO_INCREMENT PRIMARY KEY, word text)")
    sink = types_database.sink("upsert" if how == "staging" else how)
    sink.validate(SCHEMA)
    for epoch, ids in enumerate([[0, 7], [0, 8]] if how == "staging" else [[0, 7], [8]]):
        committable = write(sink, context(epoch), pa.record_batch([ids, [f"w{id_}" for id_ in ids]], schema=SCHEMA))
        commit(sink, committable)
    assert types_database.rows() == [(0, "w0"), (7, "w7"), (8, "w8")]


def test_keys_that_differ_in_blanks_are_two_rows_in_a_created_table(types_database: MariaDatabase) -> None:
    schema = pa.schema([("id", pa.string()), ("n", pa.int64())])
    sink = types_database.sink("upsert", table="padded", create_table=True)
    sink.validate(schema)
    commit(sink, write(sink, context(), pa.record_batch([["a", "a ", "A"], [1, 2, 3]], schema=schema)))
    assert types_database.rows("padded") == [("A", 3), ("a", 1), ("a ", 2)]


@pytest.mark.parametrize("collation", ["utf8mb4_bin", "utf8mb4_general_ci"])
def test_a_key_that_the_columns_collation_takes_for_another_one_is_refused(
    types_database: MariaDatabase, collation: str
) -> None:
    types_database.run("DROP TABLE IF EXISTS named")
    types_database.run(f"CREATE TABLE named (id varchar(9) PRIMARY KEY, n bigint) COLLATE {collation}")
    schema = pa.schema([("id", pa.string()), ("n", pa.int64())])
    sink = types_database.sink("upsert", table="named")
    sink.validate(schema)
    with pytest.raises(SchemaError, match=f"column 'id'.*ends with a blank.*{collation} ignores it in keys"):
        write(sink, context(), pa.record_batch([["a", "a "], [1, 2]], schema=schema))
    commit(sink, write(sink, context(2), pa.record_batch([["a", " a"], [1, 2]], schema=schema)))
    assert len(types_database.rows("named")) == 2


def test_a_key_over_the_first_characters_of_a_column_is_none_for_an_upsert(types_database: MariaDatabase) -> None:
    schema = pa.schema([("id", pa.string()), ("n", pa.int64())])
    types_database.run("CREATE TABLE prefixed (id varchar(100) CHARACTER SET utf8mb4, n bigint, PRIMARY KEY (id(3)))")
    with pytest.raises(SchemaError, match=r"no primary key or unique index over exactly \['id'\]"):
        types_database.sink("upsert", table="prefixed").validate(schema)
    types_database.run("CREATE TABLE also (id varchar(100) PRIMARY KEY, n bigint, word text, UNIQUE (word(3)))")
    with pytest.raises(SchemaError, match=r"other unique keys.*word\(3\)"):
        types_database.sink("upsert", table="also").validate(schema)


@pytest.fixture
def narrow(types_database: MariaDatabase) -> Iterator[MariaDatabase]:
    """A server that takes at most 1 MiB at once, from new connections."""
    close_idle()
    [(before,)] = types_database.run("SELECT @@global.max_allowed_packet")
    types_database.run("SET GLOBAL max_allowed_packet = 1048576")
    types_database.run("DROP TABLE IF EXISTS words")
    types_database.run("CREATE TABLE words (id bigint PRIMARY KEY, word longtext)")
    yield types_database
    types_database.run(f"SET GLOBAL max_allowed_packet = {before}")
    close_idle()


@pytest.mark.parametrize("how", ["prepared", "staging", "upsert"])
def test_what_a_server_does_not_take_at_once_is_sent_in_parts(narrow: MariaDatabase, how: str) -> None:
    sink = narrow.sink(how)
    sink.validate(SCHEMA)
    texts = pa.array(["\\'" * 50_000] * 30)
    for epoch, column in enumerate([texts, texts.dictionary_encode(), texts.cast(pa.string_view())]):
        batch = pa.record_batch([range(30 * epoch, 30 * (epoch + 1)), column], names=SCHEMA.names)
        commit(sink, write(sink, context(epoch), batch))
    assert narrow.run("SELECT count(*), sum(length(word)) FROM words") == [(90, 90 * 100_000)]


@pytest.mark.parametrize("how", ["prepared", "staging", "upsert"])
def test_a_row_that_a_server_never_takes_fails_the_epoch_before_its_decision(narrow: MariaDatabase, how: str) -> None:
    sink = narrow.sink(how)
    sink.validate(SCHEMA)
    with pytest.raises(
        SqlError, match=r"a row makes a statement of \d+ bytes, and the server takes 1048576.*1153"
    ) as error:
        write(sink, context(), pa.record_batch([[1, 2], ["", "x" * 1_048_576]], schema=SCHEMA))
    assert not error.value.retryable
    assert (list(sink.lingering(SCOPE)), narrow.rows()) == ([], [])


def test_a_server_that_takes_too_little_at_once_is_refused_at_the_start(narrow: MariaDatabase) -> None:
    narrow.run("SET GLOBAL max_allowed_packet = 65536")
    with pytest.raises(ConfigurationError, match="max_allowed_packet is 65536: set it to 262144 or more"):
        narrow.sink().validate(SCHEMA)


@pytest.mark.parametrize("name", ["a`b", "`", "a%b", "a%%s", ":x", 'a"b', "a\\b", "ü )"])
@pytest.mark.parametrize("how", ["prepared", "staging", "upsert"])
def test_a_column_may_have_any_name_and_a_url_any_charset(types_database: MariaDatabase, how: str, name: str) -> None:
    quoted = name.replace("`", "``")
    types_database.run("DROP TABLE IF EXISTS named")
    types_database.run(f"CREATE TABLE named (id bigint PRIMARY KEY, `{quoted}` varchar(9)) CHARACTER SET utf8mb4")
    url = make_url(types_database.url).update_query_dict({"charset": "latin1"})
    sink = types_database.sink(how, table="named", url=url)
    batch = pa.record_batch([[1], ["ü€😀"]], names=["id", name])
    sink.validate(batch.schema)
    commit(sink, write(sink, context(), batch))
    assert types_database.rows("named") == [(1, "ü€😀")]


def test_rows_that_refer_to_another_sinks_rows_are_staged_and_committed(
    types_database: MariaDatabase, tmp_path: Path
) -> None:
    types_database.run("CREATE OR REPLACE TABLE words (id bigint PRIMARY KEY, word text)")
    types_database.run("CREATE TABLE refers (id bigint PRIMARY KEY, word_id bigint REFERENCES words (id))")
    sinks = [
        SqlAlchemySink(name, url=types_database.url, table=table)
        for name, table in [("a", "refers"), ("words", "words")]
    ]
    try:
        write_lines_and_words(tmp_path, sinks)
        assert [sink.commit_path for sink in sinks] == ["staging", "prepared"]
        assert [len(types_database.rows(table)) for table in ("words", "refers")] == [3, 3]
    finally:
        types_database.run("DROP TABLE refers")


@pytest.mark.parametrize("calls", [False, True])
def test_a_trigger_into_a_table_without_transactions_is_refused(types_database: MariaDatabase, calls: bool) -> None:
    types_database.run("CREATE OR REPLACE TABLE audited (id bigint PRIMARY KEY, word text)")
    types_database.run("CREATE OR REPLACE TABLE audit (id bigint) ENGINE=MyISAM")
    types_database.run("CREATE OR REPLACE PROCEDURE keep_it (id bigint) INSERT INTO audit VALUES (id)")
    does = "CALL keep_it(new.id)" if calls else "INSERT INTO `audit` VALUES (new.id)"
    types_database.run(f"CREATE TRIGGER audits AFTER INSERT ON audited FOR EACH ROW {does}")
    sink = types_database.sink(table="audited")
    with pytest.raises(ConfigurationError, match="its triggers name audit, whose storage engine has no transactions"):
        sink.validate(SCHEMA)
    types_database.run("ALTER TABLE audit ENGINE=InnoDB")
    sink.validate(SCHEMA)


@pytest.mark.parametrize("how", ["prepared", "staging"])
def test_a_number_that_a_narrowed_column_would_round_is_refused(types_database: MariaDatabase, how: str) -> None:
    types_database.run("DROP TABLE IF EXISTS prices")
    types_database.run("CREATE TABLE prices (price decimal(12,4))")
    sink = types_database.sink(how, table="prices")
    batch = pa.record_batch({"price": pa.array([Decimal("1.2345")], pa.decimal128(12, 4))})
    sink.validate(batch.schema)
    types_database.run("ALTER TABLE prices MODIFY price decimal(12,1)")
    with pytest.raises(SchemaError, match=r"column 'price'.*numeric\(12,1\), which would round"):
        write(sink, context(), batch)
    assert types_database.rows("prices") == []
