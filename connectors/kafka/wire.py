"""Sends Kafka requests that no public client API can send.

Like transaction_coordinator.py, it uses kafka-python's private parts.

confluent-kafka cannot end a transaction that another process began, and kafka-python's producer neither; but
kafka-python ships every request of the protocol, and a connection manager that sends them. What is private about it:
`kafka.net` (the manager and its event loop) and the request classes. integration/test_kafka_wire.py is the contract
test: run it before a new kafka-python is allowed.

No try takes all the time of a call:

1. A question for any broker goes to one host, and to a further one whenever HEDGE_SECONDS pass without an answer: to
   those that are connected, to those that the cluster has named, and to those that were configured, which may be the
   only ones that are still right. Hosts that did not answer last time come last. The first answer counts.
2. A request for one broker is waited for briefly, and for twice as long after each time that it got no answer; whoever
   asked then looks up again who is to be asked. If it is the same one, the request is not sent twice, and the answer to
   the first one counts. So a silent broker leaves time for the others, and a slow one is heard in the end.
3. A connection whose request has waited for SILENT_SECONDS is closed, also after the call has given up: time without an
   answer is counted across calls. So is a connection to an address that the cluster no longer names.
4. No call takes longer than its caller has said, whatever it waits for: a connection, a login, a name's address.
"""

from __future__ import annotations

import copy
import logging
import random
import re
import threading
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from onceward.core.errors import named_text_of, text_of

from .error_codes import FORBIDDEN, Code, other_protocol

with warnings.catch_warnings():
    # kafka-python reads its schemas by a function that Python 3.11 and 3.12 call deprecated (3.13 does not any more).
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.errors import BrokerResponseError, KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError
    from kafka.future import Future
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

HEDGE_SECONDS: Final = 0.5
"""How long any broker may take to answer before another one is asked, too."""
TRY_SECONDS: Final = 1.0
"""How long to wait for a certain broker at first."""
LONGEST_TRY: Final = 8.0
SILENT_SECONDS: Final = 5.0
"""After how long without an answer a connection is closed."""
ROUND_SECONDS: Final = 0.1
"""Pause after all hosts were asked in vain."""
GRACE_SECONDS: Final = 0.25
"""More than the event loop needs to notice that the time is over."""
ANY_NODE: Final = None
TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
TOPICS_OWN: Final = 1
"""Source of a setting that was made for one topic: all brokers agree about it."""


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
    "socket_connection_setup_timeout_ms": 4000,
    "socket_connection_setup_timeout_max_ms": 4000,
}

_NOT_KAFKA: Final = ("socket disconnected", "Handshake failed: [SSL: UNEXPECTED_EOF", "Invalid frame length")
"""What a listener of another security.protocol answers."""
_NAMES: Final = re.compile(r"(\[Error \d+\] |\w+Error: )*")

