"""An idempotent sink: each write puts the newest value of a key, so writing the same rows again changes nothing.

    python examples/engine_idempotent.py FOLDER

Running totals go straight into an SQLite table, without two-phase commit. The run fails once on purpose, after the
target is ahead of the newest checkpoint: the rows since then are read and written again, so for a while the table shows
older totals; at the end they are right. The history of one key shows it. Where readers must not see that, take
PostgresSink or SqlAlchemySink with a key instead: their upserts are transactional.
"""

import sqlite3
import sys
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pyarrow as pa

from onceward import CheckpointConfig, Pipeline, ProcessFunction, RestartStrategy, ValueState, open_store
from onceward.sinks import IdempotentSink
from onceward.sources import SequenceSource
from onceward.testing.faults import Faults, fail
from onceward.testing.wrappers import FaultySource


class Totals(IdempotentSink[sqlite3.Connection]):
    """The newest total of each user; a trigger keeps what it was before."""

    def __init__(self, name: str, path: str) -> None:
        super().__init__(name)
        self.path = path

    def open(self, context: Any) -> sqlite3.Connection:
        """Open a connection in the thread that writes, at the first batch of an epoch."""
        return sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)

    def write(self, writer: sqlite3.Connection, batch: pa.RecordBatch) -> None:
        """Put each row in its place; the same row twice is the same as once."""
        rows = [(row["user"], row["total"]) for row in batch.to_pylist()]
        upsert = "INSERT INTO totals VALUES (?, ?) ON CONFLICT (user) DO UPDATE SET total = excluded.total"
        writer.executemany(upsert, rows)
        writer.executemany("INSERT INTO history VALUES (?, ?)", rows)

    def close(self, writer: sqlite3.Connection) -> None:
        """Give the connection back."""
        writer.close()


class Sum(ProcessFunction):
    """A running total per user."""

    total = ValueState(default=0)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        """Add the amount to the user's total."""
        self.total.set(self.total.get() + record["cents"])
        yield {"user": context.key, "total": self.total.get()}


def main(folder: str) -> None:
    """Write totals of 300 payments, with one failure in the middle."""
    path = f"{folder}/totals.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE totals (user text PRIMARY KEY, total integer)")
        database.execute("CREATE TABLE history (user text, total integer)")
    payments = pa.table({"user": [f"u{n % 3}" for n in range(300)], "cents": list(range(300))})
    source = FaultySource(SequenceSource(payments, batch_rows=10), Faults(fail("piece", nth=25)))
    pipeline = Pipeline(
        "totals",
        store=open_store(f"{folder}/log"),
        checkpointing=CheckpointConfig(interval=3600),  # none in time: after the failure, all is written again
        restart=RestartStrategy.fixed_delay(attempts=1, delay=0),
    )
    pipeline.source(source, uid="payments").key_by("user").process(Sum(), uid="sum").sink(Totals("totals", path))
    pipeline.run()
    with sqlite3.connect(path) as database:
        print("totals:", dict(database.execute("SELECT user, total FROM totals ORDER BY user")))
        seen = [total for (total,) in database.execute("SELECT total FROM history WHERE user = 'u1'")]
    backwards = sum(later < earlier for earlier, later in pairwise(seen))
    print(f"u1 was written {len(seen)} times and went back {backwards} time")


if __name__ == "__main__":
    main(*sys.argv[1:])
