"""What a coordinator's description proves about one transaction. Pure: decided here, acted on elsewhere.

A handle names a transaction by id, producer epoch and start time. The coordinator remembers the last transaction of an
id until the id is initialised again: so long its end is proven, both ways. The broker ends a transaction whose
timeout is over, and a fenced one, by raising the epoch by one; the start time stays (measured on Kafka 4.3). Once
the id is initialised again, nothing can be proven: the answer is "unknown" (invariant 8: then it is loud).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from onceward.core.transaction import Observation

from .codes import Code, code_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from .answers import Description, OpenProducers
    from .handle import Handle, Partition, Prepared


class Fate(StrEnum):
    """What became of the transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    OVERTHROWN = "aborted with its producer: its timeout was over, or it was fenced"
    BEHIND = "aborted in its partitions, behind the coordinator's back (kafka-transactions abort)"
    REPLACED = "ended, and its transactional id initialised again since: nobody can tell how it ended"
    ABSENT = "not known to the coordinator: never written, or forgotten after transactional.id.expiration.ms"
    NO_WORD = "not to be asked about now"


_ABORTS: Final = frozenset({"PrepareAbort", "CompleteAbort", "PrepareEpochFence"})
_SAME: Final = {
    "Ongoing": Fate.OPEN,
    "PrepareCommit": Fate.COMMITTED,
    "CompleteCommit": Fate.COMMITTED,
    **dict.fromkeys(_ABORTS, Fate.ABORTED),
}
"""What the coordinator's states mean for the transaction that the handle names."""


def judge(handle: Handle, description: Description) -> Fate:
    """Compare a handle with what its coordinator says of the id."""
    now = description.handle
    if description.code == Code.TRANSACTIONAL_ID_NOT_FOUND:
        return Fate.ABSENT
    if description.code != Code.NONE or now is None:
        return Fate.NO_WORD
    if now == handle:
        return _SAME.get(description.state, Fate.REPLACED)
    if now == handle._replace(producer_epoch=handle.producer_epoch + 1) and description.state in _ABORTS:
        return Fate.OVERTHROWN
    return Fate.REPLACED


class Inside(StrEnum):
    """What the partitions of a transaction say; those of deleted topics do not count."""

    OPEN = "open in every partition"
    ENDED = "open in no partition"
    MIXED = "open in some partitions only"
    SILENT = "open, as far as its partitions answer"
    NO_WORD = "not every partition answers, and some that do have it open no more"
    GONE = "deleted with its topics"


def judge_partitions(
    prepared: Prepared, producers: Mapping[Partition, OpenProducers | None], deleted: Collection[str] = ()
) -> Inside:
    """Whether the partitions of a transaction have it open.

    Args:
        prepared: The transaction.
        producers: What the partitions say; None for one that does not answer.
        deleted: Topics that it wrote to and that are gone.
    """
    told = [producers.get(partition) for partition in prepared.partitions if partition[0] not in deleted]
    if not told:
        return Inside.GONE
    mine = [prepared.producer in open_ for open_ in told if open_ is not None]
    if None in told:
        return Inside.SILENT if all(mine) else Inside.NO_WORD
    if all(mine):
        return Inside.OPEN
    return Inside.MIXED if any(mine) else Inside.ENDED


OBSERVED: Final[dict[Fate, Observation]] = {
    Fate.OPEN: Observation.PREPARED,
    Fate.COMMITTED: Observation.COMMITTED,
    Fate.ABORTED: Observation.ABORTED,
    Fate.OVERTHROWN: Observation.EXPIRED,
    Fate.BEHIND: Observation.ABORTED,
    Fate.REPLACED: Observation.UNKNOWN,
    Fate.ABSENT: Observation.ABSENT,
    Fate.NO_WORD: Observation.NO_ANSWER,
}


def words(seen: Fate, code: int = Code.NONE) -> str:
    """For people: what became of it, and the code that says why nothing else is known."""
    return f"{seen.value}; the coordinator answered {code_name(code)}" if code != Code.NONE else seen.value
