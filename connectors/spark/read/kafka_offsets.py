"""Kafka as Spark sees it: the options of a KafkaSource, and publishing a query's offsets to consumer groups.

The options of `format("onceward-kafka")` are those of Spark's own Kafka source.

Spark tells a Python source of a finished batch one batch late, and of the last one never. So whoever completes an epoch
publishes. Its analyzed plan says which sources a query reads: its streaming leaves, in the order in which the
checkpoint's offsets files list them (measured on pyspark 4.2). A format's writer sees no plan: it is told by options.

Faults are logged and not raised: the epoch is completed, the next one publishes again, and nothing here reads what is
published.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from onceward.connectors.kafka.positions import LATEST, AtOffsets, AtTime, from_json, offsets_as_json, parse_bound
from onceward.connectors.kafka.settings import CONNECTION_OPTIONS, PREFIX, KafkaSettings, split_options
from onceward.core.errors import ConfigurationError, OncewardError
from onceward.core.kit.text_options import arguments, distinct
from onceward.core.run.source_watch import titles

from .any_source import SourceStreamReader, registered_source

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from onceward import KafkaSource
    from onceward.connectors.kafka.positions import Bound, Offsets
    from onceward.core.contract.pipeline_settings import Writers
    from onceward.core.contract.source import ResettableSource
    from onceward.core.log import EpochInput

    from ..session.query_plan import StreamingSource

    OnComplete = Callable[[int, EpochInput], None]
    Group = tuple[KafkaSettings, str]
    """Where, and the name of the consumer group."""

_log = logging.getLogger("onceward.spark")

FORMAT: Final = "onceward-kafka"
_SPARKS_OWN: Final = "kafka"
TOLERATED: Final = frozenset({"path", "checkpointlocation", "pipeline", "name", "useprivatejson"})
"""Options that Spark adds by itself or that belong to the query."""
STRATEGY: Final = "startingOffsetsByTimestampStrategy"
SELECTIONS: Final = ("subscribe", "subscribePattern", "assign")
STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
ONLY_BATCH: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
ONLY_STREAM: Final = ("maxOffsetsPerTrigger",)
TIMEOUT: Final = "kafkaConsumer.pollTimeoutMs"
ELSEWHERE: Final = ("bootstrap_servers", "topics", "pattern", "assign", "starting", "ending", "isolation", "group")
"""Arguments of KafkaSource that other options give: those above, and `kafka.*`."""
GROUP: Final = "kafka.group.id"
PUBLISHING: Final = "offsets."
"""Beginning of the options of a format that say where to publish: `offsets.kafka.group.id`, `offsets.kafka.*`."""
_SPLITTING: Final = (
    ("maxRecordsPerPartition", "max_records_per_partition", 1),
    ("minPartitions", "min_partitions", 2),
)
"""Options by which several tasks read one partition, each with its argument of KafkaSource and its least value that
does so. Partitions without new records do not count for minPartitions, so any value above 1 may split a busy one."""
_ORDERING: Final = frozenset({"Sort", "Aggregate"})
"""Nodes of a plan after which the order of the source's records does not matter."""
QUIET_SECONDS: Final = 60.0
"""Seconds for which nothing is published after a failure: what may be skipped does not set the query's pace."""
NOTHING: Final = "-"
"""Text in an offsets file for a source that has not begun."""
_quiet_until: dict[Group, float] = {}


class KafkaStreamReader(SourceStreamReader):
    """A reader of a stream that reports where everything ended when a batch was planned, for the query's progress."""

    _source: KafkaSource

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        return self._source.newest


def stream_source(options: Mapping[str, str]) -> KafkaSource:
    """Make the source of a streaming query.

    Raises:
        ConfigurationError: An option is unknown or wrong; the message names it.
    """
    return _source(options, "latest", ONLY_BATCH, "streaming")


