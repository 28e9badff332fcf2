"""The configuration of a sink's target: picklable, without an open connection.

Texts that a person may read never contain a URL's secrets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import URL, exc, make_url

from onceward.core.contract.names import TransactionName, parse_transaction_name
from onceward.core.errors import ConfigurationError, MissingExtraError
from onceward.core.kit.secrets import AMBIGUOUS, is_ambiguous, is_secret_name, redact, shown_address

from .capabilities import DATABASES, POSTGRESQL, Capabilities

PREPARED: Final = "sql-prepared"
STAGED: Final = "sql-staged"
"""Kinds of committables."""

LEDGER_SCHEMA: Final = "onceward"
"""PostgreSQL's schema of onceward's own tables, by default."""

_PART: Final = r'(?:"(?:[^"\0]|"")+"|`(?:[^`\0]|``)+`|[^\W\d][\w$]*)'
_NAME: Final = re.compile(rf"\s*(?:({_PART})\s*\.\s*)?({_PART})\s*")
_OF_SQLALCHEMY: Final = re.compile(r"postgres(?:ql)?\+\w+:")
_PLAIN: Final = re.compile(r"[^\W\d][\w$]*")
_LIBPQ: Final[dict[str, Any]] = {"username": "user", "database": "dbname"}
"""SQLAlchemy's names of a URL's parts for which libpq has another name."""
_HOW: Final = (
    "give for example 'postgresql+psycopg://user@host/db', 'mariadb+pymysql://user@host/db' or "
    "'sqlite:////var/lib/shop.db' (special characters in a password percent-encoded)"
)
_PORTS: Final = re.compile(r"[0-9,]*")
"""The ports in a connection string; each of several hosts may have its own."""


WriteMode = Literal["auto", "insert", "upsert"]
CommitMode = Literal["auto", "prepared", "staging"]


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
            if part is not None and (refused := unusable(part, POSTGRESQL if fold else None)):
                raise ConfigurationError(f"{part!r} in {text!r} {refused}")
        return cls(schema, table or "")

    @property
    def quoted(self) -> str:
        """The name as SQL, with every part in double quotes."""
        return ".".join(quoted(part) for part in self if part is not None)

    @property
    def quoted_beside_parameters(self) -> str:
        """The same in a statement with parameters, where psycopg takes a % for the beginning of one."""
        return self.quoted.replace("%", "%%")

    def __str__(self) -> str:
        return ".".join(part if _is_plain(part) else quoted(part) for part in self if part is not None)


def unusable(name: str, database: Capabilities | None) -> str:
    """Return why a database cannot take a name as it is; empty if it can."""
    if not name.strip() or "\0" in name:
        return "is empty or holds a NUL"
    if database is None or len(name.encode()) <= database.longest_name:
        return ""
    return f"is longer than {database.longest_name} bytes, which is all {database.title} keeps of a name"


def quoted(name: str) -> str:
    """Return the name of a table or column as SQL, in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def _unquoted(part: str, fold: bool) -> str:
    mark = part[0]
    if mark in '"`':
        return part[1:-1].replace(mark * 2, mark)
    return part.lower() if fold else part


def _is_plain(part: str) -> bool:
    return part == part.lower() and _PLAIN.fullmatch(part) is not None


