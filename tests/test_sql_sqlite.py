"""SqlAlchemySink on SQLite files: staging, merging, locks, upserts, tables, zombies."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from onceward.connectors.database import batched_inserts, merging
from onceward.connectors.database.sink import SqlAlchemySink
from onceward.connectors.database.sqlite import _set_up
from onceward.core.checkpoint import Coordinator
from onceward.core.contract.names import NOTHING, Scope
from onceward.core.contract.transaction import (
    AbortStatus,
    Acknowledgement,
    CommitStatus,
    Committable,
    Observation,
)
from onceward.core.errors import ConfigurationError, EpochConflictError, RetryableSinkError, SchemaError, SqlError
from onceward.core.log import DirectoryStore, EpochInput

from .ledger_contract import LedgerContract
from .sqlite_kit import LOG, SCHEMA, Database, context, expected, words, write

if TYPE_CHECKING:
    from collections.abc import Callable

SCOPE = Scope("orders", "words", LOG)


def test_staged_rows_are_in_no_readers_table_until_one_transaction_moves_them(database: Database) -> None:
    sink = database.sink()
    parts = [write(sink, context(subtask=n), words(10 * n)) for n in range(2)]
    assert database.rows() == []
    assert list(sink.inspect_many(parts)) == [Observation.PREPARED] * 2
    assert [o.status for o in sink.commit_many(parts)] == [CommitStatus.COMMITTED] * 2
    assert database.rows() == expected(0) + expected(10)
    assert database.run("SELECT count(*) FROM onceward_staged") == [(0,)]
    assert database.run("SELECT count(*) FROM onceward_staged_rows") == [(0,)]
    assert database.run("SELECT name, epoch, row_count FROM onceward_ledger ORDER BY subtask") == [
        (c.transaction, 1, 3) for c in parts
    ]
    assert [o.status for o in sink.commit_many(parts)] == [CommitStatus.ALREADY_COMMITTED] * 2


def test_large_epochs_are_staged_in_pieces_and_moved_whole(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_inserts, "CHUNK_BYTES", 200)
    sink = database.sink()
    committable = write(sink, context(), words(0, 100), words(100, 1), words(200, 5))
    assert database.run("SELECT count(*) > 5 FROM onceward_staged_rows") == [(1,)]
    assert committable.rows == 106
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(0, 101) + expected(200, 5)


def test_what_a_writer_left_open_is_listed_and_stays_swept(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_inserts, "CHUNK_BYTES", 200)
    sink = database.sink()
    zombie = sink.begin(context())
    sink.write(zombie, words(0, 100))
    (found,) = sink.lingering(SCOPE)
    assert found.transaction == str(zombie.name)
    assert sink.commit(found).status is CommitStatus.LOST
    assert sink.abort(found).status is AbortStatus.ABORTED
    with pytest.raises(SqlError, match="swept this attempt"):
        sink.write(zombie, words(100, 100))
    assert database.run("SELECT count(*) FROM onceward_staged_rows") == [(0,)]


def test_discarding_deletes_what_was_staged(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched_inserts, "CHUNK_BYTES", 200)
    sink = database.sink()
    transaction = sink.begin(context())
    sink.write(transaction, words(0, 100))
    for _ in range(2):
        sink.discard(transaction)
    assert list(sink.lingering(SCOPE)) == []


def test_a_durable_attempt_is_not_discarded_and_shows_its_state(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched_inserts, "CHUNK_BYTES", 200)
    sink = database.sink()
    durable, discarded = sink.begin(context()), sink.begin(context(2))
    for attempt in (durable, discarded):
        sink.write(attempt, words(0, 100))
        assert repr(attempt) == f"<PieceWriting {attempt.name}: open, 100 rows>"
    committable = sink.pre_commit(durable)
    for attempt in (durable, discarded):
        sink.discard(attempt)
    assert repr(durable).endswith(": durable, 100 rows>")
    assert repr(discarded).endswith(": discarded, 100 rows>")
    assert [c.transaction for c in sink.lingering(SCOPE)] == [committable.transaction]
    assert sink.commit(committable).status is CommitStatus.COMMITTED


def test_rows_that_somebody_took_out_of_the_staging_table_are_missed(database: Database) -> None:
    sink = database.sink()
    committable = write(sink, context(), words(0))
    database.run("DELETE FROM onceward_staged_rows")
    with pytest.raises(SqlError, match="0 rows of 3 are staged"):
        sink.commit(committable)
    assert database.rows() == []


# Locks


def test_a_commit_while_another_program_writes_is_tried_again_later(database: Database) -> None:
    sink = database.sink(lock_timeout=0.1)
    committable = write(sink, context(), words(0))
    with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        outcome = sink.commit(committable)
        assert (outcome.status, "locked" in outcome.detail) == (CommitStatus.RETRY_LATER, True)
        assert sink.abort(committable).status is AbortStatus.RETRY_LATER
        with pytest.raises(RetryableSinkError, match="locked"):
            write(sink, context(2), words(10))
    assert sink.commit(committable).status is CommitStatus.COMMITTED


def test_a_commit_while_another_program_reads_is_tried_again_later(database: Database) -> None:
    sink = database.sink(lock_timeout=0.1)
    committable = write(sink, context(), words(0))
    with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT * FROM words").fetchall()
        assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert database.rows() == []
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(0)


def test_many_subtasks_write_and_many_committers_commit_at_once(database: Database) -> None:
    sink = database.sink(create_table=True)
    sink.validate(SCHEMA)
    sink.ledger().claim(SCOPE)
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda n: write(sink, context(subtask=n), words(10 * n)), range(8)))
        answers = [o.status for answer in pool.map(lambda _: sink.commit_many(parts), range(4)) for o in answer]
    assert answers.count(CommitStatus.COMMITTED) == 8
    assert answers.count(CommitStatus.ALREADY_COMMITTED) == 24
    assert len(database.rows()) == 24


def test_processes_that_start_together_all_find_the_ledger(database: Database) -> None:
    barrier = threading.Barrier(4)

    def start(n: int) -> None:
        barrier.wait()
        database.sink(lock_timeout=5.0 + n).ledger().claim(SCOPE)  # another engine for each, as in other processes

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4)))
    assert database.run("SELECT * FROM onceward_pipelines") == [("orders", "words", LOG)]


# Upserts


def test_of_several_rows_with_one_key_the_last_one_wins(database: Database) -> None:
    database.run("INSERT INTO words VALUES (1, 'old'), (9, 'kept')")
    sink = database.sink(key="id")
    sink.validate(SCHEMA)
    later = write(sink, context(subtask=1), words(1, 2, "second"))
    first = write(sink, context(subtask=0), words(1, 2, "a"), words(1, 1, "b"))
    assert [o.status for o in sink.commit_many([later, first])] == [CommitStatus.COMMITTED] * 2
    assert database.rows() == [(1, "second1"), (2, "second2"), (9, "kept")]


def test_subtasks_are_merged_by_their_numbers(database: Database) -> None:
    sink = database.sink(key="id")
    both = [write(sink, context(1, subtask), words(0, word=f"of {subtask} ")) for subtask in (10, 2)]
    assert {answer.status for answer in sink.commit_many(both)} == {CommitStatus.COMMITTED}
    assert database.rows() == expected(0, word="of 10 ")


def test_24_epochs_are_merged_in_their_order_whatever_order_they_come_in(database: Database) -> None:
    sink = database.sink(key="id")
    three = [write(sink, context(epoch, 3 - epoch), words(0, word=f"of {epoch} ")) for epoch in (2, 3, 1)]
    assert {answer.status for answer in sink.commit_many(three)} == {CommitStatus.COMMITTED}
    assert database.rows() == expected(0, word="of 3 ")


def test_24_what_comes_behind_an_epoch_that_waits_waits_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else an upsert that comes late would overwrite a later epoch's."""
    sink, lock, faults = database.sink(key="id"), merging._lock, [RetryableSinkError("busy")]

    def busy_once(*arguments: Any) -> list[Any]:
        if faults:
            raise faults.pop()
        return lock(*arguments)

    monkeypatch.setattr(merging, "_lock", busy_once)
    both = [write(sink, context(epoch), words(0, word=f"of {epoch} ")) for epoch in (1, 2)]
    assert [answer.status for answer in sink.commit_many(both)] == [CommitStatus.RETRY_LATER] * 2
    assert database.rows() == []


