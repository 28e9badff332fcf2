"""Write a batch of large rows into one sink, read it back, and print how much memory that took beyond the batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from onceward import FileSink, FileSource, HttpSink, KafkaSink, PostgresSink, RedisSink, SqlAlchemySink
from onceward.core import FileBackend, Pipeline, ProcessFunction, ValueState
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.names import Scope
from onceward.core.contract.row_hash import RowHash
from onceward.core.contract.transaction import WriteContext
from onceward.core.log import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator


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
        case "http":
            return HttpSink("s", name, url=address, server_honors_keys=True)
        case "redis":
            return RedisSink("s", name, url=address, key="large")
        case _:
            return FileSink("s", address, format=kind)


def pieces_of(kind: str, address: str, name: str, sink: Any) -> Any:
    match kind:
        case "kafka":
            from onceward.connectors.kafka.reread import reread_topic

            return reread_topic(address, {}, name).pieces
        case "prepared" | "staging":
            from onceward.connectors.database.postgres.reread import reread_postgres_table as reread_postgres

            return reread_postgres(sink.target, None).pieces
        case _:
            from onceward.connectors.database.reread import reread_table as reread_sql

            return reread_sql(sink.target).pieces


def peak() -> int:
    """Megabytes that this program has had at most; `getrusage` would count those of the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) // 1024


def through_the_engine(dsn: str, folder: str, rows: int, size: int) -> None:
    """Write a file of as many rows, and have a pipeline of the embedded engine write them into the table."""
    source = Path(folder) / "in"
    source.mkdir()
    with pa.OSFile(str(source / "rows.arrow"), "wb") as file:
        one = batch_of(1, size)
        with pa.ipc.new_file(file, one.schema) as stream:
            for number in range(rows):
                stream.write_batch(one.set_column(0, "id", pa.array([number])))
    del one
    before = peak()
    pipeline = Pipeline("large", store=DirectoryStore(f"{folder}/log"), backend=FileBackend(f"{folder}/state"))
    stream = pipeline.source(FileSource(str(source), format="arrow", bounded=True), uid="in").key_by("id")
    stream.process(Seen(), uid="seen").sink(PostgresSink("s", dsn=dsn, table="large"))
    pipeline.run()
    print(json.dumps({"committed": peak() - before}))


class Seen(ProcessFunction):
    """Passes on each row that it has not seen."""

    before = ValueState(default=False)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        del context
        if not self.before.get():
            self.before.set(True)
            yield record


def main(kind: str, address: str, name: str, rows: int, size: int) -> None:
    batch = batch_of(rows, size)
    sink = sink_of(kind, address, name)
    sink.validate(batch.schema)
    before = peak()
    attempt = SubtaskEpoch(
        sink, WriteContext(pipeline="large", sink="s", log="0" * 8, generation=0, epoch=0, subtask=0, attempt=0)
    )
    attempt.write(batch)
    committable = attempt.pre_commit()
    assert committable is not None
    written = peak() - before
    sink.ledger().claim(Scope("large", "s", "0" * 8))
    outcome = str(sink.commit(committable).status)
    committed = peak() - before
    del batch, attempt
    found = RowHash()
    if kind in {"kafka", "prepared", "staging", "sqlite"}:
        for piece in pieces_of(kind, address, name, sink):
            found.add(piece.rows)
    same = committable.proof is not None and found.proof().hash == committable.proof.hash
    print(
        json.dumps(
            {
                "written": written,
                "committed": committed,
                "read": peak() - before,
                "same": same,
                "outcome": outcome,
                "rows": found.rows,
            }
        )
    )


if __name__ == "__main__":
    if sys.argv[1] == "engine":
        through_the_engine(*sys.argv[2:4], *map(int, sys.argv[4:]))  # type: ignore[arg-type]
    else:
        main(*sys.argv[1:4], *map(int, sys.argv[4:]))  # type: ignore[arg-type]
