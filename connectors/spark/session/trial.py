"""Have Spark plan the newest micro-batch of a query once more, before another driver is asked to end for it.

Much of what Spark refuses shows only once a query has begun its first micro-batch: another number of sources than the
checkpoint has offsets of, a source that cannot read these offsets, state of other operators or columns. By then the
driver that ran the query would have ended for nothing.

So a new version is started on a copy of the checkpoint's small files: the offsets of the newest two micro-batches, what
sources keep, and the description of the state, but no state. Without the newest commit, Spark plans that micro-batch
again. The function to which it then passes it does nothing, and waits until the query is stopped, so that no task runs,
nothing is logged, and no source hears of a commit.
"""

from __future__ import annotations

import json
import logging
import tempfile
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import ConfigurationError, text_of

from .classic import ClassicSession
from .query_plan import analyzed_plan, cloned_session, read_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_log = logging.getLogger("onceward.spark")
_COPIES: Final = 3
"""Attempts to copy files while the running query adds others and deletes old ones."""
_LARGEST: Final = 256 << 20
"""Bytes of what sources keep, above which nothing is tried: a copy would take too long."""


def try_newest_batch(writer: DataStreamWriter, checkpoint: str) -> None:
    """Have Spark plan the newest micro-batch of a checkpoint with a query that has not been started.

    Nothing is tried if the checkpoint has no micro-batch yet, or if its files cannot be copied.

    Args:
        writer: DataStreamWriter of the query.
        checkpoint: Location of the query's checkpoint, as a URL.

    Raises:
        ConfigurationError: Spark cannot continue the query from this checkpoint.
    """
    planned = read_plan(writer)
    with tempfile.TemporaryDirectory(prefix="onceward-trial-") as folder:
        if not _copied(planned.df.sparkSession, checkpoint, folder):
            return
        why = _failure(_elsewhere(planned.df), planned.output_mode, folder)
    if why is not None:
        raise ConfigurationError(
            f"Spark cannot continue the query from its checkpoint {checkpoint}: {why}. No other driver was asked to "
            "end. Correct the query, or start it again if the cause has passed. A query that reads other sources or "
            "keeps other state begins anew, with a checkpoint and a pipeline name of its own"
        )


def _elsewhere(df: DataFrame) -> DataFrame:
    """Return a DataFrame in a clone of its session, so that the program's session hears of no query."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 - needs a Spark installation

    clone: Any = cloned_session(df)
    sql = clone._jvm.org.apache.spark.sql  # noqa: SLF001 - no public way
    dataset = sql.Dataset if clone.version.startswith("3.") else sql.classic.Dataset
    return DataFrame(dataset.ofRows(clone._jsparkSession, analyzed_plan(df)), clone)  # noqa: SLF001


def _failure(frame: DataFrame, mode: str, folder: str) -> str | None:
    """Return why Spark does not come as far as the function of foreachBatch; None if it does."""
    session, planned = ClassicSession(frame.sparkSession), threading.Event()

    def wait(_frame: DataFrame, _batch: int) -> None:
        planned.set()
        session.await_stop()

    writing = frame.writeStream.outputMode(mode).foreachBatch(wait).option("checkpointLocation", f"file://{folder}")
    query: StreamingQuery = writing.start()
    try:
        while query.isActive and not planned.wait(0.05):
            pass
        error = None if planned.is_set() else query.exception()
    finally:
        query.stop()
    return None if error is None else _cause(error)


def _cause(error: BaseException) -> str:
    """Return why a query ended, without Spark's words around it and the plan below it."""
    text = text_of(error).partition("\n=== Streaming Query")[0].partition("\n\nJVM stacktrace")[0]
    return " ".join(text.rpartition("terminated with exception: ")[2].split()).rstrip(".")


def _copied(spark: SparkSession, checkpoint: str, folder: str) -> bool:
    """Copy what Spark needs to plan the newest micro-batch again; return False if there is none, or no way to copy."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

    for attempt in range(_COPIES):
        into = Path(folder)
        try:
            return _Copy(spark, checkpoint, into).make()
        except Py4JJavaError as error:
            if attempt + 1 == _COPIES:
                why = error.java_exception.getMessage()
                _log.warning("the checkpoint %s cannot be copied to try the query on it: %s", checkpoint, why)
    return False


class _Copy:
    def __init__(self, spark: SparkSession, checkpoint: str, into: Path) -> None:
        session: Any = spark
        self._hadoop = session._jvm.org.apache.hadoop.fs  # noqa: SLF001 - the only way to Spark's file systems
        self._conf = session._jsc.hadoopConfiguration()  # noqa: SLF001
        self._checkpoint, self._into = checkpoint.rstrip("/"), into
        self._files = self._path("").getFileSystem(self._conf)
        self._local = self._hadoop.Path(f"file://{into}").getFileSystem(self._conf)

    def make(self) -> bool:
        batches = [int(name) for name in self._names("offsets") if name.isdigit()]
        if not batches:
            return False
        if self._names("sources"):
            if self._files.getContentSummary(self._path("sources")).getLength() > _LARGEST:
                _log.warning("the sources of %s keep too much to try the query on a copy", self._checkpoint)
                return False
            self._copy("sources")
        newest = max(batches)
        # The newest commit is left out even if it is there: with it, Spark would not plan this micro-batch again.
        for name in (f"offsets/{newest}", f"offsets/{newest - 1}", f"commits/{newest - 1}"):
            self._copy(name)
        for operator in self._names("state"):
            for name in self._described(f"state/{operator}"):
                self._copy(name)
        (self._into / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        return True

    def _described(self, operator: str) -> Iterator[str]:
        """Yield where an operator's state is described: beside its partitions, in the first one, and in its stores."""
        yield from (f"{operator}/_metadata", f"{operator}/_stateSchema", f"{operator}/0/_metadata")
        yield from (f"{operator}/0/{store}/_metadata" for store in self._names(f"{operator}/0") if "." not in store)

    def _path(self, name: str) -> Any:
        return self._hadoop.Path(f"{self._checkpoint}/{name}" if name else self._checkpoint)

    def _names(self, folder: str) -> list[str]:
        path = self._path(folder)
        if not self._files.exists(path):
            return []
        return [str(status.getPath().getName()) for status in self._files.listStatus(path)]

    def _copy(self, name: str) -> None:
        source = self._path(name)
        if not self._files.exists(source):
            return
        target = self._into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        there = self._hadoop.Path(f"file://{target}")
        self._local.delete(there, True)  # of an attempt before
        self._hadoop.FileUtil.copy(self._files, source, self._local, there, False, True, self._conf)
