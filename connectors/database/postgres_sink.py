"""PostgresSink: exactly once into a PostgreSQL table."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pgpq as _pgpq  # noqa: F401 - what PostgreSQL needs is missed here, and not when rows are written
import psycopg as _psycopg  # noqa: F401

from onceward.core.errors import ConfigurationError

from .sink import DatabaseSink, key_columns
from .target import LEDGER_SCHEMA, CommitPath, TableName, Target, Url

if TYPE_CHECKING:
    from collections.abc import Sequence


class PostgresSink(DatabaseSink):
    """Sink that writes rows into one PostgreSQL table; each epoch becomes visible exactly once, at its commit.

    Args:
        name: Unique in its pipeline, and part of every transaction's name: it must not change between runs.
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
        select: SQL expressions that make this sink's columns out of the pipeline's; default: all columns.
        where: SQL condition; this sink gets only the rows for which it is true; default: all rows.

    Raises:
        ConfigurationError: A setting is unknown or contradicts another.
    """

    default_name: ClassVar[str] = "postgres"

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
        ledger_schema: str = LEDGER_SCHEMA,
        ledger_epochs: int = 1000,
        parallelism: int | None = None,
        select: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        if mode in (CommitPath.PREPARED, CommitPath.STAGING):
            if commit not in (CommitPath.AUTO, mode):
                raise ConfigurationError(f"mode {mode!r} contradicts commit {commit!r}")
            mode, commit = "auto", mode
        target = Target(
            url=Url.from_dsn(dsn),
            table=TableName.parse(table, fold=True),
            key=key_columns(key),
            change=change_column,
            create_table=create_table,
            lock_timeout=lock_timeout,
            answer_within=answer_within,
            ledger_schema=ledger_schema,
            tries_rows=False,
        )
        super().__init__(
            name,
            target,
            mode=mode,
            commit=commit,
            ledger_epochs=ledger_epochs,
            parallelism=parallelism,
            select=select,
            where=where,
        )
