"""Measure how much memory it takes to read a backlog, by size of its records: KafkaSource against Spark's own source.

    python benchmarks/source_memory.py [--sizes 10 1000 100000 1000000 10000000 50000000] [--megabytes 5000]
        [--codec zstd] [--noise 0.1]

One partition, read by one query with the trigger availableNow, all columns, into the noop sink, on a driver with 1 GiB
of heap. Each query runs in a process of its own, because a peak of memory (VmHWM) never decreases.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import psutil
from common import Bench, machine, show

from onceward.testing.services import dev_services
from onceward.testing.services.jars import PEER_JARS, ensure_jars

SIZES = [10, 1_000, 100_000, 1_000_000, 10_000_000, 50_000_000]
OURS, SPARKS = "onceward-kafka", "kafka"
LARGEST = 64 * 2**20
MB = 2**20
HEAP = "1g"
LOOK_SECONDS = 0.2


class Peaks(threading.Thread):
    """The largest resident memory that this process and each one below it has ever had, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.of: dict[tuple[str, int], int] = {}
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
                kind = "jvm" if "java" in process.name() else "python"
            except (OSError, psutil.Error):
                continue
            kilobytes = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
            for found in kilobytes:
                self.of[kind, process.pid] = max(self.of.get((kind, process.pid), 0), int(found) * 1024)

    def stop(self) -> None:
        self.look()
        self._end.set()
        self.join()

    def largest(self, kind: str) -> int:
        return max(size for (one, _), size in self.of.items() if one == kind)


def read(form: str, servers: str, topic: str) -> dict[str, Any]:
    """Read the topic in this process, and return rows, seconds and peaks."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only the processes that read need it

    peaks = Peaks()
    peaks.start()
    jars = ",".join(str(jar) for jar in ensure_jars(PEER_JARS).glob("*.jar"))
    builder = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.driver.memory", HEAP)
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    stream = spark.readStream.format(form).option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    frame = stream.option("startingOffsets", "earliest").load()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).trigger(availableNow=True).start()
        query.awaitTermination()
        seconds = time.monotonic() - began
        rows = sum(progress.numInputRows for progress in query.recentProgress)
    peaks.stop()
    spark.stop()
    return {"rows": rows, "seconds": seconds, "jvm": peaks.largest("jvm"), "python": peaks.largest("python")}


def measure_read(form: str, servers: str, topic: str) -> dict[str, Any]:
    """Read the topic in a new process; if that fails, return the last line of its errors instead."""
    environment = {"PYSPARK_PYTHON": sys.executable, **os.environ}
    command = [sys.executable, __file__, "--read", form, servers, topic]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": [line for line in done.stderr.splitlines() if line.strip()][-1][:200]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


class Backlog(NamedTuple):
    """Records of one partition.

    Attributes:
        size: Bytes of a record's value.
        rows: Number of records.
        codec: Compression codec of the producer.
        noise: Share of a value that cannot be compressed.
    """

    size: int
    rows: int
    codec: str
    noise: float


def fill(servers: str, topic: str, backlog: Backlog) -> None:
    """Write the records."""
    config = {"bootstrap.servers": servers, "linger.ms": 50, "message.max.bytes": LARGEST}
    config |= {"compression.type": backlog.codec, "queue.buffering.max.kbytes": 3 * LARGEST // 1024}
    producer = confluent_kafka.Producer(config)
    count = min(backlog.size, max(4, int(backlog.size * backlog.noise)))
    random_bytes = random.Random(backlog.size).randbytes(count + 4096)
    rest = bytes(backlog.size - count)
    for number in range(backlog.rows):
        at = number % 4096
        value = random_bytes[at : at + count] + rest
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    if producer.flush(120):
        sys.exit("the broker did not take all records")


def line_of(name: str, size: int, rows: int, result: dict[str, Any], peer: dict[str, Any]) -> str:
    """Return one row of the table."""
    if "failed" in result or result["rows"] != rows:
        words = result.get("failed", f"read {result.get('rows')} of {rows} rows")
        return f"| {size:,} | {name} | {words} | | | |"
    speed = f"{size * rows / MB / result['seconds']:,.0f}"
    ratio = f"{peer['seconds'] / result['seconds']:.2f}" if "seconds" in peer else ""
    return f"| {size:,} | {name} | {speed} | {ratio} | {result['jvm'] / MB:,.0f} | {result['python'] / MB:,.0f} |"


def main() -> None:
    """Measure both sources with each size, in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="bytes of a record's value")
    parser.add_argument("--megabytes", type=int, default=5_000, help="of the backlog, for each size of records")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--noise", type=float, default=1.0, help="share of a value that cannot be compressed")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--formats", nargs="+", default=[SPARKS, OURS])
    parser.add_argument("--read", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        print(json.dumps(read(*arguments.read)))
        return
    lines = ["| bytes of a record | source | MiB/s | speed against Spark's | JVM, MiB | largest Python process, MiB |"]
    lines.append("|---|---|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder,
        dev_services(Path(folder) / "s", postgres=False) as services,
    ):
        for size in arguments.sizes:
            rows = max(1, arguments.megabytes * 1_000_000 // size)
            topic = Bench(services, None, Path(folder)).topic(1, **{"max.message.bytes": str(LARGEST)})
            fill(services.bootstrap_servers, topic, Backlog(size, rows, arguments.codec, arguments.noise))
            for _ in range(arguments.repeats):
                peer: dict[str, Any] = {}
                for form in arguments.formats:
                    result = measure_read(form, services.bootstrap_servers, topic)
                    peer = result if form == SPARKS else peer
                    lines.append(line_of(form, size, rows, result, peer))
                    print(lines[-1], file=sys.stderr, flush=True)
            Bench(services, None, Path(folder)).delete_topic(topic)
    codec = f"{arguments.codec}, noise {arguments.noise:g}"
    show("Memory of a source", lines, {"machine": machine(), "backlog": f"{arguments.megabytes} MB", "codec": codec})


if __name__ == "__main__":
    main()
