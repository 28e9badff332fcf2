"""A range takes what belongs to its own partition, and nothing that a used consumer still delivers of another one.

What librdkafka delivered is passed on whole, in batches of a bounded size.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from onceward.connectors.kafka import consumer
from onceward.connectors.kafka.consumed_batches import NOTHING, PLAIN, Event, Received, cuts
from onceward.connectors.kafka.consumer import FETCH_SIZES, FITS, NARROW_BYTES, ROWS, WIDE_BYTES, RangeConsumer, _Range
from onceward.connectors.kafka.positions import Partition
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.core.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable

MINE, OTHER = Partition("orders", 0), Partition("orders", 1)
NOWHERE = None, -1


def records(partition: Partition, *offsets: int, value: bytes = b"") -> pa.RecordBatch:
    """Records at these offsets."""
    columns = {"topic": partition.topic, "partition": partition.number, "value": value}
    return pa.RecordBatch.from_pylist([{**columns, "offset": offset} for offset in offsets], PLAIN)


def event(about: tuple[str | None, int], offset: int, code: int) -> Event:
    """An event about a partition or about the client."""
    return Event(KafkaError(code), *about, offset)


def came(*batches: pa.RecordBatch, events: Iterable[Event] = ()) -> Received:
    """What a client delivers."""
    return Received(batches, list(events), sum(map(len, batches)))


def taken(reading: _Range, received: Received) -> list[int]:
    """The offsets that a range takes."""
    return [offset for batch in (*reading.take(received), *reading.ready()) for offset in batch["offset"].to_pylist()]


def test_the_end_of_its_partition_ends_a_range():
    reading = _Range(MINE, 3, 10)
    taken(reading, came(events=[event(MINE, 10, KafkaError._PARTITION_EOF)]))
    assert reading.at == 10


@pytest.mark.parametrize("other", [OTHER, Partition("payments", 0)])
def test_the_end_of_another_partition_says_nothing(other: Partition):
    reading = _Range(MINE, 3, 10)
    taken(reading, came(events=[event(other, 99, KafkaError._PARTITION_EOF)]))
    assert (reading.at, reading.gone, reading.fault) == (3, "", "")


@pytest.mark.parametrize(
    "code", [KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.TOPIC_AUTHORIZATION_FAILED]
)
def test_what_is_wrong_with_another_partition_is_not_wrong_with_this_one(code: int):
    reading = _Range(MINE, 3, 10)
    assert taken(reading, came(records(MINE, 3), events=[event(OTHER, 3, code)])) == [3]
    assert (reading.at, reading.gone) == (4, "")


def test_what_is_wrong_with_the_client_is_wrong_with_the_range():
    with pytest.raises(SourceError, match="cannot read orders-0"):
        taken(_Range(MINE, 3, 10), came(events=[event(NOWHERE, -1001, KafkaError._FATAL)]))


def test_an_offset_that_is_gone_is_told():
    reading = _Range(MINE, 3, 10)
    taken(reading, came(events=[event(MINE, 3, KafkaError._AUTO_OFFSET_RESET)]))
    assert reading.gone


def test_what_lies_behind_the_end_is_left_out():
    reading = _Range(MINE, 3, 10)
    assert taken(reading, came(records(MINE, 3, 9, 11))) == [3, 9]
    reading.check_count()
    reading = _Range(MINE, 3, 10)
    assert taken(reading, came(records(MINE, 12, 13))) == []
    reading.check_count()
    assert reading.at == 14


@pytest.mark.parametrize("wrong", [records(OTHER, 3), records(MINE, 2, 3), records(MINE, 3, 5, 5), records(MINE, 5, 4)])
def test_what_was_not_asked_for_or_is_not_in_order_is_an_error(wrong: pa.RecordBatch):
    with pytest.raises(SourceError, match="please report this"):
        taken(_Range(MINE, 3, 10), came(wrong))


class Client:
    """Delivers batches as librdkafka does, and nothing after them."""

    left: ClassVar[list[Received]] = []
    fetches: ClassVar[list[Any]] = []
    """The size of responses that each client asked for when it began to read, and the offset from which it read."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.size = config.get("fetch.message.max.bytes")

    def read_from(self, _topic: str, _partition: int, offset: int) -> None:
        self.fetches.append((self.size, offset))

    def receive(self, *_: Any) -> Received:
        return self.left.pop(0) if self.left else NOTHING

    def unassign(self) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


def read(
    monkeypatch: pytest.MonkeyPatch, *batches: pa.RecordBatch | Received, end: int, **config: Any
) -> list[pa.RecordBatch]:
    """What a consumer makes of these."""
    monkeypatch.setattr(Client, "left", [one if isinstance(one, Received) else came(one) for one in batches])
    monkeypatch.setattr(Client, "fetches", [])
    monkeypatch.setattr(consumer, "ArrayClient", Client)
    reader = RangeConsumer(KafkaSettings("localhost:1", config))
    return list(reader.read(MINE, 0, end, retry_seconds=5.0, is_there=lambda: True))