def batch_source(options: Mapping[str, str]) -> KafkaSource:
    """Make the source of a batch query.

    Raises:
        ConfigurationError: An option is unknown or wrong; the message names it.
    """
    source = _source(options, "earliest", ONLY_STREAM, "batch", ending="latest")
    start = source.starting
    if isinstance(start, AtOffsets) and LATEST in (start.default, *(offset for _, offset in start.offsets)):
        raise ConfigurationError(
            "startingOffsets cannot be latest (-1) in a batch query, as with Spark's own source: nothing would be "
            "read. Give earliest (-2), offsets, or a time (startingTimestamp)"
        )
    return source


def checked_source(options: Mapping[str, str]) -> KafkaSource:
    """Check options, brokers and topics, before it is known whether the query is a stream or a batch.

    Raises:
        ConfigurationError: An option is unknown or wrong; the message names it.
        SourceError: A topic is missing, or no broker answers; the message says why.
    """
    source = _source(options, "earliest")
    source.validate()
    return source


def _source(
    options: Mapping[str, str],
    starting: str,
    refused: tuple[str, ...] = (),
    where: str = "any",
    *,
    ending: str | None = None,
) -> KafkaSource:
    from onceward import KafkaSource  # noqa: PLC0415 - an extra

    config, others = split_options({name.lower(): text for name, text in options.items()})
    rest = {name: others[option] for name, option in distinct(others).items() if name not in TOLERATED}
    if wrong := [name for name in refused if name.lower() in rest]:
        raise ConfigurationError(f"options {', '.join(wrong)} are not for {where} queries")
    special = {name: rest.pop(name.lower(), None) for name in (*SELECTIONS, *STARTS, *ONLY_BATCH, STRATEGY)}
    arguments_ = {name: text for name, text in special.items() if text is not None}
    if empty := [name for name, text in arguments_.items() if not text.strip()]:
        raise ConfigurationError(f"option {empty[0]} is empty: give it a value, or leave it out")
    also = (*CONNECTION_OPTIONS, *SELECTIONS, *STARTS, *ONLY_BATCH, STRATEGY)
    plain = arguments(KafkaSource, rest, aliases={TIMEOUT: "timeout"}, omit=ELSEWHERE, also=also)
    if "timeout" in plain:
        plain["timeout"] /= 1000
    if ending is not None:
        plain["ending"] = _bound(arguments_, ONLY_BATCH, ending)
    subscribe = arguments_.get("subscribe")
    return KafkaSource(
        topics=None if subscribe is None else [name.strip() for name in subscribe.split(",") if name.strip()],
        pattern=arguments_.get("subscribePattern"),
        assign=arguments_.get("assign"),
        starting=_bound(arguments_, STARTS, starting),
        config=config,
        **plain,
    )


def _bound(options: Mapping[str, str], names: tuple[str, ...], default: str) -> Bound:
    """Return a bound in Spark's order: one time for all, then times of partitions, then offsets."""
    strategy = options.get(STRATEGY, "error").lower()
    if strategy not in {"error", "latest"}:
        raise ConfigurationError(f"option {STRATEGY} must be error or latest, not {strategy!r}")
    single, several, offsets = names
    if single in options:
        try:
            time_ms = int(options[single])
        except ValueError:
            raise ConfigurationError(
                f"option {single} must be milliseconds since 1970, not {options[single]!r}"
            ) from None
        return AtTime(milliseconds=time_ms, or_latest=strategy == "latest")
    if several in options:
        times = from_json(options[several], f"option {several}")
        return AtTime(of=tuple(sorted(times.items())), or_latest=strategy == "latest")
    return parse_bound(options.get(offsets, default), f"option {offsets}")


