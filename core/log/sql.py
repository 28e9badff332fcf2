"""A decision log in a SQL table, through SQLAlchemy: an insert on a primary key is put-if-absent.

SQLite is the embedded default; PostgreSQL and MariaDB serve several machines. Every commit is synced, whatever the
defaults say: on SQLite by `synchronous=FULL`, elsewhere see sql_servers.py.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, NoDecisionLogError, StoreError
from ..names import PIPELINE_LENGTH, check_pipeline_name

try:
    import sqlalchemy as sa
    from sqlalchemy import exc
except ImportError as error:  # pragma: no cover - the extra is installed where the tests run
    raise ConfigurationError("a decision log in SQL needs SQLAlchemy: pip install 'onceward[sql]'") from error

from .sql_servers import data_type, make_durable, name_type, unfit, warn_of_fsync

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.pool import ConnectionPoolEntry

_TABLE = sa.Table(
    "onceward_decision_log",
    sa.MetaData(),
    sa.Column("pipeline", name_type(PIPELINE_LENGTH), primary_key=True),
    sa.Column("entry", name_type(20), primary_key=True),
    sa.Column("data", data_type(), nullable=False),
    mysql_engine="InnoDB",
    mariadb_engine="InnoDB",
)


class SqlStore:
    """LogStore in the table `onceward_decision_log` of a database.

    Args:
        url: SQLAlchemy URL, for example `sqlite:////var/lib/log.db` or `postgresql+psycopg://user@host/db`.
        pipeline: Whose log; several pipelines share the table.
        existing: Make nothing; what is not there is an error.

    Raises:
        ConfigurationError: The URL is not usable, or the server or an existing table cannot keep what was put.
        StoreError: The database did not answer.
    """

    def __init__(self, url: str, *, pipeline: str, existing: bool = False) -> None:
        self.pipeline = check_pipeline_name(pipeline)
        try:
            self._engine = sa.create_engine(
                url, pool_pre_ping=True, isolation_level=_isolation(url), hide_parameters=True
            )
        except (exc.ArgumentError, exc.NoSuchModuleError, ImportError) as error:
            raise ConfigurationError(f"not a usable database URL for a decision log: {error}") from error
        except ValueError:  # of a part that is no number, which may be of a password
            raise ConfigurationError("not a usable database URL for a decision log: is a part not encoded?") from None
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _sync_every_commit)
        if existing:
            self._check_there()
        else:
            self._create()

    def _check_there(self) -> None:
        """Without making anything; SQLite would make the file."""
        file = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        if file is not None and not Path(file).exists():
            raise NoDecisionLogError(f"{self.describe()} has no decision log")
        with self._connected("look into") as connection:
            if not sa.inspect(connection).has_table(_TABLE.name):
                raise NoDecisionLogError(f"{self.describe()} has no decision log")

    def _create(self) -> None:
        with self._connected("look into") as connection:
            self._refuse(make_durable(connection))
            warn_of_fsync(connection)
        try:
            with self._connected("make the decision log's table in") as connection:
                _TABLE.metadata.create_all(connection)
        except (StoreError, exc.IntegrityError):
            with self._connected("look into") as connection:  # another process may have made it meanwhile
                if not sa.inspect(connection).has_table(_TABLE.name):
                    raise
        with self._connected("look into") as connection:
            self._refuse(unfit(connection, _TABLE))

    def _refuse(self, why: str) -> None:
        if why:
            raise ConfigurationError(f"{self.describe()} cannot hold a decision log: {why}")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        try:
            with self._changing(f"write entry {key} in") as connection:
                connection.execute(_TABLE.insert().values(pipeline=self.pipeline, entry=key, data=data))
        except exc.IntegrityError:
            return False
        return True

    def get(self, key: str) -> bytes | None:
        query = sa.select(_TABLE.c.data).where(self._mine, _TABLE.c.entry == key)
        with self._connected(f"read entry {key} in") as connection:
            data = connection.execute(query).scalar_one_or_none()
        return None if data is None else bytes(data)

    def list_keys(self) -> list[str]:
        with self._connected("list") as connection:
            return sorted(connection.execute(sa.select(_TABLE.c.entry).where(self._mine)).scalars())

    def delete(self, key: str) -> None:
        with self._changing(f"delete entry {key} in") as connection:
            connection.execute(_TABLE.delete().where(self._mine, _TABLE.c.entry == key))

    def describe(self) -> str:
        return f"database {self._engine.url.render_as_string(hide_password=True)}"

    @property
    def shared(self) -> bool:
        return self._engine.dialect.name != "sqlite"

    def close(self) -> None:
        """Close the pooled connections."""
        self._engine.dispose()

    @contextmanager
    def _changing(self, what: str) -> Iterator[sa.Connection]:
        """A transaction that outlives a crash of the server once the block has ended."""
        with self._connected(what) as connection:
            why = make_durable(connection)
            if why:
                raise StoreError(f"cannot {what} {self.describe()}: {why}")
            yield connection

    @contextmanager
    def _connected(self, what: str) -> Iterator[sa.Connection]:
        """A transaction; a key that is there already stays an IntegrityError."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except exc.IntegrityError:
            raise
        except exc.SQLAlchemyError as error:
            # Without the cause: SQLAlchemy's error holds the statement's parameters.
            raise StoreError(f"cannot {what} {self.describe()}: {_words(error)}") from None

    @property
    def _mine(self) -> sa.ColumnElement[bool]:
        return _TABLE.c.pipeline == self.pipeline


def _words(error: exc.SQLAlchemyError) -> str:
    """What the database said, on one line, without the statement."""
    said = error.orig if isinstance(error, exc.StatementError) else None
    return " ".join(str(said or error).split())


def _isolation(url: str) -> str:
    # SQLite knows no other; elsewhere a fresh snapshot for each statement is what "linearizable get" needs.
    return "SERIALIZABLE" if sa.make_url(url).get_backend_name() == "sqlite" else "READ COMMITTED"


def _sync_every_commit(connection: object, _: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()
