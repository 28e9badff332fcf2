"""Which partitions a Kafka source reads, as far as they exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from onceward.core.errors import ConfigurationError, SourceError

from .positions import Partition, assignment_from_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .lookup import Lookup


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
