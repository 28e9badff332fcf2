"""What Spark says of the running micro-batch: query, run, checkpoint, and the batch's input.

The input of batch N is what the checkpoint's file offsets/N says: Spark writes it before it runs the batch and reads it
again when it replays the batch, so its digest recognises a replay.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceward.core.errors import ConfigurationError
from onceward.core.log import EpochInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

_QUERY, _RUN = "sql.streaming.queryId", "spark.jobGroup.id"


@dataclass(frozen=True)
class QueryRun:
    """One run of one streaming query.

    Attributes:
        query: Spark's query id: stays with the checkpoint.
        run: Spark's run id: new at each start.
        checkpoint: Root of the checkpoint, as a URL.
        complete: Whether its output mode is complete: each epoch brings the whole result again.
    """

    query: str
    run: str
    checkpoint: str
    complete: bool = False


def current_run(spark: SparkSession) -> QueryRun:
    """The run whose foreachBatch function is being called in this thread.

    Args:
        spark: The session that started the query; the batch's own one is a clone that does not know the query.

    Raises:
        ConfigurationError: It is not called by a streaming query.
    """
    context = spark.sparkContext
    query, run = context.getLocalProperty(_QUERY), context.getLocalProperty(_RUN)
    if not query or not run:
        raise ConfigurationError("exactly_once works inside a streaming query; use df.write.format(…) for a batch")
    stream: Any = spark.streams.get(query)
    running = stream._jsq.streamingQuery()  # noqa: SLF001 - no public way to ask
    complete = running.outputMode().toString().lower() == "complete"
    return QueryRun(query, run, running.resolvedCheckpointRoot(), complete)


def hadoop_reader(spark: SparkSession) -> Callable[[str], str | None]:
    """A function that reads a small text file of any file system that Spark knows; None if it is not there.

    For files that never change: it remembers the last one. Each call into the JVM costs about a millisecond, and a
    batch's offsets are read again as the start of the next.
    """
    last: dict[str, str] = {}

    def read_text(url: str) -> str | None:
        if url in last:
            return last[url]
        text = read(url)
        if text is not None:
            last.clear()
            last[url] = text
        return text

    def read(url: str) -> str | None:
        jvm: Any = spark._jvm  # noqa: SLF001 - the only way to Spark's file systems
        path = jvm.org.apache.hadoop.fs.Path(url)
        files = path.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
        finally:
            stream.close()

    return read_text


def any_stage_failed(spark: SparkSession, stages: Iterable[int]) -> bool:
    """Whether a task of these stages failed, or a stage ran twice, so that an attempt may have left something behind.

    Args:
        spark: The session.
        stages: Ids of finished stages; one that Spark has forgotten counts as failed.
    """
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in stages]
    return any(info is None or info.currentAttemptId > 0 or info.numFailedTasks > 0 for info in infos)


def epoch_input(read_text: Callable[[str], str | None], checkpoint: str, query: str, batch: int) -> EpochInput:
    """What a micro-batch is computed from.

    Raises:
        ConfigurationError: The checkpoint has no offsets file for the batch.
    """
    before = read_text(f"{checkpoint}/offsets/{batch - 1}") if batch > 0 else None
    offsets = read_text(f"{checkpoint}/offsets/{batch}")
    if offsets is None:
        raise ConfigurationError(f"the checkpoint {checkpoint} has no offsets/{batch}: is it this query's checkpoint?")
    return EpochInput(
        query=query,
        digest=hashlib.sha256(offsets.encode()).hexdigest(),
        start=_sources(before) if before is not None else None,
        end=_sources(offsets),
    )


def _sources(offsets: str) -> list[str]:
    """Offsets of each source: what follows the version and the metadata line."""
    return [line for line in offsets.splitlines()[2:] if line]
