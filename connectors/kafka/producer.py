"""One producer, one transaction.

After another process has ended its transaction, a librdkafka producer would open the next one under the same producer
epoch, and a late EndTxn meant for the first would end the second (measured). So a producer is used for one
transaction and then dropped. Dropping is `del`: it takes about a millisecond, frees threads and sockets, and leaves a
prepared transaction alone (measured over a thousand epochs); `close()` would abort it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import KafkaException, Producer

from onceward.core.errors import KafkaError, refusing_rows

from . import librdkafka
from .admin import make_client
from .error_codes import TimeoutTooLongError, advice_on_refusal, client_error, refuses_message
from .messages import MessageArray, QueueFull, Rows
from .sizes import DEFAULT_MESSAGE, Sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from onceward.core.contract.names import PooledName

    from .settings import KafkaSettings

_log = logging.getLogger("onceward.kafka")
_client_log = logging.getLogger("onceward.kafka.librdkafka")

INIT_SECONDS: Final = 30.0
ROLLBACK_SECONDS: Final = 5.0
SLICE_SECONDS: Final = 0.5
FULL_SECONDS: Final = 0.005
"""How long to wait while librdkafka's queue is full: reports, which would end the wait, come of failures only."""
FEW_BROKERS: Final = 8
"""Up to this many brokers a producer connects to concurrently: ready in 7 ms instead of 60 to 510 ms (measured)."""
LOST: Final = "the transaction cannot go on"

QUEUED_KILOBYTES: Final = 65_536
"""What librdkafka may keep of messages that are not acknowledged yet: its default is 1 GiB."""
TOO_LARGE: Final = "MSG_SIZE_TOO_LARGE"
REPORT_SECONDS: Final = 1.0
"""How long to wait for the report that says why the transaction cannot go on."""

TUNED: Final = {
    # Java's producers, and with them Spark's own sink, put a key into the partition that murmur2 says.
    "partitioner": "murmur2_random",
    # With librdkafka's 100,000, writing takes a third more CPU time (measured), perhaps because they leave its cache.
    "queue.buffering.max.messages": 20_000,
    # Behind a firewall that drops idle connections, the next message waited for longer than 130 s (measured). What
    # librdkafka itself has closed is opened again at once.
    "connections.max.idle.ms": 60_000,
    "socket.keepalive.enable": True,
}
REQUEST_MS: Final = 20_000
"""Bound of a producer's requests; librdkafka's default for one with transactions is the transaction's timeout."""
FIXED: Final = {
    "delivery.report.only.error": True,
    # A topic that is misspelled, or deleted while its rows are on their way, must not come to life with one partition.
    "allow.auto.create.topics": False,
}
DROPPED: Final = "_PURGE_QUEUE"
"""librdkafka's code for a message that it drops because its transaction has failed."""


class DeliveryFailures:
    """The first message that could not be delivered. Holds no reference to the producer."""

    def __init__(self) -> None:
        self.first = ""
        self._is_dropped = False
        self.count = 0
        self.refused = False
        """Whether a message was refused for itself, or with its batch."""
        self.too_large: list[int] = []
        """Sizes of key and value of the messages whose batch was too large, in bytes."""

    def __call__(self, error: Any, topic: str, partition: int | None, size: int = 0) -> None:
        self.count += 1
        self.refused = self.refused or refuses_message(error.name())
        if error.name() == TOO_LARGE:
            self.too_large.append(size)
        dropped = error.name() == DROPPED
        if not self.first or (self._is_dropped and not dropped):  # what was dropped with others is not the reason
            self._is_dropped = dropped
            # A purged message was never given one.
            where = f" partition {partition}" if partition is not None and partition >= 0 else ""
            self.first = f"a message for topic {topic}{where} was refused: {error.str()} ({error.name()})"
            self.first += advice_on_refusal(error.name())
            if dropped:  # librdkafka keeps the reason to itself
                self.first += (
                    ". The transaction has failed: this client may not Write to the topic, or its transactional id was "
                    "not used for transactional.id.expiration.ms"
                )


