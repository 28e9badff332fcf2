"""What the database says of a table: columns, keys, engine; kept for a while by each process."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy import exc

from .engines import reading

if TYPE_CHECKING:
    from .target import TableName, Target

_KEPT_SECONDS: Final = 60.0
"""A table that changes meanwhile costs one attempt: the database refuses what does not fit, and it is read again."""


@dataclass(frozen=True)
class Described:
    """One table."""

    table: sa.Table
    uniques: tuple[frozenset[str], ...]
    """Column sets of the primary key and of unique keys without condition that are checked at each statement."""
    kind: str
    """`table`, or what else it is."""
    engine: str
    """MariaDB's storage engine; empty elsewhere."""


_known: dict[tuple[str, TableName], tuple[float, Described]] = {}


def describe(
    target: Target, name: TableName, *, fresh: bool = False, connection: sa.Connection | None = None
) -> Described | None:
    """Read a table; None if there is none.

    Args:
        target: Where.
        name: Which.
        fresh: Not what was read before.
        connection: Whose transaction to ask in; needed inside of one that writes, because SQLite has room for no
            second one. Default: one of its own.
    """
    key = (target.url.secret_text(), name)
    found = _known.get(key)
    if found is not None and not fresh and time.monotonic() - found[0] < _KEPT_SECONDS:
        return found[1]
    if connection is None:
        with reading(target, f"cannot read the columns of table {name}") as own:
            described = _read(own, name)
    else:
        described = _read(connection, name)
    if described is None:
        _known.pop(key, None)
    else:
        _known[key] = (time.monotonic(), described)
    return described


def forget(target: Target, name: TableName) -> None:
    """Read this table anew the next time."""
    _known.pop((target.url.secret_text(), name), None)


def _read(connection: sa.Connection, name: TableName) -> Described | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", exc.SAWarning)  # of types unknown to SQLAlchemy, which the plan refuses
        inspector = sa.inspect(connection)
        try:
            table = sa.Table(name.table, sa.MetaData(), schema=name.schema, autoload_with=connection, resolve_fks=False)
        except exc.NoSuchTableError:
            return None
        views = inspector.get_view_names(schema=name.schema)
        kind = "a view" if name.table in views else "table"
        options = inspector.get_table_options(name.table, schema=name.schema) if kind == "table" else {}
        uniques = _uniques(inspector, name)
        return Described(table, tuple(uniques), kind, _engine(options))


def _uniques(inspector: sa.Inspector, name: TableName) -> list[frozenset[str]]:
    found: list[list[Any]] = [inspector.get_pk_constraint(name.table, schema=name.schema)["constrained_columns"]]
    found += [unique["column_names"] for unique in inspector.get_unique_constraints(name.table, schema=name.schema)]
    for index in inspector.get_indexes(name.table, schema=name.schema):
        conditional = any(key.endswith("_where") for key in index.get("dialect_options", {}))
        if index["unique"] and not conditional:
            found.append(index["column_names"])
    sets = {frozenset(columns) for columns in found if columns and None not in columns}
    return sorted(sets, key=sorted)


def _engine(options: Any) -> str:
    return str(options.get("mariadb_engine") or options.get("mysql_engine") or "")
