"""The two ways into librdkafka and out of it: arrays of messages and one call per message do the same."""

import ctypes
import random
import time
from collections import Counter

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest

from onceward.connectors.kafka import consumed_batches, librdkafka
from onceward.connectors.kafka.consumer import lend_consumer
from onceward.connectors.kafka.messages import SLICE
from onceward.connectors.kafka.positions import Partition
from onceward.connectors.kafka.producer import TransactionalProducer
from onceward.connectors.kafka.source import KafkaSource
from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import KafkaError

from .kafka_kit import Bench, numbered, rows
from .kafka_source_kit import Writer, wait_until

pytestmark = pytest.mark.kafka
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PARTITIONS = 3
BYTES = (pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.string_view(), pa.binary_view())


def _text(draw, longest):
    return draw.choice([None, "", "ä", "x" * draw.randrange(longest), str(draw.random())])


def _headers(draw):
    pairs = [{"key": draw.choice(["a", "b", "ü", ""]), "value": draw.choice([None, b"", b"\x00v"])} for _ in range(3)]
    return draw.choice([None, [], pairs[: draw.randrange(4)]])


def _batch(draw, topics):
    """A batch with a random choice of columns, types and nulls, and sometimes a part of a longer one."""
    count = draw.choice([0, 1, 50, 400])
    columns = {
        "value": pa.array([_text(draw, draw.choice([10, 50_000])) for _ in range(count)]).cast(draw.choice(BYTES)),
        "key": pa.array([_text(draw, 20) for _ in range(count)]).cast(draw.choice(BYTES)),
        "topic": pa.array([draw.choice(topics) for _ in range(count)], pa.string()),
    }
    if draw.random() < 0.6:
        some = draw.choice([[0, 1, 2], [None], [None, 0, 1, 2]])
        columns["partition"] = pa.array([draw.choice(some) for _ in range(count)], pa.int32())
    if draw.random() < 0.4:
        columns["headers"] = pa.array([_headers(draw) for _ in range(count)], HEADERS)
    batch = pa.record_batch(columns)
    return batch.slice(count // 3, count // 2) if draw.random() < 0.3 else batch


def _written(kafka, topics, topic, batches):
    """Both topics' messages, in order within a partition; and in any order those that may go to any partition."""
    bench = Bench(kafka.bootstrap_servers, topic)
    transaction = bench.sink.begin(bench.context())
    for batch in batches:
        bench.sink.write(transaction, batch)
    committable = bench.sink.pre_commit(transaction)
    assert committable.rows == sum(map(len, batches))
    bench.sink.commit(committable)
    placed, anywhere = [], Counter()
    for number, name in enumerate(topics):
        for message in bench.messages(name):
            content = (message.key(), message.value(), repr(message.headers()))
            if message.key() is None:
                anywhere[number, *content] += 1
            else:
                placed.append((number, message.partition(), *content))
    return placed, anywhere, committable.proof.hash


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 10))])
@pytest.mark.parametrize("own_topics", [False, True])
def test_both_ways_write_the_same_messages(kafka, topic, monkeypatch, seed, own_topics):
    found = []
    for plain in (False, True):
        draw = random.Random(seed)
        topics = [topic(PARTITIONS), topic(PARTITIONS)]
        batches = [_batch(draw, topics) for _ in range(5)]
        with monkeypatch.context() as patch:
            if plain:
                patch.setattr(librdkafka, "usable", lambda _: False)
            found.append(_written(kafka, topics, None if own_topics else topics[0], batches)[: 2 if own_topics else 3])
    assert found[0] == found[1]


def test_explicit_partitions_are_kept_for_rows_without_key(kafka, topic):
    bench = Bench(kafka.bootstrap_servers, topic(PARTITIONS))
    numbers = [n % PARTITIONS for n in range(100)]
    bench.sink.commit(bench.write(rows(*map(str, numbers), partition=pa.array(numbers, pa.int32()))))
    assert all(message.value() == str(message.partition()).encode() for message in bench.messages())


def test_this_machine_takes_the_way_of_arrays(kafka, topic):
    bench = Bench(kafka.bootstrap_servers, topic())
    assert isinstance(bench.sink.begin(bench.context()).producer._producer, librdkafka.BatchProducer)


