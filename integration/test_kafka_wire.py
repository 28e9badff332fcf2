"""Contract test of kafka-python's private parts: the requests, the connections, and what the coordinator answers.

Run it before a new kafka-python or a new Kafka is allowed: the commit protocol rests on each of these answers.
"""

import time
import uuid

import pytest
from confluent_kafka import KafkaException, Producer

from onceward.connectors.kafka.admin import cluster_of
from onceward.connectors.kafka.error_codes import Code
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.connectors.kafka.transaction_coordinator import TransactionCoordinatorClient
from onceward.connectors.kafka.transaction_state import Handle
from onceward.connectors.kafka.wire import Wire
from onceward.core.errors import KafkaError

from .kafka_kit import eventually, read_all

pytestmark = pytest.mark.kafka


@pytest.fixture
def client(kafka):
    return cluster_of(KafkaSettings(kafka.bootstrap_servers)).transactions


@pytest.fixture
def opened(kafka, topic, client):
    """Opens a transaction with librdkafka: returns producer, topic and handle."""

    def open_(timeout_ms=600_000, name=None, into=None):
        name = name or f"wire-{uuid.uuid4().hex[:8]}"
        into = into or topic()
        config = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
        producer = Producer({**config, "transactional.id": name, "transaction.timeout.ms": timeout_ms})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce(into, b"one")
        producer.flush()
        return producer, into, client.describe([name])[name].handle

    return open_


def test_a_description_holds_what_end_txn_wants(opened, client):
    _, topic, handle = opened(timeout_ms=123_000)
    description = client.describe([handle.transactional_id])[handle.transactional_id]
    assert description.state == "Ongoing"
    assert description.timeout_ms == 123_000
    assert description.partitions == {(topic, 0)}
    assert handle.producer_epoch == 0
    assert abs(time.time() * 1000 - handle.started_ms) < 60_000


def test_commit_by_handle_makes_the_data_visible_once_and_may_be_repeated(opened, client, kafka):
    producer, topic, handle = opened()
    del producer
    assert [client.end_many([handle], commit=True) for _ in range(3)] == [[Code.NONE]] * 3
    assert len(read_all(kafka.bootstrap_servers, topic)) == 1
    assert client.end_many([handle], commit=False) == [Code.INVALID_TXN_STATE]
    assert client.describe([handle.transactional_id])[handle.transactional_id].handle == handle


def test_many_are_committed_in_one_call(opened, client, kafka, topic):
    into = topic(partitions=3)
    handles = [opened(into=into)[2] for _ in range(7)]
    assert client.end_many(handles, commit=True) == [Code.NONE] * 7
    eventually(lambda: len(read_all(kafka.bootstrap_servers, into)) == 7, "visible")  # when the markers are written


def test_abort_by_end_txn_is_exact_and_ends_in_invalid_state(opened, client):
    _, _, handle = opened()
    newer = handle._replace(producer_epoch=handle.producer_epoch + 1)
    assert client.end_many([newer], commit=False) == [Code.PRODUCER_FENCED]
    assert client.end_many([handle], commit=False) == [Code.NONE]
    assert client.end_many([handle], commit=True) == [Code.INVALID_TXN_STATE]


def test_fencing_aborts_and_the_proof_stays(opened, client):
    producer, topic, handle = opened()
    assert client.fence(*handle[:3]) == Code.CONCURRENT_TRANSACTIONS
    name = handle.transactional_id
    eventually(lambda: client.describe([name])[name].state == "CompleteAbort", "aborted")
    assert client.describe([name])[name].handle == handle._replace(producer_epoch=1)
    assert client.end_many([handle], commit=True) == [Code.PRODUCER_FENCED]
    with pytest.raises(KafkaException, match="_FENCED"):
        produce_and_commit(producer, topic)


def produce_and_commit(producer, topic):
    producer.produce(topic, b"zombie")
    producer.flush()
    producer.commit_transaction()


def test_fencing_with_an_old_epoch_aborts_a_newer_open_transaction(opened, client):
    """Why the description is looked at first, and why no two writers share a name."""
    _, topic, old = opened()
    client.end_many([old], commit=True)
    _producer, _, newer = opened(name=old.transactional_id, into=topic)
    assert newer.producer_epoch == old.producer_epoch + 1
    client.fence(*old[:3])
    eventually(lambda: client.describe([old[0]])[old[0]].state == "CompleteAbort", "the newer one is gone")


def test_a_time_out_of_the_broker_leaves_a_proof(opened, client):
    _producer, _, handle = opened(timeout_ms=1000)
    name = handle.transactional_id
    eventually(lambda: client.describe([name])[name].state == "CompleteAbort", "timed out", seconds=30)
    assert client.describe([name])[name].handle == handle._replace(producer_epoch=1)


