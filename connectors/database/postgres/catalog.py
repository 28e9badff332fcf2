# ruff: noqa: S608 - statements are made of constants
"""Tables as the server's catalog describes them: columns with their real types, keys, checks, and obstacles to writing.

SQLAlchemy's inspector sends a query for each of these, which is too many for a small epoch that reads its table anew.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import psycopg

from onceward.core.errors import ConfigurationError, SchemaError

from ..described_table import GENERATED, Column, DescribedTable
from ..dialect import no_such_table, no_unique_key
from ..target import CommitPath

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..target import DatabaseTarget, TableName

Session: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
"""A connection of psycopg, as connection.py lends it."""
_log = logging.getLogger("onceward.database")

Checks: TypeAlias = tuple[tuple[str, str, str], ...]
"""Check constraints: name, expression, and a digest of the expression by the identities of all that it names."""
Generated: TypeAlias = tuple[tuple[str, str, str, str], ...]
"""Generated columns: name, type with collation, expression, and a digest as for Checks."""

_KINDS: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}


@dataclass(frozen=True)
class PgType:
    """A type of the server, with domains resolved."""

    oid: int
    """The oid of the type as declared, even if it is a domain: arrays are marked with it."""
    name: str
    """pg_type.typname of the base type, for example `int4`."""
    modifier: int = -1
    """Length or precision as PostgreSQL packs it (atttypmod); -1 for none."""
    enum: bool = False
    element: PgType | None = None
    """The element type of an array; None if it is not an array."""


@dataclass(frozen=True)
class PgTable(DescribedTable):
    """A table of PostgreSQL, whose columns have a PgType."""

    oid: int = 0
    is_partitioned: bool = False
    persistence: str = "p"
    """pg_class.relpersistence: p permanent, u unlogged, t temporary."""
    has_policies: bool = False
    """Whether row-level security binds this role."""


_FIRST_OF_USERS: Final = 16_384
_built_in: Final[dict[int, Any]] = {}
"""Rows of pg_type that are alike on every server: to read them each time would double the cost of a small epoch."""

TRIGGERS: Final = """EXISTS (
  WITH RECURSIVE part(oid) AS (
    SELECT c.oid UNION ALL
    SELECT i.inhrelid FROM part JOIN pg_catalog.pg_inherits i ON i.inhparent = part.oid WHERE c.relkind = 'p'
  )
  SELECT FROM part JOIN pg_catalog.pg_trigger t ON t.tgrelid = part.oid
  WHERE t.tgtype & 7 = 7 AND t.tgenabled IN ('O', 'A'))"""
"""Condition: a trigger of the table `c`, or of one of its partitions, may change a row before it is inserted (row 1,
before 2, insert 4). Triggers that are disabled, or for replicas only, never run. pg_partition_tree would lock each
partition."""

_FIND: Final = f"""
SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, {TRIGGERS},
       pg_catalog.row_security_active(c.oid)
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = pg_catalog.to_regclass(%(table)s)
"""

_COLUMNS: Final = """
SELECT attname, atttypid, atttypmod, pg_catalog.format_type(atttypid, atttypmod), attnotnull,
       atthasdef OR attidentity <> '' OR attgenerated <> '', attgenerated <> '',
       (SELECT pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(l.collname)
        FROM pg_catalog.pg_type t, pg_catalog.pg_collation l JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
        WHERE t.oid = atttypid AND l.oid = attcollation AND attcollation <> t.typcollation),
       attidentity = 'a', attcollation