Host = int | str
"""A broker: its node id; or the name of a configured address."""


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
        self._suspects: set[Host] = set()
        self._patience: dict[Host, float] = {}
        self._reasons: dict[Host, str] = {}
        self._unanswered: dict[tuple[int, int], tuple[Any, Any]] = {}  # so that late answers count
        self.last_fault = ""
        """Why the newest request that got no answer got none."""

    def exchange(self, requests: Sequence[tuple[int | None, Any]], *, seconds: float) -> list[WireAnswer]:
        """Send requests to nodes (None: any), all concurrently, and wait for the answers.

        Requests to one node are pipelined: they arrive and are answered in order.

        Args:
            requests: Pairs of node id and request.
            seconds: Bound of the whole wait. A certain node is waited for less long, see (2).

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
        done = threading.Event()
        try:
            manager = self._connected()
            answers = manager.call_soon(lambda: self._ask_all(manager, requests, deadline))
            answers.add_both(lambda _: done.set())
        except Exception as error:  # noqa: BLE001 - kafka-python raises its own, OSError, RuntimeError when closing
            return [_fault(error)] * len(requests)
        # (4) The event loop itself waits while it looks up a name.
        if not done.wait(max(0.0, deadline - time.monotonic()) + GRACE_SECONDS):
            return [WireAnswer(Code.NO_ANSWER, detail="looking up a broker's name takes too long")] * len(requests)
        if answers.exception is not None:
            return [_fault(answers.exception)] * len(requests)
        found: list[WireAnswer] = answers.value
        return found

    async def _ask_all(
        self, manager: Any, requests: Sequence[tuple[int | None, Any]], deadline: float
    ) -> list[WireAnswer]:
        tasks = [self._begun(manager, node, request, deadline) for node, request in requests]
        return [await task for task in tasks]

    def _begun(self, manager: Any, node: int | None, request: Any, deadline: float) -> Any:
        """Return what gives the answer when it is awaited; the request is on its way already."""
        if node is None:
            return manager.call_soon(lambda: self._ask_anyone(manager, request, deadline))
        now = time.monotonic()
        sent = self._sent_once(manager, node, request, deadline)
        # (2) At most half of the time that is left, unless it is hardly any: others are to be asked afterwards.
        longest = max(TRY_SECONDS, min(self._patience.get(node, TRY_SECONDS), (deadline - now) / 2))
        return self._answer_of(manager, node, request, sent, began=now, until=min(deadline, now + longest))

    def _sent_once(self, manager: Any, node: int, request: Any, deadline: float) -> Any:
        """Send a request, unless an earlier try has sent it and its answer may still come: a slow broker is heard."""
        same, sent = self._unanswered.pop((node, id(request)), (None, None))
        return sent if same is request and not sent.is_done else self._sent(manager, node, request, deadline)

    async def _answer_of(
        self, manager: Any, node: int, request: Any, sent: Any, *, began: float, until: float
    ) -> WireAnswer:
        if isinstance(sent, Exception):
            return self._fault_of(manager, node, sent)
        await _done(manager, sent, until)
        now = time.monotonic()
        if not sent.is_done:
            waited = now - began
            self._unanswered = {key: pair for key, pair in self._unanswered.items() if not pair[1].is_done}
            self._unanswered[node, id(request)] = request, sent
            if waited >= HEDGE_SECONDS:
                self._patience[node] = min(LONGEST_TRY, max(self._patience.get(node, 0.0), 2 * waited))
                self._suspects.add(node)
            return WireAnswer(Code.NO_ANSWER, detail=f"{_place(manager, node)} did not answer within {waited:.1f} s")
        if sent.exception is not None:
            return self._fault_of(manager, node, sent.exception)
        self._heard(node, now - began)
        return WireAnswer(Code.NONE, sent.value)

    async def _ask_anyone(self, manager: Any, request: Any, deadline: float) -> WireAnswer:
        """Ask one host, and further ones while there is no answer (1)."""
        known = next(iter(self._reasons.values()), "no broker answered in time")
        won, asked, fault = Future(), dict[Host, Any](), WireAnswer(Code.NO_ANSWER, detail=known)
        while not won.is_done and time.monotonic() < deadline:
            for host in self._hosts(manager):
                if host not in asked or asked[host].is_done:
                    asked[host], why = await self._ask_further(manager, host, request, deadline, won)
                    fault = fault if why is None or fault.code in FORBIDDEN else why
                if won.is_done or time.monotonic() >= deadline:
                    break
            else:
                if fault.code in FORBIDDEN and all(sent.is_done for sent in asked.values()):
                    break
                await _done(manager, won, min(deadline, time.monotonic() + ROUND_SECONDS))
        return self._winner(manager, *won.value) if won.is_done else fault

    async def _ask_further(
        self, manager: Any, host: Host, request: Any, deadline: float, won: Any
    ) -> tuple[Any, WireAnswer | None]:
        """Ask this host, too, and wait for HEDGE_SECONDS for any answer; why this host gives none, if it said so."""
        sent, began = self._sent(manager, host, copy.copy(request), deadline), time.monotonic()
        if isinstance(sent, Exception):
            return Future().failure(sent), self._fault_of(manager, host, sent)
        sent.add_callback(lambda response: _win(won, (host, began, response)))
        await _done(manager, won, min(deadline, began + HEDGE_SECONDS), sent)
        if sent.is_done:
            return sent, None if sent.exception is None else self._fault_of(manager, host, sent.exception)
        if not won.is_done and time.monotonic() - began >= HEDGE_SECONDS:
            self._suspects.add(host)
        return sent, None

    def _winner(self, manager: Any, host: Host, began: float, response: Any) -> WireAnswer:
        self._heard(host, time.monotonic() - began)
        if hasattr(response, "brokers"):
            self._meet_brokers(manager, response)
        connection = manager._conns.get(host)  # noqa: SLF001
        if isinstance(host, str) and manager.cluster.brokers() and connection and not connection.in_flight_requests:
            connection.close()  # from now on, it is known by its node id
        return WireAnswer(Code.NONE, response)

    def _hosts(self, manager: Any) -> list[Host]:
        """Return whom to ask, in which order (1): known brokers and configured addresses."""
        cluster, connections = manager.cluster, manager._conns  # noqa: SLF001
        hosts: list[Host] = [broker.node_id for broker in (*cluster.brokers(), *cluster.bootstrap_brokers())]
        random.shuffle(hosts)

        def rank(host: Host) -> tuple[bool, bool, bool]:
            connected = host in connections and connections[host].connected
            return host in self._suspects, not connected, isinstance(host, str)

        return sorted(hosts, key=rank)

    def _sent(self, manager: Any, host: Host, request: Any, deadline: float) -> Any:
        """Send a request; return the Future of its response, or why it cannot be sent."""
        # (3) The timer of a request closes the connection, after this call, too; not because this call has no time.
        seconds = max(SILENT_SECONDS, deadline - time.monotonic())
        try:
            known = host in manager._conns  # noqa: SLF001
            connection = manager.get_connection(host, refresh_metadata_on_err=False)
            if not known:
                _read_to_the_end(connection)
            return manager.send(request, host, seconds * 1000)
        except Exception as error:  # noqa: BLE001 - an unknown node, a failed login
            manager._auth_failures.pop(host, None)  # noqa: SLF001 - it may be mended: the next call tries again
            return error

    def _heard(self, host: Host, seconds: float) -> None:
        self._suspects.discard(host)
        self._reasons.pop(host, None)
        self._patience[host] = min(LONGEST_TRY, max(TRY_SECONDS, 2 * seconds))

    def _fault_of(self, manager: Any, host: Host, error: Exception) -> WireAnswer:
        """Return the answer for an error; if it is only that a connection is not tried again yet, with the reason."""
        if isinstance(error, NodeNotReadyError) and host in self._reasons:
            return WireAnswer(Code.NO_ANSWER, detail=self._reasons[host])
        fault = _fault(error)
        never_heard = host not in self._patience and not isinstance(host, int)
        if never_heard and any(words in fault.detail for words in _NOT_KAFKA):
            fault = fault._replace(detail=f"{fault.detail}. {other_protocol(manager.config['security_protocol'])}")
        fault = fault._replace(detail=f"{_place(manager, host)}: {fault.detail}")
        self._reasons[host] = fault.detail
        return fault

    def coordinators(self, ids: Sequence[str], *, seconds: float) -> dict[str, WireAnswer]:
        """Find the transaction coordinators; the response of each answer is a node id."""
        request = FindCoordinatorRequest(
            key_type=CoordinatorType.TRANSACTION.value, coordinator_keys=list(ids), min_version=4
        )
        # With the brokers' addresses, which may have changed together with the coordinators.
        answer, _ = self.exchange([(ANY_NODE, request), (ANY_NODE, metadata_request([]))], seconds=seconds)
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
        return [] if answer.code else [broker.node_id for broker in answer.response.brokers]

    def leaderless(self, topic: str, *, seconds: float) -> WireAnswer:
        """Look for partitions of a topic that have no leader.

        Returns:
            The response is a list of their numbers, as one broker shows them; None with the code of an error, also if
            this client may not describe the topic. A topic that does not exist has none.
        """
        [answer] = self.exchange([(ANY_NODE, metadata_request([topic]))], seconds=seconds)
        if answer.code:
            return answer
        [row] = answer.response.topics
        if row.error_code not in (Code.NONE, Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE):
            return WireAnswer(row.error_code)
        return WireAnswer(Code.NONE, sorted(p.partition_index for p in row.partitions if p.leader_id < 0))

    def topics(self, names: Sequence[str] | None, *, seconds: float) -> Topics:
        """Ask one broker for these topics, or for all (None)."""
        [answer] = self.exchange([(ANY_NODE, metadata_request(names))], seconds=seconds)
        return self.topics_in(answer)

    def topics_in(self, answer: WireAnswer) -> Topics:
        """Read the answer to a `metadata_request`; return empty Topics if it is an error."""
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
        if answer.code:
            return answer
        [topic] = answer.response.topics
        return WireAnswer(topic.error_code, len(topic.partitions))

    def broker_configs(self, nodes: Sequence[int], *, seconds: float) -> dict[int, WireAnswer]:
        """Return each broker's own configuration; the response is a dictionary of texts."""
        requests = [(node, _describe_configs(BROKER_RESOURCE, [str(node)])) for node in nodes]
        answers = self.exchange(requests, seconds=seconds)
        return {node: _config_in(answer) for node, answer in zip(nodes, answers, strict=True)}

    def topic_limits(self, topics: Sequence[str], *, seconds: float) -> dict[str, int | None]:
        """Return the largest batch that each topic takes, in bytes; None if no broker tells it.

        A topic without a setting of its own has that of the broker which is asked, so all of them are, and the smallest
        one counts of those that answer.
        """
        request = _describe_configs(TOPIC_RESOURCE, topics, ["max.message.bytes"])
        deadline = time.monotonic() + seconds
        [answer] = self.exchange([(ANY_NODE, request)], seconds=seconds)
        limits = _limits_in(answer)
        defaults = [topic for topic, (_, source) in limits.items() if source != TOPICS_OWN]
        if defaults:
            nodes = self.nodes(seconds=max(0.0, deadline - time.monotonic()))
            request = _describe_configs(TOPIC_RESOURCE, defaults, ["max.message.bytes"])
            requests = [(node, copy.copy(request)) for node in nodes]
            for other in self.exchange(requests, seconds=max(0.0, deadline - time.monotonic())):
                limits |= {t: min(limits[t], found) for t, found in _limits_in(other).items()}
        return {topic: limits[topic][0] if topic in limits else None for topic in topics}

    def forget(self) -> None:
        """Drop all connections; the next exchange starts from the bootstrap servers again."""
        with self._lock:
            manager, self._manager = self._manager, None
        if manager is not None:
            _close(manager)

    def _meet_brokers(self, manager: Any, response: Any) -> None:
        """Learn the brokers' addresses: kafka-python looks for them every five minutes only."""
        cluster = manager.cluster
        before = {broker.node_id: (broker.host, broker.port) for broker in cluster.brokers()}
        cluster.update_metadata(response)
        for broker in cluster.brokers():
            now = broker.host, broker.port
            if before.get(broker.node_id, now) != now:
                self._leave(manager, broker.node_id)

    def _leave(self, manager: Any, node: int) -> None:
        """(3) Close the connection to a node's former address."""
        connection = manager._conns.get(node)  # noqa: SLF001
        if connection is not None:
            connection.close(KafkaConnectionError("the broker has another address now"))
        manager.reset_backoff(node)
        self._suspects.discard(node)
        self._patience.pop(node, None)

    def _learn(self, what: Callable[[Any], object]) -> None:
        """Update the connections' knowledge of the cluster."""
        manager = self._manager
        if manager is not None:
            with suppress(Exception):  # it is being closed
                manager.call_soon(lambda: what(manager.cluster))

    def _connected(self) -> Any:
        with self._lock:
            if self._manager is None:
                self._manager = _make_manager(self._config)
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


