"""Commit, abort and inspect transactions by handle, from a process that never saw their data.

A transaction has two truths: what its coordinator says, and what its partitions know. They can differ. An operator's
`kafka-transactions abort` ends a transaction in the partitions behind the coordinator's back. And a coordinator that
writes the markers while a partition has no leader skips that partition and calls the transaction complete
(KAFKA-20734, in Kafka 4 up to 4.3 at least; seen here after a broker was killed and started again): committed rows stay
invisible and hold readers back, and aborted rows become visible with the NEXT commit of the same producer id.

So, with the numbers and letters of ARCHITECTURE.md:

1. EndTxn is sent only when the coordinator shows exactly this transaction open (invariants 1 and 6: a stale request is
   never sent), and no partition of it has ended it (somebody aborted it there).
2. A partition that does not answer is waited for, but not for long (rule I). The coordinator needs no partition to make
   a commit durable; what it skips gets its marker from here afterwards. While nobody sends EndTxn, though, the
   transaction's timeout runs for the rows in all its partitions. So when half of the timeout has passed, EndTxn is sent
   without the silent ones. The coordinator's clock alone decides when that is: ListTransactions with a duration
   compares the start that it has stored with its own time, as it does to abort a transaction at its timeout. No clock
   of another machine takes part; and a wrong answer would send a decided commit sooner or later, never a wrong one.
   Where brokers are too old for that question (before Kafka 3.8), a silent partition is waited for during half of one
   call, and what is held back for (6) until half of the timeout has passed by this machine's clock.
3. A deleted topic is not waited for at all. Its rows are gone with it, and nothing else is: the rows of the other
   topics are committed, and the outcome says so. A topic counts as deleted when all brokers say that there is no such
   topic; or when they all show another id under its name (it was created again) and its partitions do not have the
   transaction.
4. "Committed" is said only when the coordinator shows exactly this transaction complete, and no partition has it open
   any more (invariant 7). A partition that was skipped gets its marker from here: as the coordinator ended it, never
   otherwise.
5. "Lost" is said only if a coordinator has written the abort down (PrepareAbort, CompleteAbort): that is on the
   replicas of its log and final, however old the answer is. "Ongoing" is not: a deposed coordinator that does not know
   it yet says so although its successor has committed and the partitions have the markers. So if partitions have ended
   what a coordinator calls open, either an operator or another coordinator has done it. The coordinator is looked up
   again, and if the one found then still says "open" PROOF_SECONDS later, the transaction is fenced. A deposed
   coordinator cannot do that, because its log takes no more entries. The successor refuses it, or does not abort what
   it has committed. The abort that the fence has written is the proof. The fence destroys nothing: partitions that have
   ended a transaction never hold its rows again.
6. Nothing of a call is committed while one of its transactions is lost, or may be: the policy decides about the whole
   epoch first, which it cannot if readers see some of it. This ends when half of the timeout has passed, as for silent
   partitions.
7. The same holds for aborts, except that they have the time to wait for partitions. And the pool never uses a producer
   id again unless its last transaction was committed.

To ask for eight transactions over four partitions takes about 6 ms (measured). What remains open is an operator's
`kafka-transactions abort` within the milliseconds between the answers and EndTxn, or in a partition that is silent from
then on until half of the timeout.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Observation,
    abort_outcome,
    commit_outcome,
)

from .error_codes import FORBIDDEN, Code, Retries, code_name
from .transaction_state import WORDS, Inside, judge, judge_partitions

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .transaction_coordinator import TransactionCoordinatorClient
    from .transaction_state import Description, OpenProducers, Partition, Prepared

_log = logging.getLogger("onceward.kafka")

CALL_SECONDS: Final = 5.0
"""Seconds that one call takes at most, with all that is asked in it; then an outcome is "retry later". Kafka answers
EndTxn before all markers are written, so a commit that succeeds also looks a few times until they are."""
PROOF_SECONDS: Final = 2.0
"""Seconds for which partitions must show a transaction ended, while its coordinator calls it open, before it is fenced
to prove that it is lost. Shorter than a call."""
WAIT_IF_AGELESS: Final = 2.5
"""Seconds after which a silent partition is not waited for, where the brokers cannot tell a transaction's age."""
BEHIND: Final = (
    "ended in its partitions, without the coordinator: by an operator (kafka-transactions abort), or its rows were "
    "lost in an unclean leader election"
)
DOUBTFUL: Final = "its coordinator calls it open, and its partitions have ended it"
HELD: Final = "not committed yet, because something of its epoch is lost, or may be: that is decided about first"
FEW: Final = 3
"""Partitions that a message names."""


