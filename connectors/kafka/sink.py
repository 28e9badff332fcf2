"""KafkaSink: exactly once into Kafka topics, by transactions that any process can commit.

Each subtask writes an epoch in one Kafka transaction and flushes it (pre-commit). Once the decision is durable, the
driver ends the transaction by handle: transactional id, producer id and producer epoch. After the flush the data
survive the producer's process and the broker's restart; what can end them early is only the transaction's timeout.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from onceward.core.contract.row_hash import RowHash
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
)
from onceward.core.errors import ConfigurationError, KafkaError
from onceward.core.kit.driver_settings import OF_FORMATS
from onceward.core.kit.pieces import pieces, size_of
from onceward.core.kit.secrets import without_logins
from onceward.core.kit.text_options import arguments, check_types
from onceward.sinks import TwoPhaseCommitSink

from . import commits, ownership
from . import wire as _wire  # noqa: F401 - so that a missing kafka-python is told when the sink is imported
from .admin import check_reachable, cluster_of
from .error_codes import Code, Retries, TimeoutTooLongError, kafka_error, until_answered
from .messages import check_message_columns, hashed_message_columns, ignored_columns
from .pool import pool_of
from .positions import LATEST, Partition
from .producer import check_producer_settings
from .settings import CONNECTION_OPTIONS, KafkaSettings, split_options
from .topic_metadata import Lookup
from .transaction_coordinator import UNSEEN
from .transaction_state import KIND, VERSION, Inside, Prepared, judge_partitions, mark_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from onceward.core.contract.names import Scope
    from onceward.core.contract.transaction import WriteContext
    from onceward.core.kit.text_options import Names

    from .admin import Cluster
    from .pool import ProducerPool
    from .producer import TransactionalProducer
    from .sizes import Sizes
    from .transaction_coordinator import TransactionCoordinatorClient

_log = logging.getLogger("onceward.kafka")

NOTHING_WRITTEN = "nothing was written"
FLUSH_SHARE = 0.5
"""Share of the transaction's timeout that a flush may take."""
PREPARE_SECONDS = 45.0
"""How long to ask for a transaction's handle, and a start for what was left, after a coordinator has died: by default,
its successor is elected after 9 s (broker.session.timeout.ms), and then reads its part of the log."""
KEPT_BYTES = 16 * 2**20
"""Rows of a transaction that are kept until it is prepared. A refused batch shows long before there are as many."""


@dataclass
class KafkaTransaction:
    """One subtask's open transaction.

    Attributes:
        producer: Its producer; another one after a batch was refused.
        topics: Topics that the rows have named; None if the sink has one.
        kept: The rows, so that they can be written again in smaller batches; None after KEPT_BYTES.
    """

    context: WriteContext
    pool: ProducerPool
    producer: TransactionalProducer
    hash: RowHash | None = None
    topics: set[str] | None = None
    kept: list[pa.RecordBatch] | None = field(default_factory=list)
    kept_bytes: int = 0

    def keep(self, piece: pa.RecordBatch) -> None:
        """Keep rows that are about to be written."""
        if self.kept is None:
            return
        self.kept_bytes += size_of(piece)
        self.kept = [*self.kept, piece] if not self.kept or self.kept_bytes <= KEPT_BYTES else None

    @property
    def has_all(self) -> bool:
        """Whether all rows that the producer has got are kept."""
        return self.kept is not None and sum(piece.num_rows for piece in self.kept) >= self.producer.rows


