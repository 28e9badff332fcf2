"""Small Kafka brokers of one cluster that answer what the commit protocol asks, and may be silent, slow, or away."""

from __future__ import annotations

import socket
import struct
import threading
import time
import warnings
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from onceward.connectors.kafka.error_codes import Code
from onceward.testing.machine import LOOPBACK, free_port

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.admin import DescribeConfigsRequest, DescribeConfigsResponse
    from kafka.protocol.admin.transactions import (
        DescribeTransactionsRequest,
        DescribeTransactionsResponse,
        ListTransactionsRequest,
        ListTransactionsResponse,
    )
    from kafka.protocol.metadata import MetadataRequest, MetadataResponse
    from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
    from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
    from kafka.protocol.producer.transaction import EndTxnRequest, EndTxnResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SLOW_SECONDS = 0.3
REQUESTS = (
    ApiVersionsRequest,
    MetadataRequest,
    FindCoordinatorRequest,
    DescribeConfigsRequest,
    ListTransactionsRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
)


class Manner(StrEnum):
    """How a broker behaves."""

    WELL = "answers"
    SLOW = "answers late"
    SILENT = "accepts connections, and says nothing"
    FROZEN = "answers ApiVersions, and nothing else"
    REFUSES = "refuses connections"
    HOLE = "lets nobody connect, and does not say so"


class FakeBroker:
    """One broker of a FakeCluster."""

    def __init__(self, cluster: FakeCluster, node: int, manner: Manner) -> None:
        self.cluster, self.node, self.port, self.manner = cluster, node, free_port(), manner
        self.asked: list[str] = []
        self._fill: list[socket.socket] = []
        self._server: socket.socket | None = None
        self._connections: list[socket.socket] = []
        if manner is not Manner.REFUSES:
            self._listen()

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def _listen(self) -> None:
        self._server = socket.socket()
        self._server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._server.bind((LOOPBACK, self.port))
        if self.manner is Manner.HOLE:
            self._server.listen(0)
            for _ in range(3):  # its queue is full, so the kernel drops what comes
                one = socket.socket()
                one.setblocking(False)
                with suppress(BlockingIOError):
                    one.connect((LOOPBACK, self.port))
                self._fill.append(one)
            return
        self._server.listen(50)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()  # type: ignore[union-attr]
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while frame := _read(connection):
                key, version, correlation = struct.unpack(">hhi", frame[:8])
                kind = next(one for one in REQUESTS if key == one.API_KEY)
                self.asked.append(kind.__name__)
                versions = kind is ApiVersionsRequest
                if self.manner is Manner.SILENT or (self.manner is Manner.FROZEN and not versions):
                    continue
                if self.manner is Manner.SLOW and not versions:
                    time.sleep(SLOW_SECONDS)
                request = kind.decode(frame, version=version, header=True)
                answer = self.cluster.answer(self, request, version)
                answer.with_header(correlation_id=correlation)
                connection.sendall(answer.encode(framed=True, header=True))

    def close(self) -> None:
        for one in (*self._fill, *self._connections, *([self._server] if self._server else [])):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _read(connection: socket.socket) -> bytes:
    head = connection.recv(4, socket.MSG_WAITALL)
    return connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL) if len(head) == 4 else b""


