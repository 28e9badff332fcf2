"""A torn epoch whose input has changed since: it is healed by the same rows, and by nothing else."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import ResourceType

from onceward import KafkaSink, SqlAlchemySink
from onceward.core.checkpoint import Admission, Backoff, CommitPolicy, Coordinator, OnLost
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import DataLossError, SourceError
from onceward.core.log import EpochInput, MemoryStore

from .kafka_source_kit import Writer, recreate, rows, values, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from onceward import KafkaSource
    from onceward.testing.services import KafkaServer

pytestmark = pytest.mark.kafka
VALUES = [str(number) for number in range(6)]


class Torn:
    """Records of a topic were decided for another topic and for a table; the table has lost them since."""

    def __init__(
        self, kafka: KafkaServer, topic: Callable[..., str], folder: Path, sent: Sequence[str] = VALUES, **more: str
    ) -> None:
        self.writer, self.name, self.out, self.database = (
            Writer(kafka.bootstrap_servers),
            topic(**more),
            topic(),
            folder / "db",
        )
        self.sent = sent
        self.run("CREATE TABLE t (value BLOB)")
        self.store = MemoryStore()
        self.stream = KafkaSink("stream", bootstrap_servers=kafka.bootstrap_servers, topic=self.out)
        self.table = SqlAlchemySink("table", url=f"sqlite:///{self.database}", table="t")
        self.writer.send(self.name, sent, key=b"the same")
        end = len(sent)
        self.input = EpochInput(query="q", digest="d", start={self.name: {"0": 0}}, end={self.name: {"0": end}})
        coordinator = self.opened()
        assert coordinator.admit(0, self.input) is Admission.NEW
        acks = self.computed(coordinator, self.writer.source(self.name), "stream", "table")
        named = [c for ack in acks for c in ack.committables]
        coordinator.writer.decide(0, named, sinks=["stream", "table"], epoch_input=self.input, subtasks=1)
        assert all(self.stream.commit(c).settled for c in named if c.sink == "stream")
        for own in ("onceward_staged", "onceward_staged_rows"):
            self.run(f"DELETE FROM {own}")

    def run(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.database)) as connection, connection:
            return connection.execute(statement).fetchall()

    def opened(self, on_lost: OnLost = OnLost.REPLAY) -> Coordinator:
        policy = CommitPolicy(on_lost=on_lost, commit_timeout=5.0, commits=Backoff(most=0.2))
        coordinator = Coordinator(f"p-{self.name}", self.store, [self.stream, self.table], policy, heals=True)
        coordinator.open(query="q")
        return coordinator

    def computed(
        self, coordinator: Coordinator, source: KafkaSource, *sinks: str, meanwhile: Callable[[], None] = int
    ) -> list[Acknowledgement]:
        """Write the epoch; after the first batch that was read something may happen."""
        made = []
        for name in sinks:
            writing = SubtaskEpoch(coordinator.sinks[name], coordinator.context(name, 0, subtask=0))
            for split in source.splits(self.input.start, self.input.end):
                for number, piece in enumerate(source.read(split)):
                    writing.write(piece.batch.select(["value"]))
                    if number == 0:
                        meanwhile()
            made += [committable] if (committable := writing.pre_commit()) else []
        return [Acknowledgement(epoch=0, subtask=0, attempt=0, sinks=sinks, committables=tuple(made))]

    def heal(self, meanwhile: Callable[[], None] = int, **settings: Any) -> None:
        coordinator = self.opened()
        assert coordinator.admit(0, self.input) is Admission.HEAL
        source = self.writer.source(self.name, **settings)
        acks = self.computed(coordinator, source, "table", meanwhile=meanwhile)
        coordinator.commit(0, acks, self.input)

    def shown(self, *in_table: str) -> None:
        assert sorted(row[0].decode() for row in self.run("SELECT value FROM t")) == sorted(in_table)
        out = self.writer.source(self.out)
        assert sorted(values(out, out.start(), out.latest(out.start()))) == sorted(self.sent)

    def skipped(self) -> None:
        """What the error offers works."""
        self.shown()
        assert self.opened(OnLost.SKIP).view.completed == 0
        assert self.opened().admit(0, self.input) is Admission.REPLAY
        self.shown()


@pytest.fixture
def torn(kafka: KafkaServer, topic: Callable[..., str], tmp_path: Path) -> Torn:
    return Torn(kafka, topic, tmp_path)


def test_records_that_retention_has_deleted_are_an_error_that_names_them(torn: Torn) -> None:
    torn.writer.delete_before(torn.name, 0, 2)
    with pytest.raises(SourceError, match="offsets 0 to 1 are deleted"):
        torn.heal()
    torn.skipped()


def test_what_is_left_of_deleted_records_heals_nothing(torn: Torn) -> None:
    torn.writer.delete_before(torn.name, 0, 2)
    with pytest.raises(DataLossError, match=r"recorded 6 rows.*gave 4 rows.*its source has deleted"):
        torn.heal(fail_on_data_loss=False)
    torn.skipped()


def test_a_topic_made_anew_with_other_records_of_the_same_number_heals_nothing(torn: Torn) -> None:
    recreate(torn.writer, torn.name)
    torn.writer.send(torn.name, [*VALUES[:5], "other"])
    with pytest.raises(DataLossError, match=r"recorded 6 rows.*gave 6 rows.*its source has deleted"):
        torn.heal()
    torn.skipped()


def test_a_topic_made_anew_with_the_same_records_heals(torn: Torn) -> None:
    recreate(torn.writer, torn.name)
    torn.writer.send(torn.name, VALUES)
    torn.heal()
    torn.shown(*VALUES)


MANY = [f"{number:05d} {'x' * 50}" for number in range(30_000)]
"""Three batches of a source, of which a consumer fetches the third one only after the first was taken."""


@pytest.fixture
def long(kafka: KafkaServer, topic: Callable[..., str], tmp_path: Path) -> Torn:
    return Torn(kafka, topic, tmp_path, MANY)


def test_records_that_are_deleted_while_a_heal_reads_them_are_an_error_that_names_them(long: Torn) -> None:
    with pytest.raises(
        SourceError, match=r"records are lost before they were read: .*offsets \d+ to 29998 are deleted"
    ):
        long.heal(lambda: long.writer.delete_before(long.name, 0, 29_999))
    long.skipped()


def test_a_topic_made_anew_while_a_heal_reads_it_is_an_error_that_names_it(long: Torn) -> None:
    with pytest.raises(SourceError, match=r"ends at offset 0, before \d+.*the topic was recreated"):
        long.heal(lambda: recreate(long.writer, long.name))
    long.skipped()


def test_a_topic_made_anew_with_as_many_records_while_a_heal_reads_it_heals_nothing(long: Torn) -> None:
    def make_anew() -> None:
        recreate(long.writer, long.name)
        long.writer.send(long.name, [f"other {value}" for value in MANY])

    with pytest.raises(DataLossError, match=r"recorded 30000 rows.*gave 30000 rows.*a topic made anew"):
        long.heal(make_anew)
    long.skipped()


def test_a_topic_that_is_compacted_while_a_heal_reads_it_heals_nothing(
    kafka: KafkaServer, topic: Callable[..., str], tmp_path: Path
) -> None:
    compacted = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "1.0"}
    torn = Torn(kafka, topic, tmp_path, MANY, **compacted)

    def compact() -> None:
        torn.writer.alter(ResourceType.BROKER, "1", {"log.cleaner.backoff.ms": "100"})
        torn.writer.alter(ResourceType.TOPIC, torn.name, {"min.cleanable.dirty.ratio": "0.001"})
        time.sleep(0.15)  # more than segment.ms: only older segments are compacted
        torn.writer.send(torn.name, ["one more"], key=b"the same")
        source = torn.writer.source(torn.name)
        wait_until(lambda: len(rows(source, source.splits(torn.input.start, torn.input.end))) < len(MANY))

    with pytest.raises(DataLossError, match=r"recorded 30000 rows.*gave \d+ rows.*compaction"):
        torn.heal(compact)
    torn.skipped()
