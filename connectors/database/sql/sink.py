"""SqlAlchemySink: exactly once into a table of PostgreSQL, MariaDB or SQLite."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Self

from ..modes import CommitPath, commit_path, key_columns, positive, write_mode
from ..sink import DatabaseSink, Resolution
from . import ledger
from .checks import check_server, check_table, choose_path, path_without_server, read_server
from .listing import inspect, list_lingering, list_of_log
from .merging import abort_staged, commit_staged
from .options import read_sql_options
from .own_tables import ensure
from .prepared import PreparedWriting, abort_prepared, commit_prepared
from .staging import StagedWriting
from .tables import TableName
from .target import PREPARED, STAGED, Target
from .url import Url
from .writing import Writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from sqlalchemy import URL

    from onceward.core.names import Scope
    from onceward.core.transaction import Committable, Observation, Progress, WriteContext

_log = logging.getLogger("onceward.sql")


class SqlAlchemySink(DatabaseSink[Writing]):
    """Sink that writes rows into one table of an SQL database; each epoch becomes visible exactly once, at its commit.

    Args:
        name: See Sink.
        url: SQLAlchemy's URL of the database: `postgresql+psycopg://…`, `mariadb+pymysql://…` or
            `sqlite:////path/to/file.db`. It may hold a password, but PGPASSWORD, ~/.pgpass or pymysql's
            `?read_default_file=` is better.
        table: `table`, `schema.table`, or parts in double quotes. Columns are matched by name.
        mode: What is written: "insert", or "upsert" by `key`; "auto": upsert if there is a key.
        key: Columns of a unique index, for upserts. The last row of a key wins; within an epoch the order is
            (subtask, position in the subtask), so rows of one key should be in one subtask.
        create_table: Create the table from the data's schema if it is missing, `key` as its primary key.
        commit: How rows wait for the epoch's decision: "prepared" transactions (rows go into the table at once,
            invisible), or "staging" (rows go into a staging table and are merged by one transaction per epoch).
            "auto": staging for upserts, for SQLite and on servers without prepared transactions, else prepared;
            `commit_path` says which.
        lock_timeout: Seconds a statement may wait for another transaction's lock before the attempt fails. MariaDB
            takes whole seconds.
        answer_within: Seconds to wait for an answer before the connection is cut, connecting included.
        ledger_schema: Schema (on MariaDB: database) of onceward's own tables, the same for all runs of a pipeline;
            default: the connection's default one. It must exist.
        ledger_epochs: For how many completed epochs ledger rows are kept.
        parallelism: How many subtasks write at once, if known: `validate` then warns of too few prepared transactions.
        select: See Sink.
        where: See Sink.

    Raises:
        ConfigurationError: A setting is unknown or contradicts another.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | URL,
        table: str,
        mode: str = "auto",
        key: Sequence[str] | str | None = None,
        create_table: bool = False,
        commit: str = "auto",
        lock_timeout: float = 10.0,
        answer_within: float = 60.0,
        ledger_schema: str | None = None,
        ledger_epochs: int = 1000,
        parallelism: int | None = None,
        select: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(name, select=select, where=where)
        columns = key_columns(key)
        self.mode = write_mode(mode, columns)
        self.commit_mode = commit_path(commit)
        self.target = Target(
            url=Url(url),
            table=TableName.parse(table),
            key=columns,
            create_table=create_table,
            lock_timeout=positive("lock_timeout", lock_timeout),
            answer_within=positive("answer_within", answer_within),
            ledger_schema=ledger_schema,
        )
        self.ledger_epochs = int(positive("ledger_epochs", ledger_epochs))
        self.parallelism = parallelism
        self._path: CommitPath | None = path_without_server(self.commit_mode, self.target)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Make a sink from Spark's options: `url`, `dbtable` (or `table`), and the arguments above, in any case.

        Raises:
            ConfigurationError: An option is unknown, missing or not readable.
        """
        return cls(**read_sql_options(options))

    @property
    def commit_path(self) -> str | None:
        """How rows wait: "prepared" or "staging"; None until commit="auto" has asked the server."""
        return None if self._path is None else str(self._path)

    def __repr__(self) -> str:
        key = f", key={list(self.target.key)}" if self.target.key else ""
        what = f"{self.name!r}, table={str(self.target.table)!r}, mode={self.mode!r}{key}"
        return f"SqlAlchemySink({what}, url={str(self.target.url)!r})"

    def resolutions(self) -> Mapping[str, Resolution]:
        return {
            PREPARED: Resolution(partial(commit_prepared, self.target), partial(abort_prepared, self.target)),
            STAGED: Resolution(partial(commit_staged, self.target), partial(abort_staged, self.target)),
        }

    def validate(self, schema: pa.Schema) -> None:
        """Check connection, setup, table, columns and key; create what is missing and was requested."""
        facts = read_server(self.target)
        self._path, why = choose_path(self.commit_mode, self.target, facts)
        check_server(facts, self.target, self.parallelism, self._path)
        _log.info("sink %s commits through %s: %s", self.name, self._path, why)
        ensure(self.target)
        check_table(self.target, schema, self._path)

    def begin(self, context: WriteContext) -> Writing:
        """Open a transaction, or start to collect rows for staging."""
        if self._path is None:
            self._path, why = choose_path(self.commit_mode, self.target, read_server(self.target))
            _log.info("sink %s commits through %s: %s", self.name, self._path, why)
        return (PreparedWriting if self._path is CommitPath.PREPARED else StagedWriting)(self.target, context)

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """List what is prepared in this database, or staged beside this ledger, under exactly these names."""
        return list_lingering(self.target, scope.pipeline, scope.sink)

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        """List the same for all sinks of this pipeline and log."""
        return list_of_log(self.target, pipeline, log)

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        """Ask the database about each transaction."""
        return inspect(self.target, committables)

    def check_claim(self, scope: Scope, newest: Progress) -> None:
        ledger.check(self.target, scope, newest)

    def claim(self, scope: Scope) -> None:
        """Record in the ledger that this decision log owns the names."""
        ledger.claim(self.target, scope)

    def release(self, scope: Scope) -> None:
        """Hand the names over to this decision log, and set aside how far it had come."""
        ledger.release(self.target, scope)

    def completed(self, scope: Scope, epoch: int) -> None:
        """Prune the ledger periodically."""
        if ledger.prune_due(epoch) and epoch > self.ledger_epochs:
            ledger.prune(self.target, scope, epoch - self.ledger_epochs + 1)
