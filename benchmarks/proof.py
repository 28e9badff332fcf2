"""What hashing the rows costs: epochs with and without it, in turn, in one run.

    python benchmarks/proof.py [--rows 200000] [--epochs 20]

One subtask, without Spark: the hash is compared with nothing but the sink's own work and the commit. An epoch
with a proof and one without take turns, and the ratio is the median of the ratios pair by pair.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from common import machine, median, show
from confluent_kafka.admin import AdminClient, NewTopic

from onceward import KafkaSink, PostgresSink
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.log import EpochInput, open_store
from onceward.core.row_hash import RowHash
from onceward.core.transaction import Acknowledgement
from onceward.testing.services import dev_services

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.sinks.base import TwoPhaseCommitSink
    from onceward.testing.services import DevServices

BATCH = 10_000
WARM_UP = 3


def kafka(services: DevServices, *, proof: bool) -> KafkaSink:
    """A sink on a new topic."""
    topic = f"proof-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(60)
    return KafkaSink("topic", bootstrap_servers=services.bootstrap_servers, topic=topic, proof=proof)


def postgres(services: DevServices, *, proof: bool) -> PostgresSink:
    """A sink on a new table."""
    table = f"proof_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(services.dsn) as connection:
        connection.execute(f"CREATE TABLE {table} (key text, value text)")
    return PostgresSink("table", dsn=services.dsn, table=table, proof=proof)


class Job:
    """A pipeline of one sink."""

    def __init__(self, folder: Path, sink: TwoPhaseCommitSink[Any]) -> None:
        name = f"proof-{uuid.uuid4().hex[:8]}"
        self.sink = sink
        self.coordinator = Coordinator(name, open_store(str(folder / name), pipeline=name), [sink])
        self.coordinator.open()
        self.epochs = 0

    def epoch(self, batches: Sequence[pa.RecordBatch]) -> float:
        """Write and commit one; seconds."""
        number = self.epochs
        about = EpochInput(query="q", digest=str(number), start=[str(number)], end=[str(number + 1)])
        began = time.perf_counter()
        self.coordinator.admit(number, about)
        written = SubtaskEpoch(self.sink, self.coordinator.context(self.sink.name, number, subtask=0))
        for batch in batches:
            written.write(batch)
        committable = written.pre_commit()
        assert committable is not None
        ack = Acknowledgement(epoch=number, subtask=0, attempt=0, sinks=(self.sink.name,), committables=(committable,))
        self.coordinator.commit(number, [ack], about)
        self.epochs += 1
        return time.perf_counter() - began


def hash_seconds(batches: Sequence[pa.RecordBatch]) -> float:
    """CPU seconds of the hash alone."""
    began, found = time.thread_time(), RowHash()
    for batch in batches:
        found.add(batch)
    return time.thread_time() - began


def main() -> None:
    """Measure both sinks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=20)
    arguments = parser.parse_args()
    numbers = range(arguments.rows)
    rows = pa.record_batch(
        {"key": [str(number) for number in numbers], "value": [f"{number}:{'x' * 100}" for number in numbers]}
    )
    batches = [rows.slice(start, BATCH) for start in range(0, arguments.rows, BATCH)]
    lines = ["| sink | ms without | ms with | ratio (median of pairs) | hash alone, CPU ms |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="onceward-proof-") as name, dev_services(Path(name) / "s") as services:
        for label, make in (("Kafka", kafka), ("PostgreSQL, COPY", postgres)):
            plain, proven = (Job(Path(name), make(services, proof=proof)) for proof in (False, True))
            pairs = []
            for number in range(WARM_UP + arguments.epochs):
                first, second = (plain, proven) if number % 2 else (proven, plain)
                seconds = {first: first.epoch(batches), second: second.epoch(batches)}
                pairs.append((seconds[plain], seconds[proven]))
            pairs = pairs[WARM_UP:]
            ratio = median([with_ / without for without, with_ in pairs])
            alone = median([hash_seconds(batches) for _ in range(5)])
            without, with_ = (median([pair[at] for pair in pairs]) * 1000 for at in (0, 1))
            lines.append(f"| {label} | {without:.0f} | {with_:.0f} | {ratio:.3f} | {alone * 1000:.0f} |")
            print(lines[-1], flush=True)
    show("Proofs", lines, {"machine": machine(), "rows": arguments.rows, "epochs": arguments.epochs})


if __name__ == "__main__":
    main()