FROM pg_catalog.pg_attribute
WHERE attrelid = pg_catalog.to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped
ORDER BY attnum
"""

_TYPES: Final = """
WITH RECURSIVE used(oid) AS (
  SELECT atttypid FROM pg_catalog.pg_attribute
  WHERE attrelid = pg_catalog.to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped
  UNION
  SELECT CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END
  FROM pg_catalog.pg_type t JOIN used ON used.oid = t.oid WHERE t.typtype = 'd' OR t.typcategory = 'A'
)
SELECT t.oid, t.typname, t.typtype::text, t.typcategory::text, t.typelem, t.typbasetype, t.typtypmod, t.typnotnull
FROM pg_catalog.pg_type t JOIN used ON used.oid = t.oid
"""


_REFERENCES: Final = """
SELECT c.relname::text FROM pg_catalog.pg_constraint k JOIN pg_catalog.pg_class c ON c.oid = k.confrelid
WHERE k.conrelid = %(oid)s AND k.contype = 'f'
"""


def read_table(connection: Session, name: TableName) -> PgTable | None:
    """Read a table's columns in one round trip; None if there is no such table.

    Binary COPY trusts the caller's types: a column of another type of the same width would be filled with nonsense.
    So a writer reads this in the transaction that writes, after it locked the table against ALTER TABLE.
    """
    parameters = {"table": name.quoted}
    with connection.pipeline():
        result = connection.execute(_FIND, parameters)
        columns = connection.execute(_COLUMNS, parameters)
    row = result.fetchone()
    if row is None:
        return None
    column_rows = columns.fetchall()
    known = _types(connection, parameters, {column[1] for column in column_rows})
    oid, schema, relation, kind, persistence, changes_rows, has_policies = row
    return PgTable(
        schema,
        relation,
        tuple(_column(column, known, changes_rows) for column in column_rows),
        "table" if kind in "rp" else _KINDS.get(kind, "no table"),
        oid=oid,
        is_partitioned=kind == "p",
        persistence=persistence,
        has_policies=has_policies,
    )


def read_references(connection: Session, table: PgTable) -> tuple[str, ...]:
    """Return the names of the tables to which the table's foreign keys refer, without their schemas."""
    return tuple(name for (name,) in connection.execute(_REFERENCES, {"oid": table.oid}))


_PRIVILEGES: Final = """
SELECT privilege FROM unnest(%(wanted)s::text[]) AS t(privilege)
WHERE NOT has_table_privilege(%(oid)s::oid, privilege)
  AND NOT coalesce(has_any_column_privilege(%(oid)s::oid, nullif(privilege, 'DELETE')), false)
"""
_MAY_LOCK: Final = "SELECT has_table_privilege(%(oid)s::oid, 'INSERT, UPDATE, DELETE, TRUNCATE')"
_NOT_IDENTIFIED: Final = """
WITH RECURSIVE part(oid, above) AS (
  SELECT %(oid)s::oid, ARRAY[%(oid)s::oid]
  UNION ALL SELECT i.inhrelid, above || i.inhrelid
  FROM part JOIN pg_catalog.pg_inherits i ON i.inhparent = part.oid
)
SELECT part.oid::regclass::text, p.pubname::text
FROM part JOIN pg_catalog.pg_class c ON c.oid = part.oid
JOIN pg_catalog.pg_class a ON a.oid = ANY (above) JOIN pg_catalog.pg_namespace n ON n.oid = a.relnamespace
JOIN pg_catalog.pg_publication_tables t ON (t.schemaname, t.tablename) = (n.nspname, a.relname)
JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
WHERE c.relkind = 'r' AND c.relreplident <> 'f' AND pg_catalog.pg_get_replica_identity_index(c.oid) IS NULL
  AND (p.pubupdate OR p.pubdelete AND %(deletes)s)
ORDER BY 1, 2 LIMIT 1
"""
"""A table, or partition, in which a publication refuses updates or deletes, because no index identifies its rows."""
_ALL_PUBLISHED: Final = "SELECT pubname::text FROM pg_catalog.pg_publication WHERE puballtables ORDER BY 1"
_OWN_PRIVILEGES: Final = """
SELECT privilege, c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace,
       unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS t(privilege)
WHERE n.nspname = %(schema)s AND c.relname = ANY (%(tables)s) AND NOT has_table_privilege(c.oid, privilege)
ORDER BY 2, 1
"""
_DEFERRED: Final = """
SELECT conname::text FROM pg_catalog.pg_constraint WHERE conrelid = %(oid)s AND condeferred ORDER BY conname
"""


def rules_query(table: TableName, *, upsert: bool) -> str:
    """Return a query for the names of the rules with which a merge would be refused, or would lose rows.

    For upserts these are the rules that ON CONFLICT refuses: on UPDATE (2), even if they are disabled, and on INSERT
    (3). For inserts, those by which an INSERT does something else instead.
    """
    inserts = "ev_type = '3' AND ev_enabled IN ('O', 'A')"
    wanted = f"ev_type = '2' OR {inserts}" if upsert else f"{inserts} AND is_instead"
    name = psycopg.sql.Literal(table.quoted).as_string()
    return (
        f"SELECT rulename::text FROM pg_catalog.pg_rewrite WHERE ev_class = {name}::regclass AND ({wanted}) ORDER BY 1"
    )


