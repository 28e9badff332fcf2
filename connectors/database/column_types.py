"""The types of columns, as tables in which each type is an entry: how a column is created, written and read.

Each dialect has one object of them. Of the entries of a table, the first one that takes a type counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa
import sqlalchemy as sa

from onceward.core.kit.rows import is_binary

from .conversions import Conversion, UnfitError, is_text

SqlType: TypeAlias = "sa.types.TypeEngine[Any]"
Takes: TypeAlias = Callable[[pa.DataType], bool]
"""A function that tells whether an entry is for an Arrow type."""
Kinds: TypeAlias = type | tuple[type, ...]
"""The classes of SQLAlchemy's types that an entry is for."""
Created: TypeAlias = "tuple[Takes, SqlType | Callable[[pa.DataType, bool], SqlType | None] | None]"
Written: TypeAlias = tuple[Takes, Kinds, Callable[[pa.DataType, Any], Conversion | None]]
Read: TypeAlias = tuple[Kinds, pa.DataType | Callable[[Any], pa.DataType | None] | None]

BINARY: Final = sa.types._Binary  # noqa: SLF001 - the only common base of the binary types
_UNSIGNED: Final = {pa.uint8(): sa.SmallInteger, pa.uint16(): sa.Integer, pa.uint32(): sa.BigInteger}
_INTEGERS: Final = {8: sa.SmallInteger, 16: sa.SmallInteger, 32: sa.Integer, 64: sa.BigInteger}
_CREATED: Final[tuple[Created, ...]] = (
    (pa.types.is_floating, sa.Double()),
    (pa.types.is_boolean, sa.Boolean()),
    (pa.types.is_decimal, lambda arrow, _: sa.Numeric(arrow.precision + max(-arrow.scale, 0), max(arrow.scale, 0))),
    (pa.types.is_uint64, sa.Numeric(20, 0)),
    (pa.types.is_integer, lambda arrow, _: _UNSIGNED.get(arrow, _INTEGERS[arrow.bit_width])()),
    (is_text, sa.Text()),
    (is_binary, sa.LargeBinary()),
    (pa.types.is_date, sa.Date()),
    (pa.types.is_timestamp, lambda arrow, _: sa.DateTime(timezone=arrow.tz is not None)),
    (pa.types.is_time, sa.Time()),
)
"""The types of created columns on every database that has no entry of its own."""
READ_TIMES: Final[tuple[Read, ...]] = (
    (sa.Date, pa.date32()),
    (sa.DateTime, pa.timestamp("us")),
    (sa.Time, pa.time64("us")),
)


@dataclass(frozen=True)
class ColumnTypes:
    """The column types of one database."""

    created: tuple[Created, ...]
    """Arrow types, and the type of a column that holds every value, in a key or elsewhere; None if there is none. They
    come before those that all databases have in common."""
    written: tuple[Written, ...] = ()
    """Arrow types, columns, and the conversion from the one to the other; None leaves it to a later entry."""
    read: tuple[Read, ...] = ()
    """Columns, and the Arrow type to read and hash their values as; None if they may differ from what was written. A
    decimal number is read as its shortest text."""

    def column_type(self, arrow: pa.DataType, *, key: bool = False) -> SqlType | None:
        """Return the SQL type that holds every value of an Arrow type; None if there is none."""
        for takes, made in (*self.created, *_CREATED):
            if takes(arrow):
                return made(arrow, key) if callable(made) else made
        if isinstance(arrow, pa.BaseExtensionType):
            return self.column_type(arrow.storage_type, key=key)
        return self.column_type(arrow.value_type, key=key) if pa.types.is_dictionary(arrow) else None

    def conversion(self, arrow: pa.DataType, column: SqlType) -> Conversion:
        """Return the conversion that keeps every value.

        Raises:
            UnfitError: There is none.
        """
        if pa.types.is_dictionary(arrow):
            return self.conversion(arrow.value_type, column)
        if pa.types.is_null(arrow):
            return Conversion(pa.null())
        if isinstance(arrow, pa.BaseExtensionType):
            if arrow.extension_name == "arrow.uuid":
                raise UnfitError("cast it to string")
            return self.conversion(arrow.storage_type, column)
        for takes, kinds, rule in self.written:
            if takes(arrow) and isinstance(column, kinds) and (found := rule(arrow, column)) is not None:
                return found
        if pa.types.is_nested(arrow):
            raise UnfitError("turn it into text, for example with to_json")
        raise UnfitError("no conversion keeps every value; cast it, or change the column")

    def read_back(self, column: SqlType) -> pa.DataType | None:
        """Return the Arrow type to read and hash a column's values as; None if they cannot be compared."""
        read = next((read for kinds, read in self.read if isinstance(column, kinds)), None)
        return read(column) if callable(read) else read
