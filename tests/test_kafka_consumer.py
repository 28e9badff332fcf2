"""A range takes what belongs to its own partition, and nothing that a used consumer still delivers of another one."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from onceward.connectors.kafka.consumer import _Range
from onceward.connectors.kafka.positions import Partition
from onceward.core.errors import SourceError

MINE, OTHER = Partition("orders", 0), Partition("orders", 1)
NOWHERE = Partition("", -1)


class Message:
    """What confluent-kafka delivers: a record, or an event about a partition or about the client."""

    def __init__(self, partition: Partition, offset: int, code: int | None = None) -> None:
        self._partition, self._offset = partition, offset
        self._error = None if code is None else KafkaError(code)

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str | None:
        return self._partition.topic or None

    def partition(self) -> int:
        return self._partition.number

    def offset(self) -> int:
        return self._offset


def test_the_end_of_its_partition_ends_a_range():
    reading = _Range(MINE, 3, 10)
    reading.take([Message(MINE, 10, KafkaError._PARTITION_EOF)])
    assert reading.at == 10


@pytest.mark.parametrize("other", [OTHER, Partition("payments", 0)])
def test_the_end_of_another_partition_says_nothing(other: Partition):
    reading = _Range(MINE, 3, 10)
    reading.take([Message(other, 99, KafkaError._PARTITION_EOF)])
    assert (reading.at, reading.gone, reading.fault) == (3, "", "")


@pytest.mark.parametrize(
    "code", [KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.TOPIC_AUTHORIZATION_FAILED]
)
def test_what_is_wrong_with_another_partition_is_not_wrong_with_this_one(code: int):
    reading = _Range(MINE, 3, 10)
    reading.take([Message(OTHER, 3, code), Message(MINE, 3)])
    assert (reading.at, reading.gone) == (4, "")


def test_what_is_wrong_with_the_client_is_wrong_with_the_range():
    with pytest.raises(SourceError, match="cannot read orders-0"):
        _Range(MINE, 3, 10).take([Message(NOWHERE, -1001, KafkaError._FATAL)])


def test_an_offset_that_is_gone_is_told():
    reading = _Range(MINE, 3, 10)
    reading.take([Message(MINE, 3, KafkaError._AUTO_OFFSET_RESET)])
    assert reading.gone
