# ruff: noqa: ARG002 - overridden methods keep their signatures
"""The real KafkaSink, its pool of ids, its commits, claims and verdicts, on the simulated broker.

Simulated are the two clients only: the coordinator's (confluent-kafka cannot end a transaction by handle, so there is
one of the project's own) and the producer.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import msgspec

from onceward.connectors.kafka import commits, pool
from onceward.connectors.kafka import error_codes as kafka_errors
from onceward.connectors.kafka import sink as sink_module
from onceward.connectors.kafka.error_codes import Code
from onceward.connectors.kafka.sink import KafkaSink, KafkaTransaction
from onceward.connectors.kafka.sizes import Sizes
from onceward.connectors.kafka.transaction_state import Description, Handle
from onceward.core.contract.transaction import ANY_EPOCH, AbortOutcome, AbortStatus, Committable
from onceward.core.errors import KafkaError

from .audit import Txn, hash_of, readable
from .broker import CONCURRENT, LAST_EPOCH, NONE, NOT_FOUND, ONGOING, PARTITIONS
from .world import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from onceward.connectors.kafka.transaction_state import Partition
    from onceward.core.contract.names import PooledName, Scope
    from onceward.core.contract.transaction import CommitOutcome, Observation

    from .audit import Audit
    from .broker import Broker
    from .world import World

TOPIC = "topic"
ROUNDS = 3
"""How often a call is repeated before it answers with the last code it got."""
FOR_EVER = 1e9
TIMEOUT = 120
"""Ticks that the coordinator calls its transactions' timeout: silent partitions are not waited for after half of it."""


