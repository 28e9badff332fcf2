"""The examples run as their own text says, most in a process of their own. Those of README: see test_readme.py."""

from __future__ import annotations

import contextlib
import itertools
import os
import runpy
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString

import confluent_kafka
import psycopg
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward import CheckpointConfig, Pipeline, PostgresSink, RestartStrategy, SequenceSource, operations
from onceward.core.kit.crash_points import CRASH_VARIABLE, Step, hooked
from onceward.testing.services.jars import PEER_JARS, ensure_jars

from .kafka_kit import read_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.testing.services import KafkaServer

EXAMPLES = Path(__file__).parent.parent / "examples"
CUSTOM_SINK = """
import sys
from pyspark.sql import SparkSession
from custom_sink import JsonLinesSink
from onceward.connectors.spark import exactly_once

folder = sys.argv[1]
spark = SparkSession.builder.master("local[2]").getOrCreate()
spark.range(1000).repartition(4).write.json(f"{folder}/in")
numbers = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(f"{folder}/in")
sink = JsonLinesSink("lines", f"{folder}/out")
query = exactly_once(numbers, sink, checkpoint=f"{folder}/checkpoint", pipeline="lines")
query.trigger(availableNow=True).start().awaitTermination()
assert sorted(row.id for row in spark.read.json(f"{folder}/out").collect()) == list(range(1000))
"""
pytestmark = [pytest.mark.pages, pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]


def delete_topics(admin: AdminClient) -> None:
    """The examples' topics, whoever has made them on this broker."""
    for future in admin.delete_topics(["orders", "paid"]).values():
        with contextlib.suppress(confluent_kafka.KafkaException):
            future.result(30)


@pytest.fixture
def orders(kafka: KafkaServer, dsn: str) -> Iterator[str]:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    delete_topics(admin)
    for name, future in admin.create_topics([NewTopic(name, 2, 1) for name in ("orders", "paid")]).items():
        assert future.result(30) is None, name
    with psycopg.connect(dsn) as connection:
        connection.execute('CREATE TABLE paid ("user" text, cents bigint)')
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for number in range(100):
        producer.produce("orders", key=f"u{number % 5}", value=str(number))
    producer.flush()
    yield dsn
    delete_topics(admin)


