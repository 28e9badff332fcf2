"""What a sink was told about its target: configuration only, picklable, without an open connection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.errors import ConfigurationError
from onceward.core.names import TransactionName, parse_transaction_name

if TYPE_CHECKING:
    from .url import Url

PREPARED: Final = "sql-prepared"
STAGED: Final = "sql-staged"
"""Kinds of committables."""

LEDGER_SCHEMA: Final = "onceward"
"""PostgreSQL's schema of onceward's own tables, by default."""

_PART: Final = r'(?:"(?:[^"\0]|"")+"|`(?:[^`\0]|``)+`|[^\W\d][\w$]*)'
_NAME: Final = re.compile(rf"\s*(?:({_PART})\s*\.\s*)?({_PART})\s*")
_PLAIN: Final = re.compile(r"[^\W\d][\w$]*")
_LONGEST: Final = 63


class CommitPath(StrEnum):
    """How rows wait for their decision."""

    AUTO = "auto"
    PREPARED = "prepared"
    STAGING = "staging"


class TableName(NamedTuple):
    """A table, with its schema (on MariaDB: its database) or, if None, in the connection's default one."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str, *, fold: bool = False) -> TableName:
        """Read `table`, `schema.table`, or parts in double quotes or backquotes: `"My Schema"."T"`.

        Args:
            text: As a person writes it.
            fold: As in PostgreSQL's SQL: unquoted parts are folded to lower case, and none is longer than the 63 bytes
                that it keeps of a name. Else a name means itself in upper and lower case.

        Raises:
            ConfigurationError: Not such a name.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"{text!r} is not a table's name: give table, schema.table, or quoted parts, for example "
                '"My Schema"."T"'
            )
        schema, table = (None if part is None else _unquoted(part, fold) for part in match.groups())
        for part in (schema, table):
            if fold and part is not None and len(part.encode()) > _LONGEST:
                raise ConfigurationError(f"{part!r} in {text!r} is longer than the {_LONGEST} bytes of a name")
        return cls(schema, table or "")

    @property
    def quoted(self) -> str:
        """As SQL, every part in double quotes."""
        return ".".join(quoted(part) for part in self if part is not None)

    def __str__(self) -> str:
        return ".".join(part if _is_plain(part) else quoted(part) for part in self if part is not None)


def quoted(name: str) -> str:
    """A name of a table or column as SQL, in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def _unquoted(part: str, fold: bool) -> str:
    mark = part[0]
    if mark in '"`':
        return part[1:-1].replace(mark * 2, mark)
    return part.lower() if fold else part


def _is_plain(part: str) -> bool:
    return part == part.lower() and _PLAIN.fullmatch(part) is not None


class Access(NamedTuple):
    """How a database is reached; targets that are reached in the same way share connections."""

    url: Url
    lock_timeout: float
    """Seconds a statement may wait for another transaction's lock."""
    answer_within: float
    """Seconds to wait for an answer before the connection is cut, beyond what waiting for a lock may take."""


@dataclass(frozen=True)
class Target:
    """Where and how rows are written."""

    url: Url
    table: TableName
    key: tuple[str, ...] = ()
    """Columns of the key of an upsert; empty for inserts."""
    change: str | None = None
    """Column that says which rows of an upsert delete; None for none. It is not in the table."""
    create_table: bool = False
    lock_timeout: float = 10.0
    answer_within: float = 60.0
    ledger_schema: str | None = None
    """Schema (on MariaDB: database) of onceward's own tables; None for the connection's default one."""
    tries_rows: bool = True
    """Whether rows are tried before they are staged, see staging.py."""

    @property
    def access(self) -> Access:
        """How its database is reached."""
        return Access(self.url, self.lock_timeout, self.answer_within)


def own_name(text: str, pipeline: str, sink: str) -> TransactionName | None:
    """The parsed name if it carries exactly these names (invariant 9), of whichever decision log; else None."""
    name = parse_transaction_name(text)
    return name if name is not None and name.scope.is_sink(pipeline, sink) else None
