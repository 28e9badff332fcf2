"""What sinks into databases share: two kinds of committables, each committed and aborted in its own way."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from onceward.core.errors import ConfigurationError
from onceward.sinks.base import TwoPhaseCommitSink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from onceward.core.transaction import AbortOutcome, CommitOutcome, Committable


class OpenTransaction(Protocol):
    """What an attempt writes into."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Send one batch."""
        ...

    def pre_commit(self) -> Committable:
        """Make it durable, undecided."""
        ...

    def discard(self) -> None:
        """Roll back."""
        ...


W = TypeVar("W", bound=OpenTransaction)


class Resolution(NamedTuple):
    """How committables of one kind end."""

    commit: Callable[[Sequence[Committable]], Sequence[CommitOutcome]]
    abort: Callable[[Committable], AbortOutcome]


class DatabaseSink(TwoPhaseCommitSink[W]):
    """Base of PostgresSink and SqlAlchemySink.

    Attributes:
        mode: "insert" or "upsert".
    """

    mode: str

    @abstractmethod
    def resolutions(self) -> Mapping[str, Resolution]:
        """By kind of committable."""

    def validate_complete_mode(self) -> None:
        """Complete mode fits an upsert only."""
        if self.mode != "upsert":
            raise ConfigurationError(
                "output mode complete writes the whole result at each epoch, which would insert every row again: use "
                "mode 'upsert' with a key",
                sink=self.name,
            )

    def write(self, transaction: W, batch: pa.RecordBatch) -> None:
        """Write one batch, invisibly."""
        transaction.write(batch)

    def pre_commit(self, transaction: W) -> Committable:
        """Prepare, or commit to the staging table."""
        return transaction.pre_commit()

    def discard(self, transaction: W) -> None:
        """Roll back, or delete what was staged."""
        transaction.discard()

    def commit(self, committable: Committable) -> CommitOutcome:
        """Commit one."""
        return self.commit_many([committable])[0]

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """Commit several: prepared ones one by one on one connection, staged ones by one merge per epoch."""
        resolutions = self.resolutions()
        outcomes: dict[str, CommitOutcome] = {}
        for kind in dict.fromkeys(self._kind(c) for c in committables):
            chosen = [c for c in committables if c.kind == kind]
            answers = resolutions[kind].commit(chosen)
            outcomes.update({c.transaction: answer for c, answer in zip(chosen, answers, strict=True)})
        return [outcomes[c.transaction] for c in committables]

    def abort(self, committable: Committable) -> AbortOutcome:
        """Abort exactly this one."""
        return self.resolutions()[self._kind(committable)].abort(committable)

    def _kind(self, committable: Committable) -> str:
        if committable.kind not in self.resolutions() or committable.version != 1:
            raise ConfigurationError(
                f"a committable of kind {committable.kind}, version {committable.version} is not a "
                f"{type(self).__name__}'s",
                sink=self.name,
                transaction=committable.transaction,
            )
        return committable.kind
