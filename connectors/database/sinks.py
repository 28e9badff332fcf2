"""PostgresSink and SqlAlchemySink: exactly once into a table of PostgreSQL, MariaDB or SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import URL  # noqa: TC002 - options are read by the signature

from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import check_types

from .sink import DatabaseSink, key_columns
from .target import LEDGER_SCHEMA, CommitPath, TableName, Target, Url

if TYPE_CHECKING:
    from collections.abc import Sequence


class PostgresSink(DatabaseSink):
    """Sink that writes rows into one PostgreSQL table; each epoch becomes visible exactly once, at its commit.

    Args:
        name: Unique in its pipeline, up to 32 letters, digits, `.`, `_` and `-`. It is part of every transaction's
            name, so it must not change between runs.
        dsn: Connection string of psycopg and libpq. It may hold a password, but PGPASSWORD or ~/.pgpass is better.
        table: `table`, `schema.table`, or quoted parts as in SQL: `"My Schema"."T"`. Columns are matched by name.
        mode: What is written: "insert", or "upsert" by `key`. "auto": upsert if there is a key. "prepared" and
            "staging" are short for "auto" with that `commit`.
        key: Columns of a primary key or unique index, for upserts. If an epoch has several rows with the same key, the
            last one wins, in the order (subtask, position in the subtask); so rows with the same key should be in one
            subtask. As an option, comma-separated.
        change_column: Text column that says whether a row inserts, updates or deletes the row with its key;
            docs/postgres.md lists the values. The column itself is not written.
        create_table: Create the table from the data's schema if it is missing, with `key` as its primary key.
        commit: How rows wait for the epoch's decision: in "prepared" transactions (rows go into the table at once,
            invisible; needs `max_prepared_transactions`), or in "staging" tables (one transaction for each epoch merges
            them into the table). "auto": staging for upserts, for tables with foreign keys and on servers without
            prepared transactions, prepared otherwise; `sink.commit_path` says which.
        lock_timeout: Seconds for which a statement may wait for another transaction's lock before the attempt fails.
        answer_within: Seconds to wait for an answer, for example to a commit, before the connection is closed and the
            server is asked for the outcome.
        ledger_schema: Schema of onceward's own tables. It must not change between runs of a pipeline.
        ledger_epochs: Number of completed epochs whose ledger rows are kept. The newest rows are kept however old they
            are.
        proof: Hash the rows that are inserted, so that `onceward verify` can tell whether the table still holds them.
            Rows of an upsert are not hashed: the table keeps only the last of each key.
        select: SQL expressions that make this sink's columns out of the pipeline's. Default: all columns.
        where: SQL condition; the sink takes only the rows for which it is true. Default: all rows.

    Raises:
        ConfigurationError: A setting is unknown or contradicts another.
    """

    default_name = "postgres"

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
        proof: bool = True,
        select: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        check_types(PostgresSink, locals())
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
            proof=proof and not key,
        )
        super().__init__(
            name, target, mode=mode, commit=commit, ledger_epochs=ledger_epochs, select=select, where=where
        )


class SqlAlchemySink(DatabaseSink):
    """Sink that writes rows into one table of an SQL database; each epoch becomes visible exactly once, at its commit.

    Args:
        name: Unique in its pipeline, up to 32 letters, digits, `.`, `_` and `-`. It is part of every transaction's
            name, so it must not change between runs.
        url: SQLAlchemy's URL of the database: `postgresql+psycopg://…`, `mariadb+pymysql://…` or
            `sqlite:////path/to/file.db`. It may hold a password, but PGPASSWORD, ~/.pgpass or pymysql's
            `?read_default_file=…` is better. A character such as `@` in a password must be percent-encoded (`%40`).
        table: `table`, `schema.table`, or parts in double quotes. Case-sensitive. Columns are matched by name.
        mode: What is written: "insert", or "upsert" by `key`. "auto": upsert if there is a key.
        key: Columns of a primary key or unique index, for upserts. If an epoch has several rows with the same key, the
            last one wins, in the order (subtask, position in the subtask); so rows with the same key should be in one
            subtask. As an option, comma-separated.
        create_table: Create the table from the data's schema if it is missing, with `key` as its primary key.
        commit: How rows wait for the epoch's decision: in "prepared" transactions (rows go into the table at once,
            invisible), or in "staging" tables (one transaction for each epoch merges them into the table). "auto":
            staging for upserts, for SQLite, for tables with foreign keys and on servers without prepared transactions,
            prepared otherwise; `sink.commit_path` says which.
        lock_timeout: Seconds for which a statement may wait for another transaction's lock before the attempt fails.
            MariaDB takes whole seconds.
        answer_within: Seconds to wait for an answer, including the time to connect, before the connection is closed.
        ledger_schema: Schema (on MariaDB: database, which must exist) of onceward's own tables. It must not change
            between runs of a pipeline. Default: `onceward` on PostgreSQL, as for PostgresSink; elsewhere the
            connection's default one.
        ledger_epochs: Number of completed epochs whose ledger rows are kept. The newest rows are kept however old they
            are.
        proof: Hash the rows that are inserted, so that `onceward verify` can tell whether the table still holds them.
            Rows of an upsert are not hashed: the table keeps only the last one of each key.
        select: SQL expressions that make this sink's columns out of the pipeline's. Default: all columns.
        where: SQL condition; the sink takes only the rows for which it is true. Default: all rows.

    Raises:
        ConfigurationError: A setting is unknown or contradicts another.
    """

    default_name = "sql"

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
        proof: bool = True,
        select: Sequence[str] | None = None,
        where: str | None = None,
    ) -> None:
        check_types(SqlAlchemySink, locals())
        address = Url.of(url)
        is_postgres = address.backend == "postgresql"
        keys = key_columns(key)
        target = Target(
            url=address,
            table=TableName.parse(table),
            key=keys,
            create_table=create_table,
            lock_timeout=lock_timeout,
            answer_within=answer_within,
            ledger_schema=LEDGER_SCHEMA if ledger_schema is None and is_postgres else ledger_schema,
            proof=proof and not keys,
        )
        super().__init__(
            name, target, mode=mode, commit=commit, ledger_epochs=ledger_epochs, select=select, where=where
        )
