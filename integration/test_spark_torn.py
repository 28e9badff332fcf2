"""What becomes of a decided epoch of which one target has lost its part: on real Spark, Kafka and PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as sf

from onceward import KafkaSink, Output, PostgresSink
from onceward.core.kit.crash_points import CRASH_VARIABLE, Step
from onceward.core.log import open_store, read
from onceward.core.operations.history import given_up
from onceward.core.operations.log_locations import Log
from onceward.testing.proxy import Proxy

from . import spark_kit
from .format_driver import JSON
from .spark_kit import crash_at, ids_in_table, ids_in_topic, make_table, once, prepared_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from onceward.core.contract.transaction import Committable
    from onceward.testing.services import KafkaServer

DRIVER = str(Path(__file__).with_name("format_driver.py"))

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]


class Job(spark_kit.Job):
    """A job with rows to read, whose driver has died after a decision."""

    def __init__(self, *services: Any) -> None:
        super().__init__(*services)
        self.feed.add()

    @property
    def log(self) -> Log:
        return Log(self.pipeline, open_store(f"{self.checkpoint}/onceward", pipeline=self.pipeline))

    def die_at(self, step: Step, frame: DataFrame | None = None) -> dict[str, list[Committable]]:
        """Run until the driver dies there; the decision's transactions, by sink."""
        with crash_at(step), pytest.raises(StreamingQueryException):
            self.run(frame, writers=None)
        undone = read(self.log.store).undone
        assert undone is not None
        return {sink: [c for c in undone.committables if c.sink == sink] for sink in ("topic", "table")}

    def sink(self, name: str) -> Any:
        return next(sink for sink in self.sinks() if sink.name == name)

    def roll_back(self, committable: Committable) -> None:
        """As an operator would, behind the pipeline's back."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"ROLLBACK PREPARED '{committable.transaction}'")

    def actions(self) -> list[str]:
        return [record.action for record in given_up(self.log)]


@pytest.mark.parametrize("lost", ["topic", "table"])
def test_43_an_epoch_of_which_nothing_is_visible_is_written_again(job: Job, lost: str) -> None:
    """Kafka ended its transactions, or an operator rolled back a table's, while the driver was down."""
    decided = job.die_at(Step.DECIDE_AFTER)
    for committable in decided[lost]:
        if lost == "topic":
            assert job.sink(lost).abort(committable).done
        else:
            job.roll_back(committable)
    with pytest.raises(StreamingQueryException, match="DataLossError"):
        job.run(on_lost="fail")
    assert not ids_in_table(job.dsn)
    assert not ids_in_topic(job.servers, job.topic)
    job.run()
    assert job.seen_once()
    assert job.actions() == ["replay"]


def test_14_what_is_lost_of_a_visible_epoch_is_written_again_and_nothing_else(job: Job) -> None:
    decided = job.die_at(Step.COMMIT_AFTER)
    assert ids_in_topic(job.servers, job.topic) == once(job.feed.rows)
    for committable in decided["table"]:
        job.roll_back(committable)
    job.feed.add()
    job.run()
    assert job.seen_once()
    assert job.actions() == ["heal"]


def test_14_one_lost_subtask_of_two_is_written_again(job: Job) -> None:
    first, second = job.die_at(Step.DECIDE_AFTER)["topic"]
    assert job.sink("topic").commit(first).settled
    assert job.sink("topic").abort(second).done
    job.run(writers=None)
    assert job.seen_once()
    assert job.actions() == ["heal"]


def test_a_query_that_computes_other_rows_heals_nothing_and_says_so(job: Job) -> None:
    frame = job.feed.stream(job.spark).withColumn("word", sf.uuid())
    decided = job.die_at(Step.COMMIT_AFTER, frame)
    for committable in decided["table"]:
        job.roll_back(committable)
    with pytest.raises(StreamingQueryException, match="recorded 20 rows with hash"):
        job.run(frame)
    assert not ids_in_table(job.dsn)
    assert prepared_in(job.dsn) == 0
    job.run(frame, on_lost="skip")
    assert ids_in_topic(job.servers, job.topic) == once(job.feed.rows)
    assert job.actions() == ["skip", "skip"]


def test_a_query_goes_on_in_the_same_program_after_heals_and_after_one_that_was_refused(job: Job) -> None:
    """Each run forgets what the one before it knew of the decision."""

    def frame(word: str) -> DataFrame:
        return job.feed.stream(job.spark).withColumn("word", sf.lit(word))

    for refused in (0, 2):
        for committable in job.die_at(Step.COMMIT_AFTER, frame("same"))["table"]:
            job.roll_back(committable)
        for _ in range(refused):
            with pytest.raises(StreamingQueryException, match="lost cannot be written again"):
                job.run(frame("other"))
        job.run(frame("same"))
        assert job.seen_once()
        job.feed.add()
    job.run(frame("another"))
    assert job.seen_once()
    assert job.actions() == ["heal"] * 2


