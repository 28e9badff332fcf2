"""KafkaSink without a broker: configuration, pickling, secrets."""

import pickle
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.connectors.kafka import sink as kafka
from onceward.connectors.kafka.admin import Limits
from onceward.connectors.kafka.error_codes import Code, TimeoutTooLongError
from onceward.connectors.kafka.librdkafka import BatchProducer
from onceward.connectors.kafka.messages import QueueFull
from onceward.connectors.kafka.producer import DeliveryFailures, TransactionalProducer, queue_bound
from onceward.connectors.kafka.sink import KafkaSink, KafkaTransaction
from onceward.connectors.kafka.sizes import Sizes
from onceward.connectors.kafka.transaction_state import Description, Handle, OpenProducers
from onceward.core.contract.names import NOTHING, PooledName, Scope
from onceward.core.contract.transaction import (
    AbortStatus,
    CommitStatus,
    Committable,
    Observation,
    Progress,
    WriteContext,
)
from onceward.core.errors import ConfigurationError, KafkaError

SASL = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "alice",
    "sasl.password": "wonder-land",
}


def test_a_sink_survives_pickling_with_its_settings():
    sink = KafkaSink("out", bootstrap_servers="b:1", topic="t", config={"linger.ms": 5}, transaction_timeout=60)
    again = pickle.loads(pickle.dumps(sink))
    assert (again.name, again.topic, again.transaction_timeout) == ("out", "t", 60)
    assert again.settings == sink.settings


def test_no_secret_is_shown():
    sink = KafkaSink("out", bootstrap_servers="b:1", topic="t", config=SASL)
    assert "wonder-land" not in repr(sink)


def test_options_of_a_spark_format_make_a_sink():
    sink = KafkaSink.from_options(
        {"kafka.bootstrap.servers": "b:1", "topic": "t", "name": "out", "kafka.transaction.timeout.ms": "90000"}
    )
    assert (sink.name, sink.topic, sink.transaction_timeout) == ("out", "t", 90)
    assert "transaction.timeout.ms" not in sink.settings.for_librdkafka()


def test_the_timeout_may_be_given_in_seconds():
    sink = KafkaSink.from_options({"kafka.bootstrap.servers": "b:1", "transactiontimeout": "90.5"})
    assert sink.transaction_timeout == 90.5


@pytest.mark.parametrize(("text", "create"), [("true", True), ("false", False), ("6", 6)])
def test_a_topic_is_created_only_when_that_is_asked_for(text, create):
    sink = KafkaSink.from_options({"kafka.bootstrap.servers": "b:1", "topic": "t", "createtopic": text})
    assert sink.create_topic is create
    assert KafkaSink("out", bootstrap_servers="b:1", topic="t").create_topic is False


def test_no_producer_lets_a_broker_create_topics():
    from onceward.connectors.kafka import producer

    assert producer.FIXED["allow.auto.create.topics"] is False


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"topics": "t"}, "topics"),
        ({"kafka.transactional.id": "x"}, "transactional.id"),
        ({"transactiontimeout": "long"}, "transactionTimeout is not a number"),
        ({"kafka.transaction.timeout.ms": "long"}, r"transaction\.timeout\.ms"),
        ({"topic": "t", "createtopic": "yes"}, "createTopic"),
        ({"topic": "t", "createtopic": "0"}, "number of partitions"),
        ({"createtopic": "true"}, "create_topic needs topic"),
        ({"topic": " "}, "topic is empty"),
        ({"kafka.allow.auto.create.topics": "true"}, "createTopic"),
        ({"transactiontimeout": "0.5"}, "at least 1 s"),
        ({"name": "a:b"}, "a:b"),
    ],
)
def test_options_that_do_not_fit_are_named(options, named):
    with pytest.raises(ConfigurationError, match=named):
        KafkaSink.from_options({"kafka.bootstrap.servers": "b:1", **options})


def test_a_transaction_in_which_nothing_was_written_needs_no_broker():
    sink = KafkaSink("out", bootstrap_servers="127.0.0.1:1", topic="t", transaction_timeout=60)
    empty = Committable(kind="kafka", pipeline="p", sink="out", log="ab12", generation=0, epoch=0, transaction="id")
    assert sink.commit(empty).status is CommitStatus.COMMITTED
    assert sink.abort(empty).status is AbortStatus.ABORTED
    assert sink.inspect_many([empty]) == [Observation.PREPARED]


