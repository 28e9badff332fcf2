# ruff: noqa: S608 - names are quoted, and nothing else comes from outside
"""Staging tables of PostgreSQL, and the SQL that moves rows from them; see ../merging.py.

Each layout of a target has staging tables of its own. Epochs take turns with a few of them: while one epoch is merged,
the next one is written elsewhere, and the merged one's table can be emptied whole. They are ordinary, logged tables: a
crash of the server would empty an unlogged one after the subtask had acknowledged.

A staging table's name is a digest of all that it copies from its target, by the identity of each type, collation and
expression: an enum that is replaced by another one under its name makes another staging table. Those that nobody needs
any more are dropped at the next start, because the old type could not be dropped before.

Every staging table has a replica identity, so that rows can be deleted from it in a database that is published.

A target may be altered after rows were staged for it. INSERT … SELECT casts as an assignment does: it silently rounds
numbers, cuts times and texts, and takes a time without a zone for one in the session's zone. So a merge first compares
the types of the columns. The staging table has those that the target had, so a table that was not altered always
passes.
"""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg
from psycopg.errors import InsufficientPrivilege, LockNotAvailable, UndefinedTable

from onceward.core.errors import ConfigurationError, SchemaError

from ..capabilities import POSTGRESQL
from ..target import TableName, quoted, unusable
from .catalog import PgTable, read_checks, read_generated, read_table, read_unique_key
from .connection import LOCK_CREATION, session
from .partitions import partition_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import sqlalchemy as sa

    from ..loader import Movement
    from ..target import DatabaseTarget
    from .catalog import Checks, Generated, PgType, Session

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

_MOST_COLUMNS: Final = 1600
"""PostgreSQL's limit (MaxHeapAttributeNumber)."""
_OBSOLETE: Final = """
SELECT c.relname::text FROM pg_catalog.pg_class c
WHERE c.relnamespace = pg_catalog.to_regnamespace(%(schema)s) AND c.relkind = 'r' AND c.relname <> ALL (%(kept)s)
  AND pg_catalog.obj_description(c.oid, 'pg_class') = ANY (%(comments)s)
  AND NOT EXISTS (SELECT FROM {staged} s WHERE s.stage = c.relname)
"""


class Layout(NamedTuple):
    """All that a staging table copies from its target."""

    table: PgTable
    checks: Checks
    generated: Generated

    def digest(self, target: DatabaseTarget, sink: str) -> str:
        """Return a digest that differs wherever two staging tables would."""
        columns = [
            (c.name, c.declared, c.type.oid, c.collation, c.collation_oid, c.not_null and not c.has_default)
            for c in self.table.columns
        ]
        parts = [sink, self.table.schema, self.table.name, columns, self.checks, self.generated, target.change]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def read_layout(
    target: DatabaseTarget, connection: Session, table: PgTable, other: Callable[[], AbstractContextManager[Session]]
) -> Layout:
    """Read what a staging table for `table` copies from it.

    Args:
        target: The sink's target.
        connection: The connection of the transaction that writes, or any other.
        table: The target's table.
        other: Lends a connection that is in no transaction, see partition_checks.
    """
    generated = read_generated(connection, table)
    checks = read_checks(connection, table, generated) + partition_checks(target, connection, table, other)
    return Layout(table, checks, generated)


class StagedPart(NamedTuple):
    """The rows that one attempt has staged."""

    id: int
    """Their value of the column ID."""
    order: int
    """Rank of the attempt: of rows with the same key, those of the highest rank win."""
    rows: int
    """Their number."""


def condition_of_attempts(ids: Iterable[int]) -> str:
    """Return the SQL condition for the rows of these attempts in a staging table."""
    return f"{ID} = ANY ({_array(ids)})"


