"""`ForeachBatch`: the sinks of somebody else's `foreachBatch` function, all in one decision for each micro-batch.

The function keeps its place: in a class, in a framework, behind a platform's decorator. Its writes are described while
it runs, and made when its `with` block ends:

1. Nothing is written before the block has ended without an error, so an error in the function leaves nothing behind.
2. A write that is refused fails the epoch, also if the function catches the error: the epoch would lack its rows.
3. Every batch needs its epoch, also one without rows. The decision log does not let the next one skip it, so a function
   that left one out, or caught the error of its end, is found out at the next batch.
4. A run writes a batch once. In the log a second epoch of the same batch would look like a replay, whose rows are not
   written, so it is refused.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, Unpack, cast

from onceward.core.contract.dead_letters import schema_for_letters
from onceward.core.contract.pipeline_settings import FOREACH_BATCH
from onceward.core.errors import ConfigurationError, SchemaError
from onceward.core.kit.caller_warnings import warn
from onceward.sinks import Sink

from ..read.kafka_offsets import order_warning, watched_sources, with_publication
from ..session.kinds import connect_of, plan_of, session_of
from ..session.query import called_for, check_offset_log, query_session
from ..session.query_plan import is_micro_batch, nodes, plan_keeps_state, plan_only_writes, sources_in
from .executors import executors_of, warn_of_python
from .handler import EpochHandler, checked_settings, driven_sinks
from .outputs import Output, Transformations, apply_function, sinks_of
from .parallelism import row_size
from .spark_task import schema_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from onceward.core.contract.pipeline_settings import ForeachBatchSettings, Persist
    from onceward.core.contract.sink import AnySink
    from onceward.sinks import TwoPhaseCommitSink

    from .outputs import OutputJob

_done: Final[dict[str, tuple[str, int]]] = {}
"""Newest run and batch that this process has written, by pipeline. (4)"""


_ONLY_CLASSIC: Final = (
    "ForeachBatch needs a classic Spark session, and this is one of Spark Connect: use exactly_once, with an Output "
    "for each sink that gets its own rows"
)


def _refused_on_connect() -> NoReturn:
    """Refuse a function that Spark Connect has sent to its server, when `start()` unpickles it there."""
    raise ConfigurationError(_ONLY_CLASSIC)


@FOREACH_BATCH.described
class ForeachBatch:
    """The sinks of a `foreachBatch` function: what it writes in a micro-batch takes effect exactly once, or not at all.

    There are two ways to use it. As the function itself, it writes each micro-batch into all sinks:
    `df.writeStream.foreachBatch(ForeachBatch(orders, totals, pipeline="shop"))`. Inside a function of your own,
    `epoch` opens a block in which `write` takes the place of `df.write…save()`.

    An object serves one query, and one epoch at a time. Threads of the function may call `EpochWriter.write`
    concurrently.

    Args:
        sinks: All sinks that the function may write into. Each has a name that is unique in the pipeline. As
            `Output(sink, function)` a sink gets its own transformation of each micro-batch, if the object is used as
            the function itself.
        settings: Settings of the pipeline, which docs/exactly-once.md lists; ForeachBatchSettings has their types.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    def __init__(self, *sinks: AnySink | Output, **settings: Unpack[ForeachBatchSettings]) -> None:
        settings, plain = FOREACH_BATCH.filled(settings), sinks_of(sinks)
        policy, letters = checked_settings(settings, plain, FOREACH_BATCH.name)
        self._outputs = [one if isinstance(one, Output) else Output(one) for one in sinks]
        self._pipeline = _Batches(
            settings,
            plain,
            {sink.name: sink for sink in driven_sinks(plain, tries=letters is not None)},
            partial(EpochHandler, settings=settings, policy=policy, dead_letters=letters),
        )

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a micro-batch into all sinks, each with its own transformation if it has one.

        Args:
            batch: The micro-batch.
            batch_id: Number of the micro-batch.

        Raises:
            OncewardError: As `EpochWriter.write` and the end of its block do.
        """
        frames: dict[int, DataFrame] = {}
        whole = [output.sink.name for output in self._outputs if output.transform is None]
        with EpochWriter(self._pipeline, batch, batch_id, whole) as epoch:
            for output in self._outputs:
                function, name = output.transform, output.sink.name
                if id(function) not in frames:
                    frames[id(function)] = (
                        batch
                        if function is None
                        else apply_function(function, name, batch, must_read=output.reads_batch)
                    )
                epoch.write(frames[id(function)], output.sink)

    def __reduce__(self) -> tuple[Any, ...]:
        return _refused_on_connect, ()  # what nothing but Spark Connect does, which runs functions on its server

    def epoch(self, batch: DataFrame, batch_id: int) -> EpochWriter:
        """Return the epoch of a micro-batch, for a `with` statement around all that the function writes.

        Every micro-batch needs it, also one of which nothing is written.

        Args:
            batch: The micro-batch, as Spark passes it.
            batch_id: Number of the micro-batch.
        """
        return EpochWriter(self._pipeline, batch, batch_id)


class EpochWriter:
    """One micro-batch of a ForeachBatch, as a `with` block.

    The block's end writes what the block has described, decides once for all sinks, and commits. If the block raises,
    nothing is written. If an earlier run has written the micro-batch already, nothing is written either: its
    transactions are committed before the block runs.
    """

    def __init__(self, pipeline: _Batches, batch: DataFrame, batch_id: int, whole: Sequence[str] = ()) -> None:
        self._pipeline, self._batch, self._number, self._whole = pipeline, batch, batch_id, whole
        self._handler: EpochHandler | None = None
        self._writes = _Writes(pipeline.persist)
        self._refused: Exception | None = None
        # Threads of the function may write at once, and `_Writes.add` reads what a sink has before it replaces it.
        self._lock = threading.Lock()

    def write(self, df: DataFrame, sink: AnySink) -> None:
        """Write the rows of a DataFrame into a sink, when the block ends.

        A sink may be written several times: then it gets the rows of all DataFrames, which must have the same columns.
        May be called in other threads, as long as the block waits for them.

        Args:
            df: A DataFrame that is not streaming. It is computed when the block ends, so what it needs must last
            until then: call `unpersist()` after the block.
            sink: Sink that the ForeachBatch was given.

        Raises:
            ConfigurationError: The block is not open, the DataFrame is streaming, or the sink is not one of these.
            SchemaError: The sink was given other columns in the same epoch, or Spark cannot pass a column to Python.

        The end of the block raises ConfigurationError if a DataFrame was persisted when it was given, and is not any
        more.
        """
        if self._handler is None:
            raise self._error(
                "this epoch is not open: write inside `with handler.epoch(batch, batch_id) as epoch:`, and let the "
                "block wait for its threads"
            )
        try:
            _check_batch(df, "write takes a DataFrame")
            driven = self._pipeline.driven_by(sink)
            schema = schema_for(df, driven)
            with self._lock:
                self._writes.add(driven.name, df, schema)
        except Exception as error:
            self._refused = self._refused or error  # (2)
            raise

    def __enter__(self) -> Self:
        # Without waiting: a function that opens a second block inside of the first would wait for itself.
        if not self._pipeline.lock.acquire(blocking=False):
            raise self._error(
                "an epoch of this pipeline is open already: close one before the next, and make a ForeachBatch for "
                "each query"
            )
        # A function may open the block again after a failure: what it described before must not be written twice.
        self._writes, self._refused = _Writes(self._pipeline.persist), None
        try:
            self._handler = self._pipeline.begin(self._batch, self._number, self._whole)
            self._writes.stateful = self._pipeline.stateful
        except BaseException:
            self._pipeline.lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # First of all, so that a thread for which the block did not wait is refused from here on.
        handler, self._handler = self._handler, None
        if handler is None:
            return
        try:
            failure = error or self._refused
            if failure is not None:  # (1)
                handler.tell_failed(self._number, failure)
            else:
                self._pipeline.finish(handler, self._batch, self._number, self._writes)
        finally:
            self._pipeline.lock.release()
        if error is None and self._refused is not None:  # (2)
            why = f"a write of this epoch was refused, so nothing of it is written: {self._refused}"
            raise self._error(why) from self._refused

    def _error(self, why: str) -> ConfigurationError:
        return ConfigurationError(why, pipeline=self._pipeline.name, epoch=self._number)


@dataclass
class _Batches:
    """What the epochs of a ForeachBatch share.

    Attributes:
        settings: Settings of the user, with the defaults of the others.
        sinks: The pipeline's sinks, as they were given.
        driven: The same by name, as the coordinator drives them.
        make: Makes the handler of a run.
        lock: Held while an epoch is open.
    """

    settings: ForeachBatchSettings
    sinks: Sequence[AnySink]
    driven: Mapping[str, TwoPhaseCommitSink[Any]]
    make: partial[EpochHandler]
    lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.name, self.persist = self.settings["pipeline"], self.settings["persist"]
        self._run = ""
        self._handler: EpochHandler | None = None
        self._cheap = self.stateful = False
        self._validated: dict[str, pa.Schema] = {}

    def driven_by(self, sink: Any) -> TwoPhaseCommitSink[Any]:
        """Return the sink as the coordinator drives it.

        Raises:
            ConfigurationError: It is not one of the pipeline's.
        """
        for one in self.sinks:
            if one is sink:
                return self.driven[one.name]
        what = f"sink {sink.name}" if isinstance(sink, Sink) else f"a {type(sink).__name__}"
        raise ConfigurationError(
            f"{what} is not one of this pipeline's sinks ({', '.join(self.driven)}): give ForeachBatch all sinks that "
            "the function may write into, and write into the same objects",
            pipeline=self.name,
        )

    def begin(self, batch: DataFrame, number: int, whole: Sequence[str]) -> EpochHandler:
        """Return the run's handler, once what an earlier run has decided is finished.

        (Rule W) Targets whose rows are known before the function runs are validated before the START, which ends
        another run.

        Args:
            batch: The micro-batch.
            number: Number of the micro-batch.
            whole: Sinks that get the micro-batch as it is.

        Raises:
            ConfigurationError: Spark does not call this thread for this micro-batch, it was written in this run
                already, or another query uses the same object.
            OncewardError: What is decided cannot be finished.
        """
        _check_batch(batch, "epoch takes the micro-batch that Spark passes to the function of foreachBatch")
        if connect_of(batch) is not None:
            raise self._error(_ONLY_CLASSIC, number)
        query, run, called = called_for(batch.sparkSession)
        if called not in (None, number):
            raise self._error(
                f"the micro-batch is {called}: pass on the number that Spark passes to the function", number
            )
        if _done.get(self.name) == (run, number):  # (4)
            raise self._error(
                "this batch has been written and committed in this run, so more rows of it would be taken for a replay "
                "and lost: write all in one epoch",
                number,
            )
        if self._handler is not None and self._handler.query != query and self._handler.is_active():
            raise self._error(
                "another query that is running uses the same ForeachBatch: make one for each, with a pipeline of its "
                "own",
                number,
            )
        if self._handler is None or run != self._run:
            schemas = {name: schema_for(batch, self.driven[name]) for name in whole}
            self._handler, self._run = self._made(batch.sparkSession, query, schemas), run
            self._validated.clear()  # the targets may be others than in the run before
        self._handler.begin(number)
        return self._handler

    def _made(self, session: SparkSession, query: str, schemas: Mapping[str, pa.Schema]) -> EpochHandler:
        spark, plan = query_session(session, query)
        warn_of_python(spark)
        check_offset_log(session_of(spark))
        read = sources_in(plan)
        self.stateful = plan_keeps_state(plan)
        self._cheap = plan_only_writes(plan, cast("Any", spark)._jvm)  # noqa: SLF001 - no public way to ask
        sinks = list(self.driven.values())
        names = {str(node.nodeName()) for node in nodes(plan)}
        if message := order_warning(read, lambda: [names], self.settings["writers"]):
            warn(message)
        handler = self.make(
            spark=spark,
            sinks=sinks,
            schemas=schemas,
            executors=executors_of(session_of(spark), sinks),
            # Both are known in `finish` only, when the block has described what it writes.
            cheap=False,
            row_size=None,
            on_complete=with_publication(read, self.settings["on_complete"]),
            sources=watched_sources(read),
        )
        if handler.dead_letters is not None:
            letters = handler.dead_letters.sink
            handler.schemas = {**schemas, letters.name: schema_for_letters(letters)}
        return handler

    def finish(self, handler: EpochHandler, batch: DataFrame, number: int, writes: _Writes) -> None:
        """Write an epoch, decide and commit it."""
        schemas = [(self.driven[name], schema) for name, schema in writes.schemas.items()]
        if handler.dead_letters is not None:
            schemas.append((handler.dead_letters.sink, schema_for_letters(handler.dead_letters.sink)))
        try:
            writes.check_kept()
            for sink, schema in schemas:
                if self._validated.get(sink.name) != schema:
                    sink.validate(schema)
                    self._validated[sink.name] = schema
        except Exception as error:
            handler.tell_failed(number, error)
            raise
        # If every sink gets the batch itself, one pass feeds them all, and none needs a job of its own.
        whole = writes.frames.keys() == self.driven.keys() and all(one is batch for one in writes.frames.values())
        handler.outputs = Transformations(persist=self.persist) if whole else writes
        handler.cheap = whole and self._cheap and is_micro_batch(batch)
        handler.row_size = row_size(batch.schema) if handler.cheap else None
        handler(batch, number)
        # Not before: after a failure the function may open the block of the same batch again.
        _done[self.name] = (self._run, number)

    def _error(self, why: str, number: int) -> ConfigurationError:
        return ConfigurationError(why, pipeline=self.name, epoch=number)


class _Writes:
    """What the block of an epoch has described; the outputs of its handler.

    Attributes:
        frames: The rows of each sink that is written.
        schemas: Their columns, as they reach the sink.
    """

    apart = True

    def __init__(self, persist: Persist) -> None:
        self.persist = persist
        self.stateful = False
        self.frames: dict[str, DataFrame] = {}
        self.schemas: dict[str, pa.Schema] = {}
        self._kept: list[tuple[str, DataFrame, int]] = []

    def add(self, sink: str, frame: DataFrame, schema: pa.Schema) -> None:
        """Add rows for a sink.

        Raises:
            SchemaError: It has been given rows with other columns.
        """
        # Counted here, because at the block's end nobody can tell any more that it was persisted when it was given.
        self._kept.append((sink, frame, plan_of(frame).kept_parts()))
        before = self.frames.get(sink)
        if before is None:
            self.frames[sink], self.schemas[sink] = frame, schema
            return
        if sorted(frame.dtypes) != sorted(before.dtypes):
            raise SchemaError(
                f"it is written more than once in this epoch, and with other columns: {_columns(before)}, and then "
                f"{_columns(frame)}. Select the same columns of the same types",
                sink=sink,
            )
        self.frames[sink] = before.unionByName(frame)

    def check_kept(self) -> None:
        """Check that what was persisted when it was given to `add` still is, because the rows are computed only now.

        Raises:
            ConfigurationError: The block has released it: two writes would compute it again, and may get other values.
        """
        for sink, frame, parts in self._kept:
            if plan_of(frame).kept_parts() < parts:
                raise ConfigurationError(
                    "a DataFrame that it writes was persisted, and unpersist() was called before the end of the block. "
                    "The block's writes are made at its end, so they would compute it again, each for itself. Call "
                    "unpersist() after the block",
                    sink=sink,
                )

    @contextmanager
    def jobs(self, batch: DataFrame, sinks: Sequence[TwoPhaseCommitSink[Any]]) -> Iterator[list[OutputJob]]:
        """Yield what each job writes, and where, see `Transformations.jobs`. Sinks that got nothing have no job."""
        written = [sink for sink in sinks if sink.name in self.frames]
        if not written and not self.stateful:  # its sources, as any epoch
            batch.write.format("noop").mode("overwrite").save()
        # One function for each DataFrame, so that sinks that get the same one share a job.
        functions = {id(frame): partial(_same, frame) for frame in self.frames.values()}
        by_sink = {name: functions[id(frame)] for name, frame in self.frames.items()}
        with Transformations(by_sink, self.persist, stateful=self.stateful).jobs(batch, written) as jobs:
            yield jobs


def _same(frame: DataFrame, _batch: DataFrame) -> DataFrame:
    return frame


def _columns(frame: DataFrame) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in frame.dtypes)


def _check_batch(frame: Any, what: str) -> None:
    if hasattr(frame, "isStreaming") and hasattr(frame, "mapInArrow"):
        if not frame.isStreaming:
            return
        kind = "a streaming DataFrame, which is written by a query of its own"
    else:
        kind = type(frame).__name__
    raise ConfigurationError(f"{what}; given: {kind}")
