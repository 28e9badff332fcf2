"""A pipeline whose newest epoch is torn: the coordinator over real targets, without Spark, and in two subtasks.

`python torn_kit.py STORE SERVERS TOPIC DSN EPOCHS` runs one in a process of its own, which ONCEWARD_CRASH_AT may kill.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import sql

from onceward import KafkaSink, PostgresSink
from onceward.core.checkpoint import Admission, Backoff, CommitPolicy, Coordinator, OnLost
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import EpochInput, open_store, read
from onceward.core.operations.history import given_up
from onceward.core.operations.log_locations import Log

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.contract.transaction import Committable
    from onceward.core.log import LogStore, LogView
    from onceward.sinks import TwoPhaseCommitSink

ROWS, SUBTASKS = 6, 2


class Died(Exception):  # noqa: N818 - it stands for a death
    """The driver dies here."""


def input_of(epoch: int, digest: str = "first") -> EpochInput:
    return EpochInput(query="q", digest=f"{digest} {epoch}", start=[str(epoch)], end=[str(epoch + 1)])


class Torn:
    """Ids go into a table and a topic.

    Args:
        store: Where the decision log is.
        name: The pipeline's.
        table: What cannot expire.
        topic: What can.
        columns: Of the table, as its rows are written.
    """

    def __init__(
        self, store: LogStore, name: str, table: TwoPhaseCommitSink[Any], topic: TwoPhaseCommitSink[Any] | None
    ) -> None:
        self.store, self.name, self.table, self.topic = store, name, table, topic
        self.rows, self.digest = ROWS, "first"

    @property
    def sinks(self) -> list[TwoPhaseCommitSink[Any]]:
        return [self.table] if self.topic is None else [self.table, self.topic]

    def coordinator(self, on_lost: OnLost = OnLost.REPLAY) -> Coordinator:
        policy = CommitPolicy(on_lost=on_lost, commit_timeout=10.0, commits=Backoff(most=0.2))
        return Coordinator(self.name, self.store, self.sinks, policy, heals=True)

    def opened(self, on_lost: OnLost = OnLost.REPLAY) -> Coordinator:
        coordinator = self.coordinator(on_lost)
        coordinator.open(query="q")
        return coordinator

    def back(self, epoch: int, why: str, digest: str = "again") -> Coordinator:
        """Rewind to an epoch."""
        self.digest = digest
        coordinator = self.coordinator()
        coordinator.open(rewind=why, first_epoch=epoch, query="q", epoch_input=input_of(epoch, digest))
        return coordinator

    def batch(self, ids: Sequence[int], sink: str) -> pa.RecordBatch:
        if sink == "topic":
            return pa.record_batch({"value": [json.dumps({"id": n}) for n in ids]})
        return pa.record_batch({"id": pa.array(ids, pa.int64()), "word": [f"w{n % 7}" for n in ids]})

    def run(self, coordinator: Coordinator, epoch: int) -> Admission:
        """Write an epoch, or what was lost of it, as a driver would."""
        about = input_of(epoch, self.digest)
        admission = coordinator.admit(epoch, about)
        if admission is Admission.REPLAY:
            return admission
        lost = coordinator.lost
        only = {sink.name: lost.writes(sink.name) if lost else None for sink in self.sinks}
        names = [sink.name for sink in self.sinks if lost is None or sink.name in lost.sinks]
        acks = []
        for subtask in range(SUBTASKS):
            ids = list(range(epoch * self.rows, (epoch + 1) * self.rows))[subtask::SUBTASKS]
            prepared = []
            for name in names:
                part = only[name]
                if part is None or subtask in part:
                    writing = SubtaskEpoch(coordinator.sinks[name], coordinator.context(name, epoch, subtask=subtask))
                    writing.write(self.batch(ids, name))
                    prepared.append(writing.pre_commit())
            committables = tuple(committable for committable in prepared if committable is not None)
            acks.append(
                Acknowledgement(epoch=epoch, subtask=subtask, attempt=0, sinks=tuple(names), committables=committables)
            )
        coordinator.commit(epoch, acks, about)
        return admission

    def waiting(self, epochs: int = 2) -> dict[str, list[Committable]]:
        """All epochs are committed but the newest, which is decided; the transactions that it names, by sink."""
        coordinator = self.opened()
        for epoch in range(epochs - 1):
            self.run(coordinator, epoch)
        with die_at(Step.DECIDE_AFTER):
            self.run(coordinator, epochs - 1)
        return self.named()

    def named(self) -> dict[str, list[Committable]]:
        """The transactions of the decision that waits, by sink."""
        decision = read(self.store).undone
        assert decision is not None
        named = sorted(decision.committables, key=lambda c: c.subtask)
        return {sink.name: [c for c in named if c.sink == sink.name] for sink in self.sinks}

    def commit(self, *named: Committable) -> None:
        """As somebody does who holds the decision."""
        for committable in named:
            assert self.coordinator().sinks[committable.sink].commit(committable).settled

    def lose(self, *named: Committable) -> None:
        """End it, as a server does, or an operator behind the pipeline's back."""
        for committable in named:
            assert self.coordinator().sinks[committable.sink].abort(committable).done

    def actions(self) -> list[str]:
        return [record.action for record in given_up(Log(self.name, self.store))]

    def view(self) -> LogView:
        return read(self.store)


class die_at:  # noqa: N801 - it reads like a function
    """Die when a step is passed for the n-th time; it must be passed."""

    def __init__(self, step: Step, count: int = 1) -> None:
        self.step, self.left = step, count

    def _hook(self, reached: Step) -> None:
        if reached is self.step:
            self.left -= 1
            if self.left == 0:
                raise Died(self.step)

    def __enter__(self) -> None:
        self._hooked = hooked(self._hook)
        self._hooked.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> bool:
        self._hooked.__exit__(None, None, None)
        assert error is None or isinstance(error, Died), error
        assert error is not None, f"{self.step} was not passed so often"
        return True


def postgres_and_kafka(store: LogStore, servers: str, topic: str, dsn: str) -> Torn:
    """Write into table `words` of a database, in prepared transactions, and into a topic."""
    return Torn(
        store,
        f"p-{topic}",
        PostgresSink("table", dsn=dsn, table="words", commit="prepared"),
        KafkaSink("topic", bootstrap_servers=servers, topic=topic),
    )


def roll_back_by_hand(dsn: str, *named: Committable) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        for committable in named:
            admin.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(committable.transaction)))


def main(store: str, servers: str, topic: str, dsn: str, epochs: str) -> None:
    """Run epochs until there are so many."""
    torn = postgres_and_kafka(open_store(store, pipeline=f"p-{topic}"), servers, topic, dsn)
    coordinator = torn.opened()
    waiting = coordinator.lost.decision.epoch if coordinator.lost else None
    for epoch in range(coordinator.view.decided + 1 if waiting is None else waiting, int(epochs)):
        torn.run(coordinator, epoch)


if __name__ == "__main__":
    main(*sys.argv[1:])
