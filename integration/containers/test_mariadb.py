"""SqlAlchemySink on MariaDB, in a container: the conformance suite, and scenarios 20, 33 and 72 to 77."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pymysql
import pytest
from sqlalchemy import make_url
from typer.testing import CliRunner

from onceward.cli.main import app
from onceward.connectors.database.engines import close_idle, reading
from onceward.connectors.database.mariadb import Xid
from onceward.connectors.database.sink import SqlAlchemySink
from onceward.connectors.spark.write.spark_task import write_partition
from onceward.core.checkpoint import Coordinator
from onceward.core.contract.names import parse_transaction_name
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    WriteContext,
)
from onceward.core.errors import ConfigurationError, RetryableSinkError, SchemaError, SqlError
from onceward.core.log import DirectoryStore, EpochInput
from onceward.testing.conformance import SinkConformance, SinkUnderTest
from onceward.testing.containers import MariaDbContainer

from ..postgres_kit import SCHEMA, SCOPE, WORDS, context, expected, in_child, words, write
from ..proxy import Proxy
from ..simulator_kit import ledger_contract
from ..sql_kit import MariaDatabase, maria_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


pytestmark = [pytest.mark.containers, pytest.mark.tables(WORDS)]
_ASKED_FOR = 3.0
"""Seconds."""


@pytest.fixture(autouse=True)
def _asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a coordinator does: a transaction is busy until the server has seen its writer's session end."""
    commit_many, abort = SqlAlchemySink.commit_many, SqlAlchemySink.abort

    def commit_until_known(sink: SqlAlchemySink, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        until = time.monotonic() + _ASKED_FOR
        while True:
            outcomes = commit_many(sink, committables)
            if time.monotonic() > until or all(o.status is not CommitStatus.RETRY_LATER for o in outcomes):
                return outcomes
            time.sleep(0.01)

    def abort_until_known(sink: SqlAlchemySink, committable: Committable) -> AbortOutcome:
        until = time.monotonic() + _ASKED_FOR
        while True:
            outcome = abort(sink, committable)
            if time.monotonic() > until or outcome.status is not AbortStatus.RETRY_LATER:
                return outcome
            time.sleep(0.01)

    monkeypatch.setattr(SqlAlchemySink, "commit_many", commit_until_known)
    monkeypatch.setattr(SqlAlchemySink, "abort", abort_until_known)


@pytest.fixture(params=["prepared", "staging", "upsert"])
def sink(request: pytest.FixtureRequest, database: MariaDatabase) -> SqlAlchemySink:
    made = database.sink(request.param)
    made.validate(SCHEMA)
    made.ledger().claim(SCOPE)
    return made


@pytest.fixture
def proxied(database: MariaDatabase) -> Iterator[Callable[..., tuple[SqlAlchemySink, Proxy]]]:
    """Makes a sink behind a proxy that loses the answer to what contains `lose`."""
    proxies: list[Proxy] = []
    port = database.server.port
    assert port is not None

    def make(how: str, lose: bytes, *, hang: bool = False, times: int = 1) -> tuple[SqlAlchemySink, Proxy]:
        proxy = Proxy(port, lambda data: lose in data, hang=hang, times=times)
        proxies.append(proxy)
        url = database.url.replace(f":{port}/", f":{proxy.port}/")
        return database.sink(how, url=url, answer_within=0.3, lock_timeout=0.2), proxy

    yield make
    close_idle()
    for proxy in proxies:
        proxy.close()


def against_the_check(numbers: list[int]) -> pa.RecordBatch:
    """Rows of the right types, which only the table itself can refuse."""
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "text": ["" for _ in numbers]})


