"""Which transactional ids the pool hands out: each proven free, kept within a session, and as few as can be."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from onceward.connectors.kafka import pool
from onceward.connectors.kafka.error_codes import Code
from onceward.connectors.kafka.settings import KafkaSettings
from onceward.connectors.kafka.sizes import Sizes
from onceward.connectors.kafka.transaction_state import Description, Handle, Prepared, listed_committable
from onceward.core.contract.names import PooledName, Scope, parse_pooled_name
from onceward.core.contract.transaction import ANY_EPOCH, WriteContext
from onceward.core.errors import FencedError, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterable

SCOPE = Scope("orders", "out", "0a0b0c0d")
COMMITTED, ABORTED = "CompleteCommit", "CompleteAbort"


class Cluster:
    """A coordinator that knows ids, and how the newest transaction of each has ended."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[int, str]] = {}
        self.transactions = self
        self.register_answers = 0
        self.dropped: list[str] = []

    def limits(self) -> Any:
        return SimpleNamespace(brokers=1)

    def describe(self, names: Iterable[str]) -> dict[str, Description]:
        return {name: self._describe(name) for name in names}

    def _describe(self, name: str) -> Description:
        epoch, state = self.states[name]
        return Description(0, state, Handle(name, 7, epoch, 1000 + epoch))

    def register(self, name: str) -> int:
        """InitProducerId."""
        epoch, _ = self.states[name]
        self.states[name] = epoch + 1, "Empty"
        return self.register_answers

    def open(self, _settings: KafkaSettings, name: PooledName, *, sizes: Sizes, **_: Any) -> Any:
        """TransactionalProducer.open."""
        epoch, _state = self.states.get(str(name), (-1, ""))
        self.states[str(name)] = epoch + 1, "Empty"
        return SimpleNamespace(name=name, begin=lambda: None, sizes=sizes, drop=lambda: self.dropped.append(str(name)))

    def end(self, name: PooledName, state: str) -> Prepared:
        epoch, _ = self.states[str(name)]
        self.states[str(name)] = epoch, state
        return Prepared(Handle(str(name), 7, epoch, 1000 + epoch), frozenset({("t", 0)}))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(pool, "cluster_of", lambda _: made)
    monkeypatch.setattr(pool, "TransactionalProducer", made)
    return made


def a_pool() -> pool.ProducerPool:
    return pool.ProducerPool(KafkaSettings("b:1"), SCOPE, 60_000)


def context(generation: int, epoch: int, session: str = "run", completed: int | None = None) -> WriteContext:
    known = epoch - 1 if completed is None else completed
    pipeline, sink, log = SCOPE
    return WriteContext(
        pipeline=pipeline,
        sink=sink,
        log=log,
        generation=generation,
        epoch=epoch,
        subtask=0,
        completed=known,
        session=session,
    )


def run(ids: pool.ProducerPool, cluster: Cluster, about: WriteContext, end: str = COMMITTED) -> str:
    """One subtask's epoch, as the sink runs it; the name that it got."""
    name = ids.take(about).name
    ids.keep(name, about, cluster.end(name, end))
    ids.warm_up(about)
    with ids._changed:
        ids._changed.wait_for(lambda: not ids._warming, timeout=10)
    return str(name)


def test_a_thousand_starts_of_a_session_leave_no_more_ids_behind_than_two(cluster: Cluster):
    ids = a_pool()
    names = [run(ids, cluster, context(3 * epoch, epoch)) for epoch in range(1000)]
    assert len(cluster.states) == 2
    assert set(names) == set(cluster.states)


def test_a_process_that_serves_one_epoch_makes_one_id(cluster: Cluster):
    for epoch in range(5):
        run(a_pool(), cluster, context(3 * epoch, epoch))
    assert len(cluster.states) == 5


def test_another_session_gets_other_names(cluster: Cluster):
    ids = a_pool()
    before = {run(ids, cluster, context(epoch, epoch, "one")) for epoch in range(4)} | set(cluster.states)
    after = {run(ids, cluster, context(epoch, epoch, "two")) for epoch in range(4, 8)}
    assert not before & after


@pytest.mark.parametrize("session", ["", "run"])
def test_without_a_session_each_start_gets_names_that_say_it(cluster: Cluster, session: str):
    """A sweeper that works while its subtasks do tells by the name that a transaction is of an older START."""
    ids = a_pool()
    run(ids, cluster, context(4, 0, session))
    for writer in (7, 11):
        names = [run(ids, cluster, context(writer, epoch, "")) for epoch in (writer, writer + 1, writer + 2)]
        assert len(set(names)) == 2
        assert {found.start for found in map(parse_pooled_name, names) if found is not None} == {writer}


def test_transactional_ids_of_a_run_with_many_starts_do_not_contain_the_start(cluster: Cluster):
    name = parse_pooled_name(run(a_pool(), cluster, context(7, 0)))
    assert name is not None
    assert name.start is None


