"""Writing by prepared transaction: COPY into the table itself, PREPARE TRANSACTION, COMMIT PREPARED by name.

Why a commit by name is exactly once:

1. The gid is never used twice (invariant 1 would not survive it: COMMIT PREPARED takes whatever the name holds).
2. The ledger row is written in the same transaction, so it is visible exactly if the data is.
3. The server removes a gid only after the transaction's rows are visible or gone. So "does not exist" followed by
   a look into the ledger with a fresh snapshot is the truth; "busy" is not, and is asked again.
4. A lost answer is resolved by saying COMMIT PREPARED again: that is harmless because of 1, and asks because of 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from onceward.core.errors import PostgresError
from onceward.core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus

from ..retry import retry_until_known
from .connections import borrowed
from .copy_writer import CopyWriter
from .failures import NOT_READY, OTHER_DATABASE, UNDEFINED_OBJECT, server_words
from .listing import PREPARED
from .plan import plan_copy
from .target import make_committable
from .writing import Writing

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from onceward.core.transaction import Committable

    from ..verdict import Facts
    from .connections import Connection
    from .target import Target

_AT_ONCE: Final = 32
"""Statements on one borrowed connection, whose time for answers is limited as a whole."""


class PreparedWriting(Writing):
    """One attempt's transaction, which ends as a prepared one."""

    def open_copy(self, schema: pa.Schema) -> CopyWriter:
        """COPY into the table itself."""
        table = self.lock_and_read(schema)
        return CopyWriter(self.connection, sql.Identifier(table.schema, table.name), plan_copy(schema, table))

    def make_durable(self, rows: int) -> Committable:
        """Write the ledger row and prepare: one round trip."""
        insert = self.target.ledger.query(
            "INSERT INTO {schema}.ledger (gid, pipeline, sink, log, writer, epoch, subtask, attempt, rows)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
        )
        name = self.name
        row = [str(name), *name.scope, name.start, name.epoch, name.subtask, name.attempt, rows]
        prepare = sql.SQL("PREPARE TRANSACTION {}").format(sql.Literal(str(name)))
        with self.connection.pipeline():
            self.connection.execute(insert, row)
            answer = self.connection.execute(prepare)
        if answer.statusmessage != "PREPARE TRANSACTION":
            raise PostgresError(f"PREPARE TRANSACTION answered {answer.statusmessage!r}: the transaction had failed")
        return make_committable(PREPARED, name, rows)


def commit_prepared(target: Target, committables: Sequence[Committable]) -> list[CommitOutcome]:
    """Commit each; asks again for a short while where the answer was "busy" or lost.

    Raises:
        PostgresError: The server refuses for a reason that asking again does not change.
    """
    outcomes: dict[str, CommitOutcome] = {}

    def round_trip() -> bool:
        waiting = [c for c in committables if not _settled(outcomes.get(c.transaction))]
        for start in range(0, len(waiting), _AT_ONCE):
            with borrowed(target.dsn, "cannot commit", answer_within=target.answer_within) as connection:
                for committable in waiting[start : start + _AT_ONCE]:
                    outcomes[committable.transaction] = _commit_once(connection, target, committable)
        return all(_settled(outcomes.get(c.transaction)) for c in committables)

    words = retry_until_known(round_trip)
    unanswered = CommitOutcome(CommitStatus.RETRY_LATER, words)
    return [outcomes.get(c.transaction, unanswered) for c in committables]


def _settled(outcome: CommitOutcome | None) -> bool:
    return outcome is not None and outcome.status is not CommitStatus.RETRY_LATER


def _commit_once(connection: Connection, target: Target, committable: Committable) -> CommitOutcome:
    answer = _end(connection, "COMMIT PREPARED {}", committable)
    if answer is None:
        return CommitOutcome(CommitStatus.COMMITTED)
    if answer.sqlstate == NOT_READY:
        return CommitOutcome(CommitStatus.RETRY_LATER, server_words(answer))
    return _look_up(connection, target, committable).commit_outcome(committable, server_words(answer))


def abort_prepared(target: Target, committable: Committable) -> AbortOutcome:
    """Roll back exactly this gid; the ledger says who won if it is gone."""
    outcome = AbortOutcome(AbortStatus.RETRY_LATER, "no answer")

    def round_trip() -> bool:
        nonlocal outcome
        with borrowed(target.dsn, "cannot abort", answer_within=target.answer_within) as connection:
            outcome = _abort_once(connection, target, committable)
        return outcome.status is not AbortStatus.RETRY_LATER

    words = retry_until_known(round_trip)
    if outcome.status is AbortStatus.RETRY_LATER and words:
        return AbortOutcome(AbortStatus.RETRY_LATER, words)
    return outcome


def _abort_once(connection: Connection, target: Target, committable: Committable) -> AbortOutcome:
    answer = _end(connection, "ROLLBACK PREPARED {}", committable)
    if answer is None:
        return AbortOutcome(AbortStatus.ABORTED)
    if answer.sqlstate == NOT_READY:
        return AbortOutcome(AbortStatus.RETRY_LATER, server_words(answer))
    return _look_up(connection, target, committable).abort_outcome(committable, server_words(answer))


def _look_up(connection: Connection, target: Target, committable: Committable) -> Facts:
    return target.ledger.facts(connection, committable.pipeline, committable.sink, [committable.transaction])


def _end(connection: Connection, statement: str, committable: Committable) -> psycopg.Error | None:
    """COMMIT or ROLLBACK PREPARED; None if it was done, the error if the gid is busy or does not exist."""
    try:
        connection.execute(sql.SQL(statement).format(sql.Literal(committable.transaction)))
    except psycopg.Error as error:
        if error.sqlstate in (UNDEFINED_OBJECT, NOT_READY):
            return error
        if error.sqlstate == OTHER_DATABASE:
            raise PostgresError(
                f"{server_words(error)}: the dsn must name the database that prepared it",
                pipeline=committable.pipeline,
                sink=committable.sink,
                epoch=committable.epoch,
                transaction=committable.transaction,
            ) from error
        raise
    return None
