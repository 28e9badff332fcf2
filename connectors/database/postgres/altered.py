# ruff: noqa: S608 - names are quoted, and nothing else comes from outside
"""Whether staged rows still fit into their table, which may have been altered since they were staged.

INSERT … SELECT casts as an assignment does: it rounds numbers, cuts times and texts, and takes a time without a zone
for one in the session's zone, all without a word. So a merge compares the types of the columns first. The staging
table has those of the target as it was, so an unaltered table always passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from onceward.core.errors import SchemaError

from .catalog import read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..dialect import Movement
    from ..target import TableName
    from .catalog import PgType
    from .session import Session

_WIDER: Final = frozenset(
    {("int2", "int4"), ("int2", "int8"), ("int4", "int8"), ("float4", "float8")}
    | {(kind, "numeric") for kind in ("int2", "int4", "int8")}
    | {(kind, text) for kind in ("varchar", "bpchar", "text") for text in ("varchar", "text")}
)
"""Types of which the second one holds every value of the first, if it declares no length or precision."""
_LONGER: Final = frozenset({"varchar", "timestamp", "timestamptz", "time"})
"""Types whose modifier is a length or a number of digits, of which more keep every value."""
_SCALE: Final = 0x7FF
"""The bits of numeric's modifier that are its scale; those above are its precision (numeric.c)."""


def types_query(*tables: TableName) -> str:
    """Gives name, type and modifier of the columns of these tables."""
    oids = ", ".join(f"{psycopg.sql.Literal(table.quoted).as_string()}::regclass" for table in tables)
    return (
        "SELECT attname::text, atttypid, atttypmod FROM pg_catalog.pg_attribute"
        f" WHERE attrelid IN ({oids}) AND attnum > 0 AND NOT attisdropped"
    )


def check_types(lent: Session, movement: Movement, stage: TableName, types: Sequence[tuple[Any, ...]]) -> None:
    """See that each column to be moved keeps every value; the caller holds a lock against ALTER TABLE.

    Args:
        lent: Of the transaction that merges.
        movement: Where to. A column that is missing there is the INSERT's to refuse.
        stage: The staging table.
        types: What `types_query` gave for both tables.

    Raises:
        SchemaError: One would not.
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
    """Whether each value of the first type is the same value in the second one."""
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
    """Whether char(n) fits into varchar(n)."""
    return (staged.name, now.name) == ("bpchar", "varchar") and 0 <= staged.modifier <= now.modifier
