"""Rules of the target's own: partitions, NOT NULL with defaults, triggers, row-level security; and limits of time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import ConfigurationError, PostgresError, SchemaError

from .postgres_kit import (
    SCHEMA,
    Database,
    context,
    expected,
    fresh_database,
    make_sink,
    words,
    words_table,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.connectors.database.sink import PostgresSink
    from onceward.testing.services import PostgresServer

pytestmark = pytest.mark.postgres

PARTITIONS = 300
CHANGES = pa.schema([*SCHEMA, ("op", pa.string())])


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    with fresh_database(server) as fresh:
        yield fresh


@pytest.fixture(params=["prepared", "staging", "upsert"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pair(first: int | None, word: str | None) -> pa.RecordBatch:
    return pa.record_batch([[first], [word]], schema=SCHEMA)


def commit(sink: PostgresSink, epoch: int, *batches: pa.RecordBatch) -> None:
    outcome = sink.commit(write(sink, context(epoch), *batches))
    assert outcome.status is CommitStatus.COMMITTED, outcome


def changing(database: Database) -> PostgresSink:
    return make_sink(database, "upsert", change_column="op")


def change(identity: int, operation: str) -> pa.RecordBatch:
    return pa.record_batch([[identity], [f"w{identity}"], [operation]], schema=CHANGES)


# Partitions


def partitioned(database: Database, parts: int) -> None:
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text) PARTITION BY RANGE (id)")
    database.run(
        f"DO $$ BEGIN FOR n IN 0..{parts - 1} LOOP EXECUTE format('CREATE TABLE part_%s PARTITION OF words"
        " FOR VALUES FROM (%s) TO (%s)', n, n * 10, n * 10 + 10); END LOOP; END $$"
    )


_LOCKED_PARTS = (
    "SELECT count(DISTINCT relation) FROM pg_locks JOIN pg_class c ON c.oid = relation"
    " WHERE locktype = 'relation' AND relname LIKE 'part\\_%%' AND relname NOT LIKE '%%pkey'"
)


def test_an_attempt_locks_the_table_and_the_partitions_that_its_rows_are_in(database: Database, how: str) -> None:
    partitioned(database, PARTITIONS)
    sink = make_sink(database, how)
    sink.validate(SCHEMA)
    transaction = sink.begin(context())
    sink.write(transaction, words(1))
    deadline = time.monotonic() + 10
    held = 0
    while not held and time.monotonic() < deadline:
        held = database.one("SELECT count(*) FROM pg_locks WHERE relation = 'words'::regclass")
    assert held == 1
    assert database.one(_LOCKED_PARTS) <= 1
    committable = sink.pre_commit(transaction)
    assert database.one(_LOCKED_PARTS) == (how == "prepared")
    assert sink.commit(committable).status is CommitStatus.COMMITTED


def test_maintenance_on_one_partition_holds_up_no_rows_of_others(database: Database, how: str) -> None:
    partitioned(database, 3)
    sink = make_sink(database, how, lock_timeout=0.5)
    sink.validate(SCHEMA)
    with psycopg.connect(database.dsn) as maintenance:
        maintenance.execute("LOCK TABLE part_2 IN ACCESS EXCLUSIVE MODE")
        commit(sink, 1, words(1))
    assert database.rows() == expected(1)


def test_deletes_lock_only_partitions_of_their_keys(database: Database) -> None:
    partitioned(database, 3)
    sink = changing(database)
    sink.validate(CHANGES)
    commit(sink, 1, change(1, "c"), change(11, "c"), change(21, "c"))
    with psycopg.connect(database.dsn) as maintenance:
        maintenance.execute("LOCK TABLE part_2 IN ACCESS EXCLUSIVE MODE")
        commit(make_sink(database, "upsert", change_column="op", lock_timeout=0.5), 2, change(1, "d"), change(11, "d"))
    assert database.rows() == expected(21, 1)


def test_deletes_from_a_parent_leave_the_rows_of_its_children_by_inheritance(database: Database) -> None:
    words_table(database)
    database.run("CREATE TABLE child () INHERITS (words)")
    database.run("INSERT INTO child VALUES (1, 'theirs')")
    sink = changing(database)
    sink.validate(CHANGES)
    commit(sink, 1, change(1, "c"))
    commit(sink, 2, change(1, "d"))
    assert database.rows() == [(1, "theirs")]


def test_the_table_cannot_be_altered_while_an_attempt_writes(database: Database) -> None:
    partitioned(database, 2)
    sink = make_sink(database, "prepared")
    transaction = sink.begin(context())
    sink.write(transaction, words(1))
    with psycopg.connect(database.dsn) as other:
        other.execute("SET lock_timeout = 200")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("ALTER TABLE words ALTER COLUMN word TYPE varchar(9)")
    sink.discard(transaction)


# NOT NULL


@pytest.mark.parametrize("column", ["n bigint NOT NULL DEFAULT 7", "n bigint GENERATED BY DEFAULT AS IDENTITY"])
def test_a_null_for_a_not_null_column_with_a_default_fails_before_the_decision(
    database: Database, how: str, column: str
) -> None:
    database.run(f"CREATE TABLE words (id bigint PRIMARY KEY, {column})")
    sink = make_sink(database, how)
    batch = pa.record_batch({"id": [1, 2], "n": pa.array([5, None], pa.int64())})
    sink.validate(batch.schema)
    with pytest.raises((SchemaError, PostgresError), match=r"'n' has nulls|SQLSTATE 23502"):
        write(sink, context(), batch)
    commit(sink, 2, batch.select(["id"]))
    assert [row[0] for row in database.rows()] == [1, 2]


def test_a_row_that_deletes_needs_no_value_for_a_column_with_a_default(database: Database) -> None:
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text NOT NULL DEFAULT 'x')")
    sink = changing(database)
    sink.validate(CHANGES)
    commit(sink, 1, change(1, "c"), change(2, "c"))
    commit(sink, 2, pa.record_batch([[1], [None], ["d"]], schema=CHANGES))
    assert database.rows() == expected(2, 1)
    with pytest.raises(SchemaError, match="'word' has nulls"):
        write(sink, context(3), pa.record_batch([[3], [None], ["c"]], schema=CHANGES))


FILL = (
    "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN NEW.word := coalesce(NEW.word, 'filled'); RETURN NEW; END $$"
)


def filled(database: Database, on: str = "words") -> None:
    database.run(FILL)
    database.run(f"CREATE TRIGGER filling BEFORE INSERT ON {on} FOR EACH ROW EXECUTE FUNCTION fill()")


@pytest.mark.parametrize("default", ["", "DEFAULT 'x'"])
def test_a_trigger_may_fill_a_not_null_column(database: Database, how: str, default: str) -> None:
    database.run(f"CREATE TABLE words (id bigint PRIMARY KEY, word text NOT NULL {default})")
    filled(database)
    sink = make_sink(database, how)
    sink.validate(SCHEMA)
    commit(sink, 1, pair(1, None))
    less = pair(2, None).select(["id"])
    sink.validate(less.schema)
    commit(sink, 2, less)
    assert database.rows() == [(1, "filled"), (2, "x" if default else "filled")]


def test_a_trigger_of_one_partition_may_fill_a_not_null_column(database: Database, how: str) -> None:
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text NOT NULL) PARTITION BY RANGE (id)")
    database.run("CREATE TABLE inner_ PARTITION OF words FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)")
    database.run("CREATE TABLE leaf PARTITION OF inner_ FOR VALUES FROM (0) TO (5)")
    filled(database, "leaf")
    sink = make_sink(database, how)
    sink.validate(pair(1, None).select(["id"]).schema)
    commit(sink, 1, pair(1, None).select(["id"]))
    assert database.rows() == [(1, "filled")]


def test_a_trigger_that_is_disabled_fills_nothing(database: Database, how: str) -> None:
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text NOT NULL)")
    filled(database)
    database.run("ALTER TABLE words DISABLE TRIGGER filling")
    sink = make_sink(database, how)
    with pytest.raises(SchemaError, match=r"'word' .* is not null, has no default, and is missing"):
        sink.validate(pair(1, None).select(["id"]).schema)
    with pytest.raises(PostgresError, match="SQLSTATE 23502"):
        write(sink, context(), pair(1, None))


def test_constraints_of_single_partitions_are_met_before_the_decision(
    database: Database, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text, CHECK (id > -9)) PARTITION BY RANGE (id)")
    database.run("CREATE TABLE inner_ PARTITION OF words FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)")
    database.run("CREATE TABLE leaf PARTITION OF inner_ FOR VALUES FROM (0) TO (5)")
    database.run("CREATE TABLE rest PARTITION OF inner_ DEFAULT")
    sink = make_sink(database, how)
    sink.validate(SCHEMA)
    assert "constraints" not in caplog.text
    database.run("ALTER TABLE inner_ ALTER word SET NOT NULL")
    database.run("ALTER TABLE leaf ADD CONSTRAINT short CHECK (length(word) < 9)")
    with psycopg.connect(database.dsn) as maintenance:
        maintenance.execute("LOCK TABLE leaf IN ACCESS EXCLUSIVE MODE")
        sink.validate(SCHEMA)
        assert ("partition of words is locked" in caplog.text) == (how != "prepared")
    assert ("(inner_: NOT NULL of word, leaf: short)" in caplog.text) == (how != "prepared")
    caplog.clear()
    sink.validate(SCHEMA)
    assert "constraints" not in caplog.text
    for row in (pair(1, None), pair(9, None), pair(1, "x" * 9)):
        with pytest.raises(PostgresError, match=r"SQLSTATE 235(02|14)"):
            write(sink, context(), row)
    good = write(sink, context(epoch=2), pair(1, "short"), pair(9, "x" * 9))
    assert sink.commit(good).status is CommitStatus.COMMITTED
    database.run("CREATE TABLE other PARTITION OF words FOR VALUES FROM (10) TO (20)")
    database.run(f"ALTER TABLE other ADD CONSTRAINT {'l' * 60} CHECK (word > 'a')")
    with pytest.raises(PostgresError, match="SQLSTATE 23514"):
        write(sink, context(epoch=3), pair(11, "a"))
    assert sink.commit(write(sink, context(epoch=3), pair(11, "b"))).status is CommitStatus.COMMITTED
    database.run("ALTER TABLE words RENAME word TO term")
    terms = pa.record_batch([[1], ["x" * 9]], names=["id", "term"])
    with pytest.raises(PostgresError, match="SQLSTATE 23514"):
        write(sink, context(epoch=4), terms)
    database.run("ALTER TABLE words RENAME term TO word")
    database.run("ALTER TABLE words ALTER id SET DEFAULT 7")
    sink.validate(SCHEMA)
    assert ("(inner_: NOT NULL of word, leaf: short, other: " in caplog.text) == (how != "prepared")


# Row-level security


def test_row_level_security_is_refused_at_the_start_for_roles_that_it_binds(database: Database, how: str) -> None:
    words_table(database)
    make_sink(database, how).validate(SCHEMA)
    database.run("ALTER TABLE words ENABLE ROW LEVEL SECURITY")
    make_sink(database, how).validate(SCHEMA)  # the owner is not bound
    database.run("DROP ROLE IF EXISTS bound")
    database.run("CREATE ROLE bound LOGIN PASSWORD 'p' NOSUPERUSER")
    database.run("GRANT ALL ON SCHEMA public, onceward TO bound")
    database.run("GRANT ALL ON ALL TABLES IN SCHEMA public, onceward TO bound")
    dsn = psycopg.conninfo.make_conninfo(database.dsn, user="bound", password="p")
    try:
        with pytest.raises(ConfigurationError, match="row-level security"):
            make_sink(database, how, dsn=dsn).validate(SCHEMA)
        with pytest.raises((ConfigurationError, PostgresError), match="row-level security"):
            write(make_sink(database, how, dsn=dsn), context(), words(1))
    finally:
        database.run("DROP OWNED BY bound")


def test_a_policy_that_comes_later_hides_no_row_from_a_merge(database: Database) -> None:
    words_table(database)
    sink = changing(database)
    sink.validate(CHANGES)
    commit(sink, 1, change(1, "c"))
    deletes = write(sink, context(2), change(1, "d"))
    database.run("CREATE ROLE later LOGIN PASSWORD 'p' NOSUPERUSER")
    database.run("GRANT ALL ON SCHEMA public, onceward TO later")
    database.run("GRANT ALL ON ALL TABLES IN SCHEMA public, onceward TO later")
    database.run("ALTER TABLE words ENABLE ROW LEVEL SECURITY")
    dsn = psycopg.conninfo.make_conninfo(database.dsn, user="later", password="p")
    try:
        with pytest.raises(PostgresError, match="row-level security"):
            make_sink(database, "upsert", change_column="op", dsn=dsn).commit(deletes)
        assert database.rows() == expected(1, 1)
        assert sink.commit(deletes).status is CommitStatus.COMMITTED
        assert database.rows() == []
    finally:
        database.run("DROP OWNED BY later")
        database.run("DROP ROLE later")


# Limits of time


def test_a_roles_limits_of_time_do_not_end_an_epoch(database: Database, how: str) -> None:
    words_table(database)
    database.run(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END $$"
    )
    database.run("CREATE TRIGGER slow BEFORE INSERT ON words FOR EACH STATEMENT EXECUTE FUNCTION slow()")
    name = database.name
    limits = ("transaction_timeout", "statement_timeout", "idle_in_transaction_session_timeout")
    for (setting,) in database.run("SELECT name FROM pg_settings WHERE name = ANY (%s)", list(limits)):
        database.run(f"ALTER DATABASE {name} SET {setting} = '300ms'")
    try:
        sink = make_sink(database, how)
        transaction = sink.begin(context())
        time.sleep(0.5)
        sink.write(transaction, words(1))
        time.sleep(0.5)
        sink.write(transaction, words(4))
        committable = sink.pre_commit(transaction)
        assert sink.commit(committable).status is CommitStatus.COMMITTED
        assert database.rows() == expected(1, 6)
    finally:
        database.reconnect()
        database.run(f"ALTER DATABASE {name} RESET ALL")