@pytest.mark.parametrize(("session", "generation"), [("", 7), ("run", ANY_EPOCH)])
def test_a_listing_tells_the_start_that_the_name_tells(cluster: Cluster, session: str, generation: int):
    name = a_pool().take(context(7, 0, session)).name
    listed = listed_committable(cluster.end(name, "Ongoing"))
    assert listed is not None
    assert (listed.generation, listed.epoch) == (generation, ANY_EPOCH)


@pytest.mark.parametrize("end", [ABORTED, "Ongoing", "PrepareAbort"])
@pytest.mark.parametrize("session", ["", "run"])
def test_an_id_whose_transaction_was_not_committed_is_never_used_again(cluster: Cluster, session: str, end: str):
    """Neither by a later epoch, nor by a later START: a sweeper may still hold its handle. Scenario 79."""
    ids = a_pool()
    lost = run(ids, cluster, context(1, 0, session), end)
    later = [run(ids, cluster, context(1 + epoch // 3, epoch, session)) for epoch in range(1, 12)]
    assert lost not in later


def test_an_id_is_not_used_again_before_its_epoch_is_completed(cluster: Cluster):
    ids = a_pool()
    names = [run(ids, cluster, context(1, epoch, completed=-1)) for epoch in range(4)]
    assert len(set(names)) == 4


def test_from_its_second_transaction_on_an_id_is_beyond_producer_epoch_1(cluster: Cluster):
    """So whoever sees an abort at epoch 1 knows that it was the id's first transaction (ownership.never_committed)."""
    ids = a_pool()
    for epoch in range(6):
        about = context(epoch, epoch)
        name = ids.take(about).name
        used, _ = cluster.states[str(name)]
        assert used == 0 or used >= 2
        ids.keep(name, about, cluster.end(name, COMMITTED))


@pytest.mark.parametrize("rows", [True, False])
def test_80_an_id_is_retired_before_its_producer_epochs_are_used_up(cluster: Cluster, rows: bool):
    """With another producer id it would begin at epoch 0, as if nothing had ever been committed under it."""
    ids = a_pool()
    name = ids.take(context(0, 0)).name
    for epoch in range(2):
        cluster.states[str(name)] = pool.RETIRED_EPOCH - 2 + epoch, "Empty"
        ids.keep(name, context(epoch, epoch), cluster.end(name, COMMITTED) if rows else None)
        assert ids.take(context(epoch + 1, epoch + 1)).name == name
    ids.keep(name, context(2, 2), cluster.end(name, COMMITTED) if rows else None)
    assert cluster.states[str(name)][0] == pool.RETIRED_EPOCH
    assert ids.take(context(3, 3)).name != name


def test_an_id_that_cannot_be_brought_there_is_not_used_again(cluster: Cluster):
    ids = a_pool()
    first = run(ids, cluster, context(0, 0))
    cluster.register_answers = Code.NO_ANSWER
    assert run(ids, cluster, context(1, 1)) != first


def test_a_process_that_served_a_newer_start_refuses_an_older_one(cluster: Cluster):
    ids = a_pool()
    run(ids, cluster, context(5, 0))
    for late in (ids.take, ids.warm_up):
        with pytest.raises(FencedError, match="generation 5"):
            late(context(4, 0))


def test_subtasks_that_run_at_once_never_share_an_id(cluster: Cluster):
    ids = a_pool()
    for epoch in range(4):
        about = context(epoch, epoch)
        names = [ids.take(about).name for _ in range(3)]
        assert len(set(names)) == 3
        for name in names:
            ids.keep(name, about, cluster.end(name, COMMITTED))


@pytest.mark.usefixtures("cluster")
def test_what_was_made_ready_for_a_start_is_not_handed_out_under_the_next():
    """The thread that makes it may end after the pool has started over."""
    ids = a_pool()
    ids.take(context(1, 0, ""))
    before = ids._unique
    ids.take(context(2, 0, ""))
    late = SimpleNamespace(name=PooledName(SCOPE, before, 9, 1), begin=lambda: None)
    ids._open = lambda _: late  # type: ignore[method-assign]
    ids._warm(pool.Offer(iter(())), before)
    del ids._open
    assert ids.take(context(2, 1, "")) is not late


def test_an_id_that_comes_back_after_the_pool_started_over_is_not_used_again(cluster: Cluster):
    ids = a_pool()
    late = context(1, 0, "")
    name = ids.take(late).name
    ids.take(context(2, 0, ""))
    ids.keep(name, late, cluster.end(name, COMMITTED))
    assert str(name) not in [run(ids, cluster, context(2, epoch, "")) for epoch in range(1, 4)]


def test_a_take_does_not_wait_for_a_thread_that_could_not_be_started(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    """Making a producer ready ahead of time is an optimization: where there is no thread, the next `take` makes one."""
    ids = a_pool()
    run(ids, cluster, context(1, 0))
    last = context(1, 1)
    ids.keep(ids.take(last).name, last, None)

    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", full)
        ids.warm_up(last)
    assert not ids._warming
    assert ids.take(context(1, 2)) is not None


def test_a_take_makes_its_own_producer_if_none_is_made_ready_in_time(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pool, "INIT_SECONDS", 0.01)
    ids = a_pool()
    ids.take(context(1, 0))
    ids._warming = 1  # and its thread never ends
    ids.take(context(1, 1))
    assert len(cluster.states) == 2


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("newer", [{"generation": 7}, {"generation": 7, "session": "run"}])
def test_an_attempt_whose_broker_answers_late_gets_a_name_of_its_own_start(newer: dict[str, Any]):
    """A sweeper of the newer START that works while its subtasks do finds by the name what an older START made."""
    ids = a_pool()
    opened = ids._open

    def late(*offer: Any) -> Any:
        ids._open = opened  # type: ignore[method-assign]
        ids.take(context(epoch=1, **{"session": "", **newer}))
        return opened(*offer)

    ids._open = late  # type: ignore[method-assign]
    name = ids.take(context(3, 0, "")).name
    assert name.start == 3


@pytest.mark.usefixtures("cluster")
def test_an_attempt_that_waited_while_a_newer_start_came_is_fenced(monkeypatch: pytest.MonkeyPatch):
    """It must not get a producer that was made ready for the newer one."""
    ids = a_pool()
    newer = SimpleNamespace(name=None, begin=lambda: None)

    def wait_for(*_: Any) -> None:
        monkeypatch.undo()
        ids.warm_up(context(7, 1, ""))
        ids._ready.append(newer)  # type: ignore[arg-type]

    monkeypatch.setattr(ids._changed, "wait_for", wait_for)
    with pytest.raises(FencedError, match="generation 7"):
        ids.take(context(3, 0, ""))


def test_a_producer_that_was_ready_for_too_long_is_dropped_and_its_id_is_used(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """A firewall may have dropped its connections, and the coordinator may have forgotten its id."""
    now = [1000.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])
    ids = a_pool()
    names = []
    for epoch, idle in enumerate([0.0, 1.0, pool.READY_SECONDS - 1, pool.READY_SECONDS + 1, 400.0]):
        now[0] += idle
        names.append(run(ids, cluster, context(epoch, epoch)))
        assert len(cluster.dropped) == max(0, epoch - 2)
    assert set(names) == set(cluster.states)
    assert len(cluster.states) == 2


@pytest.mark.parametrize("idle", [pool.TRUSTED_SECONDS + 1, pool.READY_SECONDS - 1, 2 * pool.READY_SECONDS])
def test_an_id_that_the_coordinator_forgot_meanwhile_is_not_used(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, idle: float
):
    now = [1000.0]
    monkeypatch.setattr(pool.time, "monotonic", lambda: now[0])
    ids = a_pool()
    for epoch in range(2):
        run(ids, cluster, context(epoch, epoch))
    forgotten = set(cluster.states)
    monkeypatch.setattr(cluster, "_describe", lambda _: Description(Code.TRANSACTIONAL_ID_NOT_FOUND))
    now[0] += idle
    assert str(ids.take(context(2, 2)).name) not in forgotten
    assert len(cluster.dropped) == 1


def test_a_producer_that_is_ready_for_other_sizes_is_not_handed_out(cluster: Cluster):
    ids = a_pool()
    for epoch in range(3):
        run(ids, cluster, context(epoch, epoch))
    small = Sizes(batch=1000)
    assert ids.take(context(3, 3), small).sizes == small
    assert len(cluster.dropped) == 1


@pytest.mark.parametrize("passing", [True, False])
def test_an_id_whose_coordinator_is_silent_leaves_time_for_another_one(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, passing: bool
):
    """Each id has its own coordinator; a driver that writes an epoch itself has no task to try again."""
    tried: list[tuple[str, float]] = []
    opened = cluster.open

    def silent_at_first(settings: KafkaSettings, name: PooledName, *, seconds: float, **more: Any) -> Any:
        tried.append((str(name), seconds))
        if len(tried) == 1:
            error = KafkaError("no answer")
            error.retryable = passing
            raise error
        return opened(settings, name, **more)

    monkeypatch.setattr(cluster, "open", silent_at_first)
    if not passing:
        with pytest.raises(KafkaError, match="no answer"):
            a_pool().take(context(7, 0))
        return
    name = str(a_pool().take(context(7, 0)).name)
    assert [one for one, _ in tried] == [tried[0][0], name]
    assert tried[0][0] != name
    assert sum(seconds for _, seconds in tried) == pool.INIT_SECONDS