def run(environment: dict[str, str], *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def cents(dsn: str, query: LiteralString) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return sorted(row[0] for row in connection.execute(query).fetchall())


@pytest.mark.usefixtures("spark")
def test_dead_letters(kafka: KafkaServer, orders: str, tmp_path: Path) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for bad in ("twelve", "", "3.x"):
        producer.produce("orders", key="u", value=bad)
    producer.flush()
    try:
        main = runpy.run_path(str(EXAMPLES / "dead_letter.py"))["main"]
        main(kafka.bootstrap_servers, orders, str(tmp_path / "checkpoint"))
        rejected = read_all(kafka.bootstrap_servers, "rejected")
    finally:
        admin.delete_topics(["rejected"])["rejected"].result(30)
    assert cents(orders, "SELECT cents FROM accepted") == list(range(1, 100))
    assert sorted(message.value() for message in rejected) == [b"", b"0", b"3.x", b"twelve"]
    assert {str(message.headers()) for message in rejected} == {"[('reason', b'not a positive number')]"}


@pytest.mark.usefixtures("spark")
def test_a_transformation_for_each_table(kafka: KafkaServer, orders: str, tmp_path: Path) -> None:
    main = runpy.run_path(str(EXAMPLES / "outputs.py"))["main"]
    main(kafka.bootstrap_servers, orders, str(tmp_path / "checkpoint"))
    assert cents(orders, "SELECT cents FROM bought") == list(range(100))
    assert cents(orders, "SELECT sum(cents)::bigint FROM spent") == [sum(range(100))]
    assert cents(orders, "SELECT sum(orders)::bigint FROM spent") == [100]


@pytest.mark.parametrize("step", ["decide.after", "sink.pre_commit.after"])
def test_a_foreach_batch_function_that_is_killed(
    kafka: KafkaServer, orders: str, tmp_path: Path, driver_environment: dict[str, str], step: str
) -> None:
    """Killed once (a Python worker, which Spark starts again and again, or the driver), then run again."""
    command = [sys.executable, EXAMPLES / "foreach_batch.py", kafka.bootstrap_servers, orders, tmp_path / "checkpoint"]
    killed = subprocess.run(
        command, env={**driver_environment, CRASH_VARIABLE: step}, capture_output=True, timeout=120, check=False
    )
    assert killed.returncode != 0
    told = run(driver_environment, *command[1:])
    assert "pipeline accounts" in told
    assert cents(orders, "SELECT cents FROM ordered") == list(range(100))
    assert cents(orders, "SELECT sum(cents)::bigint FROM owed") == [sum(range(100))]


def test_jvm_source(kafka: KafkaServer, orders: str, tmp_path: Path, driver_environment: dict[str, str]) -> None:
    jars = ",".join(map(str, ensure_jars(PEER_JARS).glob("*.jar")))
    checkpoint = tmp_path / "checkpoint"
    told = run(driver_environment, EXAMPLES / "jvm_source.py", kafka.bootstrap_servers, orders, checkpoint, jars)
    assert "epoch 0 of pipeline paid-jvm completed: table 100 rows in " in told
    assert cents(orders, "SELECT cents FROM paid_jvm") == list(range(100))


def test_a_custom_sink(tmp_path: Path, driver_environment: dict[str, str]) -> None:
    path = os.pathsep.join([str(EXAMPLES), driver_environment["PYTHONPATH"]])
    run({**driver_environment, "PYTHONPATH": path}, "-c", CUSTOM_SINK, tmp_path)


@pytest.mark.timeout(600)
def test_the_test_of_a_pipeline(driver_environment: dict[str, str]) -> None:
    run(driver_environment, "-m", "pytest", "-p", "no:cacheprovider", EXAMPLES / "test_pipeline.py", "--timeout=0")


def test_engine_kafka(kafka: KafkaServer, orders: str, tmp_path: Path, driver_environment: dict[str, str]) -> None:  # noqa: ARG001 - fills the topics
    command = [sys.executable, EXAMPLES / "engine_kafka.py", kafka.bootstrap_servers, "orders", "paid", tmp_path]
    done = subprocess.run(command, env=driver_environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = [line.split()[0] for line in done.stdout.splitlines()]
    assert steps[steps.index("sink.begin.after") :] == [
        "sink.begin.after",
        "sink.pre_commit.before",
        "sink.pre_commit.after",
        "epoch.acknowledged",
        "decide.after",
        "sink.commit.after",
        "complete.after",
    ]
    values = [int(message.value() or b"") for message in read_all(kafka.bootstrap_servers, "paid")]
    assert sorted(values) == list(range(100))


class KilledError(BaseException):
    """The run's process ended here."""


def test_a_nightly_check_of_a_table_in_postgresql(dsn: str, tmp_path: Path) -> None:
    """The run dies before its third commit; what it has decided is committed by hand, and each epoch is proven."""
    commits = itertools.count()

    def die(step: Step) -> None:
        if step is Step.COMMIT_BEFORE and next(commits) == 2:
            raise KilledError

    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE nightly (id bigint)")
    checkpoint = CheckpointConfig(interval=0.1)
    pipeline = Pipeline(
        "nightly", store=str(tmp_path / "log"), checkpointing=checkpoint, restart=RestartStrategy.none()
    )
    rows = pa.table({"id": list(range(100_000))})
    pipeline.source(SequenceSource(rows, batch_rows=10), uid="in").sink(PostgresSink("table", dsn=dsn, table="nightly"))
    with hooked(die), pytest.raises(KilledError):
        pipeline.run()
    log = operations.open_log(str(tmp_path / "log"))
    nightly = runpy.run_path(str(EXAMPLES / "nightly_check.py"))
    place = ("postgres:nightly", dsn)
    assert "committed 1 transactions of epoch" in nightly["commit_in_doubt"](str(tmp_path / "log"), *place, timedelta())
    day = str(operations.overview(log).epochs[0].completed)[:10]
    told = nightly["audit_epochs"](str(tmp_path / "log"), "table", *place, day)
    with psycopg.connect(dsn) as connection:
        [(count,)] = connection.execute("SELECT count(*) FROM nightly").fetchall()
        assert told.endswith(f"are proven, {count} rows")
        connection.execute("DELETE FROM nightly WHERE id = 3")
    first = operations.audit(log, "table", operations.open_place(*place)).lines[0].epoch
    with pytest.raises(RuntimeError, match=rf"differs: epochs \[{first}\]; rows that no epoch wrote: 0"):
        nightly["audit_epochs"](str(tmp_path / "log"), "table", *place, day)
