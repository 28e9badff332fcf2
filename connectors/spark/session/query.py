"""What Spark says of a query: its run and checkpoint, the input of the running micro-batch, and its progress.

The input of batch N is what the checkpoint's file offsets/N says: Spark writes it before it runs the batch and reads it
again when it replays the batch, so its digest recognises a replay.

Spark's progress says `numOutputRows: -1` for foreachBatch: it takes the number from a sink of its own data source
interface only, and overwrites what a function might have set. `DataFrame.observe` would count the rows that the plan
produced, before `where` of a sink, and again for each time that a stage runs again. The rows of the epoch's committed
transactions are what was written.

A source's `metrics` in the progress come from its MicroBatchStream, if that implements `ReportsSourceMetrics`. Spark's
Kafka source does (KafkaMicroBatchStream); PythonMicroBatchStreamBase, which stands for every Python source, does not
(pyspark 4.2). But a Python source can report its newest offset, and both offsets are in the progress.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pyspark.sql.streaming.listener import StreamingQueryListener

from onceward.core.contract.events import EpochCompleted, Event, QueryProgressed, observe, tell
from onceward.core.engine.state.storage import CheckpointStorage
from onceward.core.errors import ConfigurationError, StateError, named_text_of, text_of
from onceward.core.kit.text_options import check_type
from onceward.core.log import EpochInput
from onceward.core.run.pipeline_log import local_path

from ..read.kafka_offsets import NOTHING, with_lag
from .spark_session import QueryRun, QuerySession

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

T = TypeVar("T")
ASYNC: Final = "asynchronous progress tracking (option asyncProgressTrackingEnabled)"
REAL_TIME: Final = "real-time mode (trigger realTime)"
CONTINUOUS: Final = "continuous processing (trigger continuous)"
REFUSED: Final = {"AsyncProgressTrackingMicroBatchExecution": ASYNC, "RealTimeTrigger": REAL_TIME}
_TEMPORARY: Final = re.compile(r"/temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/?")
_KEPT: Final = 100
"""Epochs and reports that are remembered: Spark keeps as many reports."""
_QUERY, _RUN, _BATCH = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"


class Called(NamedTuple):
    """The micro-batch for which Spark calls the running function."""

    query: str
    run: str
    batch: int | None
    """Number of the micro-batch; None if this version of Spark does not say."""


def called_for(spark: SparkSession) -> Called:
    """Return the micro-batch for which Spark calls a foreachBatch function in this thread.

    Raises:
        ConfigurationError: It does not.
    """
    context = spark.sparkContext
    query, run, batch = (context.getLocalProperty(name) for name in (_QUERY, _RUN, _BATCH))
    if not query or not run:
        raise ConfigurationError(
            "this is not the thread in which Spark calls the function of foreachBatch: epochs are the micro-batches of "
            "a streaming query. Use df.write.format(…) for a batch, and call onceward in the function's own thread"
        )
    return Called(query, run, int(batch) if batch else None)


def query_session(session: SparkSession, query: str) -> tuple[SparkSession, Any]:
    """Return the session that started a running query, and the analyzed plan of what it computes.

    Args:
        session: The clone that its micro-batches come with. It does not know the query, but shares Spark's list of
            those that run.
        query: Id of the query.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - needs a Spark installation

    one: Any = session
    identifier = one._jvm.java.util.UUID.fromString(query)  # noqa: SLF001 - no public way to ask
    running = one._jsparkSession.sharedState().activeStreamingQueries().get(identifier)  # noqa: SLF001
    return SparkSession(session.sparkContext, running.sparkSession()), running.analyzedPlan()


def current_run(spark: SparkSession, last: QueryRun | None = None) -> QueryRun:
    """Return the run whose foreachBatch function is being called in this thread.

    Args:
        spark: The session that started the query; the batch's own one is a clone that does not know the query.
        last: Run that this function returned before; the same run is not looked up again.

    Raises:
        ConfigurationError: It is not called by a streaming query, or by one in a mode that is refused.
    """
    query, run, _ = called_for(spark)
    if last is not None and (query, run) == (last.query, last.run):
        return last
    stream: Any = spark.streams.get(query)
    running = stream._jsq.streamingQuery()  # noqa: SLF001 - no public way to ask
    for part in (running, running.trigger()):
        if (mode := REFUSED.get(part.getClass().getSimpleName())) is not None:
            raise refusal_of(mode)
    checkpoint = running.resolvedCheckpointRoot()
    if _TEMPORARY.search(checkpoint) is not None:
        raise ConfigurationError(
            "the query has no checkpoint: Spark has made a temporary one, and a restart would write everything again. "
            "Nothing was written. Give exactly_once(…, checkpoint=…), or set spark.sql.streaming.checkpointLocation"
        )
    complete = running.outputMode().toString().lower() == "complete"
    return QueryRun(query, run, checkpoint, complete)


