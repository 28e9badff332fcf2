"""A running total per user in the embedded engine: Kafka to Kafka, without Spark and without Java."""

import logging
import os
from collections.abc import Iterator
from typing import Any

from onceward import (
    CheckpointConfig,
    FileBackend,
    KafkaSink,
    KafkaSource,
    Pipeline,
    ProcessFunction,
    ValueState,
    open_store,
)

logging.basicConfig(format="%(message)s")
logging.getLogger("onceward").setLevel(logging.INFO)  # a line for each start and each checkpoint
servers = os.environ["KAFKA_BOOTSTRAP_SERVERS"]


def parse(message: dict[str, Any]) -> dict[str, Any]:
    """Read an order."""
    return {"user": message["key"].decode(), "cents": int(message["value"])}


class RunningTotal(ProcessFunction):
    """The total so far, one state for each key."""

    total = ValueState(default=0)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, bytes]]:
        self.total.set(self.total.get() + record["cents"])
        yield {"key": context.key.encode(), "value": str(self.total.get()).encode()}


pipeline = Pipeline(
    "totals",
    checkpointing=CheckpointConfig(interval=1.0),
    store=open_store("checkpoints/totals/log"),
    backend=FileBackend("checkpoints/totals/state"),
)
source = KafkaSource(bootstrap_servers=servers, topics=["orders"], ending="latest")  # without `ending` it never ends
orders = pipeline.source(source, uid="orders").map(parse, uid="parse")
totals = orders.key_by("user").process(RunningTotal(), uid="totals", parallelism=3)
totals.sink(KafkaSink("out", bootstrap_servers=servers, topic="totals", create_topic=True))
pipeline.run()
