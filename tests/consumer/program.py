"""A program that uses onceward as its users do; mypy and pyright find nothing in it, both in strict mode."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from onceward import (
    AbortOutcome,
    AbortStatus,
    CheckpointConfig,
    CheckpointRecord,
    CommitOutcome,
    CommitStatus,
    Committable,
    EpochInput,
    EpochWriter,
    FileBackend,
    FileSink,
    ForeachBatch,
    FunctionContext,
    Guarantee,
    HttpSink,
    Job,
    JobState,
    KafkaSink,
    KafkaSource,
    ListState,
    LogStore,
    MapState,
    OnLost,
    OperatorState,
    Output,
    Pipeline,
    PostgresSink,
    ProcessFunction,
    ReducingState,
    RestartStrategy,
    SequenceSource,
    SqlAlchemySink,
    StateBackend,
    Stream,
    TransactionName,
    TwoPhaseCommitSink,
    ValueState,
    WriteContext,
    exactly_once,
    explain,
    open_store,
)
from onceward.errors import CommitPendingError, ConfigurationError, OncewardError
from onceward.operations import open_log, overview
from onceward.sinks import FolderClaims, RowHash, Scope, file_name, make_folder, parse_file_name, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Unpack

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from onceward.types import AnyOnLost, AnySink, CommitMode, ExactlyOnceSettings, FileFormat, Record

_log = logging.getLogger(__name__)


class Totals(ProcessFunction):
    """A function with each kind of state."""

    total = ValueState(0)
    newest = ValueState[str | None](None, ttl=60.0)
    seen = ListState[int]()
    largest = ReducingState[int](max)
    by_country = MapState[str, int]()
    late = OperatorState[str]("union")

    def process(self, record: Record, context: FunctionContext) -> Iterable[Record]:
        cents = int(record["cents"])
        self.total.set(self.total.get() + cents)
        self.newest.set(str(record["country"]))
        self.seen.append(cents)
        self.largest.add(cents)
        self.by_country.put("de", self.by_country.get("de", 0) + 1)
        context.timer_at(context.now() + 60.0)
        largest, name = self.largest.get(), self.newest.get()
        if largest is None or name is None:
            return
        yield {"user": context.key, "total": self.total.get(), "largest": largest + 1, "country": name.upper()}

    def on_timer(self, at: float, context: FunctionContext) -> Iterator[Record]:
        context.drop_timer(at)
        for country, count in self.by_country.items():
            yield {"at": at, "country": country.upper(), "count": count + 1, "seen": sum(self.seen.get())}


class LinesSink(TwoPhaseCommitSink[TextIO]):
    """The shape of a custom sink."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.folder = folder
        self.hash = RowHash()

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    def begin(self, context: WriteContext) -> TextIO:
        make_folder(self.folder)
        name: TransactionName = context.transaction_name()
        return (self.folder / file_name(str(name))).open("x")

    def write(self, transaction: TextIO, batch: pa.RecordBatch) -> None:
        transaction.writelines(f"{json.dumps(row)}\n" for row in batch.to_pylist())

    def pre_commit(self, transaction: TextIO) -> Committable:
        transaction.close()
        sync_folder(self.folder)
        name = parse_file_name(Path(transaction.name).name)
        if name is None:
            raise ConfigurationError("this is no transaction's file", sink=self.name)
        return Committable.named("lines", name)

    def commit(self, committable: Committable) -> CommitOutcome:
        _log.info("commit %s of epoch %s", committable.transaction, committable.epoch)
        return CommitOutcome(CommitStatus.COMMITTED)

    def abort(self, committable: Committable) -> AbortOutcome:
        return AbortOutcome(AbortStatus.ABORTED, f"{committable.transaction} is gone")

    def lingering(self, scope: Scope) -> Iterator[Committable]:
        names = [parse_file_name(path.name) for path in self.folder.iterdir()]
        yield from (Committable.named("lines", name) for name in names if name is not None and name.scope == scope)

    def ledger(self) -> FolderClaims:
        return FolderClaims(self.folder)


