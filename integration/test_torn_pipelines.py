"""Pipelines of the embedded engine in one program, after a heal and after one that was refused, on real services."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

from onceward import KafkaSink, PostgresSink, SequenceSource
from onceward.core import CheckpointConfig, Pipeline, RestartStrategy
from onceward.core.errors import DataLossError
from onceward.core.kit.crash_points import Step
from onceward.core.log import open_store, read
from onceward.core.operations.history import given_up
from onceward.core.operations.log_locations import Log

from .spark_kit import crash_at, ids_in_table, ids_in_topic, make_table, once, prepared_in
from .torn_kit import roll_back_by_hand

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]
ROWS = 40


class Job:
    """Ids go into a table, with a word, and into a topic; each run is a pipeline of its own in this program."""

    def __init__(self, folder: Path, kafka: KafkaServer, topic: str, dsn: str) -> None:
        self.folder, self.servers, self.topic, self.dsn = folder, kafka.bootstrap_servers, topic, dsn
        self.name = f"p-{topic}"
        self.log = Log(self.name, open_store(f"file://{folder}/log", pipeline=self.name))
        make_table(dsn)

    def run(self, word: str = "same") -> BaseException | None:
        """Why it failed."""
        pipeline = Pipeline(
            self.name,
            checkpointing=CheckpointConfig(interval=60.0),
            restart=RestartStrategy.none(),
            store=f"file://{self.folder}/log",
            parallelism=2,
        )
        ids = SequenceSource(pa.table({"id": pa.array(range(ROWS), pa.int64())}), units=2)
        stream = pipeline.source(ids, uid="ids")
        words = stream.map(lambda row: {"id": row["id"], "word": word}, uid="words", schema=SCHEMA)
        words.sink(PostgresSink("table", dsn=self.dsn, table="words", commit="prepared"))
        lines = stream.map(lambda row: {"value": json.dumps({"id": row["id"]})}, uid="lines", schema=LINES)
        lines.sink(KafkaSink("topic", bootstrap_servers=self.servers, topic=self.topic))
        try:
            job = pipeline.start()
        except DataLossError as error:
            return error
        assert job.wait(60)
        return job.error


SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
LINES = pa.schema([("value", pa.string())])


def test_a_pipeline_is_healed_in_the_same_program_after_one_whose_heal_was_refused(
    tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str], dsn: str
) -> None:
    job = Job(tmp_path, kafka, topic(), dsn)
    with crash_at(Step.COMMIT_AFTER):
        assert "Crash: sink.commit.after" in str(job.run())
    decision = read(job.log.store).undone
    assert decision is not None
    roll_back_by_hand(dsn, *(c for c in decision.committables if c.sink == "table"))
    for _ in range(2):
        assert isinstance(job.run("other"), DataLossError)
    assert prepared_in(dsn) == 0
    for _ in range(2):  # the second one finds that all is done
        assert job.run() is None
        assert ids_in_table(dsn) == once(ROWS)
        assert ids_in_topic(job.servers, job.topic) == once(ROWS)
    assert prepared_in(dsn) == 0
    assert [record.action for record in given_up(job.log)] == ["heal"]
    with psycopg.connect(dsn) as look:
        assert look.execute("SELECT DISTINCT word FROM words").fetchall() == [("same",)]