def _read_to_the_end(connection: Any) -> None:
    """Have the connection read what its broker has sent right before it closed the connection.

    A broker does that with a refused login. kafka-python drops what comes together with the end, so that a wrong
    password looked like a network that is down (measured).
    """
    made = connection.connection_made

    def reading(transport: Any) -> None:
        receive = transport._sock_recv  # noqa: SLF001

        def all_of_it() -> tuple[bytes, Any]:
            data, end = receive()
            return data, None if data else end  # the end is found again by the next read

        transport._sock_recv = all_of_it  # noqa: SLF001
        made(transport)

    connection.connection_made = reading


def _make_manager(config: Mapping[str, Any]) -> Any:
    config = dict(config)
    source = config.pop("token_source", None)
    if source is not None:
        config["sasl_oauth_token_provider"] = _Tokens(source)
    _quiet()
    net = NetworkSelector()
    manager = KafkaConnectionManager(net, **{**OWN, **config})
    net.start()
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


async def _done(manager: Any, future: Any, until: float, other: Any = None) -> None:
    """Wait until one of two futures has a value or an error, or until the time is over."""
    either = Future()
    for one in (future, *([other] if other is not None else [])):
        one.add_both(lambda _: _win(either, None))
    with suppress(KafkaTimeoutError):
        await manager.wait_for(either, max(1.0, (until - time.monotonic()) * 1000))


