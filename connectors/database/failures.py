"""Translates errors of SQLAlchemy and its drivers: which may pass by themselves, and what to do about the others.

The codes are those of PostgreSQL's "PostgreSQL Error Codes", MariaDB's "Error Codes" and SQLite's "Result and Error
Codes". SQLAlchemy's own message is never repeated: it contains the statement and rows.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import exc

from onceward.core.errors import RetryableSinkError, SinkError, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .target import DatabaseTarget

_POSTGRES_CLASSES: Final = ("08", "40", "53", "57", "58")
"""Connection, transaction rollback, insufficient resources, operator intervention, system error."""
_POSTGRES_STATES: Final = frozenset({"55P03", "25006", "55006"})
"""Lock not available; read-only (a standby, until it is promoted); object in use."""
_MARIADB_CODES: Final = frozenset(
    {
        *(1040, 1041, 1053, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1927),  # connections, resources, shutdown
        *(1205, 1213, 1317, 1613, 1614, 1969),  # lock wait, deadlock, interrupted, time limit
        *(1021, 1290, 1792, 1836),  # disk full; read-only (a replica, until it is promoted)
        *(2002, 2003, 2006, 2013, 2014, 2055),  # no answer
    }
)
_SQLITE_CODES: Final = frozenset({5, 6, 10, 13})
"""Busy, locked, input or output error, disk full."""
_SEVERAL: Final = "\nMultiple connection attempts failed."
_REFUSED_LOGIN: Final = re.compile(
    r"(?:Peer|certificate) authentication failed for user|password authentication failed for user"
    r"|fe_sendauth: no password supplied"
    r'|FATAL:  (database|role) ".*" does not exist|role ".*" is not permitted to log in'
    r"|no pg_hba\.conf entry for|pg_hba\.conf rejects connection|FATAL:  permission denied for database"
    r"|FATAL:  (no such (user|database)|unrecognized configuration parameter|invalid value for parameter)"
    r"|certificate verify failed|does not match host name|server does not support SSL, but SSL was required"
    r'|certificate file ".*" does not exist'
)
_DRIVERS: Final = ("psycopg", "pymysql", "sqlite3")
_PRIMARY: Final = 0xFF
"""SQLite's extended codes hold the primary one in the lowest byte."""
_DROP: Final = "change or drop the constraint"
_GRANT: Final = (
    "GRANT the missing right to the connection's role, or connect as the table's owner (as a role with BYPASSRLS, "
    "where row-level security is the reason)"
)
_GRANT_USER: Final = (
    "GRANT the missing right to the user that the error names: the connection's, or the DEFINER of a trigger, view or "
    "routine"
)
_DEFINER: Final = (
    "create the trigger, view or routine again with a DEFINER who exists and has the rights, or create that user again"
)
_CONFLICT: Final = "delete the rows of the table that conflict with them, or drop the constraint"
_REFERENCE: Final = "insert the rows that they refer to, or drop the foreign key"
_NULLS: Final = "drop the NOT NULL"
_PARTITION: Final = "create a partition that takes them, or a DEFAULT partition"
_MISSING: Final = "create again what is missing"
_COLUMN: Final = "add the column again"
_REMEDIES: Final[dict[str | int, str]] = {
    # PostgreSQL, by SQLSTATE
    "42501": _GRANT,
    "23505": _CONFLICT,
    "23P01": _CONFLICT,
    "23503": _REFERENCE,
    "23502": _NULLS,
    "23514": _DROP,
    "54000": "drop the index that cannot hold them, or make it one over a hash such as md5(…)",
    "P0001": "change or disable the trigger that refuses them",
    "42P01": _MISSING,
    "3F000": _MISSING,
    "42703": _COLUMN,
    "42P10": "create the unique index over the key again",
    "428C9": "make the column one that takes values again",
    "2200H": "raise the limit of the sequence that the error names (ALTER SEQUENCE … NO MAXVALUE), or restart it",
    # MariaDB, by the server's number
    **dict.fromkeys((1142, 1143, 1227, 1370), _GRANT_USER),
    **dict.fromkeys((1356, 1449), _DEFINER),
    1305: _MISSING,
    4084: "raise the limit of the sequence that the error names (ALTER SEQUENCE … MAXVALUE), or restart it",
    1062: _CONFLICT,
    1452: _REFERENCE,
    1048: _NULLS,
    4025: _DROP,
    1526: _PARTITION,
    1146: _MISSING,
    1054: _COLUMN,
    # SQLite, by the primary result code
    19: _CONFLICT + " that they break",
}
_IDENTITY: Final = (
    "give the table that the error names a replica identity, because it is published: a primary key, or ALTER TABLE … "
    "REPLICA IDENTITY FULL"
)
_FILTER: Final = (
    "make the replica identity of the table have the columns of the publication's WHERE clause, for example by ALTER "
    "TABLE … REPLICA IDENTITY FULL, or change the publication"
)
_DATA: Final = "change the default, generated column, index or trigger that fails"
_ANY: Final = "change the table so that it takes them"
_MARIADB_REFUSALS: Final = frozenset(
    {
        *(1048, 1062, 1452, 1526, 4025),  # null, key that is there, foreign key, no partition, check
        *(1264, 1265, 1292, 1366, 1406, 1644, 3819),  # out of range, cut, wrong value, too long, a trigger's SIGNAL
        *(167, 1242, 1365, 1411, 1690),  # out of range, several rows, division by 0, wrong for a function, out of range
        *(1139, 1172),  # a trigger's regular expression, or its SELECT … INTO of several rows
    }
)
_MARIADB_OF_ROWS: Final = re.compile("02|20|2F|22|23|45|(?!70|HY|XA)[5-9I-Z]")
"""Beginnings of SQLSTATEs: no data, no branch of a CASE, or no RETURN in a trigger; data exception, violation of an
integrity constraint, and those that only a SIGNAL raises."""
_MARIADB_LAST: Final = 5_000
"""The server's own numbers are below; a SIGNAL may have any."""
_SQLITE_REFUSALS: Final = frozenset({18, 19, 20})
"""Too large, constraint, mismatch of types."""
_SQLITE_ERROR: Final = 1
_SQLITE_STATEMENT: Final = re.compile(
    r"no such |has no column|syntax error|already exists|incomplete input|ON CONFLICT clause does not match"
    r"|foreign key mismatch|values for \d+ columns|cannot |too many |not authorized|unsafe use of|may not be "
    r"|attempt to write|database schema|disk|SQL logic error|is not a function|ambiguous|unrecognized token|unknown "
)
"""Messages of SQLite's general error about a statement. All others arise while rows are computed: JSON, overflows, and
whatever a function of SQL raises."""
_RAISE: Final = "exec_stmt_raise"
"""PostgreSQL's function that raises what a function in PL/pgSQL says, with any SQLSTATE that it chooses."""
_OF_DEFAULTS: Final = ("2200H",)
"""SQLSTATEs of errors in those classes that no value of a row can avoid."""
_OF_ROWS: Final = ("20", "21", "22", "23", "2F", "54", "P0")
"""SQLSTATE classes of errors for which the rows themselves may be to blame. In a trigger these include a CASE without a
branch for a value (20), a subquery with several rows (21), and a function that ends without RETURN (2F)."""


