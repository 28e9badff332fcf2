"""Options of `format("onceward-kafka")` for reading, in Spark's spelling, as a KafkaSource."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import ConfigurationError

from .options import flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onceward.connectors.kafka.bounds import Bound
    from onceward.connectors.kafka.source import KafkaSource

TOLERATED: Final = frozenset({"path", "checkpointlocation", "pipeline", "name", "useprivatejson"})
"""Options that Spark adds by itself or that belong to the query."""

STRATEGY: Final = "startingOffsetsByTimestampStrategy"
STREAM: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    STRATEGY,
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "kafkaConsumer.pollTimeoutMs",
)
ONLY_STREAM: Final = ("maxOffsetsPerTrigger",)
ONLY_BATCH: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


class Options:
    """Options, read without regard to case.

    Args:
        given: As Spark hands them over.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def get(self, name: str) -> str | None:
        """An option's text."""
        return self._given.get(name.lower())

    def number(self, name: str) -> int | None:
        """A whole number from 1 on."""
        text = self.get(name)
        if text is None:
            return None
        if not text.strip().isdigit() or int(text) < 1:
            raise ConfigurationError(f"option {name} must be a whole number from 1 on, not {text!r}")
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        return flag(name, self.get(name) or str(default))

    def refuse_unknown(self, known: tuple[str, ...], elsewhere: tuple[str, ...], where: str) -> None:
        """Refuse options that nobody would read.

        Raises:
            ConfigurationError: There are some; the message names them.
        """
        low = {name.lower() for name in known}
        names = sorted(n for n in self._given if n not in low | TOLERATED and not n.startswith("kafka."))
        wrong_side = [name for name in elsewhere if name.lower() in names]
        if wrong_side:
            raise ConfigurationError(f"options {', '.join(wrong_side)} are not for {where} queries")
        if names:
            raise ConfigurationError(
                f"unknown options {', '.join(names)}: this source knows {', '.join(known)}, kafka.*"
            )


def stream_source(given: Mapping[str, str]) -> KafkaSource:
    """The source of a streaming query.

    Raises:
        ConfigurationError: An option is unknown or wrong; the message names it.
    """
    options = Options(given)
    options.refuse_unknown(STREAM + ONLY_STREAM, ONLY_BATCH, "streaming")
    return _source(options, "latest", max_offsets_per_trigger=options.number("maxOffsetsPerTrigger"))


def batch_source(given: Mapping[str, str]) -> KafkaSource:
    """The source of a batch query.

    Raises:
        ConfigurationError: An option is unknown or wrong; the message names it.
    """
    options = Options(given)
    options.refuse_unknown(STREAM + ONLY_BATCH, ONLY_STREAM, "batch")
    return _source(options, "earliest", ending=_bound(options, "ending", "latest"))


def check_options(given: Mapping[str, str]) -> bool:
    """Check options, brokers and topics, before it is known whether the query is a stream or a batch.

    Returns:
        Whether there is a column headers.

    Raises:
        ConfigurationError: An option is unknown or wrong; the message names it.
        SourceError: A topic is missing, or no broker answers; the message says why.
    """
    options = Options(given)
    options.refuse_unknown(STREAM + ONLY_STREAM + ONLY_BATCH, (), "any")
    source = _source(options, "earliest")
    source.validate()
    return source.include_headers


def _source(options: Options, starting: str, **more: Any) -> KafkaSource:
    from onceward.connectors.kafka.source import KafkaSource  # noqa: PLC0415 - an extra

    timeout = options.number("kafkaConsumer.pollTimeoutMs")
    if timeout is not None:
        more["timeout"] = timeout / 1000
    return KafkaSource(
        **_selection(options),
        starting=_bound(options, "starting", starting),
        config=_settings(options),
        include_headers=options.flag("includeHeaders", default=False),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        min_partitions=options.number("minPartitions"),
        max_records_per_partition=options.number("maxRecordsPerPartition"),
        **more,
    )


def _settings(options: Options) -> dict[str, str]:
    from onceward.connectors.kafka.settings import split_options  # noqa: PLC0415 - needs an extra

    settings, _ = split_options(options._given)  # noqa: SLF001 - the same module
    return settings


def _selection(options: Options) -> dict[str, Any]:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if options.get(name) is not None]
    if len(given) != 1:
        raise ConfigurationError(
            f"give exactly one of subscribe, subscribePattern and assign; given: {given or 'none'}"
        )
    [name] = given
    text = options.get(name) or ""
    if name == "subscribe":
        topics = [topic.strip() for topic in text.split(",") if topic.strip()]
        if not topics:
            raise ConfigurationError("option subscribe names no topic")
        return {"topics": topics}
    if name == "assign":
        from onceward.connectors.kafka.positions import assignment_from_json  # noqa: PLC0415 - loaded with the source

        partitions = assignment_from_json(text)
        return {"assign": {topic: [p.number for p in partitions if p.topic == topic] for topic, _ in partitions}}
    try:
        re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"option subscribePattern is no regular expression: {error}") from error
    return {"pattern": text}


def _bound(options: Options, which: str, default: str) -> Bound:
    """Spark's order: one time for all, then times of partitions, then offsets."""
    from onceward.connectors.kafka.bounds import (  # noqa: PLC0415 - loaded with the source
        AtTime,
        bound,
        milliseconds,
        times,
    )

    strategy = (options.get(STRATEGY) or "error").lower()
    if strategy not in {"error", "latest"}:
        raise ConfigurationError(f"option {STRATEGY} must be error or latest, not {strategy!r}")
    late = strategy == "latest"
    single, several = f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    if (text := options.get(single)) is not None:
        return AtTime(milliseconds=milliseconds(text, f"option {single}"), or_latest=late)
    if (text := options.get(several)) is not None:
        return AtTime(of=times(text, f"option {several}"), or_latest=late)
    name = f"{which}Offsets"
    return bound(options.get(name) or default, f"option {name}")
