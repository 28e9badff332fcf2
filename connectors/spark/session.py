"""The questions that `exactly_once` asks of a Spark session, whichever kind of session it is.

This module and `connect.py` are the only ones that know the two kinds: a classic session, whose JVM Python can call,
and a session of Spark Connect, which is a client of a server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pyspark.errors import PySparkException

from .query import any_stage_failed, checkpoint_reader, current_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from .query import QueryRun


@runtime_checkable
class QuerySession(Protocol):
    """The session of one streaming query, in the process that runs its foreachBatch function."""

    @property
    def master(self) -> str | None:
        """Spark's master, for example local[2]; None if the session does not say."""

    def setting(self, name: str, default: str) -> str:
        """Return the text of one of Spark's settings."""

    def slots(self) -> int | None:
        """Return how many tasks can run at the same time; None if that is unknown."""

    def current_run(self, last: QueryRun | None) -> QueryRun:
        """Return the run whose foreachBatch function is being called in this thread.

        Args:
            last: What this returned before; the same run is not looked up again.

        Raises:
            ConfigurationError: It is not called by a streaming query, or by one in a mode that is refused.
        """

    def is_active(self, query: str) -> bool:
        """Return whether the query with this id is running."""

    def reader(self) -> Callable[[str], str | None]:
        """Return a function that reads a small file of the checkpoint by its URL; it returns None if there is none."""

    def failed(self, stages: Iterable[int]) -> bool:
        """Return whether attempts at these finished stages may have left something behind."""

    def reports(self, error: BaseException) -> bool:
        """Return whether Spark has raised the error and logged where."""


class ClassicSession:
    """A session of this process's own JVM."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._conf = spark.sparkContext.getConf()  # it copies all settings

    @property
    def master(self) -> str | None:
        """Spark's master."""
        return self.spark.sparkContext.master

    def setting(self, name: str, default: str) -> str:
        """Return one of the settings of the application."""
        return str(self._conf.get(name, default))

    def slots(self) -> int | None:
        """Return Spark's default parallelism."""
        return self.spark.sparkContext.defaultParallelism

    def current_run(self, last: QueryRun | None) -> QueryRun:
        """Ask for the properties of the calling thread, and the JVM for the query."""
        return current_run(self.spark, last)

    def is_active(self, query: str) -> bool:
        """Return whether the session has the query."""
        return any(str(one.id) == query for one in self.spark.streams.active)

    def reader(self) -> Callable[[str], str | None]:
        """Read local files, and others through Hadoop."""
        return checkpoint_reader(self.spark)

    def failed(self, stages: Iterable[int]) -> bool:
        """Ask Spark's status tracker."""
        return any_stage_failed(self.spark, stages)

    def reports(self, error: BaseException) -> bool:
        """Return whether the JVM has raised the error."""
        from pyspark.errors.exceptions.captured import CapturedException  # noqa: PLC0415 - of classic sessions

        return isinstance(error, CapturedException)


def is_connect(owner: object) -> bool:
    """Return whether a session or a DataFrame belongs to Spark Connect."""
    return type(owner).__module__.startswith("pyspark.sql.connect")


def session_of(spark: SparkSession | QuerySession) -> QuerySession:
    """Return the questions that can be asked of a classic session; they may also be given."""
    return spark if isinstance(spark, QuerySession) else ClassicSession(spark)


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the classes of Spark's errors: pyspark 3.5 also raises what the JVM has raised, where there is a JVM."""
    try:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark, not with pyspark-client
    except ImportError:
        return (PySparkException,)
    return PySparkException, Py4JJavaError