@pytest.mark.parametrize("how", ["prepared", pytest.param("staging", marks=pytest.mark.nightly)])
class TestSqlAlchemySinkOnMariaDb(SinkConformance):
    @pytest.fixture
    def sink_under_test(self, database: MariaDatabase, mariadb_container: MariaDbContainer, how: str) -> SinkUnderTest:
        database.run("CREATE TABLE conformance (n bigint, text varchar(60) CHECK (text <> ''))")

        def restart() -> None:
            mariadb_container.kill()
            mariadb_container.start_again()
            database.connect()

        def delete_prepared(committable: Committable) -> None:
            if how == "prepared":
                time.sleep(0.1)  # until the server has seen the writer's session end
                database.run(f"XA ROLLBACK {xid_of(committable)}")
            else:
                database.run(f"DELETE FROM onceward_staged_rows WHERE name = '{committable.transaction}'")

        return SinkUnderTest(
            make=lambda: SqlAlchemySink("conformance", url=database.url, table="conformance", commit=how),
            read=lambda: [n for (n,) in database.run("SELECT n FROM conformance")],
            kill=True,
            restart=restart,
            refused=against_the_check,
            misfit=pa.schema([("n", pa.int64()), ("text", pa.string()), ("more", pa.string())]),
            take_away=lambda: database.run("DELETE FROM conformance") and None,
            delete_prepared=delete_prepared,
        )


# What the argument for correctness stands on


def xid_of(committable: Committable) -> Xid:
    name = parse_transaction_name(committable.transaction)
    assert name is not None
    return Xid.of(name)


def test_what_its_own_session_still_holds_is_tried_again_and_never_taken_for_lost(database: MariaDatabase) -> None:
    sink = database.sink()
    committable = write(sink, context(), words(0))
    sink.abort(committable)
    holder = database.another()
    with holder.cursor() as cursor:
        for command in ("XA START", "INSERT INTO words VALUES (7, 'held')", "XA END", "XA PREPARE"):
            cursor.execute(command if "INSERT" in command else f"{command} {xid_of(committable)}")
    outcome = sink.commit(committable)
    assert (outcome.status, "held by the session" in outcome.detail) == (CommitStatus.RETRY_LATER, True)
    assert sink.abort(committable).status is AbortStatus.RETRY_LATER
    assert list(sink.inspect_many([committable])) == [Observation.PREPARED]
    holder.close()
    # It wrote no row into the ledger, so the server's word alone does not make it committed.
    assert sink.commit(committable).status is not CommitStatus.COMMITTED


def settled(end: Callable[[Committable], Any], committable: Committable) -> Any:
    """What a coordinator learns, which asks again: on a slow disk the other one may still be ending it."""
    while str(status := end(committable).status) == "retry later":
        time.sleep(0.05)
    return status


def test_33_of_two_committers_both_learn_that_it_is_committed(sink: SqlAlchemySink, database: MariaDatabase) -> None:
    barrier = threading.Barrier(2)

    def commit(committable: Committable) -> CommitStatus:
        barrier.wait()
        return settled(sink.commit, committable)

    with ThreadPoolExecutor(2) as pool:
        for epoch in range(1, 61):
            committable = write(sink, context(epoch), words(10 * epoch))
            answers = sorted(pool.map(commit, [committable] * 2))
            assert answers == [CommitStatus.ALREADY_COMMITTED, CommitStatus.COMMITTED]
    assert len(database.rows()) == 180


def test_33_of_commit_and_abort_one_wins_and_both_are_told(sink: SqlAlchemySink, database: MariaDatabase) -> None:
    barrier = threading.Barrier(2)

    def race(end: Callable[[Committable], Any], committable: Committable) -> str:
        barrier.wait()
        return str(settled(end, committable))

    count = 0
    with ThreadPoolExecutor(2) as pool:
        for epoch in range(1, 41):
            committable = write(sink, context(epoch), words(10 * epoch))
            commit, abort = (pool.submit(race, end, committable) for end in (sink.commit, sink.abort))
            said = (commit.result(), abort.result())
            assert said in {("committed", "committed"), ("already committed", "committed"), ("lost", "aborted")}
            count += 3 * (said[0] != "lost")
            assert len(database.rows()) == count


# Names