def publish(groups: Sequence[Group | None] | Group, epoch: int, about: EpochInput) -> None:
    """Publish an epoch's end offsets; `about.end` holds one JSON text for each source.

    Args:
        groups: Group to which each streaming source of the query is published, in order; None for a source that is not.
            Or the one group to which all Kafka sources are published, this library's and Spark's own.
        epoch: The epoch's number.
        about: Input of the epoch.
    """
    from onceward.connectors.kafka.admin import publish_offsets  # noqa: PLC0415 - an extra

    ends = list(about.end or [])
    of_sources: Sequence[Any] = groups
    if isinstance(groups, tuple):
        of_sources = [groups if _is_kafka(end) else None for end in ends]
    if len(ends) != len(of_sources):
        _log.warning(
            "epoch %s: no offsets are published, for the checkpoint lists %s sources and the query has %s",
            epoch,
            len(ends),
            len(of_sources),
        )
        return
    for (settings, group), offsets in _by_group(of_sources, ends).items():
        key = (settings.connection(), group)
        if time.monotonic() < _quiet_until.get(key, 0.0):
            continue
        try:
            publish_offsets(settings, group, offsets_as_json(offsets))
        except OncewardError as error:
            _quiet_until[key] = time.monotonic() + QUIET_SECONDS
            servers = settings["bootstrap.servers"]
            _log.warning("epoch %s is completed, but its offsets are not published to %s: %s", epoch, servers, error)


def _by_group(groups: Sequence[Group | None], ends: Sequence[str]) -> dict[Group, Offsets]:
    """Return each group's offsets; where two sources read one partition, the lower one."""
    offsets_by_group: dict[Group, Offsets] = {}
    for group, text in zip(groups, ends, strict=True):
        if group is None or text == NOTHING:
            continue
        offsets = offsets_by_group.setdefault(group, {})
        for partition, offset in from_json(text).items():
            offsets[partition] = min(offset, offsets.get(partition, offset))
    return offsets_by_group


def _is_kafka(text: str) -> bool:
    """Return whether an offsets file's text for one source is `{"topic": {"0": 123}}`."""
    try:
        from_json(text)
    except ConfigurationError:
        return False
    return True


def with_lag(source: dict[str, Any]) -> dict[str, Any]:
    """Add the metrics of Spark's own Kafka source to the report of a source that has Kafka offsets but no metrics."""
    try:
        read, there = from_json(source.get("endOffset")), from_json(source.get("latestOffset"))
    except ConfigurationError:  # another source, or pyspark before 4.2, which does not report the newest offset
        return source
    behind = [max(0, offset - read.get(partition, 0)) for partition, offset in there.items()]
    if not behind or source.get("metrics"):
        return source
    lag = {"avg": sum(behind) / len(behind), "min": min(behind), "max": max(behind)}
    return {**source, "metrics": {f"{name}OffsetsBehindLatest": str(value) for name, value in lag.items()}}


def publisher_from_options(options: Mapping[str, str]) -> OnComplete | None:
    """Make the publisher for the options `offsets.kafka.group.id` and `offsets.kafka.bootstrap.servers`, if given.

    Raises:
        ConfigurationError: One is missing, unknown or refused.
    """
    config = {name.lower()[len(PUBLISHING) :]: value for name, value in options.items() if is_ours(name)}
    if not config:
        return None
    kafka, rest = split_options(config)
    group = kafka.get(GROUP.removeprefix(PREFIX))
    if rest or not group or "bootstrap.servers" not in kafka:
        raise ConfigurationError(
            "to publish the source's offsets to a consumer group give option('offsets.kafka.group.id', …) and "
            "option('offsets.kafka.bootstrap.servers', …) of the source's cluster; further options are Kafka's "
            f"settings with 'offsets.kafka.' in front. Got {', '.join(PUBLISHING + name for name in sorted(config))}"
        )
    return partial(publish, (KafkaSettings(config=kafka), group))


def is_ours(option: str) -> bool:
    """Return whether an option of a format says where to publish offsets."""
    return option.lower().startswith(PUBLISHING)


