"""What is prepared or staged in a database under exactly a pipeline's and a sink's name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import psycopg

from onceward.core.names import FORMAT, parse_transaction_name

from .failures import NO_SCHEMA, NO_TABLE
from .target import make_committable, own_name

if TYPE_CHECKING:
    from onceward.core.names import Scope, TransactionName
    from onceward.core.transaction import Committable

    from .connections import Connection
    from .ledger import Ledger

PREPARED: Final = "postgres-prepared"
STAGED: Final = "postgres-staged"


def prepared_names(connection: Connection, pipeline: str, sink: str) -> list[TransactionName]:
    """Names of the prepared transactions of this database that carry exactly these names."""
    # The view shows all databases of the server; the prefix only keeps foreign gids off the wire, parsing decides.
    query = (
        "SELECT gid FROM pg_catalog.pg_prepared_xacts"
        " WHERE database = current_database() AND starts_with(gid, %s) ORDER BY prepared, gid"
    )
    rows = connection.execute(query, [f"{FORMAT}:"]).fetchall()
    names = [own_name(row[0], pipeline, sink) for row in rows]
    return [name for name in names if name is not None]


def staged_names(connection: Connection, ledger: Ledger, pipeline: str, sink: str) -> list[tuple[TransactionName, int]]:
    """Names and rows of what is staged and not merged."""
    query = "SELECT gid, rows FROM {schema}.staged WHERE pipeline = %s AND sink = %s ORDER BY staged_at, gid"
    try:
        rows = connection.execute(ledger.query(query), [pipeline, sink]).fetchall()
    except psycopg.Error as error:
        if error.sqlstate in (NO_TABLE, NO_SCHEMA):
            return []
        raise
    pairs = [(own_name(gid, pipeline, sink), count) for gid, count in rows]
    return [(name, count) for name, count in pairs if name is not None]


def open_names(connection: Connection, ledger: Ledger) -> set[Scope]:
    """Under which of onceward's names, of any pipeline, something is prepared in this database or staged."""
    prepared = "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()"
    gids = [gid for (gid,) in connection.execute(prepared)]
    if ledger.exists(connection):
        gids += [gid for (gid,) in connection.execute(ledger.query("SELECT gid FROM {schema}.staged"))]
    names = (parse_transaction_name(gid) for gid in gids)
    return {name.scope for name in names if name is not None}


def list_of_log(connection: Connection, ledger: Ledger, pipeline: str, log: str) -> list[Committable]:
    """Both, of exactly this pipeline and decision log, whatever the sink's name."""
    waiting = open_names(connection, ledger)
    sinks = sorted(scope.sink for scope in waiting if (scope.pipeline, scope.log) == (pipeline, log))
    return [c for sink in sinks for c in list_lingering(connection, ledger, pipeline, sink) if c.log == log]


def list_lingering(connection: Connection, ledger: Ledger, pipeline: str, sink: str) -> list[Committable]:
    """Both, whichever way the sink writes now: it may have written the other way before."""
    prepared = [make_committable(PREPARED, name) for name in prepared_names(connection, pipeline, sink)]
    staged = staged_names(connection, ledger, pipeline, sink)
    return prepared + [make_committable(STAGED, name, rows) for name, rows in staged]
