"""`onceward explain`: the end-to-end guarantee of a query or pipeline that is described but not started.

Nothing is started or written: queries are read from their plans, pipelines from their graphs, targets are asked. A
program is run up to where it would start its queries. What is not onceward's or Spark's, it does: a file that creates a
topic before its first start creates it.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import msgspec

from onceward.core.checkpoint.subtask import DirectlyWritten
from onceward.core.contract.connector import connector_of
from onceward.core.contract.findings import Finding, Health, any_failed, ok, warning
from onceward.core.contract.sink import Guarantee, TwoPhaseCommitSink
from onceward.core.contract.targets import sinks_target
from onceward.core.engine.graph import weakest
from onceward.core.engine.pipeline import Pipeline
from onceward.core.errors import ConfigurationError, named_text_of
from onceward.core.log.store import EXPLAINING
from onceward.core.operations.description import Described, described_pipeline, shared_names

from . import show
from .doctor import check_log, check_log_and_targets, findings_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql.streaming.readwriter import DataStreamWriter

_SHORT_SECONDS: Final = 15 * 60
_BATCH_WRITES = ("save", "saveAsTable", "insertInto", "json", "parquet", "text", "csv", "xml", "orc", "jdbc")
_BATCH_WRITES_V2 = ("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions")


class Explanation(msgspec.Struct, frozen=True):
    """The guarantee of a query or pipeline.

    Attributes:
        name: Name of the pipeline or of the query; "query" if it has none.
        guarantee: Guarantee for each record after any failure, as a reader of the targets sees it: that of the weakest
            part.
        findings: Results of the checks, in the order: the query or graph itself, then the decision log and the targets.
    """

    name: str
    guarantee: Guarantee
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0: exactly once. 1: weaker than that, or something does not work."""
        return int(self.guarantee is not Guarantee.EXACTLY_ONCE or any_failed(self.findings))

    def show(self) -> None:
        """Print the guarantee, the counts of findings and each finding on the terminal."""
        counts = [(health, sum(one.health is health for one in self.findings)) for health in Health]
        counts_text = ", ".join(f"{count} {health}" for health, count in counts if count)
        show.console().print(f"{self.name}: {self.guarantee} ({counts_text})", style="bold")
        show.findings(self.findings)


def explain(query: DataStreamWriter | Pipeline, *, look: bool = True) -> Explanation:
    """Report what a query or pipeline guarantees, which part weakens it, and what to do. Starts and writes nothing.

    Args:
        query: A DataStreamWriter (what `exactly_once` returns, or any other), or a Pipeline of the embedded engine.
        look: Also ask the targets and the decision log. Otherwise only the plan and the settings are read.

    Raises:
        ConfigurationError: It is neither, or a setting is wrong.
    """
    with explaining():
        [explanation] = together([query], look=look)
    return explanation


@contextmanager
def explaining() -> Iterator[None]:
    """Build pipelines in this block without opening stores; nothing that is started in it touches a target."""
    before = EXPLAINING.set(True)
    try:
        yield
    finally:
        EXPLAINING.reset(before)


def together(queries: Sequence[Any], *, look: bool = True) -> list[Explanation]:
    """Explain the queries and pipelines of one program, and what they share and must not.

    Raises:
        ConfigurationError: One is neither a query nor a pipeline, or a setting is wrong.
    """
    described = [_described(query) for query in queries]
    return [_explained(one, shared_names(one, described), look=look) for one in described]


def _described(query: Any) -> Described:
    if isinstance(query, Pipeline):
        return described_pipeline(query)
    if not hasattr(query, "foreachBatch") or not hasattr(query, "_jwrite"):
        raise ConfigurationError(
            "explain takes a DataStreamWriter of a classic session (for example what exactly_once returns), or a "
            f"Pipeline; got {type(query).__name__}"
        )
    from onceward.connectors.spark.query_description import described_query  # noqa: PLC0415 - pyspark is an extra

    return described_query(query)


def _explained(one: Described, more: Sequence[Finding], *, look: bool) -> Explanation:
    findings = (*one.findings, *more, *(_look_at_targets(one) if look else []))
    levels = [finding.guarantee for finding in findings if finding.guarantee is not None]
    return Explanation(one.name, weakest(levels), findings)


def _look_at_targets(one: Described) -> Iterator[Finding]:
    """Ask the decision log's store, and each target: doctor's checks, for those that a query or pipeline names."""
    if one.store is not None:
        url = one.store
        yield from findings_of("sql", lambda: check_log(url, one.pipeline))
        if any(isinstance(sink, TwoPhaseCommitSink) for sink in one.sinks):
            yield from check_log_and_targets(url, one.pipeline, [sinks_target(one.sinks, "the pipeline's sinks")])
    yield from _check_parts(one)
    yield from _timeouts(one)


def _check_parts(one: Described) -> Iterator[Finding]:
    sinks = [sink.sink if isinstance(sink, DirectlyWritten) else sink for sink in one.sinks]
    kinds = {part: connector_of(part) for part in (*sinks, *one.sources)}
    for kind in dict.fromkeys(each for each in kinds.values() if each is not None):
        own = [sink for sink in sinks if kinds[sink] is kind]
        sources = [source for source in one.sources if kinds[source] is kind]
        check = partial(kind.check_parts, own, sources, one.pipeline)
        yield from findings_of(kind.extra or kind.name, check, is_extra=bool(kind.extra))


