"""Commit and abort in databases, without a server: what each answer of one proves, in which order, and how durably."""

from __future__ import annotations

import pickle
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from onceward.connectors.database import ledger_tables
from onceward.connectors.database.batched_inserts import InsertWriting
from onceward.connectors.database.dialect import TwoPhaseAnswer
from onceward.connectors.database.engines import transaction
from onceward.connectors.database.failures import may_pass, translate
from onceward.connectors.database.ledger_tables import LedgerFacts
from onceward.connectors.database.loader import Movement
from onceward.connectors.database.mariadb import XaTransactions, Xid
from onceward.connectors.database.own_tables import identity_row, tables_of
from onceward.connectors.database.postgres.dialect import GidTransactions, PostgreSql
from onceward.connectors.database.postgres.loader import StagingWriting
from onceward.connectors.database.prepared import abort_prepared, commit_prepared
from onceward.connectors.database.sink import PostgresSink, SqlAlchemySink
from onceward.connectors.database.sqlite import Sqlite
from onceward.connectors.database.target import PREPARED, STAGED, DatabaseTarget, TableName, own_name
from onceward.core.contract.names import Scope, TransactionName
from onceward.core.contract.transaction import (
    AbortStatus,
    CommitStatus,
    Committable,
    Observation,
    WriteContext,
)
from onceward.core.errors import ConfigurationError, EpochConflictError, PostgresError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SCOPE = Scope("orders", "words", "0123abcd")
NAME = TransactionName(SCOPE, 3, 1, 0, 0, "0a0b0c0d")
CONTEXT = WriteContext(pipeline="orders", sink="words", log="0123abcd", generation=3, epoch=1, subtask=0)
LATER = CommitStatus.RETRY_LATER
BUSY, GONE, ELSEWHERE = "55000", "42704", "0A000"


def of_epoch(epoch: int) -> Committable:
    return Committable.named("k", NAME._replace(epoch=epoch))


@pytest.mark.parametrize("changes", [{"version": 2}, {"kind": "kafka"}])
def test_a_committable_of_another_layout_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    sink = SqlAlchemySink("words", url=f"sqlite:///{tmp_path}/db", table="words")
    strange = msgspec.structs.replace(of_epoch(1), **{"kind": STAGED, **changes})
    for call in (sink.commit, sink.abort):
        with pytest.raises(ConfigurationError, match="is not a SqlAlchemySink's"):
            call(strange)


def test_an_abort_of_which_nothing_can_be_proven_is_not_done() -> None:
    committable = of_epoch(1)
    pruned = LedgerFacts(behind="", logs={SCOPE.log: 5}, committed=frozenset())
    assert pruned.abort_outcome(committable).status is AbortStatus.UNKNOWN
    elsewhere = LedgerFacts(behind="", logs={}, committed=frozenset())
    assert elsewhere.abort_outcome(committable).status is AbortStatus.ABORTED
    assert elsewhere.commit_outcome(committable).status is CommitStatus.UNKNOWN


# Prepared transactions through SQLAlchemy


class Scripted:
    """A database's two-phase commands with scripted answers."""

    def __init__(self, *answers: TwoPhaseAnswer | Exception) -> None:
        self.answers = list(answers)
        self.doubt = ""
        self.noted: list[int] = []

    def begin(self, connection: sa.Connection, _: object, __: object, question: sa.Select[Any], of: Scope) -> Any:
        """The connection begins by itself."""
        return connection.execute(question, of._asdict()).one()

    def prepare(self, connection: sa.Connection, name: TransactionName, insert: Any, row: dict[str, Any]) -> None:
        self.noted.append(row["name"] == str(name) and insert.table.name == "onceward_ledger")
        connection.rollback()
        connection.close()

    def end(self, *_: object) -> tuple[TwoPhaseAnswer, str]:
        said = self.answers.pop(0)
        if isinstance(said, Exception):
            raise said
        return said, "the server's words"

    def unconfirmed(self, _: object) -> str:
        return self.doubt

    def waiting(self, *_: object) -> list[TransactionName]:
        return []