def test_72_foreign_transactions_and_other_pipelines_are_not_touched(database: MariaDatabase) -> None:
    sink = database.sink()
    ours = write(sink, context(), words(0))
    theirs = [
        write(database.sink(), context(pipeline=name), words(n)) for n, name in ((10, "orders-eu"), (20, "ORDERS"))
    ]
    xid = xid_of(ours)
    foreign = [
        "X'00ff27',X'80',99",
        f"'{xid.gtrid}','',1",
        f"'{xid.gtrid}','{xid.bqual[:-1]}',1",
        f"'{xid.gtrid}','x',{0x0CEBA2D}",
    ]
    for n, other in enumerate(foreign):
        session = database.another()
        with session.cursor() as cursor:
            cursor.execute(f"XA START {other}")
            cursor.execute(f"INSERT INTO words VALUES ({100 + n}, 'foreign')")
            cursor.execute(f"XA END {other}")
            cursor.execute(f"XA PREPARE {other}")
        session.close()
    assert [c.transaction for c in sink.lingering(SCOPE)] == [ours.transaction]
    for found in sink.lingering(SCOPE):
        assert sink.abort(found).status is AbortStatus.ABORTED
    assert len(database.prepared()) == len(foreign) + len(theirs)
    assert [sink.commit(c).status for c in theirs] == [CommitStatus.COMMITTED] * 2
    assert len(database.prepared()) == len(foreign)


def test_72_names_are_told_apart_by_case_in_the_ledger_too(database: MariaDatabase) -> None:
    sink = database.sink("staging")
    sink.ledger().claim(SCOPE)
    shouted = SCOPE._replace(pipeline="ORDERS", log="ffff0000")
    sink.ledger().claim(shouted)
    theirs = write(sink, context(pipeline="ORDERS", log="ffff0000"), words(0))
    assert list(sink.lingering(SCOPE)) == []
    assert [c.transaction for c in sink.lingering(shouted)] == [theirs.transaction]