@pytest.fixture(params=["arrays", "plain"])
def either_bench(request, kafka, topic, monkeypatch):
    """A sink on either way."""
    if request.param == "plain":
        monkeypatch.setattr(librdkafka, "usable", lambda _: False)
    config = {"topic.metadata.propagation.max.ms": 1000, "message.max.bytes": 50_000_000}
    return Bench(kafka.bootstrap_servers, topic(), config=config)


REFUSED = {
    "the client finds it too large": (lambda: {"value": pa.array(["a", "x" * 60_000_000, "b"])}, "MSG_SIZE_TOO_LARGE"),
    "the broker finds it too large": (
        lambda: {"value": pa.array(["a", "x" * 20_000_000, "b"])},
        "refused.*MSG_SIZE_TOO_LARGE",
    ),
    "unknown partition": (
        lambda: {"value": ["a", "b"], "partition": pa.array([0, 7], pa.int32())},
        "UNKNOWN_PARTITION",
    ),
    "a header's key has a NUL": (
        lambda: {"value": ["a"], "headers": pa.array([[{"key": "z\0tail", "value": b"v"}]], HEADERS)},
        "the key of a header has a NUL",
    ),
    "unknown topic": (lambda: {"value": ["a", "b"], "topic": ["", "missing"]}, "UNKNOWN_TOPIC|UNKNOWN_PARTITION"),
}


