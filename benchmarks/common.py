"""What the benchmarks share: services, a session, a filled topic, timed queries."""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import sys
import tempfile
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import psutil
import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from onceward.testing.services import DevServices, dev_services
from onceward.testing.services.jars import PEER_JARS, ensure_jars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PARTITIONS = 4
_service_pids: list[int] = []
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Bench:
    """Services and a session, for one run of a benchmark."""

    services: DevServices
    spark: SparkSession
    home: Path

    @property
    def servers(self) -> str:
        """Kafka's address."""
        return self.services.bootstrap_servers

    @property
    def dsn(self) -> str:
        """PostgreSQL's connection URI."""
        return self.services.dsn

    def topic(self, partitions: int = PARTITIONS, **config: str) -> str:
        """Create a topic, and return its name."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic, so that the disk holds one at a time."""
        admin = AdminClient({"bootstrap.servers": self.servers})
        admin.delete_topics([name])[name].result(30)

    def table(self) -> str:
        """Create a table (key text, value text), and return its name."""
        name = f"bench_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(self.dsn) as connection:
            connection.execute(f"CREATE TABLE {name} (key text, value text)")
        return name

    def filled_topic(self, rows: int, size: int, partitions: int = PARTITIONS) -> str:
        """Create a topic with `rows` messages of about `size` bytes."""
        name = self.topic(partitions)
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "linger.ms": 20})
        payload = "x" * size
        for number in range(rows):
            while True:
                try:
                    producer.produce(name, f"{number}:{payload}", str(number), number % partitions)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 10000 == 0:
                producer.poll(0)
        producer.flush()
        return name

    def source(self, topic: str, per_trigger: int) -> DataFrame:
        """Read a topic with Spark's own source: the same for all that are compared."""
        stream = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        stream = stream.option("subscribe", topic).option("startingOffsets", "earliest")
        frame = stream.option("maxOffsetsPerTrigger", per_trigger).load()
        return frame.selectExpr("cast(key as string) AS key", "cast(value as string) AS value")

    def checkpoint(self) -> str:
        """Return a new checkpoint folder."""
        return str(self.home / "checkpoints" / uuid.uuid4().hex)

    def fresh(self) -> dict[str, str]:
        """Return a new checkpoint folder and a new pipeline's name, as arguments of exactly_once."""
        checkpoint = self.checkpoint()
        return {"checkpoint": checkpoint, "pipeline": Path(checkpoint).name}


@dataclass(frozen=True)
class Run:
    """One timed query: seconds and CPU seconds of its batches, and each batch's milliseconds.

    `cpu` is that of all processes, `clients` that of all but the services.
    """

    rows: int
    seconds: float
    cpu: float
    clients: float
    batches: list[int]


@contextmanager
def bench() -> Iterator[Bench]:
    """Start services and a session. Processes whose parent dies become ours, so their CPU time still counts."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    here = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]  # workers import what they run
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, here))
    with tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder, dev_services(Path(folder) / "s") as services:
        _service_pids[:] = [service.pid for service in services.each if service.pid is not None]
        jars = ",".join(str(jar) for jar in ensure_jars(PEER_JARS).glob("*.jar"))
        builder = SparkSession.builder.master("local[2]").config("spark.jars", jars)
        builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
        builder = builder.config("spark.driver.memory", "2g")
        builder = builder.config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        yield Bench(services, spark, Path(folder))
        spark.stop()


def timed(writer: DataStreamWriter) -> Run:
    """Run a query over all there is."""
    before, services = cpu_seconds(), cpu_seconds_of_services()
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [p for p in query.recentProgress if p.numInputRows > 0]
    batches = [p.durationMs["triggerExecution"] for p in progress]
    cpu, served = cpu_seconds() - before, cpu_seconds_of_services() - services
    return Run(sum(p.numInputRows for p in progress), sum(batches) / 1000, cpu, cpu - served, batches)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and all below it: driver, JVM, Python workers; broker and database too."""
    me = psutil.Process()
    return _seconds([me, *me.children(recursive=True)])


def cpu_seconds_of_services() -> float:
    """Return the CPU seconds of broker and database."""
    return _seconds(service_processes())


def service_processes() -> list[psutil.Process]:
    """Return the processes of broker and database, with their children."""
    processes = [psutil.Process(pid) for pid in _service_pids]
    return [each for one in processes for each in [one, *one.children(recursive=True)]]


def _seconds(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def compare(variants: dict[str, Callable[[], Run]], repeats: int) -> dict[str, list[Run]]:
    """Run each variant once to warm up, then all in turn `repeats` times, every other time in reverse."""
    for run in variants.values():
        run()
    runs: dict[str, list[Run]] = {name: [] for name in variants}
    for repeat in range(repeats):
        for name in list(variants)[:: -1 if repeat % 2 else 1]:
            runs[name].append(variants[name]())
    return runs


def median(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def machine() -> str:
    """Describe the machine on which it is measured."""
    memory = psutil.virtual_memory().total / 2**30
    where = f"{platform.system()} {platform.machine()}, broker and database beside it"
    return f"{psutil.cpu_count()} cores, {memory:.0f} GiB, {where}"


def show(title: str, lines: list[str], facts: dict[str, Any]) -> None:
    """Print a result as Markdown."""
    print(f"\n### {title}\n")
    print(", ".join(f"{key}: {value}" for key, value in facts.items()))
    print()
    print("\n".join(lines), flush=True)
