"""Rehearsals of merges: what only the merge of staged rows needs is tried before an epoch's decision depends on it.

A staging table checks types and constraints. But the merge also needs rights on the target, on its sequences and on the
functions of its defaults, an index over the key, and a replica identity where the table is published. So the start has
the server plan the statements of the merge (EXPLAIN checks rights), and each process merges the first row that it has
staged, and takes it back. It does so again when the definition of the table, or a right on it, has changed; and for
each attempt if the table has triggers, because what they reach has no version that could be compared.

What a rehearsal cannot know: errors for which rows are to blame (classes 22, 23 and 54, and what triggers raise),
because rows of the table, or of earlier epochs that are not merged yet, may be different at the merge; and what changes
between it and the merge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from onceward.core.errors import ConfigurationError, PostgresError

from .staging import StagedPart, merge_statements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..loader import Movement
    from ..target import TableName
    from .catalog import PgTable, Session

_SHORT_WAIT: Final = "SELECT set_config('lock_timeout', '50ms', true)"
_PROVES_NOTHING: Final = ("22", "23", "54", "P0", "40", "53", "55P03", "57")
"""Beginnings of SQLSTATEs of errors that depend on rows or on triggers, or that may pass."""
_FIRST_OF_USERS: Final = 16_384
"""Functions with smaller oids are the server's own, and are never replaced."""
_tried: Final[dict[tuple[Any, ...], Rehearsed]] = {}
"""The last rehearsal of this process for each role, table, key and columns."""
_VERSION: Final = """
SELECT pg_catalog.concat_ws(';', c.xmin, has_table_privilege(c.oid, 'DELETE'),
  ARRAY(SELECT (attnum, xmin, has_column_privilege(attrelid, attnum, 'INSERT'),
    has_column_privilege(attrelid, attnum, 'UPDATE'), has_column_privilege(attrelid, attnum, 'SELECT'))::text
    FROM pg_catalog.pg_attribute WHERE attrelid = c.oid AND attnum > 0),
  ARRAY(SELECT (oid, xmin)::text FROM pg_catalog.pg_attrdef WHERE adrelid = c.oid),
  ARRAY(SELECT (oid, xmin)::text FROM pg_catalog.pg_constraint WHERE conrelid = c.oid),
  ARRAY(SELECT (oid, xmin)::text FROM pg_catalog.pg_trigger WHERE tgrelid = c.oid),
  ARRAY(SELECT (oid, xmin)::text FROM pg_catalog.pg_rewrite WHERE ev_class = c.oid),
  ARRAY(SELECT (indexrelid, xmin)::text FROM pg_catalog.pg_index WHERE indrelid = c.oid),
  ARRAY(SELECT (oid, xmin)::text FROM pg_catalog.pg_publication),
  ARRAY(SELECT (oid, xmin)::text FROM pg_catalog.pg_publication_rel WHERE prrelid = c.oid){}
), {} FROM pg_catalog.pg_class c WHERE c.oid = {}
"""
"""A text that changes with the table's definition, the rights on it, its defaults, and what is published; then whether
the defaults can still be used. Each subtask of each epoch asks for both in one round trip, so there is no join, and no
order: a change of that costs one rehearsal. And there is no other table for the defaults, nor a parameter, because each
takes time to plan."""
_REACHED: Final = """
SELECT EXISTS (SELECT FROM pg_catalog.pg_trigger WHERE tgrelid = %(oid)s AND NOT tgisinternal AND tgenabled <> 'D'),
  ARRAY(SELECT d.refobjid FROM pg_catalog.pg_index i JOIN pg_catalog.pg_depend d ON d.objid = i.indexrelid
    WHERE i.indrelid = %(oid)s AND d.classid = 'pg_catalog.pg_class'::regclass
    AND d.refclassid = 'pg_catalog.pg_proc'::regclass)
"""
"""Whether the table has triggers, and the functions of its indexes."""
_FILLED: Final = """
SELECT a.attname::text, pg_catalog.pg_get_expr(d.adbin, d.adrelid), s.oid::regclass::text,
  CASE WHEN has_sequence_privilege(s.oid, 'SELECT, USAGE')
    THEN coalesce(pg_catalog.pg_sequence_last_value(s.oid)::numeric + q.seqincrement, q.seqstart) END,
  q.seqincrement, q.seqmin, q.seqmax, q.seqcycle,
  a.attidentity <> '' OR pg_catalog.pg_get_expr(d.adbin, d.adrelid) ~ '^nextval\\(''[^'']*''::regclass\\)$',
  s.oid IS NULL OR a.attidentity <> '' OR has_sequence_privilege(s.oid, 'USAGE, UPDATE'), s.oid, q.seqstart
FROM pg_catalog.pg_attribute a
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN LATERAL (
  SELECT p.refobjid AS oid FROM pg_catalog.pg_depend p
  WHERE p.classid = 'pg_catalog.pg_attrdef'::regclass AND p.objid = d.oid
    AND p.refclassid = 'pg_catalog.pg_class'::regclass
  UNION
  SELECT p.objid FROM pg_catalog.pg_depend p
  WHERE p.classid = 'pg_catalog.pg_class'::regclass AND p.refclassid = 'pg_catalog.pg_class'::regclass
    AND p.refobjid = a.attrelid AND p.refobjsubid = a.attnum AND p.deptype = 'i' AND a.attidentity <> ''
) AS r ON true
LEFT JOIN pg_catalog.pg_sequence q ON q.seqrelid = r.oid
LEFT JOIN pg_catalog.pg_class s ON s.oid = q.seqrelid AND s.relkind = 'S'
WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
  AND (a.atthasdef OR a.attidentity <> '') AND a.attname <> ALL (%(columns)s::text[])
ORDER BY a.attnum
"""
"""The columns that a default or an identity fills, each with its expression and, if there is one, its sequence."""
_FUNCTIONS: Final = """
SELECT DISTINCT f.oid, f.oid::regprocedure::text, has_function_privilege(f.oid, 'EXECUTE') FROM pg_catalog.pg_attrdef d
JOIN pg_catalog.pg_depend p ON p.classid = 'pg_catalog.pg_attrdef'::regclass AND p.objid = d.oid
JOIN pg_catalog.pg_proc f ON p.refclassid = 'pg_catalog.pg_proc'::regclass AND f.oid = p.refobjid
JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
WHERE d.adrelid = %(oid)s AND a.attname <> ALL (%(columns)s)
ORDER BY 2
"""