def check_rules(table: TableName, rows: Sequence[Sequence[Any]], *, upsert: bool) -> None:
    """Check the answer to `rules_query`.

    Raises:
        ConfigurationError: There is such a rule.
    """
    rules = [row[0] for row in rows]
    if rules and upsert:
        raise ConfigurationError(
            f"table {table} has rules {rules} on INSERT or UPDATE, with which PostgreSQL refuses ON CONFLICT, "
            "and so every upsert: drop them, or use triggers"
        )
    if rules:
        raise ConfigurationError(
            f"table {table} has rules {rules}, by which PostgreSQL does something else instead of INSERT: "
            "staged rows would be lost. Drop them, use triggers, or commit='prepared', whose COPY no rule changes"
        )


def _check_identity(connection: Session, target: DatabaseTarget, table: PgTable) -> None:
    """Check that the table has a replica identity if an upsert needs it.

    Raises:
        ConfigurationError: A publication refuses updates or deletes.
    """
    parameters = {"oid": table.oid, "deletes": bool(target.change)}
    row = connection.execute(_NOT_IDENTIFIED, parameters).fetchone()
    if row is not None:
        raise ConfigurationError(
            f"publication {row[1]} publishes table {row[0]}, which has no replica identity, so PostgreSQL refuses "
            f"upserts: give it a primary key, or ALTER TABLE {row[0]} REPLICA IDENTITY USING INDEX … (or FULL)"
        )


def check_writable(connection: Session, target: DatabaseTarget, path: CommitPath) -> PgTable:
    """Read the target's table, and check that this role can write it exactly once, by this key.

    Raises:
        SchemaError: There is no such table, or no unique index over the key.
        ConfigurationError: It is of another kind, has rules that upserts do not allow, or privileges are missing.
    """
    table = read_table(connection, target.table)
    if table is None:
        raise no_such_table(target.table)
    if table.kind != "table":
        raise ConfigurationError(f"{target.table} is {table.kind}: only a table can be written exactly once")
    if table.persistence == "t":
        raise ConfigurationError(f"{target.table} is a temporary table, which no other session sees")
    if table.persistence == "u":
        _log.warning("table %s is unlogged: a crash of the server empties it", target.table)
    privileges = ["INSERT", *(["SELECT", "UPDATE"] if target.key else []), *(["DELETE"] if target.change else [])]
    refused = connection.execute(_PRIVILEGES, {"oid": table.oid, "wanted": privileges}).fetchall()
    if refused:
        missing = ", ".join(row[0] for row in refused)
        raise ConfigurationError(f"the role may not {missing} on table {target.table}: GRANT {missing} ON it")
    may_lock = connection.execute(_MAY_LOCK, {"oid": table.oid}).fetchone()
    if may_lock == (False,):
        raise ConfigurationError(
            f"the role has rights only on columns of table {target.table}, and its lock against changes of the table's "
            "definition needs one on the whole table: GRANT INSERT ON it"
        )
    check_policies(table)
    check_key(connection, target)
    if target.key:
        _check_identity(connection, target, table)
    if path is not CommitPath.PREPARED:
        upsert = bool(target.key)
        rules = connection.execute(rules_query(target.table, upsert=upsert).encode()).fetchall()
        check_rules(target.table, rules, upsert=upsert)
    _say_deferred(connection, target, table, path)
    return table


def _say_deferred(connection: Session, target: DatabaseTarget, table: PgTable, path: CommitPath) -> None:
    """Log when deferred constraints are checked."""
    deferred = [row[0] for row in connection.execute(_DEFERRED, {"oid": table.oid}).fetchall()]
    if deferred and path is CommitPath.PREPARED:
        _log.info("deferred constraints %s are checked when an epoch is prepared, and fail the epoch there", deferred)
    elif deferred:
        _log.warning(
            "constraints %s of %s are checked only when an epoch's decided rows are merged: rows that break them stop "
            "the pipeline then (commit='prepared' finds out before the decision)",
            deferred,
            target.table,
        )


def check_policies(table: PgTable) -> None:
    """Check that no policy may hide rows from this role, or refuse them.

    Raises:
        ConfigurationError: Row-level security binds the role.
    """
    if table.has_policies:
        raise ConfigurationError(
            f"table {table.schema}.{table.name} has row-level security that binds this role: COPY refuses it, and a "
            "policy would hide rows from a delete. Write as the table's owner (without FORCE ROW LEVEL SECURITY) or as "
            "a role with BYPASSRLS, or ALTER TABLE … DISABLE ROW LEVEL SECURITY"
        )