class KafkaSink(TwoPhaseCommitSink[KafkaTransaction]):
    """Sink that writes rows as Kafka messages; each epoch becomes visible to read_committed consumers exactly once.

    Columns are those of Spark's own Kafka sink: `value` (binary or string; null is a tombstone), and, where wanted,
    `key` (binary or string), `headers` (array<struct<key: string, value: binary>>), `topic` (string) and `partition`
    (int, from 0 on; null leaves it to the partitioner). Other columns are not written, and a warning at the start names
    them.

    Args:
        name: Unique in its pipeline, up to 32 letters, digits, `.`, `_` and `-`. It is part of every transaction's
            name, so it must not change between runs.
        bootstrap_servers: Addresses of brokers: comma-separated `host:port`, or a list of them. Required, here or in
            `config`.
        topic: Topic of all rows; a column `topic` is then ignored. Default: each row names its topic in the column
            `topic`.
        config: Further settings under librdkafka's names. docs/kafka-settings.md says where each of them goes, and
            which are refused.
        create_topic: Create `topic` at the start if it does not exist: a number of partitions, or True for the brokers'
            default. Without it, a topic that does not exist is an error, even if the brokers would create it
            automatically.
        transaction_timeout: Seconds after which the brokers abort a transaction that has not ended. Make it longer than
            any outage that decided rows must survive: after a longer one they are lost, and the run stops with an
            error. Default: as long as the brokers allow (`transaction.max.timeout.ms`).
        proof: Hash the rows, so that `onceward verify` can tell whether the topic still holds them.
        select: SQL expressions that make this sink's columns out of the pipeline's. Default: all columns.
        where: SQL condition; the sink takes only the rows for which it is true. Default: all rows.

    Raises:
        ConfigurationError: A setting is refused.
    """

    def __init__(
        self,
        name: str,
        *,
        bootstrap_servers: str | list[str] | None = None,
        topic: str | None = None,
        config: Mapping[str, Any] | None = None,
        create_topic: bool | int = False,
        transaction_timeout: float | None = None,
        proof: bool = True,
        select: Names | None = None,
        where: str | None = None,
    ) -> None:
        check_types(KafkaSink, locals())
        super().__init__(name, select=select, where=where)
        settings = KafkaSettings(bootstrap_servers, config)
        if transaction_timeout is None and (timeout := settings.get("transaction.timeout.ms")) is not None:
            transaction_timeout = _seconds(timeout)
        if transaction_timeout is not None and not 1 <= transaction_timeout < math.inf:
            raise ConfigurationError(
                f"transaction_timeout must be at least 1 s, and finite, not {transaction_timeout} s", sink=name
            )
        if topic is not None and not topic.strip():
            raise ConfigurationError(
                "topic is empty: name one, or leave it out, so that each row names its topic", sink=name
            )
        if create_topic and topic is None:
            raise ConfigurationError(
                "create_topic needs topic: the topics that rows name are not known in advance", sink=name
            )
        if create_topic is not False and create_topic < 1:
            raise ConfigurationError(
                f"create_topic (createTopic) must be true or a number of partitions, not {create_topic}", sink=name
            )
        self.settings = settings.without("transaction.timeout.ms")
        self.topic = topic
        self.create_topic = create_topic
        self.proof = proof
        self._timeout = transaction_timeout

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Make a sink from the options of a Spark format: `kafka.*`, `topic`, `createTopic`, `name` (default: kafka).

        Raises:
            ConfigurationError: An option is unknown or refused.
        """
        config, rest = split_options(options)
        also = (*CONNECTION_OPTIONS, *OF_FORMATS)
        values = arguments(cls, rest, defaults={"name": "kafka"}, omit=("bootstrap_servers",), also=also)
        return cls(config=config, **values)

    def __repr__(self) -> str:
        return without_logins(f"KafkaSink({self.name!r}, topic={self.topic!r}, {self.settings})")

    @property
    def transaction_timeout(self) -> float:
        """Seconds after which the broker aborts an open transaction; asks the broker once if none was given."""
        if self._timeout is not None:
            return self._timeout
        return cluster_of(self.settings).limits().longest_timeout_ms / 1000

    def dataset(self) -> tuple[str, str] | None:
        if self.topic is None:
            return None
        return f"kafka://{str(self.settings['bootstrap.servers']).partition(',')[0]}", self.topic

    def last_stable_offset_lag(self) -> int | None:
        """Return the number of records behind the topic's last stable offsets; None if the rows name their topics.

        Raises:
            SourceError: No broker answers.
        """
        if self.topic is None:
            return None
        readers = Lookup(self.settings, committed=True, retry_seconds=0)
        count = readers.partitions_of([self.topic]).get(self.topic, ("", 0))[1]
        ends = dict.fromkeys((Partition(self.topic, number) for number in range(count)), LATEST)
        [stable] = readers.offsets(ends)
        [high] = Lookup(self.settings, committed=False, retry_seconds=0).offsets(ends)
        return sum(max(0, high[partition] - stable[partition]) for partition in ends)

    def expires_at(self, committable: Committable) -> float | None:
        """Return when the broker aborts it: the timeout counts from the time at which it added the first partition."""
        transaction = Prepared.of(committable)
        if transaction is None or (timeout := self._known_timeout()) is None:
            return None
        return transaction.handle.started_ms / 1000 + timeout

    def _known_timeout(self) -> float | None:
        """Return the transaction timeout in seconds, if it is known without asking the brokers."""
        if self._timeout is not None:
            return self._timeout
        limits = cluster_of(self.settings).known_limits
        return limits.longest_timeout_ms / 1000 if limits is not None else None

    def check_schema(self, schema: pa.Schema) -> None:
        check_message_columns(schema, self.topic, self.name)

    def validate(self, schema: pa.Schema) -> None:
        """Check columns, settings, topic and timeout; create the topic if requested.

        Raises:
            SchemaError: A column is missing or has a type that does not fit.
            ConfigurationError: The topic does not exist, the timeout is longer than the broker allows, librdkafka
                refuses a setting, or a permission is missing.
            KafkaError: No broker answers, or it refuses this client.
        """
        self.check_schema(schema)
        if ignored := ignored_columns(schema):
            _log.warning("sink %s: %s", self.name, ignored)
        self.check_connection()
        if self._client.may_list() == Code.TOPIC_AUTHORIZATION_FAILED:
            raise ConfigurationError(UNSEEN, sink=self.name)
        if self.topic is not None:
            self._validate_topic(self.topic, cluster_of(self.settings))

    def check_connection(self) -> None:
        """Check that a broker answers, and the settings and the timeout; changes nothing.

        Raises:
            ConfigurationError: The timeout is longer than the broker allows, or librdkafka refuses a setting.
            KafkaError: No broker answers, or it refuses this client.
        """
        check_reachable(self.settings)
        limits = cluster_of(self.settings).limits(anew=True)
        if self._timeout is not None and self._timeout * 1000 > limits.longest_timeout_ms and limits.known:
            raise ConfigurationError(
                f"transaction_timeout is {self._timeout:g} s ({self._timeout * 1000:.0f} ms), but the broker allows "
                f"transaction.max.timeout.ms={limits.longest_timeout_ms} ms: make it shorter, or raise the broker's",
                sink=self.name,
            )
        check_producer_settings(self.settings, timeout_ms=self._timeout_ms)

    def _validate_topic(self, topic: str, cluster: Cluster) -> None:
        if not cluster.partitions_of(topic):
            if self.create_topic is False:
                raise ConfigurationError(
                    f"topic {topic} does not exist: create it, or let the sink do so with create_topic=True or with a "
                    "number of partitions (option createTopic)",
                    sink=self.name,
                )
            cluster.create_topic(topic, None if self.create_topic is True else self.create_topic)
        if cluster.transactions.may_look(topic) == Code.TOPIC_AUTHORIZATION_FAILED:
            raise ConfigurationError(
                f"this client has no permission to Read topic {topic}: the sink needs it besides Write and Describe, "
                "to ask the topic's partitions whether they have a transaction open",
                sink=self.name,
            )
        if not cluster.may_write(topic):
            raise ConfigurationError(f"this client has no permission to Write to topic {topic}", sink=self.name)

    def from_letters(self, letters: pa.RecordBatch) -> pa.RecordBatch:
        """Return dead letters as messages: the refused row is the value, and everything else is a header."""
        rows = letters.to_pylist()
        headers = [
            [{"key": name, "value": str(value).encode()} for name, value in row.items() if value is not None]
            for row in ({name: value for name, value in row.items() if name != "row"} for row in rows)
        ]
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        columns = [letters.column("row"), pa.array(headers, kind)]
        return pa.RecordBatch.from_arrays(columns, names=["value", "headers"])

    def begin(self, context: WriteContext) -> KafkaTransaction:
        topics = set[str]() if self.topic is None else None
        pool, producer = self._taken(context, self._sizes([] if self.topic is None else [self.topic]))
        return KafkaTransaction(context, pool, producer, RowHash() if self.proof else None, topics)

    def _taken(self, context: WriteContext, sizes: Sizes) -> tuple[ProducerPool, TransactionalProducer]:
        """Return a pool, and a producer of it whose transaction has begun."""
        pool = self._pool(context.scope)
        try:
            return pool, pool.take(context, sizes.within(pool.bound))
        except TimeoutTooLongError:
            if self._timeout is not None:
                raise
        # The brokers allow less than when this process asked them, which may be long ago.
        cluster_of(self.settings).limits(anew=True)
        pool = self._pool(context.scope)
        return pool, pool.take(context, sizes.within(pool.bound))

    def write(self, transaction: KafkaTransaction, batch: pa.RecordBatch) -> None:
        for piece in pieces(batch):
            rows = transaction.producer.messages(piece, self.topic)
            if transaction.topics is not None and not rows.topics <= transaction.topics:
                cluster_of(self.settings).check_topics(rows.topics)
                transaction.topics.update(rows.topics)
                self._fit(transaction)
            transaction.keep(piece)
            self._until_taken(transaction, partial(transaction.producer.write, rows))
            if transaction.hash is not None:
                transaction.hash.add(hashed_message_columns(piece, own_topic=self.topic is None))

    def _sizes(self, topics: Iterable[str], *, anew: bool = False) -> Sizes:
        return cluster_of(self.settings).sizes(self.settings, topics, anew=anew)

    def _fit(self, transaction: KafkaTransaction) -> None:
        """Begin again with other sizes, if the topics that rows have named take other ones than the producer's."""
        sizes = self._sizes(transaction.topics or ()).within(transaction.pool.bound)
        now = transaction.producer.sizes
        if (sizes.batch < now.batch or sizes.message > now.message) and transaction.has_all:
            self._begin_again(transaction, sizes)

    def _until_taken(self, transaction: KafkaTransaction, step: Callable[[], None]) -> None:
        """Write or flush; begin again with smaller batches as often as a batch of several messages is refused.

        See sizes.py (3). librdkafka fails the whole transaction then, so what was written is written again.

        Raises:
            KafkaError: A message was refused alone; or the brokers do not answer.
        """
        try:
            step()
        except KafkaError as error:
            refusal: KafkaError | None = error
        else:
            return
        while refusal is not None:
            sizes = self._smaller(transaction, refusal)
            try:
                self._begin_again(transaction, sizes)
                transaction.producer.flush(self._flush_until())
                refusal = None
            except KafkaError as error:
                refusal = error
        transaction.pool.bound = transaction.producer.sizes

    def _smaller(self, transaction: KafkaTransaction, refusal: KafkaError) -> Sizes:
        """Return the sizes to begin again with; raise the refusal if there are none, or another error is the cause."""
        producer = transaction.producer
        if not producer.too_large:
            raise refusal
        topics = [self.topic] if self.topic is not None else transaction.topics or ()
        fresh = self._sizes(topics, anew=True).within(transaction.pool.bound)
        if fresh.batch < producer.sizes.batch or fresh.message > producer.sizes.message:
            sizes = fresh
        elif producer.too_large_alone:
            raise refusal
        else:
            sizes = producer.sizes.smaller()
        if transaction.has_all:
            return sizes
        transaction.pool.bound = sizes
        refusal.message = refusal.message.replace(producer.sizes.advice, fresh.advice)
        refusal.message += ". It was in a batch with others, so the next attempt sends smaller batches"
        refusal.retryable = True
        raise refusal

    def _begin_again(self, transaction: KafkaTransaction, sizes: Sizes) -> None:
        """Abort the transaction, and write what it had into another one."""
        _log.info("sink %s begins a transaction again with %s", self.name, sizes)
        transaction.producer.rollback()
        transaction.pool, transaction.producer = self._taken(transaction.context, sizes)
        for piece in transaction.kept or ():
            transaction.producer.write(transaction.producer.messages(piece, self.topic))

    def _flush_until(self) -> float:
        return time.monotonic() + self.transaction_timeout * FLUSH_SHARE

    def pre_commit(self, transaction: KafkaTransaction) -> Committable:
        """Wait for the brokers' acknowledgements, ask for the handle, and release the producer."""
        context = transaction.context
        self._until_taken(transaction, lambda: transaction.producer.flush(self._flush_until()))
        producer = transaction.producer
        transaction.kept = None
        prepared = self._prepared(transaction) if producer.rows else None
        proof = None
        if transaction.hash is not None and prepared is not None:
            proof = transaction.hash.proof(mark_of(*prepared.producer))
        committable = context.committable(
            kind=KIND,
            version=VERSION,
            transaction=str(producer.name),
            handle=prepared.to_json() if prepared is not None else {},
            rows=producer.rows,
            proof=proof,
        )
        transaction.pool.keep(producer.name, context, prepared)
        producer.drop()
        return committable

    def discard(self, transaction: KafkaTransaction) -> None:
        transaction.producer.rollback()

    def commit(self, committable: Committable) -> CommitOutcome:
        return self.commit_many([committable])[0]

    def commit_many(self, committables: Sequence[Committable]) -> list[CommitOutcome]:
        transactions = [Prepared.of(committable) for committable in committables]
        outcomes = iter(commits.commit(self._bounded, [t for t in transactions if t is not None]))
        nothing = CommitOutcome(CommitStatus.COMMITTED, NOTHING_WRITTEN)
        return [nothing if transaction is None else next(outcomes) for transaction in transactions]

    def abort(self, committable: Committable) -> AbortOutcome:
        transaction = Prepared.of(committable)
        if transaction is None:
            return AbortOutcome(AbortStatus.ABORTED, NOTHING_WRITTEN)
        return commits.abort(self._bounded, transaction)

    def inspect_many(self, committables: Sequence[Committable]) -> list[Observation]:
        transactions = [Prepared.of(committable) for committable in committables]
        inspections = iter(commits.look_at(self._bounded, [t for t in transactions if t is not None]))
        return [Observation.PREPARED if transaction is None else next(inspections) for transaction in transactions]

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        return ownership.lingering(self._client, scope, [self.topic] if self.topic is not None else None)

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        # Only a start asks this, and first: it finds a cluster that may be electing coordinators.
        return until_answered(PREPARE_SECONDS, lambda: ownership.lingering_elsewhere(self._client, pipeline, log))

    def ledger(self) -> ownership.KafkaLedger:
        return ownership.KafkaLedger(lambda: self._client, wait_seconds=PREPARE_SECONDS)

    def warm_up(self, context: WriteContext) -> None:
        self._pool(context.scope).warm_up(context)

    def _prepared(self, transaction: KafkaTransaction) -> Prepared:
        """Ask for the handle, as long as a coordinator's successor may need to take its place.

        An attempt that failed instead would be tried again if Spark did so, and not at all in an epoch that the driver
        writes.
        """

        def ask() -> Prepared:
            try:
                return self._handle_of(transaction)
            except KafkaError:
                self._client.look_up_again([str(transaction.producer.name)])
                raise

        return until_answered(min(PREPARE_SECONDS, self.transaction_timeout * FLUSH_SHARE), ask)

    def _handle_of(self, transaction: KafkaTransaction) -> Prepared:
        """Ask for the handle, and whether it has all partitions in which the transaction is open."""
        client, name = self._client.within(2 * commits.CALL_SECONDS), str(transaction.producer.name)
        topics = sorted(transaction.topics or ()) if self.topic is None else [self.topic]
        description = client.describe([name], topics=topics)[name]
        if description.handle is None:
            raise kafka_error("the transaction's producer epoch cannot be read", description.code, transaction=name)
        if description.open is None:
            raise KafkaError(
                f"the transaction ended before it could be prepared: the coordinator says {description.state}. If "
                f"writing took longer than its timeout ({self.transaction_timeout:g} s), make epochs shorter",
                transaction=name,
            )
        ids = _ids_of_topics(client, description.open.topics, name)
        prepared, gone = description.open.with_ids(ids), None in ids.values()
        # After the ids: a partition that has the transaction open proves that its topic's id is that of the rows.
        others = set(client.partitions_of(topics)) - prepared.partitions
        producers = client.describe_producers(prepared.partitions | others, retry_seconds=0)
        if left := sorted(partition for partition in others if prepared.producer in (producers[partition] or ())):
            raise _lacks(left[0], name)
        if client.leaderless_of(topics) or any(producers[partition] is None for partition in others):
            self._check_everywhere(client, prepared)
        if not gone and any(producers[partition] is None for partition in prepared.partitions):
            producers = client.describe_producers(prepared.partitions)
        inside = Inside.GONE if gone else judge_partitions(prepared, producers)
        if inside not in (Inside.OPEN, Inside.SILENT):
            raise KafkaError(
                f"the transaction lost rows before it could be prepared ({inside}): a topic was deleted, somebody ran "
                "kafka-transactions abort, or an unclean leader was elected. Nothing of the epoch is committed; the "
                "next attempt writes it again",
                transaction=name,
            )
        return prepared

    def _check_everywhere(self, client: TransactionCoordinatorClient, prepared: Prepared) -> None:
        """Refuse a handle from a deposed coordinator, where a partition cannot say whether it has rows.

        Raises:
            KafkaError: Another broker knows of more partitions, or one does not answer.
        """
        name, known = prepared.handle.transactional_id, client.partitions_everywhere(prepared.handle)
        if known is None:
            error = KafkaError(
                "a partition has no leader and a broker does not answer, so the transaction's partitions cannot be "
                "told. Nothing of the epoch is committed; the next attempt writes it again",
                transaction=name,
            )
            error.retryable = True
            raise error
        if known - prepared.partitions:
            raise _lacks(min(known - prepared.partitions), name)

    def _pool(self, scope: Scope) -> ProducerPool:
        return pool_of(self.settings, scope, self._timeout_ms)

    @property
    def _timeout_ms(self) -> int:
        return round(self.transaction_timeout * 1000)

    @property
    def _client(self) -> TransactionCoordinatorClient:
        return cluster_of(self.settings).transactions

    @property
    def _bounded(self) -> TransactionCoordinatorClient:
        return self._client.within(commits.CALL_SECONDS)


