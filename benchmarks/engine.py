"""The embedded engine: cost of checkpoints, size of snapshots, time to recover.

    python benchmarks/engine.py throughput [--rows 1000000] [--repeats 5]
    python benchmarks/engine.py sums [--rows 1000000] [--repeats 5] [--keys 10000]
    python benchmarks/engine.py snapshots [--megabytes 10 100 1000]
    python benchmarks/engine.py slow [--seconds 15]

`throughput`: rows out of memory through a keyed sum with RocksDB state into a sink that drops them, with checkpoints
off and every second, in turn; the cost is the median of the ratios run by run.
`sums`: a keyed sum row by row (`process`) and batch by batch (`aggregate`), one subtask, state in memory and in
RocksDB, in batches of 2,000 and 20,000 rows: rows per second, and per second of CPU time of the whole process.
`snapshots`: RocksDB state of a size, of which 1 % changes before each of ten checkpoints: seconds and bytes written,
full and incremental; and the seconds until a restarted pipeline has its state back.
`slow`: functions that take 0.1 to 10 ms for a record, behind another function and with a million timers that are due,
fed with batches of 10,000 rows and a checkpoint every second: seconds from the trigger of a checkpoint to its
completion, seconds that `stop()` takes, and the CPU time of the process. The goal is 2 s for a checkpoint and 3 s for
`stop()`.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa

from onceward.core import (
    CheckpointConfig,
    MemoryBackend,
    Pipeline,
    ProcessFunction,
    RocksDBBackend,
    ValueState,
    open_store,
)
from onceward.sinks import DirectSink
from onceward.sources import LiveSource, SequenceSource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.core.engine.job import Job

KEYS = 10_000
VALUE = 1000
"""Bytes of a value in `snapshots`."""


class Nowhere(DirectSink[None]):
    """Drops rows, and counts them."""

    def __init__(self) -> None:
        super().__init__("nowhere")
        self.rows = 0

    def open(self, context: Any) -> None:
        """Open nothing."""

    def write(self, writer: None, batch: pa.RecordBatch) -> None:
        """Count the rows."""
        self.rows += batch.num_rows


class RunningSum(ProcessFunction):
    """The sum so far of each key."""

    total = ValueState(default=0)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        self.total.set(self.total.get() + record["amount"])
        yield {"user": record["user"], "total": self.total.get()}


def a_table(rows: int, keys: int) -> pa.Table:
    """Return amounts of users at random."""
    chance = random.Random(7)
    return pa.table({"user": [f"user{chance.randrange(keys)}" for _ in range(rows)], "amount": list(range(rows))})


def sums(rows: int, repeats: int, keys: int) -> None:
    """Measure the rows per second of each way to sum."""
    table = a_table(rows, keys)
    ways = [(way, state, batch) for way in ("process", "aggregate") for state in STATES for batch in (2000, 20_000)]
    found: dict[Any, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(repeats + 1):
        for way in ways:
            cpu, began = time.process_time(), time.monotonic()
            one_sum(table, *way)
            if number:  # the first time is to warm up
                found[way].append((time.monotonic() - began, time.process_time() - cpu))
    for (way, state, batch), seconds in found.items():
        wall, cpu = (statistics.median(each) for each in zip(*seconds, strict=True))
        print(f"{way:10} {state:8} batches of {batch:6,} {rows / wall:10,.0f} rows/s {rows / cpu:10,.0f} rows/CPU s")


STATES: dict[str, Callable[[str], Any]] = {
    "memory": lambda _folder: MemoryBackend(most=1 << 30),
    "rocksdb": lambda folder: RocksDBBackend(f"{folder}/state"),
}


def one_sum(table: pa.Table, way: str, state: str, batch_rows: int) -> None:
    """Run once."""
    with tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder:
        pipeline = Pipeline("bench", store=open_store(f"{folder}/log"), backend=STATES[state](folder))
        stream = pipeline.source(SequenceSource(table, batch_rows=batch_rows)).key_by("user")
        totals = stream.process(RunningSum()) if way == "process" else stream.aggregate({"total": ("amount", "sum")})
        totals.sink(Nowhere())
        pipeline.run()


def throughput(rows: int, repeats: int) -> None:
    """Measure the rows per second without and with checkpoints."""
    table = a_table(rows, KEYS)
    ways: dict[str, float | None] = {"off": None, "every second": 1.0}
    for interval in ways.values():
        once(table, interval)
    seconds = {name: [] for name in ways}  # type: dict[str, list[float]]
    for _ in range(repeats):
        for name, interval in ways.items():
            seconds[name].append(once(table, interval))
    for name, found in seconds.items():
        print(f"checkpoints {name:14} {rows / statistics.median(found):12,.0f} rows/s")
    cost = [on / off - 1 for on, off in zip(seconds["every second"], seconds["off"], strict=True)]
    print(f"cost of checkpoints: {statistics.median(cost):+.1%} ({min(cost):+.1%} to {max(cost):+.1%})")


def once(table: pa.Table, interval: float | None) -> float:
    """Return the seconds of one run."""
    with tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder:
        pipeline = Pipeline(
            "bench",
            checkpointing=CheckpointConfig(interval=interval),
            store=open_store(f"{folder}/log"),
            backend=RocksDBBackend(f"{folder}/state"),
        )
        source = SequenceSource(table, units=2, batch_rows=2000)
        sums = pipeline.source(source, parallelism=2).key_by("user").process(RunningSum(), uid="sum", parallelism=2)
        sums.sink(Nowhere())
        began = time.monotonic()
        pipeline.run()
        return time.monotonic() - began


class Updates(LiveSource):
    """Gives batches of keys to write, as it is told."""

    def __init__(self) -> None:
        self.waiting: list[list[int]] = []
        self.given = 0

    schema = pa.schema({"k": pa.int64()})
    bounded = False

    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:
        while True:
            if self.waiting:
                keys = self.waiting.pop(0)
                yield pa.RecordBatch.from_pydict({"k": keys})
                self.given += len(keys)
            else:
                yield None


class Stores(ProcessFunction):
    """Writes a new value for each key that comes."""

    value = ValueState[Any](None)

    def __init__(self) -> None:
        self.chance = random.Random(7)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        self.value.set(self.chance.randbytes(VALUE))
        yield record


def snapshots(megabytes: list[int]) -> None:
    """Measure checkpoints of large state."""
    print(f"{'state':>8} {'how':>12} {'first':>22} {'later, 1 % changed (median)':>32} {'peak':>12} {'restore':>9}")
    for size in megabytes:
        for incremental in (False, True):
            one_size(size, incremental=incremental)


def one_size(megabytes: int, *, incremental: bool) -> None:
    """Print one line of the table."""
    keys = megabytes * 1_000_000 // VALUE
    with tempfile.TemporaryDirectory(prefix="onceward-bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        updates, sink = Updates(), Nowhere()
        pipeline = build(folder, updates, sink, incremental=incremental)
        job = pipeline.start()
        write(updates, sink, list(range(keys)))
        records = [checkpoint(job)]
        chance = random.Random(1)
        for _ in range(10):
            write(updates, sink, sorted(chance.sample(range(keys), keys // 100)))
            records.append(checkpoint(job))
        pipeline.stop()
        began = time.monotonic()
        again = build(folder, Updates(), Nowhere(), incremental=incremental)
        restored = again.start()
        while restored.state != "running":
            time.sleep(0.005)
        recovery = time.monotonic() - began
        again.stop()
    seconds, written = zip(*records[1:], strict=True)
    print(
        f"{megabytes:5} MB {'incremental' if incremental else 'full':>12} "
        f"{records[0][0]:8.2f} s {records[0][1] / 1e6:8.1f} MB "
        f"{statistics.median(seconds):15.2f} s {statistics.median(written) / 1e6:8.1f} MB   "
        f"{max(written) / 1e6:8.1f} MB {recovery:6.2f} s",
        flush=True,
    )


def build(folder: str, updates: Updates, sink: Nowhere, *, incremental: bool) -> Pipeline:
    """Make a pipeline whose state is what was written."""
    pipeline = Pipeline(
        "bench",
        checkpointing=CheckpointConfig(retained=2),
        store=open_store(f"{folder}/log"),
        backend=RocksDBBackend(f"{folder}/state", local=f"{folder}/local", incremental=incremental),
    )
    pipeline.source(updates, uid="updates").key_by("k").process(Stores(), uid="stores").sink(sink)
    return pipeline


def write(updates: Updates, sink: Nowhere, keys: list[int]) -> None:
    """Write these keys, and wait until that is done."""
    done = sink.rows + len(keys)
    updates.waiting += [keys[at : at + 2000] for at in range(0, len(keys), 2000)]
    while sink.rows < done:
        time.sleep(0.005)


def checkpoint(job: Job) -> tuple[float, int]:
    """Make a checkpoint, and return its seconds and bytes."""
    job.checkpoint(timeout=600)
    record = job.checkpoints[-1]
    return record.duration, sum(task.uploaded for task in record.tasks)


class Waits(ProcessFunction):
    """Takes a while for each record and each timer, without using the CPU."""

    seen = ValueState(default=0)

    def __init__(self, seconds: float, timers: int) -> None:
        self.seconds = seconds
        self.timers = timers

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        if self.timers:  # set a thousand with each of the first records
            self.timers -= 1000
            for number in range(1000):
                context.timer_at(float(number))
            return
        time.sleep(self.seconds)
        self.seen.set(self.seen.get() + 1)
        yield record

    def on_timer(self, at: float, context: Any) -> Iterator[dict[str, Any]]:
        time.sleep(self.seconds)
        yield {"user": context.key, "amount": 0}


def slow(seconds: float) -> None:
    """Print how long checkpoints and `stop()` take with slow functions."""
    print(f"{'per record':>10} {'timers':>9} {'tasks':>5} {'checkpoints':>11} {'slowest':>9} {'stop()':>8} {'CPU':>6}")
    for cost, timers, tasks in SLOW:
        one_slow(seconds, cost, timers, tasks)


SLOW = [(0.0001, 0, 1), (0.001, 0, 1), (0.001, 0, 3), (0.01, 0, 1), (0.01, 0, 3), (0.01, 1_000_000, 1)]
"""Seconds for a record, timers that are due, and parallelism."""


def one_slow(seconds: float, cost: float, timers: int, tasks: int) -> None:
    """Print one line of the table."""
    table = a_table(400_000, KEYS)
    with tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder:
        pipeline = Pipeline(
            "bench",
            checkpointing=CheckpointConfig(interval=1.0, history=100_000, timeout=60.0),
            store=open_store(f"{folder}/log"),
            backend=RocksDBBackend(f"{folder}/state"),
        )
        source = SequenceSource(table, batch_rows=10_000)
        stream = pipeline.source(source).map(dict).key_by("user")
        stream.process(Waits(cost, timers), uid="waits", parallelism=tasks).map(dict).sink(Nowhere())
        job = pipeline.start()
        job.wait(2.0)
        cpu, began = time.process_time(), time.monotonic()
        job.wait(seconds)
        busy = (time.process_time() - cpu) / (time.monotonic() - began)
        began = time.monotonic()
        pipeline.stop()
        stopped = time.monotonic() - began
    records = [record for record in job.checkpoints if record.status == "completed"]
    slowest = max((record.duration for record in records), default=float("nan"))
    print(
        f"{cost * 1000:7.1f} ms {timers:9,} {tasks:5} {len(records):11} {slowest:7.2f} s {stopped:6.2f} s {busy:6.1%}",
        flush=True,
    )


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "sums", "snapshots", "slow"])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100, 1000])
    arguments = parser.parse_args()
    memory = psutil.virtual_memory().total / 2**30
    print(f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}, {platform.system()}")
    if arguments.what == "throughput":
        throughput(arguments.rows, arguments.repeats)
    elif arguments.what == "sums":
        sums(arguments.rows, arguments.repeats, arguments.keys)
    elif arguments.what == "slow":
        slow(arguments.seconds)
    else:
        snapshots(arguments.megabytes)


if __name__ == "__main__":
    main()