@dataclass(frozen=True, repr=False)
class Url:
    """An SQLAlchemy URL that shows itself without its secrets."""

    parsed: URL

    @classmethod
    def of(cls, text: str | URL) -> Url:
        """Read a URL as SQLAlchemy takes it. Without a driver it gets the one that was tested.

        Raises:
            ConfigurationError: Not a URL, or of a database or driver that is not known here; the message never repeats
                a password.
        """
        try:
            url = make_url(text)
        except (exc.ArgumentError, ValueError):
            # Nothing of the text is repeated: a password may be anywhere in it.
            raise ConfigurationError(f"url is not a database URL of SQLAlchemy: {_HOW}") from None
        backend, _, driver = url.drivername.partition("+")
        known = DATABASES.get(backend)
        is_file = known is not None and known.is_file
        if isinstance(text, str) and not is_file and is_ambiguous(text, login=_has_login(url)):
            raise ConfigurationError(f"url {AMBIGUOUS}")
        if known is None:
            raise ConfigurationError(f"url names the database {backend!r}, which has no sink here: {_HOW}")
        if driver not in ("", known.driver):
            raise ConfigurationError(
                f"url names the driver {driver!r}: this sink works through {known.driver} ({_HOW})"
            )
        file = (url.database or "").removeprefix("file:").partition("?")[0]
        if is_file and (file in ("", ":memory:") or url.query.get("mode") == "memory"):
            raise ConfigurationError(f"url names an SQLite database in memory, which no other process sees: {_HOW}")
        return cls(url.set(drivername=f"{backend}+{known.driver}"))

    @classmethod
    def from_dsn(cls, text: str) -> Url:
        """Read a connection string of libpq: `host=db dbname=shop user=writer` or `postgresql://writer@db/shop`.

        Better without a password: libpq reads PGPASSWORD and ~/.pgpass.

        Raises:
            ConfigurationError: Not a connection string; the message never repeats it.
        """
        try:
            import psycopg  # noqa: PLC0415 - an extra
        except ImportError:
            raise MissingExtraError("dsn needs psycopg: pip install 'onceward[postgres]'", name="psycopg") from None
        try:
            parameters = {key: str(value) for key, value in psycopg.conninfo.conninfo_to_dict(text).items()}
        except psycopg.Error:
            # libpq's message quotes pieces of the string, which may be pieces of a password
            raise ConfigurationError(
                "dsn is not a PostgreSQL connection string: give 'host=… dbname=… user=…' or "
                f"'postgresql://user@host/db' (special characters in a URI's password percent-encoded){_hint(text)}"
            ) from None
        names = ("username", "password", "host", "database")
        parts: dict[str, Any] = {name: parameters.pop(_LIBPQ.get(name, name), None) for name in names}
        if not _PORTS.fullmatch(parameters.get("port", "")) or "@" in (parts["host"] or ""):
            raise ConfigurationError(f"dsn {AMBIGUOUS}")
        if parameters.get("port", "").isdigit():
            parts["port"] = int(parameters.pop("port"))
        elif "port" in parameters:  # several hosts with ports of their own: in a URL of SQLAlchemy they are parameters
            parameters["host"] = parts.pop("host")
        url = URL.create(f"postgresql+{POSTGRESQL.driver}", **parts, query=parameters)
        if is_ambiguous(text, login=_has_login(url)):
            raise ConfigurationError(f"dsn {AMBIGUOUS}")
        return cls.of(url)

    def libpq(self) -> dict[str, Any]:
        """Return the URL as libpq's parameters, secrets included."""
        _, options = self.parsed.get_dialect()().create_connect_args(self.parsed)  # which knows several hosts
        return {key: ",".join(value) if isinstance(value, tuple) else value for key, value in options.items()}

    @property
    def capabilities(self) -> Capabilities:
        """The capabilities of the database."""
        return DATABASES[self.parsed.get_backend_name()]

    def without_secrets(self) -> tuple[str, bool]:
        """Return the URL without password and secret parameters, for a command line, and whether it had none.

        The file of an SQLite database gets its absolute path.
        """
        secret = [name for name in self.parsed.query if is_secret_name(name)]
        plain = self.parsed._replace(drivername=self.parsed.get_backend_name(), password=None)  # set() leaves it
        shown = plain.difference_update_query(secret)
        if self.capabilities.is_file and not (self.parsed.database or "").startswith("file:"):
            shown = shown.set(database=str(Path(self.parsed.database or "").absolute()))
        complete = self.parsed.password is None and not secret
        return shown.render_as_string(hide_password=False), complete

    def redact(self, message: str) -> str:
        """Return a message in which every secret of this URL is replaced by ***."""
        secrets = [self.parsed.password or ""]
        for key, value in self.parsed.query.items():
            if is_secret_name(key):
                secrets += [value] if isinstance(value, str) else value
        return redact(message, secrets)

    def __str__(self) -> str:
        return shown_address(self.parsed.render_as_string(hide_password=True))

    def __repr__(self) -> str:
        return f"Url({str(self)!r})"


def _has_login(url: URL) -> bool:
    return url.username is not None or url.password is not None


class DatabaseAccess(NamedTuple):
    """How a database is reached; targets that are reached in the same way share connections."""

    url: Url
    lock_timeout: float
    """Seconds for which a statement may wait for another transaction's lock."""
    answer_within: float
    """Seconds to wait for an answer before the connection is closed, in addition to the wait for a lock."""


@dataclass(frozen=True)
class DatabaseTarget:
    """A table in a database, and how rows are written into it."""

    url: Url
    table: TableName
    key: tuple[str, ...] = ()
    """Columns of the key of an upsert; empty for inserts."""
    change: str | None = None
    """Column that marks the rows of an upsert that delete, and that the table does not have; None for none."""
    create_table: bool = False
    lock_timeout: float = 10.0
    answer_within: float = 60.0
    ledger_schema: str | None = None
    """Schema (on MariaDB: database) of onceward's own tables; None for the connection's default one."""
    tries_rows: bool = True
    """Whether rows are tried before they are staged, see batched_inserts.py."""
    tried_beside: tuple[TableName, ...] | None = None
    """The pipeline's tables, if rows to be staged are tried in the table itself, unless a foreign key refers to one of
    these. None: they are tried in a temporary table like it."""
    proof: bool = False
    """Whether rows are hashed, so that they can be compared later."""

    @property
    def access(self) -> DatabaseAccess:
        return DatabaseAccess(self.url, self.lock_timeout, self.answer_within)


def _hint(text: str) -> str:
    """Return what to leave out of another library's URL, without repeating any of it."""
    if text.startswith("jdbc:"):
        return ". This is a URL of JDBC: leave out 'jdbc:'"
    return ". This is a URL of SQLAlchemy: leave out the '+' and the driver" if _OF_SQLALCHEMY.match(text) else ""


def own_name(text: str, pipeline: str, sink: str) -> TransactionName | None:
    """Return the parsed name if it carries exactly these names, of any decision log; else None (invariant 9)."""
    name = parse_transaction_name(text)
    return name if name is not None and name.scope.is_sink(pipeline, sink) else None
