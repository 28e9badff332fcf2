"""What prepare and commit cost as transactions and partitions grow, without Spark: the constants of docs/scaling.md.

    python benchmarks/commit.py [--epochs 30]

One pipeline at a time; an epoch has some transactions, each of which writes rows to some partitions. Milliseconds are
the driver's commit of all of them (look, EndTxn or COMMIT PREPARED, look again). The decision's bytes are those in the
decision log.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psycopg
import pyarrow as pa
from common import machine, show
from confluent_kafka.admin import AdminClient, NewTopic

from onceward import KafkaSink, PostgresSink
from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.log import EpochInput, open_store
from onceward.testing.services import dev_services

if TYPE_CHECKING:
    from onceward.sinks import TwoPhaseCommitSink
    from onceward.testing.services import DevServices

SHAPES = ((1, 4), (1, 64), (1, 256), (4, 4), (16, 16), (64, 64))
WARM_UP = 5


def kafka(services: DevServices, partitions: int) -> KafkaSink:
    """Return a sink on a new topic."""
    topic = f"commit-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
    return KafkaSink("topic", bootstrap_servers=services.bootstrap_servers, topic=topic)


def postgres(services: DevServices, _: int) -> PostgresSink:
    """Return a sink on a new table."""
    table = f"commit_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(services.dsn) as connection:
        connection.execute(f"CREATE TABLE {table} (key text, value text)")
    return PostgresSink("table", dsn=services.dsn, table=table, commit="prepared")


def measure_commit(
    folder: Path, sink: TwoPhaseCommitSink[Any], transactions: int, partitions: int, epochs: int
) -> tuple[list[float], list[float], int]:
    """Measure the milliseconds of a prepare and of a commit, and the bytes of the newest decision."""
    pipeline = f"commit-{uuid.uuid4().hex[:8]}"
    store = open_store(str(folder / pipeline), pipeline=pipeline)
    coordinator = Coordinator(pipeline, store, [sink])
    coordinator.open()
    names = [str(number) for number in range(20 * partitions)]
    rows = pa.record_batch({"key": pa.array(names), "value": pa.array(["x" * 100] * len(names))})
    prepares: list[float] = []
    commits: list[float] = []
    for epoch in range(epochs):
        about = EpochInput(query="q", digest=str(epoch), start=[str(epoch)], end=[str(epoch + 1)])
        coordinator.admit(epoch, about)
        acks = []
        for subtask in range(transactions):
            written = SubtaskEpoch(sink, coordinator.context(sink.name, epoch, subtask=subtask))
            written.write(rows)
            began = time.perf_counter()
            committable = written.pre_commit()
            prepares.append((time.perf_counter() - began) * 1000)
            named = () if committable is None else (msgspec.structs.replace(committable, subtask=subtask),)
            acks.append(
                Acknowledgement(epoch=epoch, subtask=subtask, attempt=0, sinks=(sink.name,), committables=named)
            )
        began = time.perf_counter()
        coordinator.commit(epoch, acks, about)
        commits.append((time.perf_counter() - began) * 1000)
    size = max(len(store.get(key) or b"") for key in store.list_keys())
    return prepares[WARM_UP * transactions :], commits[WARM_UP:], size


def main() -> None:
    """Measure each shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    arguments = parser.parse_args()
    lines = [
        "| target | transactions | partitions of each | prepare, ms each | decide and commit, ms | decision, bytes |",
        "|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory(prefix="onceward-commit-") as name, dev_services(Path(name) / "s") as services:
        for label, make in (("Kafka", kafka), ("PostgreSQL, prepared", postgres)):
            for transactions, partitions in SHAPES if make is kafka else ((1, 1), (4, 1), (16, 1)):
                sink = make(services, partitions)
                prepares, commits, size = measure_commit(Path(name), sink, transactions, partitions, arguments.epochs)
                lines.append(
                    f"| {label} | {transactions} | {partitions if make is kafka else ''} "
                    f"| {statistics.median(prepares):.1f} | {statistics.median(commits):.1f} | {size:,} |"
                )
                print(lines[-1], flush=True)
    show("Prepare and commit", lines, {"machine": machine(), "epochs": arguments.epochs - WARM_UP})


if __name__ == "__main__":
    main()