@pytest.fixture
def target(tmp_path: Path) -> DatabaseTarget:
    """A database in which a writer of this log has written."""
    target = SqlAlchemySink("words", url=f"sqlite:///{tmp_path}/db", table="words").target
    ledger_tables.note_writer(target, SCOPE)
    return target


def note_committed(target: DatabaseTarget) -> None:
    with transaction(target, "note") as connection:
        connection.execute(tables_of(target).ledger.insert().values(**identity_row(NAME, 1)))


ENDED = Committable.named(PREPARED, NAME)
CUT = exc.OperationalError("COMMIT", None, psycopg.errors.AdminShutdown("cut"))


@pytest.mark.parametrize(
    ("answer", "noted", "ends"),
    [
        (TwoPhaseAnswer.DONE, False, (CommitStatus.COMMITTED, AbortStatus.ABORTED)),
        (TwoPhaseAnswer.BUSY, False, (LATER, AbortStatus.RETRY_LATER)),
        (TwoPhaseAnswer.BUSY, True, (LATER, AbortStatus.RETRY_LATER)),
        (CUT, True, (LATER, AbortStatus.RETRY_LATER)),
        (TwoPhaseAnswer.GONE, False, (CommitStatus.LOST, AbortStatus.ABORTED)),
        (TwoPhaseAnswer.GONE, True, (CommitStatus.ALREADY_COMMITTED, AbortStatus.COMMITTED)),
    ],
)
def test_busy_proves_nothing_and_gone_is_looked_up_in_the_ledger(
    target: DatabaseTarget,
    monkeypatch: pytest.MonkeyPatch,
    answer: TwoPhaseAnswer | Exception,
    noted: bool,
    ends: tuple[CommitStatus, AbortStatus],
) -> None:
    """In 1,500 races of two committers 1,466 losers were told "busy", some of them before the ledger's row showed."""
    if noted:
        note_committed(target)
    monkeypatch.setattr(Sqlite, "two_phase", Scripted(answer))
    assert commit_prepared(target, [ENDED])[0].status is ends[0]
    monkeypatch.setattr(Sqlite, "two_phase", Scripted(answer))
    assert abort_prepared(target, ENDED).status is ends[1]


