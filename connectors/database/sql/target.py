"""What a sink was told about its target: configuration only, picklable, without an open connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from onceward.core.names import TransactionName, parse_transaction_name
from onceward.core.transaction import Committable

if TYPE_CHECKING:
    from .tables import TableName
    from .url import Url

PREPARED: Final = "sql-prepared"
STAGED: Final = "sql-staged"


@dataclass(frozen=True)
class Target:
    """Where and how rows are written."""

    url: Url
    table: TableName
    key: tuple[str, ...] = ()
    """Columns of the key of an upsert; empty for inserts."""
    create_table: bool = False
    lock_timeout: float = 10.0
    """Seconds a statement may wait for another transaction's lock."""
    answer_within: float = 60.0
    """Seconds to wait for an answer before the connection is cut, beyond what waiting for a lock may take."""
    ledger_schema: str | None = None
    """Schema (on MariaDB: database) of onceward's own tables; None for the connection's default one."""


def make_committable(kind: str, name: TransactionName, rows: int = 0) -> Committable:
    """The handle of a transaction; its name says everything, so that listed and decided ones are equal."""
    return Committable.named(kind, name, rows=rows)


def own_name(text: str, pipeline: str, sink: str) -> TransactionName | None:
    """The parsed name if it carries exactly these names (invariant 9), of whichever decision log; else None."""
    name = parse_transaction_name(text)
    if name is None or (name.scope.pipeline, name.scope.sink) != (pipeline, sink):
        return None
    return name
