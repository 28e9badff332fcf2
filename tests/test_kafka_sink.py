"""KafkaSink without a broker: configuration, pickling, secrets."""

import pickle
import subprocess
import sys

import pytest

from onceward.connectors.kafka.sink import KafkaSink
from onceward.core.errors import ConfigurationError, KafkaError
from onceward.core.transaction import AbortStatus, CommitStatus, Committable, ExternalState

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
    assert "transaction.timeout.ms" not in sink.settings.for_producer()


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
    empty = Committable(kind="kafka", pipeline="p", sink="out", log="ab12", writer=0, epoch=0, transaction="id")
    assert sink.commit(empty).status is CommitStatus.COMMITTED
    assert sink.abort(empty).status is AbortStatus.ABORTED
    assert sink.inspect_many([empty]) == [ExternalState.PREPARED]


def test_a_sink_is_made_and_pickled_without_the_client_libraries():
    code = (
        "import sys; sys.modules['kafka'] = sys.modules['confluent_kafka'] = None\n"
        "import pickle\n"
        "from onceward.connectors.kafka.sink import KafkaSink\n"
        "from onceward.core.errors import ConfigurationError\n"
        "sink = pickle.loads(pickle.dumps(KafkaSink('out', bootstrap_servers='b:1', topic='t')))\n"
        "try: sink.transaction_timeout\n"
        "except ConfigurationError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert "onceward[kafka]" in done.stdout


def _environment():
    import os

    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_a_delivery_report_that_a_fatal_error_cuts_short_hides_nothing():
    """librdkafka's fatal error is set before the report runs, which then fails at once and knows no more than that."""
    from confluent_kafka import KafkaError as ClientError
    from confluent_kafka import KafkaException

    from onceward.connectors.kafka.producer import DeliveryFailures, TransactionalProducer

    failures = DeliveryFailures()
    failures.count = 1
    producer = TransactionalProducer("a name", None, failures)  # type: ignore[arg-type]

    def fenced() -> int:
        raise SystemError from KafkaException(ClientError(ClientError.INVALID_PRODUCER_EPOCH))

    with pytest.raises(KafkaError, match=r"INVALID_PRODUCER_EPOCH"):
        producer._call("cannot write", fenced)
