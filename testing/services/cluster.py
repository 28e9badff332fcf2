"""Several Kafka brokers as one cluster of local processes: with or without logins, behind networks that can be cut."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

from ..machine import LOOPBACK, DevServiceError, free_port
from ..proxy import Proxy
from .kafka import KafkaServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

HEAP: Final = "256m"
_POLL_SECONDS: Final = 0.1
_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"

QUICK_TIMES: Final[Mapping[str, str]] = {
    # A replica that is dead or paused leaves the set after this.
    "replica.lag.time.max.ms": "3000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.fetch.timeout.ms": "1000",
}
"""Times after which a cluster notices a fault: with these, tests take less time."""
KAFKAS_TIMES: Final[Mapping[str, str]] = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "replica.lag.time.max.ms": "30000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
}
"""Kafka's own defaults: a fault lasts as long as in production."""


class KafkaCluster:
    """Brokers that keep every topic, and the log of transactions, on all of them; all but one must be in sync.

    Clients with `bootstrap_servers` reach each broker through a proxy, and no longer when `cut` is called; those with
    `direct` always do, without a login. Use it in a `with` block, which starts and deletes the brokers.

    Args:
        folder: Folder for their state.
        brokers: Number of brokers. The first is number 1.
        controllers: Number of them that are controllers, too.
        times: The brokers' times: KAFKAS_TIMES, or the shorter QUICK_TIMES.
        logins: Passwords by user name. With any, clients of `bootstrap_servers` log in by SASL/PLAIN, and may do only
            what an ACL allows; `settings_of` returns their settings. Clients of `direct` may do everything.
        config: Further settings of all brokers.
        detached: True: the brokers outlive this program, so there is no proxy before them, and no login.
    """

    def __init__(
        self,
        folder: Path,
        *,
        brokers: int = 3,
        controllers: int = 3,
        times: Mapping[str, str] = QUICK_TIMES,
        logins: Mapping[str, str] | None = None,
        config: Mapping[str, str] | None = None,
        detached: bool = False,
    ) -> None:
        self.folder = folder
        self.brokers = {
            number: KafkaServer(folder / str(number), heap=HEAP, detached=detached) for number in range(1, brokers + 1)
        }
        self._clients = {} if detached else {number: free_port() for number in self.brokers}
        self._logins = dict(logins or {})
        self.proxies = {number: Proxy(LOOPBACK, port) for number, port in self._clients.items()}
        """The network between the clients and each broker."""
        quorum = list(self.brokers)[:controllers]
        voters = ",".join(f"{n}@{LOOPBACK}:{self.brokers[n].settings['controller_port']}" for n in quorum)
        for number, broker in self.brokers.items():
            broker.settings["cluster_id"] = self.brokers[1].settings["cluster_id"]
            broker.config = {
                **replicated(brokers),
                **times,
                **self._listeners(number, controller=number in quorum),
                **self._security(),
                "node.id": str(number),
                "controller.quorum.voters": voters,
                **(config or {}),
            }

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._each(lambda broker: broker.delete())
        for proxy in self.proxies.values():
            proxy.close()

    def start(self) -> None:
        """Start the brokers that do not run, and wait until all replicas are in sync."""
        self._each(lambda broker: broker.start())
        self.up_again()

    @property
    def bootstrap_servers(self) -> str:
        """Addresses for clients, through the proxies if there are any."""
        return ",".join(f"{LOOPBACK}:{proxy.port}" for proxy in self.proxies.values()) or self.direct

    @property
    def direct(self) -> str:
        """Addresses for readers of tests, whatever is cut."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def settings_of(self, user: str) -> dict[str, str]:
        """Return the settings with which a client logs in as this user, under librdkafka's names."""
        login = {"sasl.username": user, "sasl.password": self._logins[user]}
        return {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", **login}

    @cached_property
    def admin(self) -> Any:
        """An AdminClient of confluent-kafka, on `direct`."""
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - an extra

        return AdminClient({"bootstrap.servers": self.direct, "log_level": 0})

    def create(
        self,
        topic: str,
        partitions: int = 3,
        replicas: list[list[int]] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, and wait until every partition has a leader; return its name."""
        from confluent_kafka.admin import NewTopic  # noqa: PLC0415 - an extra

        where: dict[str, Any] = {"replica_assignment": replicas} if replicas else {}
        new = NewTopic(topic, len(replicas) if replicas else partitions, config=dict(config or {}), **where)
        self.admin.create_topics([new])[topic].result(30)
        _wait(lambda: self._led(topic), f"a leader of each partition of {topic}", seconds=60)
        return topic

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the broker that leads each partition; -1 if none does."""
        partitions = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
        return {number: partition.leader for number, partition in sorted(partitions.items())}

    def _led(self, topic: str) -> bool:
        leaders = self.leaders(topic)
        return bool(leaders) and -1 not in leaders.values()

    def controller(self) -> int:
        """Return the active controller as the brokers have written it down: they tell clients any live broker."""
        states = [
            json.loads(file.read_text())
            for broker in self.brokers.values()
            if (file := broker.folder / "data" / "__cluster_metadata-0" / "quorum-state").exists()
        ]
        return int(max(states, key=lambda state: (state["leaderEpoch"], state["leaderId"]))["leaderId"])

    def up_again(self) -> None:
        """Start, resume and connect what a fault has left down, and wait until all replicas are in sync."""
        self.mend()
        self._each(self._up)
        self.wait_in_sync()

    def wait_in_sync(self, seconds: float = 120.0) -> None:
        """Wait until every partition has a leader and all its replicas: losing any one broker is no outage then.

        Raises:
            DevServiceError: It takes longer than `seconds`.
        """
        _wait(self._in_sync, "all replicas in sync", seconds)

    def cut(self) -> None:
        """Drop everything between the clients and the brokers."""
        for proxy in self.proxies.values():
            proxy.cut()

    def mend(self) -> None:
        """Connect the clients again."""
        for proxy in self.proxies.values():
            proxy.mend()

    def _listeners(self, number: int, *, controller: bool) -> dict[str, str]:
        settings, client = self.brokers[number].settings, "SASL_PLAINTEXT" if self._logins else "PLAINTEXT"
        inside = f"PLAINTEXT://{LOOPBACK}:{settings['port']}"
        listeners = [inside, *(f"CLIENT://{LOOPBACK}:{port}" for n, port in self._clients.items() if n == number)]
        told = [inside, *(f"CLIENT://{LOOPBACK}:{proxy.port}" for n, proxy in self.proxies.items() if n == number)]
        if controller:
            listeners.append(f"CONTROLLER://{LOOPBACK}:{settings['controller_port']}")
        return {
            "process.roles": "broker,controller" if controller else "broker",
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(told),
            "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CLIENT:{client},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }

    def _security(self) -> dict[str, str]:
        if not self._logins:
            return {}
        users = " ".join(f'user_{name}="{password}"' for name, password in self._logins.items())
        return {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.client.plain.sasl.jaas.config": f"{_MODULE} required {users};",
        }

    def _up(self, broker: KafkaServer) -> None:
        broker.resume()
        broker.start_again()

    def _each(self, do: Callable[[KafkaServer], Any]) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(do, self.brokers.values()))

    def _in_sync(self) -> bool:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - an extra

        try:
            seen = self.admin.list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = [partition for topic in seen.topics.values() for partition in topic.partitions.values()]
        return len(seen.brokers) == len(self.brokers) and all(
            partition.leader > 0 and len(partition.isrs) == len(partition.replicas) for partition in partitions
        )


def replicated(brokers: int) -> dict[str, str]:
    """Return settings that keep a copy on each broker: what all but one have acknowledged survives the loss of any."""
    copies, least = str(brokers), str(max(1, brokers - 1))
    return {
        "default.replication.factor": copies,
        "min.insync.replicas": least,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": least,
        "transaction.state.log.num.partitions": "6",
    }


def _wait(check: Callable[[], bool], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            raise DevServiceError(f"the cluster does not have {what} within {seconds:g} s")
        time.sleep(_POLL_SECONDS)