_EXPECTED: Final = (CommitStatus.RETRY_LATER, CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED)
"""Of a transaction that is not lost."""


class Inspection(NamedTuple):
    """The state of a transaction according to its coordinator and its partitions."""

    seen: Observation
    behind: bool
    """Whether an earlier look found it ended in its partitions, as far as they say, and open at its coordinator."""
    inside: Inside
    complete: bool
    """Whether the coordinator has finished ending it."""
    code: int
    """The coordinator's code if it told nothing."""
    timeout_ms: int
    silent: Sequence[Partition]
    """Partitions that do not answer."""
    deleted: frozenset[str]
    """Topics that were deleted since."""

    @property
    def whole(self) -> bool:
        """Whether it is open, as far as it can be."""
        return self.seen is Observation.PREPARED and self.inside in (Inside.OPEN, Inside.GONE)

    @property
    def stuck(self) -> bool:
        """Whether it is open, and nothing but a silent partition says that it might not be."""
        return self.seen is Observation.PREPARED and self.inside is Inside.SILENT and not self.behind

    @property
    def ended(self) -> bool:
        """Whether coordinator and partitions are done with it."""
        return self.complete and self.inside in (Inside.ENDED, Inside.GONE)

    @property
    def ended_within(self) -> bool:
        """Whether a partition has ended what the coordinator calls open: somebody may have aborted it."""
        return self.seen is Observation.PREPARED and self.inside in (Inside.ENDED, Inside.MIXED)

    @property
    def may_be_lost(self) -> bool:
        """Whether partitions have ended it, and no coordinator says how; or nobody says whether it is open."""
        unknown = self.seen is Observation.NO_ANSWER and self.inside not in (Inside.OPEN, Inside.GONE)
        return self.ended_within or unknown

    @property
    def doubtful(self) -> bool:
        """Whether its coordinator calls it open, and partitions have ended it for more than one look."""
        return self.behind and self.ended_within


