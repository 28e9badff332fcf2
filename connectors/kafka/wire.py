"""Sends Kafka requests that no public client API can send. Like coordinator.py, a user of kafka-python's private parts.

confluent-kafka cannot end a transaction that another process began, and kafka-python's producer neither; but
kafka-python ships every request of the protocol, and a connection manager that sends them. What is private about it:
`kafka.net` (the manager and its event loop) and the request classes. integration/test_kafka_wire.py is the contract
test: run it before a new kafka-python is allowed.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.errors import named_text_of

from .errors import FORBIDDEN, Code

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 and 3.12 call deprecated (3.13 does not any more).
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.errors import BrokerResponseError
    from kafka.net.inet import KafkaNetSocket
    from kafka.net.manager import KafkaConnectionManager
    from kafka.net.sasl.oauth import AbstractTokenProvider
    from kafka.net.selector import NetworkSelector
    from kafka.protocol.admin import DescribeConfigsRequest
    from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .security import TokenSource

PIPELINE: Final = 100
"""Requests in flight on one connection."""

BOOTSTRAP_SECONDS: Final = 10.0
"""How long to wait for the first broker."""
ANY_NODE: Final = None
BROKER_RESOURCE: Final = 4


class _NoLogins(logging.Filter):
    """A filter that keeps credentials out of kafka-python's DEBUG lines, which show each request with its bytes."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG or not (
            record.name == "kafka.protocol.parser" or "Sasl" in record.getMessage()
        )


for _logger in ("kafka.protocol.parser", "kafka.net.connection"):
    logging.getLogger(_logger).addFilter(_NoLogins())

CLIENT_LOGGERS: Final = ("kafka.net", "kafka.cluster")
"""kafka-python's, of what is used here."""
OWN: Final = {
    "proxy_url": "onceward:///",
    "max_in_flight_requests_per_connection": PIPELINE + 20,
    "receive_message_max_bytes": 100_000_000,
    "reconnect_backoff_max_ms": 1000,
}


class WireAnswer(NamedTuple):
    """The response to one request, or why there is none."""

    code: int
    response: Any = None
    detail: str = ""

    @property
    def result(self) -> int:
        """The broker's code for the whole request, or the fault."""
        return self.code or int(getattr(self.response, "error_code", Code.NONE))


class Topics(NamedTuple):
    """Topics as one broker knows them."""

    leaders: dict[tuple[str, int], int]
    """Node of each partition's leader; partitions without one are missing."""
    ids: dict[str, str | None]
    """Id of each topic, None for one that does not exist; what cannot be told is missing."""
    leaderless: frozenset[tuple[str, int]] = frozenset()
    """Partitions without a leader."""


