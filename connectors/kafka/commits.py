"""Commit, abort and inspect transactions by handle, from a process that never saw their data.

A transaction has two truths: what its coordinator says, and what its partitions know. They can differ. An operator's
`kafka-transactions abort` ends a transaction in the partitions behind the coordinator's back. And a coordinator that
writes the markers while a partition has no leader skips that partition and calls the transaction complete
(KAFKA-20734, in Kafka 4 up to 4.3 at least; seen here after a broker was killed and started again): committed rows stay
invisible and hold readers back, and aborted rows become visible with the NEXT commit of the same producer id.

So, with the numbers of PROTOCOL's invariants and the letters of its rules:

- EndTxn is sent only when the coordinator shows exactly this transaction open (invariants 1 and 6: a stale request is
  never sent), and no partition of it has ended it (somebody aborted it there).
- A partition that does not answer is waited for, but not for long (rule I). The coordinator needs no partition to make
  a commit durable; what it skips gets its marker from here afterwards. While nobody sends EndTxn, though, the
  transaction's timeout runs for the rows in all its partitions. So when half of the timeout has passed, EndTxn is sent
  without the silent ones. The coordinator's clock alone decides when that is: ListTransactions with a duration compares
  the start that it has stored with its own time, as it does to abort a transaction at its timeout. No clock of another
  machine takes part; and a wrong answer would send a decided commit sooner or later, never a wrong one. Where brokers
  are too old for that question (before Kafka 3.8), a silent partition is waited for during half of one call.
- A deleted topic is not waited for at all. Its rows are gone with it, and nothing else is: the rows of the other topics
  are committed, and the outcome says so. A topic counts as deleted when all brokers say that there is no such topic; or
  when they all show another id under its name (it was created again) and its partitions do not have the transaction.
- "Committed" is said only when the coordinator shows exactly this transaction complete, and no partition has it open
  any more (invariant 7). A partition that was skipped gets its marker from here: as the coordinator ended it, never
  otherwise.
- The same holds for aborts, except that they have the time to wait for partitions. And the pool never uses a producer
  id again unless its last transaction was committed.

To ask for eight transactions over four partitions takes about 6 ms (measured). What remains open is an operator's
`kafka-transactions abort` within the milliseconds between the answers and EndTxn, or in a partition that is silent from
then on until half of the timeout.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from onceward.core.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    abort_outcome,
    commit_outcome,
)

from .codes import FORBIDDEN, Code, code_name
from .inspector import Inspector
from .retries import Retries
from .verdict import OBSERVED, Fate, Inside, words

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .coordinator import TransactionCoordinatorClient
    from .handle import Prepared
    from .inspector import Inspection

_log = logging.getLogger("onceward.kafka")

CALL_SECONDS: Final = 5.0
"""Seconds that one call takes at most, with all that is asked in it; then an outcome is "retry later". Kafka answers
EndTxn before all markers are written, so a commit that succeeds also looks a few times until they are."""
WAIT_IF_AGELESS: Final = 2.5
"""Seconds after which a silent partition is not waited for, where the brokers cannot tell a transaction's age."""
FEW: Final = 3
"""Partitions that a message names."""
PARTS_OF_TIMEOUT: Final = 64
"""How exactly a transaction's age is found out, for messages."""


def look_at(client: TransactionCoordinatorClient, transactions: Sequence[Prepared]) -> list[Fate]:
    """What became of each transaction; asks again while partitions do not answer."""
    found: list[Inspection] = []
    inspector = Inspector(client)
    for _ in Retries(CALL_SECONDS):
        found = inspector.inspect(transactions)
        if all(one.seen is not Fate.OPEN or one.whole for one in found):
            break
    return [one.seen for one in found]


def commit(client: TransactionCoordinatorClient, transactions: Sequence[Prepared]) -> list[CommitOutcome]:
    """Commit transactions that a durable decision names; one outcome for each, in order."""
    outcomes: dict[Prepared, CommitOutcome] = {}
    codes: dict[Prepared, int] = {}
    found: dict[Prepared, Inspection] = {}
    waiting, began = list(transactions), time.monotonic()
    inspector = Inspector(client)
    for _ in Retries(CALL_SECONDS):
        found = dict(zip(waiting, inspector.inspect(waiting), strict=True))
        for transaction, one in found.items():
            outcomes[transaction] = _outcome(inspector, transaction, one, codes.get(transaction))
        send = [t for t, one in found.items() if one.whole]
        send += _overdue(client, {t: one for t, one in found.items() if one.stuck}, time.monotonic() - began)
        if send:
            codes |= zip(send, client.end_many([t.handle for t in send], commit=True), strict=True)
        waiting = [t for t in waiting if outcomes[t].status is CommitStatus.RETRY_LATER]
        if not waiting:
            break
    outcomes |= _with_time_left(client, outcomes, {t: found[t] for t in waiting if found[t].seen is Fate.OPEN})
    return [outcomes[transaction] for transaction in transactions]


