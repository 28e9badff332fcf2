"""The questions that `exactly_once` asks of a Spark session, whichever kind of session it is.

There are two kinds: a classic session, whose JVM Python can call (`classic.py`), and a session of Spark Connect, which
is a client of a server (`connect.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, runtime_checkable

from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from onceward.core.contract.pipeline_settings import ForeachBatchSettings
    from onceward.core.log import LogView


class QueryRun(NamedTuple):
    """One run of one streaming query."""

    query: str
    """Spark's query id: stays with the checkpoint."""
    run: str
    """Spark's run id: new at each start."""
    checkpoint: str
    """Root of the checkpoint, as a URL."""
    complete: bool = False
    """True if the query's output mode is complete: each epoch brings the whole result again."""


@runtime_checkable
class QuerySession(Protocol):
    """The session of one streaming query, in the process that runs its foreachBatch function.

    Attributes:
        spark: The session, as pyspark has it.
    """

    spark: Any

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
            last: Run that this method returned before; the same run is not looked up again.

        Raises:
            ConfigurationError: It is not called by a streaming query, or by one in a mode that is refused.
        """

    def is_active(self, query: str, run: str = "") -> bool:
        """Return whether the query with this id is running.

        Args:
            query: Its id, which stays with the checkpoint.
            run: Only this run of it; empty for any.
        """

    def failure(self, query: str) -> BaseException | None:
        """Return why a query has failed that `is_active` has seen running; None if it has not, or nobody can say."""

    def reader(self) -> Callable[[str], str | None]:
        """Return a function that reads a small file of the checkpoint by its URL; it returns None if there is none."""

    def failed(self, stages: Iterable[int]) -> bool:
        """Return whether attempts at these finished stages may have left something behind."""

    def reports(self, error: BaseException) -> bool:
        """Return whether Spark has raised the error and logged where."""


@runtime_checkable
class EndsQueries(Protocol):
    """A session that can end the query whose foreachBatch function runs in this process."""

    def stop(self, query: str, run: str) -> None:
        """End this run of a query, if it has not ended; returns when it has."""

    def await_stop(self) -> NoReturn:
        """Wait in the thread in which Spark calls the function of foreachBatch until the query is ended.

        Raises:
            StoppedError: It is.
        """


class EpochFunction(Protocol):
    """The function of foreachBatch that writes a query's micro-batches."""

    def prepare(self, view: LogView | None) -> None:
        """Check, before the query starts, what can be refused then."""

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Write one micro-batch."""


class StartableQuery(Protocol):
    """The settings of a query that a server can be sent, and that make its EpochFunction there."""

    settings: ForeachBatchSettings

    def handler(self, spark: Any, schemas: Mapping[str, pa.Schema]) -> EpochFunction:
        """Return the function for the query's micro-batches."""


def is_run(one: Any, query: str, run: str) -> bool:
    """Return whether a StreamingQuery is this run of the query with this id; an empty run stands for any."""
    return str(one.id) == query and (not run or str(one.runId) == run)


def is_connect(owner: object) -> bool:
    """Return whether a session or a DataFrame belongs to Spark Connect."""
    return type(owner).__module__.startswith("pyspark.sql.connect")


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the classes of Spark's errors: pyspark 3.5 also raises what the JVM has raised, where there is a JVM."""
    try:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark, not with pyspark-client
    except ImportError:
        return (PySparkException,)
    return PySparkException, Py4JJavaError
