"""What travels between the processes that write, decide and commit: contexts, committables, acknowledgements."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from ..errors import LogDamagedError, text_of
from ..kit import typed
from ..kit.sealed import decode_json
from .names import Progress, Scope, TransactionName, parse_transaction_name
from .outcome import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Observation, abort_outcome, commit_outcome
from .proof import NO_ROWS, Proof, Wrote

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ANY_EPOCH",
    "AbortOutcome",
    "AbortStatus",
    "Acknowledgement",
    "CommitOutcome",
    "CommitStatus",
    "Committable",
    "Observation",
    "Progress",
    "WriteContext",
    "Written",
    "abort_outcome",
    "commit_outcome",
    "rows_by_sink",
]

T = TypeVar("T")
ANY_EPOCH = -1
"""Epoch or writer of a committable that was listed from a target whose names do not carry it."""


class Committable(msgspec.Struct, frozen=True, kw_only=True):
    """Small, picklable, versioned, JSON-serialisable handle of one prepared transaction.

    It never holds a password: connection settings live in the sink. Two committables are the same transaction if
    they are equal field by field.
    """

    kind: str
    """Kind of transaction, for example `kafka` or `sql-prepared`."""
    version: int = 1
    """Layout of `handle` for this kind."""
    pipeline: str
    sink: str
    log: str
    """Identity of the decision log of the writer."""
    generation: int = msgspec.field(name="writer")
    """Position of its writer's START entry; ANY_EPOCH if the listing cannot tell."""
    epoch: int
    """Epoch of the data; ANY_EPOCH if the listing cannot tell."""
    subtask: int = 0
    attempt: int = 0
    transaction: str
    """Name in the external system: transactional id, gid, staging key."""
    handle: dict[str, Any] = {}
    """Values that the external system needs beyond the name (JSON values only), such as producer id and epoch."""
    rows: int = 0
    proof: Proof | None = None
    """Hash of what of its rows can be read back from the target; None if it was not requested, or is not known."""
    handed: str | msgspec.UnsetType = msgspec.UNSET
    """Hash of all that the sink was handed: every column of every row (handed_rows.py). UNSET if it is not known.

    Only transactions that have it can be written again where some of their epoch is visible. SubtaskEpoch sets it.
    """

    def __hash__(self) -> int:  # the handle is a dict, which has none
        return hash((self.kind, self.log, self.sink, self.transaction, self.epoch, self.subtask, self.attempt))

    @classmethod
    def named(
        cls,
        kind: str,
        name: TransactionName,
        *,
        transaction: str | None = None,
        version: int = 1,
        rows: int = 0,
        proof: Proof | None = None,
        handle: dict[str, Any] | None = None,
    ) -> Self:
        """Make the handle of a transaction from its name; `transaction` is for targets that give names of their own."""
        return cls(
            kind=kind,
            version=version,
            pipeline=name.scope.pipeline,
            sink=name.scope.sink,
            log=name.scope.log,
            generation=name.start,
            epoch=name.epoch,
            subtask=name.subtask,
            attempt=name.attempt,
            transaction=str(name) if transaction is None else transaction,
            handle=handle or {},
            rows=rows,
            proof=proof,
        )

    @property
    def scope(self) -> Scope:
        """Pipeline, sink and decision log that the transaction belongs to."""
        return Scope(self.pipeline, self.sink, self.log)

    def identity(self) -> tuple[str, str, str]:
        """Return what identifies the transaction: sink, name and handle."""
        # With the handle: some targets use a name again, as Kafka does a transactional id.
        return (self.sink, self.transaction, msgspec.json.encode(self.handle, order="deterministic").decode())

    def wrote(self) -> Wrote:
        """Return the rows that its transaction wrote, for the proof of its epoch."""
        proof = self.proof
        # No rows have a hash that is known without any proof; rows without one stay unproven.
        if proof is None:
            return Wrote(rows=self.rows, hash="" if self.rows else NO_ROWS)
        return Wrote(self.rows, proof.hash, proof.columns, (proof.mark,) if proof.mark else (), proof.kinds)

    def to_json(self) -> str:
        """Serialise; the same committable always gives the same text."""
        return msgspec.json.encode(self, order="deterministic").decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Committable:
        """Read the text that to_json wrote.

        Raises:
            LogDamagedError: Not a committable.
        """
        return decode_json(text, cls, LogDamagedError, "a committable")

    def read_name(self) -> TransactionName:
        """Parse and check the transaction's name, which `WriteContext.transaction_name` or a listing gave it.

        Raises:
            LogDamagedError: It is not such a name, or it names another transaction than the committable: somebody
                altered it.
        """
        name = parse_transaction_name(self.transaction)
        fields = (self.pipeline, self.sink, self.log, self.generation, self.epoch, self.subtask, self.attempt)
        # Names become paths, ids and statements in targets, so a name must say what the fields say.
        if name is None or fields != (*name.scope, name.start, name.epoch, name.subtask, name.attempt):
            raise self._altered(
                f"{self.transaction!r} is not the name of this transaction, which is of subtask {self.subtask}, "
                f"attempt {self.attempt}, under generation {self.generation} of decision log {self.log!r}"
            )
        return name

    def read_handle(self, layout: type[T]) -> T:
        """Convert the handle to this layout.

        Raises:
            LogDamagedError: It has another layout: it is another kind's, or somebody altered it.
        """
        try:
            return typed.convert(self.handle, layout)
        except msgspec.ValidationError as error:
            raise self._altered(
                f"the handle of a committable of kind {self.kind!r} cannot be read: {text_of(error)}"
            ) from error

    def _altered(self, why: str) -> LogDamagedError:
        return LogDamagedError(
            why, pipeline=self.pipeline, sink=self.sink, epoch=self.epoch, transaction=self.transaction
        )


