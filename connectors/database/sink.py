"""PostgresSink and SqlAlchemySink, two interfaces to one sink: a target, two ways to commit, and the ledger."""

from __future__ import annotations

import logging
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, get_args

import sqlalchemy as sa
from sqlalchemy import URL

from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import Committable, Observation
from onceward.core.errors import ConfigurationError, SchemaError
from onceward.core.kit.secrets import without_logins
from onceward.core.kit.text_options import check_seconds, check_types
from onceward.sinks import TwoPhaseCommitSink

from . import ledger_tables
from .capabilities import load_part
from .column_matching import check_given, without_change
from .engines import dialect_for, read_server, reading, two_phase_for
from .ledger_tables import DatabaseLedger
from .merging import abort_staged, commit_staged
from .own_tables import ask_own_tables, ensure, exists, staged_handle, tables_of
from .prepared import abort_prepared, commit_prepared
from .tables import check_trial, describe
from .target import (
    LEDGER_SCHEMA,
    PREPARED,
    STAGED,
    CommitMode,
    CommitPath,
    DatabaseTarget,
    TableName,
    Url,
    WriteMode,
    own_name,
    unusable,
)
from .writing import Writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from onceward.core.contract.transaction import AbortOutcome, CommitOutcome, WriteContext
    from onceward.core.kit.text_options import Names

    from .dialect import ServerFacts
    from .loader import Loader

_log = logging.getLogger("onceward.database")

MODES: Final = get_args(WriteMode)
_KINDS: Final = (PREPARED, STAGED)


