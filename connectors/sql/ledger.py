"""The ledger: in the target, in the data's own transaction, the fact that a transaction was committed.

Four tables, `onceward_…`, in the connection's default schema or the one that was asked for:

- `ledger`: a row for each committed transaction, keyed by its name. A key of (epoch, subtask) would make a retry wait
  for the lost attempt that holds the same key prepared.
- `pipelines`: which decision log owns a pipeline's sink in this database, and how far the ledger was pruned. With it
  an absent row is a proof (this is the right database, and the row was not pruned), and not just an absence.
- `staged`, `staged_rows`: rows that were staged and are not merged yet, see staging.py.

Names are compared byte by byte everywhere: MariaDB's default collations would take `Orders` for `orders`.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import mysql
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from ...core.errors import ConfigurationError, EpochConflictError, SinkError
from ...core.names import PIPELINE_LENGTH, SINK_LENGTH
from .engines import dialect_for, reading, transaction
from .failures import may_pass
from .verdict import Facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...core.names import Scope, TransactionName
    from .target import Target

_log = logging.getLogger("onceward.sql")

_NAME: Final = 199
_LOG: Final = 32
_PRUNE_EVERY: Final = 100
_CREATION_ATTEMPTS: Final = 10
_INNODB: Final[dict[str, Any]] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
_IN: Final = 500
"""Names in one IN list: SQLite allows as few as 999 parameters."""


def _text(length: int) -> sa.types.TypeEngine[str]:
    exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(exact, "mysql", "mariadb")


def _whose() -> list[sa.Column[Any]]:
    return [
        sa.Column("pipeline", _text(PIPELINE_LENGTH), nullable=False),
        sa.Column("sink", _text(SINK_LENGTH), nullable=False),
        sa.Column("log", _text(_LOG), nullable=False),
        sa.Column("writer", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("subtask", sa.Integer, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("row_count", sa.BigInteger, nullable=False),
    ]


@dataclass(frozen=True)
class Tables:
    """Onceward's tables in one schema."""

    metadata: sa.MetaData
    ledger: sa.Table
    pipelines: sa.Table
    staged: sa.Table
    rows: sa.Table


