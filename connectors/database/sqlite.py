"""SQLite: no prepared transactions, one writer at a time, so rows are staged and merged.

A transaction that writes begins IMMEDIATE: one that began by reading could not wait for the other writer, it would
fail at once. Every commit is synced, because the default in WAL mode may lose the last ones in a power failure.

SQLite checks foreign keys only where a connection asks for it. Merges do, and trials in the table itself; a trial in a
temporary table does not, because the parent table is not in its schema.

A connection keeps its file open even if another one has taken the file's name: what is written there is lost. So a
connection is lent again only while its file has its name.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import unquote

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.dialects.sqlite import insert

from .dialect import MERGES, READ_ONLY, RowDialect, ServerFacts, Trial
from .failures import may_pass, words
from .sqlite_types import TYPES
from .target import TableName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy.sql.dml import Insert

    from .column_types import SqlType
    from .described_table import DescribedTable
    from .target import DatabaseAccess

_log = logging.getLogger("onceward.database")

_ROUNDS: Final = re.compile(r"(?i)\bUSING\s+[\"\[`]?(rtree|rtree_i32|geopoly)\b")
_LEAVES_OUT: Final = re.compile(r"(?i)\bRAISE\s*\(\s*IGNORE\b")
_DEFINED: Final = re.compile(r"^(CREATE (?:TABLE|VIRTUAL TABLE|UNIQUE INDEX) )")
_FILE: Final = "onceward_file"
_INODE: Final = "onceward_inode"
_EXTRA: Final = 3
"""PRAGMA synchronous: every commit is synced, the unlink of its rollback journal too, which is what commits it."""


class Sqlite(RowDialect):
    """SQLite, whose file answers at once or is locked."""

    types = TYPES
    autocommit: ClassVar[Mapping[str, Any]] = {READ_ONLY: True}

    def engine_arguments(self, access: DatabaseAccess) -> dict[str, Any]:
        return {"connect_args": {"timeout": access.lock_timeout}}

    def prepare_engine(self, engine: sa.Engine, access: DatabaseAccess) -> None:  # noqa: ARG002 - signature
        """Begin transactions by command: the driver would begin them at the first change."""
        event.listen(engine, "connect", _set_up)
        event.listen(engine, "connect", _note_file(engine.url.database or ""))
        event.listen(engine, "checkout", _check_file)
        event.listen(engine, "begin", _begin)
        dialect: Any = engine.dialect
        dialect.do_rollback_to_savepoint = _roll_back_to

    def read_server(self, connection: sa.Connection) -> ServerFacts:
        if connection.exec_driver_sql("PRAGMA query_only").scalar():
            return ServerFacts(unusable="the connection is read-only (PRAGMA query_only)")
        return ServerFacts(why_none="SQLite has no prepared transactions")

    def table_version(self, connection: sa.Connection, name: TableName, *, held: bool) -> int:  # noqa: ARG002
        """Return the version of the whole schema. It cannot change while a transaction writes."""
        quoted = connection.dialect.identifier_preparer.quote_identifier(name.schema or "main")
        return int(connection.exec_driver_sql(f"PRAGMA {quoted}.schema_version").scalar_one())

    def describe(self, connection: sa.Connection, name: TableName) -> DescribedTable | None:
        table = self.reflect(connection, name)
        if table is None or table.kind != "table":
            return table
        inspector, where = sa.inspect(connection), (name.table, name.schema)
        keys: list[list[Any]] = [inspector.get_pk_constraint(*where)["constrained_columns"]]
        keys += [unique["column_names"] for unique in inspector.get_unique_constraints(*where)]
        for index in inspector.get_indexes(*where):
            conditional = any(key.endswith("_where") for key in index.get("dialect_options", {}))
            if index["unique"] and not conditional:
                keys.append(index["column_names"])
        sets = {frozenset(columns) for columns in keys if columns and None not in columns}
        return replace(table, uniques=tuple(sorted(sets, key=sorted)))

    def refuses(self, connection: sa.Connection, table: DescribedTable) -> str:
        """Compile an insert, as the merge will: SQLite then looks at the tables that foreign keys refer to."""
        for kind, name, definition in _definitions(connection, table.clause):
            if kind == "table" and (module := _ROUNDS.search(definition)):
                return f"it is made by {module[1]}, which keeps numbers of 32 bits and changes others without an error"
            if kind == "trigger" and _LEAVES_OUT.search(definition):
                _log.warning(
                    "trigger %s of table %s leaves rows out (RAISE(IGNORE)): they count as written", name, table.name
                )
        quote = connection.dialect.identifier_preparer.format_table
        try:
            connection.exec_driver_sql(f"EXPLAIN INSERT INTO {quote(table.clause)} DEFAULT VALUES").close()
        except exc.DBAPIError as error:
            if may_pass(error):
                raise
            return f"{words(error)}: correct its foreign keys, which merges check, or its triggers"
        return ""

    def is_row_number(self, kind: SqlType) -> bool:
        """Return whether the column is the INTEGER PRIMARY KEY."""
        return isinstance(kind, sa.INTEGER)

    def upsert(self, table: sa.TableClause, values: dict[str, Any], key: Sequence[str]) -> Insert:
        statement = insert(table).values(values)
        others = {name: statement.excluded[name] for name in values if name not in key}
        if not others:
            return statement.on_conflict_do_nothing(index_elements=list(key))
        return statement.on_conflict_do_update(index_elements=list(key), set_=others)

    @contextmanager
    def trial(self, connection: sa.Connection, table: sa.TableClause) -> Iterator[Trial]:
        """Open a block with a temporary table of the same definition, with its unique indexes.

        SQLite keeps each definition as text that begins with these very words and the name, see "Database File
        Format", "Storage Of The SQL Database Schema".
        """
        quote = connection.dialect.identifier_preparer.quote_identifier
        keys = _definitions(connection, table)
        bare = any(kind == "trigger" for kind, *_ in keys)
        name = f"temp.{quote(table.name)}"
        if bare:
            columns = ", ".join(quote(column.name) for column in table.columns)
            connection.exec_driver_sql(f"CREATE TABLE {name} ({columns})")
        for *_, definition in keys:
            temporary, known = _DEFINED.subn(r"\1temp.", definition)
            if known and not bare:
                connection.exec_driver_sql(temporary)
        yield Trial(TableName("temp", table.name), has_keys=not bare)
        connection.exec_driver_sql(f"DROP TABLE {name}")  # an error rolls it back


def _definitions(connection: sa.Connection, table: sa.TableClause) -> list[tuple[str, str, str]]:
    """Return type, name and definition of a table and of all that belongs to it, the table before its indexes."""
    quote = connection.dialect.identifier_preparer.quote_identifier
    master = f"{quote(table.schema or 'main')}.sqlite_master"
    query = f"SELECT type, name, sql FROM {master} WHERE tbl_name = ? COLLATE NOCASE ORDER BY type DESC"  # noqa: S608
    return [(kind, name, sql or "") for kind, name, sql in connection.exec_driver_sql(query, (table.name,))]


def _roll_back_to(connection: sa.Connection, name: str) -> None:
    """Roll back to a savepoint, which is gone if a trigger's RAISE(ROLLBACK) has ended the transaction."""
    lent: Any = connection.connection.driver_connection
    if lent.in_transaction:
        connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {name}")


def _set_up(connection: Any, _: object) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    if cursor.execute("PRAGMA synchronous").fetchone()[0] < _EXTRA:
        cursor.execute("PRAGMA synchronous=EXTRA")
    cursor.close()


def _note_file(database: str) -> Callable[[Any, Any], None]:
    """Return an event handler that notes the open file and its name in the URL, which may be a link."""
    name = unquote(database.removeprefix("file:").partition("?")[0]) if database.startswith("file:") else database
    path = Path(name).absolute()

    def note(connection: Any, record: Any) -> None:
        opened = next(file for _, name, file in connection.execute("PRAGMA database_list") if name == "main")
        record.info[_FILE], record.info[_INODE] = path, _inode(Path(opened))

    return note


def _inode(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


def _check_file(_: object, record: Any, __: object) -> None:
    if _inode(record.info[_FILE]) != record.info[_INODE]:
        raise exc.InvalidatePoolError  # SQLAlchemy opens the file anew


def _begin(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    connection.exec_driver_sql(f"PRAGMA foreign_keys = {int(bool(options.get(MERGES)))}")  # has no effect later
    connection.exec_driver_sql("BEGIN" if options.get(READ_ONLY) else "BEGIN IMMEDIATE")
