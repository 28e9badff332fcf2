"""The life of one transaction, as one enum with one table of legal predecessors (after Kafka's TransactionState)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ..errors import LifecycleError


class TransactionState(StrEnum):
    """Where a transaction is in its life, as the process that handles it knows it."""

    NEW = "new"
    OPEN = "open"
    PREPARED = "prepared"
    DECIDED = "decided"
    COMMITTED = "committed"
    ABORTED = "aborted"
    LOST = "lost"


PREDECESSORS: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.NEW: frozenset(),
    TransactionState.OPEN: frozenset({TransactionState.NEW}),
    TransactionState.PREPARED: frozenset({TransactionState.OPEN}),
    TransactionState.DECIDED: frozenset({TransactionState.PREPARED}),
    TransactionState.COMMITTED: frozenset({TransactionState.DECIDED}),
    TransactionState.ABORTED: frozenset({TransactionState.NEW, TransactionState.OPEN, TransactionState.PREPARED}),
    TransactionState.LOST: frozenset({TransactionState.DECIDED}),
}
"""For each state, the states from which it may be entered. A decided transaction is never aborted."""


class Lifecycle:
    """The state of one transaction; moves only along PREDECESSORS.

    Args:
        name: For messages.
    """

    __slots__ = ("name", "state")

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = TransactionState.NEW

    def require(self, *states: TransactionState) -> None:
        """Check that the transaction is in one of `states`.

        Raises:
            LifecycleError: It is not.
        """
        if self.state not in states:
            raise LifecycleError(
                f"transaction {self.name} is {self.state}, not {' or '.join(states)}", transaction=self.name
            )

    def enter(self, state: TransactionState) -> None:
        """Move on to `state`.

        Raises:
            LifecycleError: `state` cannot be entered from the present one.
        """
        if self.state not in PREDECESSORS[state]:
            raise LifecycleError(
                f"transaction {self.name} cannot go from {self.state} to {state}", transaction=self.name
            )
        self.state = state
