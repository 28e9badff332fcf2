"""The simulator's broker answers as a real one does: the same random sequences on both, compared class by class."""

from __future__ import annotations

import random
import time
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from onceward.connectors.kafka import librdkafka
from onceward.connectors.kafka.admin import cluster_of
from onceward.connectors.kafka.producer import TransactionalProducer
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.connectors.kafka.transaction_state import Handle
from onceward.core.contract.names import PooledName, Scope
from onceward.core.contract.transaction import WriteContext
from onceward.core.errors import KafkaError

from .differential_kit import Player, Recorder, compared, play_simulated, script
from .kafka_kit import Bench, eventually, read_all, rows
from .simulator_kit import simulator

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from onceward.connectors.kafka.sink import KafkaTransaction
    from onceward.connectors.kafka.transaction_state import Description
    from onceward.testing.services import KafkaServer

pytestmark = pytest.mark.kafka

PARTITIONS = 2
SECONDS = 20.0


class RealSide:
    """A broker, through the project's own clients."""

    def __init__(self, servers: str, topic: str) -> None:
        self.servers, self.topic = servers, topic
        self.settings = KafkaSettings(servers, {"message.timeout.ms": 5000})
        self.client = cluster_of(self.settings).transactions
        self.scope = Scope(f"differential-{uuid.uuid4().hex[:8]}", "out", "0a0b0c0d")
        self.producers: list[TransactionalProducer] = []
        self.keys: list[tuple[str, int, int]] = []
        self.timeout_ms = 600_000

    def init(self, slot: int) -> str:
        name = PooledName(self.scope, "feedbeef", slot)
        producer = TransactionalProducer.open(self.settings, name, timeout_ms=self.timeout_ms, brokers=1)
        producer.begin()
        handle = self._settled(str(name)).handle
        assert handle is not None
        self.producers.append(producer)
        self.keys.append(handle[:3])
        return "ok"

    def produce(self, instance: int, row: int) -> str:
        producer = self.producers[instance]
        try:
            batch = rows(str(row), partition=pa.array([row % PARTITIONS], pa.int32()))
            producer.write(producer.messages(batch, self.topic))
            producer.flush(time.monotonic() + SECONDS)
        except KafkaError:
            return "refused"
        return "ok"

    def end(self, instance: int, *, commit: bool) -> str:
        [code] = self.client.end_many([Handle(*self.keys[instance], -1)], commit=commit)
        self._settled(self.keys[instance][0])
        return str(code)

    def fence(self, instance: int) -> str:
        answer = str(self.client.fence(*self.keys[instance]))
        self._settled(self.keys[instance][0])
        return answer

    def mark(self, instance: int, partition: int) -> str:
        key = self.keys[instance][1:]
        open_ = self.client.describe_producers([(self.topic, partition)])[self.topic, partition] or {}
        if key not in open_:
            return "not open"
        return str(self.client.write_marker((self.topic, partition), key, open_[key], commit=False))

    def look(self, slot: int) -> str:
        found = self._settled(str(PooledName(self.scope, "feedbeef", slot)))
        key = found.handle[:3] if found.handle is not None else None
        current = self.keys.index(key) if key in self.keys else None
        return f"{found.state} of {current}"

    def open_in(self, partition: int) -> str:
        open_ = self.client.describe_producers([(self.topic, partition)])[self.topic, partition] or {}
        return str(sorted(i for i, key in enumerate(self.keys) if key[1:] in open_))

    def visible(self) -> list[int]:
        return sorted(int(message.value()) for message in read_all(self.servers, self.topic))

    def _settled(self, name: str) -> Description:
        deadline = time.monotonic() + SECONDS
        while True:
            found = self.client.describe([name])[name]
            if not found.state.startswith("Prepare"):
                return found
            assert time.monotonic() < deadline, found


class Stillness:
    """A world in which nothing else happens."""

    tick = 0

    def note(self, text: str) -> None:
        """Nobody reads it."""