class DatabaseSink(TwoPhaseCommitSink[Writing]):
    """Base of PostgresSink and SqlAlchemySink.

    Attributes:
        mode: "insert" or "upsert".
    """

    option_aliases: ClassVar[Mapping[str, str]] = {"dbtable": "table", "table": "table"}
    mode: str
    target: DatabaseTarget

    def __init__(
        self,
        name: str,
        target: DatabaseTarget,
        *,
        mode: str,
        commit: str,
        ledger_epochs: int,
        select: Names | None,
        where: str | None,
    ) -> None:
        super().__init__(name, select=select, where=where)
        self.mode = _write_mode(mode, target)
        if commit not in list(CommitPath):
            raise ConfigurationError(f"commit {commit!r} is unknown: give one of {', '.join(CommitPath)}")
        self.commit_mode = CommitPath(commit)
        self.target = target
        check_seconds("lock_timeout", target.lock_timeout)
        check_seconds("answer_within", target.answer_within)
        if target.ledger_schema is not None and (refused := unusable(target.ledger_schema, target.url.capabilities)):
            raise ConfigurationError(f"ledger_schema {target.ledger_schema!r} {refused}")
        if ledger_epochs <= 0:
            raise ConfigurationError(f"ledger_epochs must be above 0, not {ledger_epochs}")
        self.ledger_epochs = ledger_epochs
        self._path = choose_path(self.commit_mode, self.target)

    @property
    def commit_path(self) -> str | None:
        """How rows wait: "prepared" or "staging"; None until commit="auto" has asked the server."""
        return None if self._path is CommitPath.AUTO else str(self._path)

    @property
    def ordered(self) -> bool:
        """Whether of two rows with one key the later one stays."""
        return bool(self.target.key)

    def __repr__(self) -> str:
        key = f", key={list(self.target.key)}" if self.target.key else ""
        what = f"{self.name!r}, table={str(self.target.table)!r}, mode={self.mode!r}{key}"
        return without_logins(f"{type(self).__name__}({what}, url={str(self.target.url)!r})")

    def dataset(self) -> tuple[str, str] | None:
        url, table, known = self.target.url.parsed, self.target.table, self.target.url.capabilities
        namespace = known.lineage if url.host is None else f"{known.lineage}://{url.host}:{url.port or known.port}"
        schema = table.schema or known.default_schema
        whole = [schema or url.database] if known.schema_is_database else [url.database, schema]
        return namespace, ".".join(part for part in (*whole, table.table) if part)

    def check_schema(self, schema: pa.Schema) -> None:
        """Check that no column is given twice, that those of the key are there, and the change column's type."""
        try:
            check_given(without_change(schema, self.target.change), str(self.target.table), self.target.key)
        except SchemaError as error:
            raise SchemaError(error.message, sink=self.name) from None

    def validate(self, schema: pa.Schema) -> None:
        """Check connection, setup, table, columns, key and rights; create what is missing and was requested."""
        table = self.check_table(schema)
        if self._path is CommitPath.STAGING:
            check_trial(self.target, table)

    def check_table(self, schema: pa.Schema | None) -> sa.TableClause:
        """Check server, table, columns, key and rights.

        Args:
            schema: The schema of the data; None to check only what does not depend on it, and to create nothing.

        Returns:
            The table.
        """
        facts, url = self._choose_path(), self.target.url
        if facts.unusable:
            raise ConfigurationError(f"cannot write through {url}: {facts.unusable}")
        for warning in facts.warnings:
            _log.warning("%s: %s", url, warning)
        if schema is not None:
            ensure(self.target)
        own = [table.name for table in tables_of(self.target).metadata.sorted_tables]
        return loader_for(self.target).check_table(self.name, schema, self._path, own)

    def _choose_path(self) -> ServerFacts:
        facts = read_server(self.target)
        if facts.max_prepared and self._has_foreign_keys():
            why = "the table has foreign keys, and a prepared transaction does not see the rows of others"
            if self.commit_mode is CommitPath.AUTO:
                facts = replace(facts, max_prepared=0, why_none=why)
            elif self.commit_mode is CommitPath.PREPARED:
                _log.warning("sink %s: %s: if another sink writes these, use commit='staging'", self.name, why)
        self._path = choose_path(self.commit_mode, self.target, facts)
        why = facts.why_none if self._path is CommitPath.STAGING else "the server allows it"
        how = "rows that were staged" if self._path is CommitPath.STAGING else "prepared transactions"
        _log.info("sink %s commits %s: %s", self.name, how, why or "upserts are staged, or it was requested")
        return facts

    def _has_foreign_keys(self) -> bool:
        described = describe(self.target, self.target.table)
        return described is not None and bool(described.refers)

    def validate_complete_mode(self) -> None:
        if self.mode != "upsert":
            raise ConfigurationError(
                "output mode complete writes the whole result at each epoch, which would insert every row again: use "
                "mode 'upsert' with a key",
                sink=self.name,
            )

    def trying_rows(self, sinks: Sequence[TwoPhaseCommitSink[Any]]) -> DatabaseSink:
        """Return the same sink, whose rows the database tries before they are staged; see dead_letters.TriesRows.

        Rows of an upsert are tried in a temporary table, since several subtasks that lock rows of the table in
        different orders would deadlock; SQLite locks no rows. So are rows with a foreign key to a table of the
        pipeline, the sink's own included: what another sink or subtask writes is not visible before the commit.
        """
        written = tuple(one.target.table for one in (self, *sinks) if isinstance(one, DatabaseSink))
        trying = copy(self)
        apart = self.target.key and self.target.url.capabilities.locks_rows
        trying.target = replace(self.target, tries_rows=True, tried_beside=None if apart else written)
        return trying

    def begin(self, context: WriteContext) -> Writing:
        if self._path is CommitPath.AUTO:
            self._choose_path()
        loader = loader_for(self.target)
        prepared = self._path is CommitPath.PREPARED
        return loader.begin_prepared(context) if prepared else loader.begin_staged(context)

    def write(self, transaction: Writing, batch: pa.RecordBatch) -> None:
        transaction.write(batch)

    def pre_commit(self, transaction: Writing) -> Committable:
        return transaction.pre_commit()

    def discard(self, transaction: Writing) -> None:
        transaction.discard()

    def commit(self, committable: Committable) -> CommitOutcome:
        return self.commit_many([committable])[0]

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        outcomes: dict[str, CommitOutcome] = {}
        for kind in dict.fromkeys(self._kind(c) for c in committables):
            chosen = [c for c in committables if c.kind == kind]
            answers = self._commit(kind, chosen)
            outcomes.update({c.transaction: answer for c, answer in zip(chosen, answers, strict=True)})
        return [outcomes[c.transaction] for c in committables]

    def _commit(self, kind: str, committables: Sequence[Committable]) -> list[CommitOutcome]:
        if kind == PREPARED:
            return commit_prepared(self.target, committables)
        return commit_staged(loader_for(self.target), committables)

    def abort(self, committable: Committable) -> AbortOutcome:
        if self._kind(committable) == PREPARED:
            return abort_prepared(self.target, committable)
        return abort_staged(loader_for(self.target), committable)

    def _kind(self, committable: Committable) -> str:
        """Return the committable's kind, checked: it must be this sink's and unaltered."""
        if committable.kind not in _KINDS or committable.version != 1:
            raise ConfigurationError(
                f"a committable of kind {committable.kind}, version {committable.version} is not a "
                f"{type(self).__name__}'s",
                sink=self.name,
                transaction=committable.transaction,
            )
        committable.read_name()
        return committable.kind

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        """List the transactions that are prepared in this database or staged, whichever way the sink commits now."""
        with reading(self.target, "cannot list") as connection:
            return self._list(connection, scope.pipeline, scope.sink)

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        """List the transactions of all sinks of this pipeline and log.

        The sinks are those that noted that they write here: MariaDB's identifiers contain only a digest of their names.
        """
        with reading(self.target, "cannot list") as connection:
            sinks = ledger_tables.sinks_in_ledger(self.target, connection, pipeline, log)
            committables = [committable for sink in sinks for committable in self._list(connection, pipeline, sink)]
        return [committable for committable in committables if committable.log == log]

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        """Ask the database about each transaction.

        The ledger is asked last: if it were asked before the list of what is prepared or staged, a commit in between
        would look like an abort.
        """
        if not committables:
            return []
        for committable in committables:
            self._kind(committable)
        first = committables[0]
        with reading(self.target, "cannot inspect") as connection:
            waiting = {c.transaction for c in self._list(connection, first.pipeline, first.sink)}
            others = [c for c in committables if c.transaction not in waiting]
            facts = ledger_tables.facts(self.target, connection, others)
        return [Observation.PREPARED if c.transaction in waiting else facts.observe(c)[0] for c in committables]

    def _list(self, connection: sa.Connection, pipeline: str, sink: str) -> list[Committable]:
        two_phase = dialect_for(self.target).two_phase
        prepared = two_phase.waiting(connection, pipeline, sink) if two_phase is not None else []
        committables = [Committable.named(PREPARED, name) for name in prepared]
        of = tables_of(self.target).staged.c
        columns = (of.name, of.row_count, of.stage, of.movement)
        query = sa.select(*columns).where(of.pipeline == pipeline, of.sink == sink).order_by(of.name)
        for text, *fields in ask_own_tables(self.target, connection, lambda: connection.execute(query).all(), ()):
            if (name := own_name(text, pipeline, sink)) is not None:
                committables.append(Committable.named(STAGED, name, rows=fields[0], handle=staged_handle(*fields)))
        return committables

    def open_names(self) -> set[Scope]:
        """Return the scopes, of all pipelines, under which transactions are prepared in this database or staged."""
        two_phase = dialect_for(self.target).two_phase
        with reading(self.target, "cannot list") as connection:
            scopes = two_phase.scopes(connection) if two_phase is not None else set()
            if exists(self.target, connection):
                of = tables_of(self.target).staged.c
                scopes |= {Scope(*row) for row in connection.execute(sa.select(of.pipeline, of.sink, of.log))}
        return scopes

    def known_sinks(self, pipeline: str) -> list[str]:
        """Return the names of the sinks under which a pipeline of this name has written into this database."""
        with reading(self.target, "cannot list") as connection:
            return ledger_tables.sinks_in_ledger(self.target, connection, pipeline)

    def ledger(self) -> DatabaseLedger:
        return DatabaseLedger(self.target, self.ledger_epochs)


