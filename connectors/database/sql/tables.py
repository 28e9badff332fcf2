"""Names of tables, as a person writes them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from onceward.core.errors import ConfigurationError

_PART: Final = r'(?:"(?:[^"\0]|"")+"|`(?:[^`\0]|``)+`|[^\W\d][\w$]*)'
_NAME: Final = re.compile(rf"\s*(?:({_PART})\s*\.\s*)?({_PART})\s*")


class TableName(NamedTuple):
    """A table, with its schema (on MariaDB: its database) or, if None, in the connection's default one."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `table`, `schema.table`, or parts in double quotes or backquotes.

        A name means itself in upper and lower case: `Totals` is the table that PostgreSQL calls "Totals".

        Raises:
            ConfigurationError: Not such a name.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"{text!r} is not a table's name: give table, schema.table, or quoted parts, for example "
                '"My Schema"."T"'
            )
        schema, table = (None if part is None else _unquoted(part) for part in match.groups())
        return cls(schema, table or "")

    def __str__(self) -> str:
        return ".".join(_shown(part) for part in self if part is not None)


def _unquoted(part: str) -> str:
    mark = part[0]
    return part[1:-1].replace(mark * 2, mark) if mark in '"`' else part


def _shown(part: str) -> str:
    return part if re.fullmatch(r"[^\W\d][\w$]*", part) else '"' + part.replace('"', '""') + '"'
