"""`exactly_once`: a streaming query whose every micro-batch reaches all sinks in one atomic decision.

The micro-batch boundary is the barrier.

1. Executors write and pre-commit inside mapInArrow, or the driver does where the rows are few; the driver collects the
   acknowledgements and decides once for all sinks.
2. It commits and puts COMPLETED before the function returns, hence before Spark logs the batch.
3. A batch that Spark replays because it died in between is recognized and not written again.
4. Each run of the query has a coordinator of its own: what a former run knew is read from the log again.
5. What is decided is finished before anything is checked that could fail: a target that does not answer must not keep
   the others from their commit.
6. An epoch that fails undecided is rolled back at once, everywhere. One that may be decided is left to the next start.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Unpack

import pyarrow as pa

from onceward.core.checkpoint import Admission, CommitPolicy
from onceward.core.checkpoint.admission import check_decided_from, check_query
from onceward.core.checkpoint.isolation import over_limit
from onceward.core.checkpoint.numbering import CONSECUTIVE
from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.contract.dead_letters import DeadLetters, Limit, TriesRows, checked_limit, schema_for_letters
from onceward.core.contract.names import check_pipeline_name
from onceward.core.contract.pipeline_settings import EXACTLY_ONCE
from onceward.core.contract.sink import Guarantee
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import ConfigurationError, EpochTornError, EpochVoidedError, OncewardError, text_of
from onceward.core.kit.caller_warnings import warn
from onceward.core.kit.text_options import check_type
from onceward.core.log import read
from onceward.core.log.store import EXPLAINING
from onceward.core.run.handover import LOOK_SECONDS, check_take_over
from onceward.core.run.keeper import Keeper, StoppedError
from onceward.core.run.pipeline_log import (
    check_store_outlives_driver,
    checked_log,
    existing_log,
    local_store,
    noting_failed_start,
    open_pipeline_log,
)
from onceward.core.run.pipeline_run import PipelineRun
from onceward.core.run.source_watch import LOOK_SECONDS as SOURCES_SECONDS
from onceward.sinks import DirectSink, TwoPhaseCommitSink

from ..read.kafka_offsets import watched_sources, with_publication
from ..session.kinds import connect_of, plan_of, session_of
from ..session.options import check_complete_mode, check_not_moved
from ..session.query import check_offset_log, checked_folder, epoch_input, query_of, reason
from ..session.query_plan import handlers
from ..session.spark_session import EndsQueries, QueryRun, QuerySession, spark_errors
from ..session.starting import check_runs, prepare_at_start, refuse_other_targets
from ..session.trial import try_newest_batch
from .executors import Executors, executor_error, executors_of, sending, warn_of_python
from .outputs import Jobs, Output, Transformations, checked_persist, merge_acknowledgements, sinks_of
from .parallelism import TOO_LARGE, checked_writers, driver_limit, row_size, writers_of
from .refused_rows import Letters
from .spark_task import (
    ACK_COLUMN,
    ACK_SCHEMA,
    SIZE_COLUMN,
    STAGE_COLUMN,
    collect_rows,
    project_sinks,
    schema_for,
    share_batches,
    with_plain_names,
    write_and_tell,
    write_partition,
)
from .warm_up import warm_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from onceward.core.contract.pipeline_settings import ExactlyOnceSettings, ForeachBatchSettings
    from onceward.core.contract.sink import AnySink
    from onceward.core.contract.source import ResettableSource
    from onceward.core.log import EpochInput, LogStore, LogView
    from onceward.core.run.pipeline_run import RunEpoch

_log = logging.getLogger("onceward.spark")
_ROUND: Final = (LOOK_SECONDS, SOURCES_SECONDS)
"""Seconds between two looks at a query and the newer drivers that ask for it, and at its sources."""


@EXACTLY_ONCE.described
def exactly_once(df: DataFrame, *sinks: AnySink | Output, **settings: Unpack[ExactlyOnceSettings]) -> DataStreamWriter:
    """Write a streaming DataFrame into one or more sinks, so that each record takes effect exactly once in each.

    Threads of a driver may describe and start several queries concurrently, each with a pipeline of its own, and their
    sinks may be the same objects. The DataStreamWriter is for one thread, as all of Spark's.

    Args:
        df: A streaming DataFrame, of a classic session or of a Spark Connect session.
        sinks: Sinks that get the rows. Each sink has a name that is unique in the pipeline, and may choose columns and
            rows with `select` and `where`. As `Output(sink, function)` it gets its own transformation of each
            micro-batch. A sink with a weaker guarantee (an IdempotentSink, a DirectSink) keeps it, and a warning says
            so.
        settings: Settings of the pipeline, which docs/exactly-once.md lists; ExactlyOnceSettings has their types.

    Returns:
        A DataStreamWriter: set trigger, output mode and query name, then `start()`. The call changes nothing anywhere.
        `start` checks the targets, creates what is missing in them and was requested, and raises what is wrong with
        them as a ConfigurationError, a SchemaError or an ExternalError.

    Raises:
        ConfigurationError: A setting is wrong.
        SchemaError: A column does not fit a sink's settings; the message names it.
        EpochConflictError: The decision log is another pipeline's, or a savepoint has moved it elsewhere.
    """
    settings, plain = EXACTLY_ONCE.filled(settings), sinks_of(sinks)
    _check_frame(df)
    policy, letters = checked_settings(settings, plain, EXACTLY_ONCE.name)
    outputs = Transformations.of(df, sinks, settings["persist"])
    pipeline, store, checkpoint = settings["pipeline"], settings["store"], settings["checkpoint"]
    spark = df.sparkSession
    remote, plan = connect_of(df), plan_of(df)
    if remote is not None:
        resolved = remote.checked_location(checkpoint) if checkpoint is not None else ""
    else:
        resolved = checked_folder(spark, checkpoint) if checkpoint is not None else ""

    check_take_over(settings["take_over"], known=remote is None and bool(resolved or store is not None))

    def look() -> LogView | None:
        if remote is not None or not (resolved or store is not None):
            return None
        return checked_log(store, resolved, pipeline, spark.sparkContext.master)

    if not EXPLAINING.get():
        look()
    warn_of_python(spark)
    driven = driven_sinks(plain, tries=letters is not None)
    schemas = {sink.name: schema_for(outputs.frames.get(sink.name, df), sink) for sink in driven}
    if letters is not None:
        schemas[letters.sink.name] = schema_for_letters(letters.sink)
    for sink in (*driven, *([letters.sink] if letters is not None else [])):
        sink.check_schema(schemas[sink.name])
    read = plan.sources()
    query = HandlerSettings(
        sinks=driven,
        settings=settings,
        policy=policy,
        cheap=plan.only_writes() and not outputs.apart,
        row_size=row_size(df.schema),
        on_complete=with_publication(read, settings["on_complete"]),
        outputs=outputs,
        dead_letters=letters,
        sources=watched_sources(read) if not EXPLAINING.get() else {},
    )
    if remote is not None:
        writer: DataStreamWriter = remote.prepare(df.writeStream, query, schemas)
    else:
        handler = query.handler(spark, schemas)
        writer = df.writeStream.foreachBatch(handler)
        handler.find_log = partial(existing_log, store, resolved, pipeline)
        handlers[writer] = handler

        def prepare() -> None:
            view = look()
            with noting_failed_start(store, resolved, pipeline, reason):
                handler.prepare(view)
            # (Rule W) After the targets' checks: what they refuse must not have ended another driver's run.
            handler.take_over(spark, resolved, settings["take_over"], writer)

        def watch(query: StreamingQuery) -> None:
            handler.watch(str(query.id), str(query.runId), existing_log(store, resolved, pipeline))

        prepare_at_start(writer, prepare, watch)
    refuse_other_targets(writer)
    return writer.option("checkpointLocation", str(checkpoint)) if checkpoint is not None else writer


@dataclass(kw_only=True)
class HandlerSettings:
    """What an EpochHandler is made of, without a session, so that it can be pickled for a Spark Connect server.

    Attributes:
        sinks: Sinks of the pipeline that get the rows, as the coordinator drives them.
        settings: Settings of the user, with the defaults of the others.
        policy: The policy that these settings describe.
        cheap: True if the query's tasks do little but write.
        row_size: Expression for the size of a row in bytes; None if this process may not gather the rows.
        on_complete: Function that is called after each epoch: the user's, and what publishes offsets.
        outputs: The transformations of sinks that have one.
        dead_letters: Settings of the dead letters, to which the sinks' refused rows go; None if such a row fails the
            epoch.
        sources: The query's, by titles, as far as they can say whether their systems answer.
    """

    sinks: Sequence[TwoPhaseCommitSink[Any]]
    settings: ForeachBatchSettings
    policy: CommitPolicy
    cheap: bool
    row_size: str | None
    on_complete: Callable[[int, EpochInput], None] | None
    outputs: Jobs = field(default_factory=Transformations)
    dead_letters: DeadLetters | None = None
    sources: Mapping[str, ResettableSource] = field(default_factory=dict)

    @property
    def all_sinks(self) -> list[TwoPhaseCommitSink[Any]]:
        """All sinks of the pipeline: those that get the rows, and the dead-letter sink."""
        return [*self.sinks, *([self.dead_letters.sink] if self.dead_letters is not None else [])]

    def handler(self, spark: SparkSession | QuerySession, schemas: Mapping[str, pa.Schema]) -> EpochHandler:
        """Return the function for the query's micro-batches.

        Args:
            spark: Session in which the query runs.
            schemas: Arrow schemas of the sinks' rows, by the sink's name.
        """
        return EpochHandler(spark=spark, schemas=schemas, **vars(self))


def _check_frame(df: DataFrame) -> None:
    if not hasattr(df, "isStreaming"):
        raise ConfigurationError(
            f"exactly_once takes a streaming DataFrame, and then the sinks; given first: {_given(df)}"
        )
    if not df.isStreaming:
        raise ConfigurationError("exactly_once needs a streaming DataFrame; use df.write.format(…) for a batch")


def checked_settings(
    settings: ForeachBatchSettings, sinks: Sequence[AnySink], taker: str
) -> tuple[CommitPolicy, DeadLetters | None]:
    """Check the settings of a pipeline; return its policy, and where refused rows go (None: they fail the epoch).

    Args:
        settings: Settings of the user, with the defaults of the others.
        sinks: The sinks, which are not checked yet.
        taker: The function or class that takes them, for messages.

    Raises:
        ConfigurationError: A setting or a sink is wrong.
    """
    letters = settings["dead_letter"]
    check_pipeline([*sinks, *([] if letters is None else [letters])], settings["pipeline"], taker)
    dead_letters = dead_letters_of(letters, settings["max_dead_letters"])
    rewind, on_complete = settings["rewind"], settings["on_complete"]
    check_type("adopt", settings["adopt"], bool)
    check_type("rewind", rewind, str | None)
    if rewind is not None and not rewind.strip():
        raise ConfigurationError("rewind is empty: say why the pipeline goes back, or leave it out")
    if on_complete is not None and not callable(on_complete):
        raise ConfigurationError(f"on_complete must be a function, not {_given(on_complete)}")
    checked_writers(settings["writers"])
    checked_persist(settings["persist"])
    return CommitPolicy.of(settings["on_lost"], settings["commit_timeout"], settings["commit_backoff"]), dead_letters


def check_pipeline(sinks: Sequence[AnySink], pipeline: str, taker: str) -> None:
    """Check a pipeline's sinks, and its name.

    Args:
        sinks: The sinks, which are not checked yet.
        pipeline: Name of the pipeline.
        taker: The function or class that takes them, for messages.

    Raises:
        ConfigurationError: There is none, one is no sink or cannot be sent to the executors, or two have one name.
    """
    if not sinks or not all(isinstance(sink, TwoPhaseCommitSink | DirectSink) for sink in sinks):
        given = ", ".join(map(_given, sinks)) or "none"
        given += " (unpack it: *sinks)" if any(isinstance(one, list | tuple) for one in sinks) else ""
        raise ConfigurationError(
            f"{taker} takes one or more sinks, each a TwoPhaseCommitSink, a DirectSink or an Output; given: {given}"
        )
    names = [sink.name for sink in sinks]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"each sink of a pipeline needs a name of its own; got {names}")
    for sink in sinks:
        check_pickles(sink)
    check_pipeline_name(pipeline)


def dead_letters_of(sink: AnySink | None, limit: Limit) -> DeadLetters | None:
    """Return where refused rows go; None if they fail the epoch.

    Raises:
        ConfigurationError: The limit is none, or the sink has `select` or `where`, which Spark would have to compute.
    """
    checked = checked_limit(limit)
    if sink is None:
        return None
    if sink.select is not None or sink.where is not None:
        raise ConfigurationError("a dead-letter sink takes no select and no where", sink=sink.name)
    return DeadLetters(driven_sinks([sink])[0], checked)


def driven_sinks(sinks: Iterable[AnySink], *, tries: bool = False) -> list[TwoPhaseCommitSink[Any]]:
    """Return the sinks as the coordinator drives them, and warn of those whose guarantee is weaker.

    Args:
        sinks: Sinks of the pipeline.
        tries: True if sinks should have their targets try rows before these are durable, where they can.
    """
    driven = [DirectlyWritten(sink) if isinstance(sink, DirectSink) else sink for sink in sinks]
    if tries:
        driven = [sink.trying_rows(driven) if isinstance(sink, TriesRows) else sink for sink in driven]
    for sink in driven:
        if sink.guarantee is not Guarantee.EXACTLY_ONCE:
            warn(f"sink {sink.name} guarantees only {sink.guarantee}, even with exactly_once")
    return driven


def check_pickles(sink: AnySink) -> None:
    """Refuse objects that Spark could not send to the executors, in the way it sends them."""
    error = _not_pickled(sink)
    if error is None:
        return
    members = [name for name, value in vars(sink).items() if _not_pickled(value) is not None]
    raise ConfigurationError(
        f"sink {sink.name} cannot be sent to the executors ({text_of(error)}{': member ' if members else ''}"
        f"{', '.join(members)}). A sink holds configuration only: open connections in begin and in commit",
        sink=sink.name,
    )


def _not_pickled(value: object) -> Exception | None:
    from pyspark import cloudpickle  # noqa: PLC0415 - needs a Spark installation

    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - whatever a member raises
        return error
    return None


def _given(what: Any) -> str:
    """Return the name of an argument's class, or say that it is a class."""
    return f"the class {what.__name__} (give an instance)" if isinstance(what, type) else type(what).__name__