@pytest.mark.parametrize(
    ("name", "missing"),
    [("KafkaSink", "kafka"), ("KafkaSink", "confluent_kafka"), ("KafkaSource", "confluent_kafka")],
)
def test_a_client_library_that_is_missing_is_named(name, missing):
    code = (
        f"import sys; sys.modules['{missing}'] = None\n"
        "import onceward\n"
        "from onceward.connectors.kafka import positions, settings, transaction_state\n"
        f"try: onceward.{name}\n"
        "except onceward.core.errors.ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert f"{name} needs {missing}" in done.stdout
    assert "onceward[kafka]" in done.stdout


def _environment():
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_delivery_report_that_a_fatal_error_cuts_short_hides_nothing():
    """librdkafka's fatal error is set before the report runs, which then fails at once and knows no more than that."""
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import KafkaException

    failures = DeliveryFailures()
    failures.count = 1
    producer = TransactionalProducer("a name", None, failures)  # type: ignore[arg-type]

    def fenced() -> int:
        raise SystemError from KafkaException(ClientError(ClientError.INVALID_PRODUCER_EPOCH))

    with pytest.raises(KafkaError, match=r"INVALID_PRODUCER_EPOCH"):
        producer._call("cannot write", fenced)


SCOPE = Scope("p", "out", "0a0b0c0d")


class Written:
    """A producer with its pool and its coordinator; notes in which order they are asked."""

    def __init__(self, state: str = "Ongoing", rows: int = 1) -> None:
        self.calls: list[str] = []
        self.state, self.rows = state, rows
        self.name = PooledName(SCOPE, "0123abcd", 0)
        self.left = 0.0
        self.transactions = self
        self.producers: dict[tuple[str, int], OpenProducers | None] = {("t", 0): {(7, 3): 1}}
        self.leaderless: list[tuple[str, int]] = []
        self.everywhere: set[tuple[str, int]] | None = {("t", 0)}
        self.ids: dict[str, str | None] = {"t": "id-of-t"}

    def flush(self, deadline: float) -> None:
        self.calls.append("flush")
        self.left = deadline - time.monotonic()

    def within(self, _seconds):
        return self

    def look_up_again(self, names):
        assert list(names) == [str(self.name)]

    def describe(self, names, *, topics):
        assert topics == ["t"]
        self.calls.append("describe")
        handle = Handle(str(self.name), 7, 3, 1000)
        return {name: Description(0, self.state, handle, 60_000, frozenset({("t", 0)})) for name in names}

    def topic_ids(self, topics, *, everywhere=False):
        assert topics == {"t"}
        self.calls.append("topic ids everywhere" if everywhere else "topic ids")
        return self.ids

    def partitions_of(self, topics):
        assert topics == ["t"]
        return [("t", 0), ("t", 1)]

    def leaderless_of(self, topics):
        assert topics == ["t"]
        return self.leaderless

    def partitions_everywhere(self, handle):
        assert handle.transactional_id == str(self.name)
        return self.everywhere

    def describe_producers(self, partitions, *, retry_seconds=None):  # noqa: ARG002 - signature
        self.calls.append("describe producers")
        return {partition: self.producers.get(partition, {}) for partition in partitions}

    def keep(self, _name, _context, prepared) -> None:
        self.calls.append("keep" if prepared is not None else "keep nothing")

    def drop(self) -> None:
        self.calls.append("drop")


def pre_committed(monkeypatch, written, seconds: float = 0.0) -> Committable:
    monkeypatch.setattr(kafka, "PREPARE_SECONDS", seconds)
    monkeypatch.setattr(kafka, "cluster_of", lambda _: written)
    context = WriteContext(pipeline="p", sink="out", log="0a0b0c0d", generation=4, epoch=2, subtask=1)
    sink = KafkaSink("out", bootstrap_servers="b:1", topic="t", transaction_timeout=60)
    return sink.pre_commit(KafkaTransaction(context, written, written))


@pytest.mark.parametrize("code", [Code.NO_ANSWER, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR])
def test_a_handle_is_asked_for_until_a_coordinator_has_taken_the_place_of_a_dead_one(monkeypatch, code):
    written = Written()
    answers = written.describe

    def describe(names, *, topics):
        found = answers(names, topics=topics)
        return found if written.calls.count("describe") > 5 else {name: Description(code) for name in names}

    written.describe = describe
    assert pre_committed(monkeypatch, written, seconds=30.0).rows == 1
    assert written.calls.count("describe") == 6


def test_the_sweep_of_a_start_waits_for_an_election_and_later_ones_do_not(monkeypatch):
    answers: list[Any] = [KafkaError("cannot list transactions"), KafkaError("cannot list transactions"), [], []]
    answers[0].retryable = answers[1].retryable = True

    class Lists:
        def list_transactions(self, _states, *, prefix):  # noqa: ARG002 - signature
            if isinstance(answer := answers.pop(0), KafkaError):
                raise answer
            return answer

        def describe(self, _):
            return {}

        def topic_ids(self, _):
            return {}

    lists = Lists()
    monkeypatch.setattr(kafka, "cluster_of", lambda _: SimpleNamespace(transactions=lists))
    sink = KafkaSink("out", bootstrap_servers="b:1", topic="t", transaction_timeout=60)
    assert list(sink.lingering_elsewhere("p", "0a0b0c0d")) == []
    answers.insert(0, KafkaError("cannot list transactions"))
    answers[0].retryable = True
    with pytest.raises(KafkaError):
        sink.lingering(Scope("p", "out", "0a0b0c0d"))


def test_an_election_by_kafkas_default_is_waited_for():
    session_seconds, most = 9.0, 30.0  # broker.session.timeout.ms; as long as a producer waits
    assert max(session_seconds, most) <= kafka.PREPARE_SECONDS


def test_a_handle_is_asked_for_when_the_brokers_have_all_messages(monkeypatch):
    written = Written()
    committable = pre_committed(monkeypatch, written)
    assert written.calls == ["flush", "describe", "topic ids", "describe producers", "keep", "drop"]
    assert (committable.generation, committable.epoch, committable.subtask, committable.rows) == (4, 2, 1, 1)
    assert committable.handle["producer_epoch"] == 3


def test_a_coordinator_that_does_not_know_all_partitions_is_not_believed(monkeypatch):
    """A deposed one: nobody would see that a partition without a leader got no marker (KAFKA-20734)."""
    written = Written()
    written.producers[("t", 1)] = {(7, 3): 1}
    with pytest.raises(KafkaError, match="does not know that the transaction has rows in t-1"):
        pre_committed(monkeypatch, written)
    written.producers[("t", 1)] = {(7, 2): 1, (8, 3): 1}
    pre_committed(monkeypatch, written)


@pytest.mark.parametrize("lost", ["before", "meanwhile"])
def test_where_a_partition_cannot_say_what_it_has_every_broker_is_asked(monkeypatch, lost):
    """The one that answered may have been deposed, and the partition may have lost its leader since the flush."""
    written = Written()
    if lost == "before":
        written.leaderless = [("t", 1)]
    else:
        written.producers[("t", 1)] = None
    pre_committed(monkeypatch, written)
    written.everywhere = {("t", 0), ("t", 1)}
    with pytest.raises(KafkaError, match="does not know that the transaction has rows in t-1"):
        pre_committed(monkeypatch, written)
    written.everywhere = None
    with pytest.raises(KafkaError, match="a broker does not answer"):
        pre_committed(monkeypatch, written)


def test_a_flush_leaves_half_of_the_timeout_for_decision_and_commit(monkeypatch):
    written = Written()
    pre_committed(monkeypatch, written)
    assert 29 < written.left <= 30


@pytest.mark.parametrize("state", ["CompleteAbort", "PrepareAbort", "Empty"])
def test_a_transaction_that_ended_meanwhile_is_not_prepared(monkeypatch, state):
    written = Written(state)
    with pytest.raises(KafkaError, match=f"the coordinator says {state}"):
        pre_committed(monkeypatch, written)
    assert "keep" not in written.calls


@pytest.mark.parametrize("others", [{}, {(7, 2): 1}, {(8, 3): 1}])
def test_a_transaction_that_its_partitions_do_not_have_is_not_prepared(monkeypatch, others):
    """Its topic was deleted and created again, or somebody ran kafka-transactions abort."""
    written = Written()
    written.producers = {("t", 0): others}
    with pytest.raises(KafkaError, match="lost rows before it could be prepared"):
        pre_committed(monkeypatch, written)
    assert "keep" not in written.calls


def test_a_transaction_whose_topic_is_gone_is_not_prepared(monkeypatch):
    written = Written()
    written.producers, written.ids = {("t", 0): None}, {"t": None}
    with pytest.raises(KafkaError, match="lost rows before it could be prepared"):
        pre_committed(monkeypatch, written)
    assert written.calls == ["flush", "describe", "topic ids", "topic ids everywhere", "describe producers"]


def test_a_partition_that_does_not_answer_for_long_is_not_waited_for(monkeypatch):
    written = Written()
    written.producers = {("t", 0): None}
    assert pre_committed(monkeypatch, written).rows == 1


@pytest.mark.parametrize("producers", [None, {(7, 3): 1}])
def test_a_topic_whose_id_is_not_told_is_asked_for_again_and_then_not_prepared(monkeypatch, producers):
    """Created again before the commit, it would look like an abort by hand: other topics' rows would be given up."""
    written = Written()
    written.producers, written.ids = {("t", 0): producers}, {}
    monkeypatch.setattr(kafka, "Retries", lambda seconds: range(2 if seconds else 1))
    with pytest.raises(KafkaError, match="the brokers do not tell the id of t") as caught:
        pre_committed(monkeypatch, written)
    assert caught.value.retryable
    assert written.calls == ["flush", "describe", *["topic ids", "topic ids everywhere"] * 2]


def test_without_rows_there_is_no_transaction(monkeypatch):
    written = Written(rows=0)
    assert pre_committed(monkeypatch, written).handle == {}
    assert written.calls == ["flush", "keep nothing", "drop"]


@pytest.mark.parametrize(("newest", "asked"), [(NOTHING, True), (Progress(0, 0), False)])
def test_a_log_that_has_decided_nothing_asks_whether_others_have_used_its_names(monkeypatch, newest, asked):
    found = []
    monkeypatch.setattr(kafka, "cluster_of", lambda _: SimpleNamespace(transactions="client"))
    monkeypatch.setattr(kafka.ownership, "check_ownership", lambda *arguments: found.append(arguments))
    KafkaSink("out", bootstrap_servers="b:1", topic="t").ledger().check_claim(SCOPE, newest)
    assert found == ([("client", SCOPE)] if asked else [])


def test_a_rewind_accepts_what_other_logs_have_committed(monkeypatch):
    found = []
    monkeypatch.setattr(kafka, "cluster_of", lambda _: SimpleNamespace(transactions="client"))
    monkeypatch.setattr(kafka.ownership, "accept", lambda *arguments: found.append(arguments))
    KafkaSink("out", bootstrap_servers="b:1", topic="t").ledger().release(SCOPE)
    assert found == [("client", SCOPE)]


class Library:
    """librdkafka's producer: so many messages wait, and so many of them fail while they are flushed."""

    def __init__(self, waiting: int, failures: DeliveryFailures, failing: int) -> None:
        self.waiting, self.failures, self.failing = waiting, failures, failing

    def flush(self, _seconds: float) -> int:
        error = SimpleNamespace(str=lambda: "too large", name=lambda: "MSG_SIZE_TOO_LARGE")
        for _ in range(self.failing):
            self.failures(error, "t", 0)
        return self.waiting


@pytest.mark.parametrize(
    ("waiting", "failing", "why"),
    [(3, 0, "3 messages were not acknowledged"), (0, 1, "topic t partition 0 was refused: too large")],
)
def test_a_flush_that_leaves_messages_out_fails(waiting, failing, why):
    failures = DeliveryFailures()
    producer = TransactionalProducer(PooledName(SCOPE, "0123abcd", 0), Library(waiting, failures, failing), failures)
    with pytest.raises(KafkaError, match=why):
        producer.flush(time.monotonic() - 1)


class FlushedLibrary:
    """librdkafka's functions for a producer whose messages are acknowledged after so many looks."""

    def __init__(self, looks: int, clock: list[float]) -> None:
        self.looks, self.clock, self.waits = looks, clock, []

    def flush(self, _handle: int, milliseconds: int) -> None:
        self.waits.append(milliseconds)
        self.clock[0] += max(milliseconds, 0.4) / 1000
        self.looks -= 1

    def outq_len(self, _handle: int) -> int:
        return 3 if self.looks > 0 else 0

    def fatal_error(self, *_: object) -> int:
        return 0


@pytest.mark.parametrize(("looks", "left"), [(1, 0), (6, 0), (10_000, 3)])
def test_a_flush_looks_soon_and_ends_in_time(monkeypatch: pytest.MonkeyPatch, looks: int, left: int):
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    producer = object.__new__(BatchProducer)
    library = FlushedLibrary(looks, clock)
    producer.__dict__.update(_library=library, _handle=1)
    assert producer.flush(0.5) == left
    assert library.waits[0] == 1
    assert all(0 <= wait <= 500 for wait in library.waits)
    assert clock[0] <= 0.501


class FullLibrary:
    """librdkafka's producer whose queue is full although nothing waits in it: the message is larger than the queue."""

    def __len__(self) -> int:
        return 0

    def poll(self, _seconds: float) -> int:
        return 0


def test_a_message_that_never_fits_into_the_queue_is_an_error_and_no_endless_wait():
    class Waiting:
        label = "topic t"

        def __len__(self) -> int:
            return 3

        def feed(self, _producer: object, _begin: int) -> int:
            raise QueueFull(1)

    producer = TransactionalProducer(PooledName(SCOPE, "0123abcd", 0), FullLibrary(), DeliveryFailures())
    with pytest.raises(KafkaError, match=r"a message for topic t does not fit .*queue\.buffering\.max\.kbytes"):
        producer.write(Waiting())  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "kilobytes"), [({}, 65_536), ({"message.max.bytes": 100_000_000}, 195_312)])
