"""The ledger: in the target, in the data's own transaction, the fact that a transaction was committed.

Four tables in one schema (`onceward` by default):

- `ledger`: a row for each committed transaction, keyed by its gid. A key of (epoch, subtask) would make a retry wait
  for the lost attempt that holds the same key prepared. The newest row is never pruned: a decision log that has not
  come so far is an outdated copy.
- `pipelines`: which decision log owns a pipeline's sink in this database: written with the log's first decision.
- `logs`: which decision logs' writers have written here, noted before they wrote, and how far each one's ledger rows
  were pruned. With it an absent row is a proof (this is the right database, and the row was not pruned), and not just
  an absence.
- `staged`: rows that were staged and are not merged yet, see staging.py.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg
from psycopg import sql

from onceward.core.errors import ConfigurationError
from onceward.core.transaction.ownership import NOTHING, Progress, other_log, outdated_log

from ..verdict import Facts
from .failures import NO_SCHEMA, NO_TABLE, server_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.names import Scope

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
  rows bigint NOT NULL, committed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  rewound boolean NOT NULL DEFAULT false);
CREATE INDEX IF NOT EXISTS ledger_progress ON {schema}.ledger (pipeline, sink, log, writer, epoch);
CREATE TABLE IF NOT EXISTS {schema}.pipelines (
  pipeline text NOT NULL, sink text NOT NULL, log text NOT NULL,
  claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (pipeline, sink));
CREATE TABLE IF NOT EXISTS {schema}.logs (
  pipeline text NOT NULL, sink text NOT NULL, log text NOT NULL, pruned bigint NOT NULL DEFAULT -1,
  PRIMARY KEY (pipeline, sink, log));
CREATE TABLE IF NOT EXISTS {schema}.staged (
  gid text PRIMARY KEY,
  pipeline text NOT NULL, sink text NOT NULL, log text NOT NULL,
  writer bigint NOT NULL, epoch bigint NOT NULL, subtask integer NOT NULL, attempt integer NOT NULL,
  rows bigint NOT NULL, id bigint NOT NULL, stage text NOT NULL, target text[] NOT NULL,
  columns text[] NOT NULL, key text[] NOT NULL, staged_at timestamptz NOT NULL DEFAULT clock_timestamp());
COMMENT ON TABLE {schema}.ledger IS 'onceward, version 1: one row for each committed transaction';
"""


_NAMES: Final = sql.SQL("pipeline = %(pipeline)s AND sink = %(sink)s")
_MINE: Final = sql.SQL("pipeline = %(pipeline)s AND sink = %(sink)s AND log = %(log)s")
_FACTS: Final = """
SELECT pg_is_in_recovery(),
       coalesce((SELECT jsonb_object_agg(log, pruned) FROM {schema}.logs WHERE {names}), '{{}}'),
       ARRAY(SELECT gid FROM {schema}.ledger WHERE gid = ANY(%(gids)s))
"""
_STANDING: Final = """
SELECT coalesce(
         (SELECT log FROM {schema}.pipelines WHERE {names}),
         (SELECT log FROM {schema}.ledger WHERE {names} AND log <> %(log)s ORDER BY committed_at DESC LIMIT 1)),
       EXISTS (SELECT FROM {schema}.logs WHERE {mine})
"""
_PROGRESS: Final = """
SELECT writer, epoch FROM {schema}.ledger WHERE {mine} AND NOT rewound ORDER BY writer DESC, epoch DESC LIMIT 1
"""

_STANDBY: Final = "the server is a standby, whose ledger may lag"
NO_LEDGER: Final = Facts(behind="", logs={}, committed=frozenset())
OWN_TABLES: Final = ("ledger", "pipelines", "logs", "staged")


class Ownership(NamedTuple):
    """What the ledger says of a decision log's names."""

    owner: str | None
    """The decision log that has claimed them, or another one that has committed under them; None if none has."""
    noted: bool
    """Whether it is noted that a writer of this log writes here."""


