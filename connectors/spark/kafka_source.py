"""The readers of `format("onceward-kafka")`: a KafkaSource out of the options of Spark's own Kafka source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceward import KafkaSource
from onceward.connectors.kafka.positions import AtTime, bound, milliseconds, times
from onceward.connectors.kafka.settings import CONNECTION_OPTIONS, split_options
from onceward.core.errors import ConfigurationError
from onceward.core.kit.options import arguments, distinct

from .any_source import LIMITS, BeforeLimits, SourceStreamReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onceward.connectors.kafka.positions import Bound

    from .any_source import Offsets

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


class KafkaStreamReader(SourceStreamReader):
    """Reads a stream, and tells where everything ended when a batch was planned, for the query's progress."""

    _source: KafkaSource

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802 - Spark's name
        return self._source.newest


def stream_reader(options: Mapping[str, str]) -> SourceStreamReader:
    """The reader of a streaming query; see stream_source."""
    source = stream_source(options)
    return (KafkaStreamReader if LIMITS else BeforeLimits)(source, source.max_offsets_per_trigger)


def stream_source(options: Mapping[str, str]) -> KafkaSource:
    """The source of a streaming query.

    Raises:
        ConfigurationError: An option is unknown or wrong; the message names it.
    """
    return _source(options, "latest", ONLY_BATCH, "streaming")


def batch_source(options: Mapping[str, str]) -> KafkaSource:
    """The source of a batch query.

    Raises:
        ConfigurationError: An option is unknown or wrong; the message names it.
    """
    return _source(options, "earliest", ONLY_STREAM, "batch", ending="latest")


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
    config, others = split_options({name.lower(): text for name, text in options.items()})
    rest = {name: others[option] for name, option in distinct(others).items() if name not in TOLERATED}
    if wrong := [name for name in refused if name.lower() in rest]:
        raise ConfigurationError(f"options {', '.join(wrong)} are not for {where} queries")
    special = {name: rest.pop(name.lower(), None) for name in (*SELECTIONS, *STARTS, *ONLY_BATCH, STRATEGY)}
    given = {name: text for name, text in special.items() if text is not None}
    also = (*CONNECTION_OPTIONS, *SELECTIONS, *STARTS, *ONLY_BATCH, STRATEGY)
    plain = arguments(KafkaSource, rest, aliases={TIMEOUT: "timeout"}, omit=ELSEWHERE, also=also)
    if "timeout" in plain:
        plain["timeout"] /= 1000
    if ending is not None:
        plain["ending"] = _bound(given, ONLY_BATCH, ending)
    subscribe, assign = given.get("subscribe"), given.get("assign")
    return KafkaSource(
        topics=None if subscribe is None else [name.strip() for name in subscribe.split(",") if name.strip()],
        pattern=given.get("subscribePattern"),
        assign=assign,
        starting=_bound(given, STARTS, starting),
        config=config,
        **plain,
    )


def _bound(given: Mapping[str, str], names: tuple[str, ...], default: str) -> Bound:
    """Spark's order: one time for all, then times of partitions, then offsets."""
    strategy = given.get(STRATEGY, "error").lower()
    if strategy not in {"error", "latest"}:
        raise ConfigurationError(f"option {STRATEGY} must be error or latest, not {strategy!r}")
    single, several, offsets = names
    if single in given:
        return AtTime(milliseconds=milliseconds(given[single], f"option {single}"), or_latest=strategy == "latest")
    if several in given:
        return AtTime(of=times(given[several], f"option {several}"), or_latest=strategy == "latest")
    return bound(given.get(offsets, default), f"option {offsets}")