def refusal_of(mode: str) -> ConfigurationError:
    """Return the error for a mode in which a batch may begin before Spark has logged the one before it."""
    return ConfigurationError(
        f"{mode} cannot be exactly once with onceward: an epoch is a micro-batch that ends before the next one begins, "
        "and whose offsets are logged before it runs. Nothing was written. Use trigger(processingTime=…) or "
        "trigger(availableNow=True)"
    )


def reason(error: BaseException) -> str:
    """Return the error in one line; for an error in a Python worker, the last one of its traceback."""
    text, mark = text_of(error), "Traceback (most recent call last):\n"
    if mark not in text:
        return named_text_of(error).splitlines()[0]
    lines = [line for line in text.rpartition(mark)[2].splitlines() if line and not line[0].isspace()]
    return re.sub(r"^[\w.]+\.(?=\w+(:|$))", "", (lines or [type(error).__name__])[0])


def any_stage_failed(spark: SparkSession, stages: Iterable[int]) -> bool:
    """Return whether a task of these stages failed, or a stage ran twice: an attempt may have left something behind.

    Args:
        spark: Session that ran the stages.
        stages: Ids of finished stages; one that Spark has forgotten counts as failed.
    """
    tracker = spark.sparkContext.statusTracker()
    infos = [tracker.getStageInfo(stage) for stage in stages]
    return any(info is None or info.currentAttemptId > 0 or info.numFailedTasks > 0 for info in infos)


def epoch_input(read_text: Callable[[str], str | None], checkpoint: str, query: str, batch: int) -> EpochInput:
    """Return the input of a micro-batch: its offsets, and where it began.

    Raises:
        ConfigurationError: The checkpoint has no offsets file for the batch.
    """
    # Before the newer file: the reader remembers one file only, and this is still the one of the batch before.
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


def query_of(read_text: Callable[[str], str | None], checkpoint: str) -> str:
    """Return the id of the query whose checkpoint this is; "a new query" if it is none yet."""
    text = read_text(f"{checkpoint}/metadata")
    return str(json.loads(text)["id"]) if text else "a new query"


def check_offset_log(session: QuerySession) -> None:
    """Refuse, before a query starts, offsets files that could not be read in its epochs.

    Raises:
        ConfigurationError: Spark's settings ask for such files.
    """
    version = session.setting(_VERSION, "1")
    if f"v{version}" not in _VERSIONS:
        raise ConfigurationError(
            f"{_VERSION} is {version}, and this version of onceward reads the offsets files of versions 1 and 2: set "
            "one of them, or upgrade onceward"
        )
    if session.setting(_EVOLUTION, "false").lower() == "true":
        raise ConfigurationError(
            f"{_EVOLUTION} is true, and offsets files then call sources by names, which onceward does not read: set it "
            "to false"
        )


_VERSION: Final = "spark.sql.streaming.offsetLog.formatVersion"
_EVOLUTION: Final = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
_VERSIONS: Final = ("v1", "v2")


def _sources(offsets: str) -> list[str]:
    """Return the offsets of each source, which follow the version and the metadata line.

    In version 1 there is a line for each source, in the order of the plan. In version 2 (from Spark 4.3 on, if asked
    for) a line begins with the source's number, and lines are in any order.

    Raises:
        ConfigurationError: It is another version, or sources have names.
    """
    version, *others = offsets.splitlines()
    lines = [line for line in others[1:] if line]
    if version == "v1":
        return lines
    pairs = [line.partition(":") for line in lines]
    if version != "v2" or not all(number.isdecimal() for number, _, _ in pairs):
        raise ConfigurationError(
            f"the checkpoint's offsets files have version {version}"
            f"{' and name sources' if version in _VERSIONS else ''}, and this version of onceward reads versions 1 and "
            "2 with numbered sources. Upgrade onceward, or start the query with a new checkpoint and "
            f"{_VERSION}=1"
        )
    by_number = {int(number): text for number, _, text in pairs}
    return [by_number.get(number, NOTHING) for number in range(max(by_number, default=-1) + 1)]


def checkpoint_reader(spark: SparkSession) -> Callable[[str], str | None]:
    """Return a function that reads a small text file of any file system that Spark knows; None if it is not there."""
    return remembering_last(lambda url: read_by_hadoop(spark, url) if local_path(url) is None else read_text(url))


def remembering_last(read: Callable[[str], str | None]) -> Callable[[str], str | None]:
    """Return a function that reads files that never change, and remembers the last one.

    A batch's offsets are read again as the start of the next.
    """
    last: dict[str, str] = {}

    def remembered(url: str) -> str | None:
        if url not in last:
            text = read(url)
            if text is None:
                return None
            last.clear()
            last[url] = text
        return last[url]

    return remembered


def read_by_hadoop(spark: SparkSession, url: str) -> str | None:
    """Read a small text file of any file system that Spark knows; None if it is not there.

    Each call into the JVM costs about a millisecond, so local files are read without.
    """
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


