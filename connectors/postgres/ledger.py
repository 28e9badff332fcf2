"""The ledger: in the target, in the data's own transaction, the fact that a transaction was committed.

Three tables in one schema (`onceward` by default):

- `ledger`: a row for each committed transaction, keyed by its gid. A key of (epoch, subtask) would make a retry wait
  for the lost attempt that holds the same key prepared.
- `pipelines`: which decision log owns a pipeline's sink in this database, and how far the ledger was pruned. With it
  an absent row is a proof (this is the right database, and the row was not pruned), and not just an absence.
- `staged`: rows that were staged and are not merged yet, see staging.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from ...core.errors import ConfigurationError, EpochConflictError
from ..database.verdict import Facts
from .failures import NO_SCHEMA, NO_TABLE, server_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...core.names import Scope
    from .connections import Connection

_log = logging.getLogger("onceward.postgres")

DEFAULT_SCHEMA: Final = "onceward"
CREATION_LOCK: Final = 0x0CEBA2D
"""Advisory lock under which tables are created: CREATE … IF NOT EXISTS alone races with itself."""
_PRUNE_EVERY: Final = 100

_CREATE: Final = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.ledger (
  gid text PRIMARY KEY,
  pipeline text NOT NULL, sink text NOT NULL, log text NOT NULL,
  writer bigint NOT NULL, epoch bigint NOT NULL, subtask integer NOT NULL, attempt integer NOT NULL,
  rows bigint NOT NULL, committed_at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE INDEX IF NOT EXISTS ledger_epoch ON {schema}.ledger (pipeline, sink, log, epoch);
CREATE TABLE IF NOT EXISTS {schema}.pipelines (
  pipeline text NOT NULL, sink text NOT NULL, log text NOT NULL,
  pruned bigint NOT NULL DEFAULT -1, claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (pipeline, sink));
CREATE TABLE IF NOT EXISTS {schema}.staged (
  gid text PRIMARY KEY,
  pipeline text NOT NULL, sink text NOT NULL, log text NOT NULL,
  writer bigint NOT NULL, epoch bigint NOT NULL, subtask integer NOT NULL, attempt integer NOT NULL,
  rows bigint NOT NULL, id bigint NOT NULL, stage text NOT NULL, target text[] NOT NULL,
  columns text[] NOT NULL, key text[] NOT NULL, staged_at timestamptz NOT NULL DEFAULT clock_timestamp());
COMMENT ON TABLE {schema}.ledger IS 'onceward, version 1: one row for each committed transaction';
"""


_FACTS: Final = """
SELECT pg_is_in_recovery(), p.log, coalesce(p.pruned, -1),
       ARRAY(SELECT gid FROM {schema}.ledger WHERE gid = ANY(%(gids)s))
FROM (VALUES (1)) AS one LEFT JOIN {schema}.pipelines p ON p.pipeline = %(pipeline)s AND p.sink = %(sink)s
"""


_STANDBY: Final = "the server is a standby, whose ledger may lag"
NO_LEDGER: Final = Facts(behind="", log=None, pruned=-1, committed=frozenset())


