"""One cluster, as this process sees it: its clients, topics and limits, and publishing how far a source was read.

What other processes' transactions need goes over kafka-python's connections (wire.py), which are there anyway where a
sink writes. Topics are created, offsets published and sources looked up through librdkafka's AdminClient.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.errors import ConfigurationError, KafkaError
from onceward.core.kit.processwide import PerProcess

from .errors import FORBIDDEN, INSTALL, Code, Retries, client_error, confluent, kafka_error, made

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .coordinator import TransactionCoordinatorClient
    from .settings import KafkaSettings
    from .wire import Wire

ASK_SECONDS: Final = 10.0
REACH_SECONDS: Final = 10.0
ATTEMPT_SECONDS: Final = 0.5
REFUSALS: Final = {"_AUTHENTICATION": Code.SASL_AUTHENTICATION_FAILED, "_SSL": Code.TLS_FAILED}
"""Trying again will not help: a wrong password, a certificate that is not trusted."""
NEW_TOPIC_SECONDS: Final = 2.0
"""A broker hears of a new topic a moment after the one that was asked to create it."""
BROKERS_DEFAULT: Final = -1
USUAL_LONGEST_TIMEOUT_MS: Final = 900_000
"""Kafka's default of transaction.max.timeout.ms, where the broker's may not be asked for."""
MOVING: Final = frozenset({Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
"""Answers while a group's coordinator moves, as after a broker's restart: asked again."""


class Complaints:
    """What a librdkafka client says of its connections: give it as `error_cb`, and poll the client before you read it.

    Attributes:
        refusal: The error with which the brokers refuse this client, if they do.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.refusal: Any = None
        self._reason = ""
        self._summary = ""

    def __call__(self, error: Any) -> None:
        """The client's callback."""
        if error.name() in REFUSALS:
            self.refusal = error
        if error.name() == "_ALL_BROKERS_DOWN":
            self._summary = error.str()
        else:
            self._reason = error.str()

    @property
    def newest(self) -> str:
        """The newest reason why no broker can be reached; empty if there was none."""
        return self._reason or self._summary


class Admin:
    """An AdminClient of confluent-kafka, and what it complains of.

    Attributes:
        client: The client.
        complaints: Read them after `client.poll(0)`.
        answered: Whether the cluster has ever answered this process.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        confluent()
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - an extra

        self.complaints = Complaints()
        config = {"log_level": 0, **settings.for_librdkafka(), "error_cb": self.complaints}
        self.client: Any = made(AdminClient, config)
        self.answered = False


def admin_of(settings: KafkaSettings) -> Admin:
    """This process's AdminClient for the cluster; producers' and consumers' own settings make no difference."""
    return _admins.get(settings.connection())


def check_reachable(settings: KafkaSettings, *, seconds: float = REACH_SECONDS) -> None:
    """Connect to any broker.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
        KafkaError: No broker answers within `seconds`, or this client is refused; the message says why.
    """
    admin = Admin(settings)
    deadline = time.monotonic() + seconds
    while True:
        try:
            admin.client.list_topics(timeout=ATTEMPT_SECONDS)
        except confluent().KafkaException as error:
            admin.client.poll(0)
            refusal = admin.complaints.refusal
            if refusal is not None:
                code = REFUSALS[refusal.name()]
                raise kafka_error("the brokers refuse this client", code, refusal.str()) from None
            if time.monotonic() > deadline:
                words, servers = admin.complaints.newest or str(error), settings["bootstrap.servers"]
                raise kafka_error(f"no broker answers at {servers}", Code.NO_ANSWER, words) from None
        else:
            return


class Limits(NamedTuple):
    """What the brokers say of themselves."""

    brokers: int
    longest_timeout_ms: int
    """transaction.max.timeout.ms"""
    known: bool
    """Whether the broker told; if asking for its configuration is forbidden, Kafka's default is assumed."""


