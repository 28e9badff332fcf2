"""A rewind over a decision that waits, on a real Kafka and PostgreSQL: it ends, whatever became of its transactions."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from onceward import KafkaSink, PostgresSink
from onceward.connectors.kafka.admin import cluster_of
from onceward.core.checkpoint import Admission, Backoff, CommitPolicy, Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement, Observation
from onceward.core.errors import CommitPendingError, EpochConflictError
from onceward.core.kit.crash_points import Step
from onceward.core.log import EpochInput, MemoryStore, read

from .kafka_kit import handle_of
from .spark_kit import Crash, crash_at, ids_in_table, ids_in_topic, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceward.core.contract.transaction import Committable
    from onceward.testing.services import KafkaServer, PostgresServer

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
ROWS = 3


def about(epoch: int, digest: str = "first") -> EpochInput:
    return EpochInput(query="q", digest=f"{digest} {epoch}", start=[str(epoch)], end=[str(epoch + 1)])


class Pipeline:
    """Ids into a table and a topic, in two subtasks; all epochs of a run are written under one START."""

    def __init__(self, kafka: KafkaServer, topic: str, dsn: str) -> None:
        self.kafka, self.topic, self.dsn = kafka.bootstrap_servers, topic, dsn
        self.store = MemoryStore()
        self.table = PostgresSink("table", dsn=dsn, table="words", commit="prepared")
        self.stream = KafkaSink("topic", bootstrap_servers=self.kafka, topic=topic)

    def coordinator(self, *sinks: KafkaSink | PostgresSink) -> Coordinator:
        policy = CommitPolicy(commit_timeout=3.0, commits=Backoff(most=0.2))
        return Coordinator(f"p-{self.topic}", self.store, sinks or [self.table, self.stream], policy)

    def opened(self) -> Coordinator:
        coordinator = self.coordinator()
        coordinator.open(query="q")
        return coordinator

    def back(self, *sinks: KafkaSink | PostgresSink, why: str = "the rows were wrong") -> Coordinator:
        coordinator = self.coordinator(*sinks)
        coordinator.open(rewind=why, first_epoch=1, query="q", epoch_input=about(1, "again"))
        return coordinator

    def run(
        self, coordinator: Coordinator, epoch: int, digest: str = "first", *, into: tuple[str, ...] = ("table", "topic")
    ) -> list[Committable]:
        assert coordinator.admit(epoch, about(epoch, digest)) is Admission.NEW
        acks = []
        for subtask in range(2):
            ids = list(range(epoch * ROWS, (epoch + 1) * ROWS))[subtask::2]
            batches = {
                "table": pa.record_batch({"id": ids, "word": [f"w{n}" for n in ids]}),
                "topic": pa.record_batch({"value": [msgspec.json.encode({"id": n}).decode() for n in ids]}),
            }
            prepared = []
            for name, sink in ((name, coordinator.sinks[name]) for name in into):
                writing = SubtaskEpoch(sink, coordinator.context(name, epoch, subtask=subtask))
                writing.write(batches[name])
                prepared.append(writing.pre_commit())
            committables = tuple(committable for committable in prepared if committable is not None)
            acks.append(
                Acknowledgement(
                    epoch=epoch, subtask=subtask, attempt=0, sinks=tuple(coordinator.sinks), committables=committables
                )
            )
        coordinator.commit(epoch, acks, about(epoch, digest))
        return [committable for ack in acks for committable in ack.committables]

    def waiting(self) -> tuple[Committable, ...]:
        """Epoch 0 is committed, epoch 1 is decided under the same START, and the driver dies."""
        coordinator = self.opened()
        self.run(coordinator, 0)
        with crash_at(Step.DECIDE_AFTER), pytest.raises(Crash):
            self.run(coordinator, 1)
        decision = read(self.store).undone
        assert decision is not None
        return decision.committables

    def shown(self) -> None:
        """Each row is there once."""
        assert ids_in_topic(self.kafka, self.topic) == once(2 * ROWS)
        assert ids_in_table(self.dsn) == once(2 * ROWS)
        assert prepared_in(self.dsn) == 0


@pytest.fixture
def pipeline(kafka: KafkaServer, topic: Callable[..., str], dsn: str) -> Pipeline:
    make_table(dsn)
    return Pipeline(kafka, topic(), dsn)


def roll_back_by_hand(pipeline: Pipeline, named: tuple[Committable, ...]) -> None:
    with psycopg.connect(pipeline.dsn, autocommit=True) as admin:
        for committable in named:
            if committable.sink == "table":
                admin.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(committable.transaction)))


def initialise_again(pipeline: Pipeline, named: tuple[Committable, ...]) -> None:
    """Somebody has aborted Kafka's transactions, and used their ids since: nobody can tell how they ended."""
    client = cluster_of(pipeline.stream.settings).transactions
    own = [c for c in named if c.sink == "topic"]
    for committable in own:
        handle = handle_of(committable)
        client.fence(handle.transactional_id, handle.producer_id, handle.producer_epoch)
        for _ in range(2):
            assert client.register(handle.transactional_id) == 0
    assert set(pipeline.stream.inspect_many(own)) == {Observation.UNKNOWN}


