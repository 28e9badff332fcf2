"""A decision log in a SQL table, through SQLAlchemy: an insert on a primary key is put-if-absent.

SQLite is the embedded default; PostgreSQL serves several machines. On SQLite every commit is synced
(`synchronous=FULL`), because its default in WAL mode may lose the last commits in a power failure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigurationError, StoreError
from ..names import check_pipeline_name

try:
    import sqlalchemy as sa
    from sqlalchemy import exc
except ImportError as error:  # pragma: no cover - the extra is installed where the tests run
    raise ConfigurationError("a decision log in SQL needs SQLAlchemy: pip install 'onceward[sql]'") from error

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry

_TABLE = sa.Table(
    "onceward_decision_log",
    sa.MetaData(),
    sa.Column("pipeline", sa.String(64), primary_key=True),
    sa.Column("entry", sa.String(20), primary_key=True),
    sa.Column("data", sa.LargeBinary, nullable=False),
)


class SqlStore:
    """LogStore in the table `onceward_decision_log` of a database.

    Args:
        url: SQLAlchemy URL, for example `sqlite:////var/lib/log.db` or `postgresql+psycopg://user@host/db`.
        pipeline: Whose log; several pipelines share the table.
        existing: Make nothing; what is not there is an error.
    """

    def __init__(self, url: str, *, pipeline: str, existing: bool = False) -> None:
        self.pipeline = check_pipeline_name(pipeline)
        try:
            self._engine = sa.create_engine(url, pool_pre_ping=True, isolation_level=_isolation(url))
        except (exc.ArgumentError, exc.NoSuchModuleError, ImportError) as error:
            raise ConfigurationError(f"not a usable database URL for a decision log: {error}") from error
        except ValueError:  # of a part that is no number, which may be of a password
            raise ConfigurationError("not a usable database URL for a decision log: is a part not encoded?") from None
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _sync_every_commit)
        if existing:
            self._check_there()
            return
        try:
            _TABLE.metadata.create_all(self._engine)
        except exc.SQLAlchemyError as error:
            if not self._has_table():  # else another process made it meanwhile
                raise StoreError(f"cannot make the decision log's table in {self.describe()}: {error}") from error

    def _check_there(self) -> None:
        """Without making anything; SQLite would make the file."""
        file = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        try:
            there = (file is None or Path(file).exists()) and sa.inspect(self._engine).has_table(_TABLE.name)
        except exc.SQLAlchemyError as error:
            raise StoreError(f"cannot look into {self.describe()}: {error}") from error
        if not there:
            raise ConfigurationError(f"{self.describe()} has no decision log")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See LogStore."""
        try:
            with self._engine.begin() as connection:
                connection.execute(_TABLE.insert().values(pipeline=self.pipeline, entry=key, data=data))
        except exc.IntegrityError:
            return False
        except exc.SQLAlchemyError as error:
            raise StoreError(f"cannot write entry {key} in {self.describe()}: {error}") from error
        return True

    def get(self, key: str) -> bytes | None:
        """See LogStore."""
        query = sa.select(_TABLE.c.data).where(self._mine, _TABLE.c.entry == key)
        try:
            with self._engine.begin() as connection:
                data = connection.execute(query).scalar_one_or_none()
        except exc.SQLAlchemyError as error:
            raise StoreError(f"cannot read entry {key} in {self.describe()}: {error}") from error
        return None if data is None else bytes(data)

    def list_keys(self) -> list[str]:
        """See LogStore."""
        query = sa.select(_TABLE.c.entry).where(self._mine)
        try:
            with self._engine.begin() as connection:
                return sorted(connection.execute(query).scalars())
        except exc.SQLAlchemyError as error:
            raise StoreError(f"cannot list {self.describe()}: {error}") from error

    def delete(self, key: str) -> None:
        """See LogStore."""
        try:
            with self._engine.begin() as connection:
                connection.execute(_TABLE.delete().where(self._mine, _TABLE.c.entry == key))
        except exc.SQLAlchemyError as error:
            raise StoreError(f"cannot delete entry {key} in {self.describe()}: {error}") from error

    def describe(self) -> str:
        """See LogStore."""
        return f"database {self._engine.url.render_as_string(hide_password=True)}"

    @property
    def shared(self) -> bool:
        """See LogStore."""
        return self._engine.dialect.name != "sqlite"

    def close(self) -> None:
        """Close the pooled connections."""
        self._engine.dispose()

    def _has_table(self) -> bool:
        try:
            return sa.inspect(self._engine).has_table(_TABLE.name)
        except exc.SQLAlchemyError:
            return False

    @property
    def _mine(self) -> sa.ColumnElement[bool]:
        return _TABLE.c.pipeline == self.pipeline


def _isolation(url: str) -> str:
    # SQLite knows no other; elsewhere a fresh snapshot for each statement is what "linearizable get" needs.
    return "SERIALIZABLE" if sa.make_url(url).get_backend_name() == "sqlite" else "READ COMMITTED"


def _sync_every_commit(connection: object, _: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()
