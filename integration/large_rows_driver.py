"""Write a batch of large rows into one sink, read it back, and print how much memory that took beyond the batch."""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

import numpy as np
import pyarrow as pa

from onceward import FileSink, KafkaSink, PostgresSink, SqlAlchemySink
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.row_hash import RowHash
from onceward.core.transaction import WriteContext


def batch_of(rows: int, size: int) -> pa.RecordBatch:
    """Rows of `size` bytes, without a copy of any."""
    data = np.full(rows * size, ord("x"), np.uint8)
    data[::size] = np.arange(rows)
    ends = pa.py_buffer(np.arange(0, (rows + 1) * size, size, dtype=np.int64))
    value = pa.Array.from_buffers(pa.large_binary(), rows, [None, ends, pa.py_buffer(data)])
    return pa.record_batch({"id": pa.array(range(rows)), "value": value})


def sink_of(kind: str, address: str, name: str) -> Any:
    match kind:
        case "kafka":
            config = {"message.max.bytes": 100_000_000, "compression.type": "lz4"}
            return KafkaSink("s", bootstrap_servers=address, topic=name, config=config)
        case "prepared" | "staging":
            return PostgresSink("s", dsn=address, table=name, commit=kind)
        case "sqlite":
            return SqlAlchemySink("s", url=f"sqlite:///{address}", table=name, create_table=True)
        case _:
            return FileSink("s", address, format=kind)


def pieces_of(kind: str, address: str, name: str, sink: Any) -> Any:
    match kind:
        case "kafka":
            from onceward.connectors.kafka.reread import reread

            return reread(address, {}, name).pieces
        case "prepared" | "staging":
            from onceward.connectors.database.postgres.reread import reread as reread_postgres

            return reread_postgres(sink.target, None).pieces
        case _:
            from onceward.connectors.database.reread import reread as reread_sql

            return reread_sql(sink.target).pieces


def peak() -> int:
    """Megabytes that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main(kind: str, address: str, name: str, rows: int, size: int) -> None:
    batch = batch_of(rows, size)
    sink = sink_of(kind, address, name)
    sink.validate(batch.schema)
    before = peak()
    attempt = SubtaskEpoch(
        sink, WriteContext(pipeline="large", sink="s", log="0" * 8, writer=0, epoch=0, subtask=0, attempt=0)
    )
    attempt.write(batch)
    committable = attempt.pre_commit()
    assert committable is not None
    written = peak() - before
    outcome = str(sink.commit(committable).status)
    del batch, attempt
    found = RowHash()
    if kind in {"kafka", "prepared", "staging", "sqlite"}:
        for piece in pieces_of(kind, address, name, sink):
            found.add(piece.rows)
    same = committable.proof is not None and found.proof().hash == committable.proof.hash
    print(
        json.dumps({"written": written, "read": peak() - before, "same": same, "outcome": outcome, "rows": found.rows})
    )


if __name__ == "__main__":
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))  # type: ignore[arg-type]
