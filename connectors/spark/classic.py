"""A classic session: Python calls the JVM of the same machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .query import any_stage_failed, checkpoint_reader, current_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from .session import QueryRun


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