def truncated(lent: Session, stage: TableName) -> bool:
    """Truncate the table if that is worth it, nobody writes to it, and nobody's rows are left in it; return whether.

    While the lock is held, nobody can be writing, and every earlier writer has committed its row in `staged`. The
    caller has deleted its own rows there already.
    """
    table, staged = stage.quoted, stage._replace(table="staged").quoted_beside_parameters
    question = "SELECT pg_relation_size(oid), relreplident = 'f' FROM pg_catalog.pg_class WHERE oid = %s::regclass"
    size, has_identity = lent.execute(question, [table]).fetchone() or (0, True)
    if not has_identity:
        _give_identity(lent, stage)
    if size <= _WORTH_A_TRUNCATE:
        return False
    try:
        with lent.transaction():
            lent.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE NOWAIT".encode())
            others = lent.execute(f"SELECT FROM {staged} WHERE stage = %s LIMIT 1".encode(), [stage.table])
            if others.rowcount:
                return False
            lent.execute(f"TRUNCATE {table}".encode())
    except (LockNotAvailable, InsufficientPrivilege):
        return False
    return True


def _give_identity(lent: Session, stage: TableName) -> None:
    """Give a replica identity to a staging table of an earlier version, if nobody uses it and it is this role's.

    Otherwise a published database refuses to delete the rows, and the error says what to do.
    """
    with suppress(LockNotAvailable, InsufficientPrivilege), lent.transaction():
        lent.execute(f"LOCK TABLE {stage.quoted} IN ACCESS EXCLUSIVE MODE NOWAIT".encode())
        lent.execute(f"ALTER TABLE {stage.quoted} REPLICA IDENTITY FULL".encode())


