"""Spark Connect: how `exactly_once` reaches the server, and what its process there asks instead of a JVM.

The client describes the query. The foreachBatch function runs on the server: in one Python process for each run of a
query, beside the server's JVM, which is a client of the same session (measured on pyspark 4.2). So all of the protocol
runs in that process, and the client may go away.

1. The function travels as bytes. The process unpickles it before `start()` returns, so what onceward refuses at that
   moment (another version, a missing module, a target or a decision log) is an error of `start()`.
2. The process is told nothing of its query: neither the session nor the tasks have the query's id. The id is in the
   checkpoint's file `metadata`, and the session must have an active query with this id; otherwise nothing is written.
3. What a process holds belongs to one run, so there is one START for each process, and the run is looked up once.
4. `stop()` ends the process with SIGTERM. It finishes the epoch that it is in, as the driver of a classic session does.
   A process that outlives its server is fenced by the START of the next run, as any other older writer.
5. Spark has no status tracker here: acknowledgements say which tasks ran again. What a lost executor has prepared
   without anybody saying so is aborted by the sweeps between epochs (`CommitPolicy.sweep_every`).
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyspark
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

import onceward
from onceward.core.errors import ConfigurationError, text_of
from onceward.core.kit.text_options import check_type, comparable_option
from onceward.core.run.pipeline_log import checked_log, local_path, noting_failed_start

from .processes import observe_if_asked
from .query import ASYNC, REAL_TIME, read_text, reason, refusal_of, remembering_last
from .query_plan import CHEAP, StreamingSource, named_stateful
from .spark_session import QueryRun, StartableQuery, is_run
from .starting import check_start_arguments, warn_of_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.connect.streaming.query import StreamingQuery

    from .spark_session import EpochFunction

_log = logging.getLogger("onceward.spark")
STOP_SECONDS: Final = 60.0
"""Seconds for which a process that was told to end may still work on its epoch."""
_TERMINATED: Final = 128 + signal.SIGTERM
_SPLITS: Final = re.compile(r"\bsplits=(\d+)")
_BRANCH: Final = re.compile(r"[ :]*[+:]- ")
_NODE: Final = re.compile(r"(?:[ :]*[+:]- )?[~'!]*(\w+)")
_MISSING: Final = "PATH_NOT_FOUND"


# The client


def checked_location(checkpoint: Any) -> str:
    """Return the location of a checkpoint on the server, which the client may not see.

    Raises:
        ConfigurationError: It is empty, or relative to a folder of this machine.
    """
    check_type("checkpoint", checkpoint, str)
    location: str = os.fspath(checkpoint).rstrip("/")
    if not location.strip():
        raise ConfigurationError("checkpoint is empty: give a folder")
    if not urlsplit(location).scheme and not location.startswith("/"):
        raise ConfigurationError(
            f"checkpoint {location}: with Spark Connect it is a folder of the server, so give an absolute path or a URL"
        )
    return location


def prepare(writer: DataStreamWriter, settings: StartableQuery, schemas: Mapping[str, pa.Schema]) -> DataStreamWriter:
    """Let a writer send the foreachBatch function when it is started: only then are checkpoint and output mode known.

    Raises:
        ConfigurationError: Something that exactly_once was given cannot be sent to the server.
    """
    if pyspark.__version__.startswith("3."):
        raise ConfigurationError(
            f"exactly_once works over Spark Connect from pyspark 4.0 on, and pyspark {pyspark.__version__} is installed"
        )
    # Only tried here, so that what cannot be sent is refused where the query is described, before it is started.
    _pickled(settings)
    writer.start = partial(_start, writer, settings, schemas)  # type: ignore[method-assign]
    return writer


def _start(
    writer: DataStreamWriter,
    settings: StartableQuery,
    schemas: Mapping[str, pa.Schema],
    *place: Any,
    outputMode: str | None = None,  # noqa: N803 - pyspark's name
    queryName: str | None = None,  # noqa: N803 - pyspark's name
    **options: Any,
) -> StreamingQuery:
    """Start the query, as `DataStreamWriter.start` does."""
    check_start_arguments(place, options)
    writer.options(**options)
    if outputMode is not None:
        writer.outputMode(outputMode)
    if queryName is not None:
        writer.queryName(queryName)
    checkpoint = _checkpoint(writer)
    proto = writer._write_proto  # noqa: SLF001 - a writer has no public way to ask for its settings
    if proto.WhichOneof("trigger") == "real_time_batch_duration":
        raise refusal_of(REAL_TIME)
    plan: Any = writer._write_stream._child  # noqa: SLF001 - no public way to ask
    warn_of_order(ConnectPlan(DataFrame(plan, writer._session)), settings, {})  # noqa: SLF001
    query = StartedQuery(settings, schemas, checkpoint, proto.output_mode.lower() == "complete")
    # Through the class: on this writer, foreachBatch is one that refuses, and start is this very function.
    DataStreamWriter.foreachBatch(writer, _Sent(_pickled(query)))
    return DataStreamWriter.start(writer)


def _checkpoint(writer: DataStreamWriter) -> str:
    """Return where Spark will put the checkpoint, and set it, so that it is the same on the server."""
    options = {comparable_option(name): text for name, text in writer._write_proto.options.items()}  # noqa: SLF001
    if options.get("asyncprogresstrackingenabled", "false").lower() == "true":
        raise refusal_of(ASYNC)
    location = options.get("checkpointlocation")
    if location is None:
        parent = writer._session.conf.get("spark.sql.streaming.checkpointLocation", None)  # noqa: SLF001
        name = writer._write_proto.query_name  # noqa: SLF001
        if parent is None or not name:
            raise ConfigurationError(
                "the query has no checkpoint of its own: a restart would write everything again. Give "
                "exactly_once(…, checkpoint=…); with spark.sql.streaming.checkpointLocation alone, Spark needs a "
                "queryName to find it again"
            )
        location = f"{parent.rstrip('/')}/{name}"
    location = checked_location(location)
    writer.option("checkpointLocation", location)
    return location


def _pickled(what: object) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(what)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise ConfigurationError(
            f"exactly_once cannot be sent to the Spark Connect server ({text_of(error)}): sinks, functions and "
            "on_complete are pickled, and store must be a folder or a URL"
        ) from error
    return pickled


class _Sent:
    """The foreachBatch function on its way to the server, as bytes."""

    def __init__(self, query: bytes) -> None:
        self._query = query

    def __call__(self, frame: Any, batch: int) -> None:
        """Do nothing: what arrives is an EpochHandler."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpacker(), (self._query, onceward.__version__)


