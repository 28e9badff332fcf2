"""Scenarios 19, 20, 33, 71 to 77: locks, lost answers, crashed servers, races, foreign transactions."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from onceward.connectors.database.postgres.loader import CopyWriting
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Committable, Observation
from onceward.core.errors import ConfigurationError, PostgresError, RetryableSinkError

from .postgres_kit import (
    SCHEMA,
    SCOPE,
    WORDS,
    Database,
    asked_again,
    context,
    data_directory,
    expected,
    fresh_database,
    make_sink,
    running_server,
    words,
    words_table,
    write,
)
from .proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.connectors.database.sink import PostgresSink
    from onceward.testing.services import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.tables(WORDS)]


@pytest.fixture(params=["prepared", "staging", "upsert"])
def sink(request: pytest.FixtureRequest, database: Database) -> PostgresSink:
    made = make_sink(database, request.param)
    made.validate(SCHEMA)
    made.ledger().claim(SCOPE)
    return made


@pytest.fixture
def proxied(server: PostgresServer, database: Database) -> Iterator[Callable[..., tuple[PostgresSink, Proxy]]]:
    """Makes a sink behind a proxy that loses the answer to what contains `words`."""
    proxies: list[Proxy] = []

    def make(how: str, lose: bytes, *, hang: bool = False, times: int = 1) -> tuple[PostgresSink, Proxy]:
        proxy = Proxy(server.port, lambda data: lose in data, hang=hang, times=times)
        proxies.append(proxy)
        dsn = database.dsn.replace(f":{server.port}/", f":{proxy.port}/")
        return make_sink(database, how, dsn=dsn, answer_within=1.0), proxy

    yield make
    for proxy in proxies:
        proxy.close()


COMMIT_WORDS = {"prepared": b"COMMIT PREPARED", "staging": b"COMMIT\0", "upsert": b"COMMIT\0"}


# Retries over rows that a lost attempt holds


def test_a_retry_over_rows_that_a_lost_attempt_holds_prepared_fails_and_says_why(database: Database) -> None:
    sink = make_sink(database, "prepared", lock_timeout=0.2)
    lost = write(sink, context(attempt=0), words(1))
    with pytest.raises(RetryableSinkError, match=r"more than 0\.2 s \(lock_timeout\).*must not end it") as caught:
        write(sink, context(attempt=1), words(1))
    assert lost.transaction in str(caught.value)
    assert "55P03" in str(caught.value)
    assert sink.abort(lost).status is AbortStatus.ABORTED
    retried = write(sink, context(attempt=2), words(1))
    assert sink.commit(retried).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


@pytest.mark.parametrize("how", ["staging", "upsert"])
def test_a_retry_over_staged_rows_of_a_lost_attempt_just_works(database: Database, how: str) -> None:
    sink = make_sink(database, how, lock_timeout=0.2)
    lost = write(sink, context(attempt=0), words(1, word="lost"))
    retried = write(sink, context(attempt=1), words(1))
    assert sink.commit(retried).status is CommitStatus.COMMITTED
    assert sink.abort(lost).status is AbortStatus.ABORTED
    assert database.rows() == expected(1)


def test_the_lost_attempt_can_still_win_after_the_retry_failed(database: Database) -> None:
    sink = make_sink(database, "prepared", lock_timeout=0.2)
    first = write(sink, context(attempt=0), words(1))
    with pytest.raises(RetryableSinkError):
        write(sink, context(attempt=1), words(1))
    assert sink.commit(first).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


# Servers that crash


def test_77_what_was_pre_committed_survives_a_crash_of_the_server(
    sink: PostgresSink, server: PostgresServer, database: Database
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
    sink: PostgresSink, server: PostgresServer, database: Database
) -> None:
    committable = write(sink, context(), words(1))
    server.kill()
    outcome = sink.commit(committable)
    assert outcome.status is CommitStatus.RETRY_LATER
    assert "refused" in outcome.detail or "connection" in outcome.detail
    assert sink.abort(committable).status is AbortStatus.RETRY_LATER
    server.start()
    server.wait_ready()
    database.reconnect()
    assert sink.commit(committable).status is CommitStatus.COMMITTED


def test_an_idle_connection_that_a_restart_cut_is_replaced(
    sink: PostgresSink, server: PostgresServer, database: Database
) -> None:
    sink.commit(write(sink, context(1), words(1)))
    server.restart()
    database.reconnect()
    assert sink.commit(write(sink, context(2), words(10))).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1) + expected(10)


def test_a_standby_is_refused_and_proves_nothing(
    sink: PostgresSink, server: PostgresServer, database: Database
) -> None:
    committable = write(sink, context(), words(1))
    signal = data_directory(server) / "standby.signal"
    server.stop()
    signal.touch()
    signal.chmod(0o666)
    try:
        server.start()
        server.wait_ready()
        with pytest.raises(ConfigurationError, match="is a standby"):
            sink.validate(SCHEMA)
        assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    finally:
        server.stop()
        signal.unlink(missing_ok=True)
        server.start()
        server.wait_ready()
        database.reconnect()
    assert sink.commit(committable).status is CommitStatus.COMMITTED


# Answers that are lost


@pytest.mark.parametrize("hang", [False, True], ids=["cut", "silence"])
@pytest.mark.parametrize("how", ["prepared", "staging", "upsert"])
def test_75_a_lost_answer_to_a_commit_is_resolved_by_asking(
    proxied: Callable[..., tuple[PostgresSink, Proxy]], database: Database, how: str, hang: bool
) -> None:
    committable = write(make_sink(database, how), context(), words(1))
    sink, proxy = proxied(how, COMMIT_WORDS[how], hang=hang)
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert asked_again(sink, committable) == [CommitStatus.ALREADY_COMMITTED]
    assert proxy.lost == 1
    assert database.rows() == expected(1)


@pytest.mark.parametrize("hang", [False, True], ids=["cut", "silence"])
def test_75_a_lost_answer_to_an_abort_is_resolved_by_asking(
    proxied: Callable[..., tuple[PostgresSink, Proxy]], database: Database, hang: bool
) -> None:
    committable = write(make_sink(database), context(), words(1))
    sink, proxy = proxied("prepared", b"ROLLBACK PREPARED", hang=hang)
    assert sink.abort(committable).status is AbortStatus.RETRY_LATER
    assert make_sink(database).abort(committable).status is AbortStatus.ABORTED
    assert proxy.lost == 1
    assert database.rows() == []


def test_75_when_every_answer_is_lost_nothing_is_assumed(
    proxied: Callable[..., tuple[PostgresSink, Proxy]], database: Database
) -> None:
    committable = write(make_sink(database), context(), words(1))
    sink, _ = proxied("prepared", b"COMMIT PREPARED", times=1000)
    assert sink.commit(committable).status is CommitStatus.RETRY_LATER
    assert database.rows() == expected(1)
    assert make_sink(database).commit(committable).status is CommitStatus.ALREADY_COMMITTED


@pytest.mark.parametrize(("how", "lose"), [("prepared", b"PREPARE TRANSACTION"), ("staging", b"COMMIT\0")])
def test_75_a_lost_answer_to_pre_commit_fails_the_attempt_and_leaves_a_name_to_sweep(
    proxied: Callable[..., tuple[PostgresSink, Proxy]], database: Database, how: str, lose: bytes
) -> None:
    direct = make_sink(database, how)
    direct.validate(SCHEMA)
    direct.abort(write(direct, context(0), words(50)))  # later ones have nothing else to commit
    sink, _ = proxied(how, lose)
    transaction = sink.begin(context())
    sink.write(transaction, words(1))
    with pytest.raises(RetryableSinkError, match="cannot prepare"):
        sink.pre_commit(transaction)
    (found,) = direct.lingering(SCOPE)
    assert found.transaction == str(transaction.name)
    assert direct.abort(found).status is AbortStatus.ABORTED
    assert database.rows() == []


# Races


def test_33_of_two_committers_both_learn_that_it_is_committed(sink: PostgresSink, database: Database) -> None:
    barrier = threading.Barrier(2)

    def commit(committable: Committable) -> CommitStatus:
        barrier.wait()
        return asked_again(sink, committable)[0]

    with ThreadPoolExecutor(2) as pool:
        for epoch in range(1, 41):
            committable = write(sink, context(epoch), words(10 * epoch))
            answers = sorted(pool.map(commit, [committable] * 2))
            assert answers == [CommitStatus.ALREADY_COMMITTED, CommitStatus.COMMITTED]
    assert len(database.rows()) == 120


def test_of_commit_and_abort_one_wins_and_both_are_told(sink: PostgresSink, database: Database) -> None:
    barrier = threading.Barrier(2)

    def race(end: Callable[[Committable], object], committable: Committable) -> object:
        barrier.wait()
        later = (CommitStatus.RETRY_LATER, AbortStatus.RETRY_LATER)
        while (status := end(committable).status) in later:  # type: ignore[attr-defined]
            time.sleep(0.005)
        return status

    winners = set()
    with ThreadPoolExecutor(2) as pool:
        for epoch in range(1, 41):
            committable = write(sink, context(epoch), words(10 * epoch))
            first, second = (pool.submit(race, end, committable) for end in (sink.commit, sink.abort))
            told = (first.result(), second.result())
            there = database.one("SELECT count(*) FROM words WHERE id / 10 = %s", epoch) == 3
            won = (CommitStatus.COMMITTED, AbortStatus.COMMITTED)
            assert told == (won if there else (CommitStatus.LOST, AbortStatus.ABORTED))
            winners.add(there)
    assert (database.prepared(), database.staged()) == ([], 0)


def test_a_busy_gid_is_asked_again_and_never_taken_for_lost(database: Database) -> None:
    sink = make_sink(database)
    committables = [write(sink, context(subtask=n), words(10 * n)) for n in range(20)]
    with ThreadPoolExecutor(4) as pool:
        orders = [committables, committables[::-1], committables, committables[::-1]]
        rounds = list(pool.map(lambda order: asked_again(sink, *order), orders))
    for statuses in rounds:
        assert set(statuses) <= {CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED}
    assert len(database.rows()) == 60


# Settings and other people's transactions


def test_71_without_prepared_transactions_the_error_says_how_to_allow_them() -> None:
    with running_server(max_prepared_transactions="0") as other, fresh_database(other) as database:
        words_table(database)
        with pytest.raises(ConfigurationError, match=r"max_prepared_transactions is 0: set max_prepared.*restart"):
            make_sink(database, "prepared").validate(SCHEMA)
        with pytest.raises(ConfigurationError, match=r"SQLSTATE 55000.*max_prepared_transactions"):
            write(make_sink(database, "prepared"), context(), words(1))
        sink = make_sink(database, "auto")
        sink.validate(SCHEMA)
        assert sink.commit_path == "staging"
        assert sink.commit(write(sink, context(), words(1))).status is CommitStatus.COMMITTED
        assert database.rows() == expected(1)


def test_auto_chooses_prepared_where_the_server_allows_it_and_says_so(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "onceward.database")
    sink = make_sink(database, "auto")
    assert sink.commit_path is None
    sink.validate(SCHEMA)
    assert sink.commit_path == "prepared"
    assert "commits prepared transactions: the server allows it" in caplog.text
    assert make_sink(database, "upsert").commit_path == "staging"


def test_71_used_up_prepared_transactions_are_a_clear_error() -> None:
    with running_server(max_prepared_transactions="2") as other, fresh_database(other) as database:
        words_table(database)
        sink = make_sink(database, "prepared")
        kept = [write(sink, context(subtask=n), words(10 * n)) for n in range(2)]
        with pytest.raises(RetryableSinkError, match=r"allows 2 .*, and 2 of them are of this pipeline.*coalesce\(1\)"):
            write(sink, context(subtask=2), words(20))
        assert [o.status for o in sink.commit_many(kept)] == [CommitStatus.COMMITTED] * 2


PARTS = 300


def test_a_full_table_of_locks_is_not_taken_for_used_up_prepared_transactions() -> None:
    few = {"max_locks_per_transaction": "10", "max_connections": "12", "max_prepared_transactions": "2"}
    with running_server(**few, max_wal_senders="0", fsync="off") as other, fresh_database(other) as database:
        database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text) PARTITION BY LIST (id)")
        for _ in range(5):
            database.run("CREATE INDEX ON words (word)")
        for n in range(PARTS):
            database.run(f"CREATE TABLE part_{n} PARTITION OF words FOR VALUES IN ({n})")
        make_sink(database, "prepared").validate(SCHEMA)
        with pytest.raises(RetryableSinkError, match=r"SQLSTATE 53200.*Raise max_locks_per_tr.*restart") as caught:
            write(make_sink(database, "prepared"), context(), words(0, PARTS))
        assert "max_prepared" not in str(caught.value)
        for n in range(PARTS):  # dropping the schema would need all of their locks at once
            database.run(f"DROP TABLE part_{n}")


NOTIFY = "PERFORM pg_notify('words', '')"
TEMPORARY = "CREATE TEMPORARY TABLE IF NOT EXISTS seen (id bigint) ON COMMIT DROP"


@pytest.mark.parametrize("does", [NOTIFY, TEMPORARY])
def test_a_trigger_that_no_prepared_transaction_allows_is_said_to_need_staging(database: Database, does: str) -> None:
    body = f"BEGIN {does}; RETURN NULL; END"
    database.run(f"CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
    database.run("CREATE TRIGGER tell AFTER INSERT ON words FOR EACH STATEMENT EXECUTE FUNCTION tell()")
    with pytest.raises(ConfigurationError, match=r"SQLSTATE 0A000\).*a trigger.*use commit='staging'"):
        write(make_sink(database, "prepared"), context(), words(1))
    staging = make_sink(database, "staging")
    assert staging.commit(write(staging, context(2), words(1))).status is CommitStatus.COMMITTED


def test_an_error_of_a_trigger_is_not_taken_for_disabled_prepared_transactions(database: Database) -> None:
    body = "BEGIN RAISE EXCEPTION 'closed' USING ERRCODE = '55000'; END"
    database.run(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
    database.run("CREATE TRIGGER refuse AFTER INSERT ON words FOR EACH STATEMENT EXECUTE FUNCTION refuse()")
    with pytest.raises(PostgresError, match="closed"):
        write(make_sink(database, "prepared"), context(), words(1))


def test_72_foreign_prepared_transactions_are_never_touched(sink: PostgresSink, database: Database) -> None:
    foreign = ["batch-7", f"onceward:1:orders:words:{SCOPE.log}", f"onceward:1:orders:words:{SCOPE.log}:3:1:0:0:XYZ"]
    for number, gid in enumerate(foreign):
        database.run("BEGIN")
        database.run(f"CREATE TABLE foreign_{number} ()")
        database.run(f"PREPARE TRANSACTION '{gid}'")
    own = write(sink, context(), words(1))
    assert [c.transaction for c in sink.lingering(SCOPE)] == [own.transaction]
    sink.abort(own)
    assert set(foreign) <= set(database.prepared())


def test_73_a_gid_that_is_in_use_is_refused(database: Database) -> None:
    sink = make_sink(database, lock_timeout=0.2)
    first = write(sink, context(), words(1))
    reused = CopyWriting(sink.target, context())
    reused.name = reused.name._replace(unique=first.transaction.rsplit(":", 1)[1])
    reused.write(words(10))
    with pytest.raises((PostgresError, RetryableSinkError), match=r"SQLSTATE (42710|23505|55P03)"):
        reused.pre_commit()


def test_73_a_gid_that_was_committed_before_is_refused_by_the_ledger(database: Database) -> None:
    sink = make_sink(database)
    first = write(sink, context(), words(1))
    sink.commit(first)
    reused = CopyWriting(sink.target, context())
    reused.name = reused.name._replace(unique=first.transaction.rsplit(":", 1)[1])
    reused.write(words(10))
    with pytest.raises(PostgresError, match="SQLSTATE 23505"):
        reused.pre_commit()
    assert database.prepared() == []


def test_74_a_deferred_constraint_fails_the_epoch_when_it_is_prepared(database: Database) -> None:
    database.run("CREATE TABLE known (id bigint PRIMARY KEY)")
    database.run("ALTER TABLE words ADD FOREIGN KEY (id) REFERENCES known DEFERRABLE INITIALLY DEFERRED")
    sink = make_sink(database)
    sink.validate(SCHEMA)
    with pytest.raises(PostgresError, match=r"violates foreign key constraint.*SQLSTATE 23503"):
        write(sink, context(), words(1))
    assert (database.rows(), database.prepared()) == ([], [])


def test_a_constraint_that_stops_a_merge_keeps_the_decided_rows(database: Database) -> None:
    sink = make_sink(database, "staging")
    database.run("INSERT INTO words VALUES (2, 'in the way')")
    committable = write(sink, context(), words(1))
    with pytest.raises(PostgresError, match=r"decision remains valid.*start again"):
        sink.commit(committable)
    database.run("DELETE FROM words")
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    assert database.rows() == expected(1)


@pytest.mark.parametrize("how", ["prepared", "staging"])
def test_76_what_an_operator_rolled_back_is_lost_and_what_he_committed_is_committed(
    database: Database, how: str
) -> None:
    sink = make_sink(database, how)
    lost, done = write(sink, context(1), words(1)), write(sink, context(2), words(10))
    if how == "prepared":
        database.run(f"ROLLBACK PREPARED '{lost.transaction}'")
        database.run(f"COMMIT PREPARED '{done.transaction}'")
    else:
        database.run(f"DELETE FROM onceward.staged WHERE name = '{lost.transaction}'")
        make_sink(database, how).commit(done)
    assert sink.commit(lost).status is CommitStatus.LOST
    assert sink.commit(done).status is CommitStatus.ALREADY_COMMITTED
    assert sink.abort(lost).status is AbortStatus.ABORTED
    assert sink.abort(done).status is AbortStatus.COMMITTED
    assert list(sink.inspect_many([lost, done])) == [Observation.ABORTED, Observation.COMMITTED]
    assert database.rows() == expected(10)


def test_staged_rows_that_somebody_changed_are_not_merged(database: Database) -> None:
    sink = make_sink(database, "staging")
    committable = write(sink, context(), words(1))
    stage = database.one("SELECT stage FROM onceward.staged")
    database.run(f"DELETE FROM onceward.{stage} WHERE id = 1")
    with pytest.raises(PostgresError, match="holds 2 rows of 3"):
        sink.commit(committable)
    assert database.rows() == []


def test_72_another_database_of_a_server_is_a_clear_error_and_no_loss(
    server: PostgresServer, database: Database
) -> None:
    committable = write(make_sink(database), context(), words(1))
    with fresh_database(server) as other:
        words_table(other)
        elsewhere = make_sink(other)
        with pytest.raises(PostgresError, match=r"SQLSTATE 0A000.*must name the database that prepared it"):
            elsewhere.commit(committable)
        assert list(elsewhere.lingering(SCOPE)) == []
        assert make_sink(database).commit(committable).status is CommitStatus.COMMITTED
        assert elsewhere.commit(committable).status is CommitStatus.UNKNOWN
        assert list(elsewhere.inspect_many([committable])) == [Observation.ABSENT]


def test_two_databases_of_one_server_do_not_disturb_each_other(server: PostgresServer, database: Database) -> None:
    with fresh_database(server) as other:
        words_table(other)
        sinks = [make_sink(database), make_sink(other)]
        committables = [write(made, context(), words(10 * n)) for n, made in enumerate(sinks)]
        for made, committable in zip(sinks, committables, strict=True):
            assert [c.transaction for c in made.lingering(SCOPE)] == [committable.transaction]
            assert made.commit(committable).status is CommitStatus.COMMITTED
        assert (database.rows(), other.rows()) == (expected(0), expected(10))


def test_a_kind_that_is_not_postgres_is_refused(sink: PostgresSink) -> None:
    committable = write(sink, context(), words(1))
    kafka = Committable.from_json(committable.to_json().replace(committable.kind, "kafka"))
    with pytest.raises(ConfigurationError, match="not a PostgresSink's"):
        sink.commit(kafka)


# Roles


@pytest.fixture
def restricted(database: Database) -> Iterator[str]:
    """The connection string of a role without any rights."""
    database.run("CREATE ROLE limited LOGIN PASSWORD 'geheim'")
    yield f"postgresql://limited:geheim@{database.dsn.rsplit('@', 1)[1]}"
    database.run("DROP OWNED BY limited")
    database.run("DROP ROLE limited")


def test_a_role_that_may_not_create_the_ledger_is_told_what_to_run(database: Database, restricted: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"may not create them.*CREATE SCHEMA IF NOT EXISTS.*CREATE TABLE IF NOT EXISTS"
    ) as caught:
        make_sink(database, dsn=restricted).validate(SCHEMA)
    assert "geheim" not in str(caught.value)


def test_a_role_that_may_not_write_the_table_is_told_so(database: Database, restricted: str) -> None:
    database.run("GRANT CREATE ON DATABASE " + database.name + " TO limited")
    with pytest.raises(ConfigurationError, match="may not INSERT on table"):
        make_sink(database, dsn=restricted).validate(SCHEMA)
    database.run("GRANT INSERT, SELECT ON words TO limited")
    with pytest.raises(ConfigurationError, match="may not UPDATE on table"):
        make_sink(database, "upsert", dsn=restricted).validate(SCHEMA)
    sink = make_sink(database, dsn=restricted)
    sink.validate(SCHEMA)
    assert sink.commit(write(sink, context(), words(1))).status is CommitStatus.COMMITTED
    database.run("REVOKE SELECT ON words FROM limited")
    staged = make_sink(database, "staging", dsn=restricted)
    staged.validate(SCHEMA)
    assert staged.commit(write(staged, context(2), words(10))).status is CommitStatus.COMMITTED
    database.run("GRANT SELECT, UPDATE ON words TO limited")
    upsert = make_sink(database, "upsert", dsn=restricted)
    upsert.validate(SCHEMA)
    assert upsert.commit(write(upsert, context(3), words(1))).status is CommitStatus.COMMITTED


def test_what_another_role_prepared_cannot_be_ended_and_the_error_says_so(database: Database, restricted: str) -> None:
    committable = write(make_sink(database), context(), words(1))
    with pytest.raises(PostgresError, match="SQLSTATE 42501"):
        make_sink(database, dsn=restricted).commit(committable)


def test_a_right_that_is_missing_at_a_merge_is_to_be_granted(database: Database, restricted: str) -> None:
    database.run("GRANT CREATE ON DATABASE " + database.name + " TO limited")
    database.run("GRANT INSERT ON words TO limited")
    sink = make_sink(database, "staging", dsn=restricted)
    sink.validate(SCHEMA)
    committable = write(sink, context(), words(1))
    database.run("REVOKE INSERT ON words FROM limited")
    with pytest.raises(PostgresError, match=r"SQLSTATE 42501.*GRANT the missing right.*start again") as caught:
        sink.commit(committable)
    assert "delete" not in str(caught.value)
    database.run("GRANT INSERT ON words TO limited")
    assert sink.commit(committable).status is CommitStatus.COMMITTED


def test_a_wrong_password_is_a_clear_error_without_it(database: Database) -> None:
    dsn = psycopg.conninfo.make_conninfo(database.dsn, password="not the right one")
    with pytest.raises(PostgresError, match="password authentication failed") as caught:
        make_sink(database, dsn=dsn).validate(SCHEMA)
    assert "not the right one" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"password": ""}, "no password supplied"),
        ({"dbname": "nowhere"}, 'database "nowhere" does not exist'),
        ({"host": "127.0.0.1,127.0.0.1", "password": "wrong"}, "password authentication failed"),
        ({"options": "-c nonsense=1"}, 'unrecognized configuration parameter "nonsense"'),
        ({"sslmode": "require"}, "server does not support SSL, but SSL was required"),
    ],
)
def test_a_login_that_is_refused_does_not_pass_by_itself(database: Database, change: dict[str, str], says: str) -> None:
    with pytest.raises(PostgresError, match=says):
        make_sink(database, dsn=psycopg.conninfo.make_conninfo(database.dsn, **change)).validate(SCHEMA)


def test_many_processes_may_create_the_ledger_at_once(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: make_sink(database, "staging").validate(SCHEMA), range(8)))
        list(pool.map(lambda n: write(make_sink(database, "staging"), context(subtask=n), words(10 * n)), range(8)))
    assert database.staged() == 8