class SimulatedClient:
    """TransactionCoordinatorClient: bounded in time, answers with codes, loses answers."""

    def __init__(self, world: World, broker: Broker) -> None:
        self._world = world
        self._broker = broker
        self._looked_up = 0

    @property
    def _is_at_deposed(self) -> bool:
        return self._broker.has_deposed and self._looked_up < self._broker.depositions

    def look_up_again(self, _ids: Iterable[str] = ()) -> None:
        """FindCoordinator: the broker that is asked may not have heard of the successor yet."""
        if not self._broker.finds_deposed:
            self._looked_up = self._broker.depositions

    def _changing(self, call: Callable[[], int]) -> Callable[[], int]:
        """A request that a deposed coordinator refuses, so that it is looked up again."""

        def called() -> int:
            if not self._is_at_deposed:
                return call()
            self.look_up_again()
            return Code.NOT_COORDINATOR

        return called

    def within(self, _seconds: float) -> SimulatedClient:
        return self

    def end_many(self, handles: Sequence[Handle], *, commit: bool) -> list[int]:
        """EndTxn for each."""
        return [self.end_one(handle, commit=commit) for handle in handles]

    def end_one(self, handle: Handle, *, commit: bool) -> int:
        """EndTxn."""
        what = f"{'commit' if commit else 'abort'} {handle.transactional_id[-6:]} epoch {handle.producer_epoch}"
        return self._patiently(what, self._changing(lambda: self._broker.end(*handle[:3], commit=commit)))

    def fence(self, transactional_id: str, producer_id: int, producer_epoch: int, *, once: bool = False) -> int:
        """InitProducerId by handle; 51 is an answer here."""
        what = f"fence {transactional_id[-6:]} epoch {producer_epoch}"
        fence = partial(self._broker.fence, transactional_id, producer_id, producer_epoch)
        return self._once(what, self._changing(fence))

    def register(self, transactional_id: str) -> int:
        """InitProducerId of a name that only serves as a note."""
        return self._once(f"register {transactional_id[-6:]}", lambda: self._broker.init(transactional_id) and NONE)

    def describe(self, ids: Iterable[str], *, topics: Collection[str] = ()) -> dict[str, Description]:
        """State and handle of each."""
        return {name: self._describe(name) for name in list(ids)}

    def _describe(self, name: str) -> Description:
        code = self._patiently(f"describe {name[-6:]}", lambda: NONE)
        known = self._broker.look(name)
        self._world.disturbed += self._is_at_deposed
        if self._is_at_deposed and (known := self._broker.look_at_deposed(name)) is None:
            return Description(Code.NO_ANSWER)
        if code != NONE or known is None:
            return Description(code or NOT_FOUND)
        handle = Handle(name, known.pid, known.epoch, known.started)
        timeout = self._broker.timeout or TIMEOUT
        return Description(NONE, known.state, handle, timeout, frozenset((f"{TOPIC}-{n}", n) for n in known.partitions))

    def list_transactions(self, states: Collection[str] = (), *, prefix: str = "") -> list[str]:
        """All ids in these states."""
        if self._once("list transactions", lambda: NONE) != NONE:
            raise KafkaError("no answer")
        found = [self._broker.look(name) for name in self._broker.ids if name.startswith(prefix)]
        return [k.name for k in found if k is not None and (not states or k.state in states)]

    def describe_producers(
        self, partitions: Collection[Partition], *, retry_seconds: float | None = None
    ) -> dict[Partition, dict[tuple[int, int], int] | None]:
        """Whose transactions the partitions have open, as their leaders see it."""
        if self._once("describe producers", lambda: NONE) != NONE:
            return dict.fromkeys(partitions)
        return {at: self._broker.open_producers(at[1]) for at in sorted(partitions)}

    def running_longer(self, ids: Collection[str], milliseconds: int) -> set[str]:
        """Whose transactions have been open for longer, in ticks."""
        if self._once("list by age", lambda: NONE) != NONE:
            return set()
        found = [known for name in ids if (known := self._broker.look(name)) is not None]
        return {k.name for k in found if k.state == ONGOING and self._world.tick - k.started > milliseconds}

    def topic_ids(self, topics: Collection[str], *, everywhere: bool = False) -> dict[str, str | None]:
        """Each partition is of a topic of its own."""
        if self._once("topic ids", lambda: NONE) != NONE:
            return {}
        return {topic: self._broker.partitions[int(topic[-1])].topic_id for topic in sorted(topics)}

    def partitions_of(self, topics: Collection[str]) -> list[Partition]:
        """Partitions that have a leader."""
        return [(f"{TOPIC}-{n}", n) for n in range(PARTITIONS) if topics and not self._broker.leaderless(n)]

    def leaderless_of(self, topics: Collection[str]) -> list[Partition]:
        """Partitions that have no leader, but a topic."""
        there = [n for n in range(PARTITIONS) if self._broker.partitions[n].topic_id is not None]
        return [(f"{TOPIC}-{n}", n) for n in there if topics and self._broker.leaderless(n)]

    def partitions_everywhere(self, handle: Handle) -> set[Partition] | None:
        """What the coordinator and a deposed one know."""
        if self._once("describe everywhere", lambda: NONE) != NONE:
            return None
        known = self._broker.look(handle.transactional_id)
        if known is None or (known.pid, known.epoch) != (handle.producer_id, handle.producer_epoch):
            return set()
        return {(f"{TOPIC}-{n}", n) for n in known.partitions}

    def write_marker(
        self, partition: Partition, producer: tuple[int, int], coordinator_epoch: int, *, commit: bool
    ) -> int:
        """End a transaction in one partition."""
        return self._once(
            f"marker {'commit' if commit else 'abort'} {producer} in {partition[1]} of {coordinator_epoch}",
            lambda: self._broker.write_marker(partition[1], producer, commit=commit),
        )

    def _patiently(self, what: str, call: Callable[[], int]) -> int:
        code = int(Code.NO_ANSWER)
        for number in range(ROUNDS):
            if number:
                self._world.sleep()
            code = self._once(what, call)
            if code not in (Code.NO_ANSWER, Code.NOT_COORDINATOR, CONCURRENT):
                break
        return code

    def _once(self, what: str, call: Callable[[], int]) -> int:
        fault = fault_at(self._world, self._broker, what)
        if fault is None:
            return call()
        if fault == 1:
            call()
        elif fault == 2:
            self._world.later(what, call)
        return Code.NO_ANSWER


def fault_at(world: World, broker: Broker, what: str) -> int | None:
    """A point, and which fault the call there has: 0 not done, 1 answer lost, 2 arrives late; None for none."""
    world.point(what)
    if broker.is_away:
        return 0
    task = world.current
    if task is None or not task.target_faults:
        return None
    fault = task.target_faults.pop() % 3
    world.excuses += 1
    world.disturbed += 1
    world.note(f"{what} gets no answer ({('not done', 'answer lost', 'arrives late')[fault]})")
    return fault