class Wire:
    """Connections to the brokers of one cluster. Thread-safe; belongs to the process that made it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)
        self._lock = threading.Lock()
        self._manager: Any = None
        self.last_fault = ""
        """Why the newest request that got no answer got none."""

    def exchange(self, requests: Sequence[tuple[int | None, Any]], *, seconds: float) -> list[WireAnswer]:
        """Send requests to nodes (None: any), all concurrently, and wait for the answers.

        Requests to one node are pipelined: they arrive and are answered in order.

        Args:
            requests: Pairs of node id and request.
            seconds: Bound of the whole wait.

        Returns:
            One answer for each request. A fault of the network is an Answer with NO_ANSWER, never an exception.
        """
        deadline = time.monotonic() + seconds
        answers: list[WireAnswer] = []
        for begin in range(0, len(requests), PIPELINE):
            answers += self._exchange(requests[begin : begin + PIPELINE], deadline)
        self.last_fault = next((a.detail for a in answers if a.code), self.last_fault)
        return answers

    def _exchange(self, requests: Sequence[tuple[int | None, Any]], deadline: float) -> list[WireAnswer]:
        try:
            manager = self._connected(deadline - time.monotonic())
            sent: list[WireAnswer] = manager.run(lambda: _send_all(manager, requests, deadline))
        except Exception as error:  # noqa: BLE001 - kafka-python raises its own, OSError, RuntimeError when closing
            return [_fault(error)] * len(requests)
        return sent

    def coordinators(self, ids: Sequence[str], *, seconds: float) -> dict[str, WireAnswer]:
        """Find the transaction coordinators; the response of each answer is a node id."""
        request = FindCoordinatorRequest(
            key_type=CoordinatorType.TRANSACTION.value, coordinator_keys=list(ids), min_version=4
        )
        [answer] = self.exchange([(ANY_NODE, request)], seconds=seconds)
        if answer.code:
            return dict.fromkeys(ids, answer)
        rows = answer.response.coordinators

        def add(cluster: Any) -> None:
            for row in rows:
                if row.error_code == Code.NONE:
                    cluster.add_coordinator(row, CoordinatorType.TRANSACTION, row.key, synthesize_node_id=False)

        self._learn(add)
        answers = {row.key: WireAnswer(row.error_code, row.node_id, row.error_message or "") for row in rows}
        return {name: answers.get(name, WireAnswer(Code.COORDINATOR_NOT_AVAILABLE)) for name in ids}

    def nodes(self, *, seconds: float) -> list[int]:
        """Return the ids of the cluster's brokers, asked for anew; none if no broker answers."""
        [answer] = self.exchange([(ANY_NODE, metadata_request([]))], seconds=seconds)
        self._meet_brokers(answer)
        return [] if answer.code else [broker.node_id for broker in answer.response.brokers]

    def leaderless(self, topic: str, *, seconds: float) -> list[int]:
        """Return the partitions of a topic that have no leader, as one broker shows them; empty if it shows none."""
        [answer] = self.exchange([(ANY_NODE, metadata_request([topic]))], seconds=seconds)
        self._meet_brokers(answer)
        topics = answer.response.topics if answer.code == Code.NONE else ()
        return sorted(p.partition_index for row in topics for p in row.partitions if p.leader_id < 0)

    def topics(self, names: Sequence[str] | None, *, seconds: float) -> Topics:
        """Ask one broker for these topics, or for all (None)."""
        [answer] = self.exchange([(ANY_NODE, metadata_request(names))], seconds=seconds)
        return self.topics_in(answer)

    def topics_in(self, answer: WireAnswer) -> Topics:
        """Read the answer to a `metadata_request`; return empty Topics if it is an error."""
        self._meet_brokers(answer)
        partitions = {
            (topic.name, partition.partition_index): partition
            for topic in (answer.response.topics if answer.code == Code.NONE else ())
            for partition in topic.partitions
        }
        leaders = {
            name: partition.leader_id
            for name, partition in partitions.items()
            if partition.error_code == Code.NONE and partition.leader_id >= 0
        }
        return Topics(leaders, _ids_in(answer), frozenset(partitions.keys() - leaders.keys()))

    def topic_ids_everywhere(self, topics: Sequence[str], *, seconds: float) -> dict[str, str | None]:
        """Return the ids of topics as in Topics where all brokers agree: one may not have heard of a change yet."""
        nodes = self.nodes(seconds=seconds)
        answers = self.exchange([(node, metadata_request(topics)) for node in nodes], seconds=seconds)
        first, *others = [_ids_in(answer) for answer in answers] or [{}]
        return {topic: id_ for topic, id_ in first.items() if all(ids.get(topic, "") == id_ for ids in others)}

    def topic(self, name: str, *, seconds: float) -> WireAnswer:
        """Look a topic up; the response is its number of partitions."""
        [answer] = self.exchange([(ANY_NODE, metadata_request([name]))], seconds=seconds)
        self._meet_brokers(answer)
        if answer.code:
            return answer
        [topic] = answer.response.topics
        return WireAnswer(topic.error_code, len(topic.partitions))

    def broker_config(self, node: int, *, seconds: float) -> WireAnswer:
        """Return a broker's configuration; the response is a dictionary of texts."""
        resource = DescribeConfigsRequest.DescribeConfigsResource
        resources = resource(resource_type=BROKER_RESOURCE, resource_name=str(node), configuration_keys=None)
        [answer] = self.exchange([(node, DescribeConfigsRequest(resources=[resources]))], seconds=seconds)
        if answer.code:
            return answer
        [result] = answer.response.results
        values = {row.name: row.value for row in result.configs}
        return WireAnswer(result.error_code, values, result.error_message or "")

    def forget(self) -> None:
        """Drop all connections; the next exchange starts from the bootstrap servers again."""
        with self._lock:
            manager, self._manager = self._manager, None
        if manager is not None:
            _close(manager)

    def _meet_brokers(self, answer: WireAnswer) -> None:
        """Make the brokers that an answer names known: kafka-python looks for them every five minutes only."""
        if answer.code == Code.NONE:
            self._learn(lambda cluster: cluster.update_metadata(answer.response))

    def _learn(self, what: Callable[[Any], object]) -> None:
        """Update the connections' knowledge of the cluster."""
        manager = self._manager
        if manager is not None:
            with suppress(Exception):  # it is being closed
                manager.run(lambda: what(manager.cluster))

    def _connected(self, seconds: float) -> Any:
        with self._lock:
            if self._manager is None:
                self._manager = _connect(self._config, min(BOOTSTRAP_SECONDS, seconds))
            return self._manager


