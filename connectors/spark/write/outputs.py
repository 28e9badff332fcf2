"""`Output`: a sink that gets its own transformation of each micro-batch, in the same decision as all other sinks.

Each transformation runs as a job of its own, and one decision names the transactions of all jobs. So an epoch cannot
mix two attempts, whatever a transformation computes:

1. A failed attempt of the epoch is given up as a whole: its decision is made impossible before another attempt writes,
   so transactions of both are never in one decision.
2. Spark returns one acknowledgement of each partition of a job, also if tasks or stages ran again. Transactions of
   attempts that do not count are named by no decision.
3. An epoch that was decided before a crash is committed as it was written. The transformations are not computed again,
   unless the target has lost rows; then count and hash of the rows must be those of the decision.

A micro-batch that is read more than once, by several jobs or by one, is persisted, so that it is computed once and all
see the same values. If an executor is lost with the partitions that it holds, these are computed again. Then a query
that computes other values each time may give two sinks different values of one row; each sink still gets the row once.

Functions are user code, and may lead elsewhere than to the micro-batch:

4. The call that describes the query must leave nothing behind that a later call could take for its micro-batch. It runs
   in a clone of the session, as Spark's own calls do, and what it persisted is released. What it keeps in members of
   its own cannot be undone, so
5. the plan of each result must read the micro-batch, unless the Output says that it need not.
6. A query that keeps state runs each micro-batch as a whole, whatever the outputs read of it: its state store would
   lack the version of a partition that no job computed, on every later start.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, get_args

from pyspark import StorageLevel
from pyspark.errors import AnalysisException, PySparkException

from onceward.core.contract.pipeline_settings import Persist
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import ConfigurationError, SchemaError, text_of
from onceward.core.kit.text_options import check_type
from onceward.sinks import DirectSink, TwoPhaseCommitSink

from ..session.kinds import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from onceward.core.contract.sink import AnySink

_log = logging.getLogger("onceward.spark")


@dataclass(frozen=True)
class Output:
    """A sink of `exactly_once`, and the transformation of each micro-batch whose rows it gets.

    Args:
        sink: Sink that gets the rows.
        transform: A function that takes the micro-batch, a DataFrame that is not streaming, and returns the DataFrame
            to write: an aggregate, a join with a table, rows exploded or deduplicated. It is called on the driver: once
            with an empty DataFrame when the query is described, and then in each attempt of a micro-batch. It should
            only describe the DataFrame, because an action in it is a job more. None: the sink gets the micro-batch.
        reads_batch: True if the result must read the micro-batch, as its plan shows. Set it to False for a function
            that returns something else on purpose: rows that it collected or made, or another table's.

    Raises:
        ConfigurationError: `sink` is not a sink, or `transform` is not a function.
    """

    sink: AnySink
    transform: Callable[[DataFrame], DataFrame] | None = None
    reads_batch: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.sink, TwoPhaseCommitSink | DirectSink):
            kind = f"the class {self.sink.__name__}" if isinstance(self.sink, type) else type(self.sink).__name__
            raise ConfigurationError(
                f"Output takes a sink, a TwoPhaseCommitSink or a DirectSink, and then a function; given first: {kind}"
            )
        if self.transform is not None and not callable(self.transform):
            raise ConfigurationError(
                f"transform must be a function of a DataFrame, not {type(self.transform).__name__}", sink=self.sink.name
            )
        check_type("reads_batch", self.reads_batch, bool)


class OutputJob(NamedTuple):
    """A DataFrame, and the sinks that get its rows in one pass."""

    frame: DataFrame
    sinks: Sequence[TwoPhaseCommitSink[Any]]


class Jobs(Protocol):
    """What the jobs of a micro-batch write, and where."""

    @property
    def apart(self) -> bool:
        """Whether the sinks are written by these jobs; else all get the micro-batch in one pass."""

    def jobs(
        self, batch: DataFrame, sinks: Sequence[TwoPhaseCommitSink[Any]]
    ) -> AbstractContextManager[list[OutputJob]]:
        """Return a block in which the jobs run; what it keeps for them is released at its end.

        Args:
            batch: The micro-batch.
            sinks: Sinks that are to be written.
        """


@dataclass
class Transformations:
    """The transformations of a pipeline by name of the sink, and where a micro-batch is kept if several jobs read it.

    Attributes:
        functions: The transformation of each sink that has one.
        persist: Name of Spark's storage level.
        reading: The sinks whose functions must return something that reads the micro-batch.
        stateful: True if the query keeps state.
        schemas: Columns of the result for an empty micro-batch, by the name of each of these sinks.
        frames: The results for an empty micro-batch; only filled while `explain` describes the query.
    """

    functions: Mapping[str, Callable[[DataFrame], DataFrame]] = field(default_factory=dict)
    persist: Persist = "DISK_ONLY"
    reading: Collection[str] = ()
    stateful: bool = False
    schemas: Mapping[str, StructType] = field(default_factory=dict)
    frames: Mapping[str, DataFrame] = field(default_factory=dict)

    @property
    def apart(self) -> bool:
        """Whether the sinks are written by jobs of their own, see `jobs`."""
        return bool(self.functions)

    @classmethod
    def of(cls, df: DataFrame, outputs: Iterable[Any], persist: Persist) -> Transformations:
        """Return the transformations of a query's outputs, each tried on an empty micro-batch.

        Args:
            df: The streaming DataFrame.
            outputs: Sinks, and Outputs that may have a function.
            persist: Storage level at which Spark keeps the rows of a micro-batch while several jobs read them.

        Raises:
            ConfigurationError: One does not return a DataFrame that can be written as a batch.
            SchemaError: Spark cannot compute one.
        """
        own = [one for one in outputs if isinstance(one, Output)]
        functions = {one.sink.name: one.transform for one in own if one.transform is not None}
        if not functions:
            return cls(persist=persist)
        reading = {one.sink.name for one in own if one.reads_batch}
        with plan_of(df).describing() as empty:
            frames = {
                name: apply_function(function, name, empty, must_read=name in reading)
                for name, function in functions.items()
            }
            # Inside of the block, because Spark Connect computes the columns only when it is asked for them.
            schemas = {name: _columns(frame, name) for name, frame in frames.items()}
        return cls(functions, persist, reading, plan_of(df).keeps_state(), schemas, frames)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "frames": {}}  # of the session in which the query was described

    @contextlib.contextmanager
    def jobs(self, batch: DataFrame, sinks: Sequence[TwoPhaseCommitSink[Any]]) -> Iterator[list[OutputJob]]:
        """Yield what each job of a micro-batch writes, and where. Sinks with the same function share one job.

        All DataFrames are described and checked before the first one is written.

        Raises:
            ConfigurationError: A transformation does not return a DataFrame that can be written.
            SchemaError: It returns other columns than when the query was described.
        """
        groups: dict[int, list[TwoPhaseCommitSink[Any]]] = {}
        for sink in sinks:
            groups.setdefault(id(self.functions.get(sink.name)), []).append(sink)
        with self._keeping(batch, sure=len(groups) > 1 or self.stateful, maybe=bool(self.functions)) as kept:
            jobs = [OutputJob(self._frame(batch, group), group) for group in groups.values()]
            kept.described(job.frame for job in jobs)
            yield jobs
            if self.stateful and not any(job.frame is batch for job in jobs):  # (6)
                batch.write.format("noop").mode("overwrite").save()

    @contextlib.contextmanager
    def _keeping(self, batch: DataFrame, *, sure: bool, maybe: bool) -> Iterator[_KeptBatch]:
        kept = _KeptBatch(batch, getattr(StorageLevel, self.persist), sure)
        try:
            if sure or maybe:  # before the functions are called: an action in one of them computes the batch
                kept.keep()
            yield kept
        finally:
            kept.release()

    def _frame(self, batch: DataFrame, group: Sequence[TwoPhaseCommitSink[Any]]) -> DataFrame:
        name = group[0].name
        function = self.functions.get(name)
        if function is None:
            return batch
        frame = apply_function(function, name, batch, must_read=name in self.reading)
        if name in self.schemas:
            _check_columns(name, self.schemas[name], _columns(frame, name))
        return frame


class _KeptBatch:
    """A micro-batch that is persisted while it is needed.

    Args:
        batch: The micro-batch.
        level: Storage level at which it is kept.
        sure: True if it is known to be read more than once.
    """

    def __init__(self, batch: DataFrame, level: StorageLevel, sure: bool) -> None:
        self._batch, self._level, self._sure = batch, level, sure
        self._is_kept = False
        # Remembered to see in `described` whether an action in a function has computed the batch meanwhile.
        self._before = _persisted(batch)

    def keep(self) -> None:
        self._batch.persist(self._level)
        self._is_kept = True

    def described(self, frames: Iterable[DataFrame]) -> None:
        """Go on keeping the batch if the frames read it more than once, or if an action has computed it already."""
        if not self._is_kept:
            return
        reads = [1 if frame is self._batch else plan_of(frame).reads_of(self._batch) for frame in frames]
        if not self._sure and reads == [1] and self._before == _persisted(self._batch):
            self.release()
        elif hasattr(self._batch, "_jdf") and self._batch.storageLevel == StorageLevel.NONE:
            self.keep()  # a function has released what it took for its own

    def release(self) -> None:
        if self._is_kept:
            self._is_kept = False
            _release(self._batch)


def _persisted(batch: DataFrame) -> set[int]:
    """Return the ids of what is persisted and computed in part at least; none where there is no JVM to ask."""
    if not hasattr(batch, "_jdf"):
        return set()
    context: Any = batch.sparkSession.sparkContext
    return set(context._jsc.getPersistentRDDs().keySet())  # noqa: SLF001 - no public way to ask


def checked_persist(persist: Any) -> Persist:
    """Return the storage level for a micro-batch that several jobs read.

    Raises:
        ConfigurationError: It is not one of the two.
    """
    if persist not in get_args(Persist):
        raise ConfigurationError(f"persist must be {' or '.join(map(repr, get_args(Persist)))}; got {persist!r}")
    level: Persist = persist
    return level


def sinks_of(outputs: Iterable[Any]) -> list[Any]:
    """Return the sinks of outputs, and everything else as it is."""
    return [one.sink if isinstance(one, Output) else one for one in outputs]


def merge_acknowledgements(
    acks: Iterable[Acknowledgement], sinks: Sequence[TwoPhaseCommitSink[Any]]
) -> list[Acknowledgement]:
    """Return one acknowledgement for each subtask of the epoch, from those of several finished jobs.

    A job with fewer partitions than another one has nothing to write in the subtasks that it lacks. (2)

    Args:
        acks: Acknowledgements of all jobs; a job has one of each of its partitions.
        sinks: All that take part.
    """
    subtasks: dict[int, list[Acknowledgement]] = {}
    for ack in acks:
        subtasks.setdefault(ack.subtask, []).append(ack)
    return [
        Acknowledgement(
            epoch=parts[0].epoch,
            subtask=subtask,
            attempt=max(part.attempt for part in parts),
            sinks=tuple(sink.name for sink in sinks),
            committables=tuple(committable for part in parts for committable in part.committables),
            retried=any(part.retried for part in parts),
            written=tuple(written for part in parts for written in part.written),
            refused=_sum_of(part.refused for part in parts),
        )
        for subtask, parts in sorted(subtasks.items())
    ]


def _sum_of(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def apply_function(
    function: Callable[[DataFrame], DataFrame], sink: str, batch: DataFrame, *, must_read: bool = True
) -> DataFrame:
    """Return what the function of an Output makes of a micro-batch.

    Raises:
        ConfigurationError: It does not return a DataFrame that can be written as a batch, or one that does not read
            this micro-batch, and must.
        SchemaError: Spark cannot compute it.
    """
    try:
        frame: Any = function(batch)
    except AnalysisException as error:
        raise _not_computed(error, sink) from None
    except PySparkException as error:
        if "SESSION_NOT_SAME" not in text_of(error):
            raise
        raise ConfigurationError(
            "the function of its Output reads a DataFrame of the program's session, and Spark passes each micro-batch "
            "in a session of its own (from 4.3 on): read tables inside of the function, with batch.sparkSession",
            sink=sink,
        ) from None
    if not (hasattr(frame, "isStreaming") and hasattr(frame, "mapInArrow")):
        raise ConfigurationError(
            f"the function of its Output must return a DataFrame of Spark, and returned {type(frame).__name__}",
            sink=sink,
        )
    if frame.isStreaming:
        raise ConfigurationError(
            "the function of its Output returned a streaming DataFrame: transform the micro-batch that it gets, and "
            "join streams in the query, before exactly_once",
            sink=sink,
        )
    if must_read and plan_of(frame).reads_of(batch) == 0:  # (5)
        raise ConfigurationError(
            "the function of its Output returned a DataFrame that does not read the micro-batch, so rows would be "
            "missing. A view of the micro-batch belongs to batch.sparkSession: query it there, and not in the "
            "program's session; and return a DataFrame of each call, not one that was kept from another. If the "
            "result is meant to come from elsewhere, say so: Output(sink, function, reads_batch=False)",
            sink=sink,
        )
    result: DataFrame = frame
    return result


def _columns(frame: DataFrame, sink: str) -> StructType:
    """Return the columns of a result, which Spark Connect computes only now."""
    try:
        return frame.schema
    except AnalysisException as error:
        raise _not_computed(error, sink) from None


def _not_computed(error: AnalysisException, sink: str) -> SchemaError:
    why = text_of(error).strip().splitlines()[0].partition(" SQLSTATE")[0]
    return SchemaError(f"Spark cannot compute the function of its Output: {why}", sink=sink)


def _check_columns(sink: str, before: StructType, now: StructType) -> None:
    """Refuse other columns than those which the sink was validated with."""
    described, returned = ({one.name: one.dataType.simpleString() for one in schema} for schema in (before, now))
    differing = [f"{name} is {kind}" for name, kind in returned.items() if described.get(name) != kind]
    differing += [f"{name} is missing" for name in described if name not in returned]
    if differing or before.names != now.names:
        raise SchemaError(
            f"the function of its Output returns other columns than when the query was described: "
            f"{', '.join(differing) or now.names}; nothing was written. Then the columns were "
            f"{', '.join(f'{name} {kind}' for name, kind in described.items())}",
            sink=sink,
        )


def _release(batch: DataFrame) -> None:
    try:
        batch.unpersist()
    except Exception as error:  # noqa: BLE001 - the epoch's own error counts, and Spark releases it with the session
        _log.warning("the rows of a micro-batch that were persisted for several outputs were not released: %s", error)
