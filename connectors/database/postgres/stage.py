"""Staging tables of PostgreSQL: one for each layout of a target, and a few of those in turn."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from psycopg import sql

from onceward.core.errors import ConfigurationError

from ..target import TableName
from .catalog import read_table
from .changes import DELETE
from .merge import ID, ROW
from .session import session

if TYPE_CHECKING:
    import sqlalchemy as sa

    from ..target import Target
    from .catalog import Table

TURNS: Final = 4
CREATION_LOCK: Final = 0x0CEBA2D
"""Advisory lock under which tables are created: CREATE … IF NOT EXISTS alone races with itself."""
LOCK_CREATION: Final = f"SELECT pg_advisory_xact_lock({CREATION_LOCK})"

Checks = tuple[tuple[str, str], ...]
"""Names and expressions of check constraints."""


def stage_name(target: Target, sink: str, table: Table, checks: Checks, epoch: int) -> TableName:
    """The staging table's name: another layout of the target makes another one, and epochs take turns.

    So while one epoch is merged, the next one is written elsewhere, and the merged one's table can be emptied whole.
    """
    layout = [[c.name, c.declared, c.collation, c.not_null and not c.has_default] for c in table.columns]
    more = [*([checks] if checks else []), *([DELETE] if target.change else [])]
    text = json.dumps([sink, table.schema, table.name, layout, *more])
    return TableName(target.ledger_schema, f"stage_{hashlib.sha256(text.encode()).hexdigest()[:24]}_{epoch % TURNS}")


def create_stage(connection: sa.Connection, target: Target, stage: TableName, table: Table, checks: Checks) -> None:
    """Create a staging table for `table`, unless it is there.

    It has the table's check constraints and the collations that they compare by, so that a row which breaks one fails
    its epoch before the decision. A row that deletes needs nothing but its key.

    Args:
        connection: In autocommit mode.
        target: Of the sink.
        stage: The staging table's name.
        table: The target's table.
        checks: Its check constraints.
    """
    taken = {ID, ROW, DELETE} & {column.name for column in table.columns}
    if taken:
        raise ConfigurationError(f"table {target.table} has columns {sorted(taken)}, which staging needs: rename them")
    comment = f"onceward: rows on their way to {table.schema}.{table.name}"
    into = sql.Identifier(stage.schema or "", stage.table)
    definition = _definition(into, table, checks, deletes=bool(target.change))
    with session(connection) as lent, lent.transaction():
        lent.execute(LOCK_CREATION.encode())
        if read_table(lent, stage) is not None:
            return  # it may be another role's, who alone may comment on it
        lent.execute(definition)
        lent.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(into, sql.Literal(comment)))


def _definition(into: sql.Identifier, table: Table, checks: Checks, *, deletes: bool) -> sql.Composed:
    parts: list[sql.Composable] = [sql.SQL("onceward_id bigint NOT NULL, onceward_row bigint NOT NULL")]
    spared = sql.SQL("")
    if deletes:
        parts.append(sql.SQL("onceward_delete boolean NOT NULL"))
        spared = sql.SQL("onceward_delete OR ")
    for column in table.columns:
        if column.unwritable:
            continue
        name = sql.Identifier(column.name)
        declared = sql.SQL(column.declared + (f" COLLATE {column.collation}" if column.collation else ""))
        needed = column.not_null and not column.has_default
        parts.append(sql.SQL("{} {}{}").format(name, declared, sql.SQL(" NOT NULL" if needed and not deletes else "")))
        if needed and deletes:
            parts.append(sql.SQL("CHECK ({}{} IS NOT NULL)").format(spared, name))
    for title, check in checks:
        checked = sql.SQL("CONSTRAINT {} CHECK ({}({}))")
        parts.append(checked.format(sql.Identifier(title), spared, sql.SQL(check)))
    return sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(into, sql.SQL(", ").join(parts))