def _lacks(partition: tuple[str, int], name: str) -> KafkaError:
    error = KafkaError(
        f"its coordinator does not know that the transaction has rows in {partition[0]}-{partition[1]}: another broker "
        "has taken its place. Nothing of the epoch is committed; the next attempt writes it again",
        transaction=name,
    )
    error.retryable = True
    return error


def _seconds(milliseconds: str) -> float:
    try:
        return float(milliseconds) / 1000
    except ValueError:
        raise ConfigurationError(
            f"Kafka setting transaction.timeout.ms must be a number of milliseconds, not {milliseconds!r}"
        ) from None


def _ids_of_topics(client: TransactionCoordinatorClient, topics: AbstractSet[str], name: str) -> dict[str, str | None]:
    """Return the id of each topic, None for one that does not exist.

    Raises:
        KafkaError: The brokers do not tell one of them. Without it, a topic that is deleted and created again before
            the commit would be taken for an operator's abort, and the rows of other topics would be given up.
    """
    ids: dict[str, str | None] = {}
    for _ in Retries(commits.CALL_SECONDS):
        ids |= {topic: id_ for topic, id_ in client.topic_ids(topics).items() if id_}
        if untold := topics - ids.keys():
            ids |= client.topic_ids(untold, everywhere=True)
        if topics <= ids.keys():
            return ids
    untold_names = ", ".join(sorted(topics - ids.keys()))
    raise kafka_error(
        f"the transaction cannot be prepared: the brokers do not tell the id of {untold_names}, or not all the same",
        Code.NO_ANSWER,
        transaction=name,
    )
