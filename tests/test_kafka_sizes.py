"""Batches that a broker refuses for their size: no row is refused that the topic takes alone.

The producer here is what librdkafka does with batches: it fills one up to batch.size, counting each message with the
largest frame; a broker refuses what is larger than its topic takes; each message of a refused batch is reported as
too large; and from then on, the transaction takes nothing.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceward.connectors.kafka import sink as kafka
from onceward.connectors.kafka.producer import DeliveryFailures, TransactionalProducer
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.connectors.kafka.sizes import LEAST_FRAME, Sizes
from onceward.core.checkpoint.isolation import Isolation
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import WriteContext
from onceward.core.errors import KafkaError, OncewardError

if TYPE_CHECKING:
    from collections.abc import Iterator

FRAME, OVERHEAD = 10, 61
"""Bytes of a message and of a batch at the broker, besides keys and values."""
CONTEXT = WriteContext(pipeline="p", sink="out", log="0a0b0c0d", generation=0, epoch=3, subtask=0)


class Brokers:
    """What topics take, what a client is told of it, and what is committed if its transaction is."""

    def __init__(self, limits: dict[str, int], told: dict[str, int | None]) -> None:
        self.limits, self.told = limits, told
        self.learned: dict[str, int | None] = {}
        self.bound = Sizes()
        self.transactions = self
        self.prepared: list[tuple[str, bytes]] = []
        self.opened = 0

    def sizes(self, settings_: KafkaSettings, topics: Any, *, anew: bool = False) -> Sizes:
        """Cluster.sizes."""
        for topic in topics:
            if anew or topic not in self.learned:
                self.learned[topic] = self.told[topic]
        return Sizes.of(settings_, {topic: self.learned[topic] for topic in topics})

    def check_topics(self, _topics: Any) -> None:
        """All exist."""

    def take(self, _context: WriteContext, sizes: Sizes) -> TransactionalProducer:
        """ProducerPool.take."""
        self.opened += 1
        assert self.opened < 1000
        failures = DeliveryFailures()
        return TransactionalProducer("an id", Librdkafka(self, sizes, failures), failures, sizes)  # type: ignore[arg-type]


class Librdkafka:
    """A producer with a transaction; sends nothing before it is polled or flushed."""

    def __init__(self, brokers: Brokers, sizes: Sizes, failures: DeliveryFailures) -> None:
        self.brokers, self.sizes, self.failures = brokers, sizes, failures
        self.waiting: list[tuple[str, bytes]] = []
        self.sent: list[tuple[str, bytes]] = []
        self.failed = False

    def __len__(self) -> int:
        return len(self.waiting)

    def produce(self, topic: str, value: bytes, _key: bytes | None) -> None:
        if self.failed:
            raise KafkaException(ClientError(ClientError._STATE))
        if len(value) > self.sizes.message:
            raise KafkaException(ClientError(ClientError.MSG_SIZE_TOO_LARGE))
        self.waiting.append((topic, value))

    def poll(self, _seconds: float) -> int:
        for batch in self._batches():
            size = OVERHEAD + sum(FRAME + len(value) for _, value in batch)
            if not self.failed and size <= self.brokers.limits[batch[0][0]]:
                self.sent += batch
                continue
            error = ClientError(ClientError._PURGE_QUEUE if self.failed else ClientError.MSG_SIZE_TOO_LARGE)
            self.failed = True
            for topic, value in batch:
                self.failures(error, topic, 0, len(value))
        return 0

    def flush(self, _seconds: float) -> int:
        return self.poll(0)

    def _batches(self) -> Iterator[list[tuple[str, bytes]]]:
        waiting, self.waiting = self.waiting, []
        for topic in sorted({topic for topic, _ in waiting}):
            batch: list[tuple[str, bytes]] = []
            for message in (one for one in waiting if one[0] == topic):
                counted = sum(LEAST_FRAME + len(value) for _, value in (*batch, message))
                if batch and (self.sizes.single or OVERHEAD + counted > self.sizes.batch):
                    yield batch
                    batch = []
                batch.append(message)
            yield batch

    def purge(self) -> None:
        self.waiting = []

    def abort_transaction(self, _seconds: float) -> None:
        self.sent = []


class Sink(kafka.KafkaSink):
    """A sink whose transactions are prepared when their rows are flushed."""

    def __init__(self, brokers: Brokers, topic: str | None) -> None:
        super().__init__("out", bootstrap_servers="b:1", topic=topic, transaction_timeout=60, proof=False)
        self.brokers = brokers

    def _pool(self, scope: Any) -> Any:  # noqa: ARG002 - signature
        return self.brokers

    def pre_commit(self, transaction: kafka.KafkaTransaction) -> Any:
        self._until_taken(transaction, lambda: transaction.producer.flush(self._flush_until()))
        producer = transaction.producer._producer
        assert isinstance(producer, Librdkafka)
        self.brokers.prepared = producer.sent
        return CONTEXT.committable(
            kind="kafka", transaction=str(CONTEXT.transaction_name()), rows=transaction.producer.rows
        )

    def abort(self, committable: Any) -> Any:  # noqa: ARG002 - signature
        self.brokers.prepared = []

    def warm_up(self, context: WriteContext) -> None:
        """Nothing is made ready."""


def rows(batch: list[tuple[str, int]], numbers: Iterator[int]) -> pa.RecordBatch:
    values = [str(next(numbers)).encode().ljust(size, b".") for _, size in batch]
    return pa.record_batch({"value": pa.array(values, pa.binary()), "topic": [topic for topic, _ in batch]})


def written(sink: Sink, batches: list[pa.RecordBatch], *, letters: bool) -> list[int]:
    """Write an epoch as a task does; return the rows that go to the dead letters."""
    epoch = SubtaskEpoch(sink, CONTEXT)
    try:
        for batch in batches:
            epoch.write(batch)
        epoch.pre_commit()
    except OncewardError as error:
        epoch.discard()
        if not letters or not error.refuses_rows:
            raise
        isolation = Isolation(sink, CONTEXT, lambda at: batches[at], [b.num_rows for b in batches], most=None)
        isolation.write(error)
        return sorted(isolation.refused)
    return []


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> Any:
    place = SimpleNamespace(brokers=None)
    monkeypatch.setattr(kafka, "cluster_of", lambda _: place.brokers)
    return place


PLACES = st.sampled_from(["a", "b"])
LIMITS = st.integers(200, 3000)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    limits=st.fixed_dictionaries({"a": LIMITS, "b": LIMITS}),
    told=st.sampled_from(["told", "unknown", "too much", "too little"]),
    batches=st.lists(
        st.lists(st.tuples(PLACES, st.integers(4, 3000)), min_size=1, max_size=12), min_size=1, max_size=4
    ),
    own=st.booleans(),
)
def test_a_row_is_refused_only_where_it_fails_alone(
    cluster: Any, limits: dict[str, int], told: str, batches: list[list[tuple[str, int]]], own: bool
) -> None:
    """Whatever the client was told of the limits: it may be forbidden to ask, and they may have changed since."""
    wrong = {"told": 1.0, "too much": 2.0, "too little": 0.5}
    cluster.brokers = Brokers(limits, {t: int(wrong[told] * n) if told in wrong else None for t, n in limits.items()})
    topic = "a" if own else None
    numbers = iter(range(1000))
    made = [rows(batch, numbers) for batch in batches]
    all_rows = [(topic or place, size) for batch in batches for place, size in batch]
    refused = written(Sink(cluster.brokers, topic), made, letters=True)
    assert refused == [at for at, (place, size) in enumerate(all_rows) if OVERHEAD + FRAME + size > limits[place]]
    for place in limits:
        found = [int(value.strip(b".")) for where, value in cluster.brokers.prepared if where == place]
        assert found == [at for at, (where, _) in enumerate(all_rows) if where == place and at not in refused]


def test_rows_that_fit_are_written_though_their_batch_does_not(cluster: Any) -> None:
    """Twelve rows of 20,000 bytes into a topic that takes 65,536; without dead letters, too."""
    for told in (65_536, None, 1_048_588):
        cluster.brokers = Brokers({"a": 65_536}, {"a": told})
        batch = rows([("a", 20_000)] * 12, iter(range(12)))
        assert written(Sink(cluster.brokers, "a"), [batch], letters=False) == []
        assert len(cluster.brokers.prepared) == 12


def test_once_refused_batches_are_small_at_once_the_next_time(cluster: Any) -> None:
    cluster.brokers = Brokers({"a": 65_536}, {"a": None})
    for opened in (2, 3):
        batch = rows([("a", 20_000)] * 12, iter(range(12)))
        written(Sink(cluster.brokers, "a"), [batch], letters=False)
        assert cluster.brokers.opened == opened


def test_where_too_many_rows_were_written_to_keep_them_the_next_attempt_sends_smaller_batches(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "KEPT_BYTES", 10_000)
    cluster.brokers = Brokers({"a": 65_536}, {"a": None})
    batches = [rows([("a", 8_000)] * n, iter(range(n))) for n in (6, 18)]
    with pytest.raises(KafkaError, match="the next attempt sends smaller batches") as caught:
        written(Sink(cluster.brokers, "a"), batches, letters=True)
    assert caught.value.retryable
    assert not caught.value.refuses_rows
    assert written(Sink(cluster.brokers, "a"), batches, letters=True) == []
    assert len(cluster.brokers.prepared) == 24


@pytest.mark.parametrize(
    ("told", "config", "why"),
    [
        (5000, {}, "The topic takes at most 5000 bytes"),
        (None, {}, "which this client may not read"),
        (5000, {"message.max.bytes": 2000}, r"message\.max\.bytes=2000, set as option kafka\.message\.max\.bytes"),
    ],
)
def test_the_message_names_what_limits(cluster: Any, told: int | None, config: dict[str, int], why: str) -> None:
    cluster.brokers = Brokers({"a": 5000}, {"a": told})
    sink = Sink(cluster.brokers, "a")
    sink.settings = KafkaSettings("b:1", config)
    with pytest.raises(KafkaError, match=why) as caught:
        written(sink, [rows([("a", 100), ("a", 9000)], iter(range(2)))], letters=False)
    assert caught.value.refuses_rows


def test_the_message_names_the_limit_as_it_is_now(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was lowered after the client had read it, and too many rows were written to begin again."""
    monkeypatch.setattr(kafka, "KEPT_BYTES", 10_000)
    cluster.brokers = Brokers({"a": 65_536}, {"a": 1_048_588})
    cluster.brokers.sizes(KafkaSettings("b:1"), ["a"])
    cluster.brokers.told["a"] = 65_536
    with pytest.raises(KafkaError, match="takes at most 65536 bytes") as caught:
        written(Sink(cluster.brokers, "a"), [rows([("a", 8_000)] * n, iter(range(n))) for n in (6, 18)], letters=False)
    assert "1048588" not in str(caught.value)