def test_unknown_ids_are_told_apart(client):
    name = f"never-{uuid.uuid4().hex}"
    assert client.describe([name])[name].code == Code.TRANSACTIONAL_ID_NOT_FOUND
    assert client.end_many([Handle(name, 1, 0, -1)], commit=True) == [Code.INVALID_PRODUCER_ID_MAPPING]


def test_partitions_show_who_has_a_transaction_open(opened, client):
    _, topic, handle = opened()
    mine = (handle.producer_id, handle.producer_epoch)
    assert mine in client.describe_producers([(topic, 0)])[topic, 0]
    client.end_many([handle], commit=True)
    eventually(lambda: mine not in client.describe_producers([(topic, 0)])[topic, 0], "markers written")


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_ends_a_transaction_in_its_partition(opened, client, kafka, commit):
    _, topic, handle = opened()
    mine = (handle.producer_id, handle.producer_epoch)
    epoch = client.describe_producers([(topic, 0)])[topic, 0][mine]
    assert client.write_marker((topic, 0), mine, epoch, commit=commit) == Code.NONE
    assert client.describe_producers([(topic, 0)])[topic, 0] == {}
    assert [m.value() for m in read_all(kafka.bootstrap_servers, topic)] == ([b"one"] if commit else [])


def test_transactions_are_listed_by_state_and_prefix(opened, client):
    prefix = f"list-{uuid.uuid4().hex[:6]}."
    _, _, first = opened(name=prefix + "a+(b)")
    opened(name=prefix + "c")
    opened(name="not" + prefix)
    client.end_many([first], commit=True)
    assert set(client.list_transactions(prefix=prefix)) == {prefix + "a+(b)", prefix + "c"}
    assert client.list_transactions(["Ongoing"], prefix=prefix) == [prefix + "c"]


def test_coordinators_tell_by_their_own_clock_for_how_long_a_transaction_has_been_open(opened, client):
    prefix = f"age-{uuid.uuid4().hex[:6]}."
    _, _, old = opened(name=prefix + "old")
    time.sleep(1.2)
    _, _, new = opened(name=prefix + "new")
    both = [old.transactional_id, new.transactional_id]
    assert client.running_longer(both, 1000) == {old.transactional_id}
    assert client.running_longer(both, 60_000) == set()
    assert client.running_longer([new.transactional_id], 0) == {new.transactional_id}
    client.end_many([old], commit=True)
    assert client.running_longer(both, 1000) == set()
    client._by_pattern = False  # brokers before 4.1
    eventually(lambda: client.running_longer(both, 1000) == {new.transactional_id}, "as old as the other one was")


@pytest.mark.parametrize("everywhere", [False, True])
def test_topics_have_ids_and_those_that_do_not_exist_have_none(client, topic, everywhere):
    one, two = topic(), topic()
    ids = client.topic_ids([one, two, "nowhere"], everywhere=everywhere)
    assert ids["nowhere"] is None
    assert len({ids[one], ids[two]} - {None}) == 2
    assert client.topic_ids([one, two, "nowhere"], everywhere=everywhere) == ids


def test_topics_of_which_no_broker_answers_have_no_known_id():
    client = TransactionCoordinatorClient(Wire({"bootstrap_servers": "127.0.0.1:1"}), retry_seconds=1.0)
    assert client.topic_ids(["t"]) == client.topic_ids(["t"], everywhere=True) == {}
    assert client.running_longer(["id"], 0) == set()


def test_a_registered_id_is_remembered(client):
    name = f"mark-{uuid.uuid4().hex}"
    assert client.register(name) == Code.NONE
    assert client.list_transactions(prefix=name) == [name]


def test_no_broker_is_no_answer_within_bounds():
    client = TransactionCoordinatorClient(Wire({"bootstrap_servers": "127.0.0.1:1"}), retry_seconds=1.0)
    began = time.monotonic()
    assert client.end_many([Handle("id", 1, 0, -1)], commit=True) == [Code.NO_ANSWER]
    assert client.describe(["id"])["id"].code == Code.NO_ANSWER
    with pytest.raises(KafkaError, match="NO_ANSWER") as caught:
        client.list_transactions()
    assert caught.value.retryable
    assert time.monotonic() - began < 6


def test_a_paused_broker_is_no_answer_within_bounds(kafka, opened):
    _, _, handle = opened()
    client = TransactionCoordinatorClient(Wire({"bootstrap_servers": kafka.bootstrap_servers}), retry_seconds=1.5)
    assert client.describe([handle[0]])[handle[0]].handle == handle
    kafka.pause()
    began = time.monotonic()
    assert client.end_many([handle], commit=True) == [Code.NO_ANSWER]
    assert time.monotonic() - began < 5
    kafka.resume()
    eventually(lambda: client.end_many([handle], commit=True) == [Code.NONE], "committed after the pause")
