"""KafkaSink on a real broker: answers, aborts, names and topics, beyond what the conformance suite asks."""

import threading
import time

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from onceward.connectors.kafka import commits
from onceward.connectors.kafka.admin import NEW_TOPIC_SECONDS, cluster_of
from onceward.connectors.kafka.error_codes import Code
from onceward.connectors.kafka.sink import KafkaSink
from onceward.core.contract.names import NOTHING, Scope
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Observation, Progress
from onceward.core.errors import ConfigurationError, EpochConflictError, FencedError, KafkaError, SchemaError

from .kafka_kit import Bench, eventually, handle_of, numbered, prepared_of, rows

pytestmark = pytest.mark.kafka
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_14_15_21_committing_again_is_success_and_says_so(bench):
    committables = [bench.write(rows(str(i)), subtask=i) for i in range(3)]
    bench.sink.commit(committables[0])
    outcomes = bench.sink.commit_many(committables)
    assert [o.status for o in outcomes] == [
        CommitStatus.ALREADY_COMMITTED,
        CommitStatus.COMMITTED,
        CommitStatus.COMMITTED,
    ]
    assert all(o.status is CommitStatus.ALREADY_COMMITTED for o in bench.sink.commit_many(committables))
    assert sorted(bench.values()) == [b"0", b"1", b"2"]


def test_22_a_decided_transaction_that_somebody_aborted_is_proven_lost(bench):
    committable = bench.write(rows("lost"))
    bench.client.end_many([handle_of(committable)], commit=False)
    outcome = bench.sink.commit(committable)
    assert outcome.status is CommitStatus.LOST
    assert bench.sink.inspect_many([committable]) == [Observation.ABORTED]
    assert bench.values() == []


def test_22_markers_written_behind_the_coordinators_back_are_found_out(bench, kafka):
    """`kafka-transactions abort` does this: the coordinator still says Ongoing and would confirm a commit."""
    committable = bench.write(rows("gone"))
    handle = handle_of(committable)
    write_abort_marker(kafka.bootstrap_servers, bench.topic, handle)
    inspector = commits.Inspector(bench.client)
    eventually(lambda: inspector.inspect([prepared_of(committable)])[0].behind, "the marker is there")
    assert bench.state_of(committable) == "Ongoing"
    # It does not tell the two apart: a coordinator that was deposed while it was open also says Ongoing.
    assert bench.sink.inspect_many([committable]) == [Observation.PREPARED]
    began = time.monotonic()
    outcome = bench.sink.commit(committable)
    assert (outcome.status, "kafka-transactions abort" in outcome.detail) == (CommitStatus.LOST, True)
    assert time.monotonic() - began >= commits.PROOF_SECONDS
    assert bench.state_of(committable) == "CompleteAbort"
    assert bench.sink.inspect_many([committable]) == [Observation.EXPIRED]
    assert bench.sink.commit(committable).status is CommitStatus.LOST


def test_23_what_a_deposed_coordinator_calls_open_is_never_lost_once_it_was_committed(bench, monkeypatch):
    """The partitions are real and have the markers; what the old coordinator says comes from before the commit."""
    committable = bench.write(rows("kept"))
    before = bench.describe(committable.transaction)
    bench.client.end_many([handle_of(committable)], commit=True)
    eventually(lambda: bench.state_of(committable) == "CompleteCommit", "the markers are written")
    client = bench.sink._client.within(commits.CALL_SECONDS)
    asked, sent = client.describe, []

    def describe(names, **more):
        return asked(names, **more) and {committable.transaction: before}

    def fence(*_, once):
        assert once
        sent.append("fence")
        return Code.NOT_COORDINATOR  # as a deposed coordinator answers

    monkeypatch.setattr(client, "describe", describe)
    monkeypatch.setattr(client, "fence", fence)
    monkeypatch.setattr(commits, "PROOF_SECONDS", 0.2)
    [outcome] = commits.commit(client, [prepared_of(committable)])
    assert outcome.status is CommitStatus.RETRY_LATER
    assert sent
    assert bench.sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED
    assert bench.values() == [b"kept"]