class SimulatedProducer:
    """TransactionalProducer."""

    too_large = False

    def __init__(self, world: World, broker: Broker, name: PooledName, sizes: Sizes | None) -> None:
        self._world = world
        self._broker = broker
        self.name = name
        self.sizes = sizes
        self.rows = 0
        self.txn: Txn | None = None
        self.added: set[int] = set()
        fault = fault_at(world, broker, f"init {str(name)[-6:]}")
        if fault == 0:
            raise KafkaError("no answer")
        known = broker.ids.get(str(name))
        if known is not None and known.txn is not None and known.txn.state != "committed":
            raise Violation("ids", f"used again, though a sweeper may hold its handle: {known.txn}")
        self.key = broker.init(str(name)).key
        if fault is not None:
            raise KafkaError("no answer")

    def begin(self) -> None:
        """Local."""

    def write(self, rows: list[int]) -> None:
        """Produce."""
        assert self.txn is not None
        for row in rows:
            fault = fault_at(self._world, self._broker, f"produce {self.key[0][-6:]} {row}")
            if fault == 0 or not self._broker.produce(self.key, self.txn, row, self.added):
                raise KafkaError("delivery failed, or fenced")
            if fault is not None:
                raise KafkaError("delivery report is lost")
            self.rows += 1

    def flush(self, _deadline: float) -> None:
        """All delivered."""
        self._world.point(f"flush {self.key[0][-6:]}")

    def drop(self) -> None:
        """Leave the transaction as it is."""

    def rollback(self) -> None:
        """abort_transaction, if the broker answers."""
        if fault_at(self._world, self._broker, f"roll back {self.key[0][-6:]}") is None:
            self._broker.end(*self.key, commit=False, cause="discard")


class KafkaLikeSink(KafkaSink):
    """The real sink on simulated clients."""

    client_class = SimulatedClient

    def __init__(self, name: str, world: World, audit: Audit, broker: Broker) -> None:
        timeout = FOR_EVER if broker.timeout is None else broker.timeout
        super().__init__(name, bootstrap_servers="simulated:9092", topic=TOPIC, transaction_timeout=timeout)
        self.proof = False  # rows are numbers, which the audit hashes
        self.world = world
        self.audit = audit
        self.broker = broker
        self.client = self.client_class(world, broker)

    def validate(self, schema: Any) -> None:
        """Its columns fit."""

    def _sizes(self, topics: Iterable[str], *, anew: bool = False) -> Sizes:
        return Sizes()

    def write(self, transaction: KafkaTransaction, batch: Any) -> None:
        """As the real one, with rows that are numbers."""
        producer: Any = transaction.producer
        if producer.txn is None:
            c = transaction.context
            txn = Txn(c.pipeline, c.sink, c.log, c.generation, c.epoch, c.subtask, c.attempt, name=str(producer.name))
            producer.txn = self.audit.on_begin(txn)
        producer.write(list(batch))

    def pre_commit(self, transaction: KafkaTransaction) -> Committable:
        """As the real one; the audit learns which transaction it truly is."""
        committable = super().pre_commit(transaction)
        txn: Txn = self.broker.ids[committable.transaction].txn  # type: ignore[assignment]
        committable = msgspec.structs.replace(committable, handed=hash_of(txn.rows), proof=readable(txn.rows))
        if txn.state == "open":
            txn.state = "prepared"
        self.audit.on_prepared(committable.identity(), txn)
        return committable

    def commit_many(self, committables: Sequence[Committable]) -> list[CommitOutcome]:
        """As the real one. The window that its documentation leaves open is closed to the simulated operator."""
        self.broker.committing += 1
        try:
            return super().commit_many(committables)
        finally:
            self.broker.committing -= 1

    def inspect_many(self, committables: Sequence[Committable]) -> list[Observation]:
        """As the real one; the audit learns that somebody asked."""
        for committable in committables:
            if (txn := self.audit.prepared.get(committable.identity())) is not None:
                txn.asked = True
        return super().inspect_many(committables)

    def lingering(self, scope: Scope) -> list[Committable]:
        """As the real one. A sweeper that is at work tells its own transactions by the START that a name tells."""
        found = list(super().lingering(scope))
        for committable in found:
            txn = self.broker.ids[committable.transaction].txn
            if txn is not None and committable.generation not in (ANY_EPOCH, txn.writer):
                raise Violation("names", f"listed as of START {committable.generation}: {txn}")
        return found

    def abort(self, committable: Committable) -> AbortOutcome:
        """As the real one; what it says it has aborted must be so in each of its partitions, and stay so."""
        outcome = super().abort(committable)
        if outcome.status is AbortStatus.ABORTED and committable.handle:
            producer = committable.handle["producer_id"], committable.handle["producer_epoch"]
            numbers = [number for found in committable.handle["partitions"].values() for number in found]
            if self.broker.holds(producer, numbers):
                raise Violation("sweep", f"said to be aborted, and open in a partition: {committable.transaction}")
            self.broker.swept.add((committable.transaction, *producer))
        return outcome

    def _pool(self, scope: Scope) -> pool.ProducerPool:
        assert self.world.current is not None
        memory = self.world.current.process.memory
        if scope not in memory:
            memory[scope] = pool.ProducerPool(self.settings, scope, 0)
        found: pool.ProducerPool = memory[scope]
        return found

    @property
    def _client(self) -> Any:
        return self.client


