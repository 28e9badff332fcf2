"""Pipeline: what a user builds and runs. docs/operators.md is its page."""

from __future__ import annotations

import math
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final, Unpack

import pyarrow.compute as pc

from ..checkpoint import CommitPolicy
from ..checkpoint.subtask import DirectlyWritten
from ..contract.names import check_pipeline_name
from ..contract.pipeline_settings import ENGINE, ENGINE_START
from ..contract.sink import DirectSink, TwoPhaseCommitSink
from ..contract.source import LiveSource, ResettableSource
from ..errors import CheckpointFailedError, ConfigurationError
from ..kit.caller_warnings import warn
from ..kit.text_options import check_type
from ..log import LogStore, MemoryStore, open_store
from ..log.store import UnopenedStore, unopened_store
from ..run.handover import check_take_over
from .aggregate import AggregateFunction, aggregation
from .batch_sizing import MOST_ROWS
from .config import CheckpointConfig, RestartStrategy
from .functions import ProcessFunction
from .graph import EndToEnd, Graph, Operator, end_to_end
from .job import Job
from .logic import RowFilter
from .projection import projection_of
from .reentrancy import is_inside
from .signals import raising_exit
from .start import EngineWorld, Setup
from .starting_checkpoint import Restore
from .state.keys import MAX_PARALLELISM, KeyEncoder
from .state.memory import MemoryBackend
from .state.row_store import StateBackend
from .state.storage import locate
from .user_functions import check_functions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import Self

    import pyarrow as pa

    from ..contract.pipeline_settings import CommitSettings, StartSettings
    from ..log.note_kinds import CheckpointRecord
    from .records import Record

_LAST_CHECKPOINT_SECONDS: Final = 10.0
"""Seconds that a run that a signal ends waits for its last checkpoint: a third of the time that Kubernetes gives."""