def _outcome(inspector: Inspector, transaction: Prepared, found: Inspection, sent: int | None) -> CommitOutcome:
    """The outcome as of this inspection; RETRY_LATER while it is on its way. Writes markers that were left out.

    Args:
        inspector: Who asked.
        transaction: For what.
        found: What was said.
        sent: EndTxn's code, if it was sent before.
    """
    later = CommitStatus.RETRY_LATER
    if found.stuck:
        waits = f"open, but {_names(found)} does not answer; it is not waited for after half of the timeout"
        return CommitOutcome(later, waits)
    if found.seen is Fate.OPEN and not found.whole:
        return CommitOutcome(later, f"{found.seen.value}, but {found.inside.value}")
    if found.seen is not Fate.COMMITTED:
        return commit_outcome(OBSERVED[found.seen], words(found.seen, found.code or sent or Code.NONE))
    if found.ended:
        status = CommitStatus.COMMITTED if sent == Code.NONE else CommitStatus.ALREADY_COMMITTED
        return CommitOutcome(status, _lost_with(transaction, found.deleted))
    if found.complete and found.inside in (Inside.OPEN, Inside.MIXED):
        return CommitOutcome(later, _skipped(inspector.finish_partitions(transaction, commit=True)))
    where = f"; the rows in {_names(found)} become visible when that partition answers" if found.silent else ""
    return CommitOutcome(later, f"committed, and can no longer be lost{where}")


def _overdue(
    client: TransactionCoordinatorClient, stuck: Mapping[Prepared, Inspection], waited: float
) -> list[Prepared]:
    """Those that have used up half of their timeout: they are committed without their silent partitions.

    Args:
        client: Of the cluster.
        stuck: Transactions that wait for partitions.
        waited: For how many seconds this call has waited.
    """
    found: list[Prepared] = []
    for timeout_ms in {one.timeout_ms for one in stuck.values()}:
        mine = {t.handle.transactional_id: t for t, one in stuck.items() if one.timeout_ms == timeout_ms}
        late = client.running_longer(mine, timeout_ms // 2)
        if late is None:
            late = set(mine) if waited >= WAIT_IF_AGELESS else set()
        found += [mine[name] for name in sorted(late)]
    for transaction in found:
        name, partitions = transaction.handle.transactional_id, _names(stuck[transaction])
        _log.warning("%s is committed without waiting any longer for %s, which does not answer", name, partitions)
    return found


def _with_time_left(
    client: TransactionCoordinatorClient,
    outcomes: Mapping[Prepared, CommitOutcome],
    waiting: Mapping[Prepared, Inspection],
) -> dict[Prepared, CommitOutcome]:
    """Outcomes of transactions that are still open, and for how long their coordinators leave them so."""
    if not waiting:
        return {}
    timeout = min(one.timeout_ms for one in waiting.values())
    left = _milliseconds_left(client, [t.handle.transactional_id for t in waiting], timeout)
    when = f"in about {left / 1000:.0f} s" if left is not None else f"{timeout / 1000:.0f} s after its first row"
    details = {t: f"{outcomes[t].detail}. Kafka aborts it {when} unless it is committed before" for t in waiting}
    return {t: CommitOutcome(outcomes[t].status, detail) for t, detail in details.items()}


def _milliseconds_left(client: TransactionCoordinatorClient, names: Sequence[str], timeout: int) -> int | None:
    """Until the oldest of these is aborted, rounded down; None if the brokers cannot tell."""
    low, high = 0, timeout
    while high - low > max(1, timeout // PARTS_OF_TIMEOUT):
        middle = (low + high) // 2
        older = client.running_longer(names, middle)
        if older is None:
            return None
        low, high = (middle, high) if older else (low, middle)
    return timeout - high


def abort(client: TransactionCoordinatorClient, transaction: Prepared) -> AbortOutcome:
    """Abort exactly this transaction by fencing its producer, so that a zombie cannot open it again."""
    handle = transaction.handle
    outcome = AbortOutcome(AbortStatus.RETRY_LATER)
    inspector = Inspector(client)
    for _ in Retries(CALL_SECONDS):
        [found] = inspector.inspect([transaction])
        outcome = abort_outcome(OBSERVED[found.seen], words(found.seen, found.code))
        if found.seen is Fate.BEHIND or found.whole:
            code = client.fence(handle.transactional_id, handle.producer_id, handle.producer_epoch)
            outcome = AbortOutcome(AbortStatus.RETRY_LATER, f"fencing was answered with {code_name(code)}")
            if code in FORBIDDEN:
                break
        elif found.seen in (Fate.ABORTED, Fate.OVERTHROWN) and not found.ended:
            code = inspector.finish_partitions(transaction, commit=False) if found.complete else Code.NONE
            outcome = AbortOutcome(AbortStatus.RETRY_LATER, _skipped(code) if found.complete else found.inside.value)
        elif outcome.status is not AbortStatus.RETRY_LATER and found.complete:
            break
    return outcome


def _names(found: Inspection) -> str:
    """The silent partitions, a few of them by name."""
    names = [f"{topic}-{number}" for topic, number in found.silent]
    rest = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + rest


def _lost_with(transaction: Prepared, deleted: Collection[str]) -> str:
    """What is to be said of topics that were deleted while their rows waited for the commit."""
    if not deleted:
        return ""
    lost = f"the rows in {', '.join(sorted(deleted))} are gone: the topic was deleted before they were committed"
    _log.warning("%s is committed, but %s", transaction.handle.transactional_id, lost)
    return lost


def _skipped(code: int) -> str:
    if code in (Code.CLUSTER_AUTHORIZATION_FAILED, Code.UNSUPPORTED_VERSION):
        return (
            "the coordinator ended the transaction and left a partition out (KAFKA-20734), and this client may not "
            f"write the marker ({code_name(code)}): grant it Alter on the cluster"
        )
    return "the coordinator ended the transaction and left a partition out (KAFKA-20734): its marker is being written"