def _raise_if(error: OncewardError | None) -> None:
    if error is not None:
        raise error from None


def _has_no_mistake(error: BaseException) -> bool:
    """Return whether no mistake in somebody's Python code has caused the error."""
    cause = error.__cause__
    return cause is None or type(cause).__module__ != "builtins" or isinstance(cause, OSError)


@dataclass(kw_only=True)
class EpochHandler(HandlerSettings):
    """Function that Spark calls with each micro-batch; it keeps one coordinator per run of the query.

    Attributes:
        spark: Session in which the query runs.
        schemas: Arrow schemas of the sinks' rows, by the sink's name; a sink without one is validated by the caller.
        executors: Probe of the executors; None if they are on this machine, or before the query starts.
        find_log: Returns the store of the decision log; None if there is none yet, or nobody knows before the first
            epoch.
    """

    spark: SparkSession | QuerySession
    schemas: Mapping[str, pa.Schema] = field(default_factory=dict)
    executors: Executors | None = None
    find_log: Callable[[], LogStore | None] = lambda: None

    def __post_init__(self) -> None:
        self._session = session_of(self.spark)
        self._speculates = self._session.setting("spark.speculation", "false").lower() == "true"
        self._elastic = self._session.setting("spark.dynamicAllocation.enabled", "false").lower() == "true"
        self._is_validated = False
        # The thread that calls start() and Spark's thread of the first micro-batch may begin the same run at once.
        self._between_runs = threading.Lock()
        self._next: PipelineRun | None = None
        """The run that begins next, if it has taken the pipeline over."""
        self._this = self._begun("", "")

    def _begun(self, query: str, run: str) -> _ThisRun:
        """Forget all that the run before it has left. (4) Spark calls the same function in each run of a query.

        Args:
            query: Id of the query; empty if none has started.
            run: Id of its run.
        """
        # Cleared, because a hand-over is for one run: the next one of the query needs a START of its own.
        life, self._next = self._next or self._new_run(), None
        return _ThisRun(life, self._session, query, run)

    def _new_run(self) -> PipelineRun:
        find = lambda: self.find_log()  # noqa: E731, PLW0108 - it may change
        return PipelineRun(
            self.settings["pipeline"], self.all_sinks, self.policy, find, sources=self.sources, explain=reason
        )

    @property
    def run(self) -> PipelineRun:
        """The run of the pipeline whose micro-batches Spark passes; before the first of them, one that has none."""
        return self._this.life

    def _enter(self, query: str, run: str) -> None:
        """Begin this run, unless it has begun: when it is started, or with its first micro-batch."""
        with self._between_runs:
            if (self._this.query, self._this.run) != (query, run):
                self._this.keeper.look_once()  # how the one before has ended
                self._this = self._begun(query, run)
                self._this.keeper.start()

    def prepare(self, view: LogView | None) -> None:
        """Check the targets before the query starts, and create what is missing in them and was requested.

        Meanwhile the executors of a cluster are asked the same; their answers are awaited before START.

        If an epoch is decided and not completed, they are validated once that is done: a target that does not answer
        must not keep what is decided from being committed elsewhere before it expires.

        Args:
            view: State of the decision log; None if there is none yet.

        Raises:
            ConfigurationError: A target is not set up for the guarantee.
            SchemaError: A column does not fit a sink.
        """
        check_offset_log(self._session)
        self.executors = executors_of(self._session, self.all_sinks)
        # One function serves all runs of the query, and a target may have changed since the one before.
        self._is_validated = False
        # (5) Else after the decision is finished, in _open.
        if view is None or view.undone is None:
            self._validate()

    def _validate(self) -> None:
        for sink in self.all_sinks:
            if sink.name in self.schemas:
                sink.validate(self.schemas[sink.name])
        self._is_validated = True

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Run one micro-batch as one epoch.

        Spark logs the traceback of an error twice, and raises it once more where the query is awaited. An error that
        says what to do, or that Spark has logged where it was raised, loses the frames below this function, unless a
        mistake in somebody's Python code has caused it.
        """
        try:
            with self._turn(batch):
                self.run.repeat(batch, partial(self._attempt, frame, batch))
            self._this.keeper.start()
        except BaseException as error:
            if not self._explains_itself(error):
                raise
            _log.debug("epoch %s of pipeline %s failed", batch, self.run.pipeline, exc_info=True)
            raise error.with_traceback(None) from None

    @contextlib.contextmanager
    def _turn(self, batch: int) -> Iterator[None]:
        """Enter the run that Spark calls in this thread, and let its epoch begin in the block."""
        with self.run.telling(batch):
            current = self._session.current_run(self._this.current)
            self._enter(current.query, current.run)
            # After `_enter`, which puts another `_this` in place when a run begins.
            self._this.current = current
        with self.run.turn(batch, self._this.await_stop):
            yield

    def take_over(self, spark: SparkSession, checkpoint: str, patience: float | None, writer: DataStreamWriter) -> None:
        """Take the pipeline over from the driver that runs it, before the query starts.

        (Rule W) A start that fails has ended no run that works: what can refuse it is asked before the request, and the
        targets once more before START, if they could not be asked because of a decision that was being finished.

        Args:
            spark: The session, which is warmed up first.
            checkpoint: Location of the query's checkpoint.
            patience: Seconds to wait at most until that driver has ended its epoch; None: do nothing.
            writer: DataStreamWriter that will start the query.

        Raises:
            FencedError: Yet another driver is taking it over.
            StoreError: The store of the decision log did not answer.
            ConfigurationError: Spark or a target will not run the query.
            EpochConflictError: The decision log is another query's.
        """
        if patience is None:
            return
        if check_runs(writer) == "complete":
            for sink in self.sinks:
                check_complete_mode(sink)
        place, pipeline = self.settings["store"], self.settings["pipeline"]
        if place is not None:
            check_not_moved(checkpoint, pipeline, self._session.reader())
        store = open_pipeline_log(place, checkpoint, pipeline)
        # With a rewind the user goes back on purpose, so an older checkpoint is no mistake.
        if self.settings["rewind"] is None and checkpoint:
            self._check_continues(read(store), checkpoint)
        warm_up(spark, self.all_sinks)
        if self.executors is not None:
            _raise_if(self.executors.problem())
        if checkpoint:
            try_newest_batch(writer, checkpoint)
        self._next = self._new_run()
        self._next.take_over(patience, self._validate_once, store=store)

    def _check_continues(self, view: LogView, checkpoint: str) -> None:
        """Refuse a checkpoint from which the query would not go on where the log is, such as an older copy."""
        read_text = self._session.reader()
        query = query_of(read_text, checkpoint)
        check_query(view, query, CONSECUTIVE)
        newest = view.newest
        if newest is not None and not view.rewound:  # Spark has written the offsets of what is decided
            check_decided_from(view, epoch_input(read_text, checkpoint, query, newest.epoch))

    def _validate_once(self) -> None:
        if not self._is_validated:
            self._validate()

    def begin(self, batch: int) -> None:
        """Become the pipeline's writer, if this run is not yet, and finish what an earlier one has decided.

        What is lost of a decision is left to the call that writes the micro-batch.
        """
        # The micro-batch is not known here, so what is lost of a decision cannot be written again yet.
        try:
            with self._turn(batch), contextlib.suppress(EpochVoidedError, EpochTornError):
                self._opened(batch)
        except BaseException as error:
            if not self._explains_itself(error):
                raise
            raise error.with_traceback(None) from None

    def watch(self, query: str, run: str, log: LogStore | None) -> None:
        """Watch a query that has started.

        Args:
            query: Id of the query.
            run: Id of its run.
            log: Store of the decision log; None if there is none yet.
        """
        if log is not None:
            self.find_log = lambda: log
        self._enter(query, run)
        self._this.keeper.start()

    def tell_failed(self, batch: int | None, error: BaseException) -> None:
        """Tell observers and the pipeline's notes why an epoch, the start before it, or the query failed."""
        self.run.failed(batch, error)

    @property
    def query(self) -> str:
        """The id of the query whose micro-batches it writes; empty if it has seen none."""
        return self._this.current.query if self._this.current is not None else ""

    def is_active(self) -> bool:
        """Return whether the query is running whose micro-batches it has written."""
        return self._session.is_active(self._this.query)

    def _explains_itself(self, error: BaseException) -> bool:
        """Return whether the message needs no traceback: it says how to proceed, or Spark has logged the rest."""
        if isinstance(error, StoppedError):
            return True
        return _has_no_mistake(error) and (isinstance(error, OncewardError) or self._session.reports(error))

    def _opened(self, batch: int) -> EpochInput:
        """Become the pipeline's writer, if this run is not yet; return the input of a micro-batch."""
        current = self._this.current
        assert current is not None  # noqa: S101 - entered by whoever calls this
        about = epoch_input(self._this.read_text, current.checkpoint, current.query, batch)
        if self.run.coordinator is None:
            self._open(current, batch, about)
        return about

    def _attempt(self, frame: DataFrame, batch: int) -> None:
        about = self._opened(batch)
        # (3) By the batch's number and offsets, as the decision log has them.
        with self.run.epoch(batch, about, adopt=self.settings["adopt"]) as epoch:
            if epoch.admission is Admission.HEAL:
                self._heal(frame, epoch)
            elif epoch.admission is Admission.REPLAY:
                # (3) Its rows are committed: `open` has finished the decision.
                # A stateful query must run the batch all the same, or its state store misses a version for ever.
                frame.write.format("noop").mode("overwrite").save()
            else:
                self._write_new(frame, epoch)
            # Also after a replay: the process that committed the epoch may have died before it came to this.
            if self.on_complete is not None:
                self.on_complete(batch, about)

    def _write_new(self, frame: DataFrame, epoch: RunEpoch) -> None:
        tasks = self._tasks(epoch.input)
        cheap = self.cheap and self.row_size is not None
        copies = 1 if share_batches(self.sinks) else len(self.sinks)
        limit = driver_limit(self.settings["writers"], epoch.input, self._this.row_bytes, cheap=cheap, copies=copies)
        if self.outputs.apart:
            acks, lost = self._write_outputs(frame, epoch, tasks)
        else:
            acks, lost = self._write(frame, epoch, tasks, limit)
        # Before the decision: an epoch with too many refused rows must not become visible.
        self._check_dead_letters(epoch, acks)
        # (1) (2) Returns after COMPLETED; on_complete and Spark's own commit log come later.
        epoch.commit(acks, sweep_after=lost)

    def _tasks(self, about: EpochInput) -> int | None:
        """Return the maximum number of tasks that write an epoch; None for one for each partition."""
        slots = None if self._elastic else self._session.slots()
        return writers_of(self.settings["writers"], slots, about, cheap=self.cheap)

    def _letters(self, epoch: RunEpoch, *, written: bool = True, tasks: int | None = None) -> Letters | None:
        dead = self.dead_letters
        if dead is None:
            return None
        context = epoch.context(dead.sink.name)
        return Letters(dead.sink, context, dead.most, written, dead.share(tasks))

    def _check_dead_letters(self, epoch: RunEpoch, acks: Sequence[Acknowledgement]) -> None:
        """Refuse the epoch if too many of its rows were refused, and else report them."""
        dead = self.dead_letters
        if dead is None:
            return
        amounts = [written for ack in acks for written in ack.written if written.sink != dead.sink.name]
        refused = sum(written.refused for written in amounts)
        counts: dict[str, int] = {}
        for why, rows in (item for ack in acks for item in ack.refused.items()):
            counts[why] = counts.get(why, 0) + rows
        if limit := dead.exceeded(amounts):
            raise over_limit(epoch.context(dead.sink.name), refused, limit, counts)
        if refused:
            words = "; ".join(f"{rows} times {why}" for why, rows in counts.items())
            _log.warning("epoch %s: %s refused rows go to sink %s: %s", epoch.number, refused, dead.sink.name, words)

    def _heal(self, frame: DataFrame, epoch: RunEpoch) -> None:
        """Compute a decided epoch again, and write its lost rows, with as many tasks as wrote it before."""
        lost = epoch.lost
        assert lost is not None  # noqa: S101 - admitted as such
        only = {name: lost.writes(name) for name in lost.sinks}
        # Rows go to the same subtasks only if there are as many as before; otherwise their hash would differ. Without a
        # limit there are, and one would reorder them: Spark gathers partitions by where they are.
        limit = self._tasks(epoch.input)
        tasks = None if limit is None else lost.subtasks or limit
        acks, left = self._write_outputs(frame, epoch, tasks, only)
        epoch.commit(acks, sweep_after=left)

    def _open(self, current: QueryRun, batch: int, about: EpochInput) -> None:
        if current.complete:
            for sink in self.sinks:
                check_complete_mode(sink)
        place, pipeline = self.settings["store"], self.settings["pipeline"]
        if place is not None:
            check_not_moved(current.checkpoint, pipeline, self._this.read_text)
        store = open_pipeline_log(place, current.checkpoint, pipeline)
        self.find_log = lambda: store
        check_store_outlives_driver(local_store(store), self._session.master)
        # (5) START, sweep, and the end of what is decided.
        self.run.open(
            store,
            self._check_ready,
            epoch=(batch, about),
            adopt=self.settings["adopt"],
            rewind=self.settings["rewind"],
        )

    def _check_ready(self) -> None:
        """Refuse executors that cannot write, and targets that are not set up."""
        if self.executors is not None:
            _raise_if(self.executors.problem())
        self._validate_once()

    def _write(
        self, frame: DataFrame, epoch: RunEpoch, tasks: int | None, limit: float | None
    ) -> tuple[list[Acknowledgement], bool]:
        """Write the epoch; return the acknowledgements, and whether an attempt may have left something behind.

        Args:
            frame: The micro-batch.
            epoch: The epoch that the micro-batch is.
            tasks: Maximum number of tasks; None for one for each partition.
            limit: Bytes of the largest row that this process may get; None: tasks write.
        """
        # Not repartition: coalesce keeps the order of the rows within each partition.
        limited = frame if tasks is None else frame.coalesce(tasks)
        if limit is not None:
            # At first each partition waits for a client of the source: in one task they would wait in turn.
            rows = self._gathered(limited if self._this.has_read else frame, limit)
            self._this.has_read = True
            if rows is not None:
                self._note_size(rows.nbytes / rows.num_rows if rows.num_rows else None)
                contexts = [epoch.context(sink.name, subtask=0) for sink in self.sinks]
                letters = self._letters(epoch, tasks=1)
                return [write_partition(self.sinks, contexts, rows.to_batches(), letters=letters)], False
        written = self._write_by_tasks(limited, epoch, self.sinks, tasks=tasks)
        self._this.has_read = True
        return written

    def _gathered(self, frame: DataFrame, limit: float) -> pa.Table | None:
        """Return all rows in this process; None if one is larger than `limit` bytes, or pyspark cannot collect them.

        That is a null struct or variant whose fields are declared never null: pyspark 4.2 casts it, and Arrow refuses.
        """
        try:
            if limit != math.inf:
                # Spark checks this where it computes the row, so that one that is too large never reaches this process.
                frame = frame.where(f"if({self.row_size} <= {limit}, true, raise_error('{TOO_LARGE}'))")
            return collect_rows(project_sinks(frame, self.sinks, source=self.dead_letters is not None))
        except pa.ArrowInvalid:
            pass
        except spark_errors() as error:
            if TOO_LARGE not in text_of(error):
                raise
        self._note_size(math.inf)  # until the run ends
        return None

    def _note_size(self, row_bytes: float | None) -> None:
        # Infinity is final: this process may not gather the run's rows, whatever size tasks measure later.
        if row_bytes is not None and self._this.row_bytes != math.inf:
            self._this.row_bytes = row_bytes

    def _write_by_tasks(
        self,
        frame: DataFrame,
        epoch: RunEpoch,
        sinks: Sequence[TwoPhaseCommitSink[Any]],
        only: Sequence[frozenset[int] | None] | None = None,
        *,
        letters_written: bool = True,
        tasks: int | None = None,
    ) -> tuple[list[Acknowledgement], bool]:
        letters = self._letters(epoch, written=letters_written, tasks=tasks)
        contexts = [epoch.context(sink.name) for sink in sinks]
        rows_frame, names = with_plain_names(project_sinks(frame, sinks, source=letters is not None))
        task = partial(write_and_tell, sinks, contexts, names=names, only=only, letters=letters)
        rows = self._acknowledged(rows_frame, task)
        self._note_size(max((row[SIZE_COLUMN] for row in rows if row[SIZE_COLUMN] is not None), default=None))
        # An attempt that Spark gave up may have prepared something, of which no acknowledgement tells.
        lost = self._speculates or self._session.failed({row[STAGE_COLUMN] for row in rows})
        return [Acknowledgement.from_json(row[ACK_COLUMN]) for row in rows], lost

    def _acknowledged(self, frame: DataFrame, task: Callable[..., Iterator[pa.RecordBatch]]) -> list[Any]:
        if self.executors is None:
            return frame.mapInArrow(task, ACK_SCHEMA).collect()
        try:
            return frame.mapInArrow(sending(task), ACK_SCHEMA).collect()
        except Exception as error:
            # A task that is refused by its own check can say why only in the text of Spark's error.
            _raise_if(executor_error(error))
            raise

    def _write_outputs(
        self,
        frame: DataFrame,
        epoch: RunEpoch,
        tasks: int | None,
        only: Mapping[str, frozenset[int] | None] | None = None,
    ) -> tuple[list[Acknowledgement], bool]:
        """Write what each transformation returns, one job after the other.

        Args:
            frame: The micro-batch.
            epoch: The epoch that the micro-batch is.
            tasks: Maximum number of tasks of each job; None for one for each partition.
            only: The sinks that write, and in which subtasks (None for all); None for all sinks.
        """
        sinks = [sink for sink in self.sinks if only is None or sink.name in only]
        everywhere = [sink for sink in self.all_sinks if only is None or sink.name in only]
        # Longer by the dead-letter sink, unless there is none, or a heal leaves it out.
        letters_written = len(everywhere) > len(sinks)
        acks: list[Acknowledgement] = []
        lost = False
        with self.outputs.jobs(frame, sinks) as jobs:
            for rows, part in jobs:
                limited = rows if tasks is None else rows.coalesce(tasks)
                subtasks = None if only is None else [only[sink.name] for sink in part]
                written, left = self._write_by_tasks(limited, epoch, part, subtasks, letters_written=letters_written)
                acks, lost = acks + written, lost or left
        return merge_acknowledgements(acks, everywhere), lost