def test_73_a_name_that_is_used_again_is_detected(database: MariaDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, name = database.sink(), context().transaction_name()
    sink.validate(SCHEMA)
    sink.abort(write(sink, context(), words(0)))  # notes that the log writes here
    monkeypatch.setattr(WriteContext, "transaction_name", lambda _: name)
    first = write(sink, context(), words(0))
    with pytest.raises(SqlError, match="XAER_DUPID"):
        write(sink, context(), words(10))
    assert sink.commit(first).status is CommitStatus.COMMITTED
    with pytest.raises(SqlError, match="Duplicate entry"):
        write(sink, context(), words(10))
    assert database.rows() == expected(0)


# Constraints and locks


def test_74_a_constraint_fails_the_epoch_before_it_is_prepared(database: MariaDatabase) -> None:
    database.run("ALTER TABLE words ADD CONSTRAINT few CHECK (id < 2)")
    with pytest.raises(SqlError, match=r"cannot write into table words.*`few`"):
        write(database.sink(), context(), words(0))
    assert database.prepared() == []


def test_a_retry_over_rows_that_a_lost_attempt_holds_fails_and_says_why(database: MariaDatabase) -> None:
    sink = database.sink(lock_timeout=1)
    lost = write(sink, context(attempt=0), words(1))
    with pytest.raises(RetryableSinkError, match=r"more than 1 s \(lock_timeout\).*must not end it") as caught:
        write(sink, context(attempt=1), words(1))
    assert lost.transaction in str(caught.value)
    assert sink.abort(lost).status is AbortStatus.ABORTED
    assert sink.commit(write(sink, context(attempt=2), words(1))).status is CommitStatus.COMMITTED


# Lost answers


@pytest.mark.parametrize("hang", [False, True], ids=["cut", "silence"])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_75_a_lost_answer_is_resolved_by_asking(
    proxied: Callable[..., tuple[SqlAlchemySink, Proxy]], database: MariaDatabase, end: str, hang: bool
) -> None:
    committable = write(database.sink(), context(), words(1))
    time.sleep(0.1)  # else "busy" may come before the answer that is to be lost
    sink, proxy = proxied("prepared", b"XA COMMIT" if end == "commit" else b"XA ROLLBACK", hang=hang)
    if end == "commit":
        assert sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED
    else:
        assert sink.abort(committable).status is AbortStatus.ABORTED
    assert proxy.lost == 1
    assert database.rows() == (expected(1) if end == "commit" else [])


def test_75_a_lost_answer_to_a_merge_is_resolved_by_asking(
    proxied: Callable[..., tuple[SqlAlchemySink, Proxy]], database: MariaDatabase
) -> None:
    committable = write(database.sink("staging"), context(), words(1))
    sink, proxy = proxied("staging", b"INSERT INTO words")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert proxy.lost == 1
    assert database.rows() == expected(1)


def test_75_a_lost_answer_to_pre_commit_leaves_a_name_to_sweep(
    proxied: Callable[..., tuple[SqlAlchemySink, Proxy]], database: MariaDatabase
) -> None:
    direct = database.sink()
    direct.validate(SCHEMA)
    direct.ledger().claim(SCOPE)
    sink, _ = proxied("prepared", b"XA PREPARE")
    transaction = sink.begin(context())
    sink.write(transaction, words(1))
    with pytest.raises(RetryableSinkError, match="cannot prepare"):
        sink.pre_commit(transaction)
    (found,) = direct.lingering(SCOPE)
    assert found.transaction == str(transaction.name)
    assert direct.abort(found).status is AbortStatus.ABORTED
    assert database.rows() == []


# Somebody else ended it; the server dies; the process dies


def test_76_what_an_operator_rolled_back_is_lost_and_what_he_committed_is_committed(database: MariaDatabase) -> None:
    sink = database.sink()
    lost, done = write(sink, context(1), words(1)), write(sink, context(2), words(10))
    time.sleep(0.1)  # until the server has seen the writers' sessions end
    database.run(f"XA ROLLBACK {xid_of(lost)}")
    database.run(f"XA COMMIT {xid_of(done)}")
    assert sink.commit(lost).status is CommitStatus.LOST
    assert sink.commit(done).status is CommitStatus.ALREADY_COMMITTED
    assert sink.abort(lost).status is AbortStatus.ABORTED
    assert sink.abort(done).status is AbortStatus.COMMITTED
    assert list(sink.inspect_many([lost, done])) == [Observation.ABORTED, Observation.COMMITTED]
    assert database.rows() == expected(10)


def test_77_what_was_pre_committed_survives_a_crash_of_the_server(
    sink: SqlAlchemySink, mariadb_container: MariaDbContainer, database: MariaDatabase
) -> None:
    committables = [write(sink, context(subtask=n), words(10 * n)) for n in range(2)]
    mariadb_container.kill()
    mariadb_container.start_again()
    database.connect()
    assert list(sink.inspect_many(committables)) == [Observation.PREPARED] * 2
    assert [o.status for o in sink.commit_many(committables)] == [CommitStatus.COMMITTED] * 2
    assert database.rows() == expected(0) + expected(10)


def test_a_commit_while_the_server_is_down_is_tried_again_later(
    sink: SqlAlchemySink,
    mariadb_container: MariaDbContainer,
    database: MariaDatabase,
) -> None:
    committable = write(sink, context(), words(1))
    mariadb_container.kill()
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert sink.abort(committable).status is AbortStatus.RETRY_LATER
    mariadb_container.start_again()
    database.connect()
    assert sink.commit(committable).status is CommitStatus.COMMITTED


@pytest.mark.parametrize("how", ["prepared", "staging", "upsert"])
def test_what_a_dead_process_pre_committed_another_one_commits(database: MariaDatabase, how: str) -> None:
    body = (
        "sink, where, batch = arguments\n"
        "transaction = sink.begin(where)\n"
        "sink.write(transaction, batch)\n"
        "print(sink.pre_commit(transaction).to_json())\n"
        "die()\n"
    )
    sink = database.sink(how)
    committable = Committable.from_json(in_child(body, sink, context(), words(1)))
    assert [c.transaction for c in sink.lingering(SCOPE)] == [committable.transaction]
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


# Tables


def test_tables_without_transactions_and_ambiguous_keys_are_refused(database: MariaDatabase) -> None:
    database.run("CREATE TABLE old (id bigint, word text) ENGINE=MyISAM")
    with pytest.raises(ConfigurationError, match="storage engine MyISAM, which has no transactions"):
        database.sink(table="old").validate(SCHEMA)
    database.run("CREATE TABLE two (id bigint PRIMARY KEY, word varchar(20) UNIQUE)")
    with pytest.raises(SchemaError, match=r"other unique keys.*word"):
        database.sink("upsert", table="two").validate(SCHEMA)


@pytest.mark.parametrize(
    ("column", "word", "said"),
    [
        ("word varchar(20) CHARACTER SET latin1", "你", "Incorrect string value"),
        ("word varchar(20) CHECK (word <> 'w2')", "w", "CONSTRAINT"),
        ("word json", "{", "CONSTRAINT"),
        ("word varchar(20), short varchar(1) AS (word) STORED", "w", "Data too long"),
        ("word varchar(20) CHARACTER SET latin1, FULLTEXT (word)", "你", "Incorrect string value"),
    ],
)
@pytest.mark.parametrize("how", ["staging", "upsert", "prepared"])
def test_values_that_the_table_would_refuse_fail_the_epoch_before_its_decision(
    database: MariaDatabase, how: str, column: str, word: str, said: str
) -> None:
    database.run(f"CREATE TABLE narrow (id bigint PRIMARY KEY, {column})")
    sink = database.sink(how, table="narrow")
    sink.validate(SCHEMA)
    with pytest.raises(SqlError, match=said):
        write(sink, context(), words(1, 2, word))
    assert (list(sink.lingering(SCOPE)), database.rows("narrow")) == ([], [])
    assert sink.commit(write(database.sink(how), context(2), words(1))).status is CommitStatus.COMMITTED


@pytest.mark.parametrize(
    "options", ["PARTITION BY HASH (id) PARTITIONS 3", "WITH SYSTEM VERSIONING", "COMMENT 'with %s and :x'"]
)
@pytest.mark.parametrize("how", ["staging", "upsert"])
def test_rows_are_tried_in_tables_of_every_kind(database: MariaDatabase, how: str, options: str) -> None:
    database.run(f"CREATE TABLE `a %s :b` (id bigint AUTO_INCREMENT PRIMARY KEY, word varchar(3)) {options}")
    sink = database.sink(how, table='"a %s :b"')
    sink.validate(SCHEMA)
    batch = words(1) if how == "upsert" else pa.record_batch([pa.nulls(3, pa.int64()), ["w1", "w2", "w3"]], SCHEMA)
    assert sink.commit(write(sink, context(), batch)).status is CommitStatus.COMMITTED
    assert sorted(database.run("SELECT id, word FROM `a %s :b`")) == expected(1)
    assert sink.commit(write(sink, context(2), words(10))).status is CommitStatus.COMMITTED


@pytest.mark.parametrize("how", ["staging", "upsert"])
def test_rows_that_a_trigger_mends_are_not_refused_early(database: MariaDatabase, how: str) -> None:
    database.run(
        "CREATE TABLE mended (id bigint PRIMARY KEY, word varchar(9) CHECK (word = 'mended'), size int NOT NULL)"
    )
    database.run("ALTER TABLE mended ALTER size SET DEFAULT 0, ADD UNIQUE one (size, id)")
    database.run("CREATE TRIGGER mend BEFORE INSERT ON mended FOR EACH ROW SET new.word = 'mended', new.size = new.id")
    if how == "upsert":
        database.run("ALTER TABLE mended DROP INDEX one")
    sink = database.sink(how, table="mended")
    sink.validate(SCHEMA)
    assert sink.commit(write(sink, context(), words(1, 2))).status is CommitStatus.COMMITTED
    assert database.rows("mended") == [(1, "mended", 1), (2, "mended", 2)]


def test_a_role_without_temporary_tables_hears_at_the_start_what_staging_needs(database: MariaDatabase) -> None:
    database.run("CREATE OR REPLACE USER guest IDENTIFIED BY 'geheim'")
    database.run(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, INDEX ON {database.name}.* TO guest")
    url = make_url(database.url).set(username="guest", password="geheim")
    sink = database.sink("staging", url=url)
    with pytest.raises(ConfigurationError, match="needs CREATE TEMPORARY TABLES") as caught:
        sink.validate(SCHEMA)
    assert "geheim" not in str(caught.value)
    database.run(f"GRANT CREATE TEMPORARY TABLES ON {database.name}.* TO guest")
    close_idle()  # a session keeps the rights that it began with
    sink.validate(SCHEMA)
    assert sink.commit(write(sink, context(), words(1))).status is CommitStatus.COMMITTED
    database.run("DROP USER guest")


def test_settings_in_the_url_do_not_replace_the_sinks_own(database: MariaDatabase) -> None:
    query = {"init_command": "SET SESSION sql_mode = '', time_zone = '+05:00', @mine = 7", "sql_mode": "ANSI"}
    sink = database.sink("staging", url=make_url(database.url).update_query_dict(query), lock_timeout=3)
    with reading(sink.target, "cannot ask") as connection:
        asked = "SELECT @@sql_mode, @@time_zone, @@innodb_lock_wait_timeout, @@lock_wait_timeout, @mine"
        mode, *others = connection.exec_driver_sql(asked).one()
    assert "STRICT_ALL_TABLES" in mode
    assert others == ["+00:00", 3, 3, 7]


def test_of_several_rows_with_one_key_the_last_one_wins(database: MariaDatabase) -> None:
    database.run("INSERT INTO words VALUES (1, 'old'), (9, 'kept')")
    sink = database.sink("upsert")
    parts = [write(sink, context(subtask=n), words(1, 2, word)) for n, word in enumerate(("a", "b"))]
    assert [o.status for o in sink.commit_many(parts)] == [CommitStatus.COMMITTED] * 2
    assert database.rows() == [(1, "b1"), (2, "b2"), (9, "kept")]


@pytest.mark.parametrize("how", ["prepared", "staging"])
def test_values_of_all_types_arrive_as_they_were_sent(database: MariaDatabase, how: str) -> None:
    moment = dt.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=dt.UTC)
    naive = moment.replace(tzinfo=None)
    columns: list[tuple[str, str, pa.Array, Any]] = [
        ("a", "smallint", pa.array([-1], pa.int16()), -1),
        ("b", "bigint unsigned", pa.array([(1 << 64) - 1], pa.uint64()), (1 << 64) - 1),
        ("c", "double", pa.array([0.1]), 0.1),
        ("d", "decimal(10,2)", pa.array([decimal.Decimal("1.50")], pa.decimal128(10, 2)), decimal.Decimal("1.50")),
        ("e", "varchar(20)", pa.array(["ä😀\n%s :x\\'"]), "ä😀\n%s :x\\'"),
        ("f", "longtext", pa.array(["x" * 100_000]), "x" * 100_000),
        ("g", "blob", pa.array([b"\x00\xff'\\"]), b"\x00\xff'\\"),
        ("h", "boolean", pa.array([True]), 1),
        ("i", "date", pa.array([moment.date()]), moment.date()),
        ("j", "datetime(6)", pa.array([naive], pa.timestamp("us")), naive),
        ("k", "timestamp(6) null", pa.array([moment], pa.timestamp("us", "Asia/Tokyo")), naive),
        ("l", "enum('sad','glad')", pa.array(["sad"]), "sad"),
        ("m", "json", pa.array(['{"a": 1.10}']), '{"a": 1.10}'),
        ("n", "text", pa.nulls(1), None),
    ]
    database.run(
        f"CREATE TABLE all_types ({', '.join(f'{name} {kind}' for name, kind, _, _ in columns)}) CHARACTER SET utf8mb4"
    )
    sink = database.sink(how, table="all_types")
    batch = pa.RecordBatch.from_arrays([array for _, _, array, _ in columns], [name for name, _, _, _ in columns])
    sink.validate(batch.schema)
    assert sink.commit(write(sink, context(), batch)).status is CommitStatus.COMMITTED
    database.run("SET time_zone = '+00:00'")
    assert database.run("SELECT * FROM all_types") == [tuple(value for _, _, _, value in columns)]


def test_a_missing_table_is_created_with_its_key_if_that_is_asked_for(database: MariaDatabase) -> None:
    schema = pa.schema([("id", pa.string()), ("at", pa.timestamp("us", "UTC")), ("value", pa.float32())])
    sink = database.sink("upsert", table="made", create_table=True)
    sink.validate(schema)
    batch = pa.record_batch([["a", "A"], [10**6, None], [0.5, None]], schema=schema)
    assert sink.commit(write(sink, context(), batch)).status is CommitStatus.COMMITTED
    assert len(database.rows("made")) == 2


def test_processes_that_start_together_all_find_the_ledger(database: MariaDatabase) -> None:
    barrier = threading.Barrier(4)

    def start(n: int) -> None:
        barrier.wait()
        database.sink(lock_timeout=5.0 + n).ledger().claim(SCOPE)  # another engine for each, as in other processes

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4)))
    assert database.run("SELECT pipeline, sink FROM onceward_pipelines") == [("orders", "words")]


