"""Commit and abort in databases, without a server: what each answer of one proves, in which order, and how durably."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from psycopg import sql
from psycopg.pq import TransactionStatus
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql as postgresql_dialect

from onceward.connectors.database import retry
from onceward.connectors.database.epochs import epoch_by_epoch
from onceward.connectors.database.postgres import connections, merging, prepared, states
from onceward.connectors.database.postgres.connections import give_back
from onceward.connectors.database.postgres.failures import may_pass
from onceward.connectors.database.postgres.ledger import Ledger
from onceward.connectors.database.postgres.listing import PREPARED, STAGED
from onceward.connectors.database.postgres.sink import PostgresSink
from onceward.connectors.database.postgres.staging import StagedWriting
from onceward.connectors.database.retry import retry_until_known
from onceward.connectors.database.sql import ledger, own_tables
from onceward.connectors.database.sql import prepared as sql_prepared
from onceward.connectors.database.sql import target as sql_target
from onceward.connectors.database.sql.dialect import Answer
from onceward.connectors.database.sql.engines import transaction
from onceward.connectors.database.sql.failures import may_pass as sql_may_pass
from onceward.connectors.database.sql.mariadb import XaTransactions
from onceward.connectors.database.sql.postgresql import GidTransactions, PostgreSql
from onceward.connectors.database.sql.sink import SqlAlchemySink
from onceward.connectors.database.sql.sqlite import Sqlite
from onceward.connectors.database.sql.xids import Xid
from onceward.connectors.database.verdict import Facts
from onceward.core.errors import ConfigurationError, EpochConflictError, PostgresError, RetryableSinkError, SqlError
from onceward.core.names import Scope, TransactionName
from onceward.core.transaction import (
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    Progress,
    WriteContext,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SCOPE = Scope("orders", "words", "0123abcd")
NAME = TransactionName(SCOPE, 3, 1, 0, 0, "0a0b0c0d")
CONTEXT = WriteContext(pipeline="orders", sink="words", log="0123abcd", writer=3, epoch=1, subtask=0)
LATER = CommitStatus.RETRY_LATER
BUSY, GONE, ELSEWHERE = "55000", "42704", "0A000"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "RETRY_SECONDS", 0.1)


# Several epochs, several rounds


def of_epoch(epoch: int, subtask: int = 0) -> Committable:
    return Committable.named("k", NAME._replace(epoch=epoch, subtask=subtask))


def test_24_epochs_are_committed_in_their_order_whatever_order_they_come_in() -> None:
    asked: list[list[int]] = []

    def commit(epoch: list[Committable]) -> list[CommitOutcome]:
        asked.append([c.epoch for c in epoch])
        return [CommitOutcome(CommitStatus.COMMITTED, str(c.epoch)) for c in epoch]

    answers = epoch_by_epoch([of_epoch(7), of_epoch(5), of_epoch(7, 1), of_epoch(6)], commit)
    assert asked == [[5], [6], [7, 7]]
    assert [answer.detail for answer in answers] == ["7", "5", "7", "6"]


def test_24_what_comes_behind_an_epoch_that_waits_waits_too() -> None:
    """Else an upsert that comes late would overwrite a later epoch's."""
    asked: list[int] = []

    def commit(epoch: list[Committable]) -> list[CommitOutcome]:
        asked.append(epoch[0].epoch)
        return [CommitOutcome(LATER if epoch[0].epoch == 5 else CommitStatus.COMMITTED)]

    answers = epoch_by_epoch([of_epoch(4), of_epoch(5), of_epoch(6), of_epoch(7)], commit)
    assert asked == [4, 5]
    assert [answer.status for answer in answers] == [CommitStatus.COMMITTED, LATER, LATER, LATER]


def test_what_is_open_is_asked_for_again_within_its_time() -> None:
    rounds = iter([False, RetryableSinkError("cut"), True])

    def round_trip() -> bool:
        said = next(rounds)
        if isinstance(said, Exception):
            raise said
        return said

    assert retry_until_known(round_trip) == "cut"
    assert next(rounds, None) is None


@pytest.mark.parametrize("changes", [{"version": 2}, {"kind": "kafka"}])
def test_a_committable_of_another_layout_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    sink = SqlAlchemySink("words", url=f"sqlite:///{tmp_path}/db", table="words")
    strange = msgspec.structs.replace(of_epoch(1), **{"kind": sql_target.STAGED, **changes})
    for call in (sink.commit, sink.abort):
        with pytest.raises(ConfigurationError, match="is not a SqlAlchemySink's"):
            call(strange)