def _unpacker() -> Callable[[bytes, str], Callable[[Any, int], None]]:
    """Return a function that is pickled with its code, so that it can say what is wrong where onceward is missing."""

    def unpack(query: bytes, version: str) -> Callable[[Any, int], None]:
        try:
            from importlib import import_module  # noqa: PLC0415 - travels with its code, not with this module

            there = import_module("onceward").__version__
            connect = import_module("onceward.connectors.spark.session.connect")
        except ImportError as error:
            raise RuntimeError(
                f"the Spark Connect server cannot import onceward, which is {version} on the client: install it, with "
                f"the extras of its sinks, for the server's Python and for the executors ({error!r})"
            ) from None
        if there != version:
            raise RuntimeError(f"onceward is {version} on the client and {there} on the server: install the same")
        handler: Callable[[Any, int], None] = connect.received(query)
        return handler

    return unpack


# The server


@dataclass(frozen=True)
class StartedQuery:
    """A query that is being started.

    Attributes:
        settings: Settings that exactly_once was given.
        schemas: Arrow schemas of the sinks' rows, by the sink's name.
        checkpoint: Location of the query's checkpoint.
        complete: True if the query's output mode is complete.
    """

    settings: StartableQuery
    schemas: Mapping[str, pa.Schema]
    checkpoint: str
    complete: bool


def received(query: bytes) -> Callable[[Any, int], None]:
    """Return the foreachBatch function, in the server's process that will call it: see (1).

    Raises:
        ConfigurationError: A module is missing, or the log or a target is refused.
    """
    observe_if_asked()
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise ConfigurationError("exactly_once on Spark Connect works inside of foreachBatch only")
    try:
        started: StartedQuery = cloudpickle.loads(query)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the Spark Connect server cannot import {error.name}, which a sink or a function needs. addArtifacts "
            "reaches tasks, but not the process of foreachBatch: install the module on the server, or let it travel "
            f"with pyspark.cloudpickle.register_pickle_by_value({error.name})"
        ) from None
    described, session = started.settings, ConnectSession(spark, started.checkpoint, complete=started.complete)
    store, pipeline = described.settings["store"], described.settings["pipeline"]
    view = checked_log(store, started.checkpoint, pipeline, session.master)
    handler = described.handler(session, started.schemas)
    with noting_failed_start(store, started.checkpoint if view is not None else None, pipeline, reason):
        handler.prepare(view)
    return InOrder(handler)


