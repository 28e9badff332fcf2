"""The job of engine_peer.py in onceward: engine_job.py SERVERS TOPIC_IN TOPIC_OUT FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceward import KafkaSink, KafkaSource
from onceward.core import CheckpointConfig, Pipeline, ProcessFunction, RocksDBBackend, ValueState, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator


class RunningSum(ProcessFunction):
    """The sum so far of each user."""

    total = ValueState(default=0)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        value = json.loads(record["value"])
        total = self.total.get() + value["amount"]
        self.total.set(total)
        yield {"key": record["key"], "value": json.dumps({"user": value["user"], "total": total}).encode()}


def new_pipeline(folder: str) -> Pipeline:
    """Make a pipeline with a checkpoint every second and state in RocksDB."""
    return Pipeline(
        Path(folder).name,
        checkpointing=CheckpointConfig(interval=1.0),
        store=open_store(f"{folder}/log"),
        backend=RocksDBBackend(f"{folder}/state"),
    )


def main(servers: str, topic_in: str, topic_out: str, folder: str) -> None:
    """Run until it is killed."""
    pipeline = new_pipeline(folder)
    source = KafkaSource(bootstrap_servers=servers, topics=[topic_in], starting="earliest")
    sums = pipeline.source(source, uid="in").key_by("key").process(RunningSum(), uid="sum")
    sums.sink(KafkaSink(name="out", bootstrap_servers=servers, topic=topic_out))
    pipeline.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
