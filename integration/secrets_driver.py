"""Queries and a pipeline that are given secrets, and everything that they show: plans, progress, errors, metrics.

secrets_driver.py exactly_once|format|engine FOLDER, with the settings of the targets as JSON on standard input
"""

from __future__ import annotations

import json
import logging
import re
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import prometheus_client
import psutil
import pyarrow as pa
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport
from pyspark.sql import SparkSession

from onceward import (
    FileBackend,
    HttpSink,
    KafkaSink,
    KafkaSource,
    Pipeline,
    PostgresSink,
    RedisSink,
    RestartStrategy,
    SequenceSource,
    exactly_once,
    explain,
    lineage,
    metrics,
    register,
)
from onceward.core.errors import OncewardError
from onceward.core.log import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

    from onceward.sinks import Sink

WORDS = pa.schema([("id", pa.int64()), ("word", pa.string()), ("value", pa.string())])
KINDS: dict[str, Callable[..., Any]] = {
    "postgres": PostgresSink,
    "kafka": KafkaSink,
    "http": HttpSink,
    "redis": RedisSink,
}


def kind_of(name: str) -> str:
    return re.split("[- ]", name)[0]


def make_sinks(given: dict[str, Any]) -> list[Sink]:
    return [KINDS[kind_of(name)](name, **settings) for name, settings in given.items()]


def show(*things: Any) -> None:
    sys.stdout.write(f"{' '.join(map(str, things))}\n")


def show_refusals(given: dict[str, Any]) -> None:
    """What sinks with another password, or at a wrong address, say; with whatever the error carries along.

    Most of them wait for an answer that does not come, so all wait at the same time.
    """

    def refused(name: str) -> None:
        with shown_refusal(name):
            KINDS[kind_of(name)]("refused", **given[name]).validate(WORDS)

    with ThreadPoolExecutor(len(given)) as pool:
        list(pool.map(refused, given))


def show_refused_stores(given: dict[str, Any]) -> None:
    """The same of stores of the decision log, with fsspec's settings for S3."""
    for name, (url, options) in given.items():
        fsspec.config.conf["s3"] = {**fsspec.config.conf.get("s3", {}), **options}
        with shown_refusal(name):
            open_store(url, pipeline="refused")


@contextmanager
def shown_refusal(name: str) -> Iterator[None]:
    try:
        yield
        show(name, "was not refused")
    except OncewardError as error:
        show(name, "was refused:", repr(error), error.__dict__, "\n", traceback.format_exc())


def make_session(folder: Path) -> SparkSession:
    (folder / "events").mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/events",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }
    builder = SparkSession.builder.master("local[2]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def words_of(spark: SparkSession) -> DataFrame:
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    return stream.selectExpr("value AS id", "CAST(value AS STRING) AS word", "CAST(value AS STRING) AS value")


def watch(query: Any, batches: int = 1) -> None:
    while query.lastProgress is None or query.lastProgress["batchId"] < batches:
        query.awaitTermination(0.2)
    query.explain(extended=True)
    show(query.lastProgress, query.status)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            show("process", process.cmdline())
    query.stop()


def run_spark(how: str, folder: Path, given: dict[str, Any]) -> None:
    spark = make_session(folder)
    register(spark)
    if how == "exactly_once":
        writer = exactly_once(
            words_of(spark),
            *make_sinks(given["sinks"]),
            checkpoint=str(folder / "checkpoint"),
            pipeline="secrets-query",
        )
        show(explain(writer, look=True))
        watch(writer.start())
    else:
        for kind, options in given["formats"].items():
            where = {"pipeline": f"secrets-{kind}", "checkpointLocation": str(folder / kind)}
            writer = words_of(spark).writeStream.format(f"onceward-{kind_of(kind)}").options(**options, **where)
            watch(writer.start(), 0)
        if "kafka" in given["formats"]:
            frame = spark.readStream.format("onceward-kafka").options(**given["source"]).load()
            watch(frame.writeStream.format("noop").option("checkpointLocation", str(folder / "read")).start(), 0)
    spark.stop()


def make_pipeline(name: str, store: str, backend: str, sinks: dict[str, Any]) -> Pipeline:
    pipeline = Pipeline(name, store=store, backend=FileBackend(backend), restart=RestartStrategy.none())
    stream = pipeline.source(SequenceSource([{"id": n, "word": str(n), "value": str(n)} for n in range(5)]))
    for sink in make_sinks(sinks):
        stream.sink(sink)
    return pipeline


def run_engine(folder: Path, given: dict[str, Any]) -> None:
    in_folders = make_pipeline("secrets-engine", str(folder / "log"), str(folder / "state"), given["sinks"])
    in_a_bucket = make_pipeline(
        "secrets-bucket", given["bucket"], f"{given['bucket']}/state", {"postgres-2": given["sinks"]["postgres"]}
    )
    for pipeline in (in_folders, in_a_bucket):
        show(explain(pipeline, look=True))
        pipeline.run()
    reader = Pipeline("reads", store=str(folder / "read"), backend=FileBackend(folder / "read-state"))
    tokens = {**given["engine_source"], "config": given["sinks"]["kafka-tokens"]["config"]}
    for settings in (given["engine_source"], tokens):
        source = KafkaSource(**settings)
        show(repr(source), repr(source.settings), repr(reader))


def without_calls(record: logging.LogRecord) -> bool:
    """Drop what py4j logs of every call, with its arguments; docs/logging.md shows it."""
    return not record.name.startswith("py4j") or record.levelno > logging.DEBUG


def main() -> None:
    how, folder = sys.argv[1], Path(sys.argv[2])
    given = json.load(sys.stdin)
    logging.basicConfig(level=logging.DEBUG)
    for handler in logging.getLogger().handlers:
        handler.addFilter(without_calls)
    registry = prometheus_client.CollectorRegistry()
    metrics.prometheus(registry)
    events = FileTransport(FileConfig(log_file_path=str(folder / "lineage.json"), append=True))
    lineage.openlineage(OpenLineageClient(transport=events), "tests")
    if how == "engine":
        show_refusals({**given["refused"], **given["malformed"]})
        run_engine(folder, given)
        show_refused_stores(given["refused_stores"])
    else:
        run_spark(how, folder, given)
    show(prometheus_client.generate_latest(registry).decode())


if __name__ == "__main__":
    main()
