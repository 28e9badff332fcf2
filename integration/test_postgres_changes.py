"""Upserts with a change column: rows that delete, and what a change feed holds besides."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward import PostgresSink
from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import ConfigurationError, OncewardError, SchemaError

from .postgres_kit import SCHEMA, WORDS, context, in_child, make_sink, write

if TYPE_CHECKING:
    from .postgres_kit import Database

pytestmark = [pytest.mark.postgres, pytest.mark.tables(WORDS)]

CHANGES = pa.schema([*SCHEMA, ("op", pa.string())])


def changing(database: Database, **settings: Any) -> PostgresSink:
    return make_sink(database, "upsert", change_column="op", **settings)


def changes(*rows: tuple[int, str | None, str | None]) -> pa.RecordBatch:
    ids, texts, ops = zip(*rows, strict=True)
    return pa.record_batch([list(ids), pa.array(texts, pa.string()), pa.array(ops, pa.string())], schema=CHANGES)


def commit(sink: PostgresSink, *batches: pa.RecordBatch, epoch: int = 1) -> None:
    sink.validate(batches[0].schema)
    assert sink.commit(write(sink, context(epoch), *batches)).status is CommitStatus.COMMITTED


def test_the_last_row_of_a_key_says_whether_it_is_there(database: Database) -> None:
    sink = changing(database)
    commit(sink, changes((1, "a", "insert"), (2, "b", "insert"), (3, "c", "insert"), (4, "d", "insert")))
    commit(
        sink,
        changes((1, "a2", "update"), (2, None, "delete"), (3, "c", "delete"), (5, "e", "delete")),
        changes((3, "again", "insert"), (6, "f", "insert"), (6, "f", "delete")),
        epoch=2,
    )
    assert database.rows() == [(1, "a2"), (3, "again"), (4, "d")]


def test_of_several_subtasks_the_highest_one_s_change_counts(database: Database) -> None:
    sink = changing(database)
    sink.validate(CHANGES)
    said = [(2, changes((1, "kept", "insert"))), (0, changes((1, None, "delete"))), (1, changes((1, "no", "update")))]
    committables = [write(sink, context(subtask=subtask), batch) for subtask, batch in said]
    assert {o.status for o in sink.commit_many(committables)} == {CommitStatus.COMMITTED}
    assert database.rows() == [(1, "kept")]


@pytest.mark.parametrize(
    ("insert", "before", "after", "delete"),
    [("c", None, "u", "d"), ("insert", "update_preimage", "update_postimage", "delete"), ("+I", "-U", "+U", "-D")],
    ids=["debezium", "delta", "flink"],
)
def test_the_usual_change_feeds_are_understood(
    database: Database, insert: str, before: str | None, after: str, delete: str
) -> None:
    feed = [(1, "old", insert), (2, "two", insert), *([(1, "old", before)] if before else []), (1, "new", after)]
    sink = changing(database)
    commit(sink, changes(*feed, (2, "two", delete)))
    assert database.rows() == [(1, "new")]
    if before:
        commit(sink, changes((1, "new", before)), epoch=2)
        assert database.rows() == [(1, "new")]


def test_deletes_need_nothing_but_the_key(database: Database) -> None:
    """Not null and check constraints hold for what is written, before the decision, and not for what goes."""
    database.run("ALTER TABLE words ALTER word SET NOT NULL, ADD CONSTRAINT short CHECK (length(word) < 9)")
    sink = changing(database)
    commit(sink, changes((1, "one", "c"), (2, "two", "c")))
    commit(sink, changes((1, None, "d"), (2, "much too long a word", "d")), epoch=2)
    assert database.rows() == []
    for bad in (None, "much too long a word"):
        with pytest.raises(OncewardError, match=r"short|null"):
            write(sink, context(3), changes((3, bad, "c")))
    assert database.staged() == 0


def test_a_commit_that_is_repeated_after_a_kill_deletes_nothing_newer(database: Database) -> None:
    sink = changing(database)
    commit(sink, changes((1, "one", "c")))
    deleting = write(sink, context(2), changes((1, None, "d")))
    body = "sink, deleting = arguments\nprint(sink.commit(deleting).status, flush=True)\ndie()"
    assert in_child(body, sink, deleting).strip() == "committed"
    assert database.rows() == []
    commit(sink, changes((1, "back", "c")), epoch=3)
    assert pickle.loads(pickle.dumps(sink)).commit(deleting).status is CommitStatus.ALREADY_COMMITTED
    assert database.rows() == [(1, "back")]


def test_a_row_may_take_a_unique_value_from_one_that_is_deleted_in_the_same_epoch(database: Database) -> None:
    database.run("ALTER TABLE words ADD UNIQUE (word)")
    sink = changing(database)
    commit(sink, changes((1, "a@x", "c"), (2, "b@x", "c")))
    commit(sink, changes((3, "a@x", "c"), (1, "a@x", "d")), epoch=2)
    assert database.rows() == [(2, "b@x"), (3, "a@x")]


def test_a_check_on_a_whole_row_does_not_stop_staging(database: Database) -> None:
    database.run("CREATE FUNCTION fine(words) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT ($1).id > 0'")
    database.run("ALTER TABLE words ADD CHECK (fine(words.*))")
    commit(changing(database), changes((1, "a", "c")))
    assert database.rows() == [(1, "a")]


def test_through_options(database: Database) -> None:
    options = {"dsn": database.dsn, "dbtable": "words", "key": "id", "changeColumn": "op", "name": "words"}
    commit(PostgresSink.from_options(options), changes((1, "a", "c"), (2, "b", "c"), (1, None, "d")))
    assert database.rows() == [(2, "b")]


@pytest.mark.parametrize("value", ["upsurt", "", None])
def test_an_unknown_change_fails_the_epoch_and_says_where(database: Database, value: str | None) -> None:
    with pytest.raises(SchemaError, match=rf"change column 'op' holds {value!r}: give one of insert"):
        write(changing(database), context(), changes((1, "a", "insert"), (2, "b", value)))
    assert database.staged() == 0


@pytest.mark.parametrize("create_table", [False, True])
def test_a_change_column_that_cannot_be_one_is_refused(database: Database, create_table: bool) -> None:
    sink = changing(database, create_table=create_table)
    with pytest.raises(SchemaError, match="change column 'op' is not in the data"):
        sink.validate(SCHEMA)
    with pytest.raises(SchemaError, match="change column 'op' holds int64: it must be text"):
        sink.validate(pa.schema([*SCHEMA, ("op", pa.int64())]))
    for wrong in ({"change_column": "id"}, {"change_column": "op", "key": None}):
        with pytest.raises(ConfigurationError, match="needs a key"):
            make_sink(database, "upsert", **wrong)
    with pytest.raises(ConfigurationError, match="change_column is empty"):
        make_sink(database, "upsert", change_column="")


def test_the_right_to_delete_is_looked_for(database: Database) -> None:
    changing(database).validate(CHANGES)  # makes the ledger
    database.run("CREATE ROLE no_delete LOGIN PASSWORD 'geheim'")
    database.run("GRANT SELECT, INSERT, UPDATE ON words TO no_delete")
    database.run("GRANT ALL ON SCHEMA onceward TO no_delete")
    database.run("GRANT ALL ON ALL TABLES IN SCHEMA onceward TO no_delete")
    try:
        sink = changing(database, dsn=f"postgresql://no_delete:geheim@{database.dsn.rsplit('@', 1)[1]}")
        with pytest.raises(ConfigurationError, match=r"may not DELETE on table words"):
            sink.validate(CHANGES)
    finally:
        database.run("DROP OWNED BY no_delete")
        database.run("DROP ROLE no_delete")
