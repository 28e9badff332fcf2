"""Torn epochs of formats' streaming queries and batch writes, healed and followed by others in the same session."""

from __future__ import annotations

import sqlite3
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

from onceward.core.log import open_store, read
from onceward.core.operations.history import given_up
from onceward.core.operations.log_locations import Log

from .dying_sinks import KINDS, mark_of
from .spark_kit import Feed, finish, ids_in_table, ids_in_topic, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from onceward.testing.services import KafkaServer

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]
JSON = "to_json(struct(*)) AS value"


class FormatJob:
    """One query or batch through `format("onceward")`, whose sink dies after a decision when it is told to."""

    def __init__(self, kind: str, spark: SparkSession, folder: Path, services: tuple[str, str, str]) -> None:
        self.kind, self.spark, self.folder = kind, spark, folder
        self.servers, self.topic, self.dsn = services
        self.feed, self.name = Feed(folder), f"out-{uuid.uuid4().hex[:8]}"
        self.database = folder / "db"
        of_kind = {
            "kafka": {"kafka.bootstrap.servers": self.servers, "topic": self.topic},
            "postgres": {"dsn": self.dsn, "table": "words", "commit": "prepared"},
            "sql": {"url": f"sqlite:///{self.database}", "table": "words"},
            "files": {"path": str(folder / "words")},
        }
        spark.sparkContext.addPyFile(str(Path(__file__).with_name("dying_sinks.py")))
        self.options = {"sink": f"dying_sinks:{KINDS[kind].__name__}", "name": self.name, **of_kind[kind]}
        if kind == "postgres":
            make_table(self.dsn)
        if kind == "sql":
            self.sql("CREATE TABLE words (id BIGINT, word TEXT)")

    def sql(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.database)) as connection, connection:
            return connection.execute(statement).fetchall()

    @property
    def log(self) -> Log:
        return Log("p", open_store(str(self.folder / "checkpoint" / "onceward"), pipeline="p"))

    def frame(self, word: str = "the same") -> DataFrame:
        frame = self.feed.stream(self.spark).withColumn("word", sf.lit(word))
        return frame.selectExpr(JSON) if self.kind == "kafka" else frame

    def stream(self, word: str = "the same", **options: str) -> None:
        options = {**self.options, "pipeline": "p", "checkpointLocation": str(self.folder / "checkpoint"), **options}
        writer = self.frame(word).writeStream.format("onceward").options(**options)
        finish(writer.trigger(availableNow=True).start())

    def tear(self, log: Log, epoch: int) -> None:
        """Commit one subtask's rows of the decision that waits, and lose the other's."""
        decision = read(log.store).undone
        assert decision is not None
        kept, lost = sorted(decision.committables, key=lambda c: (c.subtask + epoch) % 2)
        options = {k: v for k, v in self.options.items() if k != "sink"}
        sink = KINDS[self.kind].from_options(options)
        assert sink.commit(kept).settled
        assert sink.abort(lost).done

    def ids(self) -> Counter[int]:
        if self.kind == "kafka":
            return ids_in_topic(self.servers, self.topic)
        if self.kind == "sql":
            return Counter(number for (number,) in self.sql("SELECT id FROM words"))
        if self.kind == "files":
            return Counter(pq.read_table(self.folder / "words").column("id").to_pylist())
        assert prepared_in(self.dsn) == 0
        return ids_in_table(self.dsn)

    def actions(self) -> list[str]:
        return [record.action for record in given_up(self.log)]


ALL = ["kafka", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("postgres", "sql", "files"))]


@pytest.fixture
def services(kafka: KafkaServer, topic: Callable[..., str], dsn: str) -> tuple[str, str, str]:
    return kafka.bootstrap_servers, topic(), dsn


@pytest.fixture(params=ALL)
def format_job(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, services: tuple[str, str, str]
) -> Iterator[FormatJob]:
    job = FormatJob(request.param, spark, tmp_path, services)
    yield job
    mark_of(job.name).unlink(missing_ok=True)


def test_torn_epochs_of_a_query_are_healed_one_after_the_other_in_the_same_session(format_job: FormatJob) -> None:
    """The last heal is refused at first, because the query computes other rows, and done when they are the same."""
    for epoch in range(2):
        format_job.feed.add()
        mark_of(format_job.name).touch()
        with pytest.raises(StreamingQueryException):
            format_job.stream()
        assert not mark_of(format_job.name).exists()
        format_job.tear(format_job.log, epoch)
        if epoch == 1:
            for _ in range(2):
                with pytest.raises(StreamingQueryException, match="lost cannot be written again"):
                    format_job.stream("another")
        format_job.stream()
        assert format_job.ids() == once(format_job.feed.rows)
    format_job.feed.add()
    format_job.stream()
    assert format_job.ids() == once(format_job.feed.rows)
    assert format_job.actions() == ["heal"] * 2


def test_a_torn_batch_write_is_healed_by_its_next_run_with_the_same_rows_alone(format_job: FormatJob) -> None:
    def write(word: str = "the same") -> None:
        rows = format_job.spark.range(20).repartition(2).selectExpr("id", f"'{word}' AS word")
        rows = rows.selectExpr(JSON) if format_job.kind == "kafka" else rows
        options = {"pipeline": "p", "runKey": "monday", "store": str(format_job.folder / "log")}
        rows.write.format("onceward").options(**format_job.options, **options).mode("append").save()

    mark_of(format_job.name).touch()
    with pytest.raises(Exception, match="the driver dies here"):
        write()
    [folder] = (format_job.folder / "log").iterdir()
    log = Log(folder.name, open_store(str(folder), pipeline=folder.name))
    format_job.tear(log, 0)
    with pytest.raises(Exception, match="lost cannot be written again"):
        write("another")
    for _ in range(2):
        write()
        assert format_job.ids() == once(20)
    assert [record.action for record in given_up(log)] == ["heal"]
