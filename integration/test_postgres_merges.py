"""What only a merge of staged rows needs is known before the decision: identities, rights, defaults, and room."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import make_conninfo

from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import ConfigurationError, PostgresError

from .postgres_kit import (
    SCHEMA,
    Database,
    context,
    expected,
    make_sink,
    words,
    words_table,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.connectors.database.sink import PostgresSink
    from onceward.testing.services import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.server(wal_level="logical")]

WAYS = ("staging", "upsert", "changes")
MOODS = pa.schema([("id", pa.int64()), ("mood", pa.string())])
PASSWORD = "short-lived"


@pytest.fixture(params=["staging", "upsert"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sink_of(database: Database, how: str, **settings: Any) -> PostgresSink:
    if how == "changes":
        return make_sink(database, "upsert", change_column="op", **settings)
    return make_sink(database, how, **settings)


def rows_for(how: str, first: int, count: int = 3, *, delete: bool = False) -> pa.RecordBatch:
    batch = words(first, count)
    return batch.append_column("op", pa.array(["d" if delete else "c"] * count)) if how == "changes" else batch


def commit(sink: PostgresSink, batch: pa.RecordBatch, epoch: int) -> None:
    sink.validate(batch.schema)
    assert sink.commit(write(sink, context(epoch), batch)).status is CommitStatus.COMMITTED


def moods(first: int, *values: str) -> pa.RecordBatch:
    return pa.record_batch([list(range(first, first + len(values))), list(values)], schema=MOODS)


def stages(database: Database) -> set[str]:
    return {row[0] for row in database.run("SELECT tablename FROM pg_tables WHERE tablename ~ '^stage_'")}


# Published tables


@pytest.mark.parametrize("kind", WAYS)
def test_staged_rows_are_merged_in_a_database_that_is_published_whole(
    database: Database, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    words_table(database)
    database.run("CREATE PUBLICATION everything FOR ALL TABLES")
    sink = sink_of(database, kind)
    commit(sink, rows_for(kind, 1), 1)
    commit(sink, rows_for(kind, 4), 2)
    assert database.rows() == expected(1, 6)
    if kind == "changes":
        commit(sink, rows_for(kind, 4, delete=True), 3)
        assert database.rows() == expected(1)
    assert "everything" in caplog.text
    assert "FOR TABLES IN SCHEMA" in caplog.text


def test_rows_are_deleted_from_a_staging_table_of_an_earlier_version_that_has_no_identity(database: Database) -> None:
    words_table(database)
    sink = make_sink(database, "upsert")
    sink.validate(SCHEMA)
    committable = write(sink, context(), words(1))
    for stage in stages(database):
        database.run(f"ALTER TABLE onceward.{stage} REPLICA IDENTITY DEFAULT")
    database.run("CREATE PUBLICATION everything FOR ALL TABLES")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


@pytest.mark.parametrize("published", ["FOR TABLE words", "FOR ALL TABLES"])
@pytest.mark.parametrize("parts", ["", " PARTITION BY RANGE (id)"])
def test_an_upsert_into_a_published_table_without_identity_is_refused_at_the_start(
    database: Database, published: str, parts: str
) -> None:
    database.run(f"CREATE TABLE words (id bigint NOT NULL UNIQUE, word text){parts}")
    table = "words"
    if parts:
        table = "leaf"
        database.run("CREATE TABLE leaf PARTITION OF words DEFAULT")
    database.run(f"CREATE PUBLICATION feed {published}")
    sink = make_sink(database, "upsert")
    with pytest.raises(ConfigurationError, match=f"publication feed publishes table {table}, which has no"):
        sink.validate(SCHEMA)
    database.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    commit(sink, words(1), 1)
    make_sink(database, "staging").validate(SCHEMA)
    assert database.rows() == expected(1)


def test_a_table_that_is_published_while_the_pipeline_runs_fails_the_epoch_before_its_decision(
    database: Database,
) -> None:
    database.run("CREATE TABLE words (id bigint NOT NULL UNIQUE, word text)")
    sink = make_sink(database, "upsert")
    commit(sink, words(1), 1)
    database.run("CREATE PUBLICATION feed FOR TABLE words")
    with pytest.raises(PostgresError, match=r"words.*replica identity.*a primary key, or ALTER TABLE"):
        write(sink, context(2), words(4))
    assert database.staged() == 0


# A staging table is made again if what it copies has changed


REPLACED = {
    "enum": ("TYPE", "CREATE TYPE mood AS ENUM ('ok', 'bad')", "CREATE TYPE mood AS ENUM ('ok', 'new')"),
    "domain": (
        "DOMAIN",
        "CREATE DOMAIN mood AS text CHECK (VALUE IN ('ok', 'bad'))",
        "CREATE DOMAIN mood AS text CHECK (VALUE IN ('ok', 'new'))",
    ),
}


@pytest.mark.parametrize("kind", REPLACED)
def test_a_type_that_is_replaced_under_its_name_counts_from_the_next_row_on(
    database: Database, how: str, kind: str
) -> None:
    what, before, after = REPLACED[kind]
    database.run(before)
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, mood mood)")
    sink = make_sink(database, how)
    commit(sink, moods(1, "ok"), 1)
    database.run(f"ALTER {what} mood RENAME TO mood_old")
    database.run(after)
    database.run("ALTER TABLE words ALTER mood TYPE mood USING mood::text::mood")
    assert sink.commit(write(sink, context(2), moods(2, "new"))).status is CommitStatus.COMMITTED
    with pytest.raises(PostgresError, match=r"bad|mood_check"):
        write(sink, context(3), moods(3, "bad"))
    assert database.rows() == [(1, "ok"), (2, "new")]
    sink.validate(MOODS)
    database.run(f"DROP {what} mood_old")  # no staging table has it any more
    assert len(stages(database)) == 4


def test_a_function_that_is_replaced_under_its_name_checks_the_next_row(database: Database, how: str) -> None:
    words_table(database)
    function = "CREATE FUNCTION good(text) RETURNS bool IMMUTABLE LANGUAGE sql RETURN length($1) {} 3"
    database.run(function.format("<"))
    database.run("ALTER TABLE words ADD CONSTRAINT good CHECK (good(word))")
    sink = make_sink(database, how)
    commit(sink, words(1), 1)
    database.run("ALTER FUNCTION good(text) RENAME TO good_old")
    database.run(function.format(">"))
    database.run("DELETE FROM words")
    database.run("ALTER TABLE words DROP CONSTRAINT good, ADD CONSTRAINT good CHECK (good(word))")
    with pytest.raises(PostgresError, match="good"):
        write(sink, context(2), words(4))
    assert sink.commit(write(sink, context(3), words(4, word="long"))).status is CommitStatus.COMMITTED
    sink.validate(SCHEMA)
    database.run("DROP FUNCTION good_old")


def test_a_decided_epoch_is_merged_from_the_staging_table_it_was_written_into(database: Database, how: str) -> None:
    database.run("CREATE TYPE mood AS ENUM ('ok', 'bad')")
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, mood mood)")
    sink = make_sink(database, how)
    sink.validate(MOODS)
    decided, late = write(sink, context(1), moods(1, "ok")), write(sink, context(2), moods(2, "bad"))
    database.run("ALTER TYPE mood RENAME TO mood_old")
    database.run("CREATE TYPE mood AS ENUM ('new', 'ok')")
    database.run("ALTER TABLE words ALTER mood TYPE mood USING mood::text::mood")
    sink.validate(MOODS)
    assert sink.commit(decided).status is CommitStatus.COMMITTED
    with pytest.raises(PostgresError, match='invalid input value for enum mood: "bad"'):
        sink.commit(late)
    database.run("ALTER TYPE mood ADD VALUE 'bad'")
    assert sink.commit(late).status is CommitStatus.COMMITTED
    assert [(n, str(mood)) for n, mood in database.rows()] == [(1, "ok"), (2, "bad")]


def test_a_staging_table_that_lost_a_column_is_named(database: Database, how: str) -> None:
    words_table(database)
    sink = make_sink(database, how)
    sink.validate(SCHEMA)
    for stage in stages(database):
        database.run(f"ALTER TABLE onceward.{stage} DROP COLUMN word")
    with pytest.raises(ConfigurationError, match=r"columns \['word'\] of the staging table onceward.stage_.*drop it"):
        write(sink, context(), words(1))


def test_a_staging_table_in_use_is_not_dropped(database: Database) -> None:
    words_table(database)
    sink = make_sink(database, "staging")
    sink.validate(SCHEMA)
    committable = write(sink, context(1), words(1))
    database.run("ALTER TABLE words ADD more int")
    sink.validate(SCHEMA)
    assert len(stages(database)) == 5
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    sink.validate(SCHEMA)
    assert len(stages(database)) == 4


# Rights and defaults


@pytest.fixture
def writer(server: PostgresServer, database: Database) -> Iterator[str]:
    """A role that may do what the documentation lists for the schemas; the tables are left to the test."""
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS writer")
        admin.execute(f"CREATE ROLE writer LOGIN PASSWORD '{PASSWORD}'")
    database.run("CREATE SCHEMA onceward AUTHORIZATION writer")
    yield make_conninfo(database.dsn, user="writer", password=PASSWORD)
    database.run("DROP OWNED BY writer")
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("DROP ROLE writer")


def test_a_right_to_update_that_lacks_a_column_is_found_at_the_start(database: Database, writer: str) -> None:
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text, other text)")
    database.run("GRANT SELECT, INSERT ON words TO writer")
    database.run("GRANT UPDATE (other) ON words TO writer")
    sink = make_sink(database, "upsert", dsn=writer, table="public.words")
    with pytest.raises((ConfigurationError, PostgresError), match="permission denied for table words"):
        sink.validate(SCHEMA)
    database.run("GRANT UPDATE (word) ON words TO writer")
    commit(sink, words(1), 1)


NEEDED_BY_DEFAULTS = {
    "n serial": ("USAGE ON SEQUENCE words_n_seq", "USAGE on sequence words_n_seq"),
    "n int DEFAULT secret()": ("EXECUTE ON FUNCTION secret()", r"EXECUTE on function secret\(\)"),
}


@pytest.mark.parametrize("column", NEEDED_BY_DEFAULTS)
def test_a_right_that_a_default_needs_is_found_at_the_start_and_later_before_the_decision(
    database: Database, writer: str, how: str, column: str
) -> None:
    right, named = NEEDED_BY_DEFAULTS[column]
    database.run("CREATE FUNCTION secret() RETURNS int LANGUAGE sql RETURN 7")
    database.run("REVOKE ALL ON FUNCTION secret() FROM PUBLIC")
    database.run(f"CREATE TABLE words (id bigint PRIMARY KEY, word text, {column})")
    database.run("GRANT SELECT, INSERT, UPDATE ON words TO writer")
    sink = make_sink(database, how, dsn=writer, table="public.words")
    with pytest.raises(ConfigurationError, match=f"GRANT it {named}"):
        sink.validate(SCHEMA)
    database.run(f"GRANT {right} TO writer")
    commit(sink, words(1), 1)
    database.run(f"REVOKE {right} FROM writer")
    with pytest.raises(ConfigurationError, match=f"GRANT it {named}"):
        write(sink, context(2), words(4))


@pytest.mark.parametrize("right", ["INSERT", "UPDATE", "SELECT"])
def test_a_right_that_is_revoked_while_the_pipeline_runs_fails_the_epoch_before_its_decision(
    database: Database, writer: str, right: str
) -> None:
    words_table(database)
    database.run("GRANT SELECT, INSERT, UPDATE ON words TO writer")
    sink = make_sink(database, "upsert", dsn=writer, table="public.words")
    commit(sink, words(1), 1)
    database.run(f"REVOKE {right} ON words FROM writer")
    with pytest.raises(PostgresError, match=r"permission denied for table words.*GRANT the missing right"):
        write(sink, context(2), words(4))
    assert database.staged() == 0


@pytest.mark.parametrize("column", ["n bigint DEFAULT nextval('numbers')", "n int GENERATED ALWAYS AS IDENTITY"])
def test_a_sequence_that_would_end_is_found_before_the_decision(database: Database, how: str, column: str) -> None:
    database.run("CREATE SEQUENCE numbers MAXVALUE 5")
    database.run(f"CREATE TABLE words (id bigint PRIMARY KEY, word text, {column})")
    (sequence,) = database.run("SELECT coalesce(pg_get_serial_sequence('words', 'n'), 'numbers')")[0]
    database.run(f"ALTER SEQUENCE {sequence} MAXVALUE 5")
    sink = make_sink(database, how)
    commit(sink, words(1), 1)
    with pytest.raises(ConfigurationError, match=rf"{sequence.rpartition('.')[2]}.*ends before it has numbered 3 rows"):
        write(sink, context(2), words(4))
    database.run(f"ALTER SEQUENCE {sequence} MAXVALUE 99")
    commit(sink, words(4), 2)
    assert [row[2] for row in database.rows()] == [1, 2, 3, 4, 5, 6]  # a rehearsal uses no number


def test_a_sequence_at_the_end_of_bigint_is_found_before_the_decision(database: Database, how: str) -> None:
    database.run("CREATE SEQUENCE numbers START 9223372036854775805")
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text, n bigint DEFAULT nextval('numbers'))")
    sink = make_sink(database, how)
    commit(sink, words(1), 1)
    with pytest.raises(
        ConfigurationError, match=r"numbers, which fills column 'n'.*ends before it has numbered 3 rows"
    ):
        write(sink, context(2), words(4))


def test_a_default_that_fails_is_found_before_the_decision(database: Database, how: str) -> None:
    words_table(database)
    sink = make_sink(database, how)
    commit(sink, words(1), 1)
    database.run("CREATE FUNCTION broken() RETURNS int LANGUAGE sql AS 'SELECT 1 / 0'")
    database.run("ALTER TABLE words ADD n int")
    database.run("ALTER TABLE words ALTER n SET DEFAULT broken()")
    with pytest.raises(PostgresError, match=r"division by zero.*change the default") as caught:
        write(sink, context(2), words(4))
    assert "Correct the rows" not in str(caught.value)
    assert not caught.value.refuses_rows  # or all rows would go to the dead letters


def test_a_function_of_a_default_that_was_replaced_by_one_that_fails_is_found_before_the_decision(
    database: Database, how: str
) -> None:
    replaced = "CREATE OR REPLACE FUNCTION seven(v int) RETURNS int LANGUAGE sql AS 'SELECT {}'"
    database.run(replaced.format("7 / v"))
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text, n int DEFAULT seven(1))")
    sink = make_sink(database, how)
    commit(sink, words(1), 1)
    database.run(replaced.format("7 / (v - 1)"))
    with pytest.raises(PostgresError, match=r"division by zero.*change the default"):
        write(sink, context(2), words(4))


@pytest.mark.parametrize(
    ("generated", "refused"),
    [
        ("n int GENERATED ALWAYS AS (length(word)) STORED, CHECK (n < 3)", "words_n_check"),
        ("n int GENERATED ALWAYS AS (10 / (id - 5)) STORED", "division by zero"),
    ],
)
@pytest.mark.parametrize("kind", WAYS)
def test_a_generated_column_is_made_and_checked_before_the_decision(
    database: Database, kind: str, generated: str, refused: str
) -> None:
    database.run(f"CREATE TABLE words (id bigint PRIMARY KEY, word text, {generated})")
    sink = sink_of(database, kind)
    commit(sink, rows_for(kind, 1), 1)
    bad = pa.record_batch([[4, 5], ["w4", "long"]], schema=SCHEMA)
    if kind == "changes":
        commit(sink, bad.append_column("op", pa.array(["d", "d"])), 2)  # rows that delete are not checked
        bad = bad.append_column("op", pa.array(["c", "c"]))
    with pytest.raises(PostgresError, match=rf"{refused}.*Correct the rows, or change"):
        write(sink, context(3), bad)
    assert [row[:2] for row in database.rows()] == expected(1)


def test_too_many_columns_for_a_staging_table_are_refused_with_the_way_out(database: Database, how: str) -> None:
    columns = [f"c{n}" for n in range(1598)]
    database.run(f"CREATE TABLE words (id bigint PRIMARY KEY, {', '.join(f'{name} bool' for name in columns)})")
    schema = pa.schema([("id", pa.int64()), *((name, pa.bool_()) for name in columns)])
    way_out = "leave columns out" if how == "upsert" else "use commit='prepared'"
    with pytest.raises(ConfigurationError, match=f"1599 columns.*commit='prepared' adds none.*1600: {way_out}"):
        make_sink(database, how).validate(schema)


def test_the_advice_names_the_sequence_that_is_at_its_end(database: Database) -> None:
    database.run("CREATE SEQUENCE numbers MAXVALUE 5")
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text, n bigint DEFAULT nextval('numbers'))")
    sink = make_sink(database, "staging")
    sink.validate(SCHEMA)
    committable = write(sink, context(1), words(1))
    database.run("SELECT setval('numbers', 4)")
    with pytest.raises(PostgresError, match=r"numbers.*raise the limit of the sequence") as caught:
        sink.commit(committable)
    assert not re.search("correct the rows", str(caught.value))
    database.run("ALTER SEQUENCE numbers MAXVALUE 99")
    assert sink.commit(committable).status is CommitStatus.COMMITTED


# Rights through other roles, and what triggers reach


@pytest.fixture
def group(server: PostgresServer, database: Database, writer: str) -> Iterator[str]:
    """A role of which the writer is a member."""
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS writers")
        admin.execute("CREATE ROLE writers ROLE writer")
    yield writer
    database.run("DROP OWNED BY writers")
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute("DROP ROLE writers")


@pytest.mark.parametrize("granted", ["UPDATE", "UPDATE (word, id)", "SELECT", "SELECT (id, word)"])
def test_a_right_that_is_lost_with_another_role_fails_the_epoch_before_its_decision(
    database: Database, group: str, granted: str
) -> None:
    words_table(database)
    rights = {"UPDATE", "SELECT", "INSERT"} - {granted.partition(" ")[0]}
    database.run(f"GRANT {', '.join(rights)} ON words TO writer")
    database.run(f"GRANT {granted} ON words TO writers")
    sink = make_sink(database, "upsert", dsn=group, table="public.words")
    commit(sink, words(1), 1)
    database.run("REVOKE writers FROM writer")
    with pytest.raises(PostgresError, match=r"permission denied for table words.*GRANT the missing right"):
        write(sink, context(2), words(4))
    assert database.staged() == 0


def _audited(database: Database, event: str, kind: str = "TRIGGER", deferred: str = "") -> None:
    database.run("CREATE TABLE audit (id bigint)")
    database.run(
        "CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql"
        " AS $$ BEGIN INSERT INTO public.audit VALUES (new.id); RETURN new; END $$"
    )
    database.run(f"CREATE {kind} audited AFTER {event} ON words {deferred} FOR EACH ROW EXECUTE FUNCTION audited()")


@pytest.mark.parametrize("deferred", ["", "DEFERRABLE INITIALLY DEFERRED"])
@pytest.mark.parametrize("event", ["INSERT", "UPDATE"])
def test_a_right_that_only_a_trigger_needs_is_found_before_the_decision(
    database: Database, writer: str, event: str, deferred: str
) -> None:
    words_table(database)
    database.run("GRANT SELECT, INSERT, UPDATE ON words TO writer")
    _audited(database, event, "CONSTRAINT TRIGGER" if deferred else "TRIGGER", deferred)
    sink = make_sink(database, "upsert", dsn=writer, table="public.words")
    sink.validate(SCHEMA)
    with pytest.raises(PostgresError, match="permission denied for table audit"):
        write(sink, context(1), words(1))
    database.run("GRANT INSERT ON audit TO writer")
    commit(sink, words(1), 1)
    database.run("REVOKE INSERT ON audit FROM writer")  # which has no trace in the definition of the table
    with pytest.raises(PostgresError, match="permission denied for table audit"):
        write(sink, context(2), words(4))
    assert database.staged() == 0


def test_a_function_of_a_trigger_that_was_replaced_is_tried_before_the_decision(database: Database, how: str) -> None:
    words_table(database)
    _audited(database, "INSERT")
    sink = make_sink(database, how)
    commit(sink, words(1), 1)
    database.run("ALTER TABLE audit RENAME TO moved")
    with pytest.raises(PostgresError, match=r'relation "public.audit" does not exist'):
        write(sink, context(2), words(4))
    database.run("ALTER TABLE moved RENAME TO audit")
    commit(sink, words(4), 3)
    assert database.run("SELECT count(*) FROM audit") == [(6,)]


@pytest.mark.parametrize("column", ["n serial", "n int GENERATED BY DEFAULT AS IDENTITY", "n int DEFAULT 1 + later()"])
def test_a_default_that_changes_while_the_pipeline_runs_is_tried_again(
    database: Database, how: str, column: str
) -> None:
    database.run("CREATE FUNCTION later() RETURNS int LANGUAGE sql RETURN 7")
    database.run(f"CREATE TABLE words (id bigint PRIMARY KEY, word text, {column})")
    sink = make_sink(database, how)
    commit(sink, words(1), 1)
    commit(sink, words(4), 2)
    if "later" in column:
        database.run("CREATE OR REPLACE FUNCTION later() RETURNS int LANGUAGE sql RETURN 1 / 0")
        changed = "division by zero"
    else:
        database.run("ALTER SEQUENCE words_n_seq MAXVALUE 7")
        changed = "ends before it has numbered 3 rows"
    with pytest.raises((ConfigurationError, PostgresError), match=changed):
        write(sink, context(3), words(7))


def test_a_function_of_an_index_that_may_not_be_called_any_more_is_tried_before_the_decision(
    database: Database, writer: str, how: str
) -> None:
    words_table(database)
    database.run("GRANT SELECT, INSERT, UPDATE ON words TO writer")
    database.run("CREATE FUNCTION same(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN $1; END $$")
    database.run("CREATE INDEX ON words (same(word))")
    sink = make_sink(database, how, dsn=writer, table="public.words")
    commit(sink, words(1), 1)
    database.run("REVOKE EXECUTE ON FUNCTION same(text) FROM PUBLIC")
    with pytest.raises(PostgresError, match="permission denied for function same"):
        write(sink, context(2), words(4))


def test_a_publication_of_some_rows_is_named_in_the_advice(database: Database) -> None:
    words_table(database)
    sink = make_sink(database, "upsert")
    commit(sink, words(1), 1)
    database.run("CREATE PUBLICATION few FOR TABLE words WHERE (word > 'a')")
    with pytest.raises(PostgresError, match=r"cannot update table.*replica identity of the table have the columns"):
        write(sink, context(2), words(1))


def test_rights_on_columns_alone_are_refused_at_the_start(database: Database, writer: str, how: str) -> None:
    words_table(database)
    database.run("GRANT SELECT, INSERT (id, word), UPDATE (word) ON words TO writer")
    sink = make_sink(database, how, dsn=writer, table="public.words")
    with pytest.raises(ConfigurationError, match=r"only on columns of table.*GRANT INSERT ON it"):
        sink.validate(SCHEMA)
    database.run("GRANT INSERT ON words TO writer")
    commit(sink, words(1), 1)
