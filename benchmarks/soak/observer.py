"""Feeds the soak's input at a steady rate, and watches its targets as any reader would, without onceward's sinks."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import msgspec
import psutil
import psycopg
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from .job import SOURCE, TARGET

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.testing.pipeline.driver import DriverSupervisor
    from onceward.testing.pipeline.endpoints import Addresses

PARTITIONS = 4
PREPARED = "SELECT count(*), coalesce(max(extract(epoch FROM now() - prepared)), 0) FROM pg_prepared_xacts"
OWN_TABLES = "SELECT coalesce(sum(pg_total_relation_size(relid)), 0) FROM pg_stat_user_tables WHERE schemaname = %s"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen at one moment; None where a service was down."""

    at: float
    """Seconds since the beginning."""
    fed: int
    topic_rows: int
    table_rows: int | None = None
    latency: tuple[float, float, float, float] | None = None
    """Median, 95 %, 99 % and maximum of the rows that became visible since the last sample, in seconds from the
    producer's call to a read_committed consumer."""
    waiting: int | None = None
    """Records in the topic that read_committed readers do not get yet: end of the log less last stable offset."""
    prepared: int | None = None
    oldest_prepared: float | None = None
    """Seconds."""
    log_entries: int = 0
    checkpoint_bytes: int = 0
    ledger_bytes: int | None = None
    driver_mib: float = 0
    """Resident memory of the driver, its JVM and its workers."""


class Feeder:
    """A producer that keeps a rate, whatever happens to the broker.

    Args:
        servers: Kafka's address.
        rate: Rows per second.
    """

    def __init__(self, servers: str, rate: float) -> None:
        self.fed = 0
        self._rate, self._stopped = rate, threading.Event()
        # Without a limit in time, an idempotent producer delivers each message once.
        settings = {"enable.idempotence": True, "message.timeout.ms": 0, "linger.ms": 20, "log_level": 0}
        self._producer = confluent_kafka.Producer({"bootstrap.servers": servers, **settings})
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def feeding(self) -> Iterator[None]:
        """Feed while the block runs; after it, all of it is durable."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()
            if left := self._producer.flush(300):
                raise RuntimeError(f"{left} messages of the input were not delivered")

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stopped.wait(0.05):
            while self.fed < (time.monotonic() - began) * self._rate:
                value = json.dumps({"number": self.fed, "fed": time.time()})
                try:
                    self._producer.produce(SOURCE, value, partition=self.fed % PARTITIONS)
                except BufferError:
                    break
                self.fed += 1
            self._producer.poll(0)


class Reader:
    """A read_committed consumer of the target topic, which counts each number and measures its latency."""

    def __init__(self, servers: str) -> None:
        self.seen: Counter[int] = Counter()
        self.rows = 0
        self._latencies: list[float] = []
        self._stopped = threading.Event()
        self._servers = servers
        self._thread = threading.Thread(target=self._run, daemon=True)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read while the block runs."""
        self._thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            self._thread.join()

    def _run(self) -> None:
        settings = {"group.id": "soak-reader", "isolation.level": "read_committed", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._servers, "log_level": 0, **settings})
        consumer.assign([TopicPartition(TARGET, number, 0) for number in range(PARTITIONS)])
        while not self._stopped.is_set():
            for message in consumer.consume(2000, 0.5):
                if message.error() is None:
                    row = json.loads(message.value() or b"null")
                    self._latencies.append(time.time() - row["fed"])
                    self.rows += 1
                    self.seen[row["number"]] += 1
        consumer.close()

    def latency(self) -> tuple[float, float, float, float] | None:
        """Return the latency of the rows since the last call."""
        latencies, self._latencies = self._latencies, []
        if len(latencies) < 2:
            return None
        cuts = statistics.quantiles(latencies, n=100, method="inclusive")
        return (cuts[49], cuts[94], cuts[98], max(latencies))


class Observer:
    """Takes samples, which cost the services little."""

    def __init__(self, addresses: Addresses, supervisor: DriverSupervisor, feeder: Feeder, reader: Reader) -> None:
        self._addresses, self._supervisor, self._feeder, self._reader = addresses, supervisor, feeder, reader
        self._admin = AdminClient({"bootstrap.servers": addresses.bootstrap_servers, "log_level": 0})
        self.began = time.monotonic()

    def sample(self) -> Sample:
        """Take a sample of what there is now."""
        files = [path for path in Path(self._addresses.folder, "checkpoint").rglob("*") if path.is_file()]
        return Sample(
            at=round(time.monotonic() - self.began, 1),
            fed=self._feeder.fed,
            topic_rows=self._reader.rows,
            latency=self._reader.latency(),
            waiting=self._waiting(),
            log_entries=sum("onceward" in str(path.parent) for path in files),
            checkpoint_bytes=sum(_size(path) for path in files),
            driver_mib=self._memory(),
            **self._of_database(),
        )

    def _of_database(self) -> dict[str, Any]:
        with suppress(psycopg.Error), psycopg.connect(self._addresses.dsn, connect_timeout=2) as connection:
            connection.execute("SET statement_timeout = '5s'")
            [(rows,)] = connection.execute(f"SELECT count(*) FROM {TARGET}").fetchall()
            [(prepared, oldest)] = connection.execute(PREPARED).fetchall()
            [(size,)] = connection.execute(OWN_TABLES, ["onceward"]).fetchall()
            return {
                "table_rows": rows,
                "prepared": prepared,
                "oldest_prepared": round(float(oldest), 1),
                "ledger_bytes": int(size),
            }
        return {}

    def _waiting(self) -> int | None:
        ends = [self._end(level) for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)]
        return None if None in ends else ends[0] - ends[1]

    def _end(self, isolation: IsolationLevel) -> Any:
        specs = {TopicPartition(TARGET, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        with suppress(confluent_kafka.KafkaException):
            offsets = self._admin.list_offsets(specs, isolation_level=isolation, request_timeout=3)
            return sum(future.result(5).offset for future in offsets.values())
        return None

    def _memory(self) -> float:
        total = 0
        for process in self._supervisor.driver.descendants():
            with suppress(psutil.Error):
                total += process.memory_info().rss
        return round(total / 2**20)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
