"""A decision log in a SQL table, through SQLAlchemy: an insert on a primary key is put-if-absent.

SQLite is the embedded default; PostgreSQL and MariaDB serve several machines. An entry whose put answered must outlive
a crash of the server, whatever the defaults say: SQLite runs with `synchronous=EXTRA`, PostgreSQL lets each transaction
ask for it, and MariaDB has global settings only, so they are checked.

Visible is not replicated. PostgreSQL answers a commit whose wait for the synchronous standby was cut short (by
`pg_cancel_backend`, or an administrator who ends the session) with success and a WARNING, and the row is visible. So a
warning at a commit leaves the put in doubt. And an entry that is there already, when a put is tried again, is believed
only after a commit of one's own has been answered: it is replicated behind everything that was written before it.

What no setting gives: a standby or replica that is promoted without having all entries (asynchronous replication) is a
log that forgot decisions. See docs/stores.md.
"""

from __future__ import annotations

import logging
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..contract.names import PIPELINE_LENGTH, check_pipeline_name
from ..errors import ConfigurationError, MissingExtraError, NoDecisionLogError, OncewardError, StoreError, text_of
from ..kit.secrets import AMBIGUOUS, is_ambiguous, shown_address
from .time_limits import ANSWER_SECONDS, bounded

try:
    import sqlalchemy as sa
    from sqlalchemy import exc
    from sqlalchemy.dialects import mysql
    from sqlalchemy.schema import CreateTable
except ImportError as error:  # pragma: no cover - the extra is installed where the tests run
    advice = "a decision log in SQL needs SQLAlchemy: pip install 'onceward[sql]'"
    raise MissingExtraError(advice, name=error.name) from error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.pool import ConnectionPoolEntry

_log = logging.getLogger("onceward.log")
_WARNINGS: Final = "onceward warnings"
"""Key of a connection's record under which it has the server's warnings."""

RIGHTS: Final = "SELECT, INSERT, DELETE"
_FAMILY: Final = ("mysql", "mariadb")
_SYNCED: Final = ("1", "3")
"""Values of innodb_flush_log_at_trx_commit with which a commit answers after its redo log is on disk."""


def name_type(length: int) -> sa.types.TypeEngine[str]:
    """Return a text type that compares byte by byte: MariaDB's default collations would take `Orders` for `orders`."""
    exact = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(exact, *_FAMILY)


BYTES: Final = sa.LargeBinary().with_variant(mysql.LONGBLOB(), *_FAMILY)
"""Bytes without a limit that a decision could meet; MariaDB's BLOB ends at 65,535."""
TABLE: Final = sa.Table(
    "onceward_decision_log",
    sa.MetaData(),
    sa.Column("pipeline", name_type(PIPELINE_LENGTH), primary_key=True),
    sa.Column("entry", name_type(20), primary_key=True),
    sa.Column("data", BYTES, nullable=False),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)


