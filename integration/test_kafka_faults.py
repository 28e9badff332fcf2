"""KafkaSink while brokers die, pause and move (11 to 13, 19, 20, 76 to 79): asked, never assumed."""

import threading
import time
import uuid

import pytest

from onceward.connectors.kafka import commits, producer
from onceward.connectors.kafka.admin import cluster_of
from onceward.connectors.kafka.sink import KafkaSink
from onceward.connectors.kafka.transaction_coordinator import TransactionCoordinatorClient
from onceward.connectors.kafka.wire import Wire
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Observation
from onceward.core.errors import KafkaError
from onceward.testing.services import KafkaCluster

from .kafka_kit import Bench, bring_back, eventually, handle_of, lose_leader, numbered, rows

pytestmark = pytest.mark.kafka


def restarted(kafka):
    kafka.start()
    kafka.wait_ready()


@pytest.fixture
def short_calls(monkeypatch):
    """A call that no broker answers gives up sooner."""
    monkeypatch.setattr(commits, "CALL_SECONDS", 1.5)


@pytest.mark.usefixtures("short_calls")
def test_19_20_no_broker_is_retry_later_and_the_commit_succeeds_afterwards(bench, kafka):
    committable = bench.write(rows("x"))
    kafka.kill()
    short = TransactionCoordinatorClient(Wire({"bootstrap_servers": kafka.bootstrap_servers}), retry_seconds=1.0)
    assert short.end_many([handle_of(committable)], commit=True)[0] < 0
    outcome = bench.sink.commit(committable)
    assert outcome.status is CommitStatus.RETRY_LATER
    assert "NO_ANSWER" in outcome.detail
    assert bench.sink.abort(committable).status is AbortStatus.RETRY_LATER
    assert bench.sink.inspect_many([committable]) == [Observation.NO_ANSWER]
    restarted(kafka)
    eventually(lambda: bench.sink.commit(committable).settled, "committed after the restart", seconds=60)
    assert bench.values() == [b"x"]


@pytest.mark.usefixtures("short_calls")
def test_20_a_lost_answer_is_resolved_by_asking(bench, kafka):
    """The broker is frozen while the request is on its way: it may carry it out later."""
    committable = bench.write(rows("x"))
    bench.sink.inspect_many([committable])
    outcome = []
    kafka.pause()
    committing = threading.Thread(target=lambda: outcome.append(bench.sink.commit(committable)))
    committing.start()
    committing.join()
    assert outcome[0].status is CommitStatus.RETRY_LATER
    kafka.resume()
    eventually(lambda: bench.sink.commit(committable).settled, "settled after the pause")
    assert bench.sink.commit(committable).status is CommitStatus.ALREADY_COMMITTED
    assert bench.values() == [b"x"]


def test_a_broker_that_dies_while_rows_are_written_loses_none(bench, kafka):
    transaction = bench.sink.begin(bench.context())
    bench.sink.write(transaction, numbered(0, 5000))
    kafka.kill()
    bench.sink.write(transaction, numbered(5000, 5000))
    restarted(kafka)
    committable = bench.sink.pre_commit(transaction)
    eventually(lambda: bench.sink.commit(committable).settled, "committed")
    assert sorted(bench.values(), key=int) == [str(i).encode() for i in range(10_000)]


def swept(bench: Bench) -> bool:
    """Abort what lingers; whether nothing is left, as far as the coordinator can tell already."""
    try:
        for left in bench.sink.lingering(bench.scope):
            bench.sink.abort(left)
        return not list(bench.sink.lingering(bench.scope))
    except KafkaError:
        return False


def test_10_a_flush_that_cannot_end_fails_within_the_timeout(kafka, topic):
    bench = Bench(kafka.bootstrap_servers, topic(), transaction_timeout=4)
    transaction = bench.sink.begin(bench.context())
    bench.sink.write(transaction, numbered(0, 10))
    transaction.producer.flush(time.monotonic() + 10)
    kafka.kill()
    bench.sink.write(transaction, numbered(10, 10))
    began = time.monotonic()
    with pytest.raises(KafkaError):
        bench.sink.pre_commit(transaction)
    bench.sink.discard(transaction)
    assert time.monotonic() - began < 15
    restarted(kafka)
    eventually(lambda: swept(bench), "aborted as the next start would", seconds=60)
    bench.sink.commit(bench.write(rows("next"), epoch=1))
    assert bench.values() == [b"next"]


def test_the_pool_goes_on_after_the_broker_was_away(bench, kafka):
    bench.sink.commit(bench.write(rows("before")))
    bench.sink.warm_up(bench.context())
    kafka.kill()
    restarted(kafka)
    for epoch in range(1, 4):
        committable = bench.write(rows(str(epoch)), epoch=epoch)
        eventually(lambda c=committable: bench.sink.commit(c).settled, "committed")
    assert bench.values() == [b"before", b"1", b"2", b"3"]