def merge_statements(
    lent: Session,
    movement: Movement,
    parts: Sequence[StagedPart],
    stage: TableName,
    *,
    casts: Mapping[str, str] | None = None,
    first_only: bool = False,
    numbers: Mapping[str, str] | None = None,
) -> list[str]:
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
        casts: Columns whose values are moved by way of their text, each with its type, see casts_of_moved_columns.
        first_only: Whether to move only the first row of each attempt, for a rehearsal.
        numbers: Further columns, and the value that each of them gets.
    """
    into, ids = movement.target.quoted, _array(part.id for part in parts)
    values = [column for column in movement.columns if column != DELETE]
    types = casts or {}
    moved = ", ".join(f"{quoted(c)}::text::{types[c]}" if c in types else quoted(c) for c in values)
    more = numbers or {}
    insert = f"INSERT INTO {into} ({_names([*values, *more])}) OVERRIDING SYSTEM VALUE SELECT " + ", ".join(
        [moved, *more.values()]
    )
    first = f" AND {ROW} = 0" if first_only else ""
    if not movement.key:
        return [f"{insert} FROM {stage.quoted} WHERE {ID} = ANY ({ids}){first}"]
    lent.execute("SELECT set_config('work_mem', '64MB', true)")
    collations = read_unique_key(lent, movement.target, movement.key) or [""] * len(movement.key)
    compared = [f" COLLATE {collation}" if collation else "" for collation in collations]
    key = list(zip(map(quoted, movement.key), compared, strict=True))
    by_key = ", ".join(f"s.{name}{by}" for name, by in key)
    last = (
        f"SELECT DISTINCT ON ({by_key}) {_names(movement.columns, 's.')} FROM {stage.quoted} s"
        f" JOIN unnest({ids}, {_array(part.order for part in parts)}) AS part(id, place) ON part.id = s.{ID}{first}"
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


def stage_name(target: DatabaseTarget, sink: str, layout: Layout, epoch: int) -> TableName:
    """Return the name of the staging table for an epoch. It depends on the target's layout, and on the epoch's turn."""
    return TableName(target.ledger_schema, f"stage_{layout.digest(target, sink)}_{epoch % TURNS}")


def create_stage(connection: sa.Connection, target: DatabaseTarget, sink: str, layout: Layout, epoch: int) -> None:
    """Create the staging table of an epoch, unless it is there.

    It has the table's generated columns and check constraints, and the collations that they compare by, so that a row
    which breaks one fails its epoch before the decision. A row that deletes needs nothing but its key.

    Args:
        connection: A connection in autocommit mode.
        target: The sink's target.
        sink: The sink's name.
        layout: What it copies from the target's table.
        epoch: The epoch.
    """
    stage = stage_name(target, sink, layout, epoch)
    comment = psycopg.sql.Literal(_comments(target, sink, layout)[0]).as_string()
    definition = _definition(target, stage, layout)
    with session(connection) as lent, lent.transaction():
        lent.execute(LOCK_CREATION.encode())
        if read_table(lent, stage) is not None:
            return  # it may be another role's, who alone may comment on it
        lent.execute(definition.encode())
        lent.execute(f"ALTER TABLE {stage.quoted} REPLICA IDENTITY FULL".encode())
        lent.execute(f"COMMENT ON TABLE {stage.quoted} IS {comment}".encode())


def _comments(target: DatabaseTarget, sink: str, layout: Layout) -> list[str]:
    """Return the comment on the staging tables of a sink, and the one that earlier versions made."""
    deletes = f" with {target.change}" if target.change else ""
    earlier = f"onceward: rows on their way to {layout.table.schema}.{layout.table.name}"
    return [f"{earlier} from sink {sink}{deletes}", earlier]


def drop_obsolete(connection: sa.Connection, target: DatabaseTarget, sink: str, layout: Layout) -> None:
    """Drop the sink's staging tables for former layouts of its target, except those in use.

    In use are those that hold rows of an attempt (a decided epoch keeps its own), those that somebody writes into, and
    those of another role. A writer whose staging table disappears before its first row fails its attempt.
    """
    schema = target.ledger_schema
    kept = [stage_name(target, sink, layout, turn).table for turn in range(TURNS)]
    staged = TableName(schema, "staged")
    parameters = {"schema": quoted(schema or ""), "kept": kept, "comments": _comments(target, sink, layout)}
    with session(connection) as lent:
        question = _OBSOLETE.format(staged=staged.quoted_beside_parameters)
        names = [row[0] for row in lent.execute(question.encode(), parameters).fetchall()]
        for name in filter(STAGE.fullmatch, names):
            stage = TableName(schema, name)
            with suppress(LockNotAvailable, InsufficientPrivilege, UndefinedTable), lent.transaction():
                lent.execute(f"LOCK TABLE {stage.quoted} IN ACCESS EXCLUSIVE MODE NOWAIT".encode())
                still = f"SELECT FROM {staged.quoted_beside_parameters} WHERE stage = %s LIMIT 1"
                if not lent.execute(still.encode(), [name]).rowcount:
                    lent.execute(f"DROP TABLE {stage.quoted}".encode())


def _definition(target: DatabaseTarget, stage: TableName, layout: Layout) -> str:
    own = [f"{ID} bigint NOT NULL", f"{ROW} bigint NOT NULL"]
    spared, deletes = "", bool(target.change)
    if deletes:
        own.append(f"{DELETE} boolean NOT NULL")
        spared = f"{DELETE} OR "
    parts = []
    for column in layout.table.columns:
        if column.unwritable:
            continue
        name, collation = quoted(column.name), f" COLLATE {column.collation}" if column.collation else ""
        needed = column.not_null and not column.has_default
        parts.append(f"{name} {column.declared}{collation}{' NOT NULL' if needed and not deletes else ''}")
        if needed and deletes:
            parts.append(f"CHECK ({spared}{name} IS NOT NULL)")
    for title, kind, expression, _ in layout.generated:
        value = f"CASE WHEN {DELETE} THEN NULL ELSE {expression} END" if deletes else expression
        parts.append(f"{quoted(title)} {kind} GENERATED ALWAYS AS ({value}) STORED")
    _check_columns(target, layout, len(own))
    for number, (title, check, _) in enumerate(layout.checks):
        # PostgreSQL cuts longer names, and then takes two for one.
        name = title if not unusable(title, POSTGRESQL) else f"{number}: {title}"
        parts.append(f"CONSTRAINT {quoted(name)} CHECK ({spared}({check}))")
    return f"CREATE TABLE IF NOT EXISTS {stage.quoted} ({', '.join([*own, *parts])})"


def _check_columns(target: DatabaseTarget, layout: Layout, own: int) -> None:
    names = {column.name for column in layout.table.columns}
    taken = {ID, ROW, DELETE} & names
    if taken:
        raise ConfigurationError(f"table {target.table} has columns {sorted(taken)}, which staging needs: rename them")
    if len(names) + own > _MOST_COLUMNS:
        way_out = "leave columns out of the table" if target.key else "use commit='prepared', which adds none"
        raise ConfigurationError(
            f"table {target.table} has {len(names)} columns, and a staging table has {own} more (3 with a change "
            f"column, else 2; commit='prepared' adds none), but PostgreSQL allows {_MOST_COLUMNS}: {way_out}"
        )


def check_stage(stage: PgTable, layout: Layout) -> None:
    """Check that a staging table has the columns that it was made with.

    Raises:
        ConfigurationError: Somebody altered it, or it lost a column together with the column's type.
    """
    columns = {column.name: (column.type, column.collation_oid) for column in stage.columns}
    lost = [
        column.name
        for column in layout.table.columns
        if not column.unwritable and columns.get(column.name) != (column.type, column.collation_oid)
    ]
    if lost:
        raise ConfigurationError(
            f"columns {lost} of the staging table {stage.schema}.{stage.name} are missing, or not those that it was "
            "made with: somebody altered it. If no row of the table staged names it, drop it, and it is made again"
        )


def types_query(*tables: TableName) -> str:
    """Return a query for name, type and modifier of the columns of these tables."""
    oids = ", ".join(f"{psycopg.sql.Literal(table.quoted).as_string()}::regclass" for table in tables)
    return (
        "SELECT attname::text, atttypid, atttypmod FROM pg_catalog.pg_attribute"
        f" WHERE attrelid IN ({oids}) AND attnum > 0 AND NOT attisdropped"
    )


def casts_of_moved_columns(
    lent: Session, movement: Movement, stage: TableName, types: Sequence[tuple[Any, ...]]
) -> dict[str, str]:
    """Check that each column to be moved keeps every value. The caller holds a lock against ALTER TABLE.

    Args:
        lent: The connection of the transaction that merges.
        movement: The target and the columns. The INSERT refuses a column that is missing there.
        stage: The staging table.
        types: The rows of `types_query` for both tables.

    Returns:
        Columns whose enum was replaced by another one, each with its type now: they keep the labels, if both have them.

    Raises:
        SchemaError: A column was altered in a way that could change values.
    """
    kinds: dict[str, set[tuple[int, int]]] = {}
    for name, oid, modifier in types:
        kinds.setdefault(name, set()).add((oid, modifier))
    different = [name for name in movement.columns if len(kinds.get(name, ())) > 1]
    if not different:
        return {}
    staged, now = read_table(lent, stage), read_table(lent, movement.target)
    if staged is None or now is None:
        raise UndefinedTable(f"table {movement.target} or {stage} does not exist")
    before = {column.name: column for column in staged.columns}
    after = {column.name: column for column in now.columns}
    casts = {name: after[name].declared for name in different if before[name].type.enum and after[name].type.enum}
    problems = [
        f"column {name!r} is {after[name].declared} now, and its values were staged as {before[name].declared}"
        for name in different
        if name not in casts and not keeps_values(before[name].type, after[name].type)
    ]
    if problems:
        raise SchemaError(f"table {movement.target} was altered, and could change the values: {', '.join(problems)}")
    return casts


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
