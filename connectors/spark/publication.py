"""Publishing a query's Kafka offsets to consumer groups, once an epoch is completed.

Spark tells a Python source of a finished batch one batch late, and of the last one never. So whoever completes an epoch
publishes. Its analyzed plan says which sources a query reads: its streaming leaves, in the order in which the
checkpoint's offsets files list them (measured on pyspark 4.2). A format's writer sees no plan: it is told by options.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from onceward.connectors.kafka.positions import Offsets, from_json, to_json
from onceward.core.errors import ConfigurationError, OncewardError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from onceward.connectors.kafka.settings import KafkaSettings
    from onceward.core.log import EpochInput

    OnComplete = Callable[[int, EpochInput], None]

_log = logging.getLogger("onceward.spark")

FORMAT: Final = "onceward-kafka"
GROUP: Final = "kafka.group.id"
OPTIONS: Final = "offsets."
"""How the options of a format begin that say where to publish: `offsets.kafka.group.id`, `offsets.kafka.*`."""
QUIET_SECONDS: Final = 60.0
"""For how long nothing is published after a failure: what may be skipped does not set the query's pace."""
_NOTHING: Final = "-"
"""What an offsets file says of a source that has not begun."""


def publisher_for(df: DataFrame) -> OnComplete | None:
    """What publishes the offsets of the query that `df` becomes; None if no source of it has a `kafka.group.id`.

    The function takes an epoch's number and input. Faults are logged and not raised: the epoch is completed, the next
    one publishes again, and nothing here reads what is published.
    """
    groups = [_group_of(leaf) for leaf in _streaming_leaves(df)]
    return Publisher(groups) if any(group is not None for group in groups) else None


class OptionsPublisher:
    """Publishes an epoch's end offsets of all Kafka sources, this library's and Spark's own, to one group.

    Args:
        settings: Where.
        group: Name of the consumer group.
    """

    def __init__(self, settings: KafkaSettings, group: str) -> None:
        self._key = (settings, group)

    def __call__(self, epoch: int, about: EpochInput) -> None:
        """Publish; sources whose offsets are not Kafka's are ignored."""
        Publisher([self._key if _is_kafka(end) else None for end in about.end or []])(epoch, about)


def publisher_from_options(options: Mapping[str, str]) -> OptionsPublisher | None:
    """What the options `offsets.kafka.group.id` and `offsets.kafka.bootstrap.servers` of a format ask for, if given.

    Raises:
        ConfigurationError: One is missing, unknown or refused.
    """
    given = {name.lower()[len(OPTIONS) :]: value for name, value in options.items() if is_ours(name)}
    if not given:
        return None
    from onceward.connectors.kafka.settings import PREFIX, KafkaSettings, split_options  # noqa: PLC0415 - an extra

    kafka, rest = split_options(given)
    group = kafka.get(GROUP.removeprefix(PREFIX))
    if rest or not group or "bootstrap.servers" not in kafka:
        raise ConfigurationError(
            "to publish the source's offsets to a consumer group give option('offsets.kafka.group.id', …) and "
            "option('offsets.kafka.bootstrap.servers', …) of the source's cluster; further options are Kafka's "
            f"settings with 'offsets.kafka.' in front. Got {', '.join(OPTIONS + name for name in sorted(given))}"
        )
    return OptionsPublisher(KafkaSettings(config=kafka), group)


def is_ours(option: str) -> bool:
    """Whether an option of a format says where to publish offsets."""
    return option.lower().startswith(OPTIONS)


def with_publication(df: DataFrame, on_complete: OnComplete | None) -> OnComplete | None:
    """Publish first, then call `on_complete`."""
    publish = publisher_for(df)
    if publish is None or on_complete is None:
        return publish or on_complete

    def both(epoch: int, about: EpochInput) -> None:
        publish(epoch, about)
        on_complete(epoch, about)

    return both


_quiet_until: dict[tuple[KafkaSettings, str], float] = {}


class Publisher:
    """Publishes an epoch's end offsets.

    Args:
        groups: For each streaming source of the query, in order: where and to which group; None: not published.
    """

    def __init__(self, groups: Sequence[tuple[KafkaSettings, str] | None]) -> None:
        self._groups = list(groups)

    def __call__(self, epoch: int, about: EpochInput) -> None:
        """Publish; `about.end` holds one JSON text for each source."""
        from onceward.connectors.kafka.admin import publish_offsets  # noqa: PLC0415 - an extra

        ends = list(about.end or [])
        if len(ends) != len(self._groups):
            _log.warning(
                "epoch %s: no offsets are published, for the checkpoint lists %s sources and the query has %s",
                epoch,
                len(ends),
                len(self._groups),
            )
            return
        for (settings, group), offsets in self._by_group(ends):
            key = (settings.connection(), group)
            if time.monotonic() < _quiet_until.get(key, 0.0):
                continue
            try:
                publish_offsets(settings, group, to_json(offsets))
            except OncewardError as error:
                _quiet_until[key] = time.monotonic() + QUIET_SECONDS
                servers = settings["bootstrap.servers"]
                _log.warning(
                    "epoch %s is completed, but its offsets are not published to %s: %s", epoch, servers, error
                )

    def _by_group(self, ends: Sequence[str]) -> list[tuple[tuple[KafkaSettings, str], Offsets]]:
        """Offsets of each group; where two sources read one partition, how far both are."""
        found: dict[tuple[KafkaSettings, str], Offsets] = {}
        for key, text in zip(self._groups, ends, strict=True):
            if key is None or text == _NOTHING:
                continue
            offsets = found.setdefault(key, {})
            for partition, offset in from_json(text).items():
                offsets[partition] = min(offset, offsets.get(partition, offset))
        return list(found.items())


def _is_kafka(text: str) -> bool:
    """Whether an offsets file's text for one source is `{"topic": {"0": 123}}`."""
    try:
        from_json(text)
    except ConfigurationError:
        return False
    return True


def _streaming_leaves(df: DataFrame) -> list[Any]:
    jdf: Any = getattr(df, "_jdf", None)
    if jdf is None:
        return []
    leaves = jdf.queryExecution().analyzed().collectLeaves()
    every = [leaves.apply(number) for number in range(leaves.size())]
    return [leaf for leaf in every if leaf.isStreaming()]


def _group_of(leaf: Any) -> tuple[KafkaSettings, str] | None:
    if not leaf.getClass().getName().endswith(".StreamingRelationV2") or leaf.sourceName() != FORMAT:
        return None
    options = {name.lower(): value for name, value in dict(leaf.extraOptions()).items()}
    group = options.get(GROUP)
    if not group:
        return None
    from onceward.connectors.kafka.settings import KafkaSettings, split_options  # noqa: PLC0415 - an extra

    settings, _ = split_options(options)
    return KafkaSettings(config=settings), group