class TransactionalProducer:
    """A producer for exactly one transaction. Not shared between threads.

    Made by `open`, which blocks until the broker has raised the id's producer epoch: whatever was open under this
    id is aborted by that, so the id must be proven free.
    """

    def __init__(self, name: PooledName, producer: Any, failures: DeliveryFailures, sizes: Sizes | None = None) -> None:
        self.name = name
        self.sizes = Sizes() if sizes is None else sizes
        self._producer = producer
        self._failures = failures
        self._refused_here = False
        self.rows = 0

    @classmethod
    def open(
        cls,
        settings: KafkaSettings,
        name: PooledName,
        *,
        timeout_ms: int,
        brokers: int,
        sizes: Sizes | None = None,
        seconds: float = INIT_SECONDS,
    ) -> Self:
        """Make a producer and initialise its id.

        Args:
            settings: Where and how to connect.
            name: A transactional id that is proven free.
            timeout_ms: After how long the broker aborts an open transaction by itself.
            brokers: How many brokers the cluster has.
            sizes: Bounds of its messages and batches. Default: librdkafka's.
            seconds: How long to wait for the id's coordinator.

        Raises:
            ConfigurationError: librdkafka refuses a setting.
            TimeoutTooLongError: A broker allows less than `timeout_ms`.
            KafkaError: The id's coordinator did not answer, or it refused.
        """
        failures = DeliveryFailures()
        more = {"enable.sparse.connections": brokers > FEW_BROKERS}
        producer = _made(settings, str(name), timeout_ms, more, failures, sizes=sizes)
        try:
            producer.init_transactions(seconds)
        except KafkaException as error:
            if _name(error) == "INVALID_TRANSACTION_TIMEOUT":
                raise TimeoutTooLongError(
                    f"a broker allows less than a transaction timeout of {timeout_ms / 1000:g} s: make "
                    "transaction_timeout (transactionTimeout) no longer than its transaction.max.timeout.ms, or raise "
                    "that on all brokers",
                    transaction=str(name),
                ) from None
            raised = client_error("cannot initialize a transactional producer", error, transaction=str(name))
            if _name(error) == "_TIMED_OUT":
                raised.message += f". The transaction coordinator of this id did not answer within {seconds:g} s"
            raise raised from None
        return cls(name, producer, failures, sizes)

    @property
    def too_large(self) -> bool:
        """Whether a message or a batch was refused for its size: the transaction cannot go on."""
        return self._refused_here or bool(self._failures.too_large)

    @property
    def too_large_alone(self) -> bool:
        """Whether what was refused for its size was one message: by librdkafka itself, or alone in its batch."""
        sizes = self._failures.too_large
        # The messages of a batch are reported together: a single report is that of a batch with one message.
        return self._refused_here or len(sizes) == 1 or all(map(self.sizes.alone, sizes))

    def begin(self) -> None:
        """Open the transaction; local, the broker learns of it with the first message."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise client_error("cannot begin a transaction", error, transaction=str(self.name)) from None

    def messages(self, batch: pa.RecordBatch, topic: str | None) -> Rows | MessageArray:
        """Return the messages of a batch in the form that this producer takes.

        Raises:
            KafkaError: A row has no topic, or a header without key.
        """
        kind = MessageArray if isinstance(self._producer, librdkafka.BatchProducer) else Rows
        return kind(batch, topic)

    def write(self, rows: Rows | MessageArray) -> None:
        """Hand rows to librdkafka, in order; waits while its queue is full.

        Raises:
            KafkaError: A message was refused, of these rows or of earlier ones.
        """
        total = len(rows)
        done, wait, idle = 0, 0.0, False
        while done < total:
            try:
                done = self._call(f"a message for {rows.label} was refused", rows.feed, self._producer, done)
                wait, idle = 0.0, False
            except QueueFull as full:
                if idle and full.done == done:  # full, though nothing was in it: waiting would never end
                    why = f"a message for {rows.label} does not fit into librdkafka's queue: raise "
                    why += "queue.buffering.max.kbytes to twice the largest message"
                    raise refusing_rows(KafkaError(why, transaction=str(self.name))) from None
                done, idle = full.done, not len(self._producer)
                wait = FULL_SECONDS
            self._call(LOST, self._producer.poll, wait)
        self.rows += total

    def flush(self, deadline: float) -> None:
        """Wait until the brokers have acknowledged every message.

        Raises:
            KafkaError: A message was refused, or the time is over.
        """
        while waiting := self._call(LOST, self._producer.flush, SLICE_SECONDS):
            if time.monotonic() > deadline:
                raise KafkaError(
                    f"{waiting} messages were not acknowledged in time: brokers, or a firewall between them and this "
                    "process, do not answer. Nothing of the epoch is committed; the next attempt writes it again",
                    transaction=str(self.name),
                )

    def drop(self) -> None:
        """Let the producer go and leave its transaction as it is."""
        self._producer = None

    def rollback(self) -> None:
        """Abort the transaction if the broker answers soon, and let the producer go."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.purge()
            producer.abort_transaction(ROLLBACK_SECONDS)
        except (KafkaException, RuntimeError) as error:
            _log.info("transaction %s was not rolled back, recovery will do it: %s", self.name, error)

    def _call(self, what: str, function: Callable[..., int], *arguments: Any) -> int:
        """Call librdkafka; raise its exception, or an undelivered message, as a KafkaError."""
        try:
            answer = function(*arguments)
        except (KafkaException, SystemError) as error:
            # A fatal error sets its exception first, and the next delivery report then fails with a SystemError.
            cause = error.__cause__ if isinstance(error, SystemError) and error.__cause__ is not None else error
            self._await_report(cause)
            if self._failures.first:  # a delivery report that was cut short by the error says nothing
                self._check()
            raised = client_error(what, cause, transaction=str(self.name))
            if _name(cause) == TOO_LARGE:  # by librdkafka itself, before it was in a batch
                self._refused_here = True
                raised.message += f". {self.sizes.advice_here}"
            raise raised from None
        self._check()
        return answer

    def _await_report(self, cause: BaseException) -> None:
        """Wait for the delivery report of what has failed the transaction, if rows are refused because of that."""
        deadline = time.monotonic() + REPORT_SECONDS
        while _name(cause) == "_STATE" and not self._failures.count and time.monotonic() < deadline:
            try:
                self._producer.poll(SLICE_SECONDS)
            except (KafkaException, SystemError):
                return

    def _check(self) -> None:
        if not self._failures.count:
            return
        advice = f". {self.sizes.advice}" if self._failures.too_large else ""
        error = KafkaError(
            f"{self._failures.first}{advice}; {self._failures.count} messages failed", transaction=str(self.name)
        )
        # A batch that is too large says nothing of the messages in it: see sizes.py (3).
        refuses = self.too_large_alone if self._failures.too_large else self._failures.refused
        error.refuses_rows = error.refuses_alone = refuses
        raise error


