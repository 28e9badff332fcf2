"""Moving staged rows into their table, and emptying the staging table; always inside the caller's transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import psycopg
from psycopg import sql

from onceward.core.errors import PostgresError

from .catalog import read_unique_key
from .changes import DELETE
from .session import session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sqlalchemy as sa

    from ..dialect import Movement, Part
    from ..target import TableName
    from .session import Session

ID: Final = "onceward_id"
ROW: Final = "onceward_row"
"""Columns of a staging table: which attempt wrote a row, and its position there."""
_WORTH_A_TRUNCATE: Final = 4 * 2**20
"""Bytes from which a staging table is emptied whole: below, deleting rows is cheaper, and the next scan is short."""

Key: TypeAlias = "Mapping[str, sql.Composable]"
"""Columns of a key, each with the COLLATE clause by which the table's unique index compares it."""


def move_rows(connection: sa.Connection, ledger_schema: str, movement: Movement, parts: Sequence[Part]) -> None:
    """Move what several attempts staged in the same way; remove_rows comes when all of a staging table is moved.

    Raises:
        PostgresError: The staging table does not hold what was staged.
    """
    stage, into = sql.Identifier(ledger_schema, movement.stage), _identifier(movement.target)
    with session(connection) as lent:
        _check_whole(lent, stage, parts)
        for statement in merge_statements(lent, movement, parts, stage, into):
            lent.execute(statement)


def merge_statements(
    lent: Session, movement: Movement, parts: Sequence[Part], stage: sql.Identifier, into: sql.Identifier
) -> list[sql.Composed]:
    """What moves the rows, in this order."""
    # Literals, not parameters: a % in a column's name would be taken for a placeholder.
    if not movement.key:
        return [_insert(movement.columns, stage, into, parts)]
    lent.execute("SELECT set_config('work_mem', '64MB', true)")
    collations = read_unique_key(lent, into.as_string(), movement.key) or [""] * len(movement.key)
    key = {column: _collate(collation) for column, collation in zip(movement.key, collations, strict=True)}
    upsert = _upsert(movement, parts, stage, into, key)
    return [_delete(movement, parts, stage, into, key), upsert] if DELETE in movement.columns else [upsert]


def remove_rows(connection: sa.Connection, ledger_schema: str, stage: str, ids: Sequence[int]) -> None:
    """Delete staged rows, or empty the staging table if that is quicker and nobody else's rows are in it.

    The table has no index: with few dead rows in it, reading all of it is the quickest way, and writing is twice
    as fast.
    """
    table = sql.Identifier(ledger_schema, stage)
    size = sql.SQL("SELECT pg_relation_size({})").format(sql.Literal(table.as_string()))
    delete = sql.SQL("DELETE FROM {} WHERE {} = ANY({})").format(table, sql.Identifier(ID), sql.Literal(list(ids)))
    with session(connection) as lent:
        row = lent.execute(size).fetchone()
        if row is not None and row[0] > _WORTH_A_TRUNCATE and _truncated(lent, ledger_schema, stage, table):
            return
        lent.execute(delete)


def _truncated(connection: Session, ledger_schema: str, stage: str, table: sql.Identifier) -> bool:
    """Empty the table if nobody writes to it and nobody's rows are left in it.

    With the lock held nobody can be writing, and whoever wrote before has committed his row in `staged`. The
    caller's own rows there are gone already.
    """
    others = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE stage = %s)").format(sql.Identifier(ledger_schema, "staged"))
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


def _check_whole(connection: Session, stage: sql.Identifier, parts: Sequence[Part]) -> None:
    ids, expected = [part.id for part in parts], sum(part.rows for part in parts)
    statement = sql.SQL("SELECT count(*) FROM {} WHERE {} = ANY({})")
    row = connection.execute(statement.format(stage, sql.Identifier(ID), sql.Literal(ids))).fetchone()
    found = 0 if row is None else row[0]
    if found != expected:
        raise PostgresError(f"staging table {stage.as_string()} holds {found} rows of {expected}: somebody changed it")


def _insert(columns: Sequence[str], stage: sql.Identifier, into: sql.Identifier, parts: Sequence[Part]) -> sql.Composed:
    return sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {} WHERE {} = ANY({})").format(
        into, _names(columns), _names(columns), stage, sql.Identifier(ID), sql.Literal([part.id for part in parts])
    )


def _collate(collation: str) -> sql.Composable:
    return sql.SQL(f" COLLATE {collation}" if collation else "")


def _upsert(
    movement: Movement, parts: Sequence[Part], stage: sql.Identifier, into: sql.Identifier, key: Key
) -> sql.Composed:
    """Insert or update each key's last row, unless that row deletes."""
    columns = [column for column in movement.columns if column != DELETE]
    kept = sql.SQL("WHERE NOT {} ").format(sql.Identifier(DELETE)) if DELETE in movement.columns else sql.SQL("")
    return sql.SQL(
        "INSERT INTO {into} ({columns}) OVERRIDING SYSTEM VALUE"
        " SELECT {columns} FROM ({last}) AS last {kept}ORDER BY {key} {conflict}"
    ).format(
        into=into,
        columns=_names(columns),
        last=_last_rows(movement, parts, stage, key),
        kept=kept,
        key=_names(movement.key),
        conflict=_on_conflict(movement.key, columns),
    )


def _delete(
    movement: Movement, parts: Sequence[Part], stage: sql.Identifier, into: sql.Identifier, key: Key
) -> sql.Composed:
    """Delete what has the key of a last row that says so; before the upsert, which may need what it frees.

    In two statements: PostgreSQL runs parts of one that change data in any order, so a row that takes a unique value
    from a deleted one would meet it still there.
    """
    same = [sql.SQL("t.{} = last.{}{}").format(sql.Identifier(c), sql.Identifier(c), by) for c, by in key.items()]
    return sql.SQL("DELETE FROM {} t USING ({}) AS last WHERE last.{} AND {}").format(
        into, _last_rows(movement, parts, stage, key), sql.Identifier(DELETE), sql.SQL(" AND ").join(same)
    )


def _last_rows(movement: Movement, parts: Sequence[Part], stage: sql.Identifier, key: Key) -> sql.Composed:
    """DISTINCT ON keeps each key's last row; its order by key makes concurrent merges lock in the same order."""
    keys = [sql.SQL("{}{}").format(sql.Identifier("s", column), by) for column, by in key.items()]
    return sql.SQL(
        "SELECT DISTINCT ON ({keys}) {values} FROM {stage} s"
        " JOIN unnest({ids}::bigint[], {subtasks}::integer[]) AS part(id, subtask) ON part.id = s.{id}"
        " ORDER BY {keys}, part.subtask DESC, s.{row} DESC"
    ).format(
        values=_names(movement.columns, "s"),
        keys=sql.SQL(", ").join(keys),
        stage=stage,
        id=sql.Identifier(ID),
        row=sql.Identifier(ROW),
        ids=sql.Literal([part.id for part in parts]),
        subtasks=sql.Literal([part.subtask for part in parts]),
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


def _identifier(name: TableName) -> sql.Identifier:
    return sql.Identifier(*(part for part in name if part is not None))
