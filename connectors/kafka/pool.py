"""The pool of transactional ids and ready producers of one process, for one sink of one pipeline.

Why it is safe to use an id again (the numbers are those of ARCHITECTURE.md):

1. One producer instance per transaction. Initialising the id again raises the producer epoch, so a late EndTxn of the
   id's former transaction is refused (invariants 1 and 6).
2. An id is initialised again only when `WriteContext.may_reuse` says that its former transaction has ended: its epoch
   has a durable COMPLETED entry. Initialising aborts what is open under the id, so anything less could abort a decided
   transaction (log rule 3).
3. And only when the coordinator shows that the former transaction was committed. An aborted one may still be open in a
   partition that had no leader at the time (KAFKA-20734, see commits.py): the next commit of the same producer id would
   make it visible (invariant 1). So the ids of attempts that failed or lost are never used again.
   And only below RETIRED_EPOCH: after producer epoch 32,766 the coordinator gives the id another producer id, at epoch
   0 again. Such an id would look as if it had never been committed, and let another decision log in (ownership.py).
4. An id is used by the process that made it, and by no other: the unique part of its name is random and made after
   fork. A process serves no START older than the newest that it has served. So no late attempt initialises an id under
   a newer one's transaction. (This is why ids cannot be handed on from a process that is gone: nobody can prove that.)

The danger that is left is a sweeper that sleeps between its last look and its request, and wakes after the id went on.
To fence is to send InitProducerId with the listed producer id and epoch; while a transaction is open the coordinator
compares the producer id alone, so it would abort whatever the id holds then (invariant 4). But no sweeper ever holds
the handle of an id that went on. It aborts only what it listed as open, and what no decision names; and its own START
was still the newest in the log after it had listed. So what it listed was made

- by an older START, which was fenced before the listing: it is never decided;
- or by its own START, between epochs, when no subtask of it was at work: an attempt that does not count, never decided;
- but by no newer START: there was none yet.

What is never decided is never committed (invariant 1), and by 3 its id is never used again. So within one session of a
driver that is quiet between its STARTs (`WriteContext.session`: the Spark formats, one START per micro-batch) ids are
kept from one START to the next. A sweeper that works while its own subtasks do (the embedded engine) cannot use the
second case; it touches only what an older START made, and must read that in the name. So names without a session carry
their START and are used under no other: a writer without session starts over.

So a process needs two ids per subtask that it runs concurrently, in turns: one waits for its decision while the other
is made ready. They are used over and over. What grows is the number of processes: each one makes ids of its own, one
per subtask in its first epoch and a second one only if it lives on to a next. Spark replaces Python workers that were
idle for a minute, so a query with a longer trigger makes one id per partition and micro-batch, which its coordinator
forgets after transactional.id.expiration.ms (7 days): at most 10,080 per partition.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from onceward.core.contract.names import PooledName
from onceward.core.contract.transaction import Observation
from onceward.core.errors import FencedError, KafkaError, OncewardError
from onceward.core.kit.processwide import PerProcess

from .admin import cluster_of
from .error_codes import Code
from .producer import INIT_SECONDS, TransactionalProducer
from .sizes import Sizes
from .transaction_state import Prepared, judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.contract.names import Scope
    from onceward.core.contract.transaction import WriteContext

    from .settings import KafkaSettings

_log = logging.getLogger("onceward.kafka")

UNIQUE_BYTES: Final = 6
READY_SECONDS: Final = 60.0
"""How long a producer is kept ready. A firewall may drop its idle connections without a word, and a new one takes less
time than finding that out."""
TRUSTED_SECONDS: Final = 5.0
"""Age from which on its coordinator is asked whether it still knows the id, which takes milliseconds: it forgets one
that was not used for transactional.id.expiration.ms."""
FIRST_SECONDS: Final = 10.0
"""How long to wait for the coordinator of the first id that is tried: a dead one has a successor by then."""
RETIRED_EPOCH: Final = 32_000
"""Producer epoch from which on an id is not used again. The epochs that are left suffice for fencing its last
transaction."""


class Former(NamedTuple):
    """The last transaction of a slot that was pre-committed."""

    generation: int
    epoch: int
    prepared: Prepared | None
    """None if nothing was written."""


class Offer(NamedTuple):
    """The ids under which a producer may be opened; they stay usable whatever START is served later."""

    names: Iterator[PooledName]
    """New ones."""
    name: PooledName | None = None
    """One whose former transaction has ended."""
    prepared: Prepared | None = None
    """That transaction."""


ENOUGH_EPOCHS: Final = 2
"""Epochs that a process must have served before it prepares producers in advance: a single one needs none."""


class ProducerPool:
    """Hands out producers that are ready for one transaction each. Thread-safe."""

    def __init__(self, settings: KafkaSettings, scope: Scope, timeout_ms: int) -> None:
        self._settings, self._scope, self._timeout_ms = settings, scope, timeout_ms
        self._changed = threading.Condition()
        self._generation, self._session = -1, ""
        self._sizes = Sizes()
        self.bound = Sizes()
        """Sizes of batches that the brokers have turned out to take, where their topics' limits did not tell it."""
        self._start_over()

    def take(self, context: WriteContext, sizes: Sizes | None = None) -> TransactionalProducer:
        """Return a producer whose transaction has begun.

        Args:
            context: The subtask's.
            sizes: Bounds of its messages and batches, which producers that are made ahead of time get from now on, too.
                Default: librdkafka's.

        Raises:
            FencedError: This process has served a newer writer.
            KafkaError: The broker refused, or did not answer.
        """
        with self._changed:
            self._serve(context)
            self._count(context)
            # As long as making one ready may take; after that this call makes its own.
            self._changed.wait_for(lambda: self._ready or not self._warming, INIT_SECONDS)
            self._serve(context)  # a newer START may have come meanwhile
            taken, names = self._ready_one(sizes) or self._offer(context), self._names
        # (1) A producer leaves the pool for one transaction and does not come back; only its id may.
        producer = self._open(taken) if isinstance(taken, Offer) else self._used(*taken, names)
        producer.begin()
        return producer

    def _ready_one(self, sizes: Sizes | None) -> tuple[float, TransactionalProducer] | None:
        """Return when a producer was made ready, and the producer; None if none is."""
        if sizes is not None:
            self._sizes = sizes
        return self._ready.pop() if self._ready else None

    def _used(self, made: float, producer: TransactionalProducer, names: Iterator[PooledName]) -> TransactionalProducer:
        """Return a producer that was made ready; one that is not any more is replaced under its id."""
        age = time.monotonic() - made
        known = age <= TRUSTED_SECONDS or (age <= READY_SECONDS and self._committed(producer.name, None))
        if known and producer.sizes == self._sizes:
            return producer
        producer.drop()
        return self._open(Offer(names, producer.name))

    def keep(self, name: PooledName, context: WriteContext, prepared: Prepared | None) -> None:
        """Keep the id of a pre-committed transaction until its end is proven."""
        with self._changed:
            # (4) Names from before the pool started over are forgotten: nobody initializes them again.
            if name.unique == self._unique:
                self._former[name] = Former(context.generation, context.epoch, prepared)

    def warm_up(self, context: WriteContext) -> None:
        """Make a producer ready in the background, as long as fewer are than the newest epoch has taken."""
        with self._changed:
            self._serve(context)
            if self._epochs < ENOUGH_EPOCHS or len(self._ready) + self._warming >= self._taken:
                return
            self._warming += 1
            offer, unique = self._offer(context), self._unique
        thread = threading.Thread(target=self._warm, args=(offer, unique), name="onceward-warm-up", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system gives no more threads
            _log.info("a producer could not be initialized ahead of time: %s", error)
            self._warmed(unique, None)

    def _warm(self, offer: Offer, unique: str) -> None:
        producer = None
        try:
            producer = self._open(offer)
        except OncewardError as error:
            _log.info("a producer could not be initialized ahead of time: %s", error)
        finally:
            self._warmed(unique, producer)

    def _warmed(self, unique: str, producer: TransactionalProducer | None) -> None:
        with self._changed:
            if unique == self._unique:
                self._warming -= 1
                self._ready += [(time.monotonic(), producer)] if producer is not None else []
            self._changed.notify_all()

    def _open(self, offer: Offer) -> TransactionalProducer:
        """Open a producer under the offered name if that is proven free, else under a new one."""
        name, prepared = offer.name, offer.prepared
        # (3) An id whose former transaction is not shown as committed is never used again; a new one is.
        if name is None or not (self._committed(name, prepared) and self._raised(name, prepared)):
            with self._changed:
                name = next(offer.names)
        try:
            return self._opened(name, FIRST_SECONDS)
        except KafkaError as error:
            if not error.retryable:
                raise
        with self._changed:  # the id's coordinator is silent; another id may have another one
            name = next(offer.names)
        return self._opened(name, INIT_SECONDS - FIRST_SECONDS)

    def _opened(self, name: PooledName, seconds: float) -> TransactionalProducer:
        return TransactionalProducer.open(
            self._settings,
            name,
            timeout_ms=self._timeout_ms,
            brokers=cluster_of(self._settings).limits().brokers,
            sizes=self._sizes,
            seconds=seconds,
        )

    def _offer(self, context: WriteContext) -> Offer:
        """Offer new ids and, if one is free, an id whose former transaction has ended; it is no longer kept here."""
        for name, former in self._former.items():
            # (2) Initializing would abort what is open under the id, so its epoch must have a durable COMPLETED.
            if context.may_reuse(former.generation, former.epoch):
                del self._former[name]
                return Offer(self._names, name, former.prepared)
        return Offer(self._names)

    def _committed(self, name: PooledName, prepared: Prepared | None) -> bool:
        """Return whether the coordinator shows the former transaction (if any) as committed, and epochs are left."""
        described = cluster_of(self._settings).transactions.describe([str(name)])[str(name)]
        # (3) Above RETIRED_EPOCH the coordinator would soon begin again at epoch 0 with another producer id.
        if described.handle is None or described.handle.producer_epoch >= RETIRED_EPOCH:
            return False
        return prepared is None or judge(prepared.handle, described) is Observation.COMMITTED

    def _raised(self, name: PooledName, prepared: Prepared | None) -> bool:
        """Raise the producer epoch once more before an id's second transaction: see ownership.never_committed."""
        if prepared is None or prepared.handle.producer_epoch > 0:
            return True
        return cluster_of(self._settings).transactions.register(str(name)) == Code.NONE

    def _serve(self, context: WriteContext) -> None:
        # (4) A late attempt of an older START must not initialize an id under a newer one's transaction.
        if context.generation < self._generation:
            raise FencedError(
                f"a newer writer (generation {self._generation}) has been served by this process; this one is of "
                f"generation {context.generation}",
                pipeline=context.pipeline,
                sink=context.sink,
                epoch=context.epoch,
            )
        goes_on = context.session == self._session and (context.session or context.generation == self._generation)
        self._generation, self._session = context.generation, context.session
        if not goes_on:
            self._start_over()

    def _start_over(self) -> None:
        # (4) Random, and made after fork: no other process has these ids. Names without a session carry their START.
        self._unique = secrets.token_hex(UNIQUE_BYTES)
        unique, start = self._unique, None if self._session else self._generation
        self._names = (PooledName(self._scope, unique, slot, start) for slot in count())
        self._former: dict[PooledName, Former] = {}
        self._ready: list[tuple[float, TransactionalProducer]] = []
        self._warming = 0
        self._epoch, self._epochs, self._taken = -1, 0, 0

    def _count(self, context: WriteContext) -> None:
        if context.epoch != self._epoch:
            self._epoch, self._taken = context.epoch, 0
            self._epochs += 1
        self._taken += 1


def pool_of(settings: KafkaSettings, scope: Scope, timeout_ms: int) -> ProducerPool:
    """Return this process's pool for these settings, this scope and this timeout."""
    return _pools.get((settings, scope, timeout_ms))


_pools: Final = PerProcess[tuple["KafkaSettings", "Scope", int], ProducerPool](lambda key: ProducerPool(*key))
