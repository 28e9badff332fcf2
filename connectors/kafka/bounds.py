"""Where reading a Kafka topic starts or ends, as the user says it: earliest, latest, offsets, a time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onceward.core.errors import ConfigurationError

from .positions import Offsets, Partition, from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EARLIEST: Final = -2
"""As an offset: the first one there is (Kafka's own number)."""
LATEST: Final = -1
"""As an offset: behind the last one that can be read (Kafka's own number)."""


class AtOffsets(msgspec.Struct, frozen=True):
    """At these offsets (EARLIEST and LATEST are possible), or everywhere at `default`."""

    offsets: tuple[tuple[Partition, int], ...] = ()
    default: int | None = None


class AtTime(msgspec.Struct, frozen=True):
    """At the first record that is not older than a time.

    Attributes:
        milliseconds: Time of all partitions, in ms since 1970 (UTC).
        of: Times of single partitions.
        or_latest: Begin at the end where there is no such record; False: that is an error.
    """

    milliseconds: int | None = None
    of: tuple[tuple[Partition, int], ...] = ()
    or_latest: bool = False


Bound = AtOffsets | AtTime

FROM_EARLIEST: Final = AtOffsets(default=EARLIEST)
FROM_LATEST: Final = AtOffsets(default=LATEST)


def bound(value: Any, what: str) -> Bound:
    """A bound out of "earliest", "latest", `{"topic": {"0": 123}}` (or JSON text of it), a datetime with zone.

    Args:
        value: What the user gave.
        what: Its name, for errors.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(value, AtOffsets | AtTime):
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigurationError(f"{what}: the time {value} has no zone; give datetime(…, tzinfo=UTC)")
        return AtTime(milliseconds=round(value.timestamp() * 1000))
    if isinstance(value, str) and value.strip().lower() in {"earliest", "latest"}:
        return FROM_EARLIEST if value.strip().lower() == "earliest" else FROM_LATEST
    return AtOffsets(offsets=tuple(sorted(_offsets(value, what).items())))


def times(text: str, what: str) -> tuple[tuple[Partition, int], ...]:
    """Times of partitions out of JSON text: `{"topic": {"0": milliseconds}}`."""
    return tuple(sorted(from_json(text, what).items()))


def milliseconds(text: str, what: str) -> int:
    """A time out of text: milliseconds since 1970."""
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{what} must be milliseconds since 1970, not {text!r}") from None


def check_end(end: Bound) -> Bound:
    """Refuse an end of "earliest".

    Raises:
        ConfigurationError: It is one.
    """
    if isinstance(end, AtOffsets) and (end.default == EARLIEST or any(o == EARLIEST for _, o in end.offsets)):
        raise ConfigurationError("the end cannot be earliest (-2): nothing would be read")
    return end


def spread(given: Bound, partitions: Iterable[Partition], what: str) -> dict[Partition, int]:
    """The bound's number (offset, or milliseconds) for each partition.

    Raises:
        ConfigurationError: Some partitions are not named, or named ones do not exist. As in Spark, all must be given.
    """
    wanted = sorted(partitions)
    listed = dict(given.offsets if isinstance(given, AtOffsets) else given.of)
    default = given.default if isinstance(given, AtOffsets) else given.milliseconds
    if default is not None:
        return {partition: listed.get(partition, default) for partition in wanted}
    _check_all_named(listed, wanted, what)
    return {partition: listed[partition] for partition in wanted}


def _check_all_named(listed: Mapping[Partition, int], wanted: list[Partition], what: str) -> None:
    missing = [str(partition) for partition in wanted if partition not in listed]
    foreign = [str(partition) for partition in sorted(listed) if partition not in set(wanted)]
    if missing or foreign:
        words = [f"not given: {', '.join(missing)}"] if missing else []
        words += [f"not subscribed or not there: {', '.join(foreign)}"] if foreign else []
        raise ConfigurationError(
            f"{what} must name each partition that is read ({'; '.join(words)}). Use -2 for earliest, -1 for latest"
        )


def _offsets(value: Any, what: str) -> Offsets:
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        raise ConfigurationError(f"{what} must be earliest, latest or JSON of offsets, not {value!r}")
    found = from_json(value, what)
    if not found:
        raise ConfigurationError(f"{what} names no partition")
    if any(offset < EARLIEST for offset in found.values()):
        raise ConfigurationError(f"{what}: offsets are 0 or more, -1 (latest) or -2 (earliest)")
    return found