def _timeouts(one: Described) -> Iterator[Finding]:
    """Check that transactions outlive a restart, and the retries of a commit."""
    name, retried = "transaction_timeout", one.policy.commit_timeout
    for sink in one.sinks:
        seconds = sink.transaction_timeout if isinstance(sink, TwoPhaseCommitSink) else None
        if seconds is None:
            continue
        if seconds < _SHORT_SECONDS:
            text = f"{seconds:g} s: if the driver is away for longer after a decision, the target loses the rows"
            yield warning(name, text, "make it longer than any outage that decided rows must survive", sink.name)
        elif retried >= seconds:
            text = f"{seconds:g} s, and commit_timeout is {retried:g} s"
            advice = "make commit_timeout shorter, so that an outage is reported before rows are lost"
            yield warning(name, text, advice, sink.name)
        else:
            yield ok(name, f"{seconds:g} s: the longest outage after a decision that the rows survive", sink.name)


class _Ended(BaseException):
    """The program waits for what it has started, or wants to write: it has said what it will."""


class NotStarted:
    """A stand-in for a started query or job; whoever waits for it has started all there is."""

    id = runId = name = "not started"  # noqa: N815 - as Spark calls it

    def __getattr__(self, name: str) -> Any:
        raise _Ended


def load_program(reference: str, arguments: Sequence[str] = ()) -> list[Any]:
    """Return the queries and pipelines of a program.

    Args:
        reference: `module:function` of a function that returns a DataStreamWriter or a Pipeline, or several of them;
            `file.py:function`; or a file, which is run up to where it would wait for what it has started.
        arguments: Arguments of the program (`sys.argv`).

    Raises:
        ConfigurationError: There is no such thing, it fails, or it describes no query.
    """
    place, _, name = reference.partition(":")
    is_file = place.endswith(".py")
    if (is_file and not Path(place).is_file()) or (not is_file and not name.isidentifier()):
        raise ConfigurationError(f"there is no {reference!r}: give a file, file.py:function or module:function")
    writers: list[Any] = []
    with explaining(), _intercepted(writers), patch.object(sys, "argv", [place, *arguments]):
        sys.path.insert(0, str(Path(place).parent.absolute() if is_file else Path.cwd()))
        try:
            with redirect_stdout(sys.stderr):
                writers += _returned(place, name, is_file=is_file)
        except _Ended:
            pass
        except (Exception, SystemExit) as error:
            raise ConfigurationError(f"{reference} failed: {named_text_of(error)}") from error
        finally:
            sys.path.pop(0)
    if not writers:
        raise ConfigurationError(
            f"{reference} started no query and returned none: name a function that returns what exactly_once returns, "
            "or a Pipeline"
        )
    return writers


def _returned(place: str, name: str, *, is_file: bool) -> list[Any]:
    if not name:
        runpy.run_path(place, run_name="__main__")
        return []
    what = runpy.run_path(place)[name] if is_file else getattr(importlib.import_module(place), name)
    result = what() if callable(what) else what
    result = list(result) if isinstance(result, list | tuple) else [result]
    return [one for one in result if one is not None and not isinstance(one, NotStarted)]


@contextmanager
def _intercepted(writers: list[Any]) -> Iterator[None]:
    """Replace starts and writes of Spark and the embedded engine in this block; collect their queries in `writers`."""

    def start(query: Any, *_: Any, **__: Any) -> Any:
        writers.append(query)
        return NotStarted()

    def run(pipeline: Any, **_: Any) -> None:
        writers.append(pipeline)
        raise _Ended

    with ExitStack() as stack:
        stack.enter_context(patch.object(Pipeline, "start", start))
        stack.enter_context(patch.object(Pipeline, "run", run))
        with suppress(ImportError):  # pyspark is an extra
            for owner, name, replacement in _of_spark(start):
                stack.enter_context(patch.object(owner, name, replacement))
        yield


def _of_spark(start: Callable[[Any], Any]) -> Iterator[tuple[type, str, Any]]:
    from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2  # noqa: PLC0415 - an extra
    from pyspark.sql.streaming.query import StreamingQueryManager  # noqa: PLC0415
    from pyspark.sql.streaming.readwriter import DataStreamWriter  # noqa: PLC0415

    def start_writer(writer: Any, path: str | None = None, **options: Any) -> Any:
        """Start with the arguments of `start` and `toTable`, whose first one changes nothing here."""
        for setting in ("format", "outputMode", "partitionBy", "queryName"):
            value = options.pop(setting, None)
            if value is not None:
                getattr(writer, setting)(value)
        writer.options(**options, **({} if path is None else {"path": path}))
        return start(writer)

    def end(*_: Any, **__: Any) -> None:
        raise _Ended

    yield from ((DataStreamWriter, name, start_writer) for name in ("start", "toTable"))
    yield from ((DataFrameWriter, name, end) for name in _BATCH_WRITES)
    yield from ((DataFrameWriterV2, name, end) for name in _BATCH_WRITES_V2)
    yield StreamingQueryManager, "awaitAnyTermination", end