def watched_sources(sources: Sequence[StreamingSource]) -> dict[str, ResettableSource]:
    """Return those sources of a query that can say whether their systems answer, by titles.

    Spark's own Kafka source is one of them, if its options suit librdkafka. It is not read here.
    """
    by_name: dict[str, ResettableSource] = {}
    for number, source in enumerate(sources):
        source_object = registered_source(source.format)
        if source.format in (FORMAT, _SPARKS_OWN):
            chosen = {name.lower() for name in SELECTIONS}
            options = {name: text for name, text in source.options.items() if name in chosen or is_setting(name)}
            # Options that do not suit librdkafka mean only that this source is not watched: it is read elsewhere.
            with suppress(OncewardError, ImportError):
                source_object = stream_source(options)
        if source_object is not None:
            name = type(source_object).__name__ if source.format != _SPARKS_OWN else _SPARKS_OWN
            by_name[f"{name}#{number}"] = source_object
    return titles(by_name)


def order_warning(
    sources: Sequence[StreamingSource], plans: Callable[[], Iterable[Collection[str]]], writers: Writers
) -> str:
    """Return why the records of one key may be written in another order than they had; empty if their order is kept.

    Args:
        sources: Sources of the query.
        plans: Function that returns the names of the nodes that the rows of each sink pass. It is called only if
            partitions are split.
        writers: Number of tasks that write an epoch: a single one reads the parts of a partition one after another.
    """
    option = next(filter(None, map(_splitting, sources)), "")
    if not option or writers == 1 or not any(_ORDERING.isdisjoint(names) for names in plans()):
        return ""
    return (
        f"{option} lets several tasks read one Kafka partition at the same time, so the records of one key may be "
        "written in another order than they had, and the older of two values last. If the order matters, leave the "
        "option out, or write each micro-batch through a function that repartitions by the key and sorts within "
        'partitions: Output(sink, lambda batch: batch.repartition("key").sortWithinPartitions("key", "offset"))'
    )


def _splitting(source: StreamingSource) -> str:
    """Return the option by which a source splits the new records of one Kafka partition; empty if none does."""
    registered = registered_source(source.format)
    for option, argument, least in _SPLITTING:
        value = getattr(registered, argument, None)
        if source.format in (FORMAT, _SPARKS_OWN):
            value = source.options.get(option.lower())
        if value is not None and (not str(value).isdigit() or int(value) >= least):
            return option if registered is None else argument
    return ""


def is_setting(option: str) -> bool:
    """Return whether an option is one of Kafka's settings."""
    return option.lower().startswith(PREFIX)


def with_publication(sources: Sequence[StreamingSource], on_complete: OnComplete | None) -> OnComplete | None:
    """Publish how far a query of these sources has read, where one of them wants that; then call `on_complete`.

    The format `onceward-kafka` wants it if it has a `kafka.group.id`; a source of `read_stream` publishes by itself.
    """
    groups = [
        (KafkaSettings(config=split_options(source.options)[0]), group)
        if source.format == FORMAT and (group := source.options.get(GROUP))
        else None
        for source in sources
    ]
    registered = [registered_source(source.format) for source in sources]
    steps: list[OnComplete] = []
    if any(groups):
        steps.append(partial(publish, groups))
    if any(source is not None for source in registered):
        steps.append(partial(_publish_registered, registered))
    if on_complete is not None:
        steps.append(on_complete)
    if len(steps) < 2:  # noqa: PLR2004 - one needs no other
        return steps[0] if steps else None

    def each(epoch: int, about: EpochInput) -> None:
        for step in steps:
            step(epoch, about)

    return each


def _publish_registered(sources: Sequence[ResettableSource | None], epoch: int, about: EpochInput) -> None:
    """Publish the position of each source of `read_stream`; errors are logged, as the epoch is completed."""
    for source, text in zip(sources, about.end or (), strict=True):
        if source is None or text == NOTHING:
            continue
        try:
            source.publish(json.loads(text))
        except OncewardError as error:
            _log.warning("epoch %s is completed, but its positions are not published: %s", epoch, error)
