"""Kafka offsets as Spark's own source writes them down, `{"topic": {"0": 123}}`, and where reading starts or ends."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from zlib import crc32

import msgspec

from onceward.core.errors import ConfigurationError
from onceward.core.sealed import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EARLIEST: Final = -2
"""As an offset: the first one there is (Kafka's own number)."""
LATEST: Final = -1
"""As an offset: behind the last one that can be read (Kafka's own number)."""
_MOST: Final = 2**63 - 1
_Topic = Annotated[str, msgspec.Meta(min_length=1)]
_Number = Annotated[int, msgspec.Meta(ge=0)]


class Partition(NamedTuple):
    """A topic's partition."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"

    @classmethod
    def named(cls, name: str) -> Partition:
        """The partition of which this is the text."""
        topic, _, number = name.rpartition("-")
        return cls(topic, int(number))


Offsets = dict[Partition, int]
"""The next offset to read, for each partition."""


def to_json(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Offsets as a JSON value: topics and partitions in order, so that equal offsets give equal text."""
    value: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        value.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return value


def from_json(value: Any, what: str = "offsets") -> Offsets:
    """Offsets out of a JSON value or text.

    Raises:
        ConfigurationError: It has another shape.
    """
    given = _shaped(value, dict[_Topic, dict[int, int]], what, '{"topic": {"0": 123}}')
    return {Partition(topic, number): offset for topic, numbers in given.items() for number, offset in numbers.items()}


def assignment_from_json(value: Any) -> tuple[Partition, ...]:
    """Partitions out of `{"topic": [0, 1]}`, Spark's option `assign`.

    Raises:
        ConfigurationError: It has another shape, or names no partition.
    """
    given = _shaped(value, dict[_Topic, list[_Number]], "assign", '{"topic": [0, 1]}')
    found = {Partition(topic, number) for topic, numbers in given.items() for number in numbers}
    if not found:
        raise ConfigurationError("assign names no partition")
    return tuple(sorted(found))


def _shaped(value: Any, kind: Any, what: str, shape: str) -> Any:
    try:
        if isinstance(value, str):
            return msgspec.json.decode(value, type=kind)
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{what} must have the shape {shape}, not {value!r}: {error}") from error
    except UNREADABLE as error:
        raise ConfigurationError(f"{what} must be JSON such as {shape}: {error}") from error


def in_share(partition: Partition, subtask: int, parallelism: int) -> bool:
    """Whether a partition belongs to this subtask: a topic's partitions go round, beginning anywhere."""
    return (crc32(partition.topic.encode()) + partition.number) % parallelism == subtask


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

    def __post_init__(self) -> None:
        """Refuse times that Kafka would take for something else: -1 and -2 are its numbers for both ends.

        Raises:
            ConfigurationError: There is one.
        """
        for time in (0 if self.milliseconds is None else self.milliseconds, *(time for _, time in self.of)):
            if not 0 <= time <= _MOST:
                raise ConfigurationError(f"a starting or ending time must be 0 to {_MOST} ms since 1970, not {time}")


Bound = AtOffsets | AtTime

FROM_LATEST: Final = AtOffsets(default=LATEST)
_BY_NAME: Final = {"earliest": AtOffsets(default=EARLIEST), "latest": FROM_LATEST}


def bound(value: Any, what: str) -> Bound:
    """A bound out of "earliest", "latest", `{"topic": {"0": 123}}` (or JSON text of it), a datetime with zone.

    Raises:
        ConfigurationError: It is none of these.
    """
    if isinstance(value, AtOffsets | AtTime):
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigurationError(f"{what}: the time {value} has no zone; give datetime(…, tzinfo=UTC)")
        return AtTime(milliseconds=round(value.timestamp() * 1000))
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        if named := _BY_NAME.get(value.strip().lower()):
            return named
        raise ConfigurationError(f"{what} must be earliest, latest or JSON of offsets, not {value!r}")
    found = from_json(value, what)
    if not found:
        raise ConfigurationError(f"{what} names no partition")
    if not all(EARLIEST <= offset <= _MOST for offset in found.values()):
        raise ConfigurationError(f"{what}: offsets are 0 to {_MOST}, -1 (latest) or -2 (earliest)")
    return AtOffsets(offsets=tuple(sorted(found.items())))


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
    wanted = set(partitions)
    listed = dict(given.offsets if isinstance(given, AtOffsets) else given.of)
    default = given.default if isinstance(given, AtOffsets) else given.milliseconds
    if default is not None:
        return {partition: listed.get(partition, default) for partition in sorted(wanted)}
    missing, foreign = (", ".join(map(str, sorted(some))) for some in (wanted - listed.keys(), listed.keys() - wanted))
    if missing or foreign:
        words = [f"not given: {missing}"] if missing else []
        words += [f"not subscribed or not there: {foreign}"] if foreign else []
        raise ConfigurationError(
            f"{what} must name each partition that is read ({'; '.join(words)}). Use -2 for earliest, -1 for latest"
        )
    return {partition: listed[partition] for partition in sorted(wanted)}
