"""Kafka offsets as Spark's own source writes them down: `{"topic": {"0": 123}}`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from onceward.core.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Partition(NamedTuple):
    """A topic's partition."""

    topic: str
    number: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.number}"


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

    Args:
        value: Such as `{"topic": {"0": 123}}`, or the same as text.
        what: What it is, for the error.

    Raises:
        ConfigurationError: It has another shape.
    """
    shape = '{"topic": {"0": 123}}'
    given = _value(value, what, shape)
    try:
        return {
            Partition(_text(topic), _whole(number)): _whole(offset)
            for topic, partitions in given.items()
            for number, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{what} must have the shape {shape}, not {value!r}") from error


def assignment_from_json(value: Any) -> tuple[Partition, ...]:
    """Partitions out of `{"topic": [0, 1]}`, Spark's option `assign`.

    Raises:
        ConfigurationError: It has another shape.
    """
    shape = '{"topic": [0, 1]}'
    given = _value(value, "assign", shape)
    try:
        found = {Partition(_text(topic), _whole(n)) for topic, numbers in given.items() for n in numbers}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"assign must have the shape {shape}, not {value!r}") from error
    if not found or min(partition.number for partition in found) < 0:
        raise ConfigurationError("assign names no partition, or one below 0")
    return tuple(sorted(found))


def in_share(partition: Partition, subtask: int, parallelism: int) -> bool:
    """Whether a partition belongs to this subtask: a topic's partitions go round, beginning anywhere."""
    return (crc32(partition.topic.encode()) + partition.number) % parallelism == subtask


def _value(given: Any, what: str, shape: str) -> Any:
    try:
        return json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{what} must be JSON such as {shape}: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _whole(value: Any) -> int:
    if isinstance(value, (bool, float)):
        raise TypeError
    return int(value)