class Filled(NamedTuple):
    """A column that is not in the data, and that the table fills."""

    name: str
    expression: str | None
    """The default; None for an identity."""
    sequence: str | None
    """The sequence that its numbers come from; None if there is none."""
    next: int | None
    """The sequence's next number; None if the role may not read it."""
    increment: int | None
    least: int | None
    most: int | None
    cycles: bool | None
    is_plain: bool
    """Whether the value is the sequence's number as it is."""
    is_allowed: bool
    """Whether the role may take numbers from the sequence."""
    sequence_oid: int | None = None
    """The sequence's oid. It is None if there is no sequence."""
    start: int | None = None
    """The sequence's first number."""

    def lacks(self, rows: int) -> bool:
        """Return whether the sequence ends before it has numbered so many rows."""
        if self.next is None or self.increment is None or self.least is None or self.most is None or self.cycles:
            return False
        return not self.least <= self.next + (rows - 1) * self.increment <= self.most

    def has_numbers(self, rows: int) -> str:
        """Return a condition like `lacks`, negated, for the numbers that the sequence has then."""
        last = f"pg_catalog.pg_sequence_last_value({self.sequence_oid})::numeric + {self.increment}"
        end = f"coalesce({last}, {self.start}) + {rows - 1}::numeric * {self.increment}"
        may_read = f"has_sequence_privilege({self.sequence_oid}, 'SELECT, USAGE')"
        return f"CASE WHEN {may_read} THEN {end} BETWEEN {self.least} AND {self.most} END IS NOT FALSE"


class Rehearsed(NamedTuple):
    """A rehearsal."""

    version: str
    """The version of all that it depends on."""
    filled: Sequence[Filled]
    """The columns that the table fills."""
    functions: Sequence[int]
    """The oids of the functions that the defaults and the indexes call."""
    has_triggers: bool
    """The table has triggers. Nothing that they reach has a version, so each attempt is rehearsed."""

    def question(self, table: int, rows: int) -> bytes:
        """Return the query for the version, and for whether functions and sequences can be used for so many rows."""
        sequences = {one.sequence_oid: one for one in self.filled if one.sequence_oid is not None}
        of_users = [str(oid) for oid in self.functions if oid >= _FIRST_OF_USERS]
        versions = [_parameters(oid) for oid in sequences]
        if of_users:
            among = f"'{{{','.join(of_users)}}}'"
            versions.append(f"ARRAY(SELECT (oid, xmin)::text FROM pg_catalog.pg_proc WHERE oid = ANY ({among}))")  # noqa: S608 - oids
        checks = [f"has_function_privilege({oid}, 'EXECUTE')" for oid in self.functions]
        for oid, one in sequences.items():
            if one.expression is not None:  # an identity needs no right
                checks.append(f"has_sequence_privilege({oid}, 'USAGE, UPDATE')")
            if not one.cycles:
                checks.append(one.has_numbers(rows))
        of_defaults = "".join(f", {version}" for version in versions)
        return _VERSION.format(of_defaults, " AND ".join(checks) or "true", table).encode()


def _parameters(sequence: int) -> str:
    """Return an expression for the definition of a sequence. It is null if the role may not read it."""
    return (
        f"CASE WHEN has_sequence_privilege({sequence}, 'SELECT, USAGE')"
        f" THEN pg_catalog.pg_sequence_parameters({sequence})::text END"
    )