def test_what_is_committed_and_not_confirmed_is_asked_for_again(
    target: DatabaseTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_committed(target)
    script = Scripted(TwoPhaseAnswer.GONE, TwoPhaseAnswer.GONE)
    script.doubt = "canceling wait for synchronous replication"
    monkeypatch.setattr(Sqlite, "two_phase", script)
    [outcome] = commit_prepared(target, [ENDED])
    assert (outcome.status, outcome.detail) == (LATER, f"committed here, but not confirmed: {script.doubt}")
    script.doubt = ""
    assert commit_prepared(target, [ENDED])[0].status is CommitStatus.ALREADY_COMMITTED


def test_what_was_answered_before_a_cut_stays_answered_and_nothing_is_asked_twice(
    target: DatabaseTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Scripted(TwoPhaseAnswer.DONE, CUT, TwoPhaseAnswer.DONE)
    monkeypatch.setattr(Sqlite, "two_phase", script)
    committables = [Committable.named(PREPARED, NAME._replace(subtask=n)) for n in range(3)]
    statuses = [outcome.status for outcome in commit_prepared(target, committables)]
    assert statuses == [CommitStatus.COMMITTED, LATER, LATER]
    assert script.answers == [TwoPhaseAnswer.DONE]


def test_the_ledger_row_is_in_the_transaction_that_is_prepared(
    target: DatabaseTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Scripted(TwoPhaseAnswer.DONE)
    monkeypatch.setattr(Sqlite, "two_phase", commands)
    InsertWriting(target, CONTEXT).pre_commit()
    assert commands.noted == [1]


def test_a_standbys_ledger_proves_nothing(target: DatabaseTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sqlite, "two_phase", Scripted(TwoPhaseAnswer.GONE))
    monkeypatch.setattr(Sqlite, "behind", lambda *_: "lags")
    assert commit_prepared(target, [ENDED])[0].status is LATER


def test_a_commit_between_two_questions_does_not_look_like_an_abort(
    target: DatabaseTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is prepared is asked for first, and the ledger afterwards."""
    commands = Scripted()
    monkeypatch.setattr(Sqlite, "two_phase", commands)
    waiting = [NAME]

    def then_committed(*_: object) -> list[TransactionName]:
        found = list(waiting)
        waiting.clear()
        note_committed(target)
        return found

    facts = ledger_tables.facts

    def then_prepared_no_more(*arguments: Any) -> LedgerFacts:
        found = facts(*arguments)
        if waiting:
            waiting.clear()
            note_committed(target)
        return found

    commands.waiting = then_committed  # type: ignore[method-assign]
    monkeypatch.setattr(ledger_tables, "facts", then_prepared_no_more)
    [seen] = SqlAlchemySink("words", url=target.url.parsed, table="words").inspect_many([ENDED])
    assert seen in (Observation.PREPARED, Observation.COMMITTED)


class Asked:
    """A connection of SQLAlchemy over one of psycopg; the driver refuses one command."""

    def __init__(self, refusal: BaseException | None = None, listed: Sequence[str] = (), prepared: str = "") -> None:
        self.refusal, self.listed = refusal, listed
        self.status = prepared or "PREPARE TRANSACTION"
        self.said: list[str] = []
        self.invalidated = False
        self.dialect = None
        self.warnings: list[str] = []
        self.handlers: list[Any] = []
        lent = SimpleNamespace(
            closed=False,
            execute=self.execute,
            pipeline=nullcontext,
            add_notice_handler=self.handlers.append,
            remove_notice_handler=self.handlers.remove,
        )
        self.connection = SimpleNamespace(driver_connection=lent)
        self.engine = SimpleNamespace(connect=lambda: nullcontext(self))

    def exec_driver_sql(self, statement: str) -> Any:
        self.said.append(statement)
        if statement.startswith("XA RECOVER"):
            return SimpleNamespace(all=lambda: [(0, 0, 0, shown) for shown in self.listed])
        if self.refusal is not None:
            raise exc.DBAPIError(statement, None, self.refusal)
        for severity, words in [("NOTICE", "of no matter"), *(("WARNING", words) for words in self.warnings)]:
            told = SimpleNamespace(severity_nonlocalized=severity, message_primary=words, message_detail=None)
            for handler in self.handlers:
                handler(told)
        return None

    def execute(self, statement: Any, *_: object) -> Any:
        said = statement.decode() if isinstance(statement, bytes) else str(statement)
        self.said.append(said)
        status = self.status if said.startswith("PREPARE") else "INSERT 0 1"
        return SimpleNamespace(statusmessage=status, first=lambda: None)

    def invalidate(self) -> None:
        self.invalidated = True

    def close(self) -> None:
        pass


def refused(state: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)("no")


@pytest.mark.parametrize(
    ("state", "answer"), [(BUSY, TwoPhaseAnswer.BUSY), (GONE, TwoPhaseAnswer.GONE), (None, TwoPhaseAnswer.DONE)]
)
@pytest.mark.parametrize("command", ["COMMIT", "ROLLBACK"])
def test_what_postgresql_says_of_a_gid(state: str | None, answer: TwoPhaseAnswer, command: str) -> None:
    connection: Any = Asked(refused(state) if state is not None else None)
    assert GidTransactions().end(connection, command, NAME)[0] is answer


@pytest.mark.parametrize("command", ["COMMIT", "ROLLBACK"])
def test_a_commit_with_a_warning_is_asked_for_again(command: str) -> None:
    """Visible is not replicated: the wait for the synchronous standby was cut short."""
    connection: Any = Asked()
    connection.warnings = ["canceling wait for synchronous replication due to user request"]
    answer, words = GidTransactions().end(connection, command, NAME)
    assert answer is TwoPhaseAnswer.BUSY
    assert "canceling wait" in words
    assert connection.handlers == []
    assert "canceling wait" in GidTransactions().unconfirmed(connection)
    connection.warnings = []
    assert GidTransactions().unconfirmed(connection) == ""


def test_a_gid_of_another_database_is_not_gone() -> None:
    connection: Any = Asked(refused(ELSEWHERE))
    with pytest.raises(PostgresError, match="must name the database that prepared it"):
        GidTransactions().end(connection, "COMMIT", NAME)


POSTGRES = PostgresSink("words", dsn="postgresql://writer@127.0.0.1:1/shop", table="words").target


@pytest.mark.parametrize("answer", ["ROLLBACK", "COMMIT"])
def test_a_rollback_is_not_taken_for_prepared(answer: str) -> None:
    """PREPARE TRANSACTION of a transaction that has failed rolls it back, and answers without an error."""
    insert, row = tables_of(POSTGRES).ledger.insert(), identity_row(NAME, 1)
    connection: Any = Asked()
    GidTransactions().prepare(connection, NAME, insert, row)
    assert [said.split(" ")[0] for said in connection.said] == ["INSERT", "PREPARE"]
    assert connection.said[0].startswith("INSERT INTO onceward.ledger")
    connection.status = answer
    with pytest.raises(PostgresError, match="had failed"):
        GidTransactions().prepare(connection, NAME, insert, row)


def test_mariadbs_ledger_row_is_in_the_transaction_that_is_prepared() -> None:
    connection: Any = Asked()
    XaTransactions().prepare(connection, NAME, tables_of(POSTGRES).ledger.insert(), identity_row(NAME, 1))
    assert [said.split(" ")[0] for said in connection.said] == ["INSERT", "SET", "XA", "XA", "SELECT"]
    assert connection.said[-2].startswith("XA PREPARE")
    assert "processlist" in connection.said[-1]  # while the session ends, a commit is answered, and does nothing
    assert connection.invalidated  # else nobody else could end it


def test_rows_are_merged_by_synchronous_commits() -> None:
    connection: Any = Asked()
    PostgreSql().open_transaction(connection, POSTGRES.access)
    assert any("set_config('synchronous_commit', 'on', true)" in said for said in connection.said)


def test_staged_rows_are_committed_synchronously() -> None:
    connection: Any = Asked()
    attempt = StagingWriting.__new__(StagingWriting)
    attempt.target, attempt.context, attempt.name, attempt.rows, attempt.held = POSTGRES, CONTEXT, NAME, 0, connection
    attempt.make_durable()
    durable, insert, commit = connection.said
    assert "set_config('synchronous_commit', 'on', true)" in durable
    assert insert.startswith("INSERT INTO onceward.staged")
    assert commit == "COMMIT"


@pytest.mark.parametrize(
    ("number", "listed", "answer"),
    [
        (1397, True, TwoPhaseAnswer.BUSY),
        (1397, False, TwoPhaseAnswer.GONE),
        (1402, True, TwoPhaseAnswer.GONE),
        (None, True, TwoPhaseAnswer.DONE),
    ],
)
def test_what_mariadb_says_of_an_identifier(number: int | None, listed: bool, answer: TwoPhaseAnswer) -> None:
    """It says "unknown" of a transaction that another session holds, while it lists it."""
    xid = Xid.of(NAME)
    shown = f"X'{xid.gtrid.encode().hex()}',X'{xid.bqual.encode().hex()}',{str(xid).rpartition(',')[2]}"
    connection: Any = Asked(None if number is None else Exception(number, "no"), [shown] if listed else [])
    assert XaTransactions().end(connection, "COMMIT", NAME)[0] is answer


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (refused("40P01"), True),
        (refused("40001"), True),
        (refused("55P03"), True),
        (refused("25006"), True),
        (refused("57P01"), True),
        (refused("53300"), True),
        (refused("23505"), False),
        (refused("42501"), False),
        (Exception(1205, "lock wait"), True),
        (Exception(1213, "deadlock"), True),
        (Exception(2013, "lost connection"), True),
        (Exception(1062, "duplicate"), False),
        (Exception(1054, "unknown column"), False),
    ],
)
def test_what_may_pass_by_itself_is_told_from_what_will_not(error: Exception, passes: bool) -> None:
    assert may_pass(exc.OperationalError("INSERT", None, error)) is passes


FAILED = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
DOWN = FAILED + "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?"
WRONG = FAILED + 'FATAL:  password authentication failed for user "dev"'


def several(**attempts: str) -> str:
    found = "".join(f"\n- host: '{host}', port: '5432': {said}" for host, said in attempts.items())
    return f"{DOWN}\nMultiple connection attempts failed. All failures were:{found}"


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        (DOWN, True),
        (FAILED + "FATAL:  the database system is starting up", True),
        (FAILED + "FATAL:  sorry, too many clients already", True),
        (FAILED + 'FATAL:  database "shop" is not currently accepting connections', True),
        ("connection is bad: could not translate host name", True),
        (WRONG, False),
        (FAILED + 'FATAL:  role "dev" does not exist', False),
        (FAILED + 'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "dev", database "shop"', False),
        (several(a=DOWN, b=WRONG), True),
        (several(a=WRONG, b=WRONG), False),
        (several(a=DOWN) + f"\n- host: 'a', port: '5432': {WRONG}", False),
    ],
)
def test_a_server_that_refuses_a_login_is_told_from_one_that_is_down(said: str, passes: bool) -> None:
    """Of several hosts each must refuse; of one name's addresses, one is enough."""
    assert may_pass(exc.OperationalError(None, None, psycopg.OperationalError(said))) is passes


@pytest.mark.parametrize(
    ("state", "says", "of_rows"),
    [
        ("42501", "GRANT", False),
        ("23505", "delete the rows", True),
        ("23503", "insert the rows that they refer to", True),
        ("23514", "create a partition", True),
        ("22012", "generated column", True),
        ("42P01", "create again", False),
        ("XX000", "change the table", False),
    ],
)
def test_the_advice_after_a_merge_that_was_refused_fits_its_reason(state: str, says: str, of_rows: bool) -> None:
    error = translate(exc.DBAPIError("INSERT", None, refused(state)), "cannot merge", POSTGRES)
    assert isinstance(error, PostgresError)
    assert says in error.remedy
    assert error.of_rows is of_rows
    assert pickle.loads(pickle.dumps(error)).remedy == error.remedy


def test_a_name_of_another_sink_or_pipeline_is_not_ours() -> None:
    assert own_name(str(NAME), "orders", "words") == NAME
    for pipeline, sink in [("orders", "word"), ("orders", "words2"), ("order", "words"), ("orders-eu", "words")]:
        assert own_name(str(NAME), pipeline, sink) is None


# Whose the names are

OTHER = SCOPE._replace(log="ffff0000")


def test_of_two_logs_that_claim_at_once_the_second_one_is_told(
    target: DatabaseTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that nobody owns the names."""
    insert = ledger_tables._insert

    def comes_second(target: Any, table: Any, scope: Scope, there: Any) -> None:
        insert(target, table, OTHER, there)
        insert(target, table, scope, there)

    monkeypatch.setattr(ledger_tables, "_insert", comes_second)
    with pytest.raises(EpochConflictError, match="ffff0000"):
        ledger_tables.claim(target, SCOPE)


def test_what_is_noted_of_staged_rows_fits_into_a_column_of_any_character_set() -> None:
    movement = Movement(TableName(None, "таблица"), ("ключ",), ("größe",), 7)
    assert movement.noted().isascii()
    assert msgspec.json.decode(movement.noted(), type=Movement) == movement


# Housekeeping


def test_a_completed_epochs_ledger_row_is_kept_for_as_many_epochs_as_was_said(tmp_path: Path) -> None:
    sink = SqlAlchemySink("words", url=f"sqlite:///{tmp_path}/db", table="words", create_table=True, ledger_epochs=3)
    rows = pa.RecordBatch.from_pydict({"n": [1]})
    for epoch in (96, 97, 98, 99, 100):
        attempt = sink.begin(msgspec.structs.replace(CONTEXT, epoch=epoch))
        sink.write(attempt, rows)
        sink.commit(sink.pre_commit(attempt))
    sink.ledger().completed(SCOPE, 100)
    with transaction(sink.target, "look") as connection:
        found = connection.scalars(sa.select(tables_of(sink.target).ledger.c.epoch)).all()
    assert sorted(found) == [98, 99, 100]