class Cluster:
    """Connections of one process to one cluster.

    Args:
        settings: Where and how to connect.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        wire, client = _modules()
        self.wire: Wire = wire.Wire(settings.for_wire())
        self.transactions: TransactionCoordinatorClient = client.TransactionCoordinatorClient(self.wire)
        self._settings = settings
        self._limits: Limits | None = None
        self._seen_topics: set[str] = set()

    def limits(self) -> Limits:
        """What the brokers allow; asked once.

        Raises:
            KafkaError: No broker answers.
        """
        if self._limits is None:
            self._limits = self._ask_limits()
        return self._limits

    def partitions_of(self, topic: str) -> int:
        """How many partitions the topic has; 0 if there is no such topic.

        Raises:
            KafkaError: No broker answers, or asking is forbidden.
        """
        answer = self.wire.topic(topic, seconds=ASK_SECONDS)
        if answer.code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            return 0
        if answer.code:
            raise kafka_error(f"cannot look topic {topic} up", answer.code, answer.detail)
        return int(answer.response)

    def create_topic(self, topic: str, partitions: int | None) -> None:
        """Create a topic, or find that somebody else did; the brokers know it when this returns.

        Args:
            topic: Its name.
            partitions: How many it gets; None: as many as the brokers give a new topic (num.partitions).

        Raises:
            KafkaError: The brokers refuse, or do not answer.
        """
        from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415 - an extra

        new = NewTopic(topic, partitions or BROKERS_DEFAULT, BROKERS_DEFAULT)
        future = admin_of(self._settings).client.create_topics([new], request_timeout=ASK_SECONDS)[topic]
        try:
            future.result()
        except confluent().KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise client_error(f"cannot create topic {topic}", error) from None
        if any(self.partitions_of(topic) for _ in Retries(ASK_SECONDS)):
            return
        raise kafka_error(f"topic {topic} was created, and the brokers do not show it", Code.UNKNOWN_TOPIC_OR_PARTITION)

    def check_topics(self, topics: Iterable[str]) -> None:
        """Check that topics exist, once for each.

        Raises:
            KafkaError: One does not, or no broker answers.
        """
        for topic in sorted(set(topics) - self._seen_topics):
            if not any(self.partitions_of(topic) for _ in Retries(NEW_TOPIC_SECONDS)):
                raise KafkaError(f"topic {topic} does not exist: create it first. No topic is created by writing to it")
            self._seen_topics.add(topic)

    def _ask_limits(self) -> Limits:
        nodes = self.wire.nodes(seconds=ASK_SECONDS)
        if not nodes:
            raise kafka_error("no broker answers", Code.NO_ANSWER, self.wire.last_fault)
        answer = self.wire.broker_config(nodes[0], seconds=ASK_SECONDS)
        if answer.code in FORBIDDEN:
            return Limits(len(nodes), USUAL_LONGEST_TIMEOUT_MS, known=False)
        if answer.code:
            raise kafka_error("cannot read the brokers' configuration", answer.code, answer.detail)
        config: dict[str, str] = answer.response
        longest = int(config.get("transaction.max.timeout.ms", USUAL_LONGEST_TIMEOUT_MS))
        return Limits(len(nodes), longest, known=True)


def cluster_of(settings: KafkaSettings) -> Cluster:
    """This process's connections to the cluster; producers' and consumers' own settings make no difference."""
    return _clusters.get(settings.connection())


def _modules() -> tuple[Any, Any]:
    try:
        from . import coordinator, wire  # noqa: PLC0415 - they need kafka-python, an extra
    except ImportError as error:
        raise ConfigurationError(INSTALL) from error
    return wire, coordinator


def publish_offsets(settings: KafkaSettings, group: str, offsets: Mapping[str, Mapping[str, int]]) -> None:
    """Commit offsets to a consumer group without joining it (AlterConsumerGroupOffsets, KIP-396).

    For people and tools that watch lag. The library itself never reads them: positions come from the epoch's decision
    and the checkpoint. So publishing is idempotent, and may be skipped. Call it only after the epoch that ends at these
    offsets is completed.

    Args:
        settings: Where and how to connect.
        group: Name of the group. It must have no member that consumes at present.
        offsets: The next offset of each partition: `{"topic": {"0": 123}}`.

    Raises:
        ConfigurationError: The group's name is empty.
        KafkaError: No broker answers, or it refuses: the group has live members, or we may not.
    """
    library = confluent()
    if not group:
        raise ConfigurationError("the consumer group's name is empty")
    found = [library.TopicPartition(t, int(n), o) for t, numbers in offsets.items() for n, o in numbers.items()]
    if not found:
        return
    what = f"cannot publish offsets to consumer group {group}"
    where, refusal = what, None
    for _ in Retries(ASK_SECONDS):
        where, refusal = what, None
        try:
            request = library.ConsumerGroupTopicPartitions(group, found)
            admin = admin_of(settings).client
            futures = admin.alter_consumer_group_offsets([request], request_timeout=ASK_SECONDS)
            answer = futures[group].result()
        except library.KafkaException as error:
            refusal = error
        else:
            for partition in (p for p in answer.topic_partitions if p.error is not None):
                where = f"{what} for {partition.topic}-{partition.partition}"
                refusal = library.KafkaException(partition.error)
        if refusal is None or refusal.args[0].code() not in MOVING:
            break
    if refusal is not None:
        raise client_error(where, refusal)


_admins: Final[PerProcess[KafkaSettings, Admin]] = PerProcess(Admin)
_clusters: Final[PerProcess[KafkaSettings, Cluster]] = PerProcess(Cluster)
