"""Advice for error messages: what a user can change so that a database takes what it has refused, by error code."""

from __future__ import annotations

from typing import Final

_DROP: Final = "change or drop the constraint"
_GRANT: Final = (
    "GRANT the missing right to the connection's role, or connect as the table's owner (as a role with BYPASSRLS, "
    "where row-level security is the reason)"
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
    # MariaDB, by the server's number
    1142: "GRANT the missing right to the connection's user",
    1143: "GRANT the missing right to the connection's user",
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
_DATA: Final = "change the generated column, index or trigger that cannot take their values"
_ANY: Final = "change the table so that it takes them"
_OF_ROWS: Final = ("22", "23", "54", "P0")
"""SQLSTATE classes of errors for which the rows themselves may be to blame."""


LIMITS: Final = ("max_prepared_transactions", "max_pred_locks_per_transaction", "max_locks_per_transaction")
"""Settings of PostgreSQL that size its fixed tables in memory; when one is full, the SQLSTATE is 53200."""


def remedy(code: str | int | None, driver_error: object) -> str:
    """Say what to change so that a table takes the rows that it has refused at a merge.

    Args:
        code: The error's code, as failures.code returns it.
        driver_error: The driver's own error.
    """
    if code == "23514" and not _diagnostic(driver_error, "constraint_name"):  # no partition, or not the right one
        return _PARTITION
    if code in _REMEDIES:
        return _REMEDIES[code]
    return _DATA if isinstance(code, str) and code.startswith("22") else _ANY


def are_rows_to_blame(code: str | int | None) -> bool:
    """Return whether correcting values of the rows would help, too."""
    return not isinstance(code, str) or code[:2] in _OF_ROWS


def used_up(driver_error: object) -> str:
    """Return the setting that limits what PostgreSQL has used up; "" if memory itself has run out.

    The error's hint contains the setting's name, whatever the language of the server.
    """
    hint = _diagnostic(driver_error, "message_hint")
    return next((name for name in LIMITS if name in hint), "")


def refuses_prepare(driver_error: object) -> bool:
    """Return whether the transaction did what PREPARE TRANSACTION does not allow, such as NOTIFY (SQLSTATE 0A000).

    The message contains the keyword PREPARE, whatever the language of the server.
    """
    return "PREPARE" in _diagnostic(driver_error, "message_primary")


def _diagnostic(driver_error: object, field: str) -> str:
    return getattr(getattr(driver_error, "diag", None), field, None) or ""