def code(error: exc.SQLAlchemyError) -> str | int | None:
    """Return the SQLSTATE on PostgreSQL, the server's number on MariaDB, the primary result code on SQLite, or None."""
    cause = cause_of(error)
    driver = _driver(cause)
    if driver == "psycopg":
        return getattr(cause, "sqlstate", None)
    if driver == "sqlite3":
        number = getattr(cause, "sqlite_errorcode", None)
        return None if number is None else number & _PRIMARY
    first = cause.args[0] if cause is not error and cause.args else None
    return first if isinstance(first, int) else None


def may_pass(error: exc.SQLAlchemyError) -> bool:
    """Return whether the same statement may succeed later although nobody changes anything."""
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return True
    known = code(error)
    if isinstance(known, str):
        return known[:2] in _POSTGRES_CLASSES or known in _POSTGRES_STATES
    if known and _MARIADB_OF_ROWS.match(_state(error)):  # a trigger's SIGNAL, whatever number it chose
        return False
    if known:
        return known in (_SQLITE_CODES if _driver(cause_of(error)) == "sqlite3" else _MARIADB_CODES)
    if _is_refused_login(cause_of(error)):
        return False
    return isinstance(error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError)


def _state(error: exc.SQLAlchemyError) -> str:
    """Return the SQLSTATE that MariaDB sent; "" if there is none, or if PyMySQL is too old to keep it."""
    return getattr(cause_of(error), "sqlstate", None) or ""


