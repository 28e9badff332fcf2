"""Which partitions a Kafka source reads, as far as they exist, and between which offsets: by asking the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from onceward.core.errors import ConfigurationError, SourceError

from .bounds import LATEST, AtTime, Bound, spread
from .positions import Partition, assignment_from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from .lookup import Lookup
    from .positions import Offsets


class Selection(msgspec.Struct, frozen=True):
    """What is read: exactly one of these.

    Attributes:
        topics: Names of topics.
        pattern: Regular expression that a topic's whole name matches.
        assign: Partitions.
    """

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assign: tuple[Partition, ...] | None = None

    @classmethod
    def of(
        cls, topics: Sequence[str] | None, pattern: str | None, assign: Mapping[str, Sequence[int]] | None
    ) -> Selection:
        """A selection out of what the user gave.

        Raises:
            ConfigurationError: Not exactly one was given, or it is empty.
        """
        if sum(choice is not None for choice in (topics, pattern, assign)) != 1:
            raise ConfigurationError(
                "say what to read by exactly one of topics (subscribe), pattern (subscribePattern) and assign"
            )
        if assign is not None:
            return cls(assign=assignment_from_json(dict(assign)))
        if pattern is not None:
            return cls(pattern=pattern)
        if isinstance(topics, str) or not topics:
            raise ConfigurationError(f"topics must be a list with at least one name, not {topics!r}")
        return cls(topics=tuple(sorted(set(topics))))


class Found(msgspec.Struct, frozen=True):
    """What there is of a selection.

    Attributes:
        partitions: Its partitions.
        ids: Ids of their topics: a topic that is deleted and made anew gets another.
        missing: What the selection names and is not there.
    """

    partitions: tuple[Partition, ...]
    ids: dict[str, str]
    missing: tuple[str, ...]

    def complete(self, servers: str) -> Found:
        """This, if nothing is missing.

        Raises:
            SourceError: Something is missing.
        """
        if self.missing:
            raise SourceError(f"Kafka at {servers} has no {', '.join(self.missing)}: create it first")
        return self


def find(selection: Selection, lookup: Lookup) -> Found:
    """Ask the brokers what there is of a selection."""
    if selection.pattern is not None:
        names = lookup.topics_like(selection.pattern)
    else:
        names = sorted(selection.topics or {partition.topic for partition in selection.assign or ()})
    described = lookup.partitions_of(names)
    there = [Partition(topic, n) for topic, (_, count) in described.items() for n in range(count)]
    if selection.assign is not None:
        missing = [str(partition) for partition in selection.assign if partition not in there]
        there = [partition for partition in there if partition in selection.assign]
    else:
        missing = [name for name in names if name not in described] if selection.pattern is None else []
    return Found(tuple(sorted(there)), {topic: id_ for topic, (id_, _) in described.items()}, tuple(missing))


def start_offsets(given: Bound, partitions: Iterable[Partition], lookup: Lookup) -> Offsets:
    """Offsets where reading starts.

    Raises:
        ConfigurationError: Offsets are given, and not for exactly these partitions.
        SourceError: A time is given that is later than all records of a partition.
    """
    numbers = spread(given, partitions, "startingOffsets")
    if not isinstance(given, AtTime):
        return lookup.offsets(numbers)[0]
    found = lookup.at_times(numbers)
    late = [str(partition) for partition, offset in sorted(found.items()) if offset < 0]
    if late and not given.or_latest:
        raise SourceError(
            f"no record of {', '.join(late)} is as new as the starting time: with "
            "startingOffsetsByTimestampStrategy=latest (AtTime(or_latest=True)) reading begins at the end"
        )
    return _ends_where_late(found, lookup)


def end_offsets(given: Bound, partitions: Iterable[Partition], lookup: Lookup) -> Offsets:
    """Offsets where reading ends; a time that is later than all records is the end.

    Raises:
        ConfigurationError: Offsets are given, and not for exactly these partitions.
    """
    numbers = spread(given, partitions, "endingOffsets")
    if not isinstance(given, AtTime):
        return lookup.offsets(numbers)[0]
    return _ends_where_late(lookup.at_times(numbers), lookup)


def _ends_where_late(found: Offsets, lookup: Lookup) -> Offsets:
    return lookup.offsets({partition: LATEST if offset < 0 else offset for partition, offset in found.items()})[0]