def test_after_pre_commit_only_the_driver_needs_the_broker(bench, kafka, monkeypatch):
    """A begin without a broker fails, bounded, and says why; the next one succeeds."""
    monkeypatch.setattr(producer, "INIT_SECONDS", 5.0)
    kafka.kill()
    cluster_of(bench.sink.settings).wire.forget()
    began = time.monotonic()
    with pytest.raises(KafkaError, match=r"NO_ANSWER|_TIMED_OUT") as caught:
        bench.sink.begin(bench.context())
    assert caught.value.retryable
    assert time.monotonic() - began < 20
    restarted(kafka)
    bench.sink.commit(bench.write(rows("x")))
    assert bench.values() == [b"x"]


@pytest.fixture(scope="module")
def shared_pair(tmp_path_factory):
    with KafkaCluster(tmp_path_factory.mktemp("pair"), brokers=2, controllers=1) as cluster:
        yield cluster


@pytest.fixture
def apart(shared_pair):
    """A topic that lives on the second broker alone, while coordinators survive on the first."""
    second = shared_pair.brokers[2]
    second.start_again()
    topic = shared_pair.create(f"apart-{uuid.uuid4().hex[:8]}", replicas=[[2]])
    return shared_pair.direct, topic, second


@pytest.mark.slow
def test_nothing_is_committed_while_a_partition_has_no_leader(apart):
    """KAFKA-20734: the coordinator would skip the partition, and say committed."""
    servers, topic, second = apart
    bench = Bench(servers, topic)
    committable = bench.write(rows("x"))
    lose_leader(bench, second)
    assert bench.sink.commit(committable).status is CommitStatus.RETRY_LATER
    bring_back(bench, second)
    eventually(lambda: bench.sink.commit(committable).settled, "committed", seconds=60)
    assert bench.values() == [b"x"]


@pytest.mark.slow
def test_a_broker_that_came_after_the_client_had_looked_around_is_found(apart):
    """kafka-python looks for brokers every five minutes; a commit that waits for one must not wait so long."""
    servers, topic, second = apart
    bench = Bench(servers, topic)
    lose_leader(bench, second)
    client = TransactionCoordinatorClient(Wire({"bootstrap_servers": servers}))
    assert client.partitions_of([topic]) == []
    bring_back(bench, second)
    here = (topic, 0)
    eventually(lambda: client.describe_producers([here], retry_seconds=0)[here] is not None, "found", seconds=20)


@pytest.mark.slow
def test_rows_that_the_coordinator_forgot_to_commit_are_committed(apart):
    servers, topic, second = apart
    bench = Bench(servers, topic)
    committable = bench.write(rows("x"))
    lose_leader(bench, second)
    assert bench.client.end_many([handle_of(committable)], commit=True) == [0]
    eventually(lambda: bench.state_of(committable) == "CompleteCommit", "the coordinator calls it complete", seconds=60)
    assert bench.sink.commit(committable).status is CommitStatus.RETRY_LATER
    bring_back(bench, second)
    repeated = CommitStatus.ALREADY_COMMITTED
    eventually(lambda: bench.sink.commit(committable).status is repeated, "settled", seconds=60)
    assert bench.values() == [b"x"]


@pytest.mark.slow
def test_rows_that_the_coordinator_forgot_to_abort_stay_invisible_and_readers_go_on(apart):
    servers, topic, second = apart
    bench = Bench(servers, topic)
    hasty = Bench(servers, topic, transaction_timeout=6)
    hasty.pipeline, hasty.log = bench.pipeline, bench.log
    forgotten = hasty.write(rows("never"))
    lose_leader(bench, second)
    eventually(lambda: bench.state_of(forgotten) == "CompleteAbort", "timed out", seconds=60)
    bring_back(bench, second)
    for epoch in range(1, 4):
        committable = bench.write(rows(str(epoch)), epoch=epoch)
        eventually(lambda c=committable: bench.sink.commit(c).settled, "committed", seconds=60)
    found = [c.transaction for c in bench.sink.lingering(bench.scope)]
    anywhere = KafkaSink(bench.sink.name, bootstrap_servers=servers)  # rows name their topics
    assert [c.transaction for c in anywhere.lingering(bench.scope)] == found
    for left in bench.sink.lingering(bench.scope):
        assert left.transaction == forgotten.transaction
        assert bench.sink.abort(left).status is AbortStatus.ABORTED
    assert list(bench.sink.lingering(bench.scope)) == []
    assert bench.values() == [b"1", b"2", b"3"]


@pytest.mark.slow
def test_78_a_coordinator_that_moves_is_followed(pair):
    bench = Bench(pair.direct, "moving", create_topic=True)
    bench.sink.validate(rows("x").schema)
    committables = [bench.write(numbered(100 * n, 10), subtask=n) for n in range(6)]
    before = dict(bench.client._nodes)
    assert set(before.values()) == {1, 2}
    pair.brokers[2].kill()
    waiting = dict(enumerate(committables))

    def settle():
        for number, outcome in zip(list(waiting), bench.sink.commit_many(list(waiting.values())), strict=True):
            assert outcome.status is not CommitStatus.LOST
            assert outcome.status is not CommitStatus.UNKNOWN
            if outcome.settled:
                del waiting[number]
        return not waiting

    eventually(settle, "all committed by the coordinator that is left", seconds=60)
    assert set(bench.client._nodes.values()) == {1}
    assert len(bench.values()) == 60