class InOrder:
    """The foreachBatch function, in a process that SIGTERM ends between two epochs, not inside of one: see (4)."""

    def __init__(self, handler: EpochFunction) -> None:
        self._handler = handler
        self._busy = self._ending = False
        signal.signal(signal.SIGTERM, self._end)

    def __call__(self, frame: Any, batch: int) -> None:
        """Run one micro-batch."""
        with self._in_epoch():
            self._handler(frame, batch)

    @contextmanager
    def _in_epoch(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            # Before the question: a SIGTERM between the two lines has to end the process, not leave it to the timer.
            self._busy = False
            if self._ending:
                raise SystemExit(_TERMINATED)

    def _end(self, *_: object) -> None:
        if not self._busy:
            raise SystemExit(_TERMINATED)
        self._ending = True
        # It ends the process by os._exit, because SystemExit would end only the timer's own thread.
        last = threading.Timer(STOP_SECONDS, os._exit, [_TERMINATED])
        last.daemon = True
        last.start()


class ConnectSession:
    """The session of a process of foreachBatch.

    Args:
        spark: The session, as that process has it: that of the client, not the query's own clone (SPARK-44462).
        checkpoint: Location of the query's checkpoint.
        complete: True if the query's output mode is complete.
    """

    def __init__(self, spark: SparkSession, checkpoint: str, *, complete: bool = False) -> None:
        self.spark = spark
        self._checkpoint = checkpoint
        self._complete = complete
        self._slots: int | None = None
        self._read = partial(read_by_session, spark) if local_path(checkpoint) is None else read_text

    @property
    def master(self) -> str | None:
        """Spark's master; None if the server keeps it to itself."""
        return self.setting("spark.master", "") or None

    def setting(self, name: str, default: str) -> str:
        """Return one of the session's settings."""
        try:
            return str(self.spark.conf.get(name, default))
        except PySparkException:  # some servers let clients see a few settings only
            return default

    def slots(self) -> int | None:
        """Return Spark's default parallelism, which the plan of a range shows."""
        if self._slots is None:
            match = _SPLITS.search(plan_text(self.spark.range(1), "simple"))
            self._slots = int(match[1]) if match else None
        return self._slots

    def current_run(self, last: QueryRun | None) -> QueryRun:
        """Return the query that runs from the checkpoint; it must be active in this session (2). Looked up once (3)."""
        if last is not None:
            return last
        text = self._read(f"{self._checkpoint}/metadata")
        if text is None:
            raise ConfigurationError(
                f"the checkpoint {self._checkpoint} has no metadata file that {_who(self._checkpoint)} can read. "
                "Nothing was written. If it is not a folder of the server's own machine, give a URL with its scheme"
            )
        query = str(json.loads(text)["id"])
        runs = {str(one.id): str(one.runId) for one in self.spark.streams.active}
        if query not in runs:
            raise ConfigurationError(
                f"the checkpoint {self._checkpoint} is that of the query {query}, which does not run in this session. "
                "Nothing was written"
            )
        return QueryRun(query, runs[query], self._checkpoint, self._complete)

    def is_active(self, query: str, run: str = "") -> bool:
        """Return whether the session has the query, and in this run."""
        return any(is_run(one, query, run) for one in self.spark.streams.active)

    def failure(self, query: str) -> BaseException | None:  # noqa: ARG002
        """Return None: the process ends with its query."""
        return None

    def reader(self) -> Callable[[str], str | None]:
        """Read files of this machine directly, and others through the session."""
        return remembering_last(self._read)

    def failed(self, stages: Iterable[int]) -> bool:  # noqa: ARG002 - nobody here knows of stages
        """Return False, because a server does not tell: acknowledgements and sweeps show it (5)."""
        return False

    def reports(self, error: BaseException) -> bool:
        """Return whether the server has raised the error."""
        from pyspark.errors.exceptions.connect import SparkConnectException  # noqa: PLC0415 - of Spark Connect

        return isinstance(error, SparkConnectException)


def _who(checkpoint: str) -> str:
    return "the server's process of foreachBatch" if local_path(checkpoint) is not None else "Spark"


def read_by_session(spark: SparkSession, url: str) -> str | None:
    """Read a small text file of any file system that Spark knows; None if it is not there.

    Each costs a job of about 100 ms. Spark does not see files whose names begin with `.` or `_`.
    """
    try:
        rows = spark.read.text(url, wholetext=True).collect()  # an option of that name would be overwritten
    except AnalysisException as error:
        if error.getCondition() != _MISSING:
            raise
        return None
    return str(rows[0][0]) if rows else None


# Plans, which only the server knows


def plan_text(df: Any, mode: str) -> str:
    """Return what `df.explain(mode)` prints."""
    return str(df._explain_string(mode=mode))  # noqa: SLF001 - explain() prints it


def node_names(df: Any, plan: str = "Analyzed") -> list[str]:
    """Return the names of a plan's nodes, from the top.

    Args:
        df: A DataFrame of a Connect session.
        plan: Analyzed or Optimized.
    """
    _, _, text = plan_text(df, "extended").partition(f"== {plan} Logical Plan ==\n")
    lines = text.partition("\n== ")[0].splitlines()
    if plan == "Analyzed":
        del lines[:1]  # the columns
    matches = [_NODE.match(line) for number, line in enumerate(lines) if number == 0 or _is_node(line)]
    return [match[1] for match in matches if match is not None]


def _is_node(line: str) -> bool:
    """Return whether a line begins a node: a text in an expression may go on in a line of its own."""
    return _BRANCH.match(line) is not None


class ConnectPlan:
    """The plan of a DataFrame of Spark Connect: its own description, and what the server explains."""

    def __init__(self, df: Any) -> None:
        self._df = df

    def node_names(self) -> list[str]:
        """Read what the server prints."""
        return node_names(self._df)

    def sources(self) -> list[StreamingSource]:
        """Return the streams that its own description reads: those behind a view or in SQL are not listed."""
        return [_source(read) for read in _reads(self._described()) if read.is_streaming]

    def only_writes(self) -> bool:
        """Look at the optimized plan, in which a Python function has a node of its own."""
        return all(name in CHEAP for name in node_names(self._df, "Optimized"))

    def keeps_state(self) -> bool:
        """Count any join as one of two streams: the server does not say what streams."""
        return any(name == "Join" or named_stateful(name) for name in self.node_names())

    def reads_of(self, batch: Any) -> int | None:
        """Count how often its description names the batch; a view's name hides it."""
        identifier = getattr(batch._plan, "_relation_id", None)  # noqa: SLF001 - no public way to ask
        if identifier is None:
            return None
        # Not 0, which would mean that the batch is not read: a view's name may hide it.
        return int(self._described().SerializeToString().count(identifier.encode())) or None

    def kept_parts(self) -> int:
        """Return 0: the server does not say what it has persisted."""
        return 0

    @contextmanager
    def describing(self) -> Iterator[Any]:
        """Yield an empty micro-batch: from pyspark 4.3 on in a clone of the session, as Spark passes batches.

        The server forgets the clone when nobody has used it for a while; results of functions need it until then.
        """
        session = self._df.sparkSession
        if not pyspark.__version__.startswith(("4.0.", "4.1.", "4.2.")):
            session = session.cloneSession()
        yield session.createDataFrame([], self._df.schema)

    def _described(self) -> Any:
        return self._df._plan.to_proto(self._df._session.client)  # noqa: SLF001 - no public way to ask


def _source(read: Any) -> StreamingSource:
    source = read.data_source
    options = {name.lower(): value for name, value in source.options.items()}
    return StreamingSource(source.format or "table", options)


def _reads(message: Any) -> Iterator[Any]:
    """Yield the leaves that read of a message of Spark Connect's protocol, in the order in which they are written."""
    if message.DESCRIPTOR.full_name == "spark.connect.Read":
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:  # neither holds relations
            continue
        for inner in [value] if hasattr(value, "ListFields") else value:
            yield from _reads(inner)