def check_own_tables(connection: Session, schema: str, tables: Sequence[str]) -> None:
    """Check that this role may use onceward's own tables: some rights are not needed before a thousand epochs.

    Raises:
        ConfigurationError: A right is missing.
    """
    refused = connection.execute(_OWN_PRIVILEGES, {"schema": schema, "tables": list(tables)}).fetchall()
    if refused:
        privileges = ", ".join(f"{privilege} on {schema}.{table}" for privilege, table in refused)
        raise ConfigurationError(f"the role may not {privileges}: GRANT it, or let the role own onceward's tables")
    published = [row[0] for row in connection.execute(_ALL_PUBLISHED).fetchall()]
    if published:
        _log.warning(
            "publications %s are FOR ALL TABLES, so their subscribers get the tables of schema %s, too, staged rows "
            "included, and a CREATE SUBSCRIPTION stops ('logical replication target relation … does not exist') while "
            "it has no such table: publish single schemas (FOR TABLES IN SCHEMA …) or tables instead",
            *(published, schema),
        )


_UNIQUE: Final = """
SELECT bool_and(i.indimmediate),
       array_agg(coalesce(quote_ident(n.nspname) || '.' || quote_ident(l.collname), '')
                 ORDER BY array_position(%(key)s::text[], a.attname::text))
FROM pg_catalog.pg_index i
CROSS JOIN unnest(i.indkey::int2[], i.indcollation::oid[]) WITH ORDINALITY AS part(attribute, compared_by, place)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = part.attribute
LEFT JOIN pg_catalog.pg_collation l ON l.oid = part.compared_by
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
WHERE i.indrelid = pg_catalog.to_regclass(%(table)s) AND i.indisunique AND i.indisvalid
  AND i.indpred IS NULL AND i.indexprs IS NULL AND part.place <= i.indnkeyatts
GROUP BY i.indexrelid
HAVING array_agg(a.attname::text COLLATE "C" ORDER BY a.attname::text COLLATE "C")
     = ARRAY(SELECT name COLLATE "C" FROM unnest(%(key)s::text[]) AS key(name) ORDER BY 1)
ORDER BY bool_and(coalesce(l.collisdeterministic, true))
"""
"""Of several indexes, one whose collation takes different texts for equal comes first."""


def check_key(connection: Session, target: DatabaseTarget) -> None:
    """Check that a unique index is over the key of an upsert.

    Raises:
        SchemaError: There is no such index.
    """
    if target.key and read_unique_key(connection, target.table, target.key) is None:
        why = (
            f"{no_unique_key(target.key)}. A DEFERRABLE constraint does not count, and makes other unique indexes over "
            "the same columns unusable for ON CONFLICT"
        )
        raise SchemaError(f"table {target.table} cannot be upserted by {list(target.key)}: {why}")


def read_unique_key(connection: Session, table: TableName, key: Sequence[str]) -> tuple[str, ...] | None:
    """Return the collations by which a unique index over exactly these columns compares them.

    A DEFERRABLE constraint does not count, and makes others over the same columns unusable: PostgreSQL infers all of
    them for ON CONFLICT, and then refuses.

    The collations may differ from the columns' own. To pick one row for each key, compare as the index does: with a
    nondeterministic collation, equal texts may differ in their bytes.

    Returns:
        For each column a collation as SQL spells it, or "" for a type that has none; None if there is no such index.
    """
    rows = connection.execute(_UNIQUE, {"table": table.quoted, "key": list(key)}).fetchall()
    return tuple(rows[0][1]) if rows and all(row[0] for row in rows) else None


