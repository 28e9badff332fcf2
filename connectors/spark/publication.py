"""Publishing a query's Kafka offsets to consumer groups, once an epoch is completed.

Spark tells a Python source of a finished batch one batch late, and of the last one never. So whoever completes an epoch
publishes. Its analyzed plan says which sources a query reads: its streaming leaves, in the order in which the
checkpoint's offsets files list them (measured on pyspark 4.2). A format's writer sees no plan: it is told by options.

Faults are logged and not raised: the epoch is completed, the next one publishes again, and nothing here reads what is
published.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from onceward.connectors.kafka.positions import Offsets, from_json, to_json
from onceward.connectors.kafka.settings import PREFIX, KafkaSettings, split_options
from onceward.core.errors import ConfigurationError, OncewardError

from .plan import streaming_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from onceward.core.log import EpochInput

    OnComplete = Callable[[int, EpochInput], None]
    Group = tuple[KafkaSettings, str]
    """Where, and the name of the consumer group."""

_log = logging.getLogger("onceward.spark")

FORMAT: Final = "onceward-kafka"
GROUP: Final = "kafka.group.id"
OPTIONS: Final = "offsets."
"""How the options of a format begin that say where to publish: `offsets.kafka.group.id`, `offsets.kafka.*`."""
QUIET_SECONDS: Final = 60.0
"""For how long nothing is published after a failure: what may be skipped does not set the query's pace."""
_NOTHING: Final = "-"
"""What an offsets file says of a source that has not begun."""
_quiet_until: dict[Group, float] = {}


class Publisher:
    """Publishes an epoch's end offsets; called with the epoch's number and input.

    Args:
        groups: For each streaming source of the query, in order: to which group; None: not published. Or the one group
            to which all Kafka sources are published, this library's and Spark's own.
    """

    def __init__(self, groups: Sequence[Group | None] | Group) -> None:
        self._groups = groups

    def __call__(self, epoch: int, about: EpochInput) -> None:
        """Publish; `about.end` holds one JSON text for each source."""
        from onceward.connectors.kafka.admin import publish_offsets  # noqa: PLC0415 - an extra

        ends = list(about.end or [])
        groups: Sequence[Any] = self._groups
        if isinstance(groups, tuple):
            groups = [groups if _is_kafka(end) else None for end in ends]
        if len(ends) != len(groups):
            _log.warning(
                "epoch %s: no offsets are published, for the checkpoint lists %s sources and the query has %s",
                epoch,
                len(ends),
                len(groups),
            )
            return
        for (settings, group), offsets in _by_group(groups, ends).items():
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


def _by_group(groups: Sequence[Group | None], ends: Sequence[str]) -> dict[Group, Offsets]:
    """Offsets of each group; where two sources read one partition, how far both are."""
    found: dict[Group, Offsets] = {}
    for group, text in zip(groups, ends, strict=True):
        if group is None or text == _NOTHING:
            continue
        offsets = found.setdefault(group, {})
        for partition, offset in from_json(text).items():
            offsets[partition] = min(offset, offsets.get(partition, offset))
    return found


def _is_kafka(text: str) -> bool:
    """Whether an offsets file's text for one source is `{"topic": {"0": 123}}`."""
    try:
        from_json(text)
    except ConfigurationError:
        return False
    return True


def publisher_from_options(options: Mapping[str, str]) -> Publisher | None:
    """What the options `offsets.kafka.group.id` and `offsets.kafka.bootstrap.servers` of a format ask for, if given.

    Raises:
        ConfigurationError: One is missing, unknown or refused.
    """
    given = {name.lower()[len(OPTIONS) :]: value for name, value in options.items() if is_ours(name)}
    if not given:
        return None
    kafka, rest = split_options(given)
    group = kafka.get(GROUP.removeprefix(PREFIX))
    if rest or not group or "bootstrap.servers" not in kafka:
        raise ConfigurationError(
            "to publish the source's offsets to a consumer group give option('offsets.kafka.group.id', …) and "
            "option('offsets.kafka.bootstrap.servers', …) of the source's cluster; further options are Kafka's "
            f"settings with 'offsets.kafka.' in front. Got {', '.join(OPTIONS + name for name in sorted(given))}"
        )
    return Publisher((KafkaSettings(config=kafka), group))


def is_ours(option: str) -> bool:
    """Whether an option of a format says where to publish offsets."""
    return option.lower().startswith(OPTIONS)


def with_publication(df: DataFrame, on_complete: OnComplete | None) -> OnComplete | None:
    """Publish the offsets of the query that `df` becomes, if a source has a `kafka.group.id`; then `on_complete`."""
    groups = [_group_of(leaf) for leaf in streaming_leaves(df)]
    if not any(groups):
        return on_complete
    publish = Publisher(groups)
    if on_complete is None:
        return publish

    def both(epoch: int, about: EpochInput) -> None:
        publish(epoch, about)
        on_complete(epoch, about)

    return both


def _group_of(leaf: Any) -> Group | None:
    if not leaf.getClass().getName().endswith(".StreamingRelationV2") or leaf.sourceName() != FORMAT:
        return None
    options = {name.lower(): value for name, value in dict(leaf.extraOptions()).items()}
    group = options.get(GROUP)
    if not group:
        return None
    settings, _ = split_options(options)
    return KafkaSettings(config=settings), group
