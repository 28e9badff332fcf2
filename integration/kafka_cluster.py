"""Several Kafka brokers as one cluster of local processes, and a client side whose network can be cut."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from onceward.testing.machine import free_port
from onceward.testing.proxy import Proxy
from onceward.testing.services import KafkaServer

from .kafka_kit import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEAP = "256m"
LOCAL = "127.0.0.1"


class KafkaCluster:
    """Brokers that keep every topic, and the log of transactions, on all of them; all but one must be in sync.

    Clients with `bootstrap_servers` reach each broker through a proxy, and no longer when `cut` is called; those with
    `direct` always do.

    Args:
        folder: For their state.
        brokers: How many. The first is number 1.
        controllers: How many of them are controllers, too.
    """

    def __init__(self, folder: Path, *, brokers: int = 3, controllers: int = 3) -> None:
        self.brokers = {number: KafkaServer(folder / str(number), heap=HEAP) for number in range(1, brokers + 1)}
        self._clients = {number: free_port() for number in self.brokers}
        self._proxies = {number: Proxy(LOCAL, port) for number, port in self._clients.items()}
        quorum = list(self.brokers)[:controllers]
        voters = ",".join(f"{n}@{LOCAL}:{self.brokers[n].settings['controller_port']}" for n in quorum)
        for number, broker in self.brokers.items():
            broker.settings["cluster_id"] = self.brokers[1].settings["cluster_id"]
            broker.config = {
                **replicated(brokers),
                **self._listeners(number, controller=number in quorum),
                "node.id": str(number),
                "controller.quorum.voters": voters,
            }

    def __enter__(self) -> Self:
        self._each(lambda broker: broker.start())
        self.up_again()
        return self

    def __exit__(self, *_: object) -> None:
        self._each(lambda broker: broker.delete())
        for proxy in self._proxies.values():
            proxy.close()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients find the brokers, through their proxies."""
        return ",".join(f"{LOCAL}:{proxy.port}" for proxy in self._proxies.values())

    @property
    def direct(self) -> str:
        """Where readers of the tests find them, whatever is cut."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.direct, "log_level": 0})

    def create(self, topic: str, partitions: int = 3, replicas: list[list[int]] | None = None) -> str:
        new = NewTopic(topic, len(replicas), replica_assignment=replicas) if replicas else NewTopic(topic, partitions)
        self.admin.create_topics([new])[topic].result(30)
        eventually(lambda: self._led(topic), "every partition has a leader", seconds=60)
        return topic

    def leaders(self, topic: str) -> dict[int, int]:
        """The broker that leads each partition; -1 if none does."""
        partitions = self.admin.list_topics(topic, timeout=10).topics[topic].partitions
        return {number: partition.leader for number, partition in sorted(partitions.items())}

    def _led(self, topic: str) -> bool:
        leaders = self.leaders(topic)
        return bool(leaders) and -1 not in leaders.values()

    def controller(self) -> int:
        """The active controller, as the brokers have written it down (brokers tell clients any live broker's id)."""
        states = [
            json.loads(file.read_text())
            for broker in self.brokers.values()
            if (file := broker.folder / "data" / "__cluster_metadata-0" / "quorum-state").exists()
        ]
        return int(max(states, key=lambda state: (state["leaderEpoch"], state["leaderId"]))["leaderId"])

    def up_again(self) -> None:
        """Start, resume and connect what a fault has left down, and wait until all replicas are in sync."""
        for proxy in self._proxies.values():
            proxy.mend()
        self._each(self._up)
        self.wait_in_sync()

    def wait_in_sync(self) -> None:
        """Until every partition has a leader and all its replicas: losing any one broker is no outage then."""
        eventually(self._in_sync, "all replicas in sync", seconds=90)

    def cut(self) -> None:
        """Drop everything between the clients and the brokers."""
        for proxy in self._proxies.values():
            proxy.cut()

    def mend(self) -> None:
        for proxy in self._proxies.values():
            proxy.mend()

    def _listeners(self, number: int, *, controller: bool) -> dict[str, str]:
        settings = self.brokers[number].settings
        inside = f"PLAINTEXT://{LOCAL}:{settings['port']}"
        listeners = [inside, f"CLIENT://{LOCAL}:{self._clients[number]}"]
        if controller:
            listeners.append(f"CONTROLLER://{LOCAL}:{settings['controller_port']}")
        return {
            "process.roles": "broker,controller" if controller else "broker",
            "listeners": ",".join(listeners),
            "advertised.listeners": f"{inside},CLIENT://{LOCAL}:{self._proxies[number].port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }

    def _up(self, broker: KafkaServer) -> None:
        broker.resume()
        broker.start_again()

    def _each(self, do: Callable[[KafkaServer], Any]) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(do, self.brokers.values()))

    def _in_sync(self) -> bool:
        try:
            seen = self.admin.list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = [partition for topic in seen.topics.values() for partition in topic.partitions.values()]
        return len(seen.brokers) == len(self.brokers) and all(
            partition.leader > 0 and len(partition.isrs) == len(partition.replicas) for partition in partitions
        )


def replicated(brokers: int) -> dict[str, str]:
    """A copy on each broker; an acknowledgment by all in-sync replicas survives the loss of any one of them."""
    copies, least = str(brokers), str(max(1, brokers - 1))
    return {
        "default.replication.factor": copies,
        "min.insync.replicas": least,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": least,
        "transaction.state.log.num.partitions": "6",
        # A replica that is dead or paused leaves the set after this.
        "replica.lag.time.max.ms": "3000",
        "controller.quorum.election.timeout.ms": "500",
        "controller.quorum.fetch.timeout.ms": "1000",
    }