@pytest.mark.parametrize("how", ["prepared", "staging"])
class TestLedgerOnMariaDb(ledger_contract.LedgerContract):
    @pytest.fixture
    def make(self, database: MariaDatabase, how: str) -> Callable[..., SqlAlchemySink]:
        return lambda name: SqlAlchemySink(name, url=database.url, table="words", commit=how)

    @pytest.fixture
    def elsewhere(self, how: str) -> Iterator[SqlAlchemySink]:
        with MariaDbContainer() as container, maria_database(container.url) as other:
            other.run("CREATE TABLE words (id bigint PRIMARY KEY, word text)")
            yield other.sink(how)
            close_idle()


def test_large_epochs_are_staged_in_pieces_that_the_server_takes(database: MariaDatabase) -> None:
    sink = database.sink("staging")
    batch = pa.record_batch([list(range(200)), ["\\'\x00" * 30_000] * 200], schema=SCHEMA)
    database.run("ALTER TABLE words MODIFY word longtext")
    assert sink.commit(write(sink, context(), batch)).status is CommitStatus.COMMITTED
    assert database.run("SELECT count(*), sum(length(word)) FROM words") == [(200, 200 * 90_000)]


def test_a_wrong_password_is_not_repeated(database: MariaDatabase) -> None:
    url = database.server.set(password="geheimnis").render_as_string(hide_password=False)
    with pytest.raises((SqlError, RetryableSinkError), match="Access denied") as caught:
        database.sink(url=url).validate(SCHEMA)
    assert "geheimnis" not in str(caught.value)
    assert not isinstance(caught.value.__cause__, pymysql.Error)