def _is_refused_login(error: BaseException) -> bool:
    """Return whether a server, or libpq itself, will refuse connections until somebody changes something.

    psycopg has no SQLSTATE for a connection that failed, so only the text tells. The English texts are known, which
    servers use unless another language was chosen; any other text counts as an outage. If there are several hosts, each
    must have refused: a host that is down may be the one that takes the password.
    """
    first, _, rest = text_of(error).partition(_SEVERAL)
    hosts: dict[str, bool] = {}
    for attempt in rest.split("\n- host: ")[1:]:
        host = attempt.partition(",")[0]
        hosts[host] = hosts.get(host, False) or bool(_REFUSED_LOGIN.search(attempt))
    if hosts:
        return all(hosts.values())
    return getattr(getattr(error, "pgconn", None), "needs_password", False) or bool(_REFUSED_LOGIN.search(first))


def words(error: exc.SQLAlchemyError) -> str:
    """Return the database's message on one line, with its code."""
    cause, known = cause_of(error), code(error)
    if isinstance(known, str):
        return f"{_postgres_words(cause)} (SQLSTATE {known})"
    text = cause.args[1] if isinstance(known, int) and _driver(cause) != "sqlite3" and len(cause.args) > 1 else cause
    line = " ".join(str(text).split()) or type(cause).__name__
    return line if known is None else f"{line} (code {known})"


def _postgres_words(error: Any) -> str:
    diagnostic = error.diag
    more = {"detail": diagnostic.message_detail, "hint": diagnostic.message_hint, "context": diagnostic.context}
    parts = [
        diagnostic.message_primary or text_of(error),
        *(f"{label}: {text}" for label, text in more.items() if text),
    ]
    return ". ".join(part.rstrip(".") for part in parts)


def cause_of(error: exc.SQLAlchemyError) -> Any:
    """Return the driver's own error, where there is one."""
    orig = error.orig if isinstance(error, exc.StatementError) else None
    return error if orig is None else orig


def _driver(cause: BaseException) -> str:
    return type(cause).__module__.partition(".")[0]


def translate(error: exc.SQLAlchemyError, what: str, target: DatabaseTarget) -> SinkError:
    """Return onceward's error for an error of SQLAlchemy: RetryableSinkError if it may pass by itself."""
    text = f"{what} ({target.url}): {target.url.redact(words(error))}"
    if may_pass(error):
        return RetryableSinkError(text)
    refused, known = target.url.capabilities.refusal(text), code(error)
    refused.remedy, refused.of_rows = remedy(known, cause_of(error)), are_rows_to_blame(known)
    refused.refuses_rows = _refuses_rows(error)
    refused.refuses_alone = refused.refuses_rows and _refuses_alone(error)
    return refused


@contextmanager
def translated(what: str, target: DatabaseTarget) -> Iterator[None]:
    """Open a block in which errors of SQLAlchemy, and of its drivers, are raised as onceward's."""
    try:
        with as_sqlalchemys():
            yield
    except exc.SQLAlchemyError as error:
        # Without the cause: SQLAlchemy's error holds rows, and does not always pickle.
        raise translate(error, what, target) from None


