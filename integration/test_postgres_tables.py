"""Names, columns, keys and kinds of tables; tables that are created; upserts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import ConfigurationError, PostgresError, SchemaError

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
    from onceward.connectors.database.sink import PostgresSink

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["prepared", "staging"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def commit(sink: PostgresSink, *batches: pa.RecordBatch, **where: Any) -> None:
    sink.validate(batches[0].schema)
    outcome = sink.commit(write(sink, context(**where), *batches))
    assert outcome.status is CommitStatus.COMMITTED


# Names


@pytest.mark.parametrize(
    ("named", "stands_for"),
    [
        ("words", "words"),
        ("WORDS", "words"),
        ("public.words", "public.words"),
        ('"My Schema"."T"', '"My Schema"."T"'),
        ('"My Schema"."say ""hi"".now"', '"My Schema"."say ""hi"".now"'),
        ('public."select"', 'public."select"'),
    ],
)
def test_names_mean_what_they_mean_in_sql(database: Database, how: str, named: str, stands_for: str) -> None:
    database.run('CREATE SCHEMA "My Schema"')
    database.run(f"CREATE TABLE {stands_for} (id bigint, word text)")
    commit(make_sink(database, how, table=named), words(1))
    assert database.rows(stands_for) == expected(1)


def test_column_names_may_need_quotes(database: Database, how: str) -> None:
    database.run('CREATE TABLE words ("Order" bigint, "a""b" text, "group" text, "%s" int)')
    batch = pa.record_batch({"%s": pa.array([1], pa.int32()), "group": ["g"], "Order": [5], 'a"b': ["x"]})
    commit(make_sink(database, how), batch)
    assert database.rows() == [(5, "x", "g", 1)]


def test_columns_are_matched_by_name_and_defaults_fill_the_rest(database: Database, how: str) -> None:
    database.run("CREATE TABLE words (extra int DEFAULT 7, word text, n int GENERATED ALWAYS AS IDENTITY, id bigint)")
    commit(make_sink(database, how), words(1, 2))
    assert database.rows() == [(7, "w1", 1, 1), (7, "w2", 2, 2)]


def test_an_identity_column_may_be_given(database: Database, how: str) -> None:
    database.run("CREATE TABLE words (id bigint GENERATED ALWAYS AS IDENTITY, word text)")
    commit(make_sink(database, how), words(100))
    assert database.rows() == expected(100)


def test_a_dropped_column_and_a_changed_one_are_seen_at_the_next_epoch(database: Database, how: str) -> None:
    database.run("CREATE TABLE words (gone int, id integer, word text)")
    sink = make_sink(database, how)
    narrow = pa.record_batch({"id": pa.array([1], pa.int32()), "word": ["a"]})
    commit(sink, narrow)
    database.run("ALTER TABLE words DROP COLUMN gone, ALTER COLUMN id TYPE bigint, ADD COLUMN more text DEFAULT 'm'")
    commit(sink, narrow, epoch=2)
    database.run("ALTER TABLE words ALTER COLUMN id TYPE real")
    with pytest.raises(SchemaError, match="'id': int64 does not fit into real"):
        write(sink, context(3), words(1))
    assert database.rows() == [(1, "a", "m"), (1, "a", "m")]


def test_all_unfit_columns_are_named_before_anything_is_written(database: Database, how: str) -> None:
    database.run("CREATE TABLE words (id integer, word text, must bigint NOT NULL)")
    wrong = pa.schema([("id", pa.int64()), ("word", pa.string()), ("Must", pa.int64()), ("other", pa.int8())])
    with pytest.raises(SchemaError) as caught:
        make_sink(database, how).validate(wrong)
    text = str(caught.value)
    assert "column 'Must' (int64) is not in the table (it has 'must': names must match in case)" in text
    assert "column 'other' (int8) is not in the table" in text
    assert "column 'must' (bigint) is not null, has no default, and is missing" in text


def test_a_generated_column_cannot_be_given(database: Database, how: str) -> None:
    database.run("CREATE TABLE words (id bigint, word text GENERATED ALWAYS AS ('w' || id) STORED)")
    with pytest.raises(SchemaError, match=r"'word'.*generated; leave it out"):
        make_sink(database, how).validate(SCHEMA)
    commit(make_sink(database, how), words(1).select(["id"]))
    assert database.rows() == expected(1)


def test_a_null_in_a_not_null_column_fails_the_attempt(database: Database, how: str) -> None:
    database.run("CREATE TABLE words (id bigint, word text NOT NULL)")
    batch = pa.record_batch([[1], [None]], schema=SCHEMA)
    with pytest.raises(PostgresError, match="SQLSTATE 23502"):
        write(make_sink(database, how), context(), batch)


def test_batches_of_one_epoch_must_look_alike(database: Database, how: str) -> None:
    words_table(database)
    with pytest.raises(SchemaError, match="a batch has schema"):
        write(make_sink(database, how), context(), words(1), words(2).select(["id"]))


# Kinds of tables


def test_a_missing_table_is_a_clear_error(database: Database, how: str) -> None:
    sink = make_sink(database, how, table="nowhere.words")
    with pytest.raises(SchemaError, match="does not exist; create it, or set create_table=True"):
        sink.validate(SCHEMA)
    with pytest.raises(SchemaError, match="does not exist; create it, or set create_table=True"):
        write(sink, context(), words(1))


@pytest.mark.parametrize(
    ("statement", "why"),
    [("CREATE VIEW words AS SELECT 1::bigint AS id, ''::text AS word", "is a view")],
)
def test_only_tables_can_be_written(database: Database, how: str, statement: str, why: str) -> None:
    database.run(statement)
    with pytest.raises(ConfigurationError, match=why):
        make_sink(database, how).validate(SCHEMA)


def test_an_unlogged_table_is_a_warning(database: Database, how: str, caplog: pytest.LogCaptureFixture) -> None:
    database.run("CREATE UNLOGGED TABLE words (id bigint, word text)")
    make_sink(database, how).validate(SCHEMA)
    assert "is unlogged: a crash of the server empties it" in caplog.text


def test_partitioned_tables_are_written(database: Database, how: str) -> None:
    database.run("CREATE TABLE words (id bigint, word text) PARTITION BY RANGE (id)")
    database.run("CREATE TABLE low PARTITION OF words FOR VALUES FROM (0) TO (10)")
    database.run("CREATE TABLE high PARTITION OF words FOR VALUES FROM (10) TO (100)")
    commit(make_sink(database, how), words(8, 4))
    assert (database.rows("low"), database.rows("high")) == (expected(8, 2), expected(10, 2))


def test_triggers_see_the_rows(database: Database, how: str) -> None:
    words_table(database)
    database.run("CREATE TABLE seen (id bigint)")
    database.run(
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NEW; END $$"
    )
    database.run("CREATE TRIGGER noting AFTER INSERT ON words FOR EACH ROW EXECUTE FUNCTION note()")
    commit(make_sink(database, how), words(1))
    assert database.rows("seen") == [(1,), (2,), (3,)]


# Creating tables


def test_a_table_is_created_from_the_schema_if_asked_for(database: Database, how: str) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("ms")),
            ("tags", pa.list_(pa.string())),
            ("key", pa.uuid()),
            ("body", pa.json_()),
            ("size", pa.uint64()),
            ("kind", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    sink = make_sink(database, how, table='"New"."T"', create_table=True)
    sink.validate(schema)
    query = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
    assert [row[0] for row in database.run(query + " ORDER BY attnum", '"New"."T"')] == [
        "bigint",
        "numeric(10,2)",
        "timestamp with time zone",
        "timestamp without time zone",
        "text[]",
        "uuid",
        "jsonb",
        "numeric(20,0)",
        "text",
    ]


def test_a_table_is_created_at_the_first_write_too(database: Database, how: str) -> None:
    sink = make_sink(database, how, table="fresh.words", create_table=True)
    assert sink.commit(write(sink, context(), words(1))).status is CommitStatus.COMMITTED
    assert database.rows("fresh.words") == expected(1)


def test_a_created_table_for_upserts_has_their_key(database: Database) -> None:
    commit(make_sink(database, "upsert", create_table=True), words(1), words(1, word="x"))
    assert database.rows() == expected(1, word="x")


def test_a_column_without_counterpart_stops_the_creation(database: Database, how: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("pair", pa.struct([("a", pa.int32())]))])
    with pytest.raises(SchemaError, match="no PostgreSQL type for column 'pair'"):
        make_sink(database, how, create_table=True).validate(schema)


# Upserts


def test_an_upsert_replaces_and_adds(database: Database) -> None:
    words_table(database)
    sink = make_sink(database, "upsert")
    commit(sink, words(1, 3))
    commit(sink, words(2, 3, word="new"), epoch=2)
    assert database.rows() == [(1, "w1"), (2, "new2"), (3, "new3"), (4, "new4")]


def test_of_one_key_in_one_subtask_the_last_row_wins(database: Database) -> None:
    words_table(database)
    rows = [pa.record_batch([[1, 2, 1], [f"a{n}", f"b{n}", f"c{n}"]], schema=SCHEMA) for n in range(300)]
    commit(make_sink(database, "upsert"), *rows)
    assert database.rows() == [(1, "c299"), (2, "b299")]


def test_of_one_key_in_several_subtasks_the_highest_subtask_wins(database: Database) -> None:
    words_table(database)
    sink = make_sink(database, "upsert")
    committables = [write(sink, context(subtask=n), words(1, word=f"s{n}-")) for n in (2, 0, 1)]
    assert {o.status for o in sink.commit_many(committables)} == {CommitStatus.COMMITTED}
    assert database.rows() == expected(1, word="s2-")


def test_an_upsert_leaves_columns_alone_that_are_not_given(database: Database) -> None:
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text, note text DEFAULT 'none')")
    database.run("INSERT INTO words VALUES (1, 'old', 'keep')")
    commit(make_sink(database, "upsert"), words(1, 2))
    assert database.rows() == [(1, "w1", "keep"), (2, "w2", "none")]


def test_a_key_of_several_columns_and_nothing_else_is_kept_once(database: Database) -> None:
    database.run("CREATE TABLE words (word text, id bigint, UNIQUE (id, word))")
    sink = make_sink(database, "upsert", key=["id", "word"])
    commit(sink, words(1), words(1))
    commit(sink, words(1, 4), epoch=2)
    assert sorted(database.run("SELECT id, word FROM words")) == expected(1, 4)


@pytest.mark.parametrize(
    "index",
    [
        "SELECT 1",
        "CREATE INDEX ON words (id)",
        "CREATE UNIQUE INDEX ON words (id) WHERE id > 0",
        "CREATE UNIQUE INDEX ON words (id, word)",
        "CREATE UNIQUE INDEX ON words ((id + 1))",
        "ALTER TABLE words ADD UNIQUE (id) DEFERRABLE",
    ],
)
def test_a_key_without_its_own_unique_index_is_refused(database: Database, index: str) -> None:
    database.run("CREATE TABLE words (id bigint, word text)")
    database.run(index)
    with pytest.raises(SchemaError, match=r"no primary key or unique index over exactly \['id'\]"):
        make_sink(database, "upsert").validate(SCHEMA)


def test_a_key_that_is_none_any_more_fails_the_epoch_before_its_decision(database: Database) -> None:
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text)")
    sink = make_sink(database, "upsert")
    sink.validate(SCHEMA)
    batch = pa.record_batch({"id": [1], "word": ["a"]})
    sink.commit(write(sink, context(), batch))
    database.run("ALTER TABLE words DROP CONSTRAINT words_pkey, ADD PRIMARY KEY (id, word)")
    with pytest.raises(SchemaError, match=r"words cannot be upserted by \['id'\]"):
        write(sink, context(2), batch)


def test_an_identity_that_only_an_insert_may_give_is_no_column_for_an_upsert(database: Database) -> None:
    """ON CONFLICT would have to update it, which PostgreSQL refuses whatever the rows are."""
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY, word text)")
    sink = make_sink(database, "upsert")
    batch = pa.record_batch({"id": [1], "n": [5], "word": ["a"]})
    for attempt in (lambda: sink.validate(batch.schema), lambda: write(sink, context(), batch)):
        with pytest.raises(SchemaError, match=r"'n'.*GENERATED ALWAYS.*an upsert cannot update it"):
            attempt()
    commit(sink, batch.select(["id", "word"]), epoch=2)
    database.run("ALTER TABLE words ALTER n SET GENERATED BY DEFAULT")
    commit(sink, batch, epoch=3)
    assert database.rows() == [(1, 5, "a")]


def test_a_row_that_no_merge_takes_can_be_made_a_delete(database: Database) -> None:
    words_table(database)
    database.run("CREATE INDEX ON words ((10 / id))")
    sink = make_sink(database, "upsert", change_column="op")
    batch = words(0, 2).append_column("op", pa.array(["insert", "insert"]))
    sink.validate(batch.schema)
    committable = write(sink, context(), batch)
    with pytest.raises(PostgresError, match="division by zero") as caught:
        sink.commit(committable)
    (stage,) = set(re.findall(r"onceward\.stage_\w+", str(caught.value)))
    database.run(f"UPDATE {stage} SET onceward_delete = true WHERE id = 0")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == [(1, "w1")]


def test_a_key_may_be_an_identity_that_only_an_insert_may_give(database: Database) -> None:
    database.run("CREATE TABLE words (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, word text)")
    for epoch, word in ((1, "a"), (2, "b")):
        commit(make_sink(database, "upsert"), words(7, 1, word), epoch=epoch)
    assert database.rows() == [(7, "b7")]


@pytest.mark.parametrize(("event", "disabled"), [("INSERT", False), ("UPDATE", False), ("UPDATE", True)])
def test_a_table_whose_rules_keep_on_conflict_out_is_refused_for_upserts(
    database: Database, event: str, disabled: bool
) -> None:
    words_table(database)
    database.run(f"CREATE RULE told AS ON {event} TO words DO ALSO NOTIFY told")
    if disabled:
        database.run("ALTER TABLE words DISABLE RULE told")
    with pytest.raises(ConfigurationError, match=r"rules \['told'\].*ON CONFLICT"):
        make_sink(database, "upsert").validate(SCHEMA)
    make_sink(database, "staging").validate(SCHEMA)


def test_a_table_that_does_something_else_instead_of_insert_is_refused_for_staging(database: Database) -> None:
    words_table(database)
    database.run("CREATE RULE gone AS ON INSERT TO words DO INSTEAD NOTHING")
    with pytest.raises(ConfigurationError, match=r"rules \['gone'\].*staged rows would be lost"):
        make_sink(database, "staging").validate(SCHEMA)
    commit(make_sink(database, "prepared"), words(1))
    assert database.rows() == expected(1)


def test_rules_that_on_conflict_allows_keep_no_upsert_out(database: Database) -> None:
    words_table(database)
    database.run("CREATE RULE gone AS ON DELETE TO words DO ALSO NOTIFY gone")
    database.run("CREATE RULE off AS ON INSERT TO words DO INSTEAD NOTHING")
    database.run("ALTER TABLE words DISABLE RULE off")
    commit(make_sink(database, "upsert"), words(1))
    assert database.rows() == expected(1)


def test_a_value_that_no_merge_takes_can_be_corrected_in_the_staging_table_that_the_error_names(
    database: Database,
) -> None:
    words_table(database)
    database.run("CREATE INDEX ON words ((10 / id))")
    sink = make_sink(database, "upsert")
    sink.validate(SCHEMA)
    committable = write(sink, context(), words(0, 2))
    with pytest.raises(PostgresError, match=r"division by zero.*correct the rows in the staging table") as caught:
        sink.commit(committable)
    (stage,) = set(re.findall(r"onceward\.stage_[0-9a-f]{24}_[0-9]", str(caught.value)))
    database.run(f"UPDATE {stage} SET id = 7 WHERE id = 0")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == [(1, "w1"), (7, "w0")]


def test_a_unique_index_that_includes_more_columns_will_do(database: Database) -> None:
    database.run("CREATE TABLE words (id bigint, word text)")
    database.run("CREATE UNIQUE INDEX ON words (id) INCLUDE (word)")
    commit(make_sink(database, "upsert"), words(1), words(1, word="x"))
    assert database.rows() == expected(1, word="x")


def test_a_key_column_that_is_not_in_the_data_is_refused(database: Database) -> None:
    words_table(database)
    with pytest.raises(SchemaError, match=r"key columns \['id'\] are not in the data|'id'.*missing"):
        make_sink(database, "upsert").validate(pa.schema([("word", pa.string())]))


def test_a_null_in_a_key_is_refused(database: Database) -> None:
    database.run("CREATE TABLE words (id bigint UNIQUE, word text)")
    with pytest.raises(SchemaError, match="key column 'id' has nulls"):
        write(make_sink(database, "upsert"), context(), pa.record_batch([[None], ["x"]], schema=SCHEMA))


def test_epochs_that_overlap_in_keys_follow_each_other(database: Database) -> None:
    words_table(database)
    sink = make_sink(database, "upsert")
    first = write(sink, context(1), words(1, word="one"))
    second = write(sink, context(2), words(1, word="two"))
    assert {o.status for o in sink.commit_many([first, second])} == {CommitStatus.COMMITTED}
    assert database.rows() == expected(1, word="two")


# Staging tables


def stage_sizes(database: Database) -> list[int]:
    stages = "SELECT pg_relation_size(oid) FROM pg_class WHERE relname ~ '^stage_' AND relkind = 'r' ORDER BY 1"
    return [row[0] for row in database.run(stages)]


@pytest.mark.parametrize("how", ["staging", "upsert"])
def test_a_large_epochs_staging_table_is_emptied_whole(database: Database, how: str) -> None:
    words_table(database)
    commit(make_sink(database, how), words(1, 150_000))
    assert stage_sizes(database) == [0, 0, 0, 0]
    assert database.one("SELECT count(*) FROM words") == 150_000


def test_a_large_merge_leaves_the_rows_of_others_staged(database: Database) -> None:
    words_table(database)
    sink = make_sink(database, "staging")
    other = write(sink, context(pipeline="orders-eu"), words(500_000))
    commit(sink, words(1, 150_000))
    assert sink.commit(other).status is CommitStatus.COMMITTED
    assert database.one("SELECT count(*) FROM words") == 150_003


def test_a_large_merge_does_not_wait_for_an_attempt_that_still_writes(database: Database) -> None:
    words_table(database)
    sink = make_sink(database, "staging")
    open_one = sink.begin(context(attempt=1))
    sink.write(open_one, words(500_000))
    commit(sink, words(1, 150_000))
    late = sink.pre_commit(open_one)
    assert sink.commit(late).status is CommitStatus.COMMITTED
    assert database.one("SELECT count(*) FROM words") == 150_003