class Inspector:
    """A reader of transactions' states, with one round trip to each coordinator and each leader for all.

    Coordinators are asked first and partitions afterwards. So a partition that has ended what its coordinator calls
    complete is no race; but one that has ended what its coordinator called open may be: somebody else committed in
    between, or this coordinator has been deposed. That is doubtful when the coordinator still says so the next time.
    """

    def __init__(self, client: TransactionCoordinatorClient) -> None:
        self._client = client
        self._producers: dict[Partition, OpenProducers | None] = {}
        self._ended_since: dict[Prepared, float] = {}
        self._looked_up: set[Prepared] = set()
        self._deleted: dict[Prepared, frozenset[str]] = {}

    def inspect(self, transactions: Sequence[Prepared]) -> list[Inspection]:
        """Return the state of each transaction."""
        partitions = {partition for t in transactions for partition in t.partitions}
        topics = {topic for topic, _ in partitions}
        described = self._client.describe((t.handle.transactional_id for t in transactions), topics=topics)
        self._producers = self._client.describe_producers(partitions, retry_seconds=0) if partitions else {}
        pairs = [(t, described[t.handle.transactional_id]) for t in transactions]
        self._find_deleted([(t, judge(t.handle, description)) for t, description in pairs])
        return [self._inspection(t, description) for t, description in pairs]

    def _inspection(self, transaction: Prepared, description: Description) -> Inspection:
        observation = judge(transaction.handle, description)
        deleted = self._deleted.get(transaction, frozenset())
        inside = judge_partitions(transaction, self._producers, deleted)
        if inside in (Inside.OPEN, Inside.GONE):
            self._ended_since.pop(transaction, None)
        behind = transaction in self._ended_since
        if inside in (Inside.ENDED, Inside.MIXED):
            self._ended_since.setdefault(transaction, time.monotonic())
        silent = sorted(p for p in transaction.partitions if self._producers.get(p) is None and p[0] not in deleted)
        return Inspection(
            seen=observation,
            behind=behind,
            inside=inside,
            complete=not description.state.startswith("Prepare"),
            code=description.code if observation is Observation.NO_ANSWER else Code.NONE,
            timeout_ms=description.timeout_ms,
            silent=silent,
            deleted=deleted,
        )

    def _find_deleted(self, pairs: Sequence[tuple[Prepared, Observation]]) -> None:
        """Look for deleted topics among those whose partitions are silent or no longer have the transaction open."""
        doubtful = {t: {p[0] for p in t.partitions if self._is_doubtful(t, observation, p)} for t, observation in pairs}
        named_topics = set().union(*doubtful.values())
        ids = self._client.topic_ids(named_topics, everywhere=True) if named_topics else {}
        for transaction, topics in doubtful.items():
            gone = {topic for topic in topics if self._is_deleted(transaction, topic, ids)}
            if gone:
                self._deleted[transaction] = self._deleted.get(transaction, frozenset()) | gone

    def _is_doubtful(self, transaction: Prepared, observation: Observation, partition: Partition) -> bool:
        open_ = self._producers.get(partition)
        return open_ is None or (observation is Observation.PREPARED and transaction.producer not in open_)

    def _is_deleted(self, transaction: Prepared, topic: str, ids: Mapping[str, str | None]) -> bool:
        if topic not in ids:
            return False
        was, now = dict(transaction.topic_ids).get(topic), ids[topic]
        # (3) A topic of this name that was created again has another id, and none of the transaction's rows.
        producers = [self._producers.get(p) for p in transaction.partitions if p[0] == topic]
        nowhere = all(open_ is not None and transaction.producer not in open_ for open_ in producers)
        return now is None or (was not in (None, now) and nowhere)

    def prove_lost(self, transactions: Collection[Prepared]) -> None:
        """Look up the coordinators of doubtful transactions, and fence those that have been doubtful for PROOF_SECONDS.

        The next look shows what the fence did, whether or not it was answered.
        """
        for transaction in transactions:
            handle = transaction.handle
            waited = time.monotonic() - self._ended_since[transaction]
            # (5) Only a coordinator that was looked up again, and still calls it open later, may be asked to fence: a
            # deposed one cannot write the abort down, and its successor does not abort what it has committed.
            if waited < PROOF_SECONDS or transaction not in self._looked_up:
                self._looked_up.add(transaction)
                self._client.look_up_again([handle.transactional_id])
            else:
                _log.warning("%s is fenced, to prove that it is lost: %s", handle.transactional_id, DOUBTFUL)
                self._client.fence(handle.transactional_id, handle.producer_id, handle.producer_epoch, once=True)

    def finish_partitions(self, transaction: Prepared, *, commit: bool) -> int:
        """Write the markers that the coordinator left out; the last code that is not NONE."""
        last: int = Code.NONE
        for partition in sorted(transaction.partitions):
            open_ = self._producers.get(partition) or {}
            # (4) Only where the transaction is still open, and only as its coordinator has ended it.
            if transaction.producer in open_:
                epoch = open_[transaction.producer]
                code = self._client.write_marker(partition, transaction.producer, epoch, commit=commit)
                last = code or last
        return last


def look_at(client: TransactionCoordinatorClient, transactions: Sequence[Prepared]) -> list[Observation]:
    """Return the state of each transaction; ask again while partitions do not answer."""
    inspections: list[Inspection] = []
    inspector = Inspector(client)
    for _ in Retries(CALL_SECONDS):
        inspections = inspector.inspect(transactions)
        if all(one.seen is not Observation.PREPARED or one.whole or one.doubtful for one in inspections):
            break
    return [one.seen for one in inspections]


