"""Offsets of a Kafka source: how they are written down, where reading starts or ends, and which to read next. Pure.

They are written as Spark's own source writes them: `{"topic": {"0": 123}}`.

Invariants: (S1) the ranges between two positions cover each offset exactly once. (S2) A partition that a position does
not know begins at offset 0: so its range is the same at each replay, and records that were deleted before anybody saw
them are a loss like any other. (S3) No range goes beyond the stable end: what lies there may still change. (S4) Nothing
is left out in silence: what a position needs and the brokers no longer hold is a `Loss`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from datetime import datetime
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from zlib import crc32

import msgspec
from msgspec import structs

from onceward.core.contract.source import Split
from onceward.core.errors import ConfigurationError, text_of
from onceward.core.kit import typed
from onceward.core.kit.sealed import UNREADABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
        """Parse a partition's text, "topic-number"."""
        topic, _, number = name.rpartition("-")
        return cls(topic, int(number))


Offsets = dict[Partition, int]
"""The next offset to read, for each partition."""


def offsets_as_json(offsets: Mapping[Partition, int]) -> dict[str, dict[str, int]]:
    """Return offsets as a JSON value, topics and partitions in order, so that equal offsets give equal text."""
    value: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        value.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return value


def from_json(value: Any, what: str = "offsets") -> Offsets:
    """Parse offsets from a JSON value or text.

    Raises:
        ConfigurationError: It has another shape.
    """
    offsets = _shaped(value, dict[_Topic, dict[int, int]], what, '{"topic": {"0": 123}}')
    return {
        Partition(topic, number): offset for topic, numbers in offsets.items() for number, offset in numbers.items()
    }


def assignment_from_json(value: Any) -> tuple[Partition, ...]:
    """Parse partitions from `{"topic": [0, 1]}`, Spark's option `assign`.

    Raises:
        ConfigurationError: It has another shape, or names no partition.
    """
    if isinstance(value, Mapping):  # a collection of any kind will do
        value = {
            topic: list(partitions) if isinstance(partitions, Collection) else partitions
            for topic, partitions in value.items()
        }
    numbers_by_topic = _shaped(value, dict[_Topic, list[_Number]], "assign", '{"topic": [0, 1]}')
    partitions = {Partition(topic, number) for topic, numbers in numbers_by_topic.items() for number in numbers}
    if not partitions:
        raise ConfigurationError("assign names no partition")
    return tuple(sorted(partitions))


def _shaped(value: Any, kind: Any, what: str, shape: str) -> Any:
    try:
        if isinstance(value, str):
            return typed.decode(value, kind)
        return typed.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{what} must have the shape {shape}, not {value!r}: {text_of(error)}") from error
    except UNREADABLE as error:
        raise ConfigurationError(f"{what} must be JSON such as {shape}: {text_of(error)}") from error


def in_share(partition: Partition, subtask: int, parallelism: int) -> bool:
    """Return whether a partition belongs to this subtask: a topic's partitions go round, beginning anywhere."""
    return (crc32(partition.topic.encode()) + partition.number) % parallelism == subtask


class AtOffsets(msgspec.Struct, frozen=True):
    """A bound at these offsets (EARLIEST and LATEST are possible), or everywhere at `default`."""

    offsets: tuple[tuple[Partition, int], ...] = ()
    default: int | None = None


class AtTime(msgspec.Struct, frozen=True):
    """A bound at the first record that is not older than a time.

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


def parse_bound(value: Any, what: str) -> Bound:
    """Make a bound from "earliest", "latest", `{"topic": {"0": 123}}` (or JSON text of it), or a datetime with zone.

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
        if position := _BY_NAME.get(value.strip().lower()):
            return position
        raise ConfigurationError(f"{what} must be earliest, latest or JSON of offsets, not {value!r}")
    offsets = from_json(value, what)
    if not offsets:
        raise ConfigurationError(f"{what} names no partition")
    if not all(EARLIEST <= offset <= _MOST for offset in offsets.values()):
        raise ConfigurationError(f"{what}: offsets are 0 to {_MOST}, -1 (latest) or -2 (earliest)")
    return AtOffsets(offsets=tuple(sorted(offsets.items())))