class SqlStore:
    """LogStore in the table `onceward_decision_log` of a database.

    Args:
        url: SQLAlchemy URL, for example `sqlite:////var/lib/log.db` or `postgresql+psycopg://user@host/db`.
        pipeline: Name of the pipeline whose log it is; several pipelines share the table.
        existing: Make nothing; what is not there is an error.

    Raises:
        ConfigurationError: The URL is not usable, or the server or an existing table cannot keep what was put.
        StoreError: The database did not answer.
    """

    def __init__(self, url: str, *, pipeline: str, existing: bool = False) -> None:
        self.pipeline = check_pipeline_name(pipeline)
        self._mine = TABLE.c.pipeline == self.pipeline
        self._is_closed = False
        try:
            self._engine = sa.create_engine(
                url,
                pool_pre_ping=True,
                isolation_level=_isolation(url),
                hide_parameters=True,
                poolclass=sa.NullPool if existing else None,  # who only looks closes nothing
            )
        except (exc.ArgumentError, exc.NoSuchModuleError, ImportError) as error:
            raise ConfigurationError(f"not a usable database URL for a decision log: {text_of(error)}") from None
        except ValueError:  # of a part that is no number, which may be of a password
            raise ConfigurationError("not a usable database URL for a decision log: is a part not encoded?") from None
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _sync_every_commit)
        elif is_ambiguous(url, login=self._engine.url.username is not None):
            raise ConfigurationError(f"the URL of the decision log's database {AMBIGUOUS}")
        else:
            sa.event.listen(self._engine, "connect", _keep_warnings)
            sa.event.listen(self._engine, "connect", _prepare_nothing)
        try:
            self._check_there() if existing else self._create()
        except OncewardError:
            self.close()
            raise

    @bounded
    def _check_there(self) -> None:
        """Raise NoDecisionLogError if there is no log. Look for SQLite's file first: connecting would create it."""
        file = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        if (file is not None and not Path(file).exists()) or not self._has_table():
            raise NoDecisionLogError(f"{self.describe()} has no decision log")

    def _has_table(self) -> bool:
        with self._connected("look into") as connection:
            return bool(sa.inspect(connection).has_table(TABLE.name))

    @bounded
    def _create(self) -> None:
        with self._connected("look into") as connection:
            self._refuse(make_durable(connection))
            _warn_of_fsync(connection)
        try:
            with self._connected("make the decision log's table in") as connection:
                TABLE.metadata.create_all(connection)
        except (StoreError, exc.IntegrityError) as error:
            if not self._has_table():  # another process may have made it meanwhile
                statement = " ".join(str(CreateTable(TABLE).compile(self._engine)).split())
                raise StoreError(
                    f"{text_of(error)}. Let its administrator run this, and grant {RIGHTS} on the table: {statement}"
                ) from None
        with self._connected("look into") as connection:
            self._refuse(_unfit(connection))
        with self._connected(f"use the decision log's table, which needs {RIGHTS}, in") as connection:
            none = sa.select(TABLE).where(sa.false())
            connection.execute(TABLE.insert().from_select(TABLE.columns.keys(), none))
            connection.execute(TABLE.delete().where(self._mine, sa.false()))  # pruning says nothing if it may not

    def _refuse(self, why: str) -> None:
        if why:
            raise ConfigurationError(f"{self.describe()} cannot hold a decision log: {why}")

    @bounded
    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._put(key, TABLE.insert().values(pipeline=self.pipeline, entry=key, data=data))

    @bounded
    def put_behind(self, key: str, data: bytes, after: str, begins: bytes) -> bool:
        """See core/log/store.py: one statement, so that it is carried out by one server."""
        row = sa.select(TABLE.c.pipeline, sa.literal(key), sa.literal(data, BYTES))
        head = sa.func.substr(TABLE.c.data, 1, len(begins), type_=BYTES)
        predecessor = row.where(self._mine, TABLE.c.entry == after, head == begins)
        return self._put(key, TABLE.insert().from_select(TABLE.columns.keys(), predecessor))

    def _put(self, key: str, insert: sa.Insert) -> bool:
        try:
            with self._changing(f"write entry {key} in") as connection:
                return connection.execute(insert, execution_options={"preserve_rowcount": True}).rowcount > 0
        except exc.IntegrityError:
            self._confirm(key)
            return False

    def _confirm(self, key: str) -> None:
        """Commit something of one's own, so that the entry that is there already is as durable as that."""
        nothing = {"pipeline": self.pipeline, "entry": f"~{secrets.token_hex(8)}", "data": b""}
        with self._changing(f"confirm entry {key} in") as connection:
            connection.execute(TABLE.insert().values(**nothing))
            connection.execute(TABLE.delete().where(self._mine, TABLE.c.entry == nothing["entry"]))

    @bounded
    def get(self, key: str) -> bytes | None:
        query = sa.select(TABLE.c.data).where(self._mine, TABLE.c.entry == key)
        with self._connected(f"read entry {key} in") as connection:
            data = connection.execute(query).scalar_one_or_none()
        return None if data is None else bytes(data)

    @bounded
    def list_keys(self) -> list[str]:
        with self._connected("list") as connection:
            return sorted(connection.execute(sa.select(TABLE.c.entry).where(self._mine)).scalars())

    @bounded
    def delete(self, key: str) -> None:
        with self._changing(f"delete entry {key} in") as connection:
            connection.execute(TABLE.delete().where(self._mine, TABLE.c.entry == key))

    def describe(self) -> str:
        return f"database {shown_address(self._engine.url.render_as_string(hide_password=True))}"

    @property
    def shared(self) -> bool:
        return self._engine.dialect.name != "sqlite"

    def close(self) -> None:
        """Close the pooled connections."""
        self._is_closed = True
        self._engine.dispose()

    @contextmanager
    def _changing(self, what: str) -> Iterator[sa.Connection]:
        """Run a transaction that outlives a crash of the server once the block has ended."""
        with self._connected(what) as connection:
            why = make_durable(connection)
            if why:
                raise StoreError(f"cannot {what} {self.describe()}: {why}")
            warnings: list[str] = connection.info.get(_WARNINGS, [])
            yield connection
            warnings.clear()
        if warnings:
            raise StoreError(f"cannot {what} {self.describe()}: committed, with a warning: {'; '.join(warnings)}")

    @contextmanager
    def _connected(self, what: str) -> Iterator[sa.Connection]:
        """Run a transaction; a key that exists already remains an IntegrityError."""
        try:
            with self._engine.connect() as connection:
                try:
                    with connection.begin():
                        yield connection
                finally:
                    if self._is_closed:  # this call was given up, and the pool is gone
                        connection.invalidate()
        except exc.IntegrityError:
            raise
        except exc.SQLAlchemyError as error:
            cause = error.orig if isinstance(error, exc.StatementError) else None
            # Without the cause and the statement: SQLAlchemy's error holds the statement's parameters.
            raise StoreError(f"cannot {what} {self.describe()}: {' '.join(str(cause or error).split())}") from None


