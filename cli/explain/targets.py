"""What the decision log and the targets of a query or pipeline say: doctor's checks, on what it names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import OncewardError
from onceward.core.sink import TwoPhaseCommitSink

from ..doctor import Finding, Health, ok, skipped, warning
from ..doctor.checks import check_store
from ..doctor.log import check_pipeline
from ..operate.targets import sinks_target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .described import Described

_SHORT_SECONDS: Final = 15 * 60


def look_at_targets(one: Described) -> list[Finding]:
    """Ask the decision log's store, and each target."""
    found: list[Finding] = []
    if one.store is not None:
        found += _store(one, one.store)
    for check in (_kafka, _databases, _timeouts):
        try:
            found += check(one)
        except (OncewardError, ModuleNotFoundError) as error:
            found.append(skipped("target", str(error)))
    return found


def _store(one: Described, url: str) -> Iterator[Finding]:
    yield check_store(url, one.pipeline)
    if url.startswith("postgresql"):
        from ..doctor.postgres import check_log_server  # noqa: PLC0415 - an extra

        yield check_log_server(url)
    sinks = [sink for sink in one.sinks if isinstance(sink, TwoPhaseCommitSink)]
    if sinks:
        yield from check_pipeline(url, one.pipeline, [sinks_target(one.sinks, "the pipeline's sinks")])


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
    from onceward.connectors.database.checks import read_server  # noqa: PLC0415 - an extra

    from ..doctor.postgres import check_postgres  # noqa: PLC0415

    for url, target in targets.items():
        if url.backend == "postgresql":
            yield from (finding if finding.where else finding.of(str(url)) for finding in check_postgres(target))
            continue
        facts = read_server(target)
        yield from (warning("durability", text, "turn it on", str(url)) for text in facts.warnings)
        if facts.unusable:
            yield Finding("database", Health.FAILED, facts.unusable, "name the primary", str(url))


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