def check_producer_settings(settings: KafkaSettings, *, timeout_ms: int) -> None:
    """Make a producer as `TransactionalProducer.open` does, and let it go before it says anything to a broker.

    Raises:
        ConfigurationError: librdkafka refuses a setting; the message names it.
    """
    _made(settings, "onceward-check", timeout_ms, {}, DeliveryFailures())


def _name(error: BaseException) -> str:
    """Return librdkafka's name of an error, empty if it has none."""
    cause: Any = error.args[0] if error.args else None
    return str(cause.name()) if hasattr(cause, "name") else ""


def _made(
    settings: KafkaSettings,
    name: str,
    timeout_ms: int,
    more: dict[str, Any],
    failures: DeliveryFailures,
    *,
    sizes: Sizes | None = None,
) -> Any:
    merged = {**settings.for_librdkafka(), **(sizes.for_librdkafka() if sizes is not None else {})}
    bound = {"socket.timeout.ms": min(REQUEST_MS, timeout_ms)}
    config: dict[str, Any] = {**TUNED, **bound, **queue_bound(merged), **more, **merged, **FIXED}
    config |= {"transactional.id": name, "transaction.timeout.ms": timeout_ms}
    if librdkafka.usable(config):
        return make_client(librdkafka.BatchProducer, config, on_failure=failures, logger=_client_log)
    config["on_delivery"] = lambda error, message: failures(
        error, message.topic(), message.partition(), len(message.value() or b"") + len(message.key() or b"")
    )
    return make_client(Producer, config, logger=_client_log)


def queue_bound(given: Mapping[str, Any]) -> dict[str, int]:
    """Return the bound of librdkafka's queue: a message that is larger than it would never be taken."""
    try:
        largest = int(given.get("message.max.bytes", DEFAULT_MESSAGE))
    except (TypeError, ValueError):  # which librdkafka itself refuses
        largest = DEFAULT_MESSAGE
    return {"queue.buffering.max.kbytes": max(QUEUED_KILOBYTES, 2 * largest // 1024)}


def _as_information(record: logging.LogRecord) -> bool:
    """Log a failed connection that is tried again as INFO: if it stays down, an error with the reason follows."""
    record.levelno, record.levelname = logging.INFO, "INFO"
    return _client_log.isEnabledFor(logging.INFO)


_client_log.addFilter(_as_information)
