# ruff: noqa: S608 - only constants and quoted names are put into the questions
"""Constraints of single partitions, as check constraints of a staging table.

A row reaches its partition only at the merge, when it is decided. A staging table checks it before: each constraint of
a partition becomes a CHECK that also holds for rows that do not belong to that partition.

To read which rows belong to a partition, PostgreSQL locks it, if only for a moment. Maintenance on one partition must
not block all writing, so the catalog is asked first whether anything has changed, which takes no lock; and if the lock
is not free at once, the constraints are left to the merge.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import psycopg

from ..target import quoted
from .catalog import TRIGGERS

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ..target import DatabaseAccess, DatabaseTarget
    from .catalog import Checks, PgTable, Session

_log = logging.getLogger("onceward.database")

_MOST: Final = 100
"""Largest number of constraints, because each row is checked against each of them."""
_SHORT_WAIT: Final = "200ms"
_SHOWN: Final = 3

_PARTS: Final = """
WITH RECURSIVE part(oid, up) AS (
  SELECT inhrelid, inhparent FROM pg_catalog.pg_inherits WHERE inhparent = %(oid)s
  UNION ALL SELECT i.inhrelid, i.inhparent FROM part JOIN pg_catalog.pg_inherits i ON i.inhparent = part.oid
), own(oid, title, number, expression, columns) AS (
  SELECT part.oid, k.conname::text, k.oid::bigint, k.conbin, k.conkey
  FROM part JOIN pg_catalog.pg_constraint k ON k.conrelid = part.oid
  WHERE k.contype = 'c' AND k.coninhcount = 0 AND coalesce(0 < ALL (k.conkey), false)
    AND coalesce((pg_catalog.to_jsonb(k) ->> 'conenforced')::boolean, true)  -- since PostgreSQL 18
  UNION ALL
  SELECT part.oid, 'NOT NULL of ' || a.attname, -a.attnum, NULL, ARRAY[a.attnum]
  FROM part JOIN pg_catalog.pg_attribute a ON a.attrelid = part.oid
  JOIN pg_catalog.pg_attribute p ON p.attrelid = part.up AND p.attname = a.attname
  WHERE a.attnum > 0 AND a.attnotnull AND NOT p.attnotnull
), filled(name) AS (
  SELECT attname FROM pg_catalog.pg_attribute
  WHERE attrelid = %(oid)s AND attnum > 0 AND (atthasdef OR attidentity <> '' OR attgenerated <> '')
)
"""
"""Partitions at any depth, the constraints that each has and the table above it has not, and the columns of the table
that a default, an identity or a generation expression fills."""
_STATE: Final = f"""
{_PARTS}
SELECT (SELECT count(*) FROM own), {TRIGGERS}, pg_catalog.md5(concat_ws(';',
    (SELECT string_agg(concat_ws(' ', oid, title, number), ',' ORDER BY oid, number) FROM own),
    (SELECT string_agg(concat_ws(' ', oid, p.relpartbound), ',' ORDER BY oid)
     FROM part JOIN pg_catalog.pg_class p USING (oid)),
    (SELECT string_agg(name, ',' ORDER BY name) FROM filled),
    (SELECT string_agg(concat_ws(' ', attname, atttypid, atttypmod), ',' ORDER BY attnum)
     FROM pg_catalog.pg_attribute WHERE attrelid = %(oid)s AND attnum > 0)))
FROM pg_catalog.pg_class c WHERE c.oid = %(oid)s
"""
"""Number of the constraints, whether a trigger may change rows, and a digest of all that `_READ` depends on."""
_TITLES: Final = f"""
{_PARTS} SELECT c.relname::text || ': ' || own.title FROM own JOIN pg_catalog.pg_class c USING (oid) ORDER BY 1
"""
_READ: Final = f"""
{_PARTS}
SELECT c.relname::text || ': ' || own.title, pg_catalog.pg_get_partition_constraintdef(own.oid),
       pg_catalog.pg_get_expr(own.expression, own.oid),
       (SELECT a.attname::text FROM pg_catalog.pg_attribute a WHERE a.attrelid = own.oid AND a.attnum = -own.number),
       pg_catalog.md5(concat_ws(' ', c.relpartbound, own.expression))
FROM own JOIN pg_catalog.pg_class c USING (oid)
WHERE NOT EXISTS (
    SELECT FROM pg_catalog.pg_attribute a JOIN filled ON filled.name = a.attname
    WHERE a.attrelid = own.oid AND a.attnum = ANY (own.columns))
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_partitioned_table t LEFT JOIN pg_catalog.pg_attribute a
      ON a.attrelid = t.partrelid AND a.attnum = ANY (t.partattrs::int2[])
    WHERE (t.partrelid = %(oid)s OR t.partrelid IN (SELECT up FROM part))
      AND (0 = ANY (t.partattrs::int2[]) OR a.attname IN (SELECT name FROM filled)))
ORDER BY own.oid, own.number
"""
"""Without constraints on columns that are filled, and without any if such a column, or an expression, is part of a
partition key."""

_known: Final[dict[tuple[DatabaseAccess, int], tuple[str, Checks]]] = {}


def partition_checks(
    target: DatabaseTarget, connection: Session, table: PgTable, other: Callable[[], AbstractContextManager[Session]]
) -> Checks:
    """Return the constraints of single partitions that can be checked on the rows as they arrive.

    Args:
        target: The sink's target.
        connection: The connection of the transaction that writes, or any other.
        table: The target's table.
        other: Lends a connection that is in no transaction, for queries that lock partitions.
    """
    if not table.is_partitioned:
        return ()
    count, changes_rows, state = connection.execute(_STATE, {"oid": table.oid}).fetchone() or (0, False, "")
    if changes_rows or not 0 < count <= _MOST:
        return ()
    known, checks = _known.get((target.access, table.oid), ("", ()))
    if known == state:
        return checks
    with other() as lent:
        try:
            checks = _read(lent, table)
        except psycopg.errors.LockNotAvailable:
            _log.warning("a partition of %s is locked: its own constraints are checked at the merge", table.name)
            return ()
    _known[target.access, table.oid] = state, checks
    return checks


def warn_of_partitions(connection: Session, table: PgTable, checks: Checks) -> None:
    """Warn of constraints of single partitions that are checked at the merge.

    Args:
        connection: Any connection.
        table: The target's table.
        checks: Constraints that are checked before.
    """
    if not table.is_partitioned:
        return
    titles = [row[0] for row in connection.execute(_TITLES, {"oid": table.oid}).fetchall()]
    known = {title for title, *_ in checks}
    late = [title for title in titles if title not in known]
    if late:
        shown = ", ".join([*late[:_SHOWN], *(["…"] if len(late) > _SHOWN else [])])
        _log.warning(
            "partitions of %s have constraints that the table itself does not have (%s): they are checked only when an "
            "epoch's decided rows are merged, and rows that break them stop the pipeline then. Add them to the table, "
            "too, or write with commit='prepared', which finds out before the decision",
            table.name,
            shown,
        )


def _read(lent: Session, table: PgTable) -> Checks:
    with lent.transaction():
        lent.execute("SELECT set_config('lock_timeout', %s, true)", [_SHORT_WAIT])
        rows = lent.execute(_READ, {"oid": table.oid}).fetchall()
    return tuple(
        (title, f"NOT ({belongs}) OR ({demand or f'{quoted(column)} IS NOT NULL'})", identity)
        for title, belongs, demand, column, identity in rows
        if belongs
    )
