"""What the databases differ in: how a connection is set up, what the server allows, and two-phase commands.

SQLAlchemy's own begin_twophase is not used: closing its connection rolls back what was just prepared, its ids on
MariaDB have no branch qualifier (so too few bytes), and its listing shows other databases' transactions too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    import sqlalchemy as sa
    from sqlalchemy.sql.dml import Insert

    from onceward.core.names import TransactionName

    from .tables import TableName
    from .target import Target


@dataclass(frozen=True)
class ServerFacts:
    """What matters of a server's set-up."""

    unusable: str = ""
    """Why nothing can be written here, and what to do; empty if it can."""
    max_prepared: int = 0
    """How many prepared transactions it allows; 0 for none."""
    why_none: str = ""
    """Why it prepares nothing, and how to change that."""
    warnings: tuple[str, ...] = ()
    """What weakens the guarantee."""


class Answer(Enum):
    """What the server said to the end of a prepared transaction."""

    DONE = "done"
    BUSY = "busy"
    """It is there and cannot be ended now: by this answer nothing is proven."""
    GONE = "gone"
    """It is not there any more, or never was: the ledger tells which."""


class Trial(NamedTuple):
    """Where rows are tried."""

    place: TableName
    has_keys: bool
    """Whether it has the table's unique keys; else upserts are tried as inserts."""


class TwoPhase(Protocol):
    """The commands of one database. Each takes a connection in autocommit mode that is in no transaction.

    A writer calls begin → (inserts) → prepare → hand_over; any other process commit or rollback.
    """

    def begin(self, connection: sa.Connection, name: TransactionName, lock_timeout: float) -> None:
        """Begin the transaction; waits at most `lock_timeout` seconds for a lock."""

    def prepare(self, connection: sa.Connection, name: TransactionName) -> None:
        """Prepare it: when this returns it survives the server's crash."""

    def hand_over(self, connection: sa.Connection) -> None:
        """Let go of the connection so that others can end what was prepared on it."""

    def commit(self, connection: sa.Connection, name: TransactionName) -> tuple[Answer, str]:
        """Commit it by name; the answer, and the server's words."""

    def rollback(self, connection: sa.Connection, name: TransactionName) -> tuple[Answer, str]:
        """Roll it back by name; the answer, and the server's words."""

    def waiting(self, connection: sa.Connection, pipeline: str, sink: str) -> list[TransactionName]:
        """Names of what is prepared in this database under exactly this pipeline's and sink's name."""


class Dialect(Protocol):
    """One database."""

    title: str
    """For messages."""
    two_phase: TwoPhase | None
    """None where the database has no prepared transactions."""
    asks_with_lock: bool
    """Whether a look into the ledger must wait for transactions that are just ending."""

    def engine_arguments(self, target: Target) -> dict[str, Any]:
        """Arguments for create_engine."""

    def prepare_engine(self, engine: sa.Engine, target: Target) -> None:
        """Install what each new connection needs."""

    def open_transaction(self, connection: sa.Connection, target: Target) -> None:
        """Settings for the transaction just begun."""

    def limited(self, seconds: float, connection: sa.Connection | None = None) -> AbstractContextManager[object]:
        """A block in which a connection fails when the time is over, if its driver would wait for ever.

        The connection is the given one, or whichever the block takes from the engine: then the limit begins with
        the first question that is asked on it, be it SQLAlchemy's own.
        """

    def read_server(self, connection: sa.Connection) -> ServerFacts:
        """Ask the server."""

    def behind(self, connection: sa.Connection) -> str:
        """Why this server may lag behind another one; empty if it does not."""

    def upsert(self, table: sa.TableClause, values: dict[str, Any], key: Sequence[str]) -> Insert:
        """Insert these columns, or update them in the row that has this key."""

    def trial(self, connection: sa.Connection, table: sa.Table) -> AbstractContextManager[Trial]:
        """Where the block may write rows to see whether `table` would take them; at its end they are forgotten.

        It never refuses what the table would take: where a trigger may change rows first, it has the types alone.
        Nobody else may see them, wait for them, or be waited for on their account, longer than the transaction that
        the connection is in.
        """

    trial_needs: str
    """What a role must be allowed for a trial; empty if writing needs no less."""

    def check_key(self, uniques: Sequence[frozenset[str]], key: Sequence[str]) -> str:
        """Why an upsert by this key of a table with these unique keys is not sound; empty if it is."""


READ_ONLY: Final = "onceward_read_only"
"""Execution option of a transaction that only reads."""
HOW_TO_STAGE: Final = "or use commit='staging'"


def no_unique_key(key: Sequence[str]) -> str:
    """The refusal of an upsert without a unique key."""
    return f"it has no primary key or unique index over exactly {list(key)}, which an upsert needs"
