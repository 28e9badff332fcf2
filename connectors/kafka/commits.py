"""Commit, abort and inspect transactions by handle, from a process that never saw their data.

A transaction has two truths: what its coordinator says, and what its partitions know. They can differ. An operator's
`kafka-transactions abort` ends a transaction in the partitions behind the coordinator's back. And a coordinator that
writes the markers while a partition has no leader skips that partition and calls the transaction complete
(KAFKA-20734, in Kafka 4 up to 4.3 at least; seen here after a broker was killed and started again): committed rows stay
invisible and hold readers back, and aborted rows become visible with the NEXT commit of the same producer id.

So, with the numbers of PROTOCOL's invariants:

- EndTxn is sent only when the coordinator shows exactly this transaction open, and every partition of it too
  (invariants 1 and 6: a stale request, or one for a transaction that somebody has ended, is never sent).
- "Committed" is said only when the coordinator shows exactly this transaction complete, and no partition has it open
  any more (invariant 7). A partition that was skipped gets its marker from here: as the coordinator ended it, never
  otherwise.
- The same holds for aborts. And the pool never uses a producer id again unless its last transaction was committed.

A look at eight transactions over four partitions takes about 6 ms (measured). What remains open is an operator's
`kafka-transactions abort` within the milliseconds between the look and EndTxn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ...core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus
from .codes import FORBIDDEN, Code, code_name
from .rounds import Rounds
from .verdict import Inside, Seen, abort_outcome, commit_outcome, judge, judge_partitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .answers import Description, OpenProducers
    from .coordinator import TransactionCoordinatorClient
    from .handle import Partition, Prepared

PATIENCE: Final = 5.0
"""Seconds after which an outcome is "retry later"."""


class Look(NamedTuple):
    """What coordinator and partitions say of a transaction."""

    seen: Seen
    inside: Inside
    complete: bool
    """Whether the coordinator has finished ending it."""
    code: int = Code.NONE
    """The coordinator's code if it told nothing."""


class Looker:
    """Looks at transactions, with one round trip to each coordinator and each leader for all of them.

    Coordinators are asked first and partitions afterwards. So a partition that has ended what its coordinator calls
    complete is no race; but one that has ended what its coordinator called open may be: somebody else committed in
    between. That is believed only when the coordinator still says so at the next look.

    Args:
        client: Of the cluster.
    """

    def __init__(self, client: TransactionCoordinatorClient) -> None:
        self._client = client
        self._producers: dict[Partition, OpenProducers | None] = {}
        self._ended_before: set[Prepared] = set()

    def look(self, transactions: Sequence[Prepared]) -> list[Look]:
        """What became of each transaction."""
        described = self._client.describe(t.handle.transactional_id for t in transactions)
        asked = {partition for t in transactions for partition in t.partitions}
        self._producers = self._client.describe_producers(asked, patience=0) if asked else {}
        return [self._look(t, described[t.handle.transactional_id]) for t in transactions]

    def _look(self, transaction: Prepared, description: Description) -> Look:
        seen = judge(transaction.handle, description)
        inside = judge_partitions(transaction, self._producers)
        if seen is Seen.OPEN and transaction in self._ended_before:
            seen = Seen.BEHIND
        if inside in (Inside.ENDED, Inside.MIXED):
            self._ended_before.add(transaction)
        code = description.code if seen is Seen.NO_WORD else Code.NONE
        return Look(seen, inside, not description.state.startswith("Prepare"), code)

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


def look_at(client: TransactionCoordinatorClient, transactions: Sequence[Prepared]) -> list[Seen]:
    """What became of each transaction; asks again while partitions do not answer."""
    looks: list[Look] = []
    looker = Looker(client)
    for _ in Rounds(PATIENCE):
        looks = looker.look(transactions)
        if all(look.seen is not Seen.OPEN or look.inside is Inside.OPEN for look in looks):
            break
    return [look.seen for look in looks]