@dataclass(frozen=True)
class Ledger:
    """The ledger tables of one schema."""

    schema: str = DEFAULT_SCHEMA
    """Name of the schema, as it is (not folded to lower case)."""

    def table(self, name: str) -> sql.Identifier:
        """One of the tables, for composing SQL."""
        return sql.Identifier(self.schema, name)

    def query(self, text: str) -> sql.Composed:
        """SQL with {schema} filled in."""
        return sql.SQL(text).format(schema=sql.Identifier(self.schema))

    def creation(self) -> str:
        """The DDL, for an administrator to run."""
        return self.query(_CREATE).as_string().strip()

    def exists(self, connection: Connection) -> bool:
        """Whether all tables are there."""
        names = [f"{sql.Identifier(self.schema, name).as_string()}" for name in ("ledger", "pipelines", "staged")]
        query = "SELECT bool_and(pg_catalog.to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) AS t(name)"
        row = connection.execute(query, [names]).fetchone()
        return row is not None and bool(row[0])

    def ensure(self, connection: Connection) -> None:
        """Create the tables if they are missing; any number of processes may do so at once.

        Raises:
            ConfigurationError: The role may not; the message holds the SQL for one who may.
        """
        if self.exists(connection):
            return
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [CREATION_LOCK])
                connection.execute(self.query(_CREATE))
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigurationError(
                f"the ledger tables of schema {self.schema!r} are missing and this role may not create them "
                f"({server_words(error)}). Grant it CREATE on the database, or let its owner run this, then GRANT "
                f"USAGE, CREATE on the schema and SELECT, INSERT, UPDATE, DELETE on its tables: {self.creation()}"
            ) from error
        _log.info("created the ledger tables in schema %s", self.schema)

    def facts(self, connection: Connection, pipeline: str, sink: str, gids: Sequence[str]) -> Facts:
        """Look the gids up, in a fresh snapshot: `connection` must be in no transaction."""
        query = self.query(_FACTS)
        try:
            row = connection.execute(query, {"gids": list(gids), "pipeline": pipeline, "sink": sink}).fetchone()
        except psycopg.Error as error:
            if error.sqlstate in (NO_TABLE, NO_SCHEMA):
                return NO_LEDGER
            raise
        assert row is not None  # noqa: S101 - the query always gives one row
        standby, log, pruned, committed = row
        return Facts(_STANDBY if standby else "", log, pruned, frozenset(committed))

    def claim(self, connection: Connection, scope: Scope) -> None:
        """Make `scope.log` the owner of the names, or see that it is.

        Raises:
            EpochConflictError: Another decision log is, or has written under these names.
        """
        owner = self._owner(connection, scope)
        if owner is None:
            self.ensure(connection)
            self._check_no_other_rows(connection, scope)
            insert = "INSERT INTO {schema}.pipelines (pipeline, sink, log) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
            connection.execute(self.query(insert), list(scope))
            owner = self._owner(connection, scope)
        if owner != scope.log:
            raise self._conflict(scope, f"belongs to decision log {owner}")

    def owner_query(self, scope: Scope) -> tuple[sql.Composed, list[str]]:
        """Query and parameters that give the decision log which owns the names; no row if none does."""
        query = self.query("SELECT log FROM {schema}.pipelines WHERE pipeline = %s AND sink = %s")
        return query, [scope.pipeline, scope.sink]

    def _owner(self, connection: Connection, scope: Scope) -> str | None:
        try:
            row = connection.execute(*self.owner_query(scope)).fetchone()
        except psycopg.Error as error:
            if error.sqlstate in (NO_TABLE, NO_SCHEMA):
                return None
            raise
        return None if row is None else str(row[0])

    def _check_no_other_rows(self, connection: Connection, scope: Scope) -> None:
        query = self.query(
            "SELECT log, max(epoch) FROM {schema}.ledger WHERE pipeline = %s AND sink = %s AND log <> %s"
            " GROUP BY log ORDER BY max(committed_at) DESC LIMIT 1"
        )
        row = connection.execute(query, list(scope)).fetchone()
        if row is not None:
            raise self._conflict(scope, f"holds rows of decision log {row[0]} up to its epoch {row[1]}")

    def _conflict(self, scope: Scope, what: str) -> EpochConflictError:
        return EpochConflictError(
            f"the ledger in schema {self.schema!r} {what} under this pipeline's and sink's name, but this is decision "
            f"log {scope.log}. Either the checkpoint folder was deleted or replaced (going on would write its input a "
            "second time), or another job runs under the same name. Choices: give back the old checkpoint; give this "
            "pipeline another name; or, if the target was emptied or a second writing is wanted, rewind explicitly, "
            "which releases the names to this log",
            pipeline=scope.pipeline,
            sink=scope.sink,
        )

    def release(self, connection: Connection, scope: Scope) -> None:
        """Make `scope.log` the owner, whoever was."""
        self.ensure(connection)
        statement = (
            "INSERT INTO {schema}.pipelines (pipeline, sink, log) VALUES (%s, %s, %s) ON CONFLICT (pipeline, sink)"
            " DO UPDATE SET log = EXCLUDED.log, pruned = -1, claimed_at = clock_timestamp()"
            " WHERE pipelines.log <> EXCLUDED.log"
        )
        connection.execute(self.query(statement), list(scope))

    def prune(self, connection: Connection, scope: Scope, below: int) -> int:
        """Delete rows of this log's epochs below `below`, first noting durably that they may be missing.

        Call it only with epochs that are completed, and so no longer need to be asked for.
        """
        note = (
            "UPDATE {schema}.pipelines SET pruned = %(through)s"
            " WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND log = %(log)s AND pruned < %(through)s"
        )
        delete = (
            "DELETE FROM {schema}.ledger"
            " WHERE pipeline = %(pipeline)s AND sink = %(sink)s AND log = %(log)s AND epoch <= %(through)s"
        )
        parameters = {**scope._asdict(), "through": below - 1}
        with connection.transaction():
            connection.execute(self.query(note), parameters)
            return connection.execute(self.query(delete), parameters).rowcount


def prune_due(epoch: int) -> bool:
    """Whether to prune after this epoch: seldom, because it costs a transaction."""
    return epoch % _PRUNE_EVERY == 0