def write_abort_marker(servers, topic, handle):
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.admin import AbortTransactionSpec

    admin = KafkaAdminClient(bootstrap_servers=servers)
    try:
        where = TopicPartition(topic, 0)
        admin.abort_transaction(AbortTransactionSpec(where, handle.producer_id, handle.producer_epoch))
    finally:
        admin.close()


def test_23_an_id_that_was_used_again_proves_nothing(bench):
    committable = bench.write(rows("x"))
    bench.sink.commit(committable)
    take_over(bench, committable.transaction)
    assert bench.sink.commit(committable).status is CommitStatus.UNKNOWN
    assert bench.sink.inspect_many([committable]) == [Observation.UNKNOWN]
    assert bench.sink.abort(committable).status is AbortStatus.UNKNOWN


def take_over(bench, name):
    """What a second process with the same transactional id does."""
    producer = Producer({"bootstrap.servers": bench.servers, "transactional.id": name, "log_level": 0})
    producer.init_transactions()
    return producer


def test_29_aborting_what_never_was_has_no_effect(bench):
    committable = bench.write(rows("x"))
    mine = prepared_of(committable)
    unknown = mine._replace(handle=mine.handle._replace(transactional_id="onceward:1:no:out:abcd:abcd:0"))
    assert commits.abort(bench.client, unknown).status is AbortStatus.ABORTED
    assert bench.sink.commit(committable).status is CommitStatus.COMMITTED


def test_30_a_committed_transaction_is_not_aborted(bench):
    committable = bench.write(rows("x"))
    bench.sink.commit(committable)
    assert bench.sink.abort(committable).status is AbortStatus.COMMITTED
    assert bench.values() == [b"x"]


def test_31_aborting_twice_is_aborting_once(bench):
    committable = bench.write(rows("x"))
    assert bench.sink.abort(committable).status is AbortStatus.ABORTED
    assert bench.sink.abort(committable).status is AbortStatus.ABORTED
    assert bench.sink.commit(committable).status is CommitStatus.LOST
    assert bench.values() == []


def test_33_of_a_racing_commit_and_abort_one_wins_and_both_are_told(bench):
    for number in range(8):
        committable = bench.write(rows(str(number)), epoch=number)
        outcomes = race(lambda c=committable: bench.sink.commit(c), lambda c=committable: bench.sink.abort(c))
        committed = str(number).encode() in bench.values()
        statuses = (outcomes[0].status, outcomes[1].status)
        if committed:
            assert statuses[0] in (CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED, CommitStatus.UNKNOWN)
            assert statuses[1] in (AbortStatus.COMMITTED, AbortStatus.UNKNOWN)
        else:
            assert statuses == (CommitStatus.LOST, AbortStatus.ABORTED)


