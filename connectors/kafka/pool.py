"""The pool of transactional ids and ready producers of one process, for one sink of one writer.

Why it is safe to use an id again (the numbers are PROTOCOL's invariants):

- One producer instance per transaction. Initialising the id again raises the producer epoch, so a late EndTxn of the
  id's former transaction is refused (invariant 6).
- An id is initialised again only when `WriteContext.may_reuse` says that its former transaction has ended: its epoch
  has a durable COMPLETED entry. Initialising aborts what is open under the id, so anything less could abort a decided
  transaction (invariant 7). An id whose transaction was never pre-committed is free at once: no committable of it
  exists, so no decision can name it (invariant 1).
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
from .cluster import cluster_of
from .processwide import PerProcess
from .producer import TransactionalProducer

if TYPE_CHECKING:
    from ...core.names import Scope
    from ...core.transaction import WriteContext
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
            name = self._free_name(context) if producer is None else producer.name
        if producer is None:
            producer = self._open(name)
        producer.begin()
        return producer

    def keep(self, name: PooledName, context: WriteContext) -> None:
        """The id's transaction was pre-committed: the id waits until a durable entry proves that it has ended."""
        with self._changed:
            if name.unique == self._unique:
                self._former[name.slot] = Former(context.writer, context.epoch)

    def release(self, name: PooledName) -> None:
        """The id's transaction was never pre-committed: the id is free."""
        with self._changed:
            if name.unique == self._unique:
                self._free.append(name.slot)

    def warm_up(self, context: WriteContext) -> None:
        """Make a producer ready in the background, as long as fewer are than the newest epoch has taken."""
        with self._changed:
            self._serve(context)
            if len(self._ready) + self._warming >= self._taken:
                return
            self._warming += 1
            name = self._free_name(context)
        threading.Thread(target=self._warm, args=(name,), name=f"onceward-warm-{name.slot}", daemon=True).start()

    def _warm(self, name: PooledName) -> None:
        producer = None
        try:
            producer = self._open(name)
        except OncewardError as error:
            _log.info("a producer could not be made ready ahead of time: %s", error)
        finally:
            with self._changed:
                if name.unique == self._unique:
                    self._warming -= 1
                    self._ready += [producer] if producer is not None else []
                self._changed.notify_all()

    def _open(self, name: PooledName) -> TransactionalProducer:
        settings, timeout_ms = self._key.settings, self._key.timeout_ms
        try:
            brokers = cluster_of(settings).limits().brokers
            return TransactionalProducer.open(settings, name, timeout_ms=timeout_ms, brokers=brokers)
        except BaseException:
            self.release(name)
            raise

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
        self._free: list[int] = []
        self._former: dict[int, Former] = {}
        self._ready: list[TransactionalProducer] = []
        self._warming = 0
        self._epoch, self._taken = -1, 0

    def _count(self, context: WriteContext) -> None:
        if context.epoch != self._epoch:
            self._epoch, self._taken = context.epoch, 0
        self._taken += 1

    def _free_name(self, context: WriteContext) -> PooledName:
        if not self._free:
            ended = [slot for slot, former in self._former.items() if context.may_reuse(*former)]
            for slot in ended:
                del self._former[slot]
            self._free += ended or [self._slots]
            self._slots += not ended
        return PooledName(self._key.scope, self._unique, self._free.pop(0))


def pool_of(key: PoolKey) -> ProducerPool:
    """This process's pool."""
    return _pools.get(key)


_pools: Final[PerProcess[PoolKey, ProducerPool]] = PerProcess(ProducerPool)
