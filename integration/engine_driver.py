"""Kafka to a keyed running sum to Kafka and PostgreSQL in the embedded engine, until it is killed.

engine_driver.py SERVERS TOPIC_IN TOPIC_OUT DSN TABLE FOLDER PARALLELISM
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceward import KafkaSink, KafkaSource, PostgresSink
from onceward.core import CheckpointConfig, Pipeline, ProcessFunction, RocksDBBackend, ValueState, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator


class RunningSum(ProcessFunction):
    """The sum so far of each user."""

    total = ValueState(default=0)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        self.total.set(self.total.get() + record["amount"])
        yield {"n": record["n"], "user_name": record["user"], "total": self.total.get()}


def parse(record: dict[str, Any]) -> dict[str, Any]:
    """A message's value."""
    found: dict[str, Any] = json.loads(record["value"])
    return found


def message(record: dict[str, Any]) -> dict[str, Any]:
    """A message to send."""
    return {"key": record["user_name"].encode(), "value": json.dumps(record).encode()}


def main() -> None:
    servers, topic_in, topic_out, dsn, table, folder, parallelism = sys.argv[1:]
    name = f"endured-{topic_in}"  # brokers know it
    many = int(parallelism)
    pipeline = Pipeline(
        name,
        checkpointing=CheckpointConfig(interval=0.3, tolerable_failures=5),
        store=open_store(str(Path(folder) / "log"), pipeline=name),
        backend=RocksDBBackend(Path(folder) / "state"),
    )
    orders = pipeline.source(
        KafkaSource(bootstrap_servers=servers, topics=[topic_in], starting="earliest"),
        uid="orders",
        parallelism=min(many, 2),
    )
    totals = orders.map(parse, uid="parse").key_by("user").process(RunningSum(), uid="totals", parallelism=many)
    totals.map(message, uid="message", parallelism=many).sink(
        KafkaSink(name="events", bootstrap_servers=servers, topic=topic_out), parallelism=min(many, 2)
    )
    totals.sink(PostgresSink(name="rows", dsn=dsn, table=table), parallelism=min(many, 2))
    pipeline.run()


if __name__ == "__main__":
    main()