# Proofs

TYPES = """
n int, big bigint unsigned, price decimal(20, 4), whole decimal(20, 0), real_ double, count double, text longtext,
kind enum('a', 'b'), bytes blob, fixed binary(2), at datetime(6), stamp timestamp(6) NULL, day date, time time(6),
yes boolean, single float, short char(5)
"""


def of_all_types(first: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "n": pa.array([first, -(2**31), None], pa.int32()),
            "big": pa.array([2**64 - 1, 0, None], pa.uint64()),
            "price": pa.array([decimal.Decimal("-0.0001"), decimal.Decimal(1500), None], pa.decimal128(20, 4)),
            "whole": pa.array([10**15, -100, None], pa.int64()),
            "real_": [-0.0, 0.1, None],
            "count": pa.array([3, -1000, None], pa.int32()),
            "text": ["ä\\'\0\n ", "", None],
            "kind": ["a", "b", None],
            "bytes": [b"\xff\0'", b"", None],
            "fixed": [b"\0\0", b"ab", None],
            "at": pa.array([1, -(10**15) - 1, None], pa.timestamp("us")),
            "stamp": pa.array([10**15 + 1, 10**12, None], pa.timestamp("us", "Europe/Berlin")),
            "day": [dt.date(1, 1, 1), dt.date(9999, 12, 31), None],
            "time": [dt.time(23, 59, 59, 999_999), dt.time(0), None],
            "yes": [True, False, None],
            "single": pa.array([0.1, 1e20, None], pa.float32()),
            "short": ["x", "y", None],
        }
    )


