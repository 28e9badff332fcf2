"""One cluster, as this process sees it: its clients, topics and limits, and publishing how far a source was read.

What other processes' transactions need goes over kafka-python's connections (wire.py), which are there anyway where a
sink writes. Topics are created, offsets published and sources looked up through librdkafka's AdminClient.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import confluent_kafka
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic  # type: ignore[attr-defined]

from onceward.core.errors import ConfigurationError, ExternalError, KafkaError, OncewardError, refusing_rows
from onceward.core.kit.processwide import PerProcess

from .error_codes import FORBIDDEN, PASSING, Code, Retries, client_error, code_name, kafka_error, other_protocol
from .sizes import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .settings import KafkaSettings
    from .wire import WireAnswer

T = TypeVar("T")
E = TypeVar("E", bound=ExternalError)
ASK_SECONDS: Final = 10.0
"""Longest bound of one request."""
REACH_SECONDS: Final = 9.0
"""For the first answer of a cluster: a wrong address, or a broker that is not up yet, is reported soon."""
ATTEMPT_SECONDS: Final = 0.5
FIRST_SECONDS: Final = 2.5
"""Bound of the first request; it doubles. A broker that is dead may be waited for in vain: see _find_brokers."""
PAUSE_SECONDS: Final = 0.2
"""Between two tries."""
GROUP_SECONDS: Final = 5.0
"""Bound of one request to a group's coordinator."""
LEAST_SECONDS: Final = 0.5
"""Bound of one request when hardly any time is left."""
REFUSALS: Final = {"_AUTHENTICATION": Code.SASL_AUTHENTICATION_FAILED, "_SSL": Code.TLS_FAILED}
"""Trying again will not help: a wrong password, a certificate that is not trusted."""
LIMIT_SECONDS: Final = 2.0
"""How long to wait for each broker's settings, once one of them has answered."""
NEW_TOPIC_SECONDS: Final = 2.0
"""A broker hears of a new topic a moment after the one that was asked to create it."""
USUAL_LONGEST_TIMEOUT_MS: Final = 900_000
"""Kafka's default of transaction.max.timeout.ms, where the broker's may not be asked for."""
MOVING: Final = frozenset({Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR})
"""Answers while a group's coordinator moves, as after a broker's restart: asked again."""


def make_client(client: Callable[..., T], config: Mapping[str, Any], **more: Any) -> T:
    """Make a client of confluent-kafka.

    Raises:
        ConfigurationError: librdkafka refuses a setting; the message names it.
        KafkaError: There is no token to log in with. librdkafka would wait ten seconds, and not say why.
    """
    if "oauth_cb" in config:
        config["oauth_cb"]("")
    try:
        return client(config, **more)
    except KafkaException as error:
        if error.args[0].name() == "_CRIT_SYS_RESOURCE":
            raise client_error("cannot make a Kafka client", error) from None
        if str(config.get("security.protocol", "")).upper().endswith("SSL"):
            from .security import tls_context  # noqa: PLC0415 - only then

            tls_context(config)  # whose message says what is wrong with a file, and librdkafka's does not
        raise ConfigurationError(
            f"librdkafka refuses the Kafka settings: {error.args[0].str()}. They have librdkafka's names and values, "
            "not those of Kafka's Java client"
        ) from None


