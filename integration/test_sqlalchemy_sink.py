"""SqlAlchemySink on PostgreSQL: scenarios 20, 33 and 71 to 77, types, deaths of the process and of the server."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import random
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from onceward.connectors.database import retry
from onceward.connectors.database.sql.engines import close_idle
from onceward.connectors.database.sql.sink import SqlAlchemySink
from onceward.core.errors import ConfigurationError, RetryableSinkError, SchemaError, SqlError
from onceward.core.transaction import AbortStatus, CommitStatus, Committable, Observation, WriteContext

from .postgres_kit import (
    SCHEMA,
    SCOPE,
    Database,
    Proxy,
    context,
    expected,
    fresh_database,
    in_child,
    running_server,
    words,
    words_table,
    write,
)
from .simulator_kit import ledger_contract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.testing.services import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    # A process that is killed loses nothing that it gave to the system: fsync=off only spares the disk.
    with running_server(fsync="off", full_page_writes="off") as running:
        yield running


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    with fresh_database(server) as fresh:
        words_table(fresh)
        yield fresh
        close_idle()


def make_sink(database: Database, how: str = "prepared", **settings: Any) -> SqlAlchemySink:
    """`how`: prepared, staging, or upsert."""
    chosen: dict[str, Any] = {"key": ["id"]} if how == "upsert" else {"commit": how}
    return SqlAlchemySink("words", **{"url": database.dsn, "table": "words", **chosen, **settings})


@pytest.fixture(params=["prepared", "staging", "upsert"])
def sink(request: pytest.FixtureRequest, database: Database) -> SqlAlchemySink:
    made = make_sink(database, request.param)
    made.validate(SCHEMA)
    made.claim(SCOPE)
    return made


@pytest.fixture
def proxied(server: PostgresServer, database: Database) -> Iterator[Callable[..., tuple[SqlAlchemySink, Proxy]]]:
    """Makes a sink behind a proxy that loses the answer to what contains `lose`."""
    proxies: list[Proxy] = []

    def make(how: str, lose: bytes, *, hang: bool = False, times: int = 1) -> tuple[SqlAlchemySink, Proxy]:
        proxy = Proxy(server.port, lambda data: lose in data, hang=hang, times=times)
        proxies.append(proxy)
        url = database.dsn.replace(f":{server.port}/", f":{proxy.port}/")
        return make_sink(database, how, url=url, answer_within=0.5, lock_timeout=0.5), proxy

    yield make
    close_idle()
    for proxy in proxies:
        proxy.close()


# 71: no prepared transactions, or too few


def test_71_without_prepared_transactions_it_says_how_to_get_them_or_stages() -> None:
    with running_server(max_prepared_transactions="0") as bare, fresh_database(bare) as database:
        words_table(database)
        with pytest.raises(ConfigurationError, match=r"max_prepared_transactions is 0.*ALTER SYSTEM.*staging"):
            make_sink(database).validate(SCHEMA)
        with pytest.raises(ConfigurationError, match="ALTER SYSTEM"):
            write(make_sink(database), context(), words(0))
        chosen = make_sink(database, "auto")
        chosen.validate(SCHEMA)
        assert chosen.commit_path == "staging"
        assert chosen.commit(write(chosen, context(), words(1))).status is CommitStatus.COMMITTED
        assert database.rows() == expected(1)
        close_idle()


def test_71_used_up_prepared_transactions_fail_the_attempt_and_say_so() -> None:
    with running_server(max_prepared_transactions="1") as small, fresh_database(small) as database:
        words_table(database)
        sink = make_sink(database)
        first = write(sink, context(), words(1))
        with pytest.raises(RetryableSinkError, match=r"maximum number of prepared transactions.*Raise max_prepared"):
            write(sink, context(2), words(10))
        assert sink.commit(first).status is CommitStatus.COMMITTED
        assert sink.commit(write(sink, context(2), words(10))).status is CommitStatus.COMMITTED
        close_idle()


def test_auto_prepares_where_the_server_does(database: Database) -> None:
    sink = make_sink(database, "auto")
    sink.validate(SCHEMA)
    assert sink.commit_path == "prepared"


# 72, 73: names


def test_72_foreign_transactions_and_other_pipelines_are_not_touched(database: Database) -> None:
    sink = make_sink(database)
    ours = write(sink, context(), words(0))
    theirs = write(sink, context(pipeline="orders-eu"), words(10))
    head, tail = ours.transaction.rsplit(":", 1)
    foreign = ["foreign", "onceward:1:orders:words", f"{head}:{tail}x", f"{head}:{tail}:0"]
    for gid in foreign:
        database.run(f"BEGIN; CREATE TABLE \"{gid}\" (); PREPARE TRANSACTION '{gid}'")
    assert [c.transaction for c in sink.lingering(SCOPE)] == [ours.transaction]
    for found in sink.lingering(SCOPE):
        assert sink.abort(found).status is AbortStatus.ABORTED
    assert sorted(database.prepared()) == sorted([*foreign, theirs.transaction])
    for gid in foreign:
        database.run(f"ROLLBACK PREPARED '{gid}'")


def test_72_another_database_of_the_server_is_another_target(server: PostgresServer, database: Database) -> None:
    committable = write(make_sink(database), context(), words(0))
    with fresh_database(server) as other:
        words_table(other)
        sink = make_sink(other)
        sink.validate(SCHEMA)
        assert list(sink.lingering(SCOPE)) == []
        for end in (sink.commit, sink.abort):
            with pytest.raises(SqlError, match="the url must name the database that prepared it"):
                end(committable)
        close_idle()


@pytest.mark.parametrize("how", ["prepared", "staging"])
def test_73_a_name_that_is_used_again_is_detected(
    database: Database, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, name = make_sink(database, how), context().transaction_name()
    monkeypatch.setattr(WriteContext, "transaction_name", lambda _: name)
    first = write(sink, context(), words(0))
    with pytest.raises((SqlError, RetryableSinkError)):
        write(sink, context(), words(10))
    assert sink.commit(first).status is CommitStatus.COMMITTED
    with pytest.raises(SqlError, match="duplicate key"):
        sink.commit(write(sink, context(), words(10)))
    assert database.rows() == expected(0)


# 74: constraints


def test_74_a_deferred_constraint_fails_the_epoch_when_it_is_prepared(database: Database) -> None:
    database.run("CREATE TABLE known (id bigint PRIMARY KEY)")
    database.run("ALTER TABLE words ADD FOREIGN KEY (id) REFERENCES known DEFERRABLE INITIALLY DEFERRED")
    sink = make_sink(database)
    with pytest.raises(SqlError, match=r"cannot prepare into table words.*foreign key.*23503"):
        write(sink, context(), words(0))
    assert (database.rows(), database.prepared()) == ([], [])


def test_a_constraint_fails_a_prepared_epoch_when_it_is_written(database: Database) -> None:
    database.run("ALTER TABLE words ADD CHECK (id < 2)")
    with pytest.raises(SqlError, match=r"cannot write into table words.*check constraint"):
        write(make_sink(database), context(), words(0))
    assert database.prepared() == []


@pytest.mark.parametrize(
    ("columns", "batch", "said"),
    [
        ("word json", words(1), "22P02"),
        ("word jsonb", pa.record_batch([[1], [r'"\u0000"']], schema=SCHEMA), "22P05"),
        ("word uuid", words(1), "22P02"),
        ("word text CHECK (word <> 'w2')", words(1), "23514"),
        ("word text, size int GENERATED ALWAYS AS (length(word)) STORED CHECK (size < 2)", words(1), "23514"),
        ("word text, number int DEFAULT 7 CHECK (number < 7)", words(1), "23514"),
        ("word text UNIQUE", pa.record_batch([[1, 2], ["a", "a"]], schema=SCHEMA), "23505"),
        ("word text UNIQUE DEFERRABLE", pa.record_batch([[1, 2], ["a", "a"]], schema=SCHEMA), "23505"),
        ("word text, EXCLUDE USING hash (word WITH =)", pa.record_batch([[1, 2], ["a", "a"]], schema=SCHEMA), "23P01"),
    ],
)
@pytest.mark.parametrize("how", ["staging", "upsert", "prepared"])
def test_rows_that_the_table_would_refuse_fail_the_epoch_before_its_decision(
    database: Database, how: str, columns: str, batch: pa.RecordBatch, said: str
) -> None:
    database.run(f"CREATE TABLE narrow (id bigint PRIMARY KEY, {columns})")
    sink = make_sink(database, how, table="narrow")
    sink.validate(SCHEMA)
    with pytest.raises(SqlError, match=said):
        write(sink, context(), batch)
    assert (list(sink.lingering(SCOPE)), database.rows("narrow")) == ([], [])


def test_a_text_too_long_for_its_index_fails_the_epoch_before_its_decision(database: Database) -> None:
    database.run("CREATE TABLE indexed (id bigint PRIMARY KEY, word text UNIQUE)")
    sink = make_sink(database, "upsert", table="indexed")
    noise = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9000), k=5000)))
    with pytest.raises(SqlError, match="54000"):
        write(sink, context(), pa.record_batch([[1], [noise]], schema=SCHEMA))


@pytest.mark.parametrize("kind", ["bigserial", "bigint GENERATED BY DEFAULT AS IDENTITY"])
@pytest.mark.parametrize("how", ["staging", "prepared"])
def test_a_null_for_a_column_that_numbers_itself_is_refused_when_it_is_written(
    database: Database, how: str, kind: str
) -> None:
    database.run(f"CREATE TABLE numbered (id {kind} PRIMARY KEY, word text)")
    sink = make_sink(database, how, table="numbered")
    with pytest.raises(SchemaError, match="column 'id' has nulls"):
        write(sink, context(), pa.record_batch([pa.nulls(1, pa.int64()), ["a"]], schema=SCHEMA))
    assert sink.commit(write(sink, context(2), words(1).select(["word"]))).status is CommitStatus.COMMITTED
    assert len(database.rows("numbered")) == 3


@pytest.mark.parametrize("unique", ["PRIMARY KEY (id) DEFERRABLE", "UNIQUE (id) DEFERRABLE INITIALLY DEFERRED"])
@pytest.mark.parametrize("schema", ["public", '"My Schema"'])
def test_a_deferrable_constraint_is_no_key_for_an_upsert(database: Database, schema: str, unique: str) -> None:
    database.run('CREATE SCHEMA "My Schema"')
    database.run(f"CREATE TABLE {schema}.late (id bigint, word text, {unique})")
    sink = make_sink(database, "upsert", table=f"{schema}.late")
    with pytest.raises(SchemaError, match=r"cannot be upserted by \['id'\].*a DEFERRABLE one is none"):
        sink.validate(SCHEMA)
    database.run(f"CREATE UNIQUE INDEX ON {schema}.late (id)")
    with pytest.raises(SchemaError, match="and spoils others"):
        sink.validate(SCHEMA)
    database.run(f"ALTER TABLE {schema}.late DROP CONSTRAINT late_{'pkey' if 'PRIMARY' in unique else 'id_key'}")
    sink.validate(SCHEMA)
    assert sink.commit(write(sink, context(), words(1))).status is CommitStatus.COMMITTED


def test_rows_are_tried_for_partitions_and_names_of_all_kinds_too(database: Database) -> None:
    database.run('CREATE TABLE "a %s :b" (id bigint PRIMARY KEY, word text) PARTITION BY HASH (id)')
    database.run('CREATE TABLE part PARTITION OF "a %s :b" FOR VALUES WITH (MODULUS 1, REMAINDER 0)')
    sink = make_sink(database, "upsert", table='"a %s :b"')
    sink.validate(SCHEMA)
    assert sink.commit(write(sink, context(), words(1))).status is CommitStatus.COMMITTED
    assert database.rows("part") == expected(1)


@pytest.mark.parametrize("how", ["staging", "upsert"])
def test_rows_that_a_trigger_mends_are_not_refused_early(database: Database, how: str) -> None:
    database.run("CREATE TABLE mended (id bigint PRIMARY KEY, word text CHECK (word = 'mended'), of text)")
    database.run(
        "CREATE FUNCTION mend() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN new.word := 'mended'; IF new.id = 0 THEN RETURN NULL; END IF; RETURN new; END $$"
    )
    database.run("CREATE TRIGGER mend BEFORE INSERT ON mended FOR EACH ROW EXECUTE FUNCTION mend()")
    sink = make_sink(database, how, table="mended")
    sink.validate(SCHEMA)
    batch = pa.record_batch([[0, 0, 1], ["a", "b", "c"]], schema=SCHEMA)
    assert sink.commit(write(sink, context(), batch)).status is CommitStatus.COMMITTED
    assert database.rows("mended") == [(1, "mended", None)]


def test_trying_rows_waits_for_nobody_who_writes_the_same_keys(database: Database) -> None:
    sink = make_sink(database, "upsert", lock_timeout=0.2)
    with psycopg.connect(database.dsn) as other:
        other.execute("INSERT INTO words VALUES (1, 'held')")
        committable = write(sink, context(), words(1))
        other.rollback()
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


def test_a_role_without_temporary_tables_hears_at_the_start_what_staging_needs(database: Database) -> None:
    make_sink(database).validate(SCHEMA)
    database.run("DROP ROLE IF EXISTS guest")
    database.run("CREATE ROLE guest LOGIN PASSWORD 'geheim'")
    database.run("GRANT ALL ON ALL TABLES IN SCHEMA public TO guest")
    database.run(f"REVOKE TEMPORARY ON DATABASE {database.name} FROM PUBLIC")
    url = psycopg.conninfo.conninfo_to_dict(database.dsn)
    guest = f"postgresql://guest:geheim@{url['host']}:{url['port']}/{url['dbname']}"
    sink = make_sink(database, "staging", url=guest)
    try:
        with pytest.raises(ConfigurationError, match="tried first, which needs TEMPORARY on the database and SELECT"):
            sink.validate(SCHEMA)
        database.run(f"GRANT TEMPORARY ON DATABASE {database.name} TO guest")
        sink.validate(SCHEMA)
    finally:
        close_idle()
        database.run("DROP OWNED BY guest")
        database.run("DROP ROLE guest")
        database.run(f"GRANT TEMPORARY ON DATABASE {database.name} TO PUBLIC")


def test_a_retry_over_rows_that_a_lost_attempt_holds_fails_and_says_why(database: Database) -> None:
    sink = make_sink(database, lock_timeout=0.2)
    lost = write(sink, context(attempt=0), words(1))
    with pytest.raises(RetryableSinkError, match=r"more than 0\.2 s \(lock_timeout\).*must not end it") as caught:
        write(sink, context(attempt=1), words(1))
    assert lost.transaction in str(caught.value)
    assert sink.abort(lost).status is AbortStatus.ABORTED
    assert sink.commit(write(sink, context(attempt=2), words(1))).status is CommitStatus.COMMITTED


# 75, 20: lost answers


@pytest.mark.parametrize("hang", [False, True], ids=["cut", "silence"])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_75_a_lost_answer_is_resolved_by_asking(
    proxied: Callable[..., tuple[SqlAlchemySink, Proxy]], database: Database, end: str, hang: bool
) -> None:
    committable = write(make_sink(database), context(), words(1))
    sink, proxy = proxied("prepared", b"PREPARED", hang=hang)
    if end == "commit":
        assert sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED
    else:
        assert sink.abort(committable).status is AbortStatus.ABORTED
    assert proxy.lost == 1
    assert database.rows() == (expected(1) if end == "commit" else [])


@pytest.mark.parametrize("hang", [False, True], ids=["cut", "silence"])
@pytest.mark.parametrize("how", ["staging", "upsert"])
def test_75_a_lost_answer_to_a_merge_is_resolved_by_asking(
    proxied: Callable[..., tuple[SqlAlchemySink, Proxy]], database: Database, how: str, hang: bool
) -> None:
    committable = write(make_sink(database, how), context(), words(1))
    sink, proxy = proxied(how, b"COMMIT\0", hang=hang)
    assert sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED
    assert proxy.lost == 1
    assert database.rows() == expected(1)


def test_75_when_every_answer_is_lost_nothing_is_assumed(
    proxied: Callable[..., tuple[SqlAlchemySink, Proxy]], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.2)
    committable = write(make_sink(database), context(), words(1))
    sink, _ = proxied("prepared", b"COMMIT PREPARED", times=1000)
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert make_sink(database).commit(committable).status is CommitStatus.ALREADY_COMMITTED


@pytest.mark.parametrize(("how", "lose"), [("prepared", b"PREPARE TRANSACTION"), ("staging", b"COMMIT\0")])
def test_75_a_lost_answer_to_pre_commit_leaves_a_name_to_sweep(
    proxied: Callable[..., tuple[SqlAlchemySink, Proxy]], database: Database, how: str, lose: bytes
) -> None:
    direct = make_sink(database, how)
    direct.validate(SCHEMA)
    direct.abort(write(direct, context(0), words(50)))  # later ones have nothing else to commit
    sink, _ = proxied(how, lose)
    transaction = sink.begin(context())
    sink.write(transaction, words(1))
    with pytest.raises(RetryableSinkError, match="cannot"):
        sink.pre_commit(transaction)
    (found,) = direct.lingering(SCOPE)
    assert found.transaction == str(transaction.name)
    assert direct.abort(found).status is AbortStatus.ABORTED
    assert database.rows() == []


# 76: somebody else ended it


@pytest.mark.parametrize("how", ["prepared", "staging", "upsert"])
def test_76_what_an_operator_rolled_back_is_lost_and_what_he_committed_is_committed(
    database: Database, how: str
) -> None:
    sink = make_sink(database, how)
    lost, done = write(sink, context(1), words(1)), write(sink, context(2), words(10))
    if how == "prepared":
        database.run(f"ROLLBACK PREPARED '{lost.transaction}'")
        database.run(f"COMMIT PREPARED '{done.transaction}'")
    else:
        database.run(f"DELETE FROM onceward_staged WHERE name = '{lost.transaction}'")
        make_sink(database, how).commit(done)
    assert sink.commit(lost).status is CommitStatus.LOST
    assert sink.commit(done).status is CommitStatus.ALREADY_COMMITTED
    assert sink.abort(lost).status is AbortStatus.ABORTED
    assert sink.abort(done).status is AbortStatus.COMMITTED
    assert list(sink.inspect_many([lost, done])) == [Observation.ABORTED, Observation.COMMITTED]
    assert database.rows() == expected(10)


# 77: the server dies


def test_77_what_was_pre_committed_survives_a_crash_of_the_server(
    sink: SqlAlchemySink, server: PostgresServer, database: Database
) -> None:
    committables = [write(sink, context(subtask=n), words(10 * n)) for n in range(2)]
    server.kill()
    server.start()
    server.wait_ready()
    database.reconnect()
    assert list(sink.inspect_many(committables)) == [Observation.PREPARED] * 2
    assert [o.status for o in sink.commit_many(committables)] == [CommitStatus.COMMITTED] * 2
    assert database.rows() == expected(0) + expected(10)


def test_a_commit_while_the_server_is_down_is_tried_again_later(
    sink: SqlAlchemySink, server: PostgresServer, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.1)
    committable = write(sink, context(), words(1))
    server.kill()
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert sink.abort(committable).status is AbortStatus.RETRY_LATER
    server.start()
    server.wait_ready()
    database.reconnect()
    assert sink.commit(committable).status is CommitStatus.COMMITTED


@pytest.mark.parametrize("how", ["prepared", "staging", "upsert"])
def test_a_server_that_falls_silent_is_an_error_after_a_while_and_never_a_hang(
    server: PostgresServer, database: Database, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.1)
    settings = {"answer_within": 0.5, "lock_timeout": 0.2}
    sink = make_sink(database, how, **settings)
    sink.claim(SCOPE)
    waiting = write(sink, context(1), words(1))
    attempts = [sink.begin(context(2)) for _ in range(2)]
    sink.write(attempts[0], words(10))
    other = make_sink(database, how, **{**settings, "lock_timeout": 0.3})  # another engine, without a connection
    slowest = 0.0

    def refused(ask: Callable[[], Any]) -> None:
        nonlocal slowest
        begun = time.monotonic()
        with pytest.raises(RetryableSinkError):
            ask()
        slowest = max(slowest, time.monotonic() - begun)

    server.pause()
    try:
        refused(lambda: sink.pre_commit(attempts[0]))
        if how == "prepared":
            refused(lambda: sink.write(attempts[1], words(20)))
        refused(lambda: sink.begin(context(3)))
        for fresh in (lambda: other.validate(SCHEMA), lambda: other.begin(context(3)), lambda: other.lingering(SCOPE)):
            refused(fresh)
        for one in (sink, other):
            assert one.commit(waiting).status is CommitStatus.RETRY_LATER
            assert one.abort(waiting).status is AbortStatus.RETRY_LATER
    finally:
        server.resume()
    assert slowest < 4  # answer_within, and twice two seconds for a connection
    sink.discard(attempts[1])
    database.reconnect()
    assert sink.commit(waiting).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


# The process dies


@pytest.mark.parametrize("how", ["prepared", "staging"])
def test_a_process_that_dies_before_pre_commit_leaves_nothing_after_it(database: Database, how: str) -> None:
    body = (
        "sink, where, batch = arguments\n"
        "transaction = sink.begin(where)\n"
        "sink.write(transaction, batch)\n"
        "print('written')\n"
        "die()\n"
    )
    sink = make_sink(database, how)
    assert "written" in in_child(body, sink, context(), words(1))
    assert (list(sink.lingering(SCOPE)), database.rows()) == ([], [])


@pytest.mark.parametrize("how", ["prepared", "staging", "upsert"])
def test_what_a_dead_process_pre_committed_another_one_commits(database: Database, how: str) -> None:
    body = (
        "sink, where, batch = arguments\n"
        "transaction = sink.begin(where)\n"
        "sink.write(transaction, batch)\n"
        "print(sink.pre_commit(transaction).to_json())\n"
        "die()\n"
    )
    sink = make_sink(database, how)
    committable = Committable.from_json(in_child(body, sink, context(), words(1)))
    assert [c.transaction for c in sink.lingering(SCOPE)] == [committable.transaction]
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


def test_a_forked_worker_leaves_its_parents_connections_alone(database: Database) -> None:
    sink = make_sink(database)
    first = write(sink, context(1), words(1))
    child = os.fork()
    if child == 0:
        good = sink.commit(first).status is CommitStatus.COMMITTED
        close_idle()
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert sink.commit(write(sink, context(2), words(10))).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1) + expected(10)


# 33: races


def test_33_of_two_committers_both_learn_that_it_is_committed(sink: SqlAlchemySink, database: Database) -> None:
    barrier = threading.Barrier(2)

    def commit(committable: Committable) -> CommitStatus:
        barrier.wait()
        return sink.commit(committable).status

    with ThreadPoolExecutor(2) as pool:
        for epoch in range(1, 31):
            committable = write(sink, context(epoch), words(10 * epoch))
            answers = sorted(pool.map(commit, [committable] * 2))
            assert answers == [CommitStatus.ALREADY_COMMITTED, CommitStatus.COMMITTED]
    assert len(database.rows()) == 90


def test_processes_that_start_together_all_find_the_ledger(database: Database) -> None:
    barrier = threading.Barrier(4)

    def start(n: int) -> None:
        barrier.wait()
        make_sink(database, lock_timeout=5.0 + n).claim(SCOPE)  # another engine for each, as in other processes

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4)))
    assert database.run("SELECT pipeline, sink FROM onceward_pipelines") == [("orders", "words")]


# The ledger


@pytest.mark.parametrize("how", ["prepared", "staging"])
class TestLedger(ledger_contract.LedgerContract):
    @pytest.fixture
    def make(self, database: Database, how: str) -> Callable[..., SqlAlchemySink]:
        return lambda name: SqlAlchemySink(name, url=database.dsn, table="words", commit=how)

    @pytest.fixture
    def elsewhere(self, how: str) -> Iterator[SqlAlchemySink]:
        with running_server(fsync="off") as server, fresh_database(server) as other:
            words_table(other)
            yield make_sink(other, how)
            close_idle()


# Types


@pytest.mark.parametrize("how", ["prepared", "staging"])
def test_values_of_all_types_arrive_as_they_were_sent(database: Database, how: str) -> None:
    moment = dt.datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=dt.UTC)
    one = uuid.uuid4()
    columns: list[tuple[str, str, pa.Array, Any]] = [
        ("a", "smallint", pa.array([-1], pa.int16()), -1),
        ("b", "bigint", pa.array([1 << 62], pa.int64()), 1 << 62),
        ("c", "numeric(20,0)", pa.array([(1 << 64) - 1], pa.uint64()), decimal.Decimal((1 << 64) - 1)),
        ("d", "double precision", pa.array([0.1]), 0.1),
        ("e", "real", pa.array([0.5], pa.float32()), 0.5),
        ("f", "numeric(10,2)", pa.array([decimal.Decimal("1.50")], pa.decimal128(10, 2)), decimal.Decimal("1.50")),
        ("g", "text", pa.array(["ä\n%s :x"]), "ä\n%s :x"),
        ("h", "bytea", pa.array([b"\x00\xff"]), b"\x00\xff"),
        ("i", "boolean", pa.array([True]), True),
        ("j", "date", pa.array([moment.date()]), moment.date()),
        ("k", "timestamptz", pa.array([moment], pa.timestamp("us", "Asia/Tokyo")), moment),
        ("l", "timestamp", pa.array([moment.replace(tzinfo=None)], pa.timestamp("us")), moment.replace(tzinfo=None)),
        ("m", "time", pa.array([dt.time(1, 2, 3, 4)]), dt.time(1, 2, 3, 4)),
        ("n", "interval", pa.array([dt.timedelta(days=1, microseconds=1)]), dt.timedelta(days=1, microseconds=1)),
        ("o", "jsonb", pa.array(['{"a": 1.10}']), {"a": 1.10}),
        ("p", "uuid", pa.array([str(one)]), one),
        ("q", "mood", pa.array(["sad"]).dictionary_encode(), "sad"),
        ("r", "bigint[]", pa.array([[1, None]], pa.list_(pa.int32())), [1, None]),
        ("s", "varchar(3) not null", pa.array(["x"]), "x"),
        ("t", "text", pa.nulls(1), None),
    ]
    database.run("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    database.run(f"CREATE TABLE all_types ({', '.join(f'{name} {kind}' for name, kind, _, _ in columns)})")
    sink = make_sink(database, how, table="all_types")
    batch = pa.RecordBatch.from_arrays([array for _, _, array, _ in columns], [name for name, _, _, _ in columns])
    sink.validate(batch.schema)
    assert sink.commit(write(sink, context(), batch)).status is CommitStatus.COMMITTED
    assert database.run("SELECT * FROM all_types") == [tuple(value for _, _, _, value in columns)]
    with pytest.raises(SchemaError, match=r"'s'.*4 characters"):
        write(sink, context(), batch.set_column(18, "s", pa.array(["long"])))


def test_a_domain_is_refused_because_its_limits_are_not_known(database: Database) -> None:
    database.run("CREATE DOMAIN money_amount AS numeric(10, 2)")
    database.run("ALTER TABLE words ADD amount money_amount")
    make_sink(database).validate(SCHEMA)
    with pytest.raises(SchemaError, match=r"'amount'.*PostgresSink takes it"):
        make_sink(database).validate(pa.schema([("id", pa.int64()), ("amount", pa.decimal128(10, 4))]))


def test_a_table_in_another_schema_and_a_ledger_in_a_third_one(database: Database) -> None:
    database.run('CREATE SCHEMA "My Schema"')
    database.run("CREATE SCHEMA books")
    sink = make_sink(database, table='"My Schema"."T"', create_table=True, ledger_schema="books")
    sink.validate(SCHEMA)
    assert sink.commit(write(sink, context(), words(1))).status is CommitStatus.COMMITTED
    assert database.run('SELECT * FROM "My Schema"."T" ORDER BY id') == expected(1)
    assert database.one("SELECT count(*) FROM books.onceward_ledger") == 1


def test_a_role_that_may_not_create_the_ledger_hears_which_tables_are_missing(database: Database) -> None:
    database.run("DROP ROLE IF EXISTS guest")
    database.run("CREATE ROLE guest LOGIN PASSWORD 'geheim'")
    url = psycopg.conninfo.conninfo_to_dict(database.dsn)
    host = f"guest:geheim@{url['host']}:{url['port']}/{url['dbname']}"
    with pytest.raises(ConfigurationError, match=r"onceward_ledger.*missing and cannot be made") as caught:
        make_sink(database, url=f"postgresql://{host}").claim(SCOPE)
    assert "geheim" not in str(caught.value)
    close_idle()
    database.run("DROP ROLE guest")