def sinks(servers: str, dsn: str, commit: CommitMode, file_format: FileFormat = "parquet") -> list[AnySink]:
    """Sinks with the settings that take one of a few words."""
    return [
        KafkaSink("topic", bootstrap_servers=servers, topic="paid", select=["user AS key", "total AS value"]),
        PostgresSink("table", dsn=dsn, table="paid", mode="insert", commit=commit),
        SqlAlchemySink("lite", url="sqlite:///paid.db", table="paid", mode="upsert", key="user"),
        FileSink("files", "/data/paid", format=file_format, partition_by=["country"]),
        HttpSink("http", "/data/wal", url="https://example.org", body="jsonl", key_format="uuid"),
        LinesSink("lines", Path("/data/lines")),
    ]


def completed(epoch: int, about: EpochInput) -> None:
    """What exactly_once calls after each epoch."""
    _log.info("epoch %s of query %s ends at %s", epoch, about.query, about.end)


def on_spark(spark: SparkSession, orders: DataFrame, dsn: str, on_lost: AnyOnLost = OnLost.REPLAY) -> None:
    """A streaming query, explained and started; and a foreachBatch function of one's own."""
    table = PostgresSink("table", dsn=dsn, table="paid")
    writer: DataStreamWriter = exactly_once(
        orders,
        table,
        Output(FileSink("files", "/data/paid", format="jsonl"), lambda batch: batch.limit(3)),
        checkpoint=Path("/data/checkpoints/paid"),
        pipeline="paid",
        on_lost=on_lost,
        on_complete=completed,
    )
    findings = [finding.found for finding in explain(writer).findings]
    _log.info("%s in %s", findings, spark.version)
    writer.trigger(availableNow=True).start().awaitTermination()
    handler = ForeachBatch(table, pipeline="mine", writers=2, on_lost="fail")

    def write(batch: DataFrame, number: int) -> None:
        epoch: EpochWriter
        with handler.epoch(batch, number) as epoch:
            epoch.write(batch, table)

    orders.writeStream.foreachBatch(write).start()
    sinks = [table, KafkaSink("topic", bootstrap_servers="broker:9092", topic="paid"), FileSink("more", "/data/more")]
    exactly_once(orders, *sinks, checkpoint="/data/checkpoints/listed", pipeline="listed").start()


def with_name(df: DataFrame, sink: AnySink, **settings: Unpack[ExactlyOnceSettings]) -> DataStreamWriter:
    """A function that passes on settings, with their types."""
    _log.info("pipeline %s", settings["pipeline"].upper())
    return exactly_once(df, sink, **settings).queryName(settings["pipeline"])


def embedded(backend: StateBackend, store: LogStore, servers: str) -> list[CheckpointRecord]:
    """A pipeline of the embedded engine."""
    pipeline = Pipeline(
        "totals",
        checkpointing=CheckpointConfig(interval=1.0, mode="exactly-once", on_failure="keep"),
        store=store,
        backend=backend,
        restart=RestartStrategy.fixed_delay(attempts=3),
        on_lost="skip",
    )
    orders: Stream = pipeline.source(
        KafkaSource(bootstrap_servers=servers, topics=["orders"], isolation="read_committed")
    )
    totals = orders.union(pipeline.source(SequenceSource([{"user": "u", "cents": 1}]))).key_by("user")
    totals.process(Totals(), parallelism=2).sink(LinesSink("lines", Path("/data/lines")))
    totals.aggregate({"total": ("cents", "sum"), "rows": ("*", "count")}).sink(FileSink("sums", "/data/sums"))
    job: Job = pipeline.start(rewind="release 2 was wrong")
    try:
        job.savepoint("/data/savepoint", timeout=60.0)
        pipeline.wait(10.0)
    except CommitPendingError as error:
        _log.warning("epoch %s of %s waits: %s", error.epoch, error.pipeline, error.retryable)
    except OncewardError as error:
        _log.warning("%s", error.message)
    return pipeline.checkpoints if job.state is JobState.RUNNING else job.checkpoints


def main() -> None:
    embedded(FileBackend("/data/state"), open_store("file:///data/log"), "localhost:9092")
    log = open_log("/data/log", "totals")
    for epoch in overview(log).epochs:
        _log.info("%s: %s", epoch.epoch, epoch.status)
    names = [sink.name for sink in sinks("localhost:9092", "postgresql:///shop", "prepared")]
    _log.info("%s", names)


if __name__ == "__main__":
    main()
