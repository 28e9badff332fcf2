"""A range takes what belongs to its own partition, and nothing that a used consumer still delivers of another one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError

from onceward.connectors.kafka.consumer import _Range
from onceward.connectors.kafka.positions import Partition
from onceward.connectors.kafka.received import PLAIN, Event, Received
from onceward.core.errors import SourceError

MINE, OTHER = Partition("orders", 0), Partition("orders", 1)
NOWHERE = None, -1


def records(partition: Partition, *offsets: int) -> pa.RecordBatch:
    """Records at these offsets."""
    rows = [{"topic": partition.topic, "partition": partition.number, "offset": offset} for offset in offsets]
    return pa.RecordBatch.from_pylist(rows, PLAIN)


def event(about: tuple[str | None, int], offset: int, code: int) -> Event:
    """An event about a partition or about the client."""
    return Event(KafkaError(code), *about, offset)


def test_the_end_of_its_partition_ends_a_range():
    reading = _Range(MINE, 3, 10)
    reading.take(Received(None, [event(MINE, 10, KafkaError._PARTITION_EOF)]))
    assert reading.at == 10


@pytest.mark.parametrize("other", [OTHER, Partition("payments", 0)])
def test_the_end_of_another_partition_says_nothing(other: Partition):
    reading = _Range(MINE, 3, 10)
    reading.take(Received(None, [event(other, 99, KafkaError._PARTITION_EOF)]))
    assert (reading.at, reading.gone, reading.fault) == (3, "", "")


@pytest.mark.parametrize(
    "code", [KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.TOPIC_AUTHORIZATION_FAILED]
)
def test_what_is_wrong_with_another_partition_is_not_wrong_with_this_one(code: int):
    reading = _Range(MINE, 3, 10)
    reading.take(Received(records(MINE, 3), [event(OTHER, 3, code)]))
    assert (reading.at, reading.gone) == (4, "")


def test_what_is_wrong_with_the_client_is_wrong_with_the_range():
    with pytest.raises(SourceError, match="cannot read orders-0"):
        _Range(MINE, 3, 10).take(Received(None, [event(NOWHERE, -1001, KafkaError._FATAL)]))


def test_an_offset_that_is_gone_is_told():
    reading = _Range(MINE, 3, 10)
    reading.take(Received(None, [event(MINE, 3, KafkaError._AUTO_OFFSET_RESET)]))
    assert reading.gone


def test_what_lies_behind_the_end_is_left_out():
    reading = _Range(MINE, 3, 10)
    taken = reading.take(Received(records(MINE, 3, 9, 11), []))
    assert taken is not None
    assert taken.column("offset").to_pylist() == [3, 9]
    assert _Range(MINE, 3, 10).take(Received(records(MINE, 12, 13), [])) is None
    assert reading.at == 12


@pytest.mark.parametrize("wrong", [records(OTHER, 3), records(MINE, 2, 3)])
def test_what_was_not_asked_for_is_an_error(wrong: pa.RecordBatch):
    with pytest.raises(SourceError, match="please report this"):
        _Range(MINE, 3, 10).take(Received(wrong, []))
