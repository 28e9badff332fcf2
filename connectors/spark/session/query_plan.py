"""What a streaming query is, read from its analyzed plan and its writer before it is started.

What may come out differently in another attempt of a micro-batch, as measured on pyspark 4.2 (docs/explain.md has the
table, and integration/test_explain.py measures it):

- Spark gives `rand`, `uuid` and their like a new seed whenever it plans a batch, even where the query names one.
- It pins `current_timestamp`, `localtimestamp` and `current_date` to the time in the batch's offsets file, but neither
  `now` nor `current_time`, and none of them in `select` and `where` of a sink, which each attempt evaluates anew.
- Since Spark 3.1, Catalyst calls `first`, `collect_list` and their like deterministic, although their values depend on
  the order in which rows arrive after a shuffle.
- `sample` gets its seed when a program describes the query, so each start has another one. Which rows `limit` and
  `dropDuplicates` of some columns keep depends on the order in which they arrive.
- Of a Python function it knows what it was told: `asNondeterministic()`.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast
from weakref import WeakKeyDictionary

from onceward.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from onceward.sinks import Sink


handlers: WeakKeyDictionary[DataStreamWriter, Any] = WeakKeyDictionary()
"""The EpochHandler behind a writer that exactly_once returned: Spark keeps it where Python cannot ask for it."""


class Cause(StrEnum):
    """The reason why another attempt of a batch may compute other values."""

    RANDOM = "another value in each attempt"
    CLOCK = "the time of each attempt"
    PLACE = "depends on how rows are distributed to partitions"
    ORDER = "depends on the order in which rows arrive after a shuffle"
    DECLARED = "a Python function that is declared non-deterministic"
    PYTHON = "a Python function, which Spark assumes to be deterministic"


class Unstable(NamedTuple):
    """An expression whose value may differ when a batch is computed again."""

    expression: str
    cause: Cause
    kept: bool
    """True if state is made of it: an aggregate, a deduplication, a join of streams, or a function with state."""


class StreamingSource(NamedTuple):
    """A streaming leaf of a plan: its format, and its options in lower case."""

    format: str
    options: dict[str, str]


@dataclass(frozen=True)
class PlannedQuery:
    """A query that is described and not started.

    Attributes:
        df: DataFrame that the query computes.
        format: Name of the format that the query writes; `foreachbatch` or `foreach` if it calls a function.
        output_mode: append, update or complete.
        trigger: Class of its trigger, for example ProcessingTimeTrigger.
        options: Options of the writer, by names in lower case.
        handler: The EpochHandler of exactly_once; None for any other writer.
    """

    df: DataFrame
    format: str
    output_mode: str
    trigger: str
    options: dict[str, str]
    handler: Any

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint location, of the query or of the session; None if Spark makes a temporary one or refuses."""
        of_session = self.df.sparkSession.conf.get("spark.sql.streaming.checkpointLocation", None)
        return self.options.get("checkpointlocation") or of_session


def read_plan(writer: DataStreamWriter) -> PlannedQuery:
    """Read a writer's settings out of Spark's fields, for there is no public way to ask.

    Raises:
        ConfigurationError: Spark has no such fields.
    """
    field = partial(writer_field, writer)
    return PlannedQuery(
        df=writer._df,  # noqa: SLF001
        format=str(field("source")).lower(),
        output_mode=str(field("outputMode").toString()).lower(),
        trigger=str(field("trigger").getClass().getSimpleName()).removesuffix("$"),
        options={name.lower(): text for name, text in _pairs(field("extraOptions"))},
        handler=handlers.get(writer),
    )


def writer_field(writer: DataStreamWriter, name: str) -> Any:
    """Return a private member of Spark's DataStreamWriter.

    Raises:
        ConfigurationError: This version of Spark has no such member.
    """
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - comes with pyspark, not with pyspark-client

    jwriter: Any = writer._jwrite  # noqa: SLF001
    try:
        member = jwriter.getClass().getDeclaredField(name)
    except Py4JJavaError:
        raise ConfigurationError(f"this version of Spark keeps the {name} of a writer elsewhere") from None
    member.setAccessible(True)
    return member.get(jwriter)


