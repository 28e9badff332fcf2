"""What a sink's subtask knows about the epoch it writes."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from ..names import Scope, TransactionName
from .committable import Committable


class WriteContext(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one subtask at one epoch of one sink."""

    pipeline: str
    sink: str
    log: str
    """Identity of the decision log (8 hex digits)."""
    writer: int
    """Position of the writer's START entry in the decision log."""
    epoch: int
    subtask: int
    attempt: int = 0
    completed: int = -1
    """Newest epoch with a durable COMPLETED entry when the epoch began; -1 for none.

    A name that this process used in that epoch or an older one, or under an older writer, may be used again.
    """
    session: str = ""
    """Which run of the driver, where each of its epochs has a START of its own; empty where a run has one START.

    Between the STARTs of one session no subtask is at work, so names may go on from one to the next.
    """

    @property
    def scope(self) -> Scope:
        """Whose transactions these are."""
        return Scope(self.pipeline, self.sink, self.log)

    def transaction_name(self) -> TransactionName:
        """A name that was never used before and will never be used again."""
        return TransactionName(self.scope, self.writer, self.epoch, self.subtask, self.attempt, secrets.token_hex(4))

    def committable(
        self, *, kind: str, transaction: str, handle: dict[str, Any] | None = None, rows: int = 0, version: int = 1
    ) -> Committable:
        """The handle of a transaction that was prepared in this context.

        Args:
            kind: Which sort of transaction.
            transaction: Its name in the external system.
            handle: What the external system needs beyond the name (JSON values only).
            rows: How many it holds.
            version: Layout of `handle` for this kind.
        """
        return Committable(
            kind=kind,
            version=version,
            pipeline=self.pipeline,
            sink=self.sink,
            log=self.log,
            writer=self.writer,
            epoch=self.epoch,
            subtask=self.subtask,
            attempt=self.attempt,
            transaction=transaction,
            handle=handle or {},
            rows=rows,
        )

    def may_reuse(self, writer: int, epoch: int) -> bool:
        """Whether a durable entry proves that this process's transaction of (writer, epoch) has ended.

        Either its epoch is COMPLETED, or a later writer started and finished its recovery before this context
        was made. See PROTOCOL, Kafka facts, on the pool of ids.
        """
        return writer < self.writer or (writer == self.writer and epoch <= self.completed)
