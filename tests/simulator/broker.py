"""A broker as nasty as Kafka's transaction coordinator and partitions under librdkafka's protocol.

What is nasty, all of it measured on the real one; integration/test_differential_kafka.py compares what can be ordered:

- An EndTxn is accepted by producer id and epoch: a stale one ends the next transaction of an instance that is reused.
- 51 while markers are written; 90 for everything once the epoch has moved, whatever became of the transaction.
- After EndTxn(abort) a zombie's next message opens a transaction again, under the same epoch.
- InitProducerId by handle compares the epoch in every state except Ongoing: it aborts a newer epoch's transaction.
- The timeout and a fence abort under the next epoch; the start time stays, so a description can prove it.
- `kafka-transactions abort` ends a transaction in its partitions alone: the coordinator goes on to say Ongoing.
- A partition without a leader is left out when markers are written (KAFKA-20734): committed rows stay invisible, and
  aborted ones become visible with the next commit of the same producer id.
- A coordinator that was deposed goes on to describe transactions as they were; it changes none any more.
- The timeout runs whoever is away. A topic may be deleted while rows in it wait, and be created again with another id.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from .audit import Txn
from .world import Violation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .audit import Audit
    from .world import World

NONE, NO_LEADER, INVALID_TXN_STATE, UNKNOWN_PRODUCER, CONCURRENT, FENCED, NOT_FOUND = 0, 5, 48, 49, 51, 90, 105
MARKERS_TAKE = 12
"""Ticks from EndTxn to the last marker."""
LAST_EPOCH = 6
"""After this producer epoch comes another producer id; Kafka's is 32766."""
PARTITIONS = 2
EMPTY, ONGOING = "Empty", "Ongoing"
PREPARE, COMPLETE = "Prepare", "Complete"

Producer = tuple[int, int]
"""Producer id and epoch."""


@dataclass
class TransactionalId:
    """What the coordinator knows of one id."""

    name: str
    pid: int
    epoch: int = 0
    fenced: int = -1
    """The epoch that was raised by the last fence."""
    state: str = EMPTY
    txn: Txn | None = None
    started: int = -1
    markers_at: int = 0
    partitions: set[int] = field(default_factory=set)

    @property
    def key(self) -> tuple[str, int, int]:
        """What a request by handle names."""
        return self.name, self.pid, self.epoch


@dataclass
class OpenData:
    """Rows of a producer id that wait for a marker in one partition."""

    epoch: int
    rows: list[tuple[Txn, int]] = field(default_factory=list)


@dataclass
class PartitionLog:
    """One partition, as its leader knows it."""

    open: dict[int, OpenData] = field(default_factory=dict)
    leaderless_until: int = 0
    topic_id: str | None = "first"
    """Id of its topic; None while there is none."""


