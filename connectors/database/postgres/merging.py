"""The merge of staged rows into their table, and their abort; see staging.py for why it is exactly once."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg

from onceward.core.errors import PostgresError
from onceward.core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus

from ..epochs import epoch_by_epoch
from ..retry import retry_until_known
from .connections import borrowed
from .failures import NO_SCHEMA, NO_TABLE, may_pass, server_words
from .merge_sql import Staged, move_rows, remove_rows
from .staging import DURABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.transaction import Committable

    from .connections import Connection
    from .target import Target

_SLOWEST_MERGE: Final = 5_000
"""Rows per second below which a merge is taken for hanging."""

_TAKE: Final = """
WITH held AS (SELECT gid FROM {schema}.staged WHERE gid = ANY(%s) ORDER BY gid FOR UPDATE),
taken AS (DELETE FROM {schema}.staged s USING held WHERE s.gid = held.gid RETURNING s.*)
SELECT gid, id, subtask, rows, stage, target, columns, key FROM taken
"""
_TAKE_AND_NOTE: Final = """
WITH held AS (SELECT gid FROM {schema}.staged WHERE gid = ANY(%s) ORDER BY gid FOR UPDATE),
taken AS (DELETE FROM {schema}.staged s USING held WHERE s.gid = held.gid RETURNING s.*),
noted AS (
  INSERT INTO {schema}.ledger (gid, pipeline, sink, log, writer, epoch, subtask, attempt, rows)
  SELECT gid, pipeline, sink, log, writer, epoch, subtask, attempt, rows FROM taken
)
SELECT gid, id, subtask, rows, stage, target, columns, key FROM taken
"""


def commit_staged(target: Target, committables: Sequence[Committable]) -> list[CommitOutcome]:
    """Merge in one transaction for each epoch, in order.

    Raises:
        PostgresError: The table refuses the rows (a constraint, a missing table): the decision stands.
    """
    return epoch_by_epoch(committables, partial(_commit_epoch, target))


def _commit_epoch(target: Target, committables: list[Committable]) -> list[CommitOutcome]:
    outcomes: dict[str, CommitOutcome] = {}
    seconds = target.answer_within + sum(c.rows for c in committables) / _SLOWEST_MERGE

    def round_trip() -> bool:
        with borrowed(target.dsn, "cannot merge", answer_within=seconds) as connection:
            merged = _merge(connection, target, committables)
            outcomes.update({gid: CommitOutcome(CommitStatus.COMMITTED) for gid in merged})
            rest = [c for c in committables if c.transaction not in outcomes]
            outcomes.update(_look_up(connection, target, rest))
        return True

    words = retry_until_known(round_trip)
    unanswered = CommitOutcome(CommitStatus.RETRY_LATER, words)
    return [outcomes.get(c.transaction, unanswered) for c in committables]


def _look_up(connection: Connection, target: Target, committables: list[Committable]) -> dict[str, CommitOutcome]:
    if not committables:
        return {}
    first = committables[0]
    facts = target.ledger.facts(connection, first.pipeline, first.sink, [c.transaction for c in committables])
    return {c.transaction: facts.commit_outcome(c) for c in committables}


def _merge(connection: Connection, target: Target, committables: list[Committable]) -> list[str]:
    """Move what is staged; the gids that this call moved."""
    try:
        with connection.transaction():
            _prepare_session(connection, target)
            taken = _take(connection, target, [c.transaction for c in committables], record=True)
            for move in dict.fromkeys(staged.move for staged in taken if staged.stage):
                move_rows(connection, target.ledger, [staged for staged in taken if staged.move == move])
    except psycopg.Error as error:
        if error.sqlstate in (NO_TABLE, NO_SCHEMA) and not target.ledger.exists(connection):
            return []
        if may_pass(error):
            raise
        raise _refused(error, target, committables) from error
    return [staged.gid for staged in taken]


def _refused(error: psycopg.Error, target: Target, committables: list[Committable]) -> PostgresError:
    first = committables[0]
    return PostgresError(
        f"the decided rows of this epoch cannot be moved into the table: {target.dsn.redact(server_words(error))}. "
        "They are safe in the staging table and the decision stands: change the table so that it takes them, or "
        "delete the rows that are in their way, and start again",
        pipeline=first.pipeline,
        sink=first.sink,
        epoch=first.epoch,
    )


def _prepare_session(connection: Connection, target: Target) -> None:
    milliseconds = max(1, round(target.lock_timeout * 1000))
    with connection.pipeline():
        connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.execute(
            "SELECT set_config('lock_timeout', %s, true), set_config('statement_timeout', '0', true)",
            [str(milliseconds)],
        )
        connection.execute(DURABLE)


def _take(connection: Connection, target: Target, gids: list[str], *, record: bool) -> list[Staged]:
    """Delete the rows of `staged`, waiting for whoever holds them; with `record`, note them in the ledger."""
    rows = connection.execute(target.ledger.query(_TAKE_AND_NOTE if record else _TAKE), [gids]).fetchall()
    return [Staged(*row[:5], *(tuple(names) for names in row[5:])) for row in rows]


def abort_staged(target: Target, committable: Committable) -> AbortOutcome:
    """Delete exactly these staged rows; refused if they were merged."""
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
    if not target.ledger.exists(connection):
        return AbortOutcome(AbortStatus.ABORTED, "this database has no ledger, so nothing is staged in it")
    with connection.transaction():
        _prepare_session(connection, target)
        taken = _take(connection, target, [committable.transaction], record=False)
        for staged in (staged for staged in taken if staged.stage):
            remove_rows(connection, target.ledger, staged.stage, [staged.id])
    if taken:
        return AbortOutcome(AbortStatus.ABORTED)
    facts = target.ledger.facts(connection, committable.pipeline, committable.sink, [committable.transaction])
    return facts.abort_outcome(committable)
