"""The pool of ids: never two transactions on one instance, no id before its time, and nothing leaks (82)."""

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Producer

from onceward.connectors.kafka.ownership import never_committed
from onceward.connectors.kafka.pool import RETIRED_EPOCH, Former, pool_of
from onceward.connectors.kafka.transaction_coordinator import InitProducerIdRequest
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.names import NOTHING, PooledName
from onceward.core.contract.transaction import CommitStatus
from onceward.core.errors import EpochConflictError

from .kafka_kit import handle_of, numbered, rows

pytestmark = pytest.mark.kafka
EPOCHS = 1000
FORKING = """
import os, signal, sys
import pyarrow as pa
from onceward.core.contract.transaction import WriteContext
from onceward.connectors.kafka.sink import KafkaSink
servers, topic, pipeline = sys.argv[1:]
sink = KafkaSink("out", bootstrap_servers=servers, topic=topic)
def write():
    context = WriteContext(pipeline=pipeline, sink="out", log="l", generation=0, epoch=0, subtask=0, completed=-1)
    transaction = sink.begin(context)
    sink.write(transaction, pa.record_batch({"value": ["x"]}))
    print(sink.pre_commit(transaction).transaction, flush=True)
write()
child = os.fork()
if child == 0:
    signal.alarm(60)
    write()
    os._exit(0)
os.waitpid(child, 0)
"""


def pool(bench):
    return pool_of(bench.sink.settings, bench.scope, round(bench.sink.transaction_timeout * 1000))


def run(bench, epoch, completed=None, subtask=0):
    """One epoch as the drivers run it."""
    context = bench.context(epoch, subtask=subtask, completed=epoch - 1 if completed is None else completed)
    part = SubtaskEpoch(bench.sink, context)
    part.write(rows(f"{epoch}-{subtask}"))
    return part.pre_commit()


def test_a_stale_commit_ends_a_newer_transaction_if_an_instance_is_used_again(bench):
    """The hazard itself: why there is a pool of instances that are used once."""
    config = {"bootstrap.servers": bench.servers, "transactional.id": f"reused-{bench.log}", "log_level": 0}
    producer = Producer(config)
    producer.init_transactions()
    name = config["transactional.id"]
    producer.begin_transaction()
    producer.produce(bench.topic, b"first")
    producer.flush()
    first = bench.describe(name).handle
    bench.client.end_many([first], commit=True)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.produce(bench.topic, b"undecided")
    producer.flush()
    assert bench.client.end_many([first], commit=True) == [0]
    assert bench.values() == [b"first", b"undecided"]


def test_97_a_stale_commit_is_harmless_with_the_pool(bench):
    first = run(bench, 0)
    bench.sink.commit(first)
    newer = run(bench, 1)
    assert newer.transaction == first.transaction
    assert bench.client.end_many([handle_of(first)], commit=True) == [90]
    assert bench.sink.commit(first).status is CommitStatus.UNKNOWN
    assert bench.sink.abort(first).status is not CommitStatus.COMMITTED
    assert bench.values() == [b"0-0"]
    bench.sink.commit(newer)


def test_a_stale_commit_is_not_sent_if_the_description_shows_another_transaction(bench):
    """Even with one instance used twice, the start time tells the transactions apart."""
    reused = str(PooledName(bench.scope, "0" * 12, 7))
    config = {"bootstrap.servers": bench.servers, "transactional.id": reused, "log_level": 0}
    producer = Producer(config)
    producer.init_transactions()
    producer.begin_transaction()
    committable = bench.write(rows("pattern"))
    producer.produce(bench.topic, b"newer")
    producer.flush()
    newer = bench.describe(config["transactional.id"]).open
    stale = newer._replace(handle=newer.handle._replace(started_ms=newer.handle.started_ms - 1))
    forged = msgspec.structs.replace(committable, transaction=stale.handle.transactional_id, handle=stale.to_json())
    assert bench.sink.commit(forged).status is CommitStatus.UNKNOWN
    assert bench.describe(config["transactional.id"]).state == "Ongoing"


def test_two_ids_take_turns(bench):
    names = []
    for epoch in range(7):
        committable = run(bench, epoch)
        names.append(committable.transaction)
        bench.sink.commit(committable)
    assert len(set(names)) == 2
    assert names[1::2] == [names[1]] * 3
    assert set(bench.producers()) == set(names)