SMALL = records(MINE, 0, 1, value=bytes(1_000))
DENSE = records(MINE, 0, 1, value=bytes(FITS))
LATER = records(MINE, 9_999)
WIDENED = [(NARROW_BYTES, 0), (WIDE_BYTES, 2)]


@pytest.mark.parametrize(
    ("received", "fetches"),
    [
        pytest.param([SMALL], WIDENED, id="small"),
        pytest.param([came(), SMALL], WIDENED, id="after-nothing"),
        pytest.param([DENSE], WIDENED[:1], id="dense"),
        pytest.param([Received([SMALL], [], 2, capped=True)], WIDENED[:1], id="not-all-of-it"),
        pytest.param(
            [Received([SMALL.slice(0, 1)], [], 1, capped=True), came(SMALL.slice(1))], WIDENED[:1], id="the-rest-of-it"
        ),
    ],
)
def test_larger_answers_are_asked_for_only_if_they_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch, received: list[Any], fetches: list[Any]
):
    """librdkafka decompresses a response as a whole: 1 MiB of records of zeros became several GB."""
    found = read(monkeypatch, *received, LATER, end=10_000)
    assert [offset for batch in found for offset in batch["offset"].to_pylist()] == [0, 1, 9_999]
    assert Client.fetches == fetches


def test_a_short_range_needs_no_larger_answers(monkeypatch: pytest.MonkeyPatch):
    read(monkeypatch, SMALL, records(MINE, 99), end=100)
    assert Client.fetches == WIDENED[:1]


@pytest.mark.parametrize("name", FETCH_SIZES)
def test_an_answer_has_the_size_that_the_user_says(monkeypatch: pytest.MonkeyPatch, name: str):
    read(monkeypatch, SMALL, LATER, end=10_000, **{name: 100_000})
    assert len(Client.fetches) == 1
    assert Client.fetches[0][0] in (None, "100000")


def test_batches_are_bounded_in_bytes_and_in_rows(monkeypatch: pytest.MonkeyPatch):
    """10,000 records of 1 MB were to be one batch: it exceeded Arrow's offsets, and the first part of it was kept."""
    monkeypatch.setattr(consumer, "PIECE_BYTES", 10_000)
    large = [records(MINE, offset, value=bytes(4_000)) for offset in range(9)]
    small = records(MINE, *range(9, 9 + ROWS))
    found = read(monkeypatch, *large, small.slice(0, 10), small.slice(10), end=9 + ROWS)
    assert [offset for batch in found for offset in batch["offset"].to_pylist()] == list(range(9 + ROWS))
    assert [len(batch) for batch in found][:4] == [2, 2, 2, 2]
    assert max(map(len, found)) <= ROWS


def test_a_kept_consumer_that_hears_nothing_is_replaced_before_an_error_is_raised(monkeypatch: pytest.MonkeyPatch):
    """A new client may receive what the kept one waits for in vain: the records of a recreated topic."""
    made = iter([[], [came(records(MINE, 0, 1))]])

    class Reader(Client):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__(config)
            self.left = list(next(made))  # type: ignore[misc]

    monkeypatch.setattr(consumer, "ArrayClient", Reader)
    reader = RangeConsumer(KafkaSettings("localhost:1"))
    reader.put_back(deque())
    [batch] = reader.read(MINE, 0, 2, retry_seconds=0.2, is_there=lambda: True)
    assert batch["offset"].to_pylist() == [0, 1]


def test_a_kept_consumer_belongs_to_the_topics_that_it_has_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(consumer, "ArrayClient", Client)
    reader = RangeConsumer(KafkaSettings("localhost:1"))
    assert reader.takes("t", "one")
    assert reader.takes("t", "one")
    assert reader.takes("u", "other")
    assert reader.takes("t", "")  # nobody knows
    assert not reader.takes("t", "two")


def test_a_record_that_is_not_passed_on_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(consumer, "join_batches", lambda batches: batches[:1])
    with pytest.raises(SourceError, match="delivered 3 records up to offset 2, and 2 were passed on"):
        read(monkeypatch, records(MINE, 0, 1), records(MINE, 2), end=3)


@given(sizes=st.lists(st.integers(0, 50), max_size=40), most=st.integers(1, 120))
def test_rows_are_cut_into_runs_of_bounded_size(sizes: list[int], most: int):
    found = cuts(np.array(sizes, np.int64), most)
    assert [row for first, behind in found for row in range(first, behind)] == list(range(len(sizes)))
    assert all(sum(sizes[a:b]) <= most or b - a == 1 for a, b in found)
    assert all(sum(sizes[a:c]) > most for (a, _), (_, c) in pairwise(found))