def commit(client: TransactionCoordinatorClient, transactions: Sequence[Prepared]) -> list[CommitOutcome]:
    """Commit transactions that a durable decision names; one outcome for each, in order."""
    outcomes: dict[int, CommitOutcome] = {}
    codes: dict[int, int] = {}
    waiting = list(range(len(transactions)))
    looker = Looker(client)
    for _ in Rounds(PATIENCE):
        looks = dict(zip(waiting, looker.look([transactions[i] for i in waiting]), strict=True))
        for i, look in looks.items():
            outcomes[i] = _settle(looker, transactions[i], look, codes.get(i))
        send = [i for i, look in looks.items() if look.seen is Seen.OPEN and look.inside is Inside.OPEN]
        if send:
            codes |= zip(send, client.end_many([transactions[i].handle for i in send], commit=True), strict=True)
        waiting = [i for i in waiting if outcomes[i].status is CommitStatus.RETRY_LATER]
        if not waiting:
            break
    return [outcomes[i] for i in range(len(transactions))]


def _settle(looker: Looker, transaction: Prepared, look: Look, sent: int | None) -> CommitOutcome:
    """The outcome as of this look; RETRY_LATER while it is on its way.

    Args:
        looker: Who looked.
        transaction: At what.
        look: What was seen.
        sent: EndTxn's code, if it was sent before.
    """
    if look.seen is Seen.OPEN and look.inside is not Inside.OPEN:
        return CommitOutcome(CommitStatus.RETRY_LATER, f"{look.seen.value}, but {look.inside.value}")
    if look.seen is not Seen.COMMITTED:
        return commit_outcome(look.seen, look.code or sent or Code.NONE)
    if look.complete and look.inside is Inside.ENDED:
        return CommitOutcome(CommitStatus.COMMITTED if sent == Code.NONE else CommitStatus.ALREADY_COMMITTED)
    if look.complete and look.inside in (Inside.OPEN, Inside.MIXED):
        code = looker.finish_partitions(transaction, commit=True)
        return CommitOutcome(CommitStatus.RETRY_LATER, _skipped(code))
    return CommitOutcome(CommitStatus.RETRY_LATER, f"committed, but {look.inside.value}")


def abort(client: TransactionCoordinatorClient, transaction: Prepared) -> AbortOutcome:
    """Abort exactly this transaction by fencing its producer, so that a zombie cannot open it again."""
    handle = transaction.handle
    outcome = AbortOutcome(AbortStatus.RETRY_LATER)
    looker = Looker(client)
    for _ in Rounds(PATIENCE):
        [look] = looker.look([transaction])
        outcome = abort_outcome(look.seen, look.code)
        if look.seen is Seen.BEHIND or (look.seen is Seen.OPEN and look.inside is Inside.OPEN):
            code = client.fence(handle.transactional_id, handle.producer_id, handle.producer_epoch)
            outcome = AbortOutcome(AbortStatus.RETRY_LATER, f"fencing was answered with {code_name(code)}")
            if code in FORBIDDEN:
                break
        elif look.seen in (Seen.ABORTED, Seen.OVERTHROWN) and look.inside is not Inside.ENDED:
            code = looker.finish_partitions(transaction, commit=False) if look.complete else Code.NONE
            outcome = AbortOutcome(AbortStatus.RETRY_LATER, _skipped(code) if look.complete else look.inside.value)
        elif outcome.status is not AbortStatus.RETRY_LATER and look.complete:
            break
    return outcome


def _skipped(code: int) -> str:
    if code in (Code.CLUSTER_AUTHORIZATION_FAILED, Code.UNSUPPORTED_VERSION):
        return (
            "the coordinator ended the transaction and left a partition out (KAFKA-20734), and this client may not "
            f"write the marker ({code_name(code)}): grant it Alter on the cluster"
        )
    return "the coordinator ended the transaction and left a partition out (KAFKA-20734): its marker is being written"