def _prepare_nothing(connection: Any, _: object) -> None:
    """Keep psycopg from preparing a statement on the server after it has executed it several times.

    Behind PgBouncer before 1.21 with transaction pooling, the next transaction may use another server connection, where
    the prepared statement does not exist.
    """
    if hasattr(connection, "prepare_threshold"):
        connection.prepare_threshold = None


def _keep_warnings(connection: object, record: ConnectionPoolEntry) -> None:
    """Collect what the server warns of, where the driver tells (psycopg)."""
    warnings: list[str] = []

    def keep(notice: Any) -> None:
        if notice.severity_nonlocalized == "WARNING":
            warnings.append(" ".join(filter(None, (notice.message_primary, notice.message_detail))))

    if hasattr(connection, "add_notice_handler"):
        connection.add_notice_handler(keep)
        record.info[_WARNINGS] = warnings


def _isolation(url: str) -> str:
    # SQLite knows no other; elsewhere a fresh snapshot for each statement is what "linearizable get" needs.
    return "SERIALIZABLE" if sa.make_url(url).get_backend_name() == "sqlite" else "READ COMMITTED"


def _sync_every_commit(connection: object, _: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    # With FULL, the unlink that commits a rollback journal is not synced: a power cut brings the journal back, and with
    # it the state before the commit (seen by strace; "PRAGMA synchronous", SQLite's documentation).
    cursor.execute("PRAGMA synchronous=EXTRA")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()


def make_durable(connection: sa.Connection) -> str:
    """See that the transaction just begun outlives a crash of the server once its commit has answered.

    Returns:
        Why it would not, and what to do; empty if it will.
    """
    if connection.dialect.name == "postgresql":
        setting = sa.func.current_setting("synchronous_commit")
        forced = sa.func.set_config("synchronous_commit", "on", True)
        connection.execute(
            sa.select(
                sa.case((setting != "remote_apply", forced)),  # which asks for more
                # A client that is gone holds its entry's slot until then.
                sa.func.set_config("idle_in_transaction_session_timeout", f"{ANSWER_SECONDS:g}s", True),
            )
        )
    elif connection.dialect.name in _FAMILY:
        return _unsafe_mariadb(connection)
    return ""


def _unsafe_mariadb(connection: sa.Connection) -> str:
    if not getattr(connection.dialect, "is_mariadb", False):
        return "the server is MySQL; only MariaDB is supported as the store of a decision log"
    names = ("innodb_flush_log_at_trx_commit", "log_bin", "sync_binlog", "wsrep_on")
    query = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN {names}"
    variables = {str(key): str(value) for key, value in connection.exec_driver_sql(query)}
    if variables.get("wsrep_on") == "ON":
        return "Galera answers reads on other nodes before they have all entries: use a server without Galera"
    unsafe = ""
    if variables["innodb_flush_log_at_trx_commit"] not in _SYNCED:
        unsafe = "innodb_flush_log_at_trx_commit"
    elif variables["log_bin"] == "ON" and variables["sync_binlog"] != "1":  # what it lacks after a crash is rolled back
        unsafe = "sync_binlog"
    return unsafe and (
        f"the server's {unsafe} is {variables[unsafe]}, so a crash of its machine could take back a decision that was "
        f"already acted on. Run SET GLOBAL {unsafe} = 1, and set it in the server's configuration file"
    )


def _warn_of_fsync(connection: sa.Connection) -> None:
    setting = sa.select(sa.func.current_setting("fsync"))
    if connection.dialect.name == "postgresql" and connection.scalar(setting) != "on":
        _log.warning("the decision log's server runs with fsync=off: a crash of its machine may lose decisions")


def _unfit(connection: sa.Connection) -> str:
    """Return why an existing table cannot hold a decision log, and what to do; empty if it can."""
    if connection.dialect.name not in _FAMILY:
        return ""
    inspector = sa.inspect(connection)
    kinds = {column["name"]: column["type"] for column in inspector.get_columns(TABLE.name)}
    exact = all(str(getattr(kinds[name], "collation", "")).endswith("_bin") for name in ("pipeline", "entry"))
    engine = inspector.get_table_options(TABLE.name).get(f"{connection.dialect.name}_engine")
    if exact and isinstance(kinds["data"], mysql.LONGBLOB) and engine == "InnoDB":
        return ""
    changes = [f"MODIFY {column.name} {column.type.compile(connection.dialect)} NOT NULL" for column in TABLE.columns]
    return (
        f"its table {TABLE.name} was made otherwise: a large decision, or names that differ in case only, would not "
        f"fit. Stop the pipelines that use it, and run ALTER TABLE {TABLE.name} {', '.join(changes)}, ENGINE=InnoDB"
    )