def metadata_request(topics: Sequence[str] | None) -> Any:
    """Return the request for the metadata of these topics, or of all (None); it creates none."""
    names = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=names, allow_auto_topic_creation=False, max_version=12)


def _ids_in(answer: WireAnswer) -> dict[str, str | None]:
    """Return the ids of topics in one broker's answer."""
    rows = answer.response.topics if answer.code == Code.NONE else ()
    gone = {row.name: None for row in rows if row.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION}
    return gone | {row.name: str(row.topic_id) for row in rows if row.error_code == Code.NONE}


class _ClosingPlainSocket(KafkaNetSocket):  # type: ignore[misc]
    """A socket that is closed at once if it cannot connect; kafka-python leaves that to the garbage collector.

    With a large heap, which is collected seldom, a broker that refused cost a descriptor each minute (measured).
    What takes the place of kafka-python's own socket has to be a proxy of some scheme: see `proxy_url` in OWN.
    """

    SCHEMES = ("onceward",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """kafka-python's shape of a token source."""

    def __init__(self, source: TokenSource) -> None:
        super().__init__()
        self._source = source

    def token(self) -> str:
        return self._source.token().value

    def extensions(self) -> dict[str, str]:
        return self._source.extensions


def _connect(config: Mapping[str, Any], seconds: float) -> Any:
    config = dict(config)
    source = config.pop("token_source", None)
    if source is not None:
        config["sasl_oauth_token_provider"] = _Tokens(source)
    _quiet()
    net = NetworkSelector()
    manager = KafkaConnectionManager(net, **{**OWN, **config})
    net.start()
    try:
        manager.bootstrap(max(0.1, seconds) * 1000)
    except BaseException:
        _close(manager)
        raise
    return manager


def _quiet() -> None:
    """Keep kafka-python from logging each failed connection as an error, unless somebody has set its loggers' levels.

    An answer that does not come carries the reason, and whoever asked says so.
    """
    if logging.getLogger("kafka").level == logging.NOTSET:
        for logger in map(logging.getLogger, CLIENT_LOGGERS):
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.CRITICAL)


def _close(manager: Any) -> None:
    net = manager._net  # noqa: SLF001
    with suppress(Exception):
        manager.run(manager.close)
    net.stop(timeout_ms=2000)
    net.close()


async def _send_all(manager: Any, requests: Sequence[tuple[int | None, Any]], deadline: float) -> list[WireAnswer]:
    futures = [_sent(manager, request, node, deadline) for node, request in requests]
    return [await _answer(manager, future, deadline) for future in futures]


def _sent(manager: Any, request: Any, node: int | None, deadline: float) -> Any:
    try:
        return manager.send(request, node, _milliseconds_to(deadline))
    except Exception as error:  # noqa: BLE001 - an unknown node, a sticky authentication failure
        return error


async def _answer(manager: Any, future: Any, deadline: float) -> WireAnswer:
    if isinstance(future, Exception):
        return _fault(future)
    try:
        return WireAnswer(Code.NONE, await manager.wait_for(future, _milliseconds_to(deadline)))
    except Exception as error:  # noqa: BLE001 - any failure to get an answer is NO_ANSWER
        return _fault(error)


def _milliseconds_to(deadline: float) -> float:
    return max(1.0, (deadline - time.monotonic()) * 1000)


def _fault(error: Exception) -> WireAnswer:
    code: int = Code.NO_ANSWER
    if isinstance(error, BrokerResponseError) and error.errno in FORBIDDEN:
        code = error.errno
    return WireAnswer(code, detail=named_text_of(error))
