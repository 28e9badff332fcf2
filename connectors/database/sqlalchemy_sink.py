"""SqlAlchemySink: exactly once into a table of PostgreSQL, MariaDB or SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from sqlalchemy import URL  # noqa: TC002 - options are read by the signature

from .sink import DatabaseSink, key_columns
from .target import LEDGER_SCHEMA, TableName, Target, Url

if TYPE_CHECKING:
    from collections.abc import Sequence


class SqlAlchemySink(DatabaseSink):
    """Sink that writes rows into one table of an SQL database; each epoch becomes visible exactly once, at its commit.

    Args:
        name: Unique in its pipeline, and part of every transaction's name: it must not change between runs.
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
        ledger_schema: Schema (on MariaDB: database) of onceward's own tables, the same for all runs of a pipeline.
            Default: on PostgreSQL `onceward`, as PostgresSink's; elsewhere the connection's default one.
        ledger_epochs: For how many completed epochs ledger rows are kept.
        parallelism: How many subtasks write at once, if known: `validate` then warns of too few prepared transactions.
        select: SQL expressions that make this sink's columns out of the pipeline's; default: all columns.
        where: SQL condition; this sink gets only the rows for which it is true; default: all rows.

    Raises:
        ConfigurationError: A setting is unknown or contradicts another.
    """

    default_name: ClassVar[str] = "sql"

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
        address = Url(url)
        target = Target(
            url=address,
            table=TableName.parse(table),
            key=key_columns(key),
            create_table=create_table,
            lock_timeout=lock_timeout,
            answer_within=answer_within,
            ledger_schema=LEDGER_SCHEMA if ledger_schema is None and address.backend == "postgresql" else ledger_schema,
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