@pytest.mark.parametrize("how", ["prepared", "staging"])
def test_the_rows_of_all_epochs_are_proven_until_one_is_changed(
    database: MariaDatabase, tmp_path: Path, how: str
) -> None:
    database.run(f"CREATE TABLE proofs ({TYPES})")
    sink = database.sink(how, table="proofs")
    coordinator = Coordinator("orders", DirectoryStore(tmp_path), [sink])
    coordinator.open()
    for epoch in range(3):
        about = EpochInput(query="q", start=[str(epoch)], end=[str(epoch + 1)])
        coordinator.admit(epoch, about)
        contexts = [coordinator.context(sink.name, epoch, subtask=0)]
        coordinator.commit(epoch, [write_partition([sink], contexts, [of_all_types(epoch)])], about)

    def audit(code: int) -> Any:
        arguments = [str(tmp_path), "--target", "sql:proofs", "--at", f"sql={database.url}", "--json"]
        done = CliRunner().invoke(app, ["verify", *arguments])
        assert done.exit_code == code, (done.output, done.exception)
        [told] = json.loads(done.stdout)
        return told

    told = audit(0)
    [line] = told["epochs"]
    assert (line["written"], line["found"], line["verdict"]) == (9, 9, "proven")
    assert [column.partition(" ")[0] for column in told["left_out"]] == ["single"]
    for change in (
        "price = 0.0001",
        "short = 'z'",
        "text = ''",
        "stamp = '2001-09-09 01:46:41'",
        "big = 1",
        "at = '1970-01-01'",
    ):
        database.run("CREATE TABLE kept AS SELECT * FROM proofs WHERE n = 1")
        database.run(f"UPDATE proofs SET {change} WHERE n = 1")
        assert [line["verdict"] for line in audit(1)["epochs"]] == ["differs"], change
        database.run("DELETE FROM proofs WHERE n = 1")
        database.run("INSERT INTO proofs SELECT * FROM kept")
        database.run("DROP TABLE kept")
    audit(0)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("timeout", "10000", "stops waiting after 10000 ms"),
        ("wait_point", "'AFTER_COMMIT'", "visible before a replica"),
    ],
)
def test_semi_synchronous_replication_that_may_answer_too_early_is_told(
    database: MariaDatabase, caplog: pytest.LogCaptureFixture, setting: str, value: str, words: str
) -> None:
    safe = {"enabled": "1", "timeout": "18446744073709551615", "wait_point": "'AFTER_SYNC'"}
    try:
        for values, told in ((safe, False), ({**safe, setting: value}, True)):
            for name, one in values.items():
                database.run(f"SET GLOBAL rpl_semi_sync_master_{name} = {one}")
            caplog.clear()
            database.sink("prepared").validate(SCHEMA)
            assert (words in caplog.text) == told
    finally:
        for name in safe:
            database.run(f"SET GLOBAL rpl_semi_sync_master_{name} = DEFAULT")
