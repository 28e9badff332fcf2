"""PostgresSink: exactly once into a PostgreSQL table."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Self

from ..modes import CommitPath, key_columns, positive, write_mode
from ..sink import DatabaseSink, Resolution
from .checks import check_server, check_table, choose_path, read_server
from .connections import borrowed
from .dsn import Dsn
from .ledger import DEFAULT_SCHEMA, Ledger, prune_due
from .listing import PREPARED, STAGED, list_lingering, list_of_log
from .merging import abort_staged, commit_staged
from .options import ALL_MODES, checked_change_column, commit_mode, read_postgres_options
from .prepared import PreparedWriting, abort_prepared, commit_prepared
from .staging import StagedWriting
from .states import inspect
from .tables import TableName
from .target import Target
from .writing import Writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from onceward.core.names import Scope
    from onceward.core.transaction import Committable, Observation, Progress, WriteContext

    from .connections import Connection

_log = logging.getLogger("onceward.postgres")


class PostgresSink(DatabaseSink[Writing]):
    """Sink that writes rows into one PostgreSQL table; each epoch becomes visible exactly once, at its commit.

    Args:
        name: See Sink.
        dsn: Connection string of psycopg and libpq. It may hold a password, but PGPASSWORD or ~/.pgpass is better.
        table: `table`, `schema.table`, or quoted parts as in SQL: `"My Schema"."T"`. Columns are matched by name.
        mode: What is written: "insert", or "upsert" by `key`; "auto": upsert if there is a key. "prepared" and
            "staging" are "auto" with that `commit`.
        key: Columns of a unique index, for upserts. The last row of a key wins; within an epoch the order is
            (subtask, position in the subtask), so rows of one key should be in one subtask.
        change_column: Column that says which rows of an upsert delete what has their key: "delete", "d", "-D"; the
            other values of Debezium's `op`, Delta Lake's `_change_type` and Flink's RowKind upsert, or mark
            the old row of an update and are ignored. It is not written.
        create_table: Create the table from the data's schema if it is missing, `key` as its primary key.
        commit: How rows wait for the epoch's decision: "prepared" transactions (rows go into the table at once,
            invisible; needs max_prepared_transactions), or "staging" (rows go into a staging table and are merged
            by one transaction per epoch). "auto": staging for upserts and on servers without prepared transactions,
            else prepared; `commit_path` says which.
        lock_timeout: Seconds a statement may wait for another transaction's lock before the attempt fails.
        answer_within: Seconds to wait for an answer at commit before the connection is cut and the server asked.
        ledger_schema: Schema of onceward's own tables, the same for all runs of a pipeline.
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
        dsn: str,
        table: str,
        mode: str = "auto",
        key: Sequence[str] | str | None = None,
        change_column: str | None = None,
        create_table: bool = False,
        commit: str = "auto",
        lock_timeout: float = 10.0,
        answer_within: float = 60.0,
        ledger_schema: str = DEFAULT_SCHEMA,
        ledger_epochs: int = 1000,
        parallelism: int | None = None,
        select: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(name, select=select, where=where)
        columns = key_columns(key)
        self.mode = write_mode(mode, columns, ALL_MODES)
        self.commit_mode = commit_mode(mode, commit)
        self.target = Target(
            dsn=Dsn(dsn),
            table=TableName.parse(table),
            ledger=Ledger(ledger_schema),
            key=columns if self.mode == "upsert" else (),
            change=checked_change_column(change_column, columns if self.mode == "upsert" else ()),
            create_table=create_table,
            lock_timeout=positive("lock_timeout", lock_timeout),
            answer_within=positive("answer_within", answer_within),
        )
        self.ledger_epochs = int(positive("ledger_epochs", ledger_epochs))
        self.parallelism = parallelism
        self._path: CommitPath | None = None
        if self.commit_mode is not CommitPath.AUTO or columns:
            self._path, _ = choose_path(self.commit_mode, self.target, max_prepared=1)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Make a sink from Spark's options: `dsn`, `dbtable` (or `table`), and the arguments above, in any case.

        Raises:
            ConfigurationError: An option is unknown, missing or not readable.
        """
        return cls(**read_postgres_options(options))

    @property
    def commit_path(self) -> str | None:
        """How rows wait: "prepared" or "staging"; None until commit="auto" has asked the server."""
        return None if self._path is None else str(self._path)

    def __repr__(self) -> str:
        key = f", key={list(self.target.key)}" if self.target.key else ""
        what = f"{self.name!r}, table={str(self.target.table)!r}, mode={self.mode!r}{key}"
        return f"PostgresSink({what}, dsn={str(self.target.dsn)!r})"

    def resolutions(self) -> Mapping[str, Resolution]:
        return {
            PREPARED: Resolution(partial(commit_prepared, self.target), partial(abort_prepared, self.target)),
            STAGED: Resolution(partial(commit_staged, self.target), partial(abort_staged, self.target)),
        }

    def validate(self, schema: pa.Schema) -> None:
        """Check connection, setup, table, columns and privileges; create what is missing and was requested."""
        with self._borrowed("cannot validate") as connection:
            facts = read_server(connection)
            self._path, why = choose_path(self.commit_mode, self.target, facts.max_prepared)
            check_server(facts, self.target, self.parallelism, self._path)
            _log.info("sink %s commits through %s: %s", self.name, self._path, why)
            self.target.ledger.ensure(connection)
            check_table(connection, self.target, self.name, schema, self._path)

    def begin(self, context: WriteContext) -> Writing:
        """Open a transaction on a connection of this process."""
        if self._path is None:
            with self._borrowed("cannot begin") as connection:
                self._path, why = choose_path(self.commit_mode, self.target, read_server(connection).max_prepared)
            _log.info("sink %s commits through %s: %s", self.name, self._path, why)
        return (PreparedWriting if self._path is CommitPath.PREPARED else StagedWriting)(self.target, context)

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """List what is prepared in this database, or staged in this ledger schema, under exactly these names."""
        with self._borrowed("cannot list") as connection:
            return list_lingering(connection, self.target.ledger, scope.pipeline, scope.sink)

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        """List the same for all sinks of this pipeline and log."""
        with self._borrowed("cannot list") as connection:
            return list_of_log(connection, self.target.ledger, pipeline, log)

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        """Ask the server about each transaction."""
        return inspect(self.target, committables)

    def check_claim(self, scope: Scope, newest: Progress) -> None:
        with self._borrowed("cannot check who owns the names") as connection:
            self.target.ledger.check(connection, scope, newest)

    def claim(self, scope: Scope) -> None:
        """Record in the ledger that this decision log owns the names."""
        with self._borrowed("cannot claim") as connection:
            self.target.ledger.claim(connection, scope)

    def release(self, scope: Scope) -> None:
        """Hand the names over to this decision log, and set aside how far it had come."""
        with self._borrowed("cannot release") as connection:
            self.target.ledger.release(connection, scope)

    def completed(self, scope: Scope, epoch: int) -> None:
        """Prune the ledger periodically."""
        if prune_due(epoch) and epoch > self.ledger_epochs:
            with self._borrowed("cannot prune") as connection:
                self.target.ledger.prune(connection, scope, epoch - self.ledger_epochs + 1)

    def _borrowed(self, what: str) -> AbstractContextManager[Connection]:
        return borrowed(self.target.dsn, f"{what} (sink {self.name})", answer_within=self.target.answer_within)