class FakeSide:
    """The simulator's broker, whose markers are always written at once."""

    def __init__(self) -> None:
        world = Stillness()
        self.recorder = Recorder(world)
        self.broker = simulator.broker.Broker(world, self.recorder)
        self.keys: list[tuple[str, int, int]] = []
        self.added: list[set[int]] = []
        self.txns: list[Any] = []
        self.failed: set[int] = set()
        self.failed: set[int] = set()

    def init(self, slot: int) -> str:
        self.keys.append(self.broker.init(str(slot)).key)
        self.added.append(set())
        self.txns.append(simulator.audit.Txn("p", "out"))
        return "ok"

    def produce(self, instance: int, row: int) -> str:
        key, txn, added = self.keys[instance], self.txns[instance], self.added[instance]
        if instance in self.failed or not self.broker.produce(key, txn, row, added):
            self.failed.add(instance)  # librdkafka gives a producer up after its first failure
            return "refused"
        return "ok"

    def end(self, instance: int, *, commit: bool) -> str:
        return self._settle(instance, str(self.broker.end(*self.keys[instance], commit=commit)))

    def fence(self, instance: int) -> str:
        return self._settle(instance, str(self.broker.fence(*self.keys[instance])))

    def mark(self, instance: int, partition: int) -> str:
        key = self.keys[instance][1:]
        if key not in (self.broker.open_producers(partition) or {}):
            return "not open"
        return str(self.broker.write_marker(partition, key, commit=False))

    def look(self, slot: int) -> str:
        known = self.broker.ids[str(slot)]
        current = self.keys.index(known.key) if known.key in self.keys else None
        return f"{known.state} of {current}"

    def open_in(self, partition: int) -> str:
        open_ = self.broker.open_producers(partition) or {}
        return str(sorted(i for i, key in enumerate(self.keys) if key[1:] in open_))

    def visible(self) -> list[int]:
        return sorted(self.recorder.rows)

    def _settle(self, instance: int, answer: str) -> str:
        self.broker.settle(self.broker.ids[self.keys[instance][0]], at_once=True)
        return answer


Step = tuple[str, "Callable[[Any], str]"]


def wire_script(seed: int, length: int = 24) -> list[Step]:
    """A random sequence of operations on two transactional ids, the same for both sides."""
    rng = random.Random(seed)
    steps: list[Step] = [("init 0", lambda side: side.init(0)), ("init 1", lambda side: side.init(1))]
    instances = 2
    for row in range(length):
        i = rng.randrange(instances)
        roll = rng.random()
        if roll < 0.40:
            steps.append((f"produce {i} {row}", lambda side, i=i, row=row: side.produce(i, row)))
        elif roll < 0.60:
            commit = rng.random() < 0.6
            verb = "commit" if commit else "abort"
            steps.append((f"{verb} {i}", lambda side, i=i, commit=commit: side.end(i, commit=commit)))
        elif roll < 0.70:
            steps.append((f"fence {i}", lambda side, i=i: side.fence(i)))
        elif roll < 0.78:
            partition = rng.randrange(PARTITIONS)
            steps.append((f"mark {i} {partition}", lambda side, i=i, p=partition: side.mark(i, p)))
        elif roll < 0.92:
            steps.append((f"look {i % 2}", lambda side, i=i: side.look(i % 2)))
        else:
            slot = rng.randrange(2)
            steps.append((f"init {slot}", lambda side, slot=slot: side.init(slot)))
            instances += 1
    steps += [(f"look {slot}", lambda side, slot=slot: side.look(slot)) for slot in range(2)]
    steps += [(f"open in {p}", lambda side, p=p: side.open_in(p)) for p in range(PARTITIONS)]
    return steps


def finish(side: Any) -> list[int]:
    """End what is open, so that readers get past it; what is visible then."""
    for i in range(len(side.keys)):
        side.end(i, commit=False)
    return side.visible()


@pytest.mark.parametrize("seed", range(8))
def test_random_sequences_are_answered_alike(kafka: KafkaServer, topic: Callable[..., str], seed: int):
    real = RealSide(kafka.bootstrap_servers, topic(partitions=PARTITIONS))
    fake = FakeSide()
    told: list[str] = []
    for number, (what, step) in enumerate(wire_script(seed)):
        expected, answer = step(fake), step(real)
        told.append(f"{number:3d} {what:16s} real {answer:24s} simulated {expected}")
        assert answer == expected, "\n".join(told)
    assert finish(real) == finish(fake), "\n".join(told)


def test_a_stale_commit_ends_the_next_transaction_of_an_instance_that_is_reused(
    kafka: KafkaServer, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
):
    """The hazard because of which a producer is used for one transaction only."""
    monkeypatch.setattr(librdkafka, "usable", lambda _: False)  # this library itself never ends one by its producer
    real, fake = RealSide(kafka.bootstrap_servers, topic(partitions=PARTITIONS)), FakeSide()
    for side in (real, fake):
        side.init(0)
        assert side.produce(0, 2) == "ok"
        assert side.end(0, commit=True) == "0"
    producer = real.producers[0]._producer
    producer.commit_transaction(SECONDS)
    producer.begin_transaction()
    fake.added[0], fake.txns[0] = set(), simulator.audit.Txn("p", "out")
    for side in (real, fake):
        assert side.produce(0, 4) == "ok"
        assert side.end(0, commit=True) == "0", "the stale request"
        assert side.visible() == [2, 4]