class PostgresSink(DatabaseSink):
    """Sink that writes rows into one PostgreSQL table; each epoch becomes visible exactly once, at its commit.

    Args:
        name: Unique in its pipeline, up to 32 letters, digits, `.`, `_` and `-`. It is part of every transaction's
            name, so it must not change between runs.
        dsn: Connection string of psycopg and libpq. It may hold a password, but PGPASSWORD or ~/.pgpass is better.
        table: `table`, `schema.table`, or quoted parts as in SQL: `"My Schema"."T"`. Columns are matched by name.
        mode: What is written: "insert", or "upsert" by `key`. "auto": upsert if there is a key.
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
        mode: WriteMode = "auto",
        key: Names | str | None = None,
        change_column: str | None = None,
        create_table: bool = False,
        commit: CommitMode = "auto",
        lock_timeout: float = 10.0,
        answer_within: float = 60.0,
        ledger_schema: str = LEDGER_SCHEMA,
        ledger_epochs: int = 1000,
        proof: bool = True,
        select: Names | None = None,
        where: str | None = None,
    ) -> None:
        check_types(PostgresSink, locals())
        target = DatabaseTarget(
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
        self.proof = proof


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
        mode: WriteMode = "auto",
        key: Names | str | None = None,
        create_table: bool = False,
        commit: CommitMode = "auto",
        lock_timeout: float = 10.0,
        answer_within: float = 60.0,
        ledger_schema: str | None = None,
        ledger_epochs: int = 1000,
        proof: bool = True,
        select: Names | None = None,
        where: str | None = None,
    ) -> None:
        check_types(SqlAlchemySink, locals())
        address = Url.of(url)
        own_schema = LEDGER_SCHEMA if address.capabilities.default_schema else None
        keys = key_columns(key)
        target = DatabaseTarget(
            url=address,
            table=TableName.parse(table),
            key=keys,
            create_table=create_table,
            lock_timeout=lock_timeout,
            answer_within=answer_within,
            ledger_schema=own_schema if ledger_schema is None else ledger_schema,
            proof=proof and not keys,
        )
        super().__init__(
            name, target, mode=mode, commit=commit, ledger_epochs=ledger_epochs, select=select, where=where
        )
        self.proof = proof


def loader_for(target: DatabaseTarget) -> Loader:
    """Return how rows reach the tables of the target's database."""
    loader: Loader = load_part(target.url.capabilities.loader)(target)
    return loader