class Broker:
    """Transactional ids, and what has become of their transactions. No call here is interrupted or fails."""

    def __init__(self, world: World, audit: Audit, timeout: int | None = None) -> None:
        self._world = world
        self._audit = audit
        self.timeout = timeout
        """Ticks after which an open transaction is aborted; None for never."""
        self._away_until = -1
        self.depositions = 0
        self._deposed: dict[str, TransactionalId] = {}
        self._found_from = self._deposed_until = -1
        self.ids: dict[str, TransactionalId] = {}
        self.partitions = [PartitionLog() for _ in range(PARTITIONS)]
        self.swept: set[tuple[str, int, int]] = set()
        self.committing = 0
        """Calls of a sink that are between their last look and EndTxn."""
        self._ended: list[tuple[tuple[str, int, int], bool]] = []
        self._pids = 100

    # The coordinator

    def init(self, name: str) -> TransactionalId:
        """InitProducerId of a fresh producer instance: aborts what is open, moves the epoch."""
        known = self.ids.get(name)
        if known is None:
            known = self.ids[name] = TransactionalId(name, self._pid())
            return known
        self.settle(known, at_once=True)
        if known.state == ONGOING:
            self._begin_abort(known, "init")
            self.settle(known, at_once=True)
        self._move(known)
        return known

    def fence(self, name: str, pid: int, epoch: int) -> int:
        """InitProducerId by handle, from any process."""
        known = self.ids.get(name)
        if known is None or known.pid != pid:
            return FENCED
        self.settle(known)
        if known.state.startswith(PREPARE):
            return CONCURRENT
        if known.state == ONGOING:
            self._begin_abort(known, "sink")
            known.fenced = known.epoch
            known.epoch += 1
            return CONCURRENT
        if known.fenced == epoch:
            known.state, known.started = EMPTY, -1  # the same request again (KIP-360): what it ended is forgotten
            return NONE
        if known.epoch != epoch:
            return FENCED
        self._move(known)
        known.fenced = epoch
        return NONE

    def end(self, name: str, pid: int, epoch: int, *, commit: bool, cause: str = "sink") -> int:
        """EndTxn by handle, from any process."""
        known = self.ids.get(name)
        if known is None or known.pid != pid:
            return UNKNOWN_PRODUCER
        self.settle(known)
        if known.epoch != epoch:
            return FENCED
        verb = "Commit" if commit else "Abort"
        if known.state == ONGOING:
            assert known.txn is not None
            self._ended.append((known.key, commit))
            if not commit:
                self._begin_abort(known, cause)
                return NONE
            if known.txn.state != "aborted":  # else only the partitions know of the abort
                self._audit.of(known.txn).on_commit(known.txn)
            known.state, known.markers_at = PREPARE + verb, self._world.tick + MARKERS_TAKE
            return NONE
        if known.state == PREPARE + verb:
            return CONCURRENT
        return NONE if known.state == COMPLETE + verb else INVALID_TXN_STATE

    def look(self, name: str) -> TransactionalId | None:
        """DescribeTransactions; None if the id is not known."""
        known = self.ids.get(name)
        if known is not None:
            self.settle(known)
        return known

    def look_at_deposed(self, name: str) -> TransactionalId | None:
        """DescribeTransactions, as a deposed coordinator answers it; None if it knows only earlier ones than there are.

        Those it would call unknown, and the pipeline would stop: see docs/simulator.md, what is left out.
        """
        known, before = self.ids.get(name), self._deposed.get(name)
        if known is None or before is None or (before.key, before.started) != (known.key, known.started):
            return None
        return before

    @property
    def has_deposed(self) -> bool:
        """Whether a deposed coordinator still answers those who do not look it up again."""
        return self._world.tick < self._deposed_until

    @property
    def finds_deposed(self) -> bool:
        """Whether who looks the coordinator up is still sent to the deposed one."""
        return self._world.tick < self._found_from

    def settle(self, known: TransactionalId, *, at_once: bool = False) -> None:
        """The markers are written after a while, where there is a leader; then the coordinator is done with it."""
        if not known.state.startswith(PREPARE) or not (at_once or self._world.tick >= known.markers_at):
            return
        commit = known.state.endswith("Commit")
        for number in sorted(known.partitions):
            if not self.leaderless(number):
                self._mark(number, known.pid, commit=commit)
        known.state = known.state.replace(PREPARE, COMPLETE)
        known.partitions = set()

    # The partitions

    def produce(self, producer: tuple[str, int, int], txn: Txn, row: int, added: set[int]) -> bool:
        """A message of a transaction. False if the producer is fenced, or nobody leads.

        Args:
            producer: Id, producer id and epoch.
            txn: What the producer believes to write into.
            row: The message; it says which partition.
            added: Partitions that this producer has added to its transaction; it adds each one once.
        """
        known = self.ids[producer[0]]
        number = row % PARTITIONS
        if self.partitions[number].topic_id is None:
            number = (number + 1) % PARTITIONS
        self.settle(known, at_once=number not in added)  # AddPartitionsToTxn waits for the markers
        if self.leaderless(number):
            return False
        if number not in added:
            if known.key != producer:
                return False
            added.add(number)
            self._add(known, txn, number)
        # If nothing is open there, the leader asks the coordinator whether the partition is in it (KIP-890).
        there = self.partitions[number].open.get(producer[1])
        within = known.key == producer and known.state == ONGOING and number in known.partitions
        if not within and (there is None or there.epoch != producer[2]):
            return False
        data = self.partitions[number].open.setdefault(known.pid, OpenData(known.epoch))
        assert known.txn is not None
        data.epoch = producer[2]
        data.rows.append((known.txn, row))
        known.txn.rows.append(row)
        return True

    def _add(self, known: TransactionalId, txn: Txn, number: int) -> None:
        """AddPartitionsToTxn: the first one opens the transaction, also for a zombie."""
        if known.state != ONGOING:
            known.txn = self._opened(known, txn)
            known.state, known.started, known.partitions = ONGOING, self._world.tick, set()
            if self.timeout is not None:
                self._world.at(self._world.tick + self.timeout, partial(self._expire, known, known.txn))
        known.partitions.add(number)

    def open_producers(self, number: int) -> dict[Producer, int] | None:
        """DescribeProducers: who has a transaction open there, and its coordinator's epoch; None without a leader."""
        if self.leaderless(number):
            return None
        for known in self.ids.values():
            self.settle(known)
        return {(pid, data.epoch): 1 for pid, data in self.partitions[number].open.items()}

    def write_marker(self, number: int, producer: Producer, *, commit: bool) -> int:
        """WriteTxnMarkers, as the coordinator does it."""
        if self.leaderless(number):
            return NO_LEADER
        data = self.partitions[number].open.get(producer[0])
        if data is not None and data.epoch == producer[1]:
            self._mark(number, producer[0], commit=commit)
        return NONE

    def holds(self, producer: Producer, numbers: Iterable[int]) -> bool:
        """Whether one of these partitions, with a leader or without, has a transaction of this producer open."""
        pid, epoch = producer
        found = [self.partitions[number].open.get(pid) for number in numbers]
        return any(data is not None and data.epoch == epoch for data in found)

    def leaderless(self, number: int) -> bool:
        """Whether the partition has no leader now, or no topic any more."""
        partition = self.partitions[number]
        return partition.topic_id is None or self._world.tick < partition.leaderless_until

    @property
    def is_away(self) -> bool:
        """Whether no broker answers."""
        return self._world.tick < self._away_until

    def _mark(self, number: int, pid: int, *, commit: bool) -> None:
        data = self.partitions[number].open.pop(pid, None)
        if data is not None and commit:
            for txn, row in data.rows:
                self._audit.of(txn).on_visible(txn, [row])

    def _opened(self, known: TransactionalId, txn: Txn) -> Txn:
        """A transaction that a zombie opens again under the same epoch is another one than it was."""
        if txn.state == "open" and not txn.rows:
            return txn
        again = Txn(txn.pipeline, txn.sink, txn.log, txn.writer, txn.epoch, txn.subtask, txn.attempt, txn.name)
        self._world.note(f"REOPENED {known.name[-6:]} {again}")
        if known.key in self.swept:
            raise Violation("sweep", f"a zombie opened a transaction again that was swept: {again}")
        return again

    # What the outside world does

    def adopt(self, name: str, txn: Txn) -> None:
        """An open transaction of somebody else."""
        self.ids[name] = TransactionalId(name, self._pid(), state=ONGOING, txn=txn)

    def lose_leader(self, number: int) -> None:
        """A partition has no leader for a while.

        Not where an operator has ended a transaction behind the coordinator's back: nobody could see it any more, and
        half of a timeout later it would be committed. See docs/simulator.md, what is left out.
        """
        if not self._is_behind():
            ticks = number % 197 if number % 3 else number % 1997
            self.partitions[number % PARTITIONS].leaderless_until = self._world.trouble(ticks)

    def depose(self, number: int) -> None:
        """Another broker coordinates all transactions from now on."""
        self.depositions += 1
        self._deposed = {name: replace(known, partitions=set(known.partitions)) for name, known in self.ids.items()}
        self._deposed_until = self._world.trouble(number % 97)
        self._found_from = self._world.tick + number % 13

    def delete_topic(self, number: int) -> None:
        """A topic is deleted with all its rows; one of them always stays. Some are created again at once.

        Not where an operator has ended a transaction behind the coordinator's back: see lose_leader.
        """
        at = number % PARTITIONS
        others = [p for n, p in enumerate(self.partitions) if n != at]
        if any(p.topic_id is None for p in others) or self._is_behind():
            return
        for data in self.partitions[at].open.values():
            for txn, row in data.rows:
                txn.gone.append(row)
                self._audit.on_lost({"kafka"})
        again = f"again {self._world.tick}" if number & 64 else None
        self.partitions[at] = PartitionLog(topic_id=again)

    def _is_behind(self) -> bool:
        ongoing = [k.txn for k in self.ids.values() if k.state == ONGOING and k.txn is not None]
        return any(txn.state == "aborted" for txn in ongoing)

    def go_away(self, ticks: int) -> None:
        """No broker answers for a while."""
        self._away_until = self._world.trouble(ticks)
        self._world.excuses += 1

    def recover(self) -> None:
        """Every partition has a leader again."""
        self._away_until = self._deposed_until = self._found_from = -1
        for partition in self.partitions:
            partition.leaderless_until = 0

    def expire(self, number: int) -> None:
        """The timeout of some open transaction, long before its time."""
        ongoing = [known for known in self.ids.values() if known.state == ONGOING]
        if ongoing:
            known = ongoing[number % len(ongoing)]
            self._abort_by_timeout(known, "clock")

    def _expire(self, known: TransactionalId, txn: Txn) -> None:
        if known.state == ONGOING and known.txn is txn:
            self._abort_by_timeout(known, "timeout")

    def _abort_by_timeout(self, known: TransactionalId, cause: str) -> None:
        self._begin_abort(known, cause)
        known.epoch += 1

    def stale_end(self, number: int) -> None:
        """Somebody repeats an EndTxn that was answered long ago."""
        if self._ended:
            key, commit = self._ended[number % len(self._ended)]
            self._world.note(f"stale EndTxn {key[0][-6:]} epoch {key[2]}")
            self.end(*key, commit=commit)

    def rollback(self, number: int) -> None:
        """An operator aborts some prepared transaction of the pipeline: by EndTxn, or in its partitions alone.

        Not while it is being written: its producer would not notice, and go on under the same epoch. See
        docs/simulator.md, what is left out.
        """
        found = [k for k in self.ids.values() if k.state == ONGOING]
        mine = [k for k in found if k.txn is not None and k.txn.log and k.txn.state == "prepared"]
        if not mine:
            return
        known = mine[number % len(mine)]
        assert known.txn is not None
        if not number & 64:
            self.end(*known.key, commit=False, cause="operator")
        elif not self.committing and not any(self.leaderless(at) for at in known.partitions):
            self._audit.of(known.txn).on_abort(known.txn, "operator")
            for at in sorted(known.partitions):
                self._mark(at, known.pid, commit=False)

    # How it works

    def _begin_abort(self, known: TransactionalId, cause: str) -> None:
        assert known.txn is not None
        self._audit.of(known.txn).on_abort(known.txn, cause)
        known.state, known.markers_at = PREPARE + "Abort", self._world.tick + MARKERS_TAKE

    def _move(self, known: TransactionalId) -> None:
        known.epoch += 1
        known.fenced = -1
        known.state, known.started = EMPTY, -1
        if known.epoch > LAST_EPOCH:
            known.pid, known.epoch = self._pid(), 0

    def _pid(self) -> int:
        self._pids += 1
        return self._pids