def checked_folder(spark: SparkSession, url: str | Path) -> str:
    """Return the checkpoint's URL as Spark resolves it; refuse one that cannot be a folder, as Spark's answer is long.

    Raises:
        ConfigurationError: It is a file, or lies in one, or in a folder that cannot be written to.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

    check_type("checkpoint", url, str)
    url = os.fspath(url)
    if not url.strip():
        raise ConfigurationError("checkpoint is empty: give a folder")
    jvm: Any = spark._jvm  # noqa: SLF001 - the only way to Spark's file systems
    hadoop = jvm.org.apache.hadoop.fs
    path = hadoop.Path(url)
    try:
        files = path.getFileSystem(spark._jsc.hadoopConfiguration())  # noqa: SLF001
        resolved = str(files.makeQualified(path).toString())
        while path.getParent() is not None and not files.exists(path):
            path = path.getParent()
        if not files.getFileStatus(path).isDirectory():
            raise ConfigurationError(f"checkpoint {url}: {path.toString()} is a file; give a folder")
        files.access(path, hadoop.permission.FsAction.WRITE)
    except Py4JJavaError as error:
        reason = error.java_exception.getMessage()
        raise ConfigurationError(f"checkpoint {url} cannot be written: {reason}; give another folder") from None
    return resolved


def read_text(url: str) -> str | None:
    """Read a small text file where there is no JVM: local, or through fsspec; None if it is not there.

    Raises:
        ConfigurationError: Nothing here can read that file system.
    """
    folder, _, name = url.rpartition("/")
    return _reading(folder, lambda files: files.read_if_there(name).decode()) or None


def newest_batch(checkpoint: str) -> int:
    """Return the batch that runs: Spark writes its offsets before it plans it.

    Raises:
        ConfigurationError: There is none, or nothing here can read that file system.
    """
    names = _reading(checkpoint, lambda files: files.names("offsets"))
    batches = [int(name) for name in names if name.isdigit()]
    if not batches:
        raise ConfigurationError(f"the checkpoint {checkpoint} holds no offsets: is it this query's checkpoint?")
    return max(batches)


def _reading(folder: str, read: Callable[[CheckpointStorage], T]) -> T:
    try:
        return read(CheckpointStorage(local_path(folder) or folder))
    except (ConfigurationError, StateError, OSError, ValueError) as error:
        raise ConfigurationError(
            f"cannot read {folder} from Python ({text_of(error)}): install fsspec's package for it, or use "
            "exactly_once(…)"
        ) from error


class ProgressListener(StreamingQueryListener):
    """Listener for `spark.streams.addListener`: adds Spark's progress to the metrics, and adds to it what Spark lacks.

    Spark calls it in a thread of its own; `last_progress` may be called from any thread. The progress gets the output
    rows of queries that `exactly_once` made in this process (for the formats, Spark counts them itself) and the lag of
    Kafka sources.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[tuple[str, int], tuple[str, dict[str, int]]] = {}
        self._newest: dict[str, dict[str, Any]] = {}
        observe(self._remember)

    def last_progress(self, query: str) -> dict[str, Any] | None:
        """Return Spark's newest report of a query, with the rows that were written and the lag of Kafka sources.

        Args:
            query: The query's id (`query.id`).

        Returns:
            The report as JSON values. `sink.numOutputRows` is the number of rows that all sinks together have
            committed, `sink.onceward` has it for each sink. `metrics` of a Kafka source has
            `avgOffsetsBehindLatest`, `minOffsetsBehindLatest` and `maxOffsetsBehindLatest`, as with Spark's own source.
            None if there was no report yet.
        """
        with self._lock:
            return self._newest.get(str(query))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Record the progress of a micro-batch; Spark calls this after each one."""
        progress: dict[str, Any] = json.loads(event.progress.json)
        query = str(progress["id"])
        progress["sources"] = [with_lag(source) for source in progress.get("sources", ())]
        with self._lock:
            pipeline, rows = self._epochs.get((query, progress["batchId"]), ("", None))
            if rows is not None:
                progress["sink"] = {**progress.get("sink", {}), "numOutputRows": sum(rows.values()), "onceward": rows}
            # A key that is set again keeps its old place, and `_shorten` drops what comes first.
            self._newest.pop(query, None)
            self._newest[query] = progress
            _shorten(self._newest)
        # Without the lock, for which an observer that calls `last_progress` would wait for ever.
        tell(QueryProgressed(pipeline or progress.get("name") or query, progress))

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Ignore it."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Ignore it."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Ignore it."""

    def _remember(self, event: Event) -> None:
        if isinstance(event, EpochCompleted):
            with self._lock:
                self._epochs[event.input.query, event.epoch] = event.pipeline, event.rows()
                _shorten(self._epochs)


def _shorten(kept: dict[Any, Any]) -> None:
    while len(kept) > _KEPT:
        del kept[next(iter(kept))]