class Complaints:
    """The state of a librdkafka client's connections: pass this as `error_cb`, and poll the client before you read it.

    Attributes:
        refusal: The error with which the brokers refuse this client, if they do.
        newest: The newest reason why no broker can be reached; empty if there was none.
        down: Whether no broker could be reached.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.refusal: Any = None
        self.newest = ""
        self.down = False

    def __call__(self, error: Any) -> None:
        if error.name() in REFUSALS:
            self.refusal = error
        if error.name() == "_ALL_BROKERS_DOWN":  # which is no reason, but a summary
            self.down = True
        else:
            self.newest = error.str()


class Admin:
    """An AdminClient of confluent-kafka, what it complains of, and whether the cluster has ever answered it."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.complaints = Complaints()
        self._config = {"log_level": 0, **settings.for_librdkafka(), "error_cb": self.complaints}
        self.client = self._new()
        self.answered = False
        self._doubted = False
        self._servers = settings["bootstrap.servers"]
        self._protocol = settings.protocol

    def ask(
        self,
        what: str,
        question: Callable[[Any, float], T],
        seconds: float,
        error: type[ExternalError] = KafkaError,
    ) -> T:
        """Ask until there is an answer, while the fault may pass; each second time, also over calls, by a new client.

        A client whose broker was fenced while it was asked may get no answer any more, for minutes, while a new one
        does (seen with librdkafka 2.16). The old one is asked again, too: it knows brokers that are not configured.

        Args:
            what: For messages: what cannot be done without an answer.
            question: Asks the client; its second argument is the bound of this request, in seconds.
            seconds: How long to ask again while no broker answers. As long as the cluster has never answered this
                client, REACH_SECONDS at most.
            error: What is raised if there is no answer.

        Raises:
            KafkaError: No broker answers, or this client is refused; the message says why. Or else `error`.
        """
        self.client.poll(0)
        self.complaints.clear()
        give_up = time.monotonic() + (seconds if self.answered else min(seconds, REACH_SECONDS))
        bound = FIRST_SECONDS
        while True:
            client = self._new_or_kept() if self._doubted else self.client
            # Not all of the time in one try; and a last one that is not longer than what is left.
            least = FIRST_SECONDS if self.answered else LEAST_SECONDS
            within = max(least, min(bound, give_up - time.monotonic()))
            fault = None
            try:
                answer = question(client, within)
            except KafkaException as raised:
                fault = raised.args[0]  # what is raised while this is handled would keep the client for ever
            if fault is None:
                self.client, self.answered, self._doubted = client, True, False
                return answer
            self._doubted = self.answered and client is self.client
            _find_brokers(client)
            why, lasting = self._why(client, fault)
            if lasting or time.monotonic() >= give_up:
                raise _failure(error(f"cannot {what}: {why}"), retryable=not lasting)
            bound = min(ASK_SECONDS, 2 * bound)
            time.sleep(PAUSE_SECONDS)

    def ask_coordinator(self, question: Callable[[Any], T]) -> T:
        """Ask a consumer group's coordinator; once more, by a new client, if there is no answer in time.

        A client that has asked it before its broker was restarted gets no answer any more, however often it asks, while
        a new one does (measured, librdkafka 2.16).

        Args:
            question: Asks the client, and waits for GROUP_SECONDS at most.

        Raises:
            KafkaException: There is no answer, or a refusal.
        """
        try:
            return question(self.client)
        except KafkaException as fault:
            if fault.args[0].name() != "_TIMED_OUT":
                raise
        client = self._new()
        answer = question(client)
        self.client = client
        return answer

    def _new(self) -> Any:
        return make_client(AdminClient, self._config)

    def _new_or_kept(self) -> Any:
        """Return a new client; the kept one, if none can be made now (a token or a certificate is missing)."""
        with suppress(OncewardError):
            return self._new()
        return self.client

    def _why(self, client: Any, fault: Any) -> tuple[str, bool]:
        """Return why there is no answer, and whether asking again cannot help."""
        client.poll(0)
        refusal, newest = self.complaints.refusal, self.complaints.newest
        if refusal is not None and not self.answered:
            code = code_name(REFUSALS[refusal.name()])
            return f"the brokers at {self._servers} refuse this client: {code}: {refusal.str()}", True
        if not passes(fault):
            return f"{fault.str()} (asked at {self._servers})", True
        if self.complaints.down and not newest and not self.answered:
            # librdkafka gives a reason for a connection that fails, and none for one that is closed without an answer.
            newest = f"connections are closed without an answer. {other_protocol(self._protocol)}"
        return f"no broker answers at {self._servers}: {newest or fault.str()}", False


def admin_of(settings: KafkaSettings) -> Admin:
    """Return this process's AdminClient for the cluster; settings of producers and consumers alone do not matter."""
    return _admins.get(settings.connection())


def check_reachable(settings: KafkaSettings, *, seconds: float = REACH_SECONDS) -> None:
    """Connect to any broker, with a client of its own.

    Raises:
        ConfigurationError: librdkafka refuses a setting.
        KafkaError: No broker answers within `seconds`, or this client is refused; the message says why.
    """
    Admin(settings).ask("reach Kafka", lambda client, _: client.list_topics(timeout=ATTEMPT_SECONDS), seconds)


def _failure(error: E, *, retryable: bool) -> E:
    """Mark an error; who raises it holds no name for it, which would keep its frames, and a client, alive."""
    error.retryable = retryable
    return error


def _find_brokers(client: Any) -> None:
    """Ask any broker for metadata.

    librdkafka describes topics through the broker that its metadata call the controller, and waits for that one alone:
    once it is dead, every later question of this client fails, for longer than 100 s (measured), though the cluster is
    well.
    """
    with suppress(KafkaException):
        client.list_topics(timeout=ATTEMPT_SECONDS)