def _win(future: Any, value: Any) -> None:
    if not future.is_done:
        future.success(value)


def _place(manager: Any, host: Host) -> str:
    """Return where a host is, for messages."""
    broker = manager.cluster.broker_metadata(host)
    return f"broker {host}" if broker is None else f"{broker.host}:{broker.port}"


def _describe_configs(kind: int, names: Sequence[str], keys: list[str] | None = None) -> Any:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    resources = [resource(resource_type=kind, resource_name=name, configuration_keys=keys) for name in names]
    return DescribeConfigsRequest(resources=resources)


def _config_in(answer: WireAnswer) -> WireAnswer:
    if answer.code:
        return answer
    [result] = answer.response.results
    values = {row.name: row.value for row in result.configs}
    return WireAnswer(result.error_code, values, result.error_message or "")


def _limits_in(answer: WireAnswer) -> dict[str, tuple[int, int]]:
    """Return each topic's limit and the source of it, where the answer tells them."""
    results = answer.response.results if answer.code == Code.NONE else ()
    return {
        result.resource_name: (int(row.value), row.config_source)
        for result in results
        if result.error_code == Code.NONE
        for row in result.configs
    }


def _fault(error: Exception) -> WireAnswer:
    code: int = Code.NO_ANSWER
    if isinstance(error, BrokerResponseError) and error.errno in FORBIDDEN:
        code = error.errno
    words = text_of(error)  # kafka-python's begin with the name
    if code in FORBIDDEN:  # which has the name already
        return WireAnswer(code, detail=_NAMES.sub("", words))
    return WireAnswer(code, detail=words if words.startswith(type(error).__name__) else named_text_of(error))
