# ruff: noqa: S608 - names are quoted, and nothing else comes from outside
"""Staging tables of PostgreSQL, and the SQL that moves rows from them; see ../merging.py.

Each layout of a target has staging tables of its own. Epochs take turns with a few of them: while one epoch is merged,
the next one is written elsewhere, and the merged one's table can be emptied whole. They are ordinary, logged tables: a
crash of the server would empty an unlogged one after the subtask had acknowledged.

A target may be altered after rows were staged for it. INSERT … SELECT casts as an assignment does: it silently rounds
numbers, cuts times and texts, and takes a time without a zone for one in the session's zone. So a merge first compares
the types of the columns. The staging table has those that the target had, so a table that was not altered always
passes.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from onceward.core.errors import ConfigurationError, SchemaError

from ..target import TableName, quoted, unusable
from .catalog import PgTable, read_table, read_unique_key
from .session import LOCK_CREATION, session

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import sqlalchemy as sa

    from ..loader import Movement
    from ..target import DatabaseTarget
    from .catalog import PgType, Session

STAGE: Final = re.compile(r"stage_[0-9a-f]{24}_[0-9]")
"""Name of a staging table. Staging tables are emptied, so no other table may be taken for one."""
ID: Final = "onceward_id"
ROW: Final = "onceward_row"
"""Columns of a staging table: the attempt that wrote a row, and the row's position in it."""
DELETE: Final = "onceward_delete"
"""Column of a staging table: whether a row of an upsert deletes. It exists only if the sink has a change column."""
TURNS: Final = 4
_WORTH_A_TRUNCATE: Final = 4 * 2**20
"""Bytes from which a staging table is truncated: below, it is cheaper to delete rows, and the next scan is short."""
_LISTED: Final = 100
"""Number of values of a key column up to which a delete names each; above, it names the smallest and the largest."""
_WIDER: Final = frozenset(
    {("int2", "int4"), ("int2", "int8"), ("int4", "int8"), ("float4", "float8")}
    | {(kind, "numeric") for kind in ("int2", "int4", "int8")}
    | {(kind, text) for kind in ("varchar", "bpchar", "text") for text in ("varchar", "text")}
)
"""Pairs of types of which the second holds every value of the first, if it declares no length or precision."""
_LONGER: Final = frozenset({"varchar", "timestamp", "timestamptz", "time"})
"""Types whose modifier is a length or a number of digits, so that a larger one keeps every value."""
_SCALE: Final = 0x7FF
"""The bits of numeric's modifier that are its scale; those above are its precision (numeric.c)."""

Checks = tuple[tuple[str, str], ...]
"""Names and expressions of check constraints."""


class StagedPart(NamedTuple):
    """The rows that one attempt has staged."""

    id: int
    """Their value of the column ID."""
    order: int
    """Rank of the attempt: of rows with the same key, those of the highest rank win."""
    rows: int
    """Their number."""


def rows_of(ids: Iterable[int]) -> str:
    """Return the SQL condition for the rows of these attempts in a staging table."""
    return f"{ID} = ANY ({_array(ids)})"


def truncated(lent: Session, stage: TableName) -> bool:
    """Truncate the table if that is worth it, nobody writes to it, and nobody's rows are left in it; return whether.

    While the lock is held, nobody can be writing, and every earlier writer has committed its row in `staged`. The
    caller has deleted its own rows there already.
    """
    table, staged = stage.quoted, stage._replace(table="staged").quoted_beside_parameters
    (size,) = lent.execute("SELECT pg_relation_size(%s::regclass)", [table]).fetchone() or (0,)
    if size <= _WORTH_A_TRUNCATE:
        return False
    try:
        with lent.transaction():
            lent.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE NOWAIT".encode())
            others = lent.execute(f"SELECT FROM {staged} WHERE stage = %s LIMIT 1".encode(), [stage.table])
            if others.rowcount:
                return False
            lent.execute(f"TRUNCATE {table}".encode())
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege):
        return False
    return True