def _pairs(scala_map: Any) -> Iterator[tuple[str, str]]:
    iterator = scala_map.iterator()
    while iterator.hasNext():
        pair = iterator.next()
        yield str(pair._1()), str(pair._2())  # noqa: SLF001 - a Scala tuple


def analyzed_plan(df: DataFrame) -> Any:
    """Return the analyzed logical plan of a DataFrame of a classic session."""
    return df._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way to ask


def nodes(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a logical plan, from the top, without recursion: a plan may be deeper than Python's stack."""
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += reversed(_items(node.children()))


class QueryPlan(Protocol):
    """The questions that are asked of a DataFrame's plan, whichever kind of session it is of."""

    def node_names(self) -> list[str]:
        """Return the names of the nodes of the analyzed logical plan, from the top."""

    def sources(self) -> list[StreamingSource]:
        """Return the streams that the query reads, in the order in which the checkpoint's offsets files list them."""

    def only_writes(self) -> bool:
        """Return whether the tasks only write, so need not be divided: no Python function, no state, no shuffle."""

    def keeps_state(self) -> bool:
        """Return whether a streaming query keeps state, so that every micro-batch must be run as a whole."""

    def reads_of(self, batch: DataFrame) -> int | None:
        """Return how often the DataFrame reads a micro-batch, as far as its plan shows it.

        Args:
            batch: The micro-batch of which a function has made the DataFrame.

        Returns:
            0 if it does not read it; 2 or more if Spark may compute the batch more than once; None if nobody can say,
            because Spark Connect shows no view's plan.
        """

    def kept_parts(self) -> int:
        """Return how many parts of the DataFrame Spark reads from what is persisted now; 0 without a JVM."""

    def describing(self) -> AbstractContextManager[DataFrame]:
        """Yield an empty micro-batch of the query, in a clone of its session that is then given up.

        Spark passes each micro-batch to its function in such a clone, too.
        """


class ClassicPlan:
    """The plan of a DataFrame of a classic session, which the JVM of this process shows."""

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._is_shown = hasattr(df, "_jdf")

    def node_names(self) -> list[str]:
        """Ask the JVM."""
        return [node.nodeName() for node in nodes(analyzed_plan(self._df))]

    def sources(self) -> list[StreamingSource]:
        """Search the leaves of the plan."""
        return sources_in(analyzed_plan(self._df)) if self._is_shown else []

    def only_writes(self) -> bool:
        """Compare the nodes with those that cost little."""
        if not self._is_shown:
            return False
        session = cast("Any", self._df.sparkSession)
        return plan_only_writes(analyzed_plan(self._df), session._jvm)  # noqa: SLF001 - no public way to ask

    def keeps_state(self) -> bool:
        """Search the plan for nodes that keep state and read a stream."""
        return self._is_shown and plan_keeps_state(analyzed_plan(self._df))

    def reads_of(self, batch: DataFrame) -> int | None:
        """Count the leaves that are the batch's rows."""
        if not self._is_shown:
            return None
        # By id, because rows that were planned elsewhere are leaves of the same name.
        rdds = {leaf.rdd().id() for leaf in _leaves(batch) if leaf.nodeName() == _BATCH}
        leaves = list(_leaves(self._df))
        # A common table expression that is read twice may be computed twice.
        expressions = sum(bool(leaf.nodeName() == "CTERelationRef") for leaf in leaves)
        reads = sum(bool(leaf.nodeName() == _BATCH and leaf.rdd().id() in rdds) for leaf in leaves)
        # Table expressions alone must not hide that the batch is not read at all.
        return reads and reads + expressions

    def kept_parts(self) -> int:
        """Count what Spark puts in place of persisted parts."""
        if not self._is_shown:
            return 0
        again: Any = self._df.select("*")  # a DataFrame looks only once which of its parts are persisted
        plan = again._jdf.queryExecution().withCachedData()  # noqa: SLF001
        parts = (leaf for part in (plan, *_items(plan.subqueriesAll())) for leaf in _items(part.collectLeaves()))
        return sum(leaf.nodeName().startswith("InMemoryRelation") for leaf in parts)

    @contextmanager
    def describing(self) -> Iterator[DataFrame]:
        """Clone the session, as Spark does for a query."""
        clone: Any = cloned_session(self._df)
        empty: Any = clone.createDataFrame(clone.sparkContext.emptyRDD(), self._df.schema)
        try:
            yield empty
        finally:
            # Clones share what is persisted: also release what was made of the empty DataFrame.
            clone._jsparkSession.sharedState().cacheManager().uncacheQuery(empty._jdf, True)  # noqa: SLF001


def cloned_session(df: DataFrame) -> SparkSession:
    """Return a clone of a DataFrame's session: it has its settings and views, and queries and listeners of its own."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - needs a Spark installation

    owner: Any = df.sparkSession
    return SparkSession(owner.sparkContext, owner._jsparkSession.cloneSession())  # noqa: SLF001 - no public way


def sources_in(plan: Any) -> list[StreamingSource]:
    """Return the streams that an analyzed plan reads, see `QueryPlan.sources`."""
    return [_source(leaf) for leaf in _items(plan.collectLeaves()) if leaf.isStreaming()]


def _source(leaf: Any) -> StreamingSource:
    name, options = leaf.nodeName(), dict[str, str]()  # a MemoryStream has neither
    if name == "StreamingRelationV2":
        name, options = leaf.sourceName(), dict(leaf.extraOptions())
    elif name == "StreamingRelation":
        name, options = leaf.dataSource().className(), dict(_pairs(leaf.dataSource().options()))
    return StreamingSource(str(name), {key.lower(): value for key, value in options.items()})


CHEAP: Final = frozenset(
    {
        "Project",
        "Filter",
        "SubqueryAlias",
        "View",
        "Union",
        "EventTimeWatermark",
        "StreamingRelation",
        "StreamingRelationV2",
    }
)
"""Nodes of a logical plan that cost little per row, keep no state and move nothing between tasks."""


def plan_only_writes(plan: Any, jvm: Any) -> bool:
    """Return whether tasks only write, by an analyzed plan, see `QueryPlan.only_writes`."""
    python = jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PYTHON_UDF()
    return not plan.containsPattern(python) and all(node.nodeName() in CHEAP for node in nodes(plan))


def is_micro_batch(df: DataFrame) -> bool:
    """Return whether a DataFrame is a micro-batch as Spark passes it to a foreachBatch function, and nothing more."""
    return str(analyzed_plan(df).nodeName()) == _BATCH


_BATCH: Final = "LogicalRDD"
"""Node of a plan that reads rows which Spark has planned already, such as those of a micro-batch."""


def _leaves(frame: DataFrame) -> Iterator[Any]:
    plan = analyzed_plan(frame)
    for part in (plan, *_items(plan.subqueriesAll())):
        yield from _items(part.collectLeaves())


def plan_keeps_state(plan: Any) -> bool:
    """Return whether a query keeps state, by its analyzed plan, see `QueryPlan.keeps_state`."""
    return any(_is_stateful(node) for node in nodes(plan))


_STATEFUL: Final = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "GlobalLimit",
    }
)
"""Nodes of a logical plan that keep state, if what they read is a stream; and a join of two streams."""
_PINNED: Final = frozenset({"current_timestamp", "localtimestamp", "current_date"})
_CLOCKS: Final = _PINNED | {"now", "current_time"}
_PLACES: Final = frozenset({"monotonically_increasing_id", "spark_partition_id", "input_file_name"})
_ORDERS: Final = frozenset({"first", "last", "any_value", "collect_list", "array_agg", "listagg", "string_agg"})
_PYTHON: Final = ("PythonUDF", "PythonUDAF", "PythonUDTF")


def unstable(df: DataFrame) -> list[Unstable]:
    """Return the parts of a streaming query that may give another result when it computes a batch again."""
    parts: list[Unstable] = []
    waiting = [(analyzed_plan(df), False)]
    while waiting:
        node, kept = waiting.pop()
        chosen = _chosen_rows(node) if node.isStreaming() else None
        parts += [Unstable(*chosen, kept)] if chosen is not None else []
        kept = kept or _is_stateful(node)
        parts += [Unstable(text, cause, kept) for text, cause in _unstable_in(node, pinned=True)]
        waiting += [(child, kept) for child in _items(node.children())]
    return list(dict.fromkeys(parts))


def unstable_for(df: DataFrame, sink: Sink) -> list[Unstable]:
    """Return the expressions of a sink's `select` and `where` that may give another result when computed again."""
    frames = [df.selectExpr(*sink.select)] if sink.select is not None else []
    frames += [df.where(sink.where)] if sink.where is not None else []
    pairs = [pair for frame in frames for pair in _unstable_in(analyzed_plan(frame), pinned=False)]
    return [Unstable(text, cause, kept=False) for text, cause in dict.fromkeys(pairs)]


def unstable_output(df: DataFrame) -> list[Unstable]:
    """List what may come out differently when the transformation of an Output is computed again."""
    parts: list[Unstable] = []
    for node in nodes(analyzed_plan(df)):
        chosen = _chosen_rows(node)
        parts += [Unstable(*chosen, kept=False)] if chosen is not None else []
        parts += [Unstable(text, cause, kept=False) for text, cause in _unstable_in(node, pinned=False)]
    return list(dict.fromkeys(parts))


def _is_stateful(node: Any) -> bool:
    children = _items(node.children())
    streams = [child for child in children if child.isStreaming()]
    return (named_stateful(node.nodeName()) and bool(streams)) or (node.nodeName() == "Join" and len(streams) > 1)


def named_stateful(name: str) -> bool:
    """Return whether a node of this name keeps state, if what it reads is a stream."""
    return name in _STATEFUL or name.startswith("TransformWithState")


def _chosen_rows(node: Any) -> tuple[str, Cause] | None:
    """Return the operation of a node that leaves rows out, if another attempt may leave out others."""
    name = node.nodeName()
    if name == "Sample":
        return "sample()", Cause.RANDOM
    if name == "GlobalLimit" and "Sort" not in [below.nodeName() for below in _descent(node)]:
        return "limit()", Cause.ORDER
    if name in ("Deduplicate", "DeduplicateWithinWatermark") and node.keys().size() < node.output().size():
        return "dropDuplicates()", Cause.ORDER
    return None


def _descent(node: Any) -> Iterator[Any]:
    """Yield a node, and those below it up to the first that joins others or reads."""
    while True:
        yield node
        children = _items(node.children())
        if len(children) != 1:
            return
        [node] = children


def _unstable_in(node: Any, *, pinned: bool) -> Iterator[tuple[str, Cause]]:
    """Yield the innermost expressions of one node of the plan whose values may differ, and why.

    Args:
        node: Node of a logical plan.
        pinned: True if Spark pins clocks to the batch here.
    """
    waiting = list(_items(node.expressions()))
    while waiting:
        expression = waiting.pop()
        inner = _items(expression.children())
        cause = _cause(expression, inner, pinned=pinned)
        if cause is not None:
            yield f"{_name(expression)}()", cause
        waiting += inner


def _cause(expression: Any, inner: Sequence[Any], *, pinned: bool) -> Cause | None:
    if expression.getClass().getSimpleName() in _PYTHON:
        return Cause.PYTHON if expression.udfDeterministic() else Cause.DECLARED
    name = _name(expression)
    # By name first, because Spark calls `collect_list` and its like deterministic.
    for names, cause in ((_CLOCKS, Cause.CLOCK), (_PLACES, Cause.PLACE), (_ORDERS, Cause.ORDER)):
        if name in names:
            return None if pinned and name in _PINNED else cause
    differs = not expression.deterministic() and all(child.deterministic() for child in inner)
    return Cause.RANDOM if differs else None


def _name(expression: Any) -> str:
    is_python = expression.getClass().getSimpleName() in _PYTHON
    return str(expression.name() if is_python else expression.prettyName().lower())


def _items(seq: Any) -> Sequence[Any]:
    return [seq.apply(number) for number in range(seq.size())]