def race(*calls):
    results, barrier = [None] * len(calls), threading.Barrier(len(calls))

    def run(index, call):
        barrier.wait()
        results[index] = call()

    threads = [threading.Thread(target=run, args=item) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_34_a_process_that_served_a_newer_writer_refuses_an_older_one(bench):
    bench.sink.commit(bench.write(rows("new"), generation=5))
    with pytest.raises(FencedError, match="generation 5"):
        bench.sink.begin(bench.context(1, generation=4))


def test_35_an_old_committer_does_no_harm(bench):
    """97: a late commit of the id's former transaction meets a newer, undecided one."""
    first = bench.write(rows("first"), epoch=0)
    bench.sink.commit(first)
    second = bench.write(rows("second"), epoch=1)
    assert second.transaction == first.transaction
    assert bench.sink.commit(first).status is CommitStatus.UNKNOWN
    assert bench.client.end_many([handle_of(first)], commit=True) == [90]
    assert bench.values() == [b"first"]


def test_36_91_a_second_log_under_the_same_name_is_refused(bench):
    bench.sink.ledger().check_claim(bench.scope, NOTHING)
    bench.sink.commit(bench.write(rows("x")))
    bench.sink.ledger().check_claim(bench.scope, NOTHING)
    other = Scope(bench.pipeline, "out", "deadbeef")
    with pytest.raises(EpochConflictError, match=rf'Kafka knows .*{bench.log}.*rewind="'):
        bench.sink.ledger().check_claim(other, NOTHING)
    bench.sink.ledger().release(other)
    bench.sink.ledger().check_claim(other, NOTHING)
    with pytest.raises(EpochConflictError):
        bench.sink.ledger().check_claim(other._replace(log="cafecafe"), NOTHING)


def test_36_a_log_that_never_committed_is_no_conflict(bench):
    committable = bench.write(rows("x"))
    bench.sink.abort(committable)
    bench.sink.ledger().check_claim(Scope(bench.pipeline, "out", "deadbeef"), NOTHING)


def test_36_a_log_whose_id_was_rolled_back_later_has_committed_all_the_same(bench):
    """Producer epoch 1, aborted: so looks an id whose first and only transaction was fenced, too."""
    first = bench.write(rows("x"))
    bench.sink.commit(first)
    transaction = bench.sink.begin(bench.context(1))
    assert str(transaction.producer.name) == first.transaction
    bench.sink.write(transaction, rows("never"))
    transaction.producer.flush(1e12)
    bench.sink.discard(transaction)
    eventually(lambda: bench.state_of(first) == "CompleteAbort", "rolled back")
    with pytest.raises(EpochConflictError):
        bench.sink.ledger().check_claim(Scope(bench.pipeline, "out", "deadbeef"), NOTHING)


def test_36_a_log_that_has_decided_is_not_asked_whose_the_names_are(bench):
    """It was asked before; and a claim leaves nothing at the brokers."""
    bench.sink.commit(bench.write(rows("x")))
    other = Scope(bench.pipeline, "out", "deadbeef")
    before = bench.producers()
    bench.sink.ledger().claim(other)
    bench.sink.ledger().check_claim(other, Progress(0, 0))
    assert bench.producers() == before


def test_38_what_a_renamed_sink_left_is_found_by_pipeline_and_log_and_aborted(bench, kafka):
    neighbors = [Bench(kafka.bootstrap_servers, bench.topic) for _ in range(2)]
    neighbors[0].pipeline, neighbors[0].log = f"{bench.pipeline}-eu", bench.log
    neighbors[1].pipeline = bench.pipeline
    left, *others = [one.write(rows("x")) for one in (bench, *neighbors)]
    renamed = KafkaSink("renamed", bootstrap_servers=kafka.bootstrap_servers, topic=bench.topic)
    assert list(renamed.lingering(bench.scope._replace(sink="renamed"))) == []
    [found] = renamed.lingering_elsewhere(bench.pipeline, bench.log)
    assert (found.identity(), found.sink) == (left.identity(), "out")
    assert renamed.abort(found).status is AbortStatus.ABORTED
    assert list(renamed.lingering_elsewhere(bench.pipeline, bench.log)) == []
    assert [bench.state_of(other) for other in others] == ["Ongoing", "Ongoing"]


def test_38_another_logs_leftovers_are_listed_with_their_log(bench):
    committable = bench.write(rows("left"))
    [left] = bench.sink.lingering(Scope(bench.pipeline, "out", "deadbeef"))
    assert (left.log, left.transaction) == (bench.log, committable.transaction)


def test_41_43_a_decided_transaction_that_timed_out_is_proven_lost(kafka, topic):
    bench = Bench(kafka.bootstrap_servers, topic(), transaction_timeout=1.5)
    committable = bench.write(rows("late"))
    eventually(lambda: bench.state_of(committable) == "CompleteAbort", "timed out", seconds=30)
    assert bench.sink.inspect_many([committable]) == [Observation.EXPIRED]
    outcome = bench.sink.commit(committable)
    assert outcome.status is CommitStatus.LOST
    assert "timeout" in outcome.detail


def test_42_a_time_out_above_the_brokers_is_refused_with_both_numbers(bench, kafka):
    sink = KafkaSink("out", bootstrap_servers=kafka.bootstrap_servers, topic=bench.topic, transaction_timeout=3600)
    with pytest.raises(ConfigurationError, match=r"3600 s .*transaction\.max\.timeout\.ms=900000 ms"):
        sink.validate(rows("x").schema)


def test_the_time_out_is_as_long_as_the_broker_allows(bench):
    assert bench.sink.transaction_timeout == 900
    committable = bench.write(rows("x"))
    assert bench.describe(committable.transaction).timeout_ms == 900_000


def test_96_a_zombie_fails_for_good_after_the_sweep(bench):
    transaction = bench.sink.begin(bench.context())
    bench.sink.write(transaction, rows("before"))
    transaction.producer.flush(1e12)
    [left] = bench.sink.lingering(bench.scope)
    bench.sink.abort(left)
    with pytest.raises(KafkaError, match=r"INVALID_PRODUCER_EPOCH|FENCED"):
        go_on(bench.sink, transaction)
    bench.sink.discard(transaction)
    assert list(bench.sink.lingering(bench.scope)) == []
    assert bench.values() == []


def go_on(sink, transaction):
    sink.write(transaction, rows("after"))
    return sink.pre_commit(transaction)


def test_81_a_message_that_the_broker_refuses_fails_the_epoch(kafka, topic):
    small = topic(max_message_bytes="1000")
    bench = Bench(kafka.bootstrap_servers, small)
    transaction = bench.sink.begin(bench.context())
    with pytest.raises(KafkaError, match=f"topic {small}.*MSG_SIZE_TOO_LARGE") as caught:
        go_on_with(bench.sink, transaction, rows("x" * 5000))
    assert caught.value.transaction is not None
    bench.sink.discard(transaction)
    assert list(bench.sink.lingering(bench.scope)) == []
    bench.sink.commit(bench.write(rows("ok"), epoch=1))
    assert bench.values() == [b"ok"]


def go_on_with(sink, transaction, batch):
    sink.write(transaction, batch)
    return sink.pre_commit(transaction)


def test_81_a_message_that_the_client_refuses_fails_the_epoch(bench):
    transaction = bench.sink.begin(bench.context())
    with pytest.raises(KafkaError, match=f"topic {bench.topic}.*MSG_SIZE_TOO_LARGE"):
        go_on_with(bench.sink, transaction, rows("x" * 2_000_000))
    bench.sink.discard(transaction)


def test_a_partition_that_does_not_exist_fails_the_epoch(bench):
    transaction = bench.sink.begin(bench.context())
    with pytest.raises(KafkaError, match="UNKNOWN_PARTITION"):
        go_on_with(bench.sink, transaction, rows("x", partition=pa.array([7], pa.int32())))
    bench.sink.discard(transaction)


def test_columns_arrive_as_they_are(kafka, topic):
    into = topic(partitions=3)
    bench = Bench(kafka.bootstrap_servers, into)
    batch = pa.record_batch(
        {
            "value": pa.array([b"v", None, b"", b"plain"]),
            "key": pa.array([b"k", b"tombstone", None, b""]),
            "partition": pa.array([2, 2, 1, 0], pa.int32()),
            "headers": pa.array(
                [
                    [{"key": "a", "value": b"1"}, {"key": "a", "value": None}, {"key": "ü", "value": b""}],
                    None,
                    [],
                    None,
                ],
                HEADERS,
            ),
        }
    )
    bench.sink.validate(batch.schema)
    bench.sink.commit(bench.write(batch))
    found = [(m.partition(), m.key(), m.value(), m.headers()) for m in bench.messages()]
    assert found == [
        (0, b"", b"plain", None),
        (1, None, b"", None),
        (2, b"k", b"v", [("a", b"1"), ("a", None), ("ü", b"")]),
        (2, b"tombstone", None, None),
    ]


def test_rows_go_to_their_own_topics_in_one_transaction(kafka, topic):
    one, two = topic(), topic()
    bench = Bench(kafka.bootstrap_servers, None)
    committable = bench.write(rows("1", "2", "3", topic=[one, two, one]))
    assert (bench.values(one), bench.values(two)) == ([], [])
    bench.sink.commit(committable)
    assert (bench.values(one), bench.values(two)) == ([b"1", b"3"], [b"2"])


def test_keys_land_where_javas_producers_put_them(kafka, topic):
    """murmur2, as in Kafka's own test vectors: positive(murmur2(key)) % partitions."""
    into = topic(partitions=10)
    bench = Bench(kafka.bootstrap_servers, into)
    keys = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    bench.sink.commit(bench.write(rows(*["v"] * 3, key=pa.array(list(keys)))))
    assert {m.key(): m.partition() for m in bench.messages()} == {k: (h & 0x7FFFFFFF) % 10 for k, h in keys.items()}


def test_more_rows_than_the_queue_holds_all_arrive_in_order(kafka, topic):
    bench = Bench(kafka.bootstrap_servers, topic(), config={"queue.buffering.max.messages": 500})
    bench.sink.commit(bench.write(numbered(0, 12_345)))
    assert bench.values() == [str(i).encode() for i in range(12_345)]


def test_validate_checks_columns_and_topic(bench):
    with pytest.raises(SchemaError, match="value"):
        bench.sink.validate(pa.schema([("v", pa.string())]))
    bench.sink.validate(rows("x").schema)


def sink_into(kafka, topic, **settings):
    return KafkaSink("out", bootstrap_servers=kafka.bootstrap_servers, topic=topic, **settings)


def topics_of(kafka):
    found = AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=10).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def test_a_missing_topic_is_refused_and_not_created_though_the_broker_would(kafka):
    """auto.create.topics.enable is on, as it is by default."""
    with pytest.raises(ConfigurationError, match=r"topic missing does not exist: create it, or .*create_topic=True"):
        sink_into(kafka, "missing").validate(rows("x").schema)
    assert "missing" not in topics_of(kafka)


