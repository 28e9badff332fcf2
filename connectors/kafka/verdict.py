"""What a coordinator's description proves about one transaction. Pure: decided here, acted on elsewhere.

A handle names a transaction by id, producer epoch and start time. The coordinator remembers the last transaction of an
id until the id is initialised again: so long its end is proven, both ways. The broker ends a transaction whose
time-out is over, and a fenced one, by raising the epoch by one; the start time stays (measured on Kafka 4.3). Once
the id is initialised again, nothing can be proven: the answer is "unknown" (invariant 8: then it is loud).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ...core.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    ExternalState,
)
from .codes import Code, code_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .answers import Description, OpenProducers
    from .handle import Handle, Partition, Prepared


class Seen(StrEnum):
    """What became of the transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    OVERTHROWN = "aborted with its producer: its time-out was over, or it was fenced"
    BEHIND = "aborted in its partitions, behind the coordinator's back (kafka-transactions abort)"
    REPLACED = "ended, and its transactional id initialised again since: nobody can tell how it ended"
    ABSENT = "not known to the coordinator: never written, or forgotten after transactional.id.expiration.ms"
    NO_WORD = "not to be asked about now"


_ABORTS: Final = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
_SAME: Final = {
    "Ongoing": Seen.OPEN,
    "PrepareCommit": Seen.COMMITTED,
    "CompleteCommit": Seen.COMMITTED,
    **dict.fromkeys(_ABORTS, Seen.ABORTED),
}
"""What the coordinator's states mean for the transaction that the handle names."""


def judge(handle: Handle, description: Description) -> Seen:
    """Compare a handle with what its coordinator says of the id."""
    now = description.handle
    if description.code == Code.TRANSACTIONAL_ID_NOT_FOUND:
        return Seen.ABSENT
    if description.code != Code.NONE or now is None:
        return Seen.NO_WORD
    if now == handle:
        return _SAME.get(description.state, Seen.REPLACED)
    if now == handle._replace(producer_epoch=handle.producer_epoch + 1) and description.state in _ABORTS:
        return Seen.OVERTHROWN
    return Seen.REPLACED


class Inside(StrEnum):
    """What the partitions of a transaction say."""

    OPEN = "open in every partition"
    ENDED = "open in no partition"
    MIXED = "open in some partitions only"
    NO_WORD = "not every partition answers"


def judge_partitions(prepared: Prepared, producers: Mapping[Partition, OpenProducers | None]) -> Inside:
    """Whether the partitions of a transaction have it open."""
    told = [producers.get(partition) for partition in prepared.partitions]
    mine = [open_ is not None and prepared.producer in open_ for open_ in told]
    if None in told:
        return Inside.NO_WORD
    if all(mine):
        return Inside.OPEN
    return Inside.MIXED if any(mine) else Inside.ENDED


COMMIT: Final[dict[Seen, CommitStatus]] = {
    Seen.OPEN: CommitStatus.RETRY_LATER,
    Seen.COMMITTED: CommitStatus.ALREADY_COMMITTED,
    Seen.ABORTED: CommitStatus.LOST,
    Seen.OVERTHROWN: CommitStatus.LOST,
    Seen.BEHIND: CommitStatus.LOST,
    Seen.REPLACED: CommitStatus.UNKNOWN,
    Seen.ABSENT: CommitStatus.UNKNOWN,
    Seen.NO_WORD: CommitStatus.RETRY_LATER,
}
"""Outcome of a commit that was not, or not successfully, sent."""

ABORT: Final[dict[Seen, AbortStatus]] = {
    Seen.OPEN: AbortStatus.RETRY_LATER,
    Seen.COMMITTED: AbortStatus.COMMITTED,
    Seen.ABORTED: AbortStatus.ABORTED,
    Seen.OVERTHROWN: AbortStatus.ABORTED,
    Seen.BEHIND: AbortStatus.ABORTED,
    Seen.REPLACED: AbortStatus.UNKNOWN,
    Seen.ABSENT: AbortStatus.ABORTED,
    Seen.NO_WORD: AbortStatus.RETRY_LATER,
}

STATE: Final[dict[Seen, ExternalState]] = {
    Seen.OPEN: ExternalState.PREPARED,
    Seen.COMMITTED: ExternalState.COMMITTED,
    Seen.ABORTED: ExternalState.ABORTED,
    Seen.OVERTHROWN: ExternalState.EXPIRED,
    Seen.BEHIND: ExternalState.ABORTED,
    Seen.REPLACED: ExternalState.UNKNOWN,
    Seen.ABSENT: ExternalState.UNKNOWN,
    Seen.NO_WORD: ExternalState.UNKNOWN,
}


def commit_outcome(seen: Seen, code: int = Code.NONE) -> CommitOutcome:
    """The outcome of a commit, from the last description and, if it was sent, from EndTxn's code."""
    return CommitOutcome(COMMIT[seen], _words(seen, code))


def abort_outcome(seen: Seen, code: int = Code.NONE) -> AbortOutcome:
    """The outcome of an abort, from the last description."""
    return AbortOutcome(ABORT[seen], _words(seen, code))


def _words(seen: Seen, code: int) -> str:
    return f"{seen.value}; the coordinator answered {code_name(code)}" if code != Code.NONE else seen.value