class Written(msgspec.Struct, frozen=True):
    """The work of one subtask for one sink in an epoch: for people, monitoring, and the limit of dead letters."""

    sink: str
    rows: int = 0
    write: float = 0.0
    """Seconds in `begin` and `write`."""
    prepare: float = 0.0
    """Seconds in `pre_commit`, or in a direct sink's `flush`."""
    refused: int = 0
    """Rows that the target refused, and that went to the dead-letter sink."""


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one subtask at its barrier: for each sink its committable, or nothing written.

    `sinks` names every sink the subtask served, so that "nothing written" is said and not assumed.
    """

    epoch: int
    subtask: int
    attempt: int
    sinks: tuple[str, ...]
    committables: tuple[Committable, ...] = ()
    retried: bool = False
    """True if an earlier or parallel attempt of this subtask may have left a transaction behind."""
    written: tuple[Written, ...] = ()
    refused: dict[str, int] = {}
    """Number of rows that were refused and went to the dead-letter sink, by the reason; for people."""

    def to_json(self) -> str:
        """Serialise for the way from executor to driver."""
        return msgspec.json.encode(self, order="deterministic").decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Acknowledgement:
        """Read the text that to_json wrote; raise LogDamagedError if it is not an acknowledgement."""
        return decode_json(text, cls, LogDamagedError, "an acknowledgement")


class WriteContext(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one subtask at one epoch of one sink."""

    pipeline: str
    sink: str
    log: str
    """Identity of the decision log (8 hex digits)."""
    generation: int
    """Position of the writer's START entry in the decision log."""
    epoch: int
    subtask: int
    attempt: int = 0
    completed: int = -1
    """Newest epoch with a durable COMPLETED entry when the epoch began; -1 for none.

    A name that this process used in that epoch or an older one, or in an older generation, may be used again.
    """
    heals: bool = True
    """True if the driver can compute a decided epoch again, so that the rows are hashed as they are handed over."""
    session: str = ""
    """Identity of the driver's run, if each of its epochs has its own START; empty if a run has one START.

    Between two STARTs of a session no subtask is running, so names may be used on both sides of a START.
    """

    @property
    def scope(self) -> Scope:
        """Whose transactions these are."""
        return Scope(self.pipeline, self.sink, self.log)

    def transaction_name(self) -> TransactionName:
        """Return a name that was never used before and will never be used again."""
        # A task that was given up may still write while its job runs again with the same epoch, subtask and attempt.
        unique = secrets.token_hex(4)
        return TransactionName(self.scope, self.generation, self.epoch, self.subtask, self.attempt, unique)

    def committable(
        self,
        *,
        kind: str,
        transaction: str,
        handle: dict[str, Any] | None = None,
        rows: int = 0,
        version: int = 1,
        proof: Proof | None = None,
    ) -> Committable:
        """Make the handle of a transaction that was prepared in this context.

        Args:
            kind: Kind of transaction.
            transaction: Name of the transaction in the external system.
            handle: Values that the external system needs beyond the name (JSON values only).
            rows: Number of rows in it.
            version: Layout of `handle` for this kind.
            proof: Hash of its rows.
        """
        return Committable.named(
            kind,
            TransactionName(self.scope, self.generation, self.epoch, self.subtask, self.attempt, ""),
            transaction=transaction,
            version=version,
            rows=rows,
            proof=proof,
            handle=handle,
        )

    def may_reuse(self, generation: int, epoch: int) -> bool:
        """Return whether a durable entry proves that this process's transaction of (generation, epoch) has ended.

        Either its epoch is COMPLETED, or a later writer started and finished its recovery before this context
        was made.
        """
        # A context is made after its writer's START, sweep and recovery, so all that is older has ended.
        return generation < self.generation or (generation == self.generation and epoch <= self.completed)


def rows_by_sink(committables: Iterable[Committable], sinks: Iterable[str] = ()) -> dict[str, int]:
    """Count the rows of each sink; sinks in `sinks` have a number even if they took no part."""
    counted = dict.fromkeys(sinks, 0)
    for committable in committables:
        counted[committable.sink] = counted.get(committable.sink, 0) + committable.rows
    return counted