def test_the_queue_is_bounded_and_takes_the_largest_message(given, kilobytes):
    assert queue_bound(given) == {"queue.buffering.max.kbytes": kilobytes}


class Lowering:
    """A cluster that allows less than it did when this process asked, and a pool of each timeout."""

    def __init__(self) -> None:
        self.allows, self.known_limits = 3600, Limits(3, 3_600_000, known=True)

    def limits(self, *, anew: bool = False) -> Limits:
        if anew:
            self.known_limits = Limits(3, self.allows * 1000, known=True)
        return self.known_limits

    def sizes(self, *_: Any, **__: Any) -> Sizes:
        return Sizes()

    def pool_of(self, _settings: Any, _scope: Any, timeout_ms: int) -> Any:
        def take(*_: Any) -> str:
            if timeout_ms > self.allows * 1000:
                raise TimeoutTooLongError("a broker allows less")
            return f"a producer of {timeout_ms} ms"

        return SimpleNamespace(take=take, bound=Sizes())


def test_a_longest_timeout_that_the_brokers_have_lowered_is_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    cluster = Lowering()
    monkeypatch.setattr(kafka, "cluster_of", lambda _: cluster)
    monkeypatch.setattr(kafka, "pool_of", cluster.pool_of)
    context = WriteContext(pipeline="p", sink="out", log="0a0b0c0d", generation=0, epoch=0, subtask=0)
    sink = KafkaSink("out", bootstrap_servers="b:1", topic="t")
    own = KafkaSink("out", bootstrap_servers="b:1", topic="t", transaction_timeout=3600)
    assert sink.begin(context).producer == own.begin(context).producer == "a producer of 3600000 ms"
    cluster.allows = 900
    transaction = sink.begin(context)
    assert transaction.producer == "a producer of 900000 ms"
    assert sink.transaction_timeout == 900
    with pytest.raises(TimeoutTooLongError):
        own.begin(context)
    stale: Any = SimpleNamespace(rollback=lambda: None)
    cluster.allows, transaction.producer = 600, stale
    sink._begin_again(transaction, Sizes())
    assert transaction.producer == "a producer of 600000 ms"