class NestedJob(Job):
    """The table has a column that does not read back as it was written, so that `verify` leaves it out."""

    kind, value, key = "jsonb", "to_json(struct(word AS w))", None

    def sinks(self) -> list[Any]:
        topic, _ = super().sinks()
        doc = ["id", f"{self.value} AS doc"]
        return [topic, PostgresSink("table", dsn=self.dsn, table="docs", key=self.key, commit="staging", select=doc)]

    def make(self, kind: str, value: str, key: list[str] | None) -> None:
        self.kind, self.value, self.key = kind, value, key
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE TABLE docs (id bigint PRIMARY KEY, doc {kind})")

    def roll_back(self, committable: Committable) -> None:
        assert self.sink("table").abort(committable).done


@pytest.fixture
def nested(spark: SparkSession, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str], dsn: str) -> NestedJob:
    job = NestedJob(spark, tmp_path, kafka, topic(partitions=2), dsn)
    job.feed.add()
    return job


@pytest.mark.parametrize("key", [None, ["id"]], ids=["insert", "upsert"])
@pytest.mark.parametrize(
    ("kind", "value"), [("jsonb", "to_json(struct(word AS w))"), ("text[]", "array(word)")], ids=["jsonb", "array"]
)
@pytest.mark.parametrize("same", [True, False], ids=["the same rows", "other rows"])
def test_a_column_that_cannot_be_read_back_alike_is_compared_all_the_same(
    nested: NestedJob, kind: str, value: str, key: list[str] | None, same: bool
) -> None:
    nested.make(kind, value, key)
    frame = nested.feed.stream(nested.spark)
    frame = frame if same else frame.withColumn("word", sf.uuid())
    decided = nested.die_at(Step.COMMIT_AFTER, frame)
    assert all(c.proof is None or "doc" not in c.proof.columns for c in decided["table"])
    for committable in decided["table"]:
        nested.roll_back(committable)
    if same:
        nested.run(frame)
        assert ids_in_table(nested.dsn, "docs") == once(nested.feed.rows)
        assert nested.actions() == ["heal"]
        return
    with pytest.raises(StreamingQueryException, match="lost cannot be written again: the decision recorded 20 rows"):
        nested.run(frame)
    assert not ids_in_table(nested.dsn, "docs")
    assert nested.actions() == []


class TwiceJob(Job):
    """The table gets two rows of each row, by a function that reads its micro-batch twice, so that it is kept."""

    @property
    def table(self) -> PostgresSink:
        return PostgresSink("table", dsn=self.dsn, table="twice", key=["id"])

    def sinks(self) -> list[Any]:
        topic, _ = super().sinks()
        return [topic, Output(self.table, lambda batch: batch.union(batch.selectExpr("id + 1000 AS id", "word")))]


def test_the_order_of_an_upsert_stays_where_nothing_limits_the_number_of_tasks(
    spark: SparkSession, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str], dsn: str
) -> None:
    """If it were to limit their number, Spark would gather the partitions in another order."""
    job = TwiceJob(spark, tmp_path, kafka, topic(partitions=2), dsn)
    make_table(dsn, "twice", key=True)
    job.feed.add()
    for committable in job.die_at(Step.COMMIT_AFTER)["table"]:
        assert job.table.abort(committable).done
    job.run(writers=None)
    assert ids_in_table(dsn, "twice") == once(20) + Counter(range(1000, 1020))
    assert job.actions() == ["heal"]