def test_98_an_id_is_not_made_ready_before_its_epoch_is_completed(bench):
    """The decision for epoch 0 stands, COMPLETED is not durable: the id must not be initialised again."""
    waiting = [run(bench, epoch, completed=-1) for epoch in range(5)]
    assert len({c.transaction for c in waiting}) == 5
    assert [o.status for o in bench.sink.commit_many(waiting)] == [CommitStatus.COMMITTED] * 5
    assert len(bench.values()) == 5


def test_the_id_of_a_lost_attempt_is_never_used_again(bench):
    """What it left behind may still be open in some partition, and would become visible with the id's next commit."""
    lost = run(bench, 0)
    again = bench.write(rows("retry"), epoch=0, attempt=1)
    assert again.transaction != lost.transaction
    bench.sink.commit(again)
    bench.sink.abort(lost)
    later = [run(bench, epoch) for epoch in (1, 2, 3, 4)]
    bench.sink.commit_many(later)
    assert lost.transaction not in {committable.transaction for committable in later}
    assert bench.values() == [b"retry", b"1-0", b"2-0", b"3-0", b"4-0"]


def test_the_id_of_a_discarded_attempt_is_never_used_again(bench):
    """Scenario 79."""
    transaction = bench.sink.begin(bench.context(0))
    bench.sink.write(transaction, rows("never"))
    bench.sink.discard(transaction)
    assert run(bench, 0).transaction != str(transaction.producer.name)


def test_a_newer_writer_uses_names_that_no_older_one_used(bench):
    """A name says under which START it is used, so that a sweeper at work can tell an older writer's."""
    old = bench.write(rows("old"), generation=0)
    new = bench.write(rows("new"), generation=1)
    assert old.transaction.rsplit(":", 1)[0] != new.transaction.rsplit(":", 1)[0]
    assert {c.generation for c in bench.sink.lingering(bench.scope)} == {0, 1}
    assert bench.sink.commit(old).status is CommitStatus.COMMITTED
    bench.sink.abort(new)


def test_names_go_on_from_one_start_to_the_next_within_a_session(bench):
    """As the Spark formats run: one START per epoch, and a run of the query for all of them."""
    names = []
    for epoch in range(10):
        part = SubtaskEpoch(bench.sink, bench.context(epoch, generation=3 * epoch, session="run"))
        part.write(rows(str(epoch)))
        names.append(part.pre_commit())
        assert bench.sink.commit(names[-1]).status is CommitStatus.COMMITTED
    assert len({c.transaction for c in names}) == 2
    assert bench.producers() == sorted({c.transaction for c in names})
    assert len(bench.values()) == 10


def test_93_a_sweeper_that_sleeps_holds_no_handle_of_an_id_that_goes_on(bench):
    """It listed a lost attempt's transaction and wakes three STARTs later, with nothing left to look at."""
    pipeline = {"session": "run"}
    lost = bench.write(rows("lost"), generation=0, **pipeline)
    [held] = bench.sink.lingering(bench.scope)
    assert held.identity() == lost.identity()
    for epoch in range(1, 6):
        committable = bench.write(rows(str(epoch)), epoch, generation=epoch, **pipeline)
        assert committable.transaction != lost.transaction
        bench.client.fence(*handle_of(lost)[:3])
        assert bench.sink.commit(committable).status is CommitStatus.COMMITTED
    assert bench.values() == [str(epoch).encode() for epoch in range(1, 6)]


def test_subtasks_of_one_process_have_ids_of_their_own(bench):
    committables = [run(bench, 0, subtask=n) for n in range(3)]
    assert len({c.transaction for c in committables}) == 3
    assert all(o.settled for o in bench.sink.commit_many(committables))
    later = [run(bench, 1, subtask=n) for n in range(3)]
    assert all(o.settled for o in bench.sink.commit_many(later))
    assert len(bench.values()) == 6


def test_the_next_producer_is_ready_when_the_next_epoch_begins(bench):
    for epoch in range(2):
        bench.sink.commit(run(bench, epoch))
    with pool(bench)._changed:
        pool(bench)._changed.wait_for(lambda: not pool(bench)._warming, timeout=20)
    began = time.monotonic()
    transaction = bench.sink.begin(bench.context(2))
    assert time.monotonic() - began < 0.02
    bench.sink.discard(transaction)