class Stream:
    """A stream of rows in a pipeline, made by `Pipeline.source` and by its own methods."""

    def __init__(self, pipeline: Pipeline, operator: Operator, keys: KeyEncoder | None = None) -> None:
        self._pipeline = pipeline
        self._operator = operator
        self._keys = keys

    def map(
        self,
        function: Callable[[Record], Record],
        *,
        uid: str | None = None,
        parallelism: int | None = None,
        schema: pa.Schema | None = None,
    ) -> Stream:
        """Apply a function to each record: one in, one out."""
        return self._then("map", function, uid, parallelism, schema)

    def filter(
        self,
        predicate: pc.Expression | Callable[[Record], Any] | Callable[[pa.RecordBatch], pa.BooleanArray],
        *,
        batches: bool = False,
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Keep the rows for which the predicate is true.

        Args:
            predicate: A `pyarrow.compute.Expression`, which is evaluated on whole record batches; or a function of a
                record. A row for which an expression is null is dropped, as in SQL.
            batches: The function takes a `pyarrow.RecordBatch` and returns a `pyarrow.BooleanArray` with one value per
                row; null drops the row.
            uid: Stable name of the operator.
            parallelism: Number of subtasks.
        """
        by_batch = batches or isinstance(predicate, pc.Expression)
        return self._then("filter", RowFilter(predicate) if by_batch else predicate, uid, parallelism)

    def flat_map(
        self,
        function: Callable[[Record], Iterable[Record]],
        *,
        uid: str | None = None,
        parallelism: int | None = None,
        schema: pa.Schema | None = None,
    ) -> Stream:
        """Apply a function that returns any number of records for each record."""
        return self._then("flat_map", function, uid, parallelism, schema)

    def map_batches(
        self,
        function: Callable[[pa.RecordBatch], pa.RecordBatch],
        *,
        uid: str | None = None,
        parallelism: int | None = None,
        schema: pa.Schema | None = None,
    ) -> Stream:
        """Apply a function to each record batch: one in, one out.

        Args:
            function: Function that returns a `pyarrow.RecordBatch` with any number of rows.
            uid: Stable name of the operator.
            parallelism: Number of subtasks.
            schema: Schema of what the function returns: the same column names in the same order. Columns of other types
                are cast, and a value that does not fit fails the run.
        """
        return self._then("map_batches", function, uid, parallelism, schema)

    def key_by(self, *columns: str) -> Stream:
        """Send rows with the same values in these columns to the same subtask of the next operator, in order."""
        return Stream(self._pipeline, self._operator, KeyEncoder(columns))

    def process(
        self,
        function: ProcessFunction,
        *,
        uid: str | None = None,
        parallelism: int | None = None,
        schema: pa.Schema | None = None,
    ) -> Stream:
        """Apply a function with state."""
        if not isinstance(function, ProcessFunction):
            raise ConfigurationError(f"process takes a ProcessFunction, not {type(function).__name__}")
        return self._then("process", function, uid, parallelism, schema)

    def aggregate(
        self,
        totals: Mapping[str, tuple[str, AggregateFunction]],
        *,
        ttl: float | None = None,
        uid: str | None = None,
        parallelism: int | None = None,
    ) -> Stream:
        """Compute totals of each key over all rows so far, on whole record batches.

        Each input batch gives one output batch: the columns of the key and the totals, with one row for each key in the
        batch. So the newest row of a key has its totals, and the number of older rows depends on how its input was
        divided into batches.

        Args:
            totals: Column and function of each total, by the total's name:
                `{"total": ("amount", "sum"), "rows": ("*", "count")}`. `count` counts values that are not null
                (int64), or rows (`"*"`). `sum` takes integers (int64), floats (float64) and decimal128 (38 digits);
                `mean` the same (float64); `min` and `max` also text, bytes, booleans, dates, times and timestamps (the
                column's type). Nulls are ignored, as in SQL; a total without values is null. A total that does not fit
                its type fails the run.
            ttl: Seconds for which a key's totals are kept after its last row, in processing time; then they begin anew.
                None: forever.
            uid: Stable name of the state, which belongs to these functions and columns: others need another uid.
            parallelism: Number of subtasks.

        Raises:
            ConfigurationError: The stream has no keys, a function is unknown, a name is taken, or `ttl` is no time.
        """
        return self._then("process", aggregation(self._keys, totals, ttl), uid, parallelism)

    def union(self, *others: Stream, uid: str | None = None, parallelism: int | None = None) -> Stream:
        """Merge this stream with others; the order within each is kept."""
        inputs = [(stream._operator, stream._keys) for stream in (self, *others)]  # noqa: SLF001 - of the same class
        return Stream(self._pipeline, self._pipeline.graph.add("union", None, inputs, uid=uid, parallelism=parallelism))

    def sink(self, sink: TwoPhaseCommitSink[Any] | DirectSink[Any], *, parallelism: int | None = None) -> Pipeline:
        """Write the rows to a sink, whose name is its uid; its `select` and `where` are DuckDB's SQL (extra `duckdb`).

        Raises:
            ConfigurationError: It is not a sink, DuckDB is needed but missing, or `select` or `where` is wrong.
        """
        if not isinstance(sink, (TwoPhaseCommitSink, DirectSink)):
            raise ConfigurationError(f"{type(sink).__name__} is not a sink of the embedded engine")
        projection_of(sink)  # or a ConfigurationError
        self._then("sink", DirectlyWritten(sink) if isinstance(sink, DirectSink) else sink, sink.name, parallelism)
        return self._pipeline

    def _then(
        self, kind: str, what: Any, uid: str | None, parallelism: int | None, schema: pa.Schema | None = None
    ) -> Stream:
        graph, inputs = self._pipeline.graph, [(self._operator, self._keys)]
        return Stream(self._pipeline, graph.add(kind, what, inputs, uid=uid, parallelism=parallelism, schema=schema))


def _check_kind(name: str, value: object, kind: type, what: str) -> None:
    if not isinstance(value, kind | None):
        raise ConfigurationError(f"{name} must be {what}, not {type(value).__name__}")


def _store(store: LogStore | str | os.PathLike[str] | None) -> LogStore:
    """Return the store; one that is named by its URL is opened at the start, which may create it."""
    if store is None:
        return MemoryStore()
    if isinstance(store, str | os.PathLike):
        return unopened_store(store)
    if not isinstance(store, LogStore):
        raise ConfigurationError(f"store must be a folder, a URL or a LogStore, not {type(store).__name__}")
    return store


@ENGINE.described
class Pipeline:
    """A graph of sources, functions and sinks that runs in this process, checkpointed by barriers.

    One thread builds the graph. The methods that start, watch and end a run may be called from any thread, and of
    several that call `start` or `run` concurrently, one starts it and the others get a ConfigurationError. Each subtask
    runs in a thread of its own: plain functions, sinks and sources are shared by them, a ProcessFunction is not.

    Args:
        name: Name of the pipeline, up to 64 letters, digits, `.`, `_` and `-`. It is part of every transaction's name,
            so it must not change between runs, and no two pipelines may share it.
        checkpointing: Settings of the checkpoints: when they are made, and which are kept.
        backend: Backend of keyed state: a MemoryBackend, a FileBackend or a RocksDBBackend.
        restart: Rule for restarts after a failure. Default: exponential-delay with periodic checkpoints, none without.
        max_parallelism: Number of key groups, 1 to 32,768. It cannot change while there is state.
        parallelism: Number of subtasks of operators that do not set their own.
        max_batch_rows: Maximum number of rows that a function or a sink gets in one piece. Default: as many as it works
            off in about 50 ms.
        linger: Seconds for which a source waits for more rows before it passes on a batch with fewer rows than its
            readers work off in about 50 ms. Larger batches cost less, and each row may come so much later.
        settings: Settings of the decision log and its commits, which docs/engine-settings.md lists.
    """

    def __init__(
        self,
        name: str,
        *,
        checkpointing: CheckpointConfig | None = None,
        backend: StateBackend | None = None,
        restart: RestartStrategy | None = None,
        max_parallelism: int = MAX_PARALLELISM,
        parallelism: int = 1,
        max_batch_rows: int | None = None,
        linger: float = 0.0,
        **settings: Unpack[CommitSettings],
    ) -> None:
        self.settings = ENGINE.filled(settings)
        store = self.settings["store"]
        self.name = check_pipeline_name(name)
        _check_kind("checkpointing", checkpointing, CheckpointConfig, "a CheckpointConfig")
        _check_kind("restart", restart, RestartStrategy, "a RestartStrategy")
        _check_kind("backend", backend, StateBackend, "a MemoryBackend, a FileBackend or a RocksDBBackend")
        check_type("parallelism", parallelism, int)
        check_type("max_parallelism", max_parallelism, int)
        check_type("max_batch_rows", max_batch_rows, int | None)
        if max_batch_rows is not None and max_batch_rows < 1:
            raise ConfigurationError(f"max_batch_rows={max_batch_rows}: give 1 row or more")
        check_type("linger", linger, float)
        if not 0 <= linger < math.inf:
            raise ConfigurationError(f"linger={linger}: give a number of seconds, 0 or more")
        if store is None:
            warn(f"pipeline {name} has no store: its decisions are in memory and end with this process. Give store=…")
        config = checkpointing or CheckpointConfig()
        periodic = config.interval is not None
        self.graph = Graph(max_parallelism, parallelism)
        self.setup = Setup(
            pipeline=name,
            graph=self.graph,
            store=_store(store),
            backend=(backend or MemoryBackend()).bind(name),
            config=config,
            policy=CommitPolicy.of(
                self.settings["on_lost"], self.settings["commit_timeout"], self.settings["commit_backoff"]
            ),
            restart=restart or (RestartStrategy.exponential_delay() if periodic else RestartStrategy.none()),
            world=EngineWorld(),
            most_rows=MOST_ROWS if max_batch_rows is None else max_batch_rows,
            linger=linger,
        )
        self._job: Job | None = None
        self._starting = threading.Lock()

    def source(
        self, source: ResettableSource | LiveSource, *, uid: str | None = None, parallelism: int | None = None
    ) -> Stream:
        """Add a source, and return the stream of its rows."""
        if not isinstance(source, (ResettableSource, LiveSource)):
            raise ConfigurationError(
                f"{type(source).__name__} is not a source: it must be a ResettableSource or a LiveSource"
            )
        return Stream(self, self.graph.add("source", source, [], uid=uid, parallelism=parallelism))

    def guarantee(self) -> EndToEnd:
        """Return the guarantee that readers of the targets have, and the parts of the graph that weaken it."""
        return end_to_end(self.graph, self.setup.config)

    @ENGINE_START.described
    def run(self, **settings: Unpack[StartSettings]) -> None:
        """Run until the sources end or the run is stopped: `start`, which documents the arguments, and `wait`.

        Raises:
            OncewardError: It failed for good.
        """
        self.start(**settings)
        self.wait()

    @ENGINE_START.described
    def start(self, **settings: Unpack[StartSettings]) -> Job:
        """Run in the background; returns when the first attempt runs, or when it has failed and will be repeated.

        `restore` and `rewind` take effect once: the same call in a later process continues from the newest checkpoint.

        Args:
            settings: Settings of the run, whose types are in StartSettings.

        Raises:
            OncewardError: It failed for good. A mistake in the graph or in a setting is a ConfigurationError.
        """
        settings = ENGINE_START.filled(settings)
        restore, rewind = settings["restore"], settings["rewind"]
        if rewind is not None and not rewind.strip():
            raise ConfigurationError("rewind is empty: say why the pipeline goes back, or leave it out to continue")
        check_take_over(settings["take_over"])
        with self._starting:  # a second job's START would fence the first
            if self._job is not None and not self._job.wait(0):
                raise ConfigurationError(f"pipeline {self.name} is running")
            self._check()
            path = locate(restore) if restore else None
            if isinstance(self.setup.store, UnopenedStore):
                self.setup = self.setup._replace(store=open_store(self.setup.store.url, pipeline=self.name))
            source = Restore(
                path, settings["claim"], rewind, settings["import_from"], settings["allow_non_restored_state"]
            )
            self._job = job = Job(self.setup, source, settings["take_over"])
        job.start()
        if job.error is not None:
            raise job.error
        return job

    def _check(self) -> None:
        self.graph.check()
        check_functions(self.graph)
        for operator in self.graph.of_kind("source"):
            operator.what.validate()
        self._warn_if_nothing_is_committed()

    def _warn_if_nothing_is_committed(self) -> None:
        endless = [operator.uid for operator in self.graph.of_kind("source") if not operator.what.bounded]
        if endless and self.setup.config.interval is None:
            warn(
                f"pipeline {self.name} has no interval of checkpoints, and {', '.join(endless)} never ends: nothing is "
                "committed until a signal ends the run. Give checkpointing=CheckpointConfig(interval=1.0), a number of "
                "seconds"
            )

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run has ended or the time is over; return whether the run has ended.

        SIGINT and SIGTERM end the run with a checkpoint, for which they wait 10 s at most; a second signal ends it
        without one. The program may handle SIGTERM itself.

        Args:
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            OncewardError: It failed for good.
            KeyboardInterrupt: SIGINT has come.
            SystemExit: SIGTERM has come; the exit code is 143.
        """
        job = self._the_job()
        try:
            with raising_exit(signal.SIGTERM):
                ended = job.wait(timeout)
        except BaseException:
            self._end(job)
            raise
        if not ended:
            return False
        if job.error is not None:
            raise job.error
        return True

    def __enter__(self) -> Self:
        """Return the pipeline; leaving the block ends its run, if there is one."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the run as a signal does: with a checkpoint, for which it waits 10 s at most."""
        if self._job is not None and not self._job.wait(0):
            self._end(self._job)

    def _end(self, job: Job) -> None:
        try:
            job.try_checkpoint(_LAST_CHECKPOINT_SECONDS)
        finally:
            self.stop()

    def stop(self) -> None:
        """End the run without a checkpoint: the next run reads again the rows after the newest checkpoint.

        Returns when the run has ended. A function, a sink, a source or an observer of the run may call it, too: then it
        returns at once, and the run ends when its caller has returned.
        """
        self._the_job().stop()
        if not is_inside(self._the_job()):
            self._the_job().wait()

    def savepoint(self, folder: str | Path, timeout: float | None = None) -> str:
        """Make a savepoint while the pipeline runs, and return its folder; it commits nothing.

        Args:
            folder: A new or empty folder: a path, or a URL that fsspec knows.
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            CheckpointFailedError: It was not made.
        """
        return self._the_job().savepoint(folder, timeout)

    def stop_with_savepoint(self, folder: str | Path, *, drain: bool = False, timeout: float | None = None) -> str:
        """Make a savepoint, commit the rows before it, end the run, and return the savepoint's folder.

        Args:
            folder: A new or empty folder: a path, or a URL that fsspec knows.
            drain: Have functions give what they hold back first, as at the end of the input.
            timeout: Seconds to wait at most; None: no limit.

        Raises:
            CheckpointFailedError: It was not made; the run goes on, or has failed.
        """
        return self._the_job().stop_with_savepoint(folder, drain=drain, timeout=timeout)

    @property
    def checkpoints(self) -> list[CheckpointRecord]:
        """Records of the newest checkpoints."""
        return self._job.checkpoints if self._job is not None else []

    def _the_job(self) -> Job:
        if self._job is None:
            raise CheckpointFailedError(f"pipeline {self.name} has not been started")
        return self._job