@pytest.mark.parametrize("headers", [False, True], ids=["without headers", "with headers"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_message_that_is_refused_fails_the_transaction_before_its_decision(either_bench, headers, case):
    make_columns, why = REFUSED[case]
    columns = make_columns()
    if "topic" in columns:
        either_bench.sink.topic = None
        columns = {**columns, "topic": [either_bench.topic, f"{either_bench.topic}-missing"]}
    if headers and "headers" not in columns:
        columns = {**columns, "headers": pa.array([[{"key": "h", "value": b"v"}]] * len(columns["value"]), HEADERS)}
    batch = pa.record_batch(columns)
    transaction = either_bench.sink.begin(either_bench.context())
    with pytest.raises(KafkaError, match=why):
        _write_and_pre_commit(transaction, either_bench, batch)
    either_bench.sink.discard(transaction)
    assert either_bench.values() == []
    assert list(either_bench.sink.lingering(either_bench.scope)) == []


def _write_and_pre_commit(transaction, bench, batch):
    producer = transaction.producer  # after a first row, it knows how many partitions the topic has
    producer.write(producer.messages(rows("first"), bench.topic))
    producer.flush(1e12)
    producer.write(producer.messages(batch, bench.sink.topic))
    bench.sink.pre_commit(transaction)


def test_a_queue_that_is_full_again_and_again_loses_and_doubles_nothing(kafka, topic):
    bench = Bench(kafka.bootstrap_servers, topic(PARTITIONS), config={"queue.buffering.max.messages": 100})
    count = 2 * SLICE + 3
    numbers = list(range(count))
    batch = numbered(0, count).append_column("partition", pa.array([n % PARTITIONS for n in numbers], pa.int32()))
    headers = pa.array([[{"key": "h", "value": b"v"}]] * 1000, HEADERS)
    transaction = bench.sink.begin(bench.context())
    bench.sink.write(transaction, batch)
    bench.sink.write(transaction, numbered(count, 1000).append_column("headers", headers))
    assert bench.sink.commit(bench.sink.pre_commit(transaction)).status is CommitStatus.COMMITTED
    assert sorted(map(int, bench.values())) == list(range(count + 1000))


def test_a_setting_that_only_confluent_kafka_can_carry_takes_the_plain_way(kafka, topic):
    heard = []
    bench = Bench(kafka.bootstrap_servers, topic(), config={"stats_cb": heard.append, "statistics.interval.ms": 50})
    transaction = bench.sink.begin(bench.context())
    assert not isinstance(transaction.producer._producer, librdkafka.BatchProducer)
    assert isinstance(transaction.producer, TransactionalProducer)
    bench.sink.write(transaction, rows("a"))
    bench.sink.commit(bench.sink.pre_commit(transaction))
    assert bench.values() == [b"a"]


def _fill(kafka, name, draw):
    """Keys and values of all lengths, nulls, times of all kinds, compressed and not, with an aborted transaction."""
    for compression in ("none", "lz4"):
        config = {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": compression, "linger.ms": 50}
        producer = confluent_kafka.Producer({**config, "transactional.id": name})
        producer.init_transactions()
        for commit in (True, False, True):
            producer.begin_transaction()
            for _ in range(700):
                value = draw.choice([None, b"", b"v" * draw.randrange(30), draw.randbytes(draw.randrange(5000))])
                key = draw.choice([None, b"", b"k" * draw.randrange(16)])
                producer.produce(name, value, key, draw.randrange(PARTITIONS), timestamp=draw.randrange(1, 1 << 40))
            producer.flush()
            (producer.commit_transaction if commit else producer.abort_transaction)()
    levels = ({"isolation.level": level} for level in ("read_committed", "read_uncommitted"))
    visible, all_ = (KafkaSource(bootstrap_servers=kafka.bootstrap_servers, topics=[name], config=c) for c in levels)
    wait_until(lambda: visible.end() == all_.end())  # brokers write a transaction's marker after they have answered


def _read(kafka, name, way="arrays"):
    """All rows of each partition, by consumers that have served no other way."""
    source = KafkaSource(bootstrap_servers=kafka.bootstrap_servers, topics=[name], config={"client.id": way})
    splits = source.splits(source.start(), source.end())
    return {split.unit: [row for piece in source.read(split) for row in piece.batch.to_pylist()] for split in splits}


@pytest.mark.parametrize("times", ["CreateTime", "LogAppendTime"])
def test_both_ways_read_the_same_messages(kafka, topic, monkeypatch, times):
    name = topic(PARTITIONS, message_timestamp_type=times)
    _fill(kafka, name, random.Random(times))
    arrays = _read(kafka, name)
    with monkeypatch.context() as patch:
        patch.setattr(librdkafka, "usable", lambda _: False)
        plain = _read(kafka, name, "plain")
    assert arrays == plain
    assert sum(map(len, arrays.values())) == 2 * 2 * 700


def test_times_that_lie_elsewhere_are_asked_for(kafka, topic, monkeypatch):
    """As in a version of librdkafka that has another field before them."""
    name = topic(PARTITIONS)
    _fill(kafka, name, random.Random(1))
    before = _read(kafka, name)

    class Other(ctypes.Structure):
        _fields_ = (*librdkafka.Consumed._fields_[:2], ("time", ctypes.c_int64), ("time_kind", ctypes.c_int64))

    monkeypatch.setattr(consumed_batches, "_CONSUMED", np.dtype(Other))
    assert _read(kafka, name) == before


def test_this_machine_reads_by_arrays_but_for_headers(kafka, topic):
    name = topic()
    source = KafkaSource(bootstrap_servers=kafka.bootstrap_servers, topics=[name])
    for headers, kind in ((False, consumed_batches.ArrayClient), (True, consumed_batches.ObjectClient)):
        with lend_consumer(source.settings, name, "", include_headers=headers) as consumer:
            assert isinstance(consumer._client, kind)


@pytest.mark.parametrize("headers", [False, True])
def test_the_end_of_an_earlier_range_is_forgotten_when_its_partition_is_read_again(kafka, topic, headers):
    """Its event waits in the consumer's queue: librdkafka drops it when the partition is assigned anew."""
    name, end = topic(), 1000
    Writer(kafka.bootstrap_servers).send(name, range(end))
    source = KafkaSource(bootstrap_servers=kafka.bootstrap_servers, topics=[name])

    def read(consumer, start):
        part = consumer.read(Partition(name, 0), start, end, retry_seconds=20, is_there=lambda: True)
        found = [offset for batch in part for offset in batch.column("offset").to_pylist()]
        time.sleep(0.05)  # ten times as long as the broker waits before it says that there is no more
        return found

    with lend_consumer(source.settings, name, "", include_headers=headers) as consumer:
        assert read(consumer, end - 3) == list(range(end - 3, end))
        [event] = consumer._client.receive(1, 1, 5).events
        assert (event.error.code(), event.offset) == (confluent_kafka.KafkaError._PARTITION_EOF, end)
        for start in range(0, end - 3, 50):
            assert read(consumer, end - 3) == list(range(end - 3, end))
            assert read(consumer, start) == list(range(start, end))
