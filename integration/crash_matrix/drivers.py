"""The driver processes: each styles' own way to run the pipeline until its input is read."""

from __future__ import annotations

import os
import sys
import time
import traceback
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from onceward import CheckpointConfig, FileSource, Pipeline, RestartStrategy, exactly_once, open_store
from onceward.core.kit.crash_points import hooked

from .spark_host import Gateway, attach
from .targets import JSON, Kind, Place, message

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

    from .trap import Trap

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
FILES_PER_BATCH = 2
_ROW_SECONDS = 0.005


class Style(StrEnum):
    """What drives the sinks."""

    ENGINE = "engine"
    EXACTLY_ONCE = "exactly_once"
    FORMAT = "format"


class Job(NamedTuple):
    """One pipeline."""

    style: Style
    kinds: tuple[Kind, ...]
    place: Place

    @property
    def feed(self) -> Path:
        """Folder of the input, JSON lines."""
        return self.place.folder / "feed"

    @property
    def checkpoint(self) -> str:
        return str(self.place.folder / "checkpoint")


def drive(job: Job, trap: Trap, gateway: Gateway | None, log: Path) -> None:
    """A driver's whole life; ends the process."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 0
    try:
        with hooked(trap):
            if job.style is Style.ENGINE:
                _run_engine(job)
            else:
                assert gateway is not None
                _run_spark(job, gateway)
    except BaseException:  # noqa: BLE001 - the supervisor sees the exit code
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # no orderly end: Spark's JVM lives on


def _run_engine(job: Job) -> None:
    place = job.place
    pipeline = Pipeline(
        place.name,
        store=open_store(str(place.folder / "log"), pipeline=place.name),
        checkpointing=CheckpointConfig(interval=0.02),
        restart=RestartStrategy.fixed_delay(attempts=20, delay=0.1),
    )
    source = FileSource(job.feed, format="jsonl", schema=SCHEMA, bounded=True)
    rows = pipeline.source(source, uid="feed", parallelism=2).map(_paced, uid="paced", parallelism=2)
    for kind in job.kinds:
        stream = rows.map(message, uid="messages", parallelism=2) if kind is Kind.KAFKA else rows
        stream.sink(place.sink(kind), parallelism=2)
    pipeline.run()


def _paced(row: dict[str, Any]) -> dict[str, Any]:
    """Slow enough that a run has several checkpoints."""
    time.sleep(_ROW_SECONDS)
    return row


def _run_spark(job: Job, gateway: Gateway) -> None:
    spark = attach(gateway)
    stream = spark.readStream.schema("id long, word string").option("maxFilesPerTrigger", FILES_PER_BATCH)
    frame = stream.json(str(job.feed))
    writer = (_with_exactly_once if job.style is Style.EXACTLY_ONCE else _with_format)(job, frame)
    writer.trigger(availableNow=True).start().awaitTermination()


def _with_exactly_once(job: Job, frame: DataFrame) -> Any:
    sinks = [job.place.sink(kind, select=JSON if kind is Kind.KAFKA else None) for kind in job.kinds]
    return exactly_once(frame, *sinks, checkpoint=job.checkpoint, pipeline=job.place.name)


def _with_format(job: Job, frame: DataFrame) -> Any:
    (kind,) = job.kinds
    form, options = job.place.options(kind)
    frame = frame.selectExpr(*JSON) if kind is Kind.KAFKA else frame
    writer = frame.writeStream.format(f"onceward-{form}").options(**options)
    return writer.option("checkpointLocation", job.checkpoint).option("pipeline", job.place.name)