class FakeCluster:
    """Brokers of one cluster, whose first one coordinates every transaction.

    Args:
        manners: How each of the brokers behaves, by node id.
        strays: How further addresses behave that are configured, and are no brokers.
    """

    def __init__(self, manners: Mapping[int, Manner], strays: tuple[Manner, ...] = ()) -> None:
        self.brokers = {node: FakeBroker(self, node, manner) for node, manner in manners.items()}
        self.strays = [FakeBroker(self, -1, manner) for manner in strays]
        self.coordinator = min(self.brokers)
        self.configs: dict[int, dict[str, str]] = {}
        self.topic_errors: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for broker in (*self.brokers.values(), *self.strays):
            broker.close()

    @property
    def addresses(self) -> list[str]:
        return [broker.address for broker in (*self.strays, *self.brokers.values())]

    def move(self, node: int, manner: Manner = Manner.WELL) -> FakeBroker:
        """Give a broker another address; what is at its old one stays as it is. Returns what is there."""
        old = self.brokers[node]
        self.brokers[node] = FakeBroker(self, node, manner)
        return old

    def answer(self, broker: FakeBroker, request: Any, version: int) -> Any:
        """The response to a request."""
        makers: dict[Any, Callable[[FakeBroker, Any], Any]] = {
            ApiVersionsRequest: self._versions,
            MetadataRequest: self._metadata,
            FindCoordinatorRequest: self._coordinators,
            DescribeConfigsRequest: self._configs,
            ListTransactionsRequest: self._listed,
            DescribeTransactionsRequest: self._described,
            EndTxnRequest: self._ended,
        }
        made = makers[type(request)](broker, request)
        made.API_VERSION = version
        return made

    def _versions(self, _broker: FakeBroker, _request: Any) -> Any:
        row = ApiVersionsResponse.ApiVersion
        keys = [row(api_key=r.API_KEY, min_version=r.min_version, max_version=r.max_version) for r in REQUESTS]
        return ApiVersionsResponse(error_code=0, api_keys=keys, throttle_time_ms=0)

    def _metadata(self, _broker: FakeBroker, request: Any) -> Any:
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=node, host=LOOPBACK, port=one.port, rack=None)
            for node, one in self.brokers.items()
        ]
        partition = MetadataResponse.MetadataResponseTopic.MetadataResponsePartition
        topics = [
            MetadataResponse.MetadataResponseTopic(
                error_code=self.topic_errors.get(topic.name, 0),
                name=topic.name,
                topic_id="00000000-0000-0000-0000-000000000001",
                is_internal=False,
                partitions=[
                    partition(
                        error_code=0,
                        partition_index=0,
                        leader_id=self.coordinator,
                        leader_epoch=1,
                        replica_nodes=[],
                        isr_nodes=[],
                        offline_replicas=[],
                    )
                ],
            )
            for topic in request.topics or ()
        ]
        return MetadataResponse(
            throttle_time_ms=0, brokers=brokers, cluster_id="fake", controller_id=self.coordinator, topics=topics
        )

    def _coordinators(self, _broker: FakeBroker, request: Any) -> Any:
        home = self.brokers[self.coordinator]
        rows = [
            FindCoordinatorResponse.Coordinator(
                key=key, node_id=home.node, host=LOOPBACK, port=home.port, error_code=0, error_message=""
            )
            for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(throttle_time_ms=0, coordinators=rows)

    def _configs(self, broker: FakeBroker, request: Any) -> Any:
        result = DescribeConfigsResponse.DescribeConfigsResult
        row = result.DescribeConfigsResourceResult
        values = self.configs.get(broker.node, {})
        return DescribeConfigsResponse(
            throttle_time_ms=0,
            results=[
                result(
                    error_code=0,
                    error_message="",
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[
                        row(name=name, value=value, read_only=False, config_source=5, is_sensitive=False, synonyms=[])
                        for name, value in values.items()
                        if resource.configuration_keys is None or name in resource.configuration_keys
                    ],
                )
                for resource in request.resources
            ],
        )

    def _listed(self, broker: FakeBroker, _request: Any) -> Any:
        state = ListTransactionsResponse.TransactionState
        rows = [state(transactional_id=f"id-of-{broker.node}", producer_id=7, transaction_state="Ongoing")]
        return ListTransactionsResponse(
            throttle_time_ms=0, error_code=0, unknown_state_filters=[], transaction_states=rows
        )

    def _described(self, broker: FakeBroker, request: Any) -> Any:
        code = Code.NONE if broker.node == self.coordinator else Code.NOT_COORDINATOR
        rows = [
            DescribeTransactionsResponse.TransactionState(
                error_code=code,
                transactional_id=name,
                transaction_state="Ongoing",
                transaction_timeout_ms=60_000,
                transaction_start_time_ms=1000,
                producer_id=7,
                producer_epoch=3,
                topics=[],
            )
            for name in request.transactional_ids
        ]
        return DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=rows)

    def _ended(self, broker: FakeBroker, _request: Any) -> Any:
        code = Code.NONE if broker.node == self.coordinator else Code.NOT_COORDINATOR
        return EndTxnResponse(throttle_time_ms=0, error_code=code)
