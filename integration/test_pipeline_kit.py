"""The kit for pipelines: an exact one passes under every fault of the smoke selection, a loose one is found guilty."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import psycopg
import pytest

from onceward.testing.pipeline import KafkaTopic, PipelineTest, Table

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.slow]
SOURCE = Path(__file__).parent.parent / "src"


def copy_exactly_once() -> None:
    """The embedded engine: Kafka to Kafka and PostgreSQL."""
    from onceward import CheckpointConfig, KafkaSink, KafkaSource, Pipeline, PostgresSink, open_store

    servers, folder, name = (os.environ[v] for v in ("KAFKA_BOOTSTRAP_SERVERS", "PIPELINE_FOLDER", "PIPELINE_NAME"))
    pipeline = Pipeline(
        name, checkpoint=CheckpointConfig(interval=0.3), store=open_store(f"{folder}/log", pipeline=name)
    )
    orders = pipeline.source(
        KafkaSource(bootstrap_servers=servers, topics=["orders"], starting="earliest"), uid="in", parallelism=2
    )
    big = orders.map(lambda message: json.loads(message["value"]), uid="parse").filter(is_big, uid="big")
    big.map(lambda row: {"value": json.dumps(row)}, uid="encode").sink(
        KafkaSink(name="topic", bootstrap_servers=servers, topic="big")
    )
    big.sink(PostgresSink(name="table", dsn=os.environ["DATABASE_URL"], table="big_orders"))
    pipeline.run()


def is_big(row: dict[str, int]) -> bool:
    return row["amount"] >= 50


class TestCopiesOfTheEngine(PipelineTest):
    command = copy_exactly_once
    services = "local"
    inputs = KafkaTopic("orders", partitions=3)
    outputs = (KafkaTopic("big", partitions=2), Table("big_orders", "id bigint, amount bigint"))
    uses_onceward = True

    def row(self, number: int) -> dict[str, int]:
        return {"id": number, "amount": number * 37 % 100}

    def expected(self, rows: list[dict[str, int]]) -> list[dict[str, int]]:
        return [row for row in rows if is_big(row)]


def copy_at_least_once() -> None:
    """As most consumers do it: write, then commit the offsets."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
            "group.id": "loose",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe(["orders"])
    producer = confluent_kafka.Producer({"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]})
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as connection:
        count = 0
        while True:
            message = consumer.poll(1.0)
            if message is None or message.error():
                continue
            producer.produce("copies", message.value())
            producer.flush()
            connection.execute("INSERT INTO copies SELECT (%s::json->>'id')::bigint", [message.value().decode()])
            count += 1
            if count % 50 == 0:
                consumer.commit(asynchronous=False)


class Loose(PipelineTest):
    command = copy_at_least_once
    services = "local"
    inputs = KafkaTopic("orders", partitions=2)
    outputs = (KafkaTopic("copies"), Table("copies", "id bigint"))

    def row(self, number: int) -> dict[str, int]:
        return {"id": number}


def test_a_pipeline_that_is_at_least_once_is_found_guilty_with_the_rows_and_their_source(tmp_path: Path) -> None:
    file = tmp_path / "test_loose.py"
    file.write_text(Path(__file__).read_text().replace("class Loose", "class TestLoose"))
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", file.name]
    chosen = ["-k", "TestLoose and (clean or kill-driver)"]
    done = subprocess.run(
        [*command, *chosen], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "TestLoose is not exactly once" in done.stdout
    assert "SIGKILL to the driver's process group" in done.stdout
    assert re.search(
        r"topic copies: 300 rows expected, \d+ found: 0 missing, [1-9]\d* duplicated, 0 wrong", done.stdout
    )
    assert re.search(r'duplicated: {"id": (\d+)}, at copies-0@\d+, copies-0@\d+; input orders-[01]@\d+', done.stdout)
    assert re.search(r'duplicated: {"id": (\d+)}, at copies@\d+, copies@\d+; input orders-[01]@\d+', done.stdout)
    repeat = "repeat it: pytest 'test_loose.py::TestLoose::test_exactly_once[kill-driver-1]' --faults smoke"
    assert repeat in done.stdout
