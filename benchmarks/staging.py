"""What a small staged epoch costs on PostgreSQL: write, prepare and commit of a few rows, without Spark.

    python benchmarks/staging.py [--epochs 200] [--subtasks 1] [--dsn …]

Prints the median milliseconds of a subtask's write and prepare, of a commit of all, and of the whole epoch, for inserts
and for upserts. Run it in turns at two commits to compare them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from onceward import PostgresSink
from onceward.core.contract.transaction import CommitStatus, WriteContext
from onceward.testing.services import PostgresServer

ROWS = 10
WARM_UP = 20


def measure(dsn: str, settings: dict[str, Any], epochs: int, subtasks: int) -> tuple[float, float, float]:
    """Return the median milliseconds of a subtask, of a commit, and of an epoch."""
    table = f"staging_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn) as connection:
        connection.execute(f"CREATE TABLE {table} (key bigint PRIMARY KEY, value text)")
    sink = PostgresSink("table", dsn=dsn, table=table, **settings)
    sink.validate(pa.schema([("key", pa.int64()), ("value", pa.string())]))
    written: list[float] = []
    committed: list[float] = []
    whole: list[float] = []
    for epoch in range(epochs):
        began = time.perf_counter()
        committables = []
        for subtask in range(subtasks):
            start = time.perf_counter()
            first = (epoch * subtasks + subtask) * ROWS
            rows = pa.record_batch({"key": range(first, first + ROWS), "value": ["x" * 100] * ROWS})
            context = WriteContext(
                pipeline=table, sink="table", log="0123abcd", generation=1, attempt=0, epoch=epoch, subtask=subtask
            )
            transaction = sink.begin(context)
            sink.write(transaction, rows)
            committables.append(sink.pre_commit(transaction))
            written.append((time.perf_counter() - start) * 1000)
        start = time.perf_counter()
        outcomes = sink.commit_many(committables)
        committed.append((time.perf_counter() - start) * 1000)
        whole.append((time.perf_counter() - began) * 1000)
        if any(outcome.status is not CommitStatus.COMMITTED for outcome in outcomes):
            raise RuntimeError(f"epoch {epoch} was not committed: {outcomes}")
    kept = (written[WARM_UP * subtasks :], committed[WARM_UP:], whole[WARM_UP:])
    subtask, commit, epoch_ = (statistics.median(times) for times in kept)
    return subtask, commit, epoch_


def main() -> None:
    """Measure inserts and upserts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--subtasks", type=int, default=1)
    parser.add_argument("--dsn", help="a server to use instead of one of its own")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onceward-staging-") as folder:
        server = None if arguments.dsn else PostgresServer(Path(folder))
        try:
            if server is not None:
                server.start()
                server.wait_ready()
            dsn = arguments.dsn or server.dsn
            for title, settings in (("insert", {"commit": "staging"}), ("upsert", {"key": ["key"]})):
                subtask, commit, epoch = measure(dsn, settings, arguments.epochs, arguments.subtasks)
                print(f"{title} subtask {subtask:.2f} ms, commit {commit:.2f} ms, epoch {epoch:.2f} ms", flush=True)
        finally:
            if server is not None:
                server.stop()


if __name__ == "__main__":
    main()