class _ThisRun:
    """What Spark's function keeps for one run of a query.

    Attributes:
        life: The same run as one of the pipeline.
        query: Id of the query; empty if none has started.
        run: Id of the query's run.
        keeper: Thread that looks after the run between its epochs.
        await_stop: Function that waits in Spark's thread until the run is ended; None if nothing here can end it.
        current: The run as Spark describes it, since its first micro-batch.
        read_text: Function that reads a small file of the checkpoint.
        row_bytes: Size of the run's rows; infinite if this process may not gather them.
        has_read: True if it has written an epoch: its tasks then have clients of the source.
    """

    def __init__(self, life: PipelineRun, session: QuerySession, query: str, run: str) -> None:
        self.life, self.query, self.run = life, query, run
        self.current: QueryRun | None = None
        self.read_text = session.reader()
        self.row_bytes: float | None = None
        self.has_read = False
        is_active = partial(session.is_active, query, run)
        ends = session if isinstance(session, EndsQueries) else None
        self.await_stop = None if ends is None else ends.await_stop
        stop = None if ends is None else partial(ends.stop, query, run)

        def ended() -> None:
            life.say_ended()
            life.ended_with(session.failure(query))

        look, ask = _ROUND
        self.keeper = Keeper(
            f"onceward-{life.pipeline}",
            is_active=is_active,
            look=lambda: None if stop is None else life.hand_over(is_active, stop),
            duties=[(life.policy.sweep_every, life.sweep), (ask, life.ask_sources)],
            ended=ended,
            every=look,
        )