def check_filled(
    connection: Session, table: PgTable, columns: Sequence[str], rows: int = 1
) -> tuple[list[Filled], list[int]]:
    """Check that the columns which are not in the data can be filled, and return them, and their defaults' functions.

    Args:
        connection: Any connection.
        table: The target's table.
        columns: The columns of the data.
        rows: Number of rows.

    Raises:
        ConfigurationError: A right is missing, or a sequence is at its end.
    """
    if all(not column.has_default or column.unwritable or column.name in columns for column in table.columns):
        return [], []
    parameters = {"oid": table.oid, "columns": list(columns)}
    with connection.pipeline():
        answers = connection.execute(_FILLED, parameters), connection.execute(_FUNCTIONS, parameters)
    filled = [Filled(*row) for row in answers[0].fetchall()]
    functions = answers[1].fetchall()
    missing = [f"USAGE on sequence {one.sequence}" for one in filled if not one.is_allowed]
    missing += [f"EXECUTE on function {name}" for _, name, is_allowed in functions if not is_allowed]
    name = f"{table.schema}.{table.name}"
    if missing:
        raise ConfigurationError(f"the role may not use the defaults of table {name}: GRANT it {', '.join(missing)}")
    ended = [one for one in filled if one.lacks(rows)]
    if ended:
        raise ConfigurationError(
            f"sequence {ended[0].sequence}, which fills column {ended[0].name!r} of table {name}, ends before it has "
            f"numbered {rows} rows: ALTER SEQUENCE {ended[0].sequence} … MAXVALUE (or MINVALUE)"
        )
    return filled, [row[0] for row in functions]


def check_planned(connection: Session, movement: Movement, stage: TableName) -> None:
    """Have the server plan the statements of a merge, by which it checks rights, ON CONFLICT and publications."""
    with connection.transaction(force_rollback=True):
        for statement in merge_statements(connection, movement, (), stage):
            connection.execute(f"EXPLAIN {statement}".encode())


def rehearse(connection: Session, table: PgTable, movement: Movement, stage: TableName, rows: int) -> None:
    """Merge the first staged row of an attempt and take it back, unless this has been done with this definition.

    Args:
        connection: The connection of the transaction that writes.
        table: The target's table.
        movement: The movement of the attempt's rows.
        stage: The staging table.
        rows: The number of the attempt's rows.

    Raises:
        ConfigurationError: See check_filled.
        psycopg.Error: The merge would be refused, whatever the rows are.
    """
    about = (connection.info.dsn, table.oid, movement.key, movement.columns)
    known = _tried.get(about)
    if known is not None and not known.has_triggers and _ask(connection, table, rows, known) == (known.version, True):
        return
    filled, functions = check_filled(connection, table, movement.columns, rows)
    has_triggers, of_indexes = connection.execute(_REACHED, {"oid": table.oid}).fetchone() or (True, [])
    known = Rehearsed("", filled, [*functions, *of_indexes], has_triggers)
    version, _ = _ask(connection, table, rows, known)
    # Numbers are given, because a number that a sequence has given out stays so.
    numbers = {one.name: str(one.next) for one in filled if one.is_plain and one.next is not None}
    expressions = [one.expression for one in filled if one.expression is not None and one.name not in numbers]
    connection.execute("SAVEPOINT onceward_merge")
    try:
        connection.execute(_SHORT_WAIT)
        if expressions:
            _evaluate(connection, expressions)
        part = StagedPart(movement.id, 0, rows)
        statements = merge_statements(connection, movement, [part], stage, first_only=True, numbers=numbers)
        # A second time, an upsert updates the row. Then what is deferred until the commit.
        _merge(connection, [*(statements * (2 if movement.key else 1)), "SET CONSTRAINTS ALL IMMEDIATE"])
    finally:
        if connection.info.transaction_status is not psycopg.pq.TransactionStatus.UNKNOWN:
            connection.execute("ROLLBACK TO SAVEPOINT onceward_merge")
    _tried[about] = known._replace(version=version)


def _evaluate(connection: Session, defaults: Sequence[str]) -> None:
    """Evaluate defaults, whose errors would look like those of rows.

    Raises:
        PostgresError: A default fails.
    """
    try:
        connection.execute(f"SELECT {', '.join(defaults)}".encode())
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        why = f"{error.diag.message_primary} (SQLSTATE {error.sqlstate})"
        raise PostgresError(
            f"a default ({', '.join(defaults)}) fails, whatever the rows are: {why}: change the default"
        ) from None


def _ask(connection: Session, table: PgTable, rows: int, known: Rehearsed) -> tuple[Any, ...]:
    return connection.execute(known.question(table.oid, rows)).fetchone() or ("", False)


def _merge(connection: Session, statements: Sequence[str]) -> None:
    try:
        for statement in statements:
            connection.execute(statement.encode())
    except psycopg.Error as error:
        if error.sqlstate is None or error.sqlstate == "2200H" or not error.sqlstate.startswith(_PROVES_NOTHING):
            raise
