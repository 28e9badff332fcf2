"""Moving staged rows into their table, and emptying the staging table; always inside the caller's transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import psycopg
from psycopg import sql

from onceward.core.errors import PostgresError

from .catalog import read_unique_key
from .changes import DELETE
from .staging import ID, ROW

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .connections import Connection
    from .ledger import Ledger

_WORTH_A_TRUNCATE: Final = 4 * 2**20
"""Bytes from which a staging table is emptied whole: below, deleting rows is cheaper, and the next scan is short."""


Key: TypeAlias = "Mapping[str, sql.Composable]"
"""Columns of a key, each with the COLLATE clause by which the table's unique index compares it."""


@dataclass(frozen=True)
class Staged:
    """One row of `staged`."""

    gid: str
    id: int
    subtask: int
    rows: int
    stage: str
    target: tuple[str, ...]
    columns: tuple[str, ...]
    key: tuple[str, ...]

    @property
    def move(self) -> tuple[object, ...]:
        """Rows with the same of these are moved by one statement."""
        return (self.stage, self.target, self.columns, self.key)


def move_rows(connection: Connection, ledger: Ledger, group: list[Staged]) -> None:
    """Move what several attempts staged in the same way; nothing of it stays in the staging table.

    Raises:
        PostgresError: The staging table does not hold what was staged.
    """
    # Literals, not parameters: a % in a column's name would be taken for a placeholder.
    first = group[0]
    stage, into = ledger.table(first.stage), sql.Identifier(*first.target)
    ids = [staged.id for staged in group]
    _check_whole(connection, stage, ids, sum(staged.rows for staged in group))
    if first.key:
        connection.execute("SELECT set_config('work_mem', '64MB', true)")
        collations = read_unique_key(connection, into.as_string(), first.key) or [""] * len(first.key)
        key = {column: _collate(collation) for column, collation in zip(first.key, collations, strict=True)}
        if DELETE in first.columns:
            connection.execute(_delete(group, stage, into, key))
        connection.execute(_upsert(group, stage, into, key))
    else:
        connection.execute(_insert(first, stage, into, ids))
    remove_rows(connection, ledger, first.stage, ids)


def remove_rows(connection: Connection, ledger: Ledger, stage: str, ids: list[int]) -> None:
    """Delete staged rows, or empty the staging table if that is quicker and nobody else's rows are in it.

    The table has no index: with few dead rows in it, reading all of it is the quickest way, and writing is twice
    as fast.
    """
    table = ledger.table(stage)
    row = connection.execute(sql.SQL("SELECT pg_relation_size({})").format(sql.Literal(table.as_string()))).fetchone()
    if row is not None and row[0] > _WORTH_A_TRUNCATE and _truncated(connection, ledger, stage, table):
        return
    connection.execute(sql.SQL("DELETE FROM {} WHERE {} = ANY({})").format(table, sql.Identifier(ID), sql.Literal(ids)))


def _truncated(connection: Connection, ledger: Ledger, stage: str, table: sql.Identifier) -> bool:
    """Empty the table if nobody writes to it and nobody's rows are left in it.

    With the lock held nobody can be writing, and whoever wrote before has committed his row in `staged`.
    """
    others = ledger.query("SELECT EXISTS (SELECT FROM {schema}.staged WHERE stage = %s)")
    try:
        with connection.transaction():
            connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(table))
            row = connection.execute(others, [stage]).fetchone()
            if row is None or row[0]:
                return False
            connection.execute(sql.SQL("TRUNCATE {}").format(table))
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
        return False
    return True


def _check_whole(connection: Connection, stage: sql.Identifier, ids: list[int], expected: int) -> None:
    statement = sql.SQL("SELECT count(*) FROM {} WHERE {} = ANY({})")
    row = connection.execute(statement.format(stage, sql.Identifier(ID), sql.Literal(ids))).fetchone()
    found = 0 if row is None else row[0]
    if found != expected:
        raise PostgresError(f"staging table {stage.as_string()} holds {found} rows of {expected}: somebody changed it")


def _insert(first: Staged, stage: sql.Identifier, into: sql.Identifier, ids: list[int]) -> sql.Composed:
    columns = _names(first.columns)
    return sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} WHERE {} = ANY({})").format(
        into, columns, columns, stage, sql.Identifier(ID), sql.Literal(ids)
    )


def _collate(collation: str) -> sql.Composable:
    return sql.SQL(f" COLLATE {collation}" if collation else "")


def _upsert(group: list[Staged], stage: sql.Identifier, into: sql.Identifier, key: Key) -> sql.Composed:
    """Insert or update each key's last row, unless that row deletes."""
    first = group[0]
    columns = [column for column in first.columns if column != DELETE]
    kept = sql.SQL("WHERE NOT {} ").format(sql.Identifier(DELETE)) if DELETE in first.columns else sql.SQL("")
    return sql.SQL(
        "INSERT INTO {into} ({columns}) OVERRIDING SYSTEM VALUE"
        " SELECT {columns} FROM ({last}) AS last {kept}ORDER BY {key} {conflict}"
    ).format(
        into=into,
        columns=_names(columns),
        last=_last_rows(group, stage, key),
        kept=kept,
        key=_names(first.key),
        conflict=_on_conflict(first.key, columns),
    )


def _delete(group: list[Staged], stage: sql.Identifier, into: sql.Identifier, key: Key) -> sql.Composed:
    """Delete what has the key of a last row that says so; before the upsert, which may need what it frees.

    In two statements: PostgreSQL runs parts of one that change data in any order, so a row that takes a unique value
    from a deleted one would meet it still there.
    """
    same = [sql.SQL("t.{} = last.{}{}").format(sql.Identifier(c), sql.Identifier(c), by) for c, by in key.items()]
    return sql.SQL("DELETE FROM {} t USING ({}) AS last WHERE last.{} AND {}").format(
        into, _last_rows(group, stage, key), sql.Identifier(DELETE), sql.SQL(" AND ").join(same)
    )


def _last_rows(group: list[Staged], stage: sql.Identifier, key: Key) -> sql.Composed:
    """DISTINCT ON keeps each key's last row; its order by key makes concurrent merges lock in the same order."""
    first = group[0]
    keys = [sql.SQL("{}{}").format(sql.Identifier("s", column), by) for column, by in key.items()]
    return sql.SQL(
        "SELECT DISTINCT ON ({keys}) {values} FROM {stage} s"
        " JOIN unnest({ids}::bigint[], {subtasks}::integer[]) AS part(id, subtask) ON part.id = s.{id}"
        " ORDER BY {keys}, part.subtask DESC, s.{row} DESC"
    ).format(
        values=_names(first.columns, "s"),
        keys=sql.SQL(", ").join(keys),
        stage=stage,
        id=sql.Identifier(ID),
        row=sql.Identifier(ROW),
        ids=sql.Literal([staged.id for staged in group]),
        subtasks=sql.Literal([staged.subtask for staged in group]),
    )


def _on_conflict(key: Sequence[str], columns: Sequence[str]) -> sql.Composed:
    updates = [
        sql.SQL("{} = EXCLUDED.{}").format(sql.Identifier(c), sql.Identifier(c)) for c in columns if c not in key
    ]
    action = sql.SQL("UPDATE SET ") + sql.SQL(", ").join(updates) if updates else sql.SQL("NOTHING")
    return sql.SQL("ON CONFLICT ({}) DO {}").format(_names(key), action)


def _names(columns: Sequence[str], table: str | None = None) -> sql.Composed:
    prefix = () if table is None else (table,)
    return sql.SQL(", ").join(sql.Identifier(*prefix, column) for column in columns)
