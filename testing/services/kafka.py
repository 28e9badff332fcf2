"""A real Apache Kafka broker: one node in KRaft mode, on this machine, without Docker."""

from __future__ import annotations

import base64
import os
import uuid
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, ClassVar

from onceward.core.kit.folders import put_once
from onceward.core.kit.programs import find_java, run_program

from ..machine import (
    LOOPBACK,
    DevServiceError,
    accepts_connections,
    broker_answers,
    free_port,
)
from .jars import ensure_jars, jars_folder
from .service import Service

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from signal import Signals

KAFKA_LOCK = Path(__file__).with_name("kafka-4.3.1.lock")

FAST_ONE_NODE: Mapping[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After SIGKILL a broker answers again in 4 s with these two, in 12 s with the defaults.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # Generated data carries generated timestamps, which retention by time would take for old.
    "log.retention.ms": "-1",
    # By default the controller writes a record every half second to show that it lives: a third of the idle CPU time.
    "metadata.max.idle.interval.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
}

# The variable is that of Kafka's own scripts.
JVM_OPTIONS = "KAFKA_JVM_PERFORMANCE_OPTS"
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

META, BOOTSTRAP = "meta.properties", "bootstrap.checkpoint"
"""Files that formatting writes: the broker's ids; and the versions of the cluster's features."""
UNUSUAL = {"log.dirs", "metadata.log.dir", "unstable.feature.versions.enable"}
"""Settings with which formatting writes something else, or elsewhere."""

LOGGING = """\
status = warn
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = info
rootLogger.appenderRef.0.ref = console
"""


def listener_settings(listeners: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return the broker's settings for listeners without encryption.

    Args:
        listeners: Pairs of the address where the broker listens and the address that clients are told ("": none), by
            listener's name.
    """
    return {
        "listeners": ",".join(f"{name}://{here}" for name, (here, _) in listeners.items()),
        "advertised.listeners": ",".join(f"{name}://{told}" for name, (_, told) in listeners.items() if told),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
    }


class KafkaServer(Service):
    """A Kafka broker in the background. Needs Java 17; its jars are fetched once and verified.

    Args:
        folder: Folder of the broker's state.
        config: Broker settings beside or instead of the fast ones for one node.
        behind_proxy: A port on which the broker listens too, and the address `host:port` that its clients there are
            told: that of a proxy before it.
        heap: Size of the JVM's heap.
        detached: True: it outlives this program.
    """

    title: ClassVar[str] = "Kafka"
    address_name: ClassVar[str] = "bootstrap_servers"
    stop_signals: ClassVar[Sequence[tuple[Signals, float]]] = ((SIGTERM, 15.0),)

    def __init__(
        self,
        folder: Path,
        *,
        config: Mapping[str, str] | None = None,
        behind_proxy: tuple[int, str] | None = None,
        heap: str = "512m",
        detached: bool = False,
    ) -> None:
        super().__init__(folder, detached=detached)
        self.config = dict(config or {})
        self.behind_proxy = behind_proxy
        self.heap = heap

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients, `host:port`."""
        return f"{LOOPBACK}:{self.settings['port']}"

    def answers(self) -> bool:
        """Return whether the broker is registered and serves metadata."""
        return accepts_connections(self.settings["port"]) and broker_answers(self.bootstrap_servers)

    def _new_settings(self) -> dict[str, Any]:
        port = free_port()
        return {"port": port, "controller_port": free_port({port}), "cluster_id": _new_id()}

    def _prepare(self) -> list[str | Path]:
        java = find_java()
        properties = self.folder / "server.properties"
        logging = self.folder / "log4j2.properties"
        logging.write_text(LOGGING)
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._broker_config().items()))
        options = [f"-Dlog4j2.configurationFile={logging}", *os.environ.get(JVM_OPTIONS, QUICK_START).split()]
        kafka: list[str | Path] = [java, *options, "-cp", f"{ensure_jars(KAFKA_LOCK)}/*"]
        if not (self.folder / "data" / META).exists():
            self._format([*kafka, "kafka.tools.StorageTool", "format", "--ignore-formatted", "-c", properties])
        return [*kafka, f"-Xmx{self.heap}", "kafka.Kafka", properties]

    def _format(self, tool: Sequence[str | Path]) -> None:
        """Format the broker's folder.

        The tool takes a second. But for the ids, it writes the same for each broker of its version, so that is kept.
        """
        data, cluster = self.folder / "data", self.settings["cluster_id"]
        kept = jars_folder(KAFKA_LOCK) / BOOTSTRAP
        usual = not self.config.keys() & UNUSUAL
        if usual and kept.exists():
            data.mkdir(exist_ok=True)
            (data / BOOTSTRAP).write_bytes(kept.read_bytes())
            ids = {"node.id": self._broker_config()["node.id"], "cluster.id": cluster, "directory.id": _new_id()}
            lines = [f"{name}={value}\n" for name, value in {"version": "1", **ids}.items()]
            (data / META).write_text("".join(lines))
            return
        done = run_program([*tool, "-t", cluster])
        if done.returncode != 0:
            raise DevServiceError(f"Kafka's storage tool failed: {done.stdout}")
        if usual:
            with suppress(OSError):  # a cache that may only be read
                put_once(kept, (data / BOOTSTRAP).read_bytes())

    def _broker_config(self) -> dict[str, str]:
        controller = f"{LOOPBACK}:{self.settings['controller_port']}"
        listeners = {"PLAINTEXT": (self.bootstrap_servers, self.bootstrap_servers), "CONTROLLER": (controller, "")}
        if self.behind_proxy is not None:
            port, told = self.behind_proxy
            listeners["PROXIED"] = (f"{LOOPBACK}:{port}", told)
        return {
            **FAST_ONE_NODE,
            **listener_settings(listeners),
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self.folder / "data"),
            **self.config,
        }


def _new_id() -> str:
    """Return an id as Kafka writes them, without a leading dash, which its tools would take for an option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode().replace("-", "_")
