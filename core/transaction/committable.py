"""The committable: all that a process needs to commit or abort a transaction it has never seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import msgspec

from ..errors import LogDamagedError

if TYPE_CHECKING:
    from ..names import TransactionName

ANY_EPOCH = -1
"""Epoch or writer of a committable that was listed from a target whose names do not carry it."""


class Committable(msgspec.Struct, frozen=True, kw_only=True):
    """Small, picklable, versioned, JSON-serialisable handle of one prepared transaction.

    It never holds a password: connection settings live in the sink. Two committables are the same transaction if
    they are equal field by field.
    """

    kind: str
    """Which sort of transaction, for example `kafka` or `sql-prepared`."""
    version: int = 1
    """Layout of `handle` for this kind."""
    pipeline: str
    sink: str
    log: str
    """Identity of the decision log of the writer."""
    writer: int
    """Position of the writer's START entry; ANY_EPOCH if the listing cannot tell."""
    epoch: int
    """Epoch of the data; ANY_EPOCH if the listing cannot tell."""
    subtask: int = 0
    attempt: int = 0
    transaction: str
    """Name in the external system: transactional id, gid, staging key."""
    handle: dict[str, Any] = {}
    """What the external system needs beyond the name (JSON values only), for example producer id and epoch."""
    rows: int = 0

    @classmethod
    def named(cls, kind: str, name: TransactionName, *, rows: int = 0) -> Self:
        """The handle of a listed transaction, whose name says whose it is, and which."""
        return cls(
            kind=kind,
            pipeline=name.scope.pipeline,
            sink=name.scope.sink,
            log=name.scope.log,
            writer=name.start,
            epoch=name.epoch,
            subtask=name.subtask,
            attempt=name.attempt,
            transaction=str(name),
            rows=rows,
        )

    def identity(self) -> tuple[str, str, str]:
        """What makes it this transaction and no other: sink, name and handle."""
        return (self.sink, self.transaction, msgspec.json.encode(self.handle, order="deterministic").decode())

    def to_json(self) -> str:
        """Serialise; the same committable always gives the same text."""
        return msgspec.json.encode(self, order="deterministic").decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Committable:
        """Read what to_json wrote.

        Raises:
            LogDamagedError: Not a committable.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise LogDamagedError(f"not a committable: {error}") from error


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """What one subtask answers at its barrier: for each sink its committable, or nothing written.

    `sinks` names every sink the subtask served, so that "nothing written" is said and not assumed.
    """

    epoch: int
    subtask: int
    attempt: int
    sinks: tuple[str, ...]
    committables: tuple[Committable, ...] = ()
    retried: bool = False
    """Whether an earlier or parallel attempt of this subtask may have left a transaction behind."""

    def to_json(self) -> str:
        """Serialise for the way from executor to driver."""
        return msgspec.json.encode(self, order="deterministic").decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Acknowledgement:
        """Read what to_json wrote."""
        return msgspec.json.decode(text, type=cls)