def merge_statements(lent: Session, movement: Movement, parts: Sequence[StagedPart], stage: TableName) -> list[str]:
    """Return the statements that move the rows, in their order.

    They have no parameters: a % in a column's name would be taken for one.

    The last row of a key counts: DISTINCT ON keeps it, and its order by key makes concurrent merges lock in the same
    order. Rows are deleted before the upsert, which may need the unique values that this frees; in two statements,
    because PostgreSQL runs the parts of one that change data in any order.

    Args:
        lent: The connection of the transaction that merges.
        movement: The target, the columns and the key.
        parts: The attempts whose rows are moved.
        stage: The staging table.
    """
    into, ids = movement.target.quoted, _array(part.id for part in parts)
    values = [column for column in movement.columns if column != DELETE]
    insert = f"INSERT INTO {into} ({_names(values)}) OVERRIDING SYSTEM VALUE SELECT {_names(values)}"
    if not movement.key:
        return [f"{insert} FROM {stage.quoted} WHERE {ID} = ANY ({ids})"]
    lent.execute("SELECT set_config('work_mem', '64MB', true)")
    collations = read_unique_key(lent, movement.target, movement.key) or [""] * len(movement.key)
    compared = [f" COLLATE {collation}" if collation else "" for collation in collations]
    key = list(zip(map(quoted, movement.key), compared, strict=True))
    by_key = ", ".join(f"s.{name}{by}" for name, by in key)
    last = (
        f"SELECT DISTINCT ON ({by_key}) {_names(movement.columns, 's.')} FROM {stage.quoted} s"
        f" JOIN unnest({ids}, {_array(part.order for part in parts)}) AS part(id, place) ON part.id = s.{ID}"
        f" ORDER BY {by_key}, part.place DESC, s.{ROW} DESC"
    )
    updates = ", ".join(f"{quoted(c)} = EXCLUDED.{quoted(c)}" for c in values if c not in movement.key)
    conflict = f"ON CONFLICT ({_names(movement.key)}) DO {'UPDATE SET ' + updates if updates else 'NOTHING'}"
    kept = f"WHERE NOT {DELETE} " if DELETE in movement.columns else ""
    upsert = f"{insert} FROM ({last}) AS last {kept}ORDER BY {_names(movement.key)} {conflict}"
    if not kept:
        return [upsert]
    same = " AND ".join(f"t.{name} = last.{name}{by}" for name, by in key)
    place, bounds = _delete_from(lent, movement, f"{stage.quoted} s WHERE s.{ID} = ANY ({ids}) AND s.{DELETE}", key)
    return [f"DELETE FROM {place} t USING ({last}) AS last WHERE last.{DELETE} AND {same}{bounds}", upsert]


