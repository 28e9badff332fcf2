"""One cluster, as this process sees it: the coordinator client, and what the brokers allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.errors import ConfigurationError, KafkaError
from onceward.core.kit.processwide import PerProcess

from .codes import FORBIDDEN, Code
from .connectivity import admin_of
from .errors import INSTALL, client_error, confluent, kafka_error
from .retries import Retries

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .coordinator import TransactionCoordinatorClient
    from .settings import KafkaSettings
    from .wire import Wire

ASK_SECONDS: Final = 10.0
NEW_TOPIC_SECONDS: Final = 2.0
"""A broker hears of a new topic a moment after the one that was asked to create it."""
BROKERS_DEFAULT: Final = -1
USUAL_LONGEST_TIMEOUT_MS: Final = 900_000
"""Kafka's default of transaction.max.timeout.ms, where the broker's may not be asked for."""


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


_clusters: Final[PerProcess[KafkaSettings, Cluster]] = PerProcess(Cluster)

__all__ = ["ASK_SECONDS", "Cluster", "Limits", "cluster_of"]