@dataclass(frozen=True)
class Ledger:
    """The ledger tables of one schema."""

    schema: str = DEFAULT_SCHEMA
    """Name of the schema, as it is (not folded to lower case)."""

    def table(self, name: str) -> sql.Identifier:
        """One of the tables, for composing SQL."""
        return sql.Identifier(self.schema, name)

    def query(self, text: str) -> sql.Composed:
        """SQL with {schema}, {names} and {mine} (conditions on a scope's parameters) filled in."""
        return sql.SQL(text).format(schema=sql.Identifier(self.schema), names=_NAMES, mine=_MINE)

    def creation(self) -> str:
        """The DDL, for an administrator to run."""
        return self.query(_CREATE).as_string().strip()

    def exists(self, connection: Connection) -> bool:
        """Whether all tables are there."""
        names = [sql.Identifier(self.schema, name).as_string() for name in OWN_TABLES]
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
        standby, logs, committed = row
        return Facts(_STANDBY if standby else "", logs, frozenset(committed))

    def ownership_query(self, scope: Scope) -> tuple[sql.Composed, dict[str, str]]:
        """Query and parameters that give a Ownership."""
        return self.query(_STANDING), scope._asdict()

    def note(self, connection: Connection, scope: Scope) -> None:
        """Note that a writer of this log writes here; it claims nothing."""
        self.ensure(connection)
        insert = "INSERT INTO {schema}.logs (pipeline, sink, log) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
        connection.execute(self.query(insert), list(scope))

    def check(self, connection: Connection, scope: Scope, newest: Progress) -> None:
        """See that no other log owns the names, and that this one has come as far as the ledger.

        Raises:
            EpochConflictError: Another one does, or this one is an outdated copy.
        """
        if not self.exists(connection):
            return
        with connection.pipeline():
            ownership = connection.execute(*self.ownership_query(scope))
            progress = connection.execute(self.query(_PROGRESS), scope._asdict())
        self.refuse_others(scope, Ownership(*ownership.fetchall()[0]))
        known = Progress(*(progress.fetchone() or NOTHING))
        if known > newest:
            raise outdated_log(scope, known, newest, self.place)

    def claim(self, connection: Connection, scope: Scope) -> None:
        """Make `scope.log` the owner of the names, or see that it is; of two logs at once one wins.

        Raises:
            EpochConflictError: Another decision log is, or has written under these names.
        """
        self.ensure(connection)
        self.refuse_others(scope, self._ownership(connection, scope))
        insert = "INSERT INTO {schema}.pipelines (pipeline, sink, log) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
        if not connection.execute(self.query(insert), list(scope)).rowcount:
            self.refuse_others(scope, self._ownership(connection, scope))

    def refuse_others(self, scope: Scope, ownership: Ownership) -> None:
        """Raise EpochConflictError if another log owns the names."""
        if ownership.owner not in (None, scope.log):
            raise other_log(scope, str(ownership.owner), self.place)

    @property
    def place(self) -> str:
        """For messages."""
        return f"the ledger in schema {self.schema!r}"

    def _ownership(self, connection: Connection, scope: Scope) -> Ownership:
        return Ownership(*connection.execute(*self.ownership_query(scope)).fetchall()[0])

    def release(self, connection: Connection, scope: Scope) -> None:
        """Make `scope.log` the owner, whoever was, and set aside how far it had come."""
        self.ensure(connection)
        own = (
            "INSERT INTO {schema}.pipelines (pipeline, sink, log) VALUES (%(pipeline)s, %(sink)s, %(log)s)"
            " ON CONFLICT (pipeline, sink) DO UPDATE SET log = EXCLUDED.log, claimed_at = clock_timestamp()"
            " WHERE pipelines.log <> EXCLUDED.log"
        )
        set_aside = "UPDATE {schema}.ledger SET rewound = true WHERE {mine} AND NOT rewound"
        with connection.transaction():
            for statement in (own, set_aside):
                connection.execute(self.query(statement), scope._asdict())

    def prune(self, connection: Connection, scope: Scope, below: int) -> int:
        """Delete rows of this log's epochs below `below`, first noting durably that they may be missing.

        The newest rows stay, however old: they say how far the log had come. Call it only with epochs that are
        completed, and so no longer need to be asked for.
        """
        note = "UPDATE {schema}.logs SET pruned = greatest(pruned, %(through)s) WHERE {mine}"
        delete = (
            "DELETE FROM {schema}.ledger"
            " WHERE {mine} AND epoch <= %(through)s AND (rewound OR (writer, epoch) <> (%(generation)s, %(newest)s))"
        )
        parameters = {**scope._asdict(), "through": below - 1}
        with connection.transaction():
            if not connection.execute(self.query(note), parameters).rowcount:
                return 0
            progress = connection.execute(self.query(_PROGRESS), parameters).fetchone() or NOTHING
            parameters |= {"generation": progress[0], "newest": progress[1]}
            return connection.execute(self.query(delete), parameters).rowcount


def prune_due(epoch: int) -> bool:
    """Whether to prune after this epoch: seldom, because it costs a transaction."""
    return epoch % _PRUNE_EVERY == 0