def test_an_abort_of_which_nothing_can_be_proven_is_not_done() -> None:
    committable = of_epoch(1)
    pruned = Facts(behind="", logs={SCOPE.log: 5}, committed=frozenset())
    assert pruned.abort_outcome(committable).status is AbortStatus.UNKNOWN
    elsewhere = Facts(behind="", logs={}, committed=frozenset())
    assert elsewhere.abort_outcome(committable).status is AbortStatus.ABORTED
    assert elsewhere.commit_outcome(committable).status is CommitStatus.UNKNOWN


# Prepared transactions through SQLAlchemy


class Scripted:
    """A database's two-phase commands with scripted answers."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.noted: list[int] = []

    def begin(self, connection: sa.Connection, name: TransactionName, lock_timeout: float) -> None:
        """The connection begins by itself."""

    def prepare(self, connection: sa.Connection, name: TransactionName) -> None:
        tables = own_tables.tables_in(None)
        query = sa.select(sa.func.count()).select_from(tables.ledger).where(tables.ledger.c.name == str(name))
        self.noted.append(connection.scalar(query) or 0)
        connection.rollback()

    def hand_over(self, connection: sa.Connection) -> None:
        connection.close()

    def commit(self, *_: object) -> tuple[Answer, str]:
        return (self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]), "the server's words"

    rollback = commit

    def waiting(self, *_: object) -> list[TransactionName]:
        return []


@pytest.fixture
def target(tmp_path: Path) -> sql_target.Target:
    """A database in which a writer of this log has written."""
    target = SqlAlchemySink("words", url=f"sqlite:///{tmp_path}/db", table="words").target
    ledger.note(target, SCOPE)
    return target


def note_committed(target: sql_target.Target) -> None:
    with transaction(target, "note") as connection:
        connection.execute(own_tables.tables_of(target).ledger.insert().values(**own_tables.identity_row(NAME, 1)))


ENDED = sql_target.make_committable(sql_target.PREPARED, NAME)


@pytest.mark.parametrize(
    ("answers", "noted", "ends"),
    [
        ([Answer.DONE], False, (CommitStatus.COMMITTED, AbortStatus.ABORTED)),
        ([Answer.BUSY], False, (LATER, AbortStatus.RETRY_LATER)),
        ([Answer.BUSY, Answer.BUSY, Answer.DONE], False, (CommitStatus.COMMITTED, AbortStatus.ABORTED)),
        ([Answer.BUSY, Answer.GONE], False, (CommitStatus.LOST, AbortStatus.ABORTED)),
        ([Answer.GONE], True, (CommitStatus.ALREADY_COMMITTED, AbortStatus.COMMITTED)),
        ([Answer.BUSY, Answer.GONE], True, (CommitStatus.ALREADY_COMMITTED, AbortStatus.COMMITTED)),
    ],
)
def test_busy_proves_nothing_and_gone_is_looked_up_in_the_ledger(
    target: sql_target.Target,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[Answer],
    noted: bool,
    ends: tuple[CommitStatus, AbortStatus],
) -> None:
    if noted:
        note_committed(target)
    monkeypatch.setattr(Sqlite, "two_phase", Scripted(*answers))
    assert sql_prepared.commit_prepared(target, [ENDED])[0].status is ends[0]
    monkeypatch.setattr(Sqlite, "two_phase", Scripted(*answers))
    assert sql_prepared.abort_prepared(target, ENDED).status is ends[1]


def test_the_ledger_row_is_in_the_transaction_that_is_prepared(
    target: sql_target.Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Scripted(Answer.DONE)
    monkeypatch.setattr(Sqlite, "two_phase", commands)
    sql_prepared.PreparedWriting(target, CONTEXT).pre_commit()
    assert commands.noted == [1]


class Asked:
    """A connection of SQLAlchemy whose driver refuses one command."""

    def __init__(self, refusal: BaseException | None = None, listed: Sequence[str] = ()) -> None:
        self.refusal, self.listed = refusal, listed
        self.said: list[str] = []
        self.status = "INTRANS"

    @property
    def connection(self) -> Any:
        info = SimpleNamespace(transaction_status=SimpleNamespace(name=self.status))
        return SimpleNamespace(dbapi_connection=SimpleNamespace(info=info))

    def exec_driver_sql(self, statement: str) -> Any:
        self.said.append(statement)
        if statement.startswith("XA RECOVER"):
            return SimpleNamespace(all=lambda: [(0, 0, 0, shown) for shown in self.listed])
        if self.refusal is not None:
            raise exc.DBAPIError(statement, None, self.refusal)
        return None

    def execute(self, statement: Any) -> None:
        compiled = statement.compile(dialect=postgresql_dialect.dialect(), compile_kwargs={"literal_binds": True})
        self.said.append(str(compiled))


def refused(state: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)("no")


@pytest.mark.parametrize(("state", "answer"), [(BUSY, Answer.BUSY), (GONE, Answer.GONE), (None, Answer.DONE)])
@pytest.mark.parametrize("command", ["commit", "rollback"])
def test_what_postgresql_says_of_a_gid(state: str | None, answer: Answer, command: str) -> None:
    connection: Any = Asked(refused(state) if state is not None else None)
    assert getattr(GidTransactions(), command)(connection, NAME)[0] is answer


def test_a_gid_of_another_database_is_not_gone() -> None:
    connection: Any = Asked(refused(ELSEWHERE))
    with pytest.raises(SqlError, match="must name the database that prepared it"):
        GidTransactions().commit(connection, NAME)


@pytest.mark.parametrize("status", ["INERROR", "IDLE"])
def test_a_transaction_that_has_failed_is_not_prepared(status: str) -> None:
    """PREPARE TRANSACTION would roll it back, and answer without an error."""
    connection: Any = Asked()
    connection.status = status
    with pytest.raises(SqlError, match="had failed"):
        GidTransactions().prepare(connection, NAME)
    assert connection.said == []


def test_rows_are_staged_and_merged_by_synchronous_commits() -> None:
    connection: Any = Asked()
    target = SqlAlchemySink("words", url="postgresql+psycopg://writer@127.0.0.1:1/shop", table="words").target
    PostgreSql().open_transaction(connection, target)
    assert any("set_config('synchronous_commit', 'on', true)" in said for said in connection.said)


@pytest.mark.parametrize(
    ("number", "listed", "answer"),
    [(1397, True, Answer.BUSY), (1397, False, Answer.GONE), (1402, True, Answer.GONE), (None, True, Answer.DONE)],
)
def test_what_mariadb_says_of_an_identifier(number: int | None, listed: bool, answer: Answer) -> None:
    """It says "unknown" of a transaction that another session holds, while it lists it."""
    xid = Xid.of(NAME)
    shown = f"X'{xid.gtrid.encode().hex()}',X'{xid.bqual.encode().hex()}',{str(xid).rpartition(',')[2]}"
    connection: Any = Asked(None if number is None else Exception(number, "no"), [shown] if listed else [])
    assert XaTransactions().commit(connection, NAME)[0] is answer


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
    assert sql_may_pass(exc.OperationalError("INSERT", None, error)) is passes
    if isinstance(error, psycopg.Error):
        assert may_pass(error) is passes


def test_a_name_of_another_sink_or_pipeline_is_not_ours() -> None:
    assert sql_target.own_name(str(NAME), "orders", "words") == NAME
    for pipeline, sink in [("orders", "word"), ("orders", "words2"), ("order", "words"), ("orders-eu", "words")]:
        assert sql_target.own_name(str(NAME), pipeline, sink) is None


# PostgreSQL through psycopg


class Server:
    """A connection of psycopg: remembers what was said to it, and refuses the end of a gid with scripted states."""

    def __init__(self, *states: str | None) -> None:
        self.states = list(states)
        self.said: list[str] = []
        self.committed: list[str] = []
        self.waiting: list[str] = []
        self.standby = False
        self.prepared_as = "PREPARE TRANSACTION"
        self.closed = False

    def execute(self, statement: str | sql.Composable, parameters: Any = None) -> Any:  # noqa: ARG002
        said = statement if isinstance(statement, str) else statement.as_string()
        self.said.append(" ".join(said.split()))
        if said.startswith(("COMMIT PREPARED", "ROLLBACK PREPARED")):
            state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
            if state is not None:
                raise refused(state)
        rows = self._rows(said)
        status = self.prepared_as if said.startswith("PREPARE") else ""
        return SimpleNamespace(fetchone=lambda: rows[0], fetchall=lambda: rows, statusmessage=status)

    def _rows(self, said: str) -> list[Any]:
        if "pg_is_in_recovery" in said:
            return [(self.standby, {SCOPE.log: -1}, self.committed)]
        if "pg_prepared_xacts" in said:
            return [(gid,) for gid in self.waiting]
        return [(True,)] if "to_regclass" in said else []

    def pipeline(self) -> Any:
        return nullcontext()

    transaction = pipeline


def serve(monkeypatch: pytest.MonkeyPatch, server: Server) -> Any:
    """The target of a sink whose connections are all this one."""

    @contextmanager
    def borrowed(*_: object, **__: object) -> Iterator[Server]:
        yield server

    for module in (prepared, merging, states):
        monkeypatch.setattr(module, "borrowed", borrowed)
    return PostgresSink("words", dsn="postgresql://writer@127.0.0.1:1/shop", table="words").target


WAITING = Committable.named(PREPARED, NAME)


@pytest.mark.parametrize(
    ("answers", "noted", "commit", "abort"),
    [
        ([None], False, CommitStatus.COMMITTED, AbortStatus.ABORTED),
        ([BUSY], False, LATER, AbortStatus.RETRY_LATER),
        ([BUSY, BUSY, None], False, CommitStatus.COMMITTED, AbortStatus.ABORTED),
        ([BUSY, GONE], False, CommitStatus.LOST, AbortStatus.ABORTED),
        ([GONE], True, CommitStatus.ALREADY_COMMITTED, AbortStatus.COMMITTED),
        (["57P01", None], False, CommitStatus.COMMITTED, AbortStatus.ABORTED),
    ],
)
def test_55000_proves_nothing_and_42704_is_looked_up_in_the_ledger(
    monkeypatch: pytest.MonkeyPatch, answers: list[str | None], noted: bool, commit: CommitStatus, abort: AbortStatus
) -> None:
    """In 1,500 races of two committers 1,466 losers were told "busy", some of them before the ledger's row showed."""

    def server() -> Any:
        made = Server(*answers)
        made.committed = [str(NAME)] if noted else []
        return serve(monkeypatch, translated(made))

    assert prepared.commit_prepared(server(), [WAITING])[0].status is commit
    assert prepared.abort_prepared(server(), WAITING).status is abort