def choose_path(requested: CommitPath, target: DatabaseTarget, facts: ServerFacts | None = None) -> CommitPath:
    """Choose how rows wait for their decision: as a prepared transaction, or staged.

    Args:
        requested: The user's choice.
        target: Where the rows go.
        facts: The server's settings. Without them the result is AUTO, unless the sink's settings alone decide it.

    Raises:
        ConfigurationError: The user's choice is impossible.
    """
    if requested is CommitPath.PREPARED:
        if target.key:
            raise ConfigurationError(
                "an upsert cannot wait as a prepared transaction: it would block every other writer of its keys, a "
                "retry of itself included; use commit='staging' (or 'auto')"
            )
        two_phase_for(target)  # or an error, because the database has none
        if facts is not None and not facts.max_prepared:
            raise ConfigurationError(f"this server cannot prepare transactions: {facts.why_none}")
        return requested
    if requested is CommitPath.STAGING or target.key or dialect_for(target).two_phase is None:
        return CommitPath.STAGING
    if facts is None:
        return CommitPath.AUTO
    return CommitPath.PREPARED if facts.max_prepared else CommitPath.STAGING


def key_columns(key: Names | str | None) -> tuple[str, ...]:
    """Return the columns of a key, which may be given as one name."""
    return (key,) if isinstance(key, str) else tuple(key or ())


def _write_mode(mode: str, target: DatabaseTarget) -> str:
    key, change = target.key, target.change
    if len(set(key)) != len(key) or not all(key):
        raise ConfigurationError(f"key {list(key)} has an empty or repeated column")
    if mode not in MODES:
        raise ConfigurationError(f"mode {mode!r} is unknown: give one of {', '.join(MODES)}")
    if mode == "upsert" and not key:
        raise ConfigurationError("mode 'upsert' needs key: the columns of a unique index of the table")
    if mode == "insert" and key:
        raise ConfigurationError("mode 'insert' takes no key: leave it out, or say mode='upsert'")
    if change is not None and (not key or not change or change in key):
        raise ConfigurationError(
            f"change_column {change!r} needs a key that does not contain it, because rows are deleted by key"
        )
    return "upsert" if key else "insert"
