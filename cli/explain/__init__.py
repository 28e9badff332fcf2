"""`onceward explain`: the end-to-end guarantee of a query or pipeline that is described but not started.

Nothing is started or written: queries are read from their plans, pipelines from their graphs, targets are asked.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.core.engine.graph import weakest
from onceward.core.engine.pipeline import Pipeline
from onceward.core.errors import ConfigurationError, SinkError
from onceward.core.log.store import EXPLAINING
from onceward.core.sink import Guarantee, TwoPhaseCommitSink

from ..doctor import Finding, Health, exit_code, failed, ok, show, warning
from ..doctor.checks import check_log, findings_of
from ..doctor.log import check_pipeline
from ..operate.targets import sinks_target
from ..show import console
from .described import Described, described_pipeline, shared_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_SHORT_SECONDS: Final = 15 * 60


class Explanation(msgspec.Struct, frozen=True):
    """What a query or pipeline guarantees.

    Attributes:
        name: Name of the pipeline or of the query; "query" if it has none.
        guarantee: What a reader of the targets sees of each record after any failure: that of the weakest part.
        findings: What was checked, in the order: the query or graph itself, then the decision log and the targets.
    """

    name: str
    guarantee: Guarantee
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """0: exactly once. 1: weaker than that, or something does not work."""
        return int(self.guarantee is not Guarantee.EXACTLY_ONCE or exit_code(self.findings))

    def show(self) -> None:
        """Print it."""
        counts = [(health, sum(one.health is health for one in self.findings)) for health in Health]
        told = ", ".join(f"{count} {health}" for health, count in counts if count)
        console().print(f"{self.name}: {self.guarantee} ({told})", style="bold")
        show(self.findings)


def explain(
    query: DataFrame | DataStreamWriter | Pipeline,
    *sinks: Any,
    checkpoint: str | None = None,
    look: bool = True,
    **options: Any,
) -> Explanation:
    """Report what a query or pipeline guarantees, which part weakens it, and what to do. Starts and writes nothing.

    Args:
        query: A DataStreamWriter (what `exactly_once` returns, or any other), a Pipeline of the embedded engine, or a
            streaming DataFrame, which takes the other arguments of `exactly_once`.
        *sinks: Where the rows of a DataFrame would go.
        checkpoint: Checkpoint folder of a DataFrame's query.
        look: Also ask the targets and the decision log. Otherwise only the plan and the settings are read.
        **options: Further arguments of `exactly_once`.

    Raises:
        ConfigurationError: It is none of these, or a setting is wrong.
    """
    with explaining():
        if sinks and hasattr(query, "isStreaming"):
            from onceward.connectors.spark import exactly_once  # noqa: PLC0415 - pyspark is an extra

            query = exactly_once(query, *sinks, checkpoint=checkpoint, **options)  # type: ignore[arg-type]
        [told] = together([query], look=look)
    return told


@contextmanager
def explaining() -> Iterator[None]:
    """Inside, pipelines are built without opening stores or preparing targets."""
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
            "explain takes a DataStreamWriter of a classic session (for example what exactly_once returns), a "
            f"Pipeline, or a streaming DataFrame and its sinks; got {type(query).__name__}"
        )
    from .query import described_query  # noqa: PLC0415 - pyspark is an extra

    return described_query(query)


def _explained(one: Described, more: Sequence[Finding], *, look: bool) -> Explanation:
    findings = (*one.findings, *more, *(_look_at_targets(one) if look else []))
    levels = [finding.guarantee for finding in findings if finding.guarantee is not None]
    return Explanation(one.name, weakest(levels), findings)


def _look_at_targets(one: Described) -> Iterator[Finding]:
    """Ask the decision log's store, and each target: doctor's checks, on what a query or pipeline names."""
    if one.store is not None:
        url = one.store
        yield from findings_of("sql", lambda: check_log(url, one.pipeline))
        if any(isinstance(sink, TwoPhaseCommitSink) for sink in one.sinks):
            yield from check_pipeline(url, one.pipeline, [sinks_target(one.sinks, "the pipeline's sinks")])
    yield from findings_of("kafka", lambda: _kafka(one))
    yield from findings_of("postgres", lambda: _databases(one))
    yield from _timeouts(one)


def _kafka(one: Described) -> Iterator[Finding]:
    """Each cluster once, with the topics of all sinks and sources."""
    if not any(type(part).__name__ in ("KafkaSink", "KafkaSource") for part in (*one.sinks, *one.sources)):
        return
    from onceward.connectors.kafka.sink import KafkaSink  # noqa: PLC0415 - an extra
    from onceward.connectors.kafka.source import KafkaSource  # noqa: PLC0415

    from ..doctor.kafka import check_kafka, check_topics  # noqa: PLC0415

    written: dict[Any, list[str]] = {}
    read: dict[Any, list[str]] = {}
    for sink in one.sinks:
        if isinstance(sink, KafkaSink):  # a topic that the sink may create need not be there
            topics = [sink.topic] if sink.topic and not sink.create_topic else []
            written.setdefault(sink.settings.connection(), []).extend(topics)
    for source in one.sources:
        if isinstance(source, KafkaSource):
            read.setdefault(source.settings.connection(), []).extend(source.selection.topics or [])
    for settings, topics in written.items():
        yield from check_kafka(settings, list(dict.fromkeys(topics)), one.pipeline)
    for settings, topics in read.items():
        yield from check_topics(settings, [topic for topic in topics if topic not in written.get(settings, [])])


def _databases(one: Described) -> Iterator[Finding]:
    """Each database once."""
    targets = {sink.target.url: sink.target for sink in one.sinks if hasattr(sink, "commit_path")}
    if not targets:
        return
    from onceward.connectors.database.engines import read_server  # noqa: PLC0415 - an extra

    from ..doctor.postgres import check_postgres  # noqa: PLC0415

    for url, target in targets.items():
        if url.backend == "postgresql":
            yield from (finding if finding.where else finding.of(str(url)) for finding in check_postgres(target))
            continue
        try:
            facts = read_server(target)
        except SinkError as error:
            yield failed("database", str(error), "check address, role and password", str(url))
            continue
        yield from (warning("durability", text, "turn it on", str(url)) for text in facts.warnings)
        if facts.unusable:
            yield failed("database", facts.unusable, "name the primary", str(url))


def _timeouts(one: Described) -> Iterator[Finding]:
    """Whether transactions outlive a restart, and the retries of a commit."""
    name, retried = "transaction_timeout", one.policy.commit_timeout
    for sink in one.sinks:
        seconds = sink.transaction_timeout if isinstance(sink, TwoPhaseCommitSink) else None
        if seconds is None:
            continue
        if seconds < _SHORT_SECONDS:
            told = f"{seconds:g} s: if the driver is away for longer after a decision, the target loses the rows"
            yield warning(name, told, "make it longer than any outage that decided rows must survive", sink.name)
        elif retried >= seconds:
            told = f"{seconds:g} s, and commit_timeout is {retried:g} s"
            advice = "make commit_timeout shorter, so that an outage is reported before rows are lost"
            yield warning(name, told, advice, sink.name)
        else:
            yield ok(name, f"{seconds:g} s: the longest outage after a decision that the rows survive", sink.name)