@pytest.mark.parametrize(("create", "partitions"), [(True, 1), (5, 5)])
def test_a_missing_topic_is_created_where_that_is_asked_for(kafka, create, partitions):
    name = f"created-{create}"
    for _ in range(2):
        sink_into(kafka, name, create_topic=create).validate(rows("x").schema)
        assert topics_of(kafka)[name] == partitions
    bench = Bench(kafka.bootstrap_servers, name)
    bench.sink.commit(bench.write(rows("x")))
    assert bench.values() == [b"x"]


def test_two_drivers_that_create_the_same_topic_at_once_both_go_on(kafka):
    sinks = [sink_into(kafka, "raced", create_topic=3) for _ in range(2)]
    race(*[lambda sink=sink: cluster_of(sink.settings).create_topic("raced", 3) for sink in sinks])
    sinks[0].validate(rows("x").schema)
    assert topics_of(kafka)["raced"] == 3


def test_a_row_whose_own_topic_does_not_exist_fails_the_epoch_soon_and_creates_nothing(kafka, topic):
    there = topic()
    bench = Bench(kafka.bootstrap_servers, None)
    transaction = bench.sink.begin(bench.context())
    began = time.monotonic()
    with pytest.raises(KafkaError, match="topic typo does not exist"):
        go_on_with(bench.sink, transaction, rows("1", "2", topic=[there, "typo"]))
    assert time.monotonic() - began < 5
    bench.sink.discard(transaction)