class _Threading:
    """What the pool uses of threading: here every thread is a task of the world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Condition(self) -> _Condition:  # noqa: N802 - threading's name
        """A condition that waits in the world."""
        return _Condition(self._world)

    def Thread(  # noqa: N802 - threading's name
        self, *, target: Callable[..., object], args: tuple[Any, ...], name: str, daemon: bool
    ) -> _Thread:
        """A thread of the running process."""
        assert daemon
        return _Thread(self._world, lambda: target(*args), name)


class _Thread:
    def __init__(self, world: World, body: Callable[[], object], name: str) -> None:
        self._world, self._body, self._name = world, body, name

    def start(self) -> None:
        """Goes on when its turn comes."""
        assert self._world.current is not None
        self._world.start(self._world.current.process, self._name, self._body, role="warm-up")


class _Condition:
    def __init__(self, world: World) -> None:
        self._world = world

    def __enter__(self) -> None:
        """Nothing runs between two points."""

    def __exit__(self, *_: object) -> None:
        """See __enter__."""

    def wait_for(self, until: Callable[[], object], _timeout: float) -> None:
        """Let others go on; every thread of the world ends before a timeout."""
        self._world.wait(lambda: bool(until()))

    def notify_all(self) -> None:
        """The world looks by itself."""


@contextmanager
def kafka_in(world: World, broker: Broker) -> Iterator[None]:
    """Threads, randomness, pauses and clients of the Kafka connector are the world's."""

    def rounds(_seconds: float) -> Iterator[int]:
        for number in range(ROUNDS * 4):
            if number:
                world.sleep()
            yield number

    def opened(_settings: Any, name: PooledName, sizes: Sizes | None = None, **_: Any) -> SimulatedProducer:
        return SimulatedProducer(world, broker, name, sizes)

    cluster = SimpleNamespace(
        limits=lambda **_: SimpleNamespace(brokers=1), transactions=SimulatedClient(world, broker)
    )
    with (
        patch.object(pool, "threading", _Threading(world)),
        patch.object(pool, "secrets", SimpleNamespace(token_hex=lambda _: world.token()[:8])),
        patch.object(pool, "time", SimpleNamespace(monotonic=lambda: world.tick)),
        patch.object(pool, "RETIRED_EPOCH", LAST_EPOCH - 1),
        patch.object(pool, "cluster_of", lambda _: cluster),
        patch.object(pool, "TransactionalProducer", SimpleNamespace(open=opened)),
        patch.object(commits, "Retries", rounds),
        patch.object(kafka_errors, "Retries", rounds),
        patch.object(sink_module, "Retries", rounds),
        patch.object(commits, "PROOF_SECONDS", 0),
    ):
        yield
