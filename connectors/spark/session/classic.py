"""A classic session: Python calls the JVM of the same machine."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from onceward.core.run.keeper import StoppedError

from .query import any_stage_failed, checkpoint_reader, current_run
from .spark_session import is_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from .spark_session import QueryRun

INTERRUPTED: Final = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling sleep.\n: java.lang.InterruptedException"
)
"""Text of the error that Spark takes for the end of a query that was stopped, and not for a failure."""


class ClassicSession:
    """A session of this process's own JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._conf = spark.sparkContext.getConf()  # it copies all settings
        self._seen: dict[str, StreamingQuery] = {}
        self._free_slots: Callable[[], int] | None = None

    @property
    def master(self) -> str | None:
        """Spark's master."""
        return self.spark.sparkContext.master

    def setting(self, name: str, default: str) -> str:
        """Return one of the settings of the application."""
        return str(self._conf.get(name, default))

    def slots(self) -> int | None:
        """Ask Spark's scheduler: on a cluster, the default parallelism is at least 2, and it may be a setting."""
        context: Any = self.spark.sparkContext
        if self._free_slots is None:
            self._free_slots = _slots_of(context)
        return self._free_slots() or int(context.defaultParallelism)  # none while there is no executor

    def current_run(self, last: QueryRun | None) -> QueryRun:
        """Ask for the properties of the calling thread, and the JVM for the query."""
        return current_run(self.spark, last)

    def is_active(self, query: str, run: str = "") -> bool:
        """Return whether the session has the query, and in this run."""
        query_ = next((one for one in self.spark.streams.active if is_run(one, query, run)), None)
        if query_ is not None:
            self._seen[query] = query_
        return query_ is not None

    def failure(self, query: str) -> BaseException | None:
        """Ask the query, which Spark lists only while it runs."""
        query_ = self._seen.pop(query, None)
        return query_.exception() if query_ is not None else None

    def stop(self, query: str, run: str) -> None:
        """Stop it, if it is still there."""
        running = self.spark.streams.get(query)
        # A later run of the same query has the same id, and is not to be stopped.
        if running is not None and is_run(running, query, run):
            running.stop()

    def await_stop(self) -> NoReturn:
        """Wait in the JVM, in the thread that Spark interrupts to stop the query.

        Spark searches the traceback of a foreachBatch function for py4j's message of an interrupted call, with a
        pattern whose depth grows with the text (StreamExecution.PROXY_ERROR): so the error is a short one. Spark 3.5
        wants the Java exception on a line of its own.
        """
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark

        jvm: Any = self.spark._jvm  # noqa: SLF001 - Spark's thread runs in it
        while True:
            try:
                jvm.java.lang.Thread.sleep(1000)
            except Py4JJavaError:
                raise StoppedError(INTERRUPTED) from None

    def reader(self) -> Callable[[str], str | None]:
        """Return a function that reads a small text file by its URL: local files itself, others through Hadoop."""
        return checkpoint_reader(self.spark)

    def failed(self, stages: Iterable[int]) -> bool:
        """Return whether attempts at these stages may have left something behind, by Spark's status tracker."""
        return any_stage_failed(self.spark, stages)

    def reports(self, error: BaseException) -> bool:
        """Return whether the JVM has raised the error."""
        from pyspark.errors.exceptions.captured import CapturedException  # noqa: PLC0415 - of classic sessions

        return isinstance(error, CapturedException)


def _slots_of(context: Any) -> Callable[[], int]:
    """Return a function that asks how many tasks can run at the same time on the executors that there are."""
    java = getattr(context, "_jsc", None)
    if java is None:  # a context without a JVM
        return lambda: 0
    scala = java.sc()
    return partial(scala.maxNumConcurrentTasks, scala.resourceProfileManager().defaultResourceProfile())
