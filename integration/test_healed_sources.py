"""A torn epoch whose input has changed since: it is healed by the same rows, and by nothing else."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from onceward import KafkaSink, SqlAlchemySink
from onceward.core.checkpoint import Admission, Backoff, CommitPolicy, Coordinator, OnLost
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.errors import DataLossError, SourceError
from onceward.core.log import EpochInput, MemoryStore
from onceward.core.transaction import Acknowledgement

from .kafka_source_kit import Writer, recreate, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onceward import KafkaSource
    from onceward.testing.services import KafkaServer

pytestmark = pytest.mark.kafka
VALUES = [str(number) for number in range(6)]


class Torn:
    """Six records of a topic were decided for another topic and for a table; the table has lost them since."""

    def __init__(self, kafka: KafkaServer, topic: Callable[..., str], folder: Path) -> None:
        self.writer, self.name, self.out, self.database = (
            Writer(kafka.bootstrap_servers),
            topic(),
            topic(),
            folder / "db",
        )
        self.run("CREATE TABLE t (value BLOB)")
        self.store = MemoryStore()
        self.stream = KafkaSink("stream", bootstrap_servers=kafka.bootstrap_servers, topic=self.out)
        self.table = SqlAlchemySink("table", url=f"sqlite:///{self.database}", table="t")
        self.writer.send(self.name, VALUES)
        self.input = EpochInput(query="q", digest="d", start={self.name: {"0": 0}}, end={self.name: {"0": 6}})
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

    def computed(self, coordinator: Coordinator, source: KafkaSource, *sinks: str) -> list[Acknowledgement]:
        made = []
        for name in sinks:
            writing = SubtaskEpoch(coordinator.sinks[name], coordinator.context(name, 0, subtask=0))
            for split in source.splits(self.input.start, self.input.end):
                for piece in source.read(split):
                    writing.write(piece.batch.select(["value"]))
            made += [committable] if (committable := writing.pre_commit()) else []
        return [Acknowledgement(epoch=0, subtask=0, attempt=0, sinks=sinks, committables=tuple(made))]

    def heal(self, **settings: Any) -> None:
        coordinator = self.opened()
        assert coordinator.admit(0, self.input) is Admission.HEAL
        acks = self.computed(coordinator, self.writer.source(self.name, **settings), "table")
        coordinator.commit(0, acks, self.input)

    def shown(self, *in_table: str) -> None:
        assert sorted(row[0].decode() for row in self.run("SELECT value FROM t")) == sorted(in_table)
        out = self.writer.source(self.out)
        assert sorted(values(out, out.start(), out.latest(out.start()))) == VALUES

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