_GENERATED: Final = f"""
SELECT a.attname::text, concat_ws(' COLLATE ', pg_catalog.format_type(a.atttypid, a.atttypmod),
         CASE WHEN a.attcollation <> t.typcollation
           THEN pg_catalog.quote_ident(n.nspname) || '.' || pg_catalog.quote_ident(l.collname) END),
       pg_catalog.pg_get_expr(d.adbin, d.adrelid), pg_catalog.md5(a.atttypid || ' ' || d.adbin::text)
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_collation l ON l.oid = a.attcollation
LEFT JOIN pg_catalog.pg_namespace n ON n.oid = l.collnamespace
WHERE a.attrelid = %(oid)s AND a.attgenerated <> '' AND NOT a.attisdropped
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_depend p JOIN pg_catalog.pg_attribute b
      ON b.attrelid = p.refobjid AND b.attnum = p.refobjsubid
    WHERE p.refclassid = 'pg_catalog.pg_class'::regclass AND p.refobjid = a.attrelid
      AND (p.classid = 'pg_catalog.pg_attrdef'::regclass AND p.objid = d.oid
           OR p.classid = 'pg_catalog.pg_class'::regclass AND p.objid = a.attrelid AND p.objsubid = a.attnum)
      AND b.attnum <> a.attnum AND (b.atthasdef OR b.attidentity <> ''))
  AND NOT (SELECT {TRIGGERS} FROM pg_catalog.pg_class c WHERE c.oid = a.attrelid)
ORDER BY a.attnum
"""
"""Generated columns, without those of a table whose triggers may change a row, and those made of columns that a default
or an identity may fill. PostgreSQL keeps what they are made of as dependencies of the expression or of the column."""


def read_generated(connection: Session, table: PgTable) -> Generated:
    """Return the generated columns whose values can be made of the rows as they arrive."""
    if all(column.unwritable != GENERATED for column in table.columns):
        return ()
    return tuple(connection.execute(_GENERATED, {"oid": table.oid}).fetchall())


_CHECKS: Final = f"""
SELECT conname::text, pg_catalog.pg_get_expr(conbin, conrelid), pg_catalog.md5(conbin::text)
FROM pg_catalog.pg_constraint k
WHERE k.conrelid = %(oid)s AND k.contype = 'c'
  AND pg_catalog.pg_get_constraintdef(k.oid) NOT LIKE '%% NOT ENFORCED'
  AND coalesce(0 < ALL (k.conkey), false)
  AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_attribute a
    WHERE a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)
      AND (a.atthasdef OR a.attidentity <> '') AND a.attname <> ALL (%(generated)s::text[]))
  AND NOT (SELECT {TRIGGERS} FROM pg_catalog.pg_class c WHERE c.oid = k.conrelid)
ORDER BY conname
"""
"""Check constraints, without those that cannot be checked before the insert, because a default, an identity or a
trigger may fill a column; and without those on a whole row or a system column, which hold for this table alone."""


def read_checks(connection: Session, table: PgTable, generated: Generated) -> Checks:
    """Return the check constraints that can be checked on the rows as they arrive.

    Args:
        connection: Any connection.
        table: The table.
        generated: Its generated columns that can be made of the rows as they arrive.
    """
    parameters = {"oid": table.oid, "generated": [name for name, *_ in generated]}
    return tuple(connection.execute(_CHECKS, parameters).fetchall())


def _types(connection: Session, parameters: dict[str, str], wanted: set[int]) -> dict[int, Any]:
    """Return the rows of pg_type for the wanted oids, and for the types that these are made of."""
    if wanted <= _built_in.keys():
        return _built_in
    known = {row[0]: row for row in connection.execute(_TYPES, parameters).fetchall()}
    _built_in.update({oid: row for oid, row in known.items() if oid < _FIRST_OF_USERS})
    return known


def _column(row: Sequence[Any], types: dict[int, Any], changes_rows: bool) -> Column:
    name, oid, modifier, declared, not_null, has_default, generated, collation, only_inserted, collation_oid = row
    column_type, domain_not_null = _resolve(oid, modifier, types)
    # A domain is checked when the value is read, before any trigger runs.
    needed, unwritable = (not_null and not changes_rows) or domain_not_null, GENERATED if generated else ""
    return Column(
        name, column_type, declared, needed, has_default, unwritable, collation or "", only_inserted, collation_oid
    )


def _resolve(oid: int, modifier: int, types: dict[int, Any]) -> tuple[PgType, bool]:
    """Return the type behind `oid`, and whether a domain on the way forbids null."""
    _, name, kind, category, element, base, base_modifier, not_null = types[oid]
    if kind == "d":
        inner, inner_not_null = _resolve(base, base_modifier, types)
        return replace(inner, oid=oid), not_null or inner_not_null
    if category == "A" and element:
        return PgType(oid, name, modifier, element=_resolve(element, modifier, types)[0]), False
    return PgType(oid, name, modifier, enum=kind == "e"), False
