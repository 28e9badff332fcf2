"""Tables as their servers describe them: one description for checks, for plans to write rows, and for staging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

GENERATED: Final = "the column is generated; leave it out"


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: Any
    """The type as the dialect's conversions know it."""
    declared: str
    """The type as SQL spells it, for example `numeric(10,2)`."""
    not_null: bool = False
    """True if a null is refused: by the table, or because SQLite would replace it by a number. It is not if a trigger
    of PostgreSQL may replace it, or AUTO_INCREMENT does, the usual way to have rows numbered on MariaDB."""
    has_default: bool = False
    """True if a default, an identity or a generation expression fills it if it is not written."""
    unwritable: str = ""
    """Why it cannot be written; empty if it can."""
    collation: str = ""
    """The collation as SQL spells it, if it is not the type's own."""
    only_inserted: bool = False
    """True if an INSERT may set it, and no UPDATE (GENERATED ALWAYS AS IDENTITY)."""
    collation_oid: int = 0
    """PostgreSQL's identity of the collation."""
    is_numbered: bool = False
    """True if AUTO_INCREMENT numbers it."""

    @property
    def layout(self) -> tuple[Any, ...]:
        """All that decides how its values are written; it can be compared."""
        return repr(self.type), self.collation, self.not_null


@dataclass(frozen=True)
class DescribedTable:
    """A table and its columns, in order."""

    schema: str | None
    name: str
    columns: tuple[Column, ...]
    kind: str = "table"
    """`table`, or another kind of relation, with its article."""
    uniques: tuple[frozenset[str], ...] | None = None
    """Columns of the primary key and of each unique key that every statement checks, except keys with a condition. None
    if the dialect asks for the key when an upsert needs it."""
    refers: tuple[str, ...] = ()
    """Names of the tables to which its foreign keys refer, without their schemas."""

    has_triggers: bool = False
    """True if it has triggers that a statement's plan does not go through."""

    @property
    def full_name(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def clause(self) -> sa.TableClause:
        """The table in statements of SQLAlchemy, if the types are SQLAlchemy's."""
        return sa.table(self.name, *(sa.column(c.name, c.type) for c in self.columns), schema=self.schema)
