"""Advice for errors of a PostgreSQL server that has no room, or that cannot prepare a transaction."""

from __future__ import annotations

from typing import Final

from ..failures import diagnostic

LIMITS: Final = ("max_prepared_transactions", "max_pred_locks_per_transaction", "max_locks_per_transaction")
"""Settings of PostgreSQL that size its fixed tables in memory; when one is full, the SQLSTATE is 53200."""
USED_UP_ADVICE: Final = (
    ". The server allows {most} (max_prepared_transactions), and {own} of them are of this pipeline and sink. An epoch "
    "needs one for each subtask (on Spark, for each partition that is written) until it is committed, and one more for "
    "each task that Spark repeats. Write fewer partitions (through a format: df.coalesce({half}) before the write; "
    "with exactly_once: writers={half}), raise max_prepared_transactions to twice the number of partitions, look in "
    "pg_prepared_xacts for orphaned ones, or use commit='staging', which needs none"
)
LOCKS_ARE_USED_UP: Final = (
    ". Transactions of all sessions share this memory, and each partition and index that a transaction writes to takes "
    "a place in it until the transaction ends. Raise {} and restart the server, or let an epoch's rows go into fewer "
    "partitions; with commit='staging' no place is kept until the decision"
)
REFUSES_PREPARE: Final = (
    "Something that runs with the rows, such as a trigger, does what PostgreSQL does not allow in a prepared "
    "transaction (NOTIFY, LISTEN, temporary tables, session-level advisory locks): use commit='staging', or change the "
    "trigger"
)


def used_up(driver_error: object) -> str:
    """Return the setting that limits what PostgreSQL has used up; "" if memory itself has run out.

    The error's hint contains the setting's name, whatever the language of the server.
    """
    hint = diagnostic(driver_error, "message_hint")
    return next((name for name in LIMITS if name in hint), "")


def refuses_prepare(driver_error: object) -> bool:
    """Return whether the transaction did what PREPARE TRANSACTION does not allow, such as NOTIFY (SQLSTATE 0A000).

    The message contains the keyword PREPARE, whatever the language of the server.
    """
    return "PREPARE" in diagnostic(driver_error, "message_primary")
