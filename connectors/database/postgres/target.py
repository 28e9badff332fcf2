"""What a sink was told about its target: configuration only, picklable, without an open connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceward.core.names import TransactionName, parse_transaction_name
from onceward.core.transaction import Committable

if TYPE_CHECKING:
    from onceward.core.transaction import WriteContext

    from .dsn import Dsn
    from .ledger import Ledger
    from .tables import TableName

GID_BYTES = 199
"""PostgreSQL's GIDSIZE is 200, with the end mark."""


@dataclass(frozen=True)
class Target:
    """Where and how rows are written."""

    dsn: Dsn
    table: TableName
    ledger: Ledger
    key: tuple[str, ...] = ()
    """Columns of the key of an upsert; empty for inserts."""
    change: str = ""
    """Column that says which rows of an upsert delete; empty for none. It is not in the table."""
    create_table: bool = False
    lock_timeout: float = 10.0
    """Seconds a statement may wait for another transaction's lock."""
    answer_within: float = 60.0
    """Seconds to wait for an answer to a short statement before the connection is cut and the question repeated."""


def make_committable(kind: str, name: TransactionName, rows: int = 0) -> Committable:
    """The handle of a transaction; its name says everything, so that listed and decided ones are equal."""
    return Committable.named(kind, name, rows=rows)


def own_name(gid: str, pipeline: str, sink: str) -> TransactionName | None:
    """The parsed gid if it carries exactly these names (invariant 9), of whichever decision log; else None."""
    name = parse_transaction_name(gid)
    if name is None or (name.scope.pipeline, name.scope.sink) != (pipeline, sink):
        return None
    return name


def new_name(context: WriteContext) -> TransactionName:
    """A name for a transaction, never used before."""
    name = context.transaction_name()
    size = len(str(name).encode())
    if size > GID_BYTES:
        raise ValueError(f"{name} has {size} bytes; PostgreSQL's gid has at most {GID_BYTES}")
    return name