def translated(server: Server) -> Any:
    """With what may pass as the error that `borrowed` makes of it."""
    execute = server.execute

    def ask(*arguments: Any) -> Any:
        try:
            return execute(*arguments)
        except psycopg.Error as error:
            if may_pass(error):
                raise RetryableSinkError("cut") from error
            raise

    server.execute = ask  # type: ignore[method-assign]
    return server


def test_a_standbys_ledger_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(GONE)
    server.standby = True
    [outcome] = prepared.commit_prepared(serve(monkeypatch, server), [WAITING])
    assert outcome.status is LATER


def test_a_gid_of_another_database_of_the_server_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PostgresError, match="must name the database that prepared it"):
        prepared.commit_prepared(serve(monkeypatch, Server(ELSEWHERE)), [WAITING])


def writing(kind: Any, target: Any, server: Server) -> Any:
    """An attempt whose transaction is open on this connection."""
    made = kind.__new__(kind)
    made.target, made.context, made.name, made.copy, made._held = target, CONTEXT, NAME, None, server
    return made


@pytest.mark.parametrize("answer", ["ROLLBACK", ""])
def test_a_rollback_is_not_taken_for_prepared(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    server = Server()
    attempt = writing(prepared.PreparedWriting, serve(monkeypatch, server), server)
    assert attempt.make_durable(1).transaction == str(NAME)
    assert [said.split(" ")[0] for said in server.said] == ["INSERT", "PREPARE"]
    server.prepared_as = answer
    with pytest.raises(PostgresError, match="had failed"):
        attempt.make_durable(1)


def test_staged_rows_are_committed_synchronously(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    attempt = writing(StagedWriting, serve(monkeypatch, server), server)
    attempt.make_durable(0)
    durable, insert, commit = server.said
    assert "set_config('synchronous_commit', 'on', true)" in durable
    assert insert.startswith('INSERT INTO "onceward".staged')
    assert commit == "COMMIT"


def test_a_merge_is_one_synchronous_transaction_with_its_ledger_row(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    merging.commit_staged(serve(monkeypatch, server), [Committable.named(STAGED, NAME)])
    [durable] = [number for number, said in enumerate(server.said) if "'synchronous_commit', 'on'" in said]
    [taken] = [number for number, said in enumerate(server.said) if "DELETE FROM" in said]
    assert durable < taken
    assert 'INSERT INTO "onceward".ledger' in server.said[taken]
    assert "FOR UPDATE" in server.said[taken]


def test_an_abort_of_staged_rows_leaves_no_ledger_row(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    merging.abort_staged(serve(monkeypatch, server), Committable.named(STAGED, NAME))
    assert any("DELETE FROM" in said for said in server.said)
    assert not any("INSERT INTO" in said for said in server.said)


def test_a_commit_between_two_questions_does_not_look_like_an_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is prepared is asked for first, and the ledger afterwards."""
    server = Server()
    server.waiting = [str(NAME)]
    execute = server.execute

    def then_committed(*arguments: Any) -> Any:
        answer = execute(*arguments)
        if "pg_prepared_xacts" in server.said[-1] or "pg_is_in_recovery" in server.said[-1]:
            server.waiting, server.committed = [], [str(NAME)]
        return answer

    server.execute = then_committed  # type: ignore[method-assign]
    [state] = states.inspect(serve(monkeypatch, server), [WAITING])
    assert state in (Observation.PREPARED, Observation.COMMITTED)


@pytest.mark.parametrize(
    ("status", "kept"),
    [(TransactionStatus.IDLE, 1), (TransactionStatus.INTRANS, 0), (TransactionStatus.INERROR, 0)],
)
def test_a_connection_in_a_transaction_is_not_lent_again(
    monkeypatch: pytest.MonkeyPatch, status: TransactionStatus, kept: int
) -> None:
    monkeypatch.setattr(connections, "_pool", connections._Pool())
    closed: list[bool] = []
    connection: Any = SimpleNamespace(
        closed=False, info=SimpleNamespace(transaction_status=status), close=lambda: closed.append(True)
    )
    dsn: Any = SimpleNamespace(secret_text=lambda: "dsn")
    give_back(dsn, connection)
    assert len(connections._own_pool().idle.get("dsn", [])) == kept
    assert len(closed) == 1 - kept
    connections._own_pool().idle.clear()


# Whose the names are

OTHER = SCOPE._replace(log="ffff0000")


def test_of_two_logs_that_claim_at_once_the_second_one_is_told(
    target: sql_target.Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that nobody owns the names."""
    insert = ledger._insert

    def comes_second(target: Any, table: Any, scope: Scope, there: Any) -> None:
        insert(target, table, OTHER, there)
        insert(target, table, scope, there)

    monkeypatch.setattr(ledger, "_insert", comes_second)
    with pytest.raises(EpochConflictError, match="ffff0000"):
        ledger.claim(target, SCOPE)


class Owned(Server):
    """A ledger that says whose the names are, and how far their log had come."""

    def __init__(self, *owners: str | None, progress: tuple[int, int] | None = None) -> None:
        super().__init__(None)
        self.owners, self.progress, self.rowcount = list(owners), progress, 0

    def execute(self, statement: str | sql.Composable, parameters: Any = None) -> Any:
        answer = super().execute(statement, parameters)
        answer.rowcount = self.rowcount
        return answer

    def _rows(self, said: str) -> list[Any]:
        if "SELECT coalesce(" in said:
            return [(self.owners.pop(0), True)]
        return [self.progress] if "SELECT writer, epoch" in said else super()._rows(said)


@pytest.mark.parametrize(("owners", "refused_as"), [((None, OTHER.log), OTHER.log), ((None, SCOPE.log), None)])
def test_of_two_logs_that_claim_at_once_the_second_one_is_told_by_postgresql(
    owners: tuple[str | None, ...], refused_as: str | None
) -> None:
    connection: Any = Owned(*owners)
    with nullcontext() if refused_as is None else pytest.raises(EpochConflictError, match=refused_as):
        Ledger().claim(connection, SCOPE)


@pytest.mark.parametrize(
    ("known", "newest", "outdated"),
    [(None, (-1, -1), False), ((3, 7), (3, 7), False), ((3, 7), (3, 6), True), ((5, 2), (3, 7), True)],
    ids=["nothing", "the same", "an epoch behind", "from before a rewind"],
)
def test_h_a_log_that_knows_less_than_postgresqls_ledger_is_refused(
    known: tuple[int, int] | None, newest: tuple[int, int], outdated: bool
) -> None:
    connection: Any = Owned(SCOPE.log, progress=known)
    with pytest.raises(EpochConflictError, match="outdated copy") if outdated else nullcontext():
        Ledger().check(connection, SCOPE, Progress(*newest))


# Housekeeping


def test_a_completed_epochs_ledger_row_is_kept_for_as_many_epochs_as_was_said(tmp_path: Path) -> None:
    sink = SqlAlchemySink("words", url=f"sqlite:///{tmp_path}/db", table="words", create_table=True, ledger_epochs=3)
    rows = pa.RecordBatch.from_pydict({"n": [1]})
    for epoch in (96, 97, 98, 99, 100):
        attempt = sink.begin(msgspec.structs.replace(CONTEXT, epoch=epoch))
        sink.write(attempt, rows)
        sink.commit(sink.pre_commit(attempt))
    sink.completed(SCOPE, 100)
    with transaction(sink.target, "look") as connection:
        found = connection.scalars(sa.select(own_tables.tables_of(sink.target).ledger.c.epoch)).all()
    assert sorted(found) == [98, 99, 100]
