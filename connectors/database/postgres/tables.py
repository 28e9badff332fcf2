"""Names of tables, as a person writes them in SQL."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from psycopg import sql

from onceward.core.errors import ConfigurationError

_PART: Final = r'(?:"(?:[^"\0]|"")+"|[^\W\d][\w$]*)'
_NAME: Final = re.compile(rf"\s*(?:({_PART})\s*\.\s*)?({_PART})\s*")
_LONGEST: Final = 63


class TableName(NamedTuple):
    """A table, with its schema or, if None, found through the connection's search_path."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `table`, `schema.table`, `"My Schema"."T"`: as in SQL, unquoted parts are folded to lower case.

        Raises:
            ConfigurationError: Not such a name, or longer than the 63 bytes that PostgreSQL keeps of a name.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"{text!r} is not a table's name: give table, schema.table, or quoted parts as in SQL, "
                'for example "My Schema"."T"'
            )
        schema, table = (None if part is None else _unquoted(part) for part in match.groups())
        for part in (schema, table):
            if part is not None and len(part.encode()) > _LONGEST:
                raise ConfigurationError(f"{part!r} in {text!r} is longer than the {_LONGEST} bytes of a name")
        return cls(schema, table or "")

    def identifier(self) -> sql.Identifier:
        """For composing SQL."""
        return sql.Identifier(self.table) if self.schema is None else sql.Identifier(self.schema, self.table)

    def __str__(self) -> str:
        return ".".join(quoted(part) for part in self if part is not None)


def quoted(identifier: str) -> str:
    """An SQL identifier, in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()
