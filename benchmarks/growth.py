"""What grows while a pipeline runs for a day: many epochs in fast motion, without Spark.

    python benchmarks/growth.py [--epochs 10000] [--fakes] [--plot docs/growth.png]

Four pipelines run side by side, an epoch of each in turn, as driver and one task would drive them: Kafka, PostgreSQL by
prepared transactions, PostgreSQL by staging tables with an upsert, and all three together in one pipeline. Measured
at twenty points: milliseconds of an epoch, entries of the decision logs, rows of the ledgers, prepared transactions and
staging tables, transactional ids at the broker, and of this process memory, threads and file handles.

With --fakes, the one pipeline's target and its decision log are in memory, so that 100,000 epochs take a minute.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pyarrow as pa
from common import machine, show
from confluent_kafka.admin import AdminClient, NewTopic

from onceward import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    KafkaSink,
    PostgresSink,
    TwoPhaseCommitSink,
    WriteContext,
)
from onceward.connectors.kafka.admin import cluster_of
from onceward.connectors.spark.write.spark_task import write_partition
from onceward.core.checkpoint import Coordinator
from onceward.core.log import EpochInput, MemoryStore, open_store
from onceward.testing.services import dev_services

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from onceward.core.log import LogStore
    from onceward.sinks import Scope
    from onceward.testing.services import DevServices

POINTS = 20
ROWS = 10
KEYS = 1000
TABLES = "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables WHERE schemaname = 'onceward'"


class MemorySink(TwoPhaseCommitSink[WriteContext]):
    """A target that keeps nothing but what is prepared."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.prepared: set[str] = set()

    def begin(self, context: WriteContext) -> WriteContext:
        return context

    def write(self, transaction: WriteContext, batch: pa.RecordBatch) -> None:
        pass

    def pre_commit(self, transaction: WriteContext) -> Committable:
        name = str(transaction.transaction_name())
        self.prepared.add(name)
        return transaction.committable(kind="memory", transaction=name, rows=ROWS)

    def commit(self, committable: Committable) -> CommitOutcome:
        self.prepared.remove(committable.transaction)
        return CommitOutcome(CommitStatus.COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:
        self.prepared.discard(committable.transaction)
        return AbortOutcome(AbortStatus.ABORTED)

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        return ()


class Line:
    """One pipeline."""

    def __init__(self, name: str, store: LogStore, *sinks: TwoPhaseCommitSink[Any]) -> None:
        self.sinks, self.store = sinks, store
        self.coordinator = Coordinator(name, self.store, sinks)
        self.coordinator.open()
        self.milliseconds: list[float] = []

    def run(self, epoch: int) -> None:
        """Run one epoch of a few rows."""
        keys = [f"{(epoch * ROWS + number) % KEYS}" for number in range(ROWS)]
        rows = pa.record_batch({"key": pa.array(keys), "value": pa.array([f"of epoch {epoch}"] * ROWS)})
        self.write(epoch, [rows])

    def write(self, epoch: int, batches: Iterable[pa.RecordBatch]) -> None:
        """Write one epoch of these rows, and record its time."""
        began = time.perf_counter()
        about = EpochInput(query="q", digest=str(epoch), start=[str(epoch)], end=[str(epoch + 1)])
        self.coordinator.admit(epoch, about)
        contexts = [self.coordinator.context(sink.name, epoch, subtask=0) for sink in self.sinks]
        self.coordinator.commit(epoch, [write_partition(self.sinks, contexts, batches)], about)
        self.milliseconds.append((time.perf_counter() - began) * 1000)


@contextmanager
def lines(services: DevServices, folder: Path) -> Iterator[dict[str, Line]]:
    """Make the pipelines, with a topic and tables of their own."""
    admin = AdminClient({"bootstrap.servers": services.bootstrap_servers})

    def kafka() -> KafkaSink:
        topic = f"growth-{uuid.uuid4().hex[:8]}"
        settings = {"retention.bytes": "10000000", "segment.bytes": "5000000"}
        admin.create_topics([NewTopic(topic, 2, 1, config=settings)])[topic].result(30)
        return KafkaSink("topic", bootstrap_servers=services.bootstrap_servers, topic=topic)

    def postgres(name: str, **options: Any) -> PostgresSink:
        table = f"growth_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(services.dsn) as connection:
            connection.execute(f"CREATE TABLE {table} (key text, value text)")
            if "key" in options:
                connection.execute(f"ALTER TABLE {table} ADD PRIMARY KEY (key)")
        return PostgresSink(name, dsn=services.dsn, table=table, **options)

    def line(name: str, *sinks: TwoPhaseCommitSink[Any]) -> Line:
        return Line(name, open_store(str(folder / name), pipeline=name), *sinks)

    yield {
        "Kafka": line("kafka", kafka()),
        "PostgreSQL, prepared": line("prepared", postgres("prepared", commit="prepared")),
        "PostgreSQL, staging": line("staging", postgres("staging", commit="staging", key=["key"])),
        "all together": line("all", kafka(), postgres("prepared", commit="prepared"), postgres("staging", key=["key"])),
    }


def counts(services: DevServices, running: dict[str, Line]) -> dict[str, float]:
    """Take a sample of what there is now."""
    sink = next(sink for line in running.values() for sink in line.sinks if isinstance(sink, KafkaSink))
    with psycopg.connect(services.dsn) as connection:
        own = [name for (name,) in connection.execute(TABLES).fetchall()]
        ledger = [connection.execute(f"SELECT count(*) FROM {name}").fetchone() for name in own]
        [prepared] = connection.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone() or (0,)
        [connections] = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL"
        ).fetchone() or (0,)
    return {
        **of_process(running),
        "rows in tables of onceward": sum(rows for row in ledger if row for rows in row),
        "tables of onceward": len(own),
        "prepared transactions": prepared,
        "connections of PostgreSQL": connections,
        "transactional ids": len(cluster_of(sink.settings).transactions.list_transactions()),
    }