@pytest.mark.parametrize("happened", [None, roll_back_by_hand, initialise_again])
@pytest.mark.parametrize("dies", [None, (Step.ABORT_AFTER, 1), (Step.ABORT_AFTER, 3), (Step.LOG_PUT_AFTER, 2)])
def test_a_rewind_over_a_decision_that_waits_ends(
    pipeline: Pipeline, happened: Callable[..., None] | None, dies: tuple[Step, int] | None
) -> None:
    """Also where the driver that goes back dies between REWIND, any abort and VOID."""
    named = pipeline.waiting()
    if happened is not None:
        happened(pipeline, named)
    if dies is not None:
        with suppress(Crash), crash_at(*dies):
            pipeline.back()
    pipeline.run(pipeline.back(), 1, "again")
    pipeline.shown()
    pipeline.opened()


def test_a_rewind_waits_for_a_server_that_is_away_and_then_ends(pipeline: Pipeline, postgres: PostgresServer) -> None:
    pipeline.waiting()
    postgres.stop()
    with pytest.raises(CommitPendingError, match="the rewind takes it back"):
        pipeline.back()
    postgres.start()
    postgres.wait_ready()
    coordinator = pipeline.opened()
    assert coordinator.admit(1, about(1, "again")) is Admission.NEW
    pipeline.run(coordinator, 1, "again")
    pipeline.shown()


def test_a_rewind_that_does_not_take_place_changes_nothing(pipeline: Pipeline) -> None:
    """The table's newest rows are of an epoch that the log no longer has: only the table's ledger shows them."""
    coordinator = pipeline.opened()
    pipeline.run(coordinator, 0)
    pipeline.run(coordinator, 1, into=("topic",))
    with crash_at(Step.DECIDE_AFTER), pytest.raises(Crash):
        pipeline.run(coordinator, 2)
    with pytest.raises(EpochConflictError, match="no longer has"):
        pipeline.back(pipeline.table)
    with crash_at(Step.LOG_PUT_BEFORE, 2), pytest.raises(Crash):
        pipeline.back()
    assert not read(pipeline.store).rewound
    assert pipeline.opened().view.completed == 2
    assert ids_in_topic(pipeline.kafka, pipeline.topic) == once(3 * ROWS)


def test_the_words_of_a_rewind_that_was_done_are_refused_for_an_older_checkpoint(pipeline: Pipeline) -> None:
    pipeline.waiting()
    pipeline.run(pipeline.back(), 1, "again")
    with pytest.raises(EpochConflictError, match=r"done before at epoch 1.*another reason"):
        pipeline.coordinator().open(rewind="the rows were wrong", first_epoch=0, query="q", epoch_input=about(0))
    pipeline.shown()