@pytest.mark.parametrize("name", ["", "a b", "x" * 250])
def test_a_row_whose_own_topic_has_an_impossible_name_is_told_so(kafka, name):
    bench = Bench(kafka.bootstrap_servers, None)
    transaction = bench.sink.begin(bench.context())
    with pytest.raises(KafkaError, match=f"'{name}' is no name of a topic: Kafka takes up to 249 letters"):
        go_on_with(bench.sink, transaction, rows("1", topic=[name]))
    bench.sink.discard(transaction)
    assert "typo" not in topics_of(kafka)


def test_a_topic_that_is_deleted_while_rows_are_on_their_way_does_not_come_back(kafka, topic):
    name = topic()
    bench = Bench(
        kafka.bootstrap_servers, name, transaction_timeout=4, config={"topic.metadata.refresh.interval.ms": 50}
    )
    bench.sink.commit(bench.write(rows("before")))
    transaction = bench.sink.begin(bench.context(1))
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([name])[name].result(30)
    with pytest.raises(KafkaError):
        go_on_with(bench.sink, transaction, rows("after"))
    bench.sink.discard(transaction)
    assert name not in topics_of(kafka)


def test_a_topic_that_is_deleted_and_created_again_before_the_decision_costs_no_rows(bench, kafka):
    transaction = bench.sink.begin(bench.context(1))
    bench.sink.write(transaction, rows("gone"))
    transaction.producer.flush(time.monotonic() + 30)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([bench.topic])[bench.topic].result(30)
    eventually(lambda: bench.topic not in topics_of(kafka), "the topic is deleted")
    admin.create_topics([NewTopic(bench.topic, 1, 1)])[bench.topic].result(30)
    with pytest.raises(KafkaError, match="lost rows before it could be prepared"):
        bench.sink.pre_commit(transaction)
    bench.sink.discard(transaction)
    assert bench.sink.commit(bench.write(rows("again"), epoch=2)).settled
    assert bench.values() == [b"again"]