def check_end(end: Bound) -> Bound:
    """Refuse an end of "earliest".

    Raises:
        ConfigurationError: It is one.
    """
    if isinstance(end, AtOffsets) and (end.default == EARLIEST or any(o == EARLIEST for _, o in end.offsets)):
        raise ConfigurationError("endingOffsets (ending) cannot be earliest (-2): nothing would be read")
    return end


def spread(given: Bound, partitions: Iterable[Partition], what: str) -> dict[Partition, int]:
    """Return the bound's number (offset, or milliseconds) for each partition.

    Raises:
        ConfigurationError: Some partitions are not named, or named ones do not exist. As in Spark, all must be given.
    """
    own = set(partitions)
    listed = dict(given.offsets if isinstance(given, AtOffsets) else given.of)
    default = given.default if isinstance(given, AtOffsets) else given.milliseconds
    if default is not None:
        return {partition: listed.get(partition, default) for partition in sorted(own)}
    missing, foreign = (", ".join(map(str, sorted(some))) for some in (own - listed.keys(), listed.keys() - own))
    if missing or foreign:
        words = [f"not given: {missing}"] if missing else []
        words += [f"not subscribed or not there: {foreign}"] if foreign else []
        advice = (
            "Give each a time in milliseconds since 1970, or one to all (startingTimestamp, endingTimestamp)"
            if isinstance(given, AtTime)
            else "Use -2 for earliest, -1 for latest"
        )
        raise ConfigurationError(f"{what} must name each partition that is read ({'; '.join(words)}). {advice}")
    return {partition: listed[partition] for partition in sorted(own)}


class HeldOffsets(NamedTuple):
    """Offsets of a partition that the brokers hold."""

    earliest: int
    """First offset that is still there."""
    stable: int
    """End of what no longer changes: the last stable offset, or with read_uncommitted the end."""
    end: int
    """Where the next record goes; `stable` if that was not asked for."""


def beyond(offsets: Mapping[Partition, int], held: Mapping[Partition, HeldOffsets]) -> Offsets:
    """Return the offsets that lie beyond the end that the brokers hold of their partitions."""
    return {p: offsets[p] for p, there in held.items() if offsets[p] > max(there.stable, there.end)}


class Loss(NamedTuple):
    """Records that should be read and are not there."""

    partition: Partition
    wanted: int
    """The offset from which on they were wanted."""
    held: HeldOffsets | None
    """What is there instead; None: no such partition."""
    anew: bool = False
    """The topic is another one of the same name."""

    def __str__(self) -> str:
        if self.anew:
            return f"{self.partition} was deleted and recreated after offset {self.wanted} was reached"
        if self.held is None:
            return f"{self.partition} was deleted after offset {self.wanted} was reached"
        if self.wanted < self.held.earliest:
            return f"{self.partition}: offsets {self.wanted} to {self.held.earliest - 1} are deleted (retention)"
        return (
            f"{self.partition} ends at offset {self.held.end}, before {self.wanted}, which was reached: "
            "the topic was recreated, or its log was truncated"
        )


def losses(
    position: Mapping[Partition, int], held: Mapping[Partition, HeldOffsets], anew: Collection[str] = ()
) -> list[Loss]:
    """Return the ranges that a position needs and the brokers do not hold, new partitions included.

    Args:
        position: How far was read.
        held: What the brokers hold.
        anew: Topics that are known to be others than those of the position.
    """
    texts = []
    for partition in sorted({*position, *held}):
        there, offset = held.get(partition), position.get(partition, 0)
        other = partition.topic in anew and offset > 0
        if other or there is None or offset < there.earliest or offset > max(there.stable, there.end):
            texts.append(Loss(partition, offset, there, other))
    return texts


def begin(wanted: int, held: HeldOffsets, *, anew: bool = False) -> int:
    """Return where to continue reading: at the position, or past a loss; for a new topic, at its beginning."""
    if anew or wanted > max(held.stable, held.end):
        return held.earliest
    return max(wanted, held.earliest)


