"""The pool of transactional ids and ready producers of one process, for one sink of one writer.

Why it is safe to use an id again (the numbers are PROTOCOL's invariants):

- One producer instance per transaction. Initialising the id again raises the producer epoch, so a late EndTxn of the
  id's former transaction is refused (invariant 6).
- An id is initialised again only when `WriteContext.may_reuse` says that its former transaction has ended: its epoch
  has a durable COMPLETED entry. Initialising aborts what is open under the id, so anything less could abort a decided
  transaction (invariant 7).
- And only when the coordinator shows that the former transaction was committed. An aborted one may still be open in a
  partition that had no leader at the time (KAFKA-20734, see commits.py): the next commit of the same producer id would
  make it visible (invariant 1). So the ids of attempts that failed or lost are never used again.
- The unique part of the names is random, made after fork, and made anew for each writer (START): a sweeper that was
  fenced while it slept holds handles of names that the newer writer never uses (invariants 4 and 9).

So a process needs two ids per subtask that it runs at once, in turns: one waits for its decision while the other is
made ready. They are used over and over: the broker does not collect a new id per epoch.
"""

from __future__ import annotations

import logging
import secrets
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from ...core.errors import FencedError, OncewardError
from ...core.names import PooledName
from ..processwide import PerProcess
from .cluster import cluster_of
from .producer import TransactionalProducer
from .verdict import Seen, judge

if TYPE_CHECKING:
    from ...core.names import Scope
    from ...core.transaction import WriteContext
    from .handle import Prepared
    from .settings import KafkaSettings

_log = logging.getLogger("onceward.kafka")

UNIQUE_BYTES: Final = 6


class PoolKey(NamedTuple):
    """Which pool."""

    settings: KafkaSettings
    scope: Scope
    timeout_ms: int


class Former(NamedTuple):
    """The last transaction of a slot that was pre-committed."""

    writer: int
    epoch: int
    prepared: Prepared | None
    """None if nothing was written."""


class Candidate(NamedTuple):
    """An id whose former transaction has ended, and that transaction."""

    name: PooledName
    prepared: Prepared | None


class ProducerPool:
    """Hands out producers that are ready for one transaction each. Thread-safe.

    Args:
        key: Settings, names and time-out.
    """

    def __init__(self, key: PoolKey) -> None:
        self._key = key
        self._changed = threading.Condition()
        self._start_over(writer=-1)

    def take(self, context: WriteContext) -> TransactionalProducer:
        """A producer whose transaction is begun.

        Raises:
            FencedError: This process has served a newer writer.
            KafkaError: The broker refused, or did not answer.
        """
        with self._changed:
            self._serve(context)
            self._count(context)
            self._changed.wait_for(lambda: self._ready or not self._warming)
            producer = self._ready.pop() if self._ready else None
            candidate = None if producer is not None else self._candidate(context)
        if producer is None:
            producer = self._open(candidate)
        producer.begin()
        return producer

    def keep(self, name: PooledName, context: WriteContext, prepared: Prepared | None) -> None:
        """The id's transaction was pre-committed: the id waits until its end is proven."""
        with self._changed:
            if name.unique == self._unique:
                self._former[name.slot] = Former(context.writer, context.epoch, prepared)

    def warm_up(self, context: WriteContext) -> None:
        """Make a producer ready in the background, as long as fewer are than the newest epoch has taken."""
        with self._changed:
            self._serve(context)
            if len(self._ready) + self._warming >= self._taken:
                return
            self._warming += 1
            candidate, unique = self._candidate(context), self._unique
        threading.Thread(target=self._warm, args=(candidate, unique), name="onceward-warm-up", daemon=True).start()

    def _warm(self, candidate: Candidate | None, unique: str) -> None:
        producer = None
        try:
            producer = self._open(candidate)
        except OncewardError as error:
            _log.info("a producer could not be made ready ahead of time: %s", error)
        finally:
            with self._changed:
                if unique == self._unique:
                    self._warming -= 1
                    self._ready += [producer] if producer is not None else []
                self._changed.notify_all()

    def _open(self, candidate: Candidate | None) -> TransactionalProducer:
        """A producer under the candidate's name if that is proven free, else under a new one."""
        settings, timeout_ms = self._key.settings, self._key.timeout_ms
        name = candidate.name if candidate is not None and self._committed(candidate) else self._new_name()
        brokers = cluster_of(settings).limits().brokers
        return TransactionalProducer.open(settings, name, timeout_ms=timeout_ms, brokers=brokers)

    def _candidate(self, context: WriteContext) -> Candidate | None:
        """Take an id whose former transaction has ended, if there is one, out of the waiting ones."""
        for slot, former in self._former.items():
            if context.may_reuse(former.writer, former.epoch):
                del self._former[slot]
                return Candidate(PooledName(self._key.scope, self._unique, slot), former.prepared)
        return None

    def _committed(self, candidate: Candidate) -> bool:
        if candidate.prepared is None:
            return True
        name = str(candidate.name)
        described = cluster_of(self._key.settings).transactions.describe([name])
        return judge(candidate.prepared.handle, described[name]) is Seen.COMMITTED

    def _new_name(self) -> PooledName:
        with self._changed:
            self._slots += 1
            return PooledName(self._key.scope, self._unique, self._slots - 1)

    def _serve(self, context: WriteContext) -> None:
        if context.writer > self._writer:
            self._start_over(context.writer)
        elif context.writer < self._writer:
            raise FencedError(
                f"a newer writer (START {self._writer}) has been served by this process; this one is START "
                f"{context.writer}",
                pipeline=context.pipeline,
                sink=context.sink,
                epoch=context.epoch,
            )

    def _start_over(self, writer: int) -> None:
        self._writer = writer
        self._unique = secrets.token_hex(UNIQUE_BYTES)
        self._slots = 0
        self._former: dict[int, Former] = {}
        self._ready: list[TransactionalProducer] = []
        self._warming = 0
        self._epoch, self._taken = -1, 0

    def _count(self, context: WriteContext) -> None:
        if context.epoch != self._epoch:
            self._epoch, self._taken = context.epoch, 0
        self._taken += 1


def pool_of(key: PoolKey) -> ProducerPool:
    """This process's pool."""
    return _pools.get(key)


_pools: Final[PerProcess[PoolKey, ProducerPool]] = PerProcess(ProducerPool)