def of_process(running: dict[str, Line]) -> dict[str, float]:
    """Count what this process and the decision logs hold now."""
    me = psutil.Process()
    return {
        "entries of the decision logs": sum(len(line.store.list_keys()) for line in running.values()),
        "memory, MiB": round(me.memory_info().rss / 2**20),
        "threads": me.num_threads(),
        "Python threads": threading.active_count(),
        "file handles": me.num_fds(),
    }


def measure_all(running: dict[str, Line], epochs: int, count: Callable[[], dict[str, float]]) -> dict[str, list[float]]:
    """Measure each quantity at each point."""
    series: dict[str, list[float]] = {}
    for epoch in range(epochs):
        for line in running.values():
            line.run(epoch)
        if (epoch + 1) % max(1, epochs // POINTS):
            continue
        now = {"epochs": epoch + 1, **count()}
        now |= {f"{name}, ms": round(statistics.median(line.milliseconds), 2) for name, line in running.items()}
        for line in running.values():
            line.milliseconds.clear()
        for what, value in now.items():
            series.setdefault(what, []).append(value)
        print(" ".join(f"{what}: {value};" for what, value in now.items()), flush=True)
    return series


def on_services(epochs: int) -> dict[str, list[float]]:
    """Make the four pipelines."""
    with (
        tempfile.TemporaryDirectory(prefix="onceward-growth-") as folder,
        dev_services(Path(folder) / "s") as services,
        lines(services, Path(folder)) as running,
    ):
        return measure_all(running, epochs, lambda: counts(services, running))


def in_memory(epochs: int) -> dict[str, list[float]]:
    """Make one pipeline without services."""
    running = {"memory": Line("memory", MemoryStore(), MemorySink("memory"))}
    return measure_all(running, epochs, lambda: of_process(running))


def plot(series: dict[str, list[float]], path: str) -> None:
    """Draw every quantity over epochs, relative to its first value."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - of the extra `demo`
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 11), layout="constrained")
    FigureCanvasAgg(figure)
    shown = [what for what in series if what != "epochs"]
    for axes, what in zip(figure.subplots(-(-len(shown) // 2), 2).flat, shown, strict=False):
        axes.plot(series["epochs"], series[what])
        axes.set_title(what, fontsize=9, loc="left")
        axes.set_ylim(0, max(1.0, 1.3 * max(series[what])))
    figure.savefig(path, dpi=90)


def main() -> None:
    """Run, and print first, middle and last values."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--plot", help="file for a picture")
    parser.add_argument("--fakes", action="store_true", help="a target and a log in memory")
    arguments = parser.parse_args()
    samples = (in_memory if arguments.fakes else on_services)(arguments.epochs)
    if arguments.plot:
        plot(samples, arguments.plot)
    picks = [0, POINTS // 2, -1]
    heads = [f"after {samples['epochs'][pick]:,.0f}" for pick in picks]
    table = [f"| quantity | {' | '.join(heads)} |", "|---|---|---|---|"]
    table += [
        f"| {what} | {' | '.join(f'{values[pick]:g}' for pick in picks)} |"
        for what, values in samples.items()
        if what != "epochs"
    ]
    facts = {"machine": machine(), "epochs of each pipeline": arguments.epochs, "rows an epoch": ROWS}
    show("What grows", table, facts)


if __name__ == "__main__":
    main()
