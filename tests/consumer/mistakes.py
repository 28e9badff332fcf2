"""Mistakes that a type checker must find: each line with a comment "mistake" is one, and no other line is.

mypy and pyright check this file, in strict mode; nobody runs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from onceward import (
    CheckpointConfig,
    FileSink,
    FileSource,
    ForeachBatch,
    HttpSink,
    KafkaSink,
    KafkaSource,
    ListState,
    MapState,
    OperatorState,
    Pipeline,
    PostgresSink,
    ProcessFunction,
    RedisSink,
    ReducingState,
    SequenceSource,
    SqlAlchemySink,
    ValueState,
    exactly_once,
    explain,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from onceward import Job, Stream


class Counting(ProcessFunction):
    count = ValueState(0)
    name = ValueState[str](None)  # mistake
    items = ListState[int]()
    largest = ReducingState[int](max)
    by_country = MapState[str, int]()
    offsets = OperatorState[int]("broadcast")  # mistake

    def use(self) -> None:
        self.count.set("1")  # mistake
        self.count.get().upper()  # mistake
        self.items.append("1")  # mistake
        self.largest.add("1")  # mistake
        self.by_country.put(1, 1)  # mistake
        self.by_country.get("de") + 1  # mistake
        self.offsets.set(["1"])  # mistake


def sinks(dsn: str) -> None:
    FileSink("files", "/data", format="xml")  # mistake
    FileSink("files", "/data", partition_by="country")  # mistake
    FileSink("files", "/data", select="a AS b")  # mistake
    FileSink("files", directory="/data")  # mistake
    FileSource("/data", format="parqet")  # mistake
    PostgresSink("table", dsn=dsn, table="t", mode="prepared")  # mistake
    PostgresSink("table", dsn=dsn, table="t", commit="stage")  # mistake
    SqlAlchemySink("table", url=dsn, table="t", mode="replace")  # mistake
    HttpSink("http", "/wal", url="https://example.org", body="xml")  # mistake
    HttpSink("http", "/wal", url="https://example.org", probe="POST")  # mistake
    RedisSink("redis", "/wal", url="redis://h", key="k", form="set")  # mistake
    KafkaSink("topic", bootstrap_servers="b:1", topic="t", create_topics=True)  # mistake
    KafkaSource(bootstrap_servers="b:1", topics="orders")  # mistake
    KafkaSource(bootstrap_servers="b:1", topics=["orders"], isolation="committed")  # mistake


def on_spark(df: DataFrame, sink: FileSink) -> None:
    exactly_once(df, sink, checkpoint="/c")  # mistake
    exactly_once(df, sink, pipeline=None)  # mistake
    exactly_once(df, sink, pipeline="p", on_lost="ignore")  # mistake
    exactly_once(df, sink, pipeline="p", writers="many")  # mistake
    exactly_once(df, sink, pipeline="p", persist="MEMORY_ONLY")  # mistake
    exactly_once(df, sink, pipeline="p", why="a mistake")  # mistake
    exactly_once(df, "files", pipeline="p")  # mistake
    exactly_once(df, sink, pipeline="p", on_complete=len)  # mistake
    exactly_once(df, sink, pipeline="p", commit_timeout="5 s")  # mistake
    exactly_once(df, sink, pipeline="p", dead_letter="files")  # mistake
    exactly_once(df, sink, pipeline="p", run_key="monday")  # mistake
    ForeachBatch(sink)  # mistake
    ForeachBatch(sink, pipeline="p", adopt="yes")  # mistake
    ForeachBatch(sink, pipeline="p", take_over=5.0)  # mistake
    explain(df)  # mistake


def embedded(sink: FileSink, job: Job) -> None:
    CheckpointConfig(mode="exactly_once")  # mistake
    CheckpointConfig(on_cancel="retain")  # mistake
    Pipeline("p", checkpoint=CheckpointConfig())  # mistake
    Pipeline("p", on_lost="replay it")  # mistake
    pipeline = Pipeline("p", store=Path("/log"))
    pipeline.source(sink)  # mistake
    stream: Stream = pipeline.source(SequenceSource([{"n": 1}]))
    stream.sink(SequenceSource([]))  # mistake
    stream.key_by("n").aggregate({"total": ("n", "summe")})  # mistake
    stream.process(Counting)  # mistake
    stream.map(lambda record: [record])  # mistake
    Pipeline("p", store=5)  # mistake
    Pipeline("p", writers=2)  # mistake
    pipeline.start(take_over="5 s")  # mistake
    pipeline.run(why="a mistake")  # mistake
    pipeline.run(restor="/save")  # mistake
    job.savepoint(path="/save")  # mistake