def _delete_from(lent: Session, movement: Movement, deletes: str, key: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the table to delete from, and conditions by which the server can skip partitions.

    For the join alone it would lock, and open, all of them. The key of a partitioned table includes its partition key,
    so constants for the key leave only the partitions that hold them. The unique index of a table does not cover
    children by mere inheritance: neither upserts nor deletes reach their rows.

    Args:
        lent: The connection of the transaction that merges.
        movement: The target and the key.
        deletes: The FROM clause of the staged rows that delete, with their table as `s`.
        key: Quoted columns, each with its COLLATE.
    """
    query = "SELECT relkind = 'p' FROM pg_catalog.pg_class WHERE oid = pg_catalog.to_regclass(%s)"
    (partitioned,) = lent.execute(query, [movement.target.quoted]).fetchone() or (False,)
    if not partitioned:
        return f"ONLY {movement.target.quoted}", ""
    bounds = ""
    for name, by in key:
        value = f"SELECT s.{name}{by} AS v FROM {deletes}"
        some = f"SELECT quote_literal(v) FROM (SELECT DISTINCT v FROM ({value}) AS a LIMIT {_LISTED + 1}) AS b"
        values = [row[0] for row in lent.execute(some.encode()).fetchall()]
        if 0 < len(values) <= _LISTED:
            bounds += f" AND t.{name}{by} IN ({', '.join(values)})"
        elif values:
            ends = [
                f"(SELECT quote_literal(v) FROM ({value}) AS a ORDER BY v {way} LIMIT 1)" for way in ("ASC", "DESC")
            ]
            low, high = lent.execute(f"SELECT {ends[0]}, {ends[1]}".encode()).fetchone() or ("NULL", "NULL")
            bounds += f" AND t.{name}{by} BETWEEN {low} AND {high}"
    return movement.target.quoted, bounds


def _names(columns: Iterable[str], prefix: str = "") -> str:
    return ", ".join(prefix + quoted(column) for column in columns)


def _array(numbers: Iterable[int]) -> str:
    return f"'{{{','.join(map(str, numbers))}}}'::bigint[]"


def stage_name(target: DatabaseTarget, sink: str, table: PgTable, checks: Checks, epoch: int) -> TableName:
    """Return the name of the staging table for an epoch. It depends on the target's layout, and on the epoch's turn."""
    layout = [[c.name, c.declared, c.collation, c.not_null and not c.has_default] for c in table.columns]
    more = [*([checks] if checks else []), *([DELETE] if target.change else [])]
    text = json.dumps([sink, table.schema, table.name, layout, *more])
    return TableName(target.ledger_schema, f"stage_{hashlib.sha256(text.encode()).hexdigest()[:24]}_{epoch % TURNS}")


def create_stage(
    connection: sa.Connection, target: DatabaseTarget, stage: TableName, table: PgTable, checks: Checks
) -> None:
    """Create a staging table for `table`, unless it is there.

    It has the table's check constraints, and the collations that they compare by, so that a row which breaks one fails
    its epoch before the decision. A row that deletes needs nothing but its key.

    Args:
        connection: A connection in autocommit mode.
        target: The sink's target.
        stage: The staging table's name.
        table: The target's table.
        checks: The check constraints of the target's table.
    """
    taken = {ID, ROW, DELETE} & {column.name for column in table.columns}
    if taken:
        raise ConfigurationError(f"table {target.table} has columns {sorted(taken)}, which staging needs: rename them")
    comment = psycopg.sql.Literal(f"onceward: rows on their way to {table.schema}.{table.name}").as_string()
    with session(connection) as lent, lent.transaction():
        lent.execute(LOCK_CREATION.encode())
        if read_table(lent, stage) is not None:
            return  # it may be another role's, who alone may comment on it
        lent.execute(_definition(stage, table, checks, deletes=bool(target.change)).encode())
        lent.execute(f"COMMENT ON TABLE {stage.quoted} IS {comment}".encode())


def _definition(stage: TableName, table: PgTable, checks: Checks, *, deletes: bool) -> str:
    parts = [f"{ID} bigint NOT NULL, {ROW} bigint NOT NULL"]
    spared = ""
    if deletes:
        parts.append(f"{DELETE} boolean NOT NULL")
        spared = f"{DELETE} OR "
    for column in table.columns:
        if column.unwritable:
            continue
        name, collation = quoted(column.name), f" COLLATE {column.collation}" if column.collation else ""
        needed = column.not_null and not column.has_default
        parts.append(f"{name} {column.declared}{collation}{' NOT NULL' if needed and not deletes else ''}")
        if needed and deletes:
            parts.append(f"CHECK ({spared}{name} IS NOT NULL)")
    for number, (title, check) in enumerate(checks):
        # PostgreSQL cuts longer names, and then takes two for one.
        name = title if not unusable(title, "postgresql") else f"{number}: {title}"
        parts.append(f"CONSTRAINT {quoted(name)} CHECK ({spared}({check}))")
    return f"CREATE TABLE IF NOT EXISTS {stage.quoted} ({', '.join(parts)})"


def types_query(*tables: TableName) -> str:
    """Return a query for name, type and modifier of the columns of these tables."""
    oids = ", ".join(f"{psycopg.sql.Literal(table.quoted).as_string()}::regclass" for table in tables)
    return (
        "SELECT attname::text, atttypid, atttypmod FROM pg_catalog.pg_attribute"
        f" WHERE attrelid IN ({oids}) AND attnum > 0 AND NOT attisdropped"
    )


def check_types(lent: Session, movement: Movement, stage: TableName, types: Sequence[tuple[Any, ...]]) -> None:
    """Check that each column to be moved keeps every value. The caller holds a lock against ALTER TABLE.

    Args:
        lent: The connection of the transaction that merges.
        movement: The target and the columns. The INSERT refuses a column that is missing there.
        stage: The staging table.
        types: The rows of `types_query` for both tables.

    Raises:
        SchemaError: A column was altered in a way that could change values.
    """
    kinds: dict[str, set[tuple[int, int]]] = {}
    for name, oid, modifier in types:
        kinds.setdefault(name, set()).add((oid, modifier))
    different = [name for name in movement.columns if len(kinds.get(name, ())) > 1]
    if not different:
        return
    staged, now = read_table(lent, stage), read_table(lent, movement.target)
    if staged is None or now is None:
        raise psycopg.errors.UndefinedTable(f"table {movement.target} or {stage} does not exist")
    before = {column.name: column for column in staged.columns}
    after = {column.name: column for column in now.columns}
    problems = [
        f"column {name!r} is {after[name].declared} now, and its values were staged as {before[name].declared}"
        for name in different
        if not keeps_values(before[name].type, after[name].type)
    ]
    if problems:
        raise SchemaError(f"table {movement.target} was altered, and could change the values: {', '.join(problems)}")


def keeps_values(staged: PgType, now: PgType) -> bool:
    """Return whether each value of the first type is the same value in the second type."""
    if staged.element is not None and now.element is not None:
        return keeps_values(staged.element, now.element)
    if staged.name != now.name:
        return (staged.name, now.name) in _WIDER and (now.modifier < 0 or _fits(staged, now))
    if staged.modifier == now.modifier or now.modifier < 0:
        return True
    if staged.name == "numeric":
        same_scale = staged.modifier & _SCALE == now.modifier & _SCALE
        return 0 <= staged.modifier < now.modifier and same_scale
    return staged.name in _LONGER and 0 <= staged.modifier < now.modifier


def _fits(staged: PgType, now: PgType) -> bool:
    """Return whether a char(n) fits into a varchar(n)."""
    return (staged.name, now.name) == ("bpchar", "varchar") and 0 <= staged.modifier <= now.modifier