@contextmanager
def as_sqlalchemys() -> Iterator[None]:
    """Open a block in which the drivers' own errors are raised as SQLAlchemy's.

    SQLAlchemy lets some of them pass: for one, while it resets a connection that goes back to the pool.
    """
    try:
        yield
    except Exception as error:
        base = next((kind for kind in type(error).__mro__ if _is_driver_error(kind)), None)
        if base is None:
            raise
        wrapped = exc.DBAPIError.instance(None, None, error, base, connection_invalidated=False)
        raise wrapped from error


def _is_driver_error(kind: type) -> bool:
    """Return whether a class is the base of all errors of a driver, as PEP 249 calls it."""
    return kind.__name__ == "Error" and kind.__module__.partition(".")[0] in _DRIVERS


def remedy(code: str | int | None, driver_error: object) -> str:
    """Return what to change so that a table takes the rows that it has refused at a merge.

    Args:
        code: The error's code, as the function `code` returns it.
        driver_error: The driver's own error.
    """
    if code == "23514" and not diagnostic(driver_error, "constraint_name"):  # no partition, or not the right one
        return _PARTITION
    if "REPLICA IDENTITY" in diagnostic(driver_error, "message_hint"):  # SQL's keyword, in any language
        return _IDENTITY
    if code == "42P10" and diagnostic(driver_error, "message_detail"):  # ON CONFLICT has none
        return _FILTER
    if code in _REMEDIES:
        return _REMEDIES[code]
    return _DATA if isinstance(code, str) and code.startswith("22") else _ANY


def are_rows_to_blame(code: str | int | None) -> bool:
    """Return whether it would help, too, to correct values of the rows."""
    return not isinstance(code, str) or (code[:2] in _OF_ROWS and code not in _OF_DEFAULTS)


def _refuses_rows(error: exc.SQLAlchemyError) -> bool:
    """Return whether the database refused rows for their values, and not the statement."""
    known = code(error)
    if isinstance(known, str):
        return are_rows_to_blame(known) or diagnostic(cause_of(error), "source_function") == _RAISE
    if _driver(cause_of(error)) != "sqlite3":
        of_signal = isinstance(known, int) and known > _MARIADB_LAST
        return known in _MARIADB_REFUSALS or of_signal or bool(_MARIADB_OF_ROWS.match(_state(error)))
    of_values = known == _SQLITE_ERROR and not _SQLITE_STATEMENT.search(str(cause_of(error)))
    return known in _SQLITE_REFUSALS or of_values


def _refuses_alone(error: exc.SQLAlchemyError) -> bool:
    """Return whether a row that is refused so is refused whatever rows come before it.

    Not if a trigger or another function raised it, as far as that can be seen, and not for a foreign key, which may be
    to the table itself.
    """
    known, cause = code(error), cause_of(error)
    if isinstance(known, str):
        native = not _FUNCTION.search(diagnostic(cause, "context"))
        return native and known != _FOREIGN_KEY and known[:2] in _OF_ITSELF
    if _driver(cause) == "sqlite3":
        return getattr(cause, "sqlite_errorname", "") in _SQLITE_ALONE
    return known in _MARIADB_ALONE


_FOREIGN_KEY: Final = "23503"
_OF_ITSELF: Final = ("22", "23", "54")
_FUNCTION: Final = re.compile(r"(?m)^(?!COPY )")
"""A line of PostgreSQL's context that does not say which line of COPY it was, but which function."""
_MARIADB_ALONE: Final = frozenset({1048, 1062, 1526, 4025, 1264, 1265, 1292, 1366, 1406, 3819})
_SQLITE_ALONE: Final = frozenset(
    {
        *("SQLITE_TOOBIG", "SQLITE_MISMATCH", "SQLITE_CONSTRAINT_CHECK", "SQLITE_CONSTRAINT_NOTNULL"),
        *("SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_DATATYPE"),
    }
)


def diagnostic(driver_error: object, field: str) -> str:
    """Return a field of the diagnostics that psycopg's errors carry; "" if there is none."""
    return getattr(getattr(driver_error, "diag", None), field, None) or ""