def test_a_time_out_aborts_under_the_next_epoch_and_keeps_the_start(kafka: KafkaServer, topic: Callable[..., str]):
    real, fake = RealSide(kafka.bootstrap_servers, topic(partitions=PARTITIONS)), FakeSide()
    real.timeout_ms = 5000
    for side in (real, fake):
        side.init(0)
        assert side.produce(0, 2) == "ok"
    name = real.keys[0][0]
    before = real.client.describe([name])[name].handle
    fake.broker.expire(0)
    fake._settle(0, "")
    eventually(lambda: real._settled(name).state != "Ongoing", "the broker's timeout", seconds=40)
    after = real.client.describe([name])[name].handle
    known = fake.broker.ids["0"]
    assert before is not None
    assert after == before._replace(producer_epoch=before.producer_epoch + 1)
    assert (known.epoch, known.started) == (fake.keys[0][2] + 1, 0)
    for answers in ({side.look(0) for side in (real, fake)}, {side.end(0, commit=True) for side in (real, fake)}):
        assert len(answers) == 1, answers
    assert real.visible() == fake.visible() == []


class SinkContexts:
    """Contexts of one writer, whose transactions are one epoch each; none of them is completed."""

    scope: Scope

    def context(self, number: int) -> WriteContext:
        """Context of the n-th transaction."""
        pipeline, sink, log = self.scope
        return WriteContext(pipeline=pipeline, sink=sink, log=log, generation=0, epoch=number, subtask=0)


class RealSink(SinkContexts):
    """The real sink on a real broker."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.scope = bench.scope
        self.sink = bench.sink

    def batch(self, numbers: tuple[int, ...]) -> pa.RecordBatch:
        partitions = pa.array([number % PARTITIONS for number in numbers], pa.int32())
        return rows(*map(str, numbers), partition=partitions)

    def wait_for_write(self, transaction: KafkaTransaction) -> None:
        transaction.producer.flush(time.monotonic() + SECONDS)

    def outside(self, kind: str, _number: int, name: str) -> str:
        found = self.bench.client.describe([name])[name]
        if found.handle is None:
            return "unknown"
        [code] = self.bench.client.end_many([found.handle], commit=kind == "end_commit")
        eventually(lambda: not self.bench.describe(name).state.startswith("Prepare"), "the markers")
        return str(code)

    def visible(self) -> list[int]:
        for committable in self.sink.lingering(self.scope):
            self.sink.abort(committable)
        return sorted(int(value) for value in self.bench.values())


class SimulatedSink(SinkContexts):
    """The real sink on the simulated broker."""

    def __init__(self, world: Any, audit: Any) -> None:
        self.world, self.audit = world, audit
        self.broker = simulator.broker.Broker(world, audit)
        self.scope = Scope("orders", "out", "0a0b0c0d")
        self.sink = simulator.kafka_sink.KafkaLikeSink("out", world, audit, self.broker)

    def patches(self) -> AbstractContextManager[None]:
        return simulator.kafka_sink.kafka_in(self.world, self.broker)

    def batch(self, numbers: tuple[int, ...]) -> list[int]:
        return list(numbers)

    def wait_for_write(self, transaction: Any) -> None:
        """It is done."""

    def outside(self, kind: str, _number: int, name: str) -> str:
        known = self.broker.look(name)
        if known is None:
            return "unknown"
        code = self.broker.end(*known.key, commit=kind == "end_commit")
        self.world.tick += simulator.broker.MARKERS_TAKE
        self.broker.look(name)
        return str(code)

    def visible(self) -> list[int]:
        for committable in self.sink.lingering(self.scope):
            self.sink.abort(committable)
        self.world.tick += simulator.broker.MARKERS_TAKE
        for name in self.broker.ids:
            self.broker.look(name)
        return sorted(self.audit.rows)


CALLS = {"write": 12, "commit": 5, "abort": 3, "sweep": 1, "list": 2, "end_commit": 1, "end_abort": 1}


@pytest.mark.parametrize("seed", range(8))
def test_the_sink_answers_alike_on_both_brokers(kafka: KafkaServer, topic: Callable[..., str], seed: int):
    bench = Bench(kafka.bootstrap_servers, topic(partitions=PARTITIONS), transaction_timeout=600)
    played = script(seed, CALLS)
    real = Player(RealSink(bench), played).play()
    expected = play_simulated(SimulatedSink, played)
    assert real == expected, compared(real, expected)