def test_a_message_that_is_dropped_with_its_transaction_is_not_the_reason() -> None:
    """librdkafka may report what it drops before it reports what was refused."""
    failures = DeliveryFailures()
    for code in (ClientError._PURGE_QUEUE, ClientError.MSG_SIZE_TOO_LARGE, ClientError.POLICY_VIOLATION):
        failures(ClientError(code), "a", 0, 10)
    assert "MSG_SIZE_TOO_LARGE" in failures.first
    assert "Purge" not in failures.first


def test_a_message_that_only_this_client_refuses_is_told_how_it_would_be_taken(cluster: Any) -> None:
    """librdkafka counts bytes before compression; the topic's limit is for compressed batches."""
    cluster.brokers = Brokers({"a": 65_536}, {"a": 65_536})
    with pytest.raises(KafkaError, match=r"65536 bytes .* message\.max\.bytes=1000000 before compression"):
        written(Sink(cluster.brokers, "a"), [rows([("a", 1_500_000)], iter(range(1)))], letters=False)


@pytest.mark.parametrize(
    ("config", "limits", "batch", "message"),
    [
        ({}, {}, 1_000_000, 1_000_000),
        ({}, {"a": 1_048_588}, 1_000_000, 1_048_588),
        ({}, {"a": 65_536, "b": 10_000_000}, 65_536, 10_000_000),
        ({"batch.size": 500, "message.max.bytes": 700}, {"a": 65_536}, 500, 700),
        ({"batch.size": 100_000}, {"a": 65_536}, 65_536, 1_000_000),
        ({"batch.size": "many"}, {"a": None}, 1_000_000, 1_000_000),
    ],
)
def test_sizes_are_those_of_the_topics_unless_the_user_wants_smaller_ones(
    config: dict[str, Any], limits: dict[str, int | None], batch: int, message: int
) -> None:
    sizes = Sizes.of(KafkaSettings("b:1", config), limits)
    assert (sizes.batch, sizes.message) == (batch, message)