def commit(client: TransactionCoordinatorClient, transactions: Sequence[Prepared]) -> list[CommitOutcome]:
    """Commit transactions that a durable decision names; one outcome for each, in order."""
    outcomes: dict[Prepared, CommitOutcome] = {}
    codes: dict[Prepared, int] = {}
    inspections: dict[Prepared, Inspection] = {}
    waiting, began = list(transactions), time.monotonic()
    inspector = Inspector(client)
    for _ in Retries(CALL_SECONDS):
        inspections = dict(zip(waiting, inspector.inspect(waiting), strict=True))
        for transaction, one in inspections.items():
            outcomes[transaction] = _outcome(inspector, transaction, one, codes.get(transaction))
        inspector.prove_lost([t for t, one in inspections.items() if one.doubtful])
        lost = any(outcome.status not in _EXPECTED for outcome in outcomes.values())
        # (6) Readers must not see a part of an epoch before the policy has decided about its lost part.
        stops = lost or any(one.may_be_lost for one in inspections.values())
        for transaction in (t for t, one in inspections.items() if one.whole and stops):
            outcomes[transaction] = CommitOutcome(CommitStatus.RETRY_LATER, HELD)
        held = {t: one for t, one in inspections.items() if one.stuck or (one.whole and stops)}
        # (1) EndTxn goes only to what the coordinator shows open, and no partition has ended.
        send = [t for t, one in inspections.items() if one.whole and not stops]
        # (2) (6) Waiting ends when half of the timeout has passed, or Kafka would abort a decided transaction.
        send += _overdue(client, held, time.monotonic() - began)
        if send:
            codes |= zip(send, client.end_many([t.handle for t in send], commit=True), strict=True)
        waiting = [t for t in waiting if outcomes[t].status is CommitStatus.RETRY_LATER]
        if not waiting or (lost and not send and held.keys() >= set(waiting)):
            break
    return [outcomes[transaction] for transaction in transactions]


def _outcome(inspector: Inspector, transaction: Prepared, inspection: Inspection, sent: int | None) -> CommitOutcome:
    """Return the outcome as of this inspection, RETRY_LATER while the commit is under way; write missing markers."""
    later = CommitStatus.RETRY_LATER
    if inspection.seen is Observation.PREPARED:
        at = datetime.fromtimestamp((transaction.handle.started_ms + inspection.timeout_ms) / 1000, UTC)
        when = f"at {at:%Y-%m-%d %H:%M:%S} UTC by its broker's clock"
        return CommitOutcome(
            later, f"{_why_open(inspection, sent)}. Kafka aborts it {when} unless it is committed before that"
        )
    if inspection.seen is not Observation.COMMITTED:
        return commit_outcome(inspection.seen, _words(inspection, inspection.code or sent or Code.NONE))
    if inspection.ended:
        # (4) The coordinator shows it complete, and no partition has it open.
        status = CommitStatus.COMMITTED if sent == Code.NONE else CommitStatus.ALREADY_COMMITTED
        return CommitOutcome(status, _lost_with(transaction, inspection.deleted))
    if inspection.complete and inspection.inside in (Inside.OPEN, Inside.MIXED):
        return CommitOutcome(later, _skipped(inspector.finish_partitions(transaction, commit=True)))
    where = (
        f"; the rows in {_names(inspection)} become visible when that partition answers" if inspection.silent else ""
    )
    return CommitOutcome(later, f"committed, and can no longer be lost{where}")


