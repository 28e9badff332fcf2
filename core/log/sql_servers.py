"""What the database servers of decision logs are told, and what they must be set to.

An entry whose put answered must outlive a crash of the server. PostgreSQL lets each transaction ask for that, whatever
the role's or the database's `synchronous_commit` says. MariaDB has global settings only, so they are checked.

What no setting gives: a standby or replica that is promoted without having all entries (asynchronous replication) is a
log that forgot decisions. See docs/stores.md.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

if TYPE_CHECKING:
    from sqlalchemy import Connection, Table

_log = logging.getLogger("onceward.log")

_FAMILY: Final = ("mysql", "mariadb")
_SYNCED: Final = ("1", "3")
"""Values of innodb_flush_log_at_trx_commit with which a commit answers after its redo log is on disk."""


def name_type(length: int) -> sa.types.TypeEngine[str]:
    """Text that is compared byte by byte; MariaDB's default collations would take `Orders` for `orders`."""
    exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(exact, *_FAMILY)


def data_type() -> sa.types.TypeEngine[bytes]:
    """Bytes without a limit that a decision could meet; MariaDB's BLOB ends at 65,535."""
    return sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_FAMILY)


def make_durable(connection: Connection) -> str:
    """See that the transaction just begun outlives a crash of the server once its commit has answered.

    Returns:
        Why it would not, and what to do; empty if it will.
    """
    if connection.dialect.name == "postgresql":
        setting = sa.func.current_setting("synchronous_commit")
        forced = sa.select(sa.func.set_config("synchronous_commit", "on", True))
        connection.execute(forced.where(setting != "remote_apply"))  # which asks for more
    elif connection.dialect.name in _FAMILY:
        return _unsafe_mariadb(connection)
    return ""


def _unsafe_mariadb(connection: Connection) -> str:
    if not getattr(connection.dialect, "is_mariadb", False):
        return "the server is MySQL: only MariaDB was tried as a decision log's store, so only it is taken"
    names = ("innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog", "wsrep_on")
    query = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN {names}"
    found = {str(key): str(value) for key, value in connection.exec_driver_sql(query)}
    if found.get("wsrep_on") == "ON":
        return "Galera answers reads on other nodes before they have all entries: name a server without it"
    flush, binlog = found["innodb_flush_log_at_trx_commit"], found["sync_binlog"]
    if flush not in _SYNCED:
        return _too_lazy("innodb_flush_log_at_trx_commit", flush)
    if found["log_bin"] == "ON" and binlog != "1":  # what the binary log lacks after a crash is rolled back
        return _too_lazy("sync_binlog", binlog)
    return ""


def _too_lazy(setting: str, value: str) -> str:
    return (
        f"the server's {setting} is {value}, so a crash of its machine could take back a decision that was already "
        f"acted on. Say SET GLOBAL {setting} = 1, and set it in the server's configuration file"
    )


def warn_of_fsync(connection: Connection) -> None:
    """Warn of a PostgreSQL server that syncs nothing to disk."""
    setting = sa.select(sa.func.current_setting("fsync"))
    if connection.dialect.name == "postgresql" and connection.scalar(setting) != "on":
        _log.warning("the decision log's server runs with fsync=off: a crash of its machine may lose decisions")


def unfit(connection: Connection, table: Table) -> str:
    """Why a table that is there cannot hold a decision log, and what to do; empty if it can."""
    if connection.dialect.name not in _FAMILY:
        return ""
    inspector = sa.inspect(connection)
    kinds = {column["name"]: column["type"] for column in inspector.get_columns(table.name)}
    exact = all(str(getattr(kinds[name], "collation", "")).endswith("_bin") for name in ("pipeline", "entry"))
    engine = inspector.get_table_options(table.name).get(f"{connection.dialect.name}_engine")
    if exact and isinstance(kinds["data"], mysql.LONGBLOB) and engine == "InnoDB":
        return ""
    changes = [f"MODIFY {column.name} {column.type.compile(connection.dialect)} NOT NULL" for column in table.columns]
    return (
        f"its table {table.name} was made otherwise: a large decision, or names that differ in case only, would not "
        f"fit. Stop the pipelines that use it, and run ALTER TABLE {table.name} {', '.join(changes)}, ENGINE=InnoDB"
    )
