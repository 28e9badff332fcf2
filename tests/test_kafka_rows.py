"""Record batches as messages: columns, nulls, headers, and going on where a full queue stopped."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest

from onceward.connectors.kafka.messages import (
    SLICE,
    MessageArray,
    QueueFull,
    Rows,
    check_message_columns,
    ignored_columns,
)
from onceward.core.errors import KafkaError, SchemaError

if TYPE_CHECKING:
    from onceward.connectors.kafka.librdkafka import BatchProducer

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def messages(batch, topic: str | None = "t"):
    taken = []
    rows = Rows(batch, topic)
    done = 0
    while done < len(rows):
        done = rows.feed(SimpleNamespace(produce=lambda *arguments: taken.append(arguments)), done)
    return taken


def test_values_and_keys_are_bytes_and_nulls_stay_nulls():
    batch = pa.record_batch({"key": pa.array(["a", None, ""]), "value": pa.array([b"x", b"", None])})
    assert messages(batch) == [("t", b"x", b"a"), ("t", b"", None), ("t", None, b"")]


def test_a_value_alone_is_enough():
    assert messages(pa.record_batch({"value": ["ä"]})) == [("t", "ä".encode(), None)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()])
def test_every_sort_of_text_and_bytes_fits(kind):
    batch = pa.record_batch({"value": pa.array(["one", None]).cast(kind)})
    check_message_columns(batch.schema, "t", "sink")
    assert [value for _, value, _ in messages(batch)] == [b"one", None]


def test_a_null_partition_is_left_to_the_partitioner():
    batch = pa.record_batch({"value": ["a", "b"], "partition": pa.array([3, None], pa.int32())})
    assert messages(batch) == [("t", b"a", None, 3), ("t", b"b", None, -1)]


@pytest.mark.parametrize("kind", [Rows, MessageArray])
@pytest.mark.parametrize("number", [-1, -7])
def test_a_negative_partition_is_refused_as_spark_does(kind, number):
    """`hash(key) % n` makes such numbers; -1 was taken for any partition, and the row went elsewhere."""
    batch = pa.record_batch({"value": ["a", "b"], "partition": pa.array([None, number], pa.int32())})
    with pytest.raises(KafkaError, match=rf"a row has partition {number}, .* Give null .*pmod"):
        kind(batch, "t")


def test_rows_with_and_without_a_partition_keep_their_places():
    """Each run of them was an array of its own: seven times slower."""
    counts = []

    def produce(_place, count):
        counts.append(count)
        return True

    batch = pa.record_batch({"value": ["a"] * 6, "partition": pa.array([2, None, 0, None, 2, 1], pa.int32())})
    assert MessageArray(batch, "t").feed(cast("BatchProducer", SimpleNamespace(produce=produce)), 0) == 6
    assert counts == [5] * 6


def _texts(*values):
    return pa.array(values, pa.binary()).view(pa.string())


@pytest.mark.parametrize("kind", [Rows, MessageArray])
def test_bytes_that_are_no_text_are_named(kind):
    batch = pa.record_batch({"value": ["a", "b"], "topic": _texts(b"t", b"caf\xe9")})
    with pytest.raises(KafkaError, match=r"column topic holds bytes that are not UTF-8: b'caf\\xe9'"):
        kind(batch, None)
    header = pa.StructArray.from_arrays([_texts(b"\xff"), pa.array([b"v"])], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), header)
    with pytest.raises(KafkaError, match=r"the key of a header holds bytes that are not UTF-8: b'\\xff'"):
        kind(pa.record_batch({"value": ["a"], "headers": headers}), "t")


def test_columns_that_are_no_part_of_a_message_are_named():
    fields = [("Key", pa.string()), ("value", pa.string()), ("timestamp", pa.timestamp("us"))]
    warning = ignored_columns(pa.schema(fields))
    assert "columns Key, timestamp are not written" in warning
    assert "rename Key to key" in warning
    assert ignored_columns(pa.schema(fields[1:2])) == ""


def test_headers_keep_their_order_and_may_repeat():
    pairs = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, [], [{"key": "z", "value": b""}]]
    batch = pa.record_batch({"value": ["a", "b", "c", "d"], "headers": pa.array(pairs, HEADERS)})
    assert [message[7] for message in messages(batch)] == [[("h", b"1"), ("h", None)], None, None, [("z", b"")]]
    assert messages(batch)[0][:7] == ("t", b"a", None, -1, None, None, 0)


def test_headers_of_a_sliced_batch_are_its_own():
    pairs = [[{"key": str(i), "value": b"v"}] * i for i in range(6)]
    batch = pa.record_batch({"value": [str(i) for i in range(6)], "headers": pa.array(pairs, HEADERS)}).slice(3, 2)
    assert [message[7] for message in messages(batch)] == [[("3", b"v")] * 3, [("4", b"v")] * 4]


def test_a_header_without_key_is_refused():
    batch = pa.record_batch({"value": ["a"], "headers": pa.array([[{"key": None, "value": b"v"}]], HEADERS)})
    with pytest.raises(KafkaError, match="key is null"):
        Rows(batch, "t")


def test_a_nul_at_which_librdkafka_would_cut_is_refused():
    batch = pa.record_batch({"value": ["a"], "headers": pa.array([[{"key": "z\0tail", "value": b"v"}]], HEADERS)})
    with pytest.raises(KafkaError, match="the key of a header has a NUL"):
        Rows(batch, "t")
    with pytest.raises(KafkaError, match="topic has a NUL"):
        Rows(pa.record_batch({"value": ["a"], "topic": ["t\0ail"]}), None)


def test_the_option_overrides_the_topic_column_as_in_spark():
    batch = pa.record_batch({"value": ["a", "b"], "topic": ["one", "two"]})
    assert [topic for topic, *_ in messages(batch)] == ["t", "t"]
    assert [topic for topic, *_ in messages(batch, topic=None)] == ["one", "two"]


def test_a_row_without_topic_is_refused_if_the_sink_has_none():
    batch = pa.record_batch({"value": ["a", "b"], "topic": ["one", None]})
    with pytest.raises(KafkaError, match="topic is null"):
        Rows(batch, None)


def test_other_columns_are_ignored():
    batch = pa.record_batch({"value": ["a"], "amount": [1.5], "Key": ["no"]})
    check_message_columns(batch.schema, "t", "sink")
    assert messages(batch) == [("t", b"a", None)]


@pytest.mark.parametrize("capacity", [1, 7, SLICE, SLICE + 1])
def test_a_full_queue_loses_and_doubles_nothing(capacity):
    total = 2 * SLICE + 3
    rows = Rows(pa.record_batch({"value": [str(i) for i in range(total)], "key": [str(i) for i in range(total)]}), "t")
    taken, queue = [], []

    def produce(_topic, value, key):
        if len(queue) == capacity:
            raise BufferError
        queue.append((value, key))

    done = 0
    while done < total:
        try:
            done = rows.feed(SimpleNamespace(produce=produce), done)
        except QueueFull as full:
            done = full.done
        taken += queue
        queue.clear()
    assert taken == [(str(i).encode(), str(i).encode()) for i in range(total)]


@pytest.mark.parametrize(
    ("fields", "topic", "named"),
    [
        ([("key", pa.string())], "t", "value"),
        ([("value", pa.int64())], "t", "value"),
        ([("value", pa.string()), ("key", pa.int32())], "t", "key"),
        ([("value", pa.string()), ("partition", pa.int64())], "t", "partition"),
        ([("value", pa.string()), ("headers", pa.map_(pa.string(), pa.binary()))], "t", "headers"),
        ([("value", pa.string()), ("headers", pa.list_(pa.string()))], "t", "headers"),
        ([("value", pa.string()), ("topic", pa.int32())], None, "topic"),
        ([("value", pa.string())], None, "topic"),
        ([("value", pa.string()), ("value", pa.string())], "t", "value"),
    ],
)
def test_a_column_that_does_not_fit_is_named(fields, topic, named):
    with pytest.raises(SchemaError, match=f"column.* {named}"):
        check_message_columns(pa.schema(fields), topic, "sink")


def test_a_topic_column_does_not_matter_if_the_sink_has_a_topic():
    check_message_columns(pa.schema([("value", pa.string()), ("topic", pa.int32())]), "t", "sink")