def passes(error: Any) -> bool:
    """Return whether an error of librdkafka's may go away by itself."""
    kinds: Any = confluent_kafka.KafkaError
    passing = {
        kinds._ALL_BROKERS_DOWN,  # noqa: SLF001 - confluent's names of local faults
        kinds._TRANSPORT,  # noqa: SLF001
        kinds._TIMED_OUT,  # noqa: SLF001
        kinds._RESOLVE,  # noqa: SLF001
        kinds._WAIT_CACHE,  # noqa: SLF001
        kinds._DESTROY_BROKER,  # noqa: SLF001 - the broker was fenced while it was asked, and may be back soon
        kinds.LEADER_NOT_AVAILABLE,
        kinds.NOT_LEADER_FOR_PARTITION,
        kinds.REPLICA_NOT_AVAILABLE,
        kinds.REQUEST_TIMED_OUT,
        kinds.BROKER_NOT_AVAILABLE,
        kinds.NETWORK_EXCEPTION,
        kinds.OFFSET_NOT_AVAILABLE,
        kinds.FENCED_LEADER_EPOCH,
        kinds.UNKNOWN_LEADER_EPOCH,
        kinds.KAFKA_STORAGE_ERROR,
    }
    return bool(error.code() in passing or error.retriable())


class Limits(NamedTuple):
    """Number and settings of the brokers that limit transactions."""

    brokers: int
    longest_timeout_ms: int
    """transaction.max.timeout.ms"""
    known: bool
    """Whether the brokers told; if asking for their configuration is forbidden, Kafka's defaults are assumed."""
    message_bytes: int | None = None
    """message.max.bytes, which topics without a setting of their own have."""


