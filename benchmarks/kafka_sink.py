"""CPU of KafkaSink alone, without Spark: arrays of messages against one call per message, with and without the hash.

    python benchmarks/kafka_sink.py [--rows 1000000] [--repeats 5]

One process writes one transaction of Arrow batches of 10,000 rows. All ways take turns in one run; the CPU time is that
of this process, librdkafka's threads included.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa
from common import PARTITIONS, machine, median, show
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward import KafkaSink
from onceward.connectors.kafka import librdkafka
from onceward.core.contract.transaction import WriteContext
from onceward.testing.services import dev_services

if TYPE_CHECKING:
    from collections.abc import Iterable

SIZE, BATCH = 100, 10_000
QUEUE = {"queue.buffering.max.messages": 100_000}
WAYS = {
    "arrays of messages": (True, {}, True),
    "arrays of messages, librdkafka's queue": (True, QUEUE, True),
    "one call per message": (False, {}, True),
    "one call per message, librdkafka's queue": (False, QUEUE, True),
    "arrays of messages, no hash": (True, {}, False),
}


def measure_write(sink: KafkaSink, batches: Iterable[pa.RecordBatch]) -> tuple[float, float]:
    """Return the CPU seconds and seconds of one transaction, up to pre-commit."""
    unique = uuid.uuid4().hex[:8]
    context = WriteContext(pipeline=f"p-{unique}", sink="out", log=unique, generation=0, epoch=0, subtask=0)
    transaction = sink.begin(context)
    cpu, clock = time.process_time(), time.perf_counter()
    for batch in batches:
        sink.write(transaction, batch)
    committable = sink.pre_commit(transaction)
    taken = time.process_time() - cpu, time.perf_counter() - clock
    sink.commit(committable)
    return taken


def main() -> None:
    """Measure all ways in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    batches = []
    for first in range(0, arguments.rows, BATCH):
        keys = [str(number) for number in range(first, first + BATCH)]
        batches.append(pa.record_batch({"key": keys, "value": [f"{key}:{'x' * SIZE}" for key in keys]}))
    results: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder, dev_services(Path(folder), postgres=False) as services:
        admin = AdminClient({"bootstrap.servers": services.bootstrap_servers})
        for repeat in range(-1, arguments.repeats):
            for way, (arrays, config, proof) in WAYS.items():
                topic = f"bench-{uuid.uuid4().hex[:8]}"
                admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
                sink = KafkaSink(
                    "out", bootstrap_servers=services.bootstrap_servers, topic=topic, config=config, proof=proof
                )
                with patch.object(librdkafka, "usable", lambda _, arrays=arrays: arrays):
                    taken = measure_write(sink, batches)
                if repeat >= 0:
                    results[way].append(taken)
    lines = ["| way | CPU s per million rows | rows/s |", "|---|---|---|"]
    for way, taken in results.items():
        cpu = sorted(seconds / arguments.rows * 1e6 for seconds, _ in taken)
        speed = median([arguments.rows / seconds for _, seconds in taken])
        lines.append(f"| {way} | {median(cpu):.2f} ({cpu[0]:.2f} to {cpu[-1]:.2f}) | {speed:,.0f} |")
    show("KafkaSink alone", lines, {"machine": machine(), "rows": f"{arguments.rows:,} of {SIZE} bytes"})


if __name__ == "__main__":
    main()