def _overdue(
    client: TransactionCoordinatorClient, stuck: Mapping[Prepared, Inspection], waited: float
) -> list[Prepared]:
    """Return the transactions that have used half of their timeout: they wait no longer for silent partitions."""
    transactions: list[Prepared] = []
    for timeout_ms in {one.timeout_ms for one in stuck.values()}:
        ids = {t.handle.transactional_id: t for t, one in stuck.items() if one.timeout_ms == timeout_ms}
        # (2) The coordinator's own clock decides; no clock of another machine takes part.
        late = client.running_longer(ids, timeout_ms // 2)
        if late is None:
            late = {name for name, t in ids.items() if _overdue_if_ageless(t, stuck[t], waited)}
        transactions += [ids[name] for name in sorted(late)]
    for transaction in transactions:
        name, partitions = transaction.handle.transactional_id, _names(stuck[transaction])
        why = f"{partitions}, which does not answer" if partitions else "proof of what became of the rest of its epoch"
        _log.warning("%s is committed without waiting any longer for %s", name, why)
    return transactions


def _overdue_if_ageless(transaction: Prepared, inspection: Inspection, waited: float) -> bool:
    """Return whether a transaction waits no longer, where the brokers cannot tell its age."""
    if inspection.stuck:
        return waited >= WAIT_IF_AGELESS
    # (2) (6) If this clock is wrong, the epoch is committed sooner or later than it should be, and never lost by it.
    return time.time() * 1000 - transaction.handle.started_ms >= inspection.timeout_ms // 2


def abort(client: TransactionCoordinatorClient, transaction: Prepared) -> AbortOutcome:
    """Abort exactly this transaction by fencing its producer, so that a zombie cannot open it again."""
    handle = transaction.handle
    outcome = AbortOutcome(AbortStatus.RETRY_LATER)
    inspector = Inspector(client)
    for _ in Retries(CALL_SECONDS):
        [inspection] = inspector.inspect([transaction])
        outcome = abort_outcome(inspection.seen, _words(inspection, inspection.code))
        # (7) As for commits: what the coordinator shows open is fenced, so that no zombie can open it again.
        if inspection.doubtful or inspection.whole:
            code = client.fence(handle.transactional_id, handle.producer_id, handle.producer_epoch)
            outcome = AbortOutcome(AbortStatus.RETRY_LATER, f"fencing was answered with {code_name(code)}")
            if code in FORBIDDEN:
                break
        elif inspection.seen in (Observation.ABORTED, Observation.EXPIRED) and not inspection.ended:
            code = inspector.finish_partitions(transaction, commit=False) if inspection.complete else Code.NONE
            outcome = AbortOutcome(
                AbortStatus.RETRY_LATER, _skipped(code) if inspection.complete else inspection.inside.value
            )
        elif outcome.status is not AbortStatus.RETRY_LATER and inspection.complete:
            break
    return outcome


def _words(inspection: Inspection, code: int) -> str:
    """Return the transaction's state in words, with the coordinator's error code if there is one."""
    is_lost = inspection.seen in (Observation.ABORTED, Observation.EXPIRED)
    words = BEHIND if inspection.behind and is_lost else WORDS[inspection.seen]
    return f"{words}; the coordinator answered {code_name(code)}" if code != Code.NONE else words


def _why_open(inspection: Inspection, sent: int | None) -> str:
    if inspection.stuck:
        return f"open, but {_names(inspection)} does not answer; it is not waited for after half of the timeout"
    if inspection.doubtful:
        return DOUBTFUL
    return _words(inspection, sent or Code.NONE) if inspection.whole else f"open, but {inspection.inside.value}"


def _names(inspection: Inspection) -> str:
    """Return the names of the first few silent partitions, and the number of the others."""
    names = [f"{topic}-{number}" for topic, number in inspection.silent]
    rest = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return ", ".join(names[:FEW]) + rest


def _lost_with(transaction: Prepared, deleted: Collection[str]) -> str:
    """Log and describe the loss of rows in topics that were deleted before the commit; return "" if there are none."""
    if not deleted:
        return ""
    lost = f"the rows in {', '.join(sorted(deleted))} are gone: the topic was deleted before they were committed"
    _log.warning("%s is committed, but %s", transaction.handle.transactional_id, lost)
    return lost


def _skipped(code: int) -> str:
    if code in (Code.CLUSTER_AUTHORIZATION_FAILED, Code.UNSUPPORTED_VERSION):
        return (
            "the coordinator ended the transaction and left a partition out (KAFKA-20734), and this client may not "
            f"write the marker ({code_name(code)}): grant it Alter on the cluster (before Kafka 3.8: ClusterAction)"
        )
    return "the coordinator ended the transaction and left a partition out (KAFKA-20734): its marker is being written"