class Cluster:
    """Connections of one process to one cluster.

    Attributes:
        known_limits: What the brokers allow, once they were asked.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        from .transaction_coordinator import TransactionCoordinatorClient  # noqa: PLC0415 - reading needs no kafka-python,
        from .wire import Wire  # noqa: PLC0415 - whose import is a third of the start of each process that reads

        self.wire = Wire(settings.for_wire())
        self.transactions = TransactionCoordinatorClient(self.wire)
        self._settings = settings
        self.known_limits: Limits | None = None
        self._seen_topics: set[str] = set()
        self._missing_topics: set[str] = set()
        self._topic_limits: dict[str, int | None] = {}

    def limits(self, *, anew: bool = False) -> Limits:
        """Return the brokers' limits, which are asked for once.

        Args:
            anew: Ask again, as at a start, or after a broker has refused what it allowed before.

        Raises:
            KafkaError: No broker answers.
        """
        if anew or self.known_limits is None:
            self.known_limits = self._ask_limits()
        return self.known_limits

    def sizes(self, settings: KafkaSettings, topics: Iterable[str], *, anew: bool = False) -> Sizes:
        """Return the bounds of messages and batches for these topics, whose limits are asked for once.

        Args:
            settings: Those of the producer.
            topics: Topics that it writes to; if there are none yet, the brokers' default counts.
            anew: Ask again, as after a refusal.
        """
        wanted = sorted(set(topics))
        missing = [topic for topic in wanted if anew or topic not in self._topic_limits]
        if missing:
            self._topic_limits |= self.wire.topic_limits(missing, seconds=LIMIT_SECONDS)
        if not wanted:
            return Sizes.of(settings, {"": self.limits().message_bytes})
        return Sizes.of(settings, {topic: self._topic_limits[topic] for topic in wanted})

    def partitions_of(self, topic: str) -> int:
        """Return the number of the topic's partitions; 0 if there is no such topic.

        Raises:
            KafkaError: No broker answers, or asking is forbidden.
        """
        answer = self.wire.topic(topic, seconds=ASK_SECONDS)
        if answer.code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            return 0
        if answer.code == Code.INVALID_TOPIC_EXCEPTION:
            why = f"{topic!r} is no name of a topic: Kafka takes up to 249 letters, digits, '.', '_' and '-'"
            raise refusing_rows(KafkaError(why))
        if answer.code:
            raise kafka_error(f"cannot look topic {topic} up", answer.code, answer.detail)
        return int(answer.response)

    def may_write(self, topic: str) -> bool:
        """Return whether this client may write to the topic; True if the brokers do not say.

        Raises:
            ConfigurationError: librdkafka refuses a setting.
        """
        future: Any = admin_of(self._settings).client.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=ASK_SECONDS
        )
        try:
            operations = future[topic].result().authorized_operations
        except KafkaException:
            return True
        return not operations or AclOperation.WRITE in operations

    def create_topic(self, topic: str, partitions: int | None) -> None:
        """Create a topic, or find that somebody else did; the brokers know it when this returns.

        Raises:
            KafkaError: The brokers refuse, or do not answer.
        """
        new = NewTopic(topic, partitions or -1, -1)  # -1: the brokers' default
        future = admin_of(self._settings).client.create_topics([new], request_timeout=ASK_SECONDS)[topic]
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise client_error(f"cannot create topic {topic}", error) from None
        if any(self.partitions_of(topic) for _ in Retries(ASK_SECONDS)):
            return
        raise kafka_error(f"topic {topic} was created, and the brokers do not show it", Code.UNKNOWN_TOPIC_OR_PARTITION)

    def check_topics(self, topics: Iterable[str]) -> None:
        """Check that topics exist, once for each. Wait for a new one, and not again for one that did not appear.

        Raises:
            KafkaError: One does not, or no broker answers.
        """
        for topic in sorted(set(topics) - self._seen_topics):
            seconds = 0 if topic in self._missing_topics else NEW_TOPIC_SECONDS
            if not any(self.partitions_of(topic) for _ in Retries(seconds)):
                self._missing_topics.add(topic)
                why = f"topic {topic} does not exist: create it first. No topic is created by writing to it"
                raise refusing_rows(KafkaError(why))
            self._seen_topics.add(topic)

    def _ask_limits(self) -> Limits:
        """Ask every broker: what one allows, another one may not, for example in the middle of a rolling change.

        Brokers that are silent do not count as long as others answer: they coordinate no transaction meanwhile.
        """
        retries = Retries(ASK_SECONDS)
        answers: dict[int, WireAnswer] = {}
        for _ in retries:
            nodes = self.wire.nodes(seconds=retries.left)
            answers |= self.wire.broker_configs([n for n in nodes if n not in answers], seconds=retries.left)
            known = {node: answer for node, answer in answers.items() if answer.code not in PASSING}
            if known and (len(known) == len(nodes) or retries.left < ASK_SECONDS - LIMIT_SECONDS):
                break
            answers = known
        if not answers:
            raise kafka_error("no broker answers", Code.NO_ANSWER, self.wire.last_fault)
        return _limits_of(answers)


def _limits_of(answers: Mapping[int, WireAnswer]) -> Limits:
    told = [answer.response for answer in answers.values() if not answer.code]
    if not told:
        worst = next(iter(answers.values()))
        if all(answer.code in FORBIDDEN for answer in answers.values()):
            return Limits(len(answers), USUAL_LONGEST_TIMEOUT_MS, known=False)
        raise kafka_error("cannot read the brokers' configuration", worst.code, worst.detail)

    def least(name: str) -> int | None:
        return min((int(config[name]) for config in told if config.get(name)), default=None)

    longest = least("transaction.max.timeout.ms") or USUAL_LONGEST_TIMEOUT_MS
    return Limits(len(answers), longest, known=True, message_bytes=least("message.max.bytes"))


def cluster_of(settings: KafkaSettings) -> Cluster:
    """Return this process's connections to the cluster; settings of producers and consumers alone do not matter."""
    return _clusters.get(settings.connection())


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
    if not group:
        raise ConfigurationError("the consumer group's name is empty")
    positions = [TopicPartition(t, int(n), o) for t, numbers in offsets.items() for n, o in numbers.items()]
    if not positions:
        return
    what = f"cannot publish offsets to consumer group {group}"
    request = ConsumerGroupTopicPartitions(group, positions)

    def publish(client: Any) -> Any:
        return client.alter_consumer_group_offsets([request], request_timeout=GROUP_SECONDS)[group].result()

    refusals: list[tuple[str, Any]] = []
    for _ in Retries(ASK_SECONDS):
        try:
            answer = admin_of(settings).ask_coordinator(publish)
            refusals = [
                (f"{what} for {p.topic}-{p.partition}", p.error) for p in answer.topic_partitions if p.error is not None
            ]
        except KafkaException as error:
            refusals = [(what, error.args[0])]
        if not refusals:
            return
        if refusals[-1][1].code() not in MOVING:
            break
    where, refusal = refusals[-1]
    raise client_error(where, KafkaException(refusal))


_admins: Final[PerProcess[KafkaSettings, Admin]] = PerProcess(Admin)
_clusters: Final[PerProcess[KafkaSettings, Cluster]] = PerProcess(Cluster)