def test_an_abort_that_comes_after_the_merge_is_refused(database: Database) -> None:
    sink = database.sink()
    committable = write(sink, context(), words(0))
    sink.commit(committable)
    assert sink.abort(committable).status is AbortStatus.COMMITTED
    assert database.rows() == expected(0)


@pytest.mark.parametrize("given", ["OFF", "NORMAL", "FULL", "EXTRA"])
def test_every_commit_is_synced_whatever_the_librarys_default_says(given: str) -> None:
    """In WAL mode NORMAL loses the newest commits in a power cut; with a rollback journal, FULL does."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"PRAGMA synchronous={given}")
        _set_up(connection, None)
        assert connection.execute("PRAGMA synchronous").fetchone() == (3,)


def test_an_upsert_of_nothing_but_the_key_keeps_the_row(database: Database) -> None:
    database.run("INSERT INTO words VALUES (1, 'old')")
    sink = database.sink(key="id")
    keys = pa.record_batch([[1, 2]], schema=pa.schema([("id", pa.int64())]))
    assert sink.commit(write(sink, context(), keys)).status is CommitStatus.COMMITTED
    assert database.rows() == [(1, "old"), (2, None)]


def test_an_upsert_needs_a_unique_index_over_exactly_its_key(database: Database) -> None:
    with pytest.raises(SchemaError, match=r"unique index over exactly \['word'\]"):
        database.sink(key="word").validate(SCHEMA)
    database.run("CREATE UNIQUE INDEX part ON words (word) WHERE id > 3")
    with pytest.raises(SchemaError, match="unique index"):
        database.sink(key="word").validate(SCHEMA)
    database.run("CREATE UNIQUE INDEX whole ON words (word)")
    database.sink(key="word").validate(SCHEMA)


# Tables


def test_a_missing_table_is_an_error_that_says_what_to_do(database: Database) -> None:
    with pytest.raises(SchemaError, match="table nothing does not exist; create it, or set create_table=True"):
        database.sink(table="nothing").validate(SCHEMA)


def test_a_missing_table_is_created_with_its_key_if_that_is_asked_for(database: Database) -> None:
    sink = database.sink(table="made", key="id", create_table=True)
    sink.validate(SCHEMA)
    sink.validate(SCHEMA)
    assert sink.commit(write(sink, context(), words(1))).status is CommitStatus.COMMITTED
    assert database.run("SELECT * FROM made ORDER BY id") == expected(1)


def test_a_column_that_does_not_fit_is_named_before_anything_is_written(database: Database) -> None:
    schema = pa.schema([("id", pa.string()), ("word", pa.string())])
    with pytest.raises(SchemaError, match="column 'id': string does not fit into INTEGER"):
        database.sink().validate(schema)
    with pytest.raises(SchemaError, match="column 'more'"):
        write(database.sink(), context(), pa.record_batch([[1]], names=["more"]))


def test_a_view_is_refused(database: Database) -> None:
    database.run("CREATE VIEW seen AS SELECT * FROM words")
    with pytest.raises(ConfigurationError, match="seen is a view"):
        database.sink(table="seen").validate(SCHEMA)


def epochs(tmp_path: Path, sinks: list[SqlAlchemySink], rows: dict[str, pa.RecordBatch], count: int = 3) -> Coordinator:
    """Run epochs through a coordinator, with the same rows in each but for their ids."""
    coordinator = Coordinator("orders", DirectoryStore(tmp_path / "log"), sinks)
    coordinator.open()
    for sink in sinks:
        sink.validate(rows[sink.name].schema)
    for epoch in range(count):
        about = EpochInput(query="q", start=[str(epoch)], end=[str(epoch + 1)])
        coordinator.admit(epoch, about)
        contexts = [coordinator.context(sink.name, epoch, subtask=0) for sink in sinks]
        prepared = []
        for sink, where in zip(sinks, contexts, strict=True):
            batch = rows[sink.name]
            moved = [
                pc.call_function("add", [one, epoch]) if pa.types.is_integer(one.type) else one for one in batch.columns
            ]
            prepared.append(write(sink, where, pa.record_batch(moved, schema=batch.schema)))
        names = tuple(sink.name for sink in sinks)
        done = Acknowledgement(epoch=epoch, subtask=0, attempt=0, sinks=names, committables=tuple(prepared))
        coordinator.commit(epoch, [done], about)
    return coordinator


LINES = pa.record_batch({"id": [10], "word_id": [1]})


def test_rows_that_refer_to_another_sinks_rows_are_committed_after_these(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE lines (id INTEGER PRIMARY KEY, word_id INTEGER REFERENCES words (id))")
    database.run("CREATE TABLE notes (id INTEGER PRIMARY KEY, word_id INTEGER REFERENCES lines (id))")
    names = {"anotes": "notes", "lines": "lines", "words": "words"}
    sinks = [SqlAlchemySink(name, url=database.url, table=table) for name, table in names.items()]
    notes = pa.record_batch({"id": [100], "word_id": [10]})
    epochs(tmp_path, sinks, {"anotes": notes, "lines": LINES, "words": words(1, 1)})
    assert [len(database.run(f"SELECT * FROM {table}")) for table in ("words", "lines", "notes")] == [3, 3, 3]


def test_rows_that_refer_to_refused_ones_are_refused_too_and_committed_at_the_next_start(
    database: Database, tmp_path: Path
) -> None:
    database.run("CREATE TABLE lines (id INTEGER PRIMARY KEY, word_id INTEGER REFERENCES words (id))")
    database.run("INSERT INTO words VALUES (2, 'taken')")
    sinks = [SqlAlchemySink(name, url=database.url, table=name) for name in ("lines", "words")]
    with pytest.raises(SqlError, match=r"FOREIGN KEY constraint failed|UNIQUE constraint failed: words\.id"):
        epochs(tmp_path, sinks, {"lines": LINES, "words": words(1, 2)}, 1)
    assert database.run("SELECT * FROM lines") == []
    database.run("DELETE FROM words")
    again = [SqlAlchemySink(name, url=database.url, table=name) for name in ("lines", "words")]
    Coordinator("orders", DirectoryStore(tmp_path / "log"), again).open()
    assert [len(database.run(f"SELECT * FROM {table}")) for table in ("words", "lines")] == [2, 1]


def test_a_merge_checks_foreign_keys(database: Database) -> None:
    database.run("CREATE TABLE orders (id INTEGER PRIMARY KEY, word TEXT, customer INTEGER DEFAULT 7 REFERENCES words)")
    sink = database.sink(table="orders")
    sink.validate(SCHEMA)
    committable = write(sink, context(), words(1))
    with pytest.raises(SqlError, match=r"cannot be moved.*FOREIGN KEY constraint failed.*conflict with them"):
        sink.commit(committable)
    assert database.run("SELECT * FROM orders") == []
    database.run("INSERT INTO words VALUES (7, 'there')")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert len(database.run("SELECT * FROM orders")) == 3


@pytest.mark.parametrize("key", ["REFERENCES missing (id)", "REFERENCES words (word)"])
def test_a_foreign_key_that_no_merge_could_check_is_refused_at_the_start(database: Database, key: str) -> None:
    database.run(f"CREATE TABLE orders (id INTEGER PRIMARY KEY, word TEXT {key})")
    with pytest.raises(ConfigurationError, match=r"no such table: main.missing|foreign key mismatch") as error:
        database.sink(table="orders").validate(SCHEMA)
    assert "correct its foreign keys" in str(error.value)


def test_a_file_that_was_replaced_under_an_open_connection_is_not_written_to(database: Database) -> None:
    sink = database.sink()
    sink.ledger().claim(SCOPE)
    committable = write(sink, context(), words(1))
    copy = database.path.with_name("copy.db")
    shutil.copy(database.path, copy)
    copy.replace(database.path)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite:///file:{}?uri=true"])
def test_a_link_that_points_to_another_file_now_is_followed(database: Database, url: str) -> None:
    link, copy = database.path.with_name("link.db"), database.path.with_name("copy.db")
    link.symlink_to(database.path)
    sink = database.sink(url=url.format(link))
    sink.ledger().claim(SCOPE)
    committable = write(sink, context(), words(1))
    shutil.copy(database.path, copy)
    link.unlink()
    link.symlink_to(copy)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert (database.rows(), database.rows(copy)) == ([], expected(1))


def test_rows_that_the_table_refuses_stop_the_pipeline_and_stay_safe(database: Database) -> None:
    sink = database.sink()
    database.run("INSERT INTO words VALUES (2, 'in the way')")
    committable = write(sink, context(), words(1))
    with pytest.raises(SqlError, match=r"UNIQUE constraint.*They are safe in the staging table") as caught:
        sink.commit(committable)
    assert re.search(r"\bw2\b", str(caught.value)) is None  # the row; the path may be that of worker gw2
    assert database.rows() == [(2, "in the way")]
    database.run("DELETE FROM words")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("id INTEGER PRIMARY KEY, word TEXT CHECK (word <> 'w2')", "CHECK constraint failed"),
        ("id INTEGER PRIMARY KEY, word TEXT, short TEXT AS (substr(word, 2)) CHECK (short < '2')", "CHECK constraint"),
        ("id INTEGER, word TEXT, of INTEGER DEFAULT 1 UNIQUE", "UNIQUE constraint failed"),
        ("id INTEGER, word TEXT CHECK (json_valid(word))", "CHECK constraint failed"),
    ],
)
def test_rows_that_the_table_would_refuse_fail_the_epoch_before_its_decision(
    database: Database, table: str, said: str
) -> None:
    database.run("DROP TABLE words")
    database.run(f"CREATE TABLE words ({table})")
    sink = database.sink()
    sink.validate(SCHEMA)
    with pytest.raises(SqlError, match=said):
        write(sink, context(), words(1))
    assert list(sink.lingering(SCOPE)) == []
    assert database.rows() == []


def test_rows_that_make_room_for_each_other_are_not_refused_early(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batched_inserts, "CHUNK_BYTES", 1)
    database.run("CREATE UNIQUE INDEX one ON words (word)")
    database.run("INSERT INTO words VALUES (1, 'a')")
    sink = database.sink(key="id")
    sink.validate(SCHEMA)
    committable = write(sink, context(), pa.record_batch([[1, 2], ["b", "a"]], schema=SCHEMA))
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == [(1, "b"), (2, "a")]


@pytest.mark.parametrize(
    "definition",
    [
        'create  table  If Not Exists main . "a %s :b?" (id INTEGER, word text)',
        "CREATE TABLE \"a %s :b?\" AS SELECT 1 AS id, 'x' AS word WHERE 0",
        'CREATE TABLE other (id INTEGER, word text); ALTER TABLE other RENAME TO "a %s :b?"',
        'CREATE VIRTUAL TABLE "a %s :b?" USING fts5(id, word)',
    ],
)
def test_rows_are_tried_in_tables_of_every_kind(database: Database, definition: str) -> None:
    for statement in definition.split(";"):
        database.run(statement)
    virtual = "VIRTUAL" in definition
    if not virtual:
        database.run('CREATE UNIQUE INDEX "b %s :c?" ON "a %s :b?" (id)')
    sink = database.sink(table='"a %s :b?"', key=None if virtual else "id")
    batch = words(1).select(["word"]) if virtual else words(1)
    sink.validate(batch.schema)
    assert sink.commit(write(sink, context(), batch)).status is CommitStatus.COMMITTED
    assert database.run('SELECT word FROM "a %s :b?"') == [("w1",), ("w2",), ("w3",)]


def test_rows_that_a_trigger_sorts_out_first_are_not_refused_early(database: Database) -> None:
    database.run(
        "CREATE TRIGGER known BEFORE INSERT ON words WHEN new.id IN (SELECT id FROM words)"
        " BEGIN SELECT RAISE(IGNORE); END"
    )
    sink = database.sink()
    sink.validate(SCHEMA)
    committable = write(sink, context(), words(1), words(2))
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1, 4)


def test_trying_rows_leaves_no_trace(database: Database) -> None:
    database.run("CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, word TEXT)")
    database.run("CREATE TABLE seen (word TEXT)")
    database.run("CREATE TRIGGER see AFTER INSERT ON counted BEGIN INSERT INTO seen VALUES (new.word); END")
    sink = database.sink(table="counted")
    batch = words(1).select(["word"])
    committable = write(sink, context(), batch)
    assert database.run("SELECT * FROM counted") == database.run("SELECT * FROM seen") == []
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.run("SELECT * FROM counted") == expected(1)
    assert database.run("SELECT count(*) FROM seen") == [(3,)]


REFUSING = {
    "a key that is there": ("INSERT INTO words VALUES (5, 'before')", "UNIQUE constraint failed: words.id", None),
    "another piece's row": ("", "UNIQUE constraint failed: words.id", None),
    "a foreign key": (
        """CREATE TABLE known (id INTEGER PRIMARY KEY); DROP TABLE words;
        CREATE TABLE words (id INTEGER REFERENCES known, word TEXT);
        INSERT INTO known VALUES (0), (1), (2), (3), (4)""",
        "FOREIGN KEY constraint failed",
        None,
    ),
    "a trigger": (
        "CREATE TRIGGER closed BEFORE INSERT ON words WHEN new.id = 5 BEGIN SELECT raise(ABORT, 'closed'); END",
        "closed",
        None,
    ),
    "a trigger that ends the transaction": (
        "CREATE TRIGGER closed BEFORE INSERT ON words WHEN new.id = 5 BEGIN SELECT raise(ROLLBACK, 'closed'); END",
        "closed",
        None,
    ),
    "a check that cannot be computed": (
        "DROP TABLE words; CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT, CHECK (id < 5 OR word -> '$.a' > 0))",
        "malformed JSON",
        None,
    ),
    "a check beside a trigger, in an upsert": (
        """DROP TABLE words; CREATE TABLE words (id INTEGER PRIMARY KEY CHECK (id <> 5), word TEXT);
        CREATE TRIGGER seen AFTER INSERT ON words BEGIN SELECT 1; END""",
        "CHECK constraint failed",
        "id",
    ),
}


@pytest.mark.parametrize("why", REFUSING)
def test_where_refused_rows_are_dead_letters_no_row_is_staged_that_the_table_itself_refuses(
    database: Database, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(batched_inserts, "CHUNK_BYTES", 1)  # each row is a piece
    script, words_of_error, key = REFUSING[why]
    with closing(sqlite3.connect(database.path)) as connection:
        connection.executescript(script)
    before = database.rows()
    staging = database.sink(key=key)
    staging.validate(SCHEMA)
    sink = staging.trying_rows([staging])
    rows = [words(0, 5), words(3 if why == "another piece's row" else 5, 1)]
    with pytest.raises(SqlError, match=words_of_error) as refused:
        write(sink, context(), *rows)
    assert refused.value.refuses_rows
    assert database.run("SELECT count(*) FROM onceward_staged_rows") == [(0,)]
    assert database.rows() == before
    committable = write(sink, context(), rows[0])
    assert database.rows() == before
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(0, 5) + before


def test_rows_that_refer_to_rows_of_another_subtask_are_not_refused(database: Database) -> None:
    database.run("CREATE TABLE trees (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES trees (id))")
    sink = database.sink(table="trees")
    sink = sink.trying_rows([sink])
    [child, root] = [pa.RecordBatch.from_pylist([row]) for row in ({"id": 2, "parent": 1}, {"id": 1, "parent": None})]
    root = root.cast(child.schema)
    committables = [write(sink, context(subtask=number), batch) for number, batch in enumerate((root, child))]
    assert [sink.commit(one).status for one in committables] == [CommitStatus.COMMITTED] * 2
    assert database.run("SELECT * FROM trees ORDER BY id") == [(1, None), (2, 1)]


def test_rows_that_refer_to_rows_of_another_sink_of_the_epoch_are_not_refused(database: Database) -> None:
    database.run("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    database.run("CREATE TABLE children (id INTEGER REFERENCES Parents (id), word TEXT)")
    children, parents = database.sink(table="children"), database.sink(table="parents")
    committable = write(children.trying_rows([children, parents]), context(), words(0))
    database.run("INSERT INTO parents VALUES (0), (1), (2)")
    assert children.commit(committable).status is CommitStatus.COMMITTED
    assert database.run("SELECT * FROM children") == expected(0)


@pytest.mark.parametrize("how", ["IGNORE", "REPLACE", "ROLLBACK", "FAIL"])
@pytest.mark.parametrize("key", [None, "id"])
def test_no_row_is_dropped_because_the_table_says_on_conflict(database: Database, how: str, key: str | None) -> None:
    unique = f"UNIQUE ON CONFLICT {how}"
    primary = "PRIMARY KEY" if key else f"PRIMARY KEY ON CONFLICT {how}"
    database.run(f"CREATE TABLE lax (id INTEGER {primary}, word TEXT {unique})")
    sink = database.sink(table="lax", key=key)
    committable = write(sink, context(), words(1))
    database.run("INSERT INTO lax VALUES (9, 'w2')" if key else "INSERT INTO lax VALUES (2, 'in the way')")
    with pytest.raises(SqlError, match="UNIQUE constraint failed"):
        sink.commit(committable)
    assert database.run("SELECT count(*) FROM lax") == [(1,)]
    database.run("DELETE FROM lax")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.run("SELECT * FROM lax") == expected(1)


def test_rows_staged_for_one_table_go_there_even_if_the_sink_writes_to_another_one_now(database: Database) -> None:
    committable = write(database.sink(), context(), words(1))
    database.run("CREATE TABLE others (id INTEGER, word TEXT)")
    assert database.sink(table="others").commit(committable).status is CommitStatus.COMMITTED
    assert (database.rows(), database.run("SELECT * FROM others")) == (expected(1), [])


def test_a_table_that_was_replaced_is_noticed_at_once(database: Database) -> None:
    """Even if it was read a moment ago: a NUMERIC column would keep 7 of "007"."""
    sink = database.sink()
    batch = pa.record_batch([[1], ["007"]], schema=SCHEMA)
    sink.commit(write(sink, context(1), batch))
    staged = write(sink, context(2), batch)
    database.run("DROP TABLE words")
    database.run("CREATE TABLE words (id INTEGER PRIMARY KEY, word NUMERIC)")
    with pytest.raises(SqlError, match=r"cannot be moved.*column 'word': string does not fit"):
        sink.commit(staged)
    with pytest.raises(SchemaError, match="column 'word': string does not fit"):
        write(sink, context(3), batch)
    database.run("DROP TABLE words")
    database.run("CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT)")
    assert sink.commit(staged).status is CommitStatus.COMMITTED
    assert database.rows() == [(1, "007")]


@pytest.mark.parametrize("key", [None, ["id"]])
@pytest.mark.parametrize("declared", ["id INTEGER PRIMARY KEY, word TEXT", "id INTEGER, word TEXT, PRIMARY KEY (id)"])
def test_a_null_for_the_number_of_a_row_is_refused_when_it_is_written(
    database: Database, declared: str, key: list[str] | None
) -> None:
    database.run(f"CREATE TABLE numbered ({declared})")
    sink = database.sink(table="numbered", key=key)
    with pytest.raises(SchemaError, match="column 'id' has nulls"):
        write(sink, context(), pa.record_batch([[1, None], ["a", "b"]], schema=SCHEMA))
    assert sink.commit(write(sink, context(2), words(1))).status is CommitStatus.COMMITTED


@pytest.mark.parametrize("bad", [b"\xff\xfe", b"\xed\xa0\x80"], ids=["bytes", "surrogate"])
def test_a_text_that_is_not_utf_8_fails_the_attempt_and_names_sink_and_column(database: Database, bad: bytes) -> None:
    texts = pa.Array.from_buffers(pa.string(), 1, [None, *pa.array([bad]).buffers()[1:]])
    with pytest.raises(SchemaError, match=r"column 'word': .*UTF8") as caught:
        write(database.sink(), context(), pa.record_batch([[1], texts], schema=SCHEMA))
    assert caught.value.sink == "words"
    assert database.rows() == []


def test_names_of_tables_and_columns_may_be_anything(database: Database) -> None:
    database.run("""CREATE TABLE "a 'b" ("c %s :d" INTEGER, "select" TEXT)""")
    sink = database.sink(table='"a \'b"')
    batch = pa.record_batch([[1], ["x"]], names=["c %s :d", "select"])
    sink.validate(batch.schema)
    assert sink.commit(write(sink, context(), batch)).status is CommitStatus.COMMITTED
    assert database.run("""SELECT * FROM "a 'b" """) == [(1, "x")]


# The ledger


class TestLedgerOnSqlite(LedgerContract):
    @pytest.fixture
    def make(self, database: Database) -> Callable[..., SqlAlchemySink]:
        return lambda name: SqlAlchemySink(name, url=database.url, table="words")

    @pytest.fixture
    def elsewhere(self, tmp_path: Path) -> SqlAlchemySink:
        return Database(tmp_path / "elsewhere.db").sink()

    def test_a_start_makes_no_table(self, make: Callable[..., SqlAlchemySink], database: Database):
        make("words").ledger().check_claim(SCOPE, NOTHING)
        assert database.run("SELECT name FROM sqlite_master WHERE type = 'table'") == [("words",)]


def test_rows_of_another_log_are_noticed_even_without_a_claim(database: Database) -> None:
    sink = database.sink()
    sink.commit(write(sink, context(5), words(0)))
    other = SCOPE._replace(log="ffff0000")
    for look in (lambda: sink.ledger().claim(other), lambda: sink.ledger().check_claim(other, NOTHING)):
        with pytest.raises(EpochConflictError, match="from decision log 0123abcd"):
            look()


def test_a_pruned_ledger_proves_nothing_about_what_was_pruned(database: Database) -> None:
    sink = database.sink(ledger_epochs=100)
    old, new = (write(sink, context(epoch), words(10 * epoch)) for epoch in (100, 101))
    sink.commit_many([old, new])
    sink.ledger().completed(SCOPE, 150)
    assert database.run("SELECT count(*) FROM onceward_ledger") == [(2,)]
    sink.ledger().completed(SCOPE, 200)
    assert database.run("SELECT epoch FROM onceward_ledger") == [(101,)]
    assert [o.status for o in sink.commit_many([old, new])] == [CommitStatus.UNKNOWN, CommitStatus.ALREADY_COMMITTED]


def test_a_database_that_does_not_know_the_pipeline_proves_nothing(database: Database, tmp_path: Path) -> None:
    committable = write(database.sink(), context(), words(0))
    other = Database(tmp_path / "other.db").sink()
    assert other.commit(committable).status is CommitStatus.UNKNOWN
    assert other.abort(committable).status is AbortStatus.ABORTED
    assert list(other.lingering(SCOPE)) == []


def test_a_committable_of_another_kind_is_refused(database: Database) -> None:
    committable = write(database.sink(), context(), words(0))
    fields = {field: getattr(committable, field) for field in committable.__struct_fields__}
    with pytest.raises(ConfigurationError, match=r"postgres-staged.*is not a SqlAlchemySink's"):
        database.sink().commit(Committable(**{**fields, "kind": "postgres-staged"}))


def test_a_sink_that_has_worked_pickles_as_one_that_has_not(database: Database) -> None:
    sink = database.sink()
    sink.validate(SCHEMA)
    committable = write(sink, context(), words(0))
    copied = pickle.loads(pickle.dumps(sink))
    assert (repr(copied), copied.commit_path) == (repr(sink), "staging")
    assert copied.commit(committable).status is CommitStatus.COMMITTED


def test_a_folder_that_is_missing_is_an_error_without_the_rows(tmp_path: Path) -> None:
    sink = SqlAlchemySink("words", url=f"sqlite:///{tmp_path}/no/such.db", table="words")
    with pytest.raises(SqlError, match="unable to open database file"):
        sink.validate(SCHEMA)


def test_the_example_writes_all_once_however_often_it_runs(tmp_path: Path) -> None:
    example = Path(__file__).parents[1] / "examples" / "sqlalchemy_sqlite.py"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(example), str(tmp_path / "run")],
            env={**os.environ, "PYTHONPATH": str(example.parents[1] / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "run" / "shop.db")) as connection:
        assert connection.execute("SELECT count(*), count(DISTINCT n) FROM events").fetchall() == [(1000, 1000)]
        newest = connection.execute("SELECT person, n FROM newest ORDER BY person").fetchall()
    assert newest == [(f"u{n}", 995 + n) for n in range(5)]
