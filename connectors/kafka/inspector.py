"""What coordinators and partitions say of transactions, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from .codes import Code
from .verdict import Fate, Inside, judge, judge_partitions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .answers import Description, OpenProducers
    from .coordinator import TransactionCoordinatorClient
    from .handle import Partition, Prepared


class Inspection(NamedTuple):
    """What coordinator and partitions say of a transaction."""

    seen: Fate
    inside: Inside
    complete: bool
    """Whether the coordinator has finished ending it."""
    code: int = Code.NONE
    """The coordinator's code if it told nothing."""
    timeout_ms: int = 0
    silent: tuple[Partition, ...] = ()
    """Partitions that do not answer."""
    deleted: frozenset[str] = frozenset()
    """Topics that were deleted since."""

    @property
    def whole(self) -> bool:
        """Whether it is open, as far as it can be."""
        return self.seen is Fate.OPEN and self.inside in (Inside.OPEN, Inside.GONE)

    @property
    def stuck(self) -> bool:
        """Whether it is open, and nothing but a silent partition says that it might not be."""
        return self.seen is Fate.OPEN and self.inside is Inside.SILENT

    @property
    def ended(self) -> bool:
        """Whether coordinator and partitions are done with it."""
        return self.complete and self.inside in (Inside.ENDED, Inside.GONE)


class Inspector:
    """Asks for transactions, with one round trip to each coordinator and each leader for all of them.

    Coordinators are asked first and partitions afterwards. So a partition that has ended what its coordinator calls
    complete is no race; but one that has ended what its coordinator called open may be: somebody else committed in
    between. That is believed only when the coordinator still says so the next time.

    Args:
        client: Of the cluster.
    """

    def __init__(self, client: TransactionCoordinatorClient) -> None:
        self._client = client
        self._producers: dict[Partition, OpenProducers | None] = {}
        self._ended_before: set[Prepared] = set()
        self._deleted: dict[Prepared, frozenset[str]] = {}

    def inspect(self, transactions: Sequence[Prepared]) -> list[Inspection]:
        """What became of each transaction."""
        described = self._client.describe(t.handle.transactional_id for t in transactions)
        asked = {partition for t in transactions for partition in t.partitions}
        self._producers = self._client.describe_producers(asked, retry_seconds=0) if asked else {}
        found = [(t, described[t.handle.transactional_id]) for t in transactions]
        self._find_deleted([(t, judge(t.handle, description)) for t, description in found])
        return [self._inspection(t, description) for t, description in found]

    def _inspection(self, transaction: Prepared, description: Description) -> Inspection:
        seen = judge(transaction.handle, description)
        deleted = self._deleted.get(transaction, frozenset())
        inside = judge_partitions(transaction, self._producers, deleted)
        if seen is Fate.OPEN and transaction in self._ended_before:
            seen = Fate.BEHIND
        if inside in (Inside.ENDED, Inside.MIXED):
            self._ended_before.add(transaction)
        silent = sorted(p for p in transaction.partitions if self._producers.get(p) is None and p[0] not in deleted)
        return Inspection(
            seen=seen,
            inside=inside,
            complete=not description.state.startswith("Prepare"),
            code=description.code if seen is Fate.NO_WORD else Code.NONE,
            timeout_ms=description.timeout_ms,
            silent=tuple(silent),
            deleted=deleted,
        )

    def _find_deleted(self, found: Sequence[tuple[Prepared, Fate]]) -> None:
        """Ask for the topics whose partitions are silent, or have ended what the coordinator calls open."""
        doubtful = {t: {p[0] for p in t.partitions if self._is_doubtful(t, seen, p)} for t, seen in found}
        asked = set().union(*doubtful.values())
        ids = self._client.topic_ids(asked, everywhere=True) if asked else {}
        for transaction, topics in doubtful.items():
            gone = {topic for topic in topics if self._is_deleted(transaction, topic, ids)}
            if gone:
                self._deleted[transaction] = self._deleted.get(transaction, frozenset()) | gone

    def _is_doubtful(self, transaction: Prepared, seen: Fate, partition: Partition) -> bool:
        open_ = self._producers.get(partition)
        return open_ is None or (seen is Fate.OPEN and transaction.producer not in open_)

    def _is_deleted(self, transaction: Prepared, topic: str, ids: Mapping[str, str | None]) -> bool:
        if topic not in ids:
            return False
        was, now = dict(transaction.topic_ids).get(topic), ids[topic]
        told = [self._producers.get(p) for p in transaction.partitions if p[0] == topic]
        nowhere = all(open_ is not None and transaction.producer not in open_ for open_ in told)
        return now is None or (was not in (None, now) and nowhere)

    def finish_partitions(self, transaction: Prepared, *, commit: bool) -> int:
        """Write the markers that the coordinator left out; the last code that is not NONE."""
        last: int = Code.NONE
        for partition in sorted(transaction.partitions):
            open_ = self._producers.get(partition) or {}
            if transaction.producer in open_:
                epoch = open_[transaction.producer]
                code = self._client.write_marker(partition, transaction.producer, epoch, commit=commit)
                last = code or last
        return last