def test_a_forked_child_makes_names_of_its_own(bench):
    done = subprocess.run(
        [sys.executable, "-c", FORKING, bench.servers, bench.topic, bench.pipeline],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    names = done.stdout.split()
    assert len(names) == 2, done.stderr
    assert all(name.startswith(f"onceward:1:{bench.pipeline}:out:") for name in names)
    assert len({name.split(":")[6] for name in names}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [200, pytest.param(EPOCHS, marks=pytest.mark.nightly)])
def test_82_many_epochs_leak_no_threads_no_sockets_no_ids(bench, epochs):
    for epoch in range(20):
        bench.sink.commit(run(bench, epoch))
    settled, began = footprint(), time.monotonic()
    for epoch in range(20, 20 + epochs):
        committable = run(bench, epoch)
        status, expected = bench.sink.commit(committable).status, {CommitStatus.COMMITTED}
        while status is CommitStatus.RETRY_LATER:  # a busy broker may not answer in time
            expected.add(CommitStatus.ALREADY_COMMITTED)
            status = bench.sink.commit(committable).status
        assert status in expected
    print(f"{epochs} epochs in {time.monotonic() - began:.1f} s: {settled} -> {footprint()}")
    threads, files, kilobytes = (after - before for before, after in zip(settled, footprint(), strict=True))
    assert threads <= 8
    assert files <= 8
    assert kilobytes < 30_000
    assert len(bench.producers()) == 2
    assert len(bench.values()) == 20 + epochs


def footprint():
    gc.collect()
    me = Path("/proc/self")
    resident = next(int(line.split()[1]) for line in (me / "status").read_text().splitlines() if "VmRSS" in line)
    return len(list((me / "task").iterdir())), len(list((me / "fd").iterdir())), resident


def test_pre_commit_costs_little_beside_the_flush(bench):
    """Goal: under 30 ms for asking the handle and letting the producer go."""
    bench.sink.commit(run(bench, 0))
    spent = []
    for epoch in range(1, 12):
        transaction = bench.sink.begin(bench.context(epoch))
        bench.sink.write(transaction, numbered(0, 1000))
        transaction.producer.flush(1e12)
        began = time.monotonic()
        committable = bench.sink.pre_commit(transaction)
        spent.append(time.monotonic() - began)
        bench.sink.commit(committable)
    assert sorted(spent)[len(spent) // 2] < 0.03


def test_threads_that_write_at_once_do_not_disturb_each_other(bench):
    found, failures = [], []

    def work(subtask):
        try:
            for epoch in range(4):
                committable = run(bench, epoch, subtask=subtask)
                found.append(committable)
                bench.sink.commit(committable)
        except Exception as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len({c.identity() for c in found}) == 16
    assert len(bench.values()) == 16


def raised(bench, name, times):
    """Raise an id's producer epoch as often, pipelined; the codes of the answers."""
    nodes, _ = bench.client._find([name], 5)
    request = InitProducerIdRequest(
        version=4, transactional_id=name, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    return {answer.result for answer in bench.client._wire.exchange([(nodes[name], request)] * times, seconds=60)}


@pytest.mark.slow
def test_80_an_id_is_retired_before_its_producer_epochs_are_used_up(bench):
    """The producer epoch is 16 bits; after the last one the coordinator gives the id another producer id, at epoch 0.

    Then it would look as if nothing had ever been committed under it, and another decision log would be let in.
    """
    first = run(bench, 0)
    assert bench.sink.commit(first).status is CommitStatus.COMMITTED
    name = first.transaction
    while (missing := RETIRED_EPOCH - 3 - bench.describe(name).handle.producer_epoch) > 0:
        assert raised(bench, name, min(missing, 2000)) == {0}
    waiting, done = pool(bench), [first]
    for ready in waiting._ready:
        ready.drop()
    waiting._ready.clear()
    waiting._former = {PooledName(bench.scope, waiting._unique, 0, 0): Former(0, 0, None)}
    for epoch in range(1, 13):
        prepared = run(bench, epoch)
        # the former transaction's late commit
        assert bench.sink.commit(done[-1]).status in (CommitStatus.ALREADY_COMMITTED, CommitStatus.UNKNOWN)
        assert bench.values() == [f"{n}-0".encode() for n in range(epoch)]
        assert bench.sink.commit(prepared).status is CommitStatus.COMMITTED
        done.append(prepared)
    used = [handle_of(committable) for committable in done if committable.transaction == name]
    assert len({handle.producer_id for handle in used}) == 1
    assert RETIRED_EPOCH - 3 < max(handle.producer_epoch for handle in used) <= RETIRED_EPOCH
    assert len({committable.transaction for committable in done}) > 2
    assert not never_committed(bench.describe(name))
    with pytest.raises(EpochConflictError):
        bench.sink.ledger().check_claim(bench.scope._replace(log="ffffffff"), NOTHING)