def reach(
    position: Mapping[Partition, int],
    held: Mapping[Partition, HeldOffsets],
    *,
    limit: int | None = None,
    until: Mapping[Partition, int] | None = None,
    anew: Collection[str] = (),
) -> Offsets:
    """Return how far to read now.

    Args:
        position: How far was read.
        held: What the brokers hold; a partition that is not in it is dropped.
        limit: Go at most about this many offsets further.
        until: Do not go beyond; a partition that is not in it stays where it is.
        anew: Topics that are known to have been recreated since: they are read from their beginning.
    """
    start = {p: begin(position.get(p, 0), there, anew=p.topic in anew) for p, there in held.items()}
    end: Offsets = {}
    for partition, there in held.items():
        if until is not None and partition not in until:
            if partition in position:
                end[partition] = position[partition]
            continue
        stop = there.stable if until is None else min(there.stable, until[partition])
        end[partition] = max(start[partition], stop)
    end = end if limit is None else step_towards(start, end, limit)
    for partition, offset in position.items():
        # Offsets have no place for a topic's id, so only an end before the start says that reading starts over (see
        # `ranges`). The rest follows in the next step.
        if partition.topic in anew and start.get(partition, offset) < offset:
            end[partition] = min(end[partition], offset - 1)
    return end


def step_towards(start: Mapping[Partition, int], end: Mapping[Partition, int], limit: int) -> Offsets:
    """Go from `start` at most about `limit` offsets towards `end`: each partition in proportion to its backlog.

    A partition with a backlog moves by one at least, so that small ones do not starve. As Spark's own source does
    (KafkaOffsetReader, rate limit).
    """
    backlog = {partition: stop - start.get(partition, 0) for partition, stop in end.items()}
    total = sum(size for size in backlog.values() if size > 0)
    if total <= limit:
        return dict(end)
    moved = dict(end)
    for partition, size in backlog.items():
        if size > 0:
            moved[partition] = end[partition] - size + min(size, max(1, limit * size // total))
    return moved


def ranges(start: Mapping[Partition, int], end: Mapping[Partition, int]) -> list[tuple[Partition, int, int]]:
    """Return the non-empty ranges between two positions, in order.

    An end before the start says that the topic was recreated, and losses are allowed: it is read from its beginning.
    """
    parts = []
    for partition in sorted(end):
        stop, first = end[partition], start.get(partition, 0)
        parts.append((partition, first if first <= stop else 0, stop))
    return [(partition, begins, stop) for partition, begins, stop in parts if begins < stop]


class TopicSplit(Split, frozen=True):
    """A range of a partition's offsets.

    Attributes:
        topic_id: The id of the topic for which the range was planned; empty if it is not known. The reader
            needs it to notice that another topic has the name now.
    """

    topic_id: str = ""


def cut(splits: Sequence[Split], parts: int, longest: int | None = None) -> list[Split]:
    """Cut ranges into at least `parts`, as equal as can be, none longer than `longest`; in order.

    The next cut always goes to the range with the longest pieces.
    """
    if not splits:
        return []
    counts = [1 if longest is None else -(-(split.end - split.start) // longest) for split in splits]
    heap = [(-(s.end - s.start) / counts[i], i) for i, s in enumerate(splits)]
    heapify(heap)
    missing = parts - sum(counts)
    while missing > 0:
        _, i = heap[0]
        size = splits[i].end - splits[i].start
        if size <= counts[i]:
            break
        counts[i] += 1
        missing -= 1
        heapreplace(heap, (-size / counts[i], i))
    return [piece for split, count in zip(splits, counts, strict=True) for piece in _equal_parts(split, count)]


def _equal_parts(split: Split, count: int) -> Iterable[Split]:
    size = split.end - split.start
    marks = [split.start + size * i // count for i in range(count + 1)]
    return (structs.replace(split, start=a, end=b) for a, b in itertools.pairwise(marks) if a < b)