def test_a_loss_in_a_running_query_is_healed_without_a_restart(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody rolls the table's transactions back between the decision and their commit."""
    from onceward.core.checkpoint import commit

    real, once_only = commit._commit_in_order, [True]

    def disturbed(shares: Any, active: Any, policy: Any) -> None:
        if once_only:
            once_only.pop()
            for share in shares:
                if share.sink.name == "table":
                    for committable in share.pending:
                        job.roll_back(committable)
        real(shares, active, policy)

    monkeypatch.setattr(commit, "_commit_in_order", disturbed)
    job.run()
    assert job.seen_once()
    assert job.actions() == ["heal"]


class FormatJob:
    """A query through a format whose driver died after the decision; the same query then runs in the tests' session."""

    def __init__(self, job: Job, environment: dict[str, str], form: str, **options: str) -> None:
        self.job, self.environment, self.form = job, environment, f"onceward-{form}"
        self.options = {"pipeline": job.pipeline, **options}

    def die_at(self, step: Step) -> list[Committable]:
        """The transactions of the decision, by subtask."""
        place = [str(self.job.feed.folder), str(self.job.checkpoint), self.form]
        command = [sys.executable, DRIVER, *place, *(f"{name}={value}" for name, value in self.options.items())]
        done = subprocess.run(
            command, env={**self.environment, CRASH_VARIABLE: step}, capture_output=True, timeout=120, check=False
        )
        undone = read(self.job.log.store).undone
        assert undone is not None, done.stderr.decode()[-3000:]
        return sorted(undone.committables, key=lambda c: c.subtask)

    def run(self, **options: str) -> None:
        frame = self.job.feed.stream(self.job.spark)
        frame = frame.selectExpr(*JSON) if self.form == "onceward-kafka" else frame
        writer = frame.writeStream.format(self.form).options(**self.options, **options)
        writer.option("checkpointLocation", str(self.job.checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()


def test_14_what_a_format_has_lost_of_a_visible_epoch_is_written_again_and_nothing_else(
    job: Job, driver_environment: dict[str, str]
) -> None:
    to_kafka = FormatJob(
        job, driver_environment, "kafka", **{"kafka.bootstrap.servers": job.servers, "topic": job.topic}
    )
    first, second = to_kafka.die_at(Step.DECIDE_AFTER)
    sink = KafkaSink(first.sink, bootstrap_servers=job.servers, topic=job.topic)
    assert sink.commit(first).settled
    assert sink.abort(second).done
    with pytest.raises(StreamingQueryException, match="DataLossError"):
        to_kafka.run(onLost="fail")
    job.feed.add()
    to_kafka.run()
    assert ids_in_topic(job.servers, job.topic) == once(job.feed.rows)
    assert job.actions() == ["heal"]


def test_43_what_a_format_has_lost_before_any_of_it_was_visible_is_written_again(
    job: Job, driver_environment: dict[str, str]
) -> None:
    to_table = FormatJob(job, driver_environment, "postgres", dsn=job.dsn, dbtable="words")
    first, _ = to_table.die_at(Step.DECIDE_AFTER)
    job.roll_back(first)
    job.feed.add()
    to_table.run()
    assert ids_in_table(job.dsn) == once(job.feed.rows)
    assert prepared_in(job.dsn) == 0
    assert job.actions() == ["replay"]


class ProxiedJob(Job):
    """The table's server can be cut off, for the pipeline alone."""

    proxy: Proxy

    def sinks(self) -> list[Any]:
        port = urlsplit(self.dsn).port
        behind = self.dsn.replace(f":{port}/", f":{self.proxy.port}/")
        assert behind != self.dsn
        topic, _ = super().sinks()
        return [topic, PostgresSink("table", dsn=behind, table="words", answer_within=1.0)]


@pytest.fixture
def proxied(
    spark: SparkSession, tmp_path: Path, kafka: KafkaServer, topic: Callable[..., str], dsn: str
) -> Iterator[ProxiedJob]:
    job = ProxiedJob(spark, tmp_path, kafka, topic(partitions=2), dsn)
    port = urlsplit(dsn).port
    assert port is not None
    job.proxy = Proxy("127.0.0.1", port)
    job.feed.add()
    yield job
    job.proxy.close()


def test_43_a_database_that_is_down_at_a_start_does_not_keep_kafkas_part_from_being_committed(
    proxied: ProxiedJob,
) -> None:
    """Kafka's clock runs, so what is decided is committed before anything new is validated."""
    proxied.die_at(Step.DECIDE_AFTER)
    proxied.proxy.refuse()
    with pytest.raises(StreamingQueryException, match=r"table: .*The decision remains valid"):
        proxied.run(commit_timeout=2.0)
    assert ids_in_topic(proxied.servers, proxied.topic) == once(proxied.feed.rows)
    assert not ids_in_table(proxied.dsn)
    proxied.proxy.mend()
    proxied.feed.add()
    proxied.run()
    assert proxied.seen_once()


def test_a_database_that_comes_back_while_a_start_waits_for_it_costs_no_restart(proxied: ProxiedJob) -> None:
    proxied.die_at(Step.DECIDE_AFTER)
    proxied.proxy.refuse()
    threading.Timer(4.0, proxied.proxy.mend).start()
    proxied.run()
    assert proxied.seen_once()