@functools.cache
def tables_in(schema: str | None) -> Tables:
    """The tables' definitions."""
    metadata = sa.MetaData(schema=schema)
    now = sa.func.current_timestamp()
    ledger = sa.Table(
        "onceward_ledger",
        metadata,
        sa.Column("name", _text(_NAME), primary_key=True),
        *_whose(),
        sa.Column("committed_at", sa.DateTime(timezone=True), nullable=False, server_default=now),
        **_INNODB,
    )
    sa.Index("onceward_ledger_epoch", ledger.c.pipeline, ledger.c.sink, ledger.c.log, ledger.c.epoch)
    pipelines = sa.Table(
        "onceward_pipelines",
        metadata,
        sa.Column("pipeline", _text(PIPELINE_LENGTH), primary_key=True),
        sa.Column("sink", _text(SINK_LENGTH), primary_key=True),
        sa.Column("log", _text(_LOG), nullable=False),
        sa.Column("pruned", sa.BigInteger, nullable=False, server_default=sa.text("-1")),
        **_INNODB,
    )
    staged = sa.Table(
        "onceward_staged",
        metadata,
        sa.Column("name", _text(_NAME), primary_key=True),
        *_whose(),
        sa.Column("whole", sa.SmallInteger, nullable=False),
        sa.Column("target", sa.String(600), nullable=False),
        sa.Column("key_columns", sa.Text, nullable=False),
        **_INNODB,
    )
    data = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
    rows = sa.Table(
        "onceward_staged_rows",
        metadata,
        sa.Column("name", _text(_NAME), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("data", data, nullable=False),
        **_INNODB,
    )
    return Tables(metadata, ledger, pipelines, staged, rows)


def tables_of(target: Target) -> Tables:
    """The tables that a target uses."""
    return tables_in(target.ledger_schema)


def identity_row(name: TransactionName, rows: int) -> dict[str, Any]:
    """What `ledger` and `staged` keep of a transaction."""
    return {
        "name": str(name),
        **name.scope._asdict(),
        "writer": name.start,
        "epoch": name.epoch,
        "subtask": name.subtask,
        "attempt": name.attempt,
        "row_count": rows,
    }


def parts(names: Sequence[str]) -> list[Sequence[str]]:
    """Pieces small enough for one IN list."""
    return [names[start : start + _IN] for start in range(0, len(names), _IN)]


def exists(target: Target, connection: sa.Connection) -> bool:
    """Whether all tables are there."""
    inspector = sa.inspect(connection)
    return all(
        inspector.has_table(table.name, schema=table.schema) for table in tables_of(target).metadata.sorted_tables
    )


def ensure(target: Target) -> None:
    """Create the tables if they are missing; any number of processes may do so at once.

    Raises:
        ConfigurationError: The database refuses; the message says which tables are needed.
    """
    try:
        _create_missing(target)
    except SinkError as error:
        if error.retryable:
            raise
        names = ", ".join(str(table) for table in tables_of(target).metadata.sorted_tables)
        raise ConfigurationError(f"the ledger tables ({names}) are missing and cannot be made: {error}") from None


@retry(
    retry=retry_if_exception_type(SinkError),
    stop=stop_after_attempt(_CREATION_ATTEMPTS),
    wait=wait_random(0.01, 0.1),
    reraise=True,
)
def _create_missing(target: Target) -> None:
    """Several at once get in each other's way, table by table: who failed looks again."""
    with reading(target, "cannot look for the ledger tables") as connection:
        if exists(target, connection):
            return
    with transaction(target, "cannot create the ledger tables") as connection:
        tables_of(target).metadata.create_all(connection)
    _log.info("created the ledger tables in %s", target.url)


def facts(target: Target, connection: sa.Connection, pipeline: str, sink: str, names: Sequence[str]) -> Facts:
    """Look the names up. First the rows, then what may have made them disappear: pruning notes that before.

    `connection` must see the newest state in each statement, as those of `reading` do.
    """
    dialect, tables = dialect_for(target), tables_of(target)
    committed: set[str] = set()
    behind = dialect.behind(connection)
    try:
        for part in parts(names):
            query = sa.select(tables.ledger.c.name).where(tables.ledger.c.name.in_(part))
            committed |= set(
                connection.execute(query.with_for_update(read=True) if dialect.asks_with_lock else query).scalars()
            )
        owner = connection.execute(
            sa.select(tables.pipelines.c.log, tables.pipelines.c.pruned).where(*_mine(tables.pipelines, pipeline, sink))
        ).first()
    except exc.DBAPIError as error:
        if may_pass(error) or exists(target, connection):
            raise
        return Facts(behind, None, -1, frozenset())
    return Facts(behind, owner and owner[0], -1 if owner is None else owner[1], frozenset(committed))


def owner_of(target: Target, connection: sa.Connection, scope: Scope) -> str | None:
    """The decision log that owns the names; None if none does."""
    pipelines = tables_of(target).pipelines
    return connection.scalar(sa.select(pipelines.c.log).where(*_mine(pipelines, scope.pipeline, scope.sink)))


def claim(target: Target, scope: Scope) -> None:
    """Make `scope.log` the owner of the names, or see that it is.

    Raises:
        EpochConflictError: Another decision log is, or has written under these names.
    """
    ensure(target)
    with reading(target, "cannot claim") as connection:
        owner = owner_of(target, connection, scope)
        if owner is None:
            _check_no_other_rows(target, connection, scope)
    if owner is None:
        _insert_owner(target, scope)
        with reading(target, "cannot claim") as connection:
            owner = owner_of(target, connection, scope)
    if owner != scope.log:
        raise _conflict(scope, f"belongs to decision log {owner}")


def release(target: Target, scope: Scope) -> None:
    """Make `scope.log` the owner, whoever was."""
    ensure(target)
    pipelines = tables_of(target).pipelines
    with transaction(target, "cannot release") as connection:
        if owner_of(target, connection, scope) == scope.log:
            return
        mine = _mine(pipelines, scope.pipeline, scope.sink)
        changed = connection.execute(pipelines.update().where(*mine).values(log=scope.log, pruned=-1))
        if changed.rowcount == 0:
            connection.execute(pipelines.insert().values(**scope._asdict()))


def prune(target: Target, scope: Scope, below: int) -> None:
    """Delete rows of this log's epochs below `below`, noting durably that they may be missing.

    Call it only with epochs that are completed, and so no longer need to be asked for.
    """
    tables = tables_of(target)
    with transaction(target, "cannot prune") as connection:
        mine = [*_mine(tables.pipelines, scope.pipeline, scope.sink), tables.pipelines.c.log == scope.log]
        note = tables.pipelines.update().where(*mine, tables.pipelines.c.pruned < below - 1).values(pruned=below - 1)
        connection.execute(note)
        old = [*_mine(tables.ledger, scope.pipeline, scope.sink), tables.ledger.c.log == scope.log]
        connection.execute(tables.ledger.delete().where(*old, tables.ledger.c.epoch < below))


def prune_due(epoch: int) -> bool:
    """Whether to prune after this epoch: seldom, because it costs a transaction."""
    return epoch % _PRUNE_EVERY == 0


def _mine(table: sa.Table, pipeline: str, sink: str) -> list[sa.ColumnElement[bool]]:
    return [table.c.pipeline == pipeline, table.c.sink == sink]


def _insert_owner(target: Target, scope: Scope) -> None:
    try:
        with transaction(target, "cannot claim") as connection:
            connection.execute(tables_of(target).pipelines.insert().values(**scope._asdict()))
    except SinkError as error:
        with reading(target, "cannot claim") as connection:
            if owner_of(target, connection, scope) is None:
                raise
        _log.debug("somebody else claimed at the same time: %s", error)


def _check_no_other_rows(target: Target, connection: sa.Connection, scope: Scope) -> None:
    ledger = tables_of(target).ledger
    query = (
        sa.select(ledger.c.log, sa.func.max(ledger.c.epoch))
        .where(*_mine(ledger, scope.pipeline, scope.sink), ledger.c.log != scope.log)
        .group_by(ledger.c.log)
        .order_by(sa.func.max(ledger.c.committed_at).desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    if row is not None:
        raise _conflict(scope, f"holds rows of decision log {row[0]} up to its epoch {row[1]}")


def _conflict(scope: Scope, what: str) -> EpochConflictError:
    return EpochConflictError(
        f"the ledger in the target database {what} under this pipeline's and sink's name, but this is decision log "
        f"{scope.log}. Either the checkpoint folder was deleted or replaced (going on would write its input a second "
        "time), or another job runs under the same name. Choices: give back the old checkpoint; give this pipeline "
        "another name; or, if the target was emptied or a second writing is wanted, rewind explicitly, which releases "
        "the names to this log",
        pipeline=scope.pipeline,
        sink=scope.sink,
    )