@pytest.mark.parametrize("wrong", [{"linger.mss": "5"}, {"linger.ms": "soon"}])
def test_settings_that_librdkafka_refuses_are_said_on_the_driver(bench, kafka, wrong):
    with pytest.raises(ConfigurationError, match=r"librdkafka refuses the Kafka settings: .*configuration property"):
        sink_into(kafka, bench.topic, config=wrong).validate(rows("x").schema)


def test_no_broker_is_said_at_once():
    sink = KafkaSink("out", bootstrap_servers="127.0.0.1:1", topic="t")
    with pytest.raises(KafkaError, match="no broker answers") as caught:
        sink.validate(rows("x").schema)
    assert caught.value.retryable


def test_a_prepared_transaction_says_when_it_expires_and_how_many_records_readers_wait_for(bench):
    began = time.time()
    committable = bench.write(numbered(0, 5))
    timeout = bench.sink.transaction_timeout
    expiry = bench.sink.expires_at(committable)
    assert began - 1 <= expiry - timeout <= time.time() + 1
    assert bench.sink.last_stable_offset_lag() == 5
    assert bench.sink.commit(committable).settled
    eventually(lambda: bench.sink.last_stable_offset_lag() == 0, "readers are through")
    assert bench.sink.dataset() == (f"kafka://{bench.sink.settings['bootstrap.servers']}", bench.sink.topic)


def test_a_topic_that_is_missing_is_waited_for_once(bench):
    """Each row of it is tried, and more than once, where refused rows go to dead letters."""
    cluster, name = cluster_of(bench.sink.settings), f"later-{bench.topic}"
    with pytest.raises(KafkaError, match="does not exist: create it first"):
        cluster.check_topics([name])
    began = time.monotonic()
    for _ in range(5):
        with pytest.raises(KafkaError, match="does not exist: create it first"):
            cluster.check_topics([name])
    assert time.monotonic() - began < NEW_TOPIC_SECONDS
    cluster.create_topic(name, 1)
    cluster.check_topics([name])
