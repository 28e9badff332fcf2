"""Real Kafka and PostgreSQL in the background, for development, tests and the demo; no Docker, no root."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from onceward.core.errors import ConfigurationError

from ..machine import DevServiceError, state_home
from .cluster import KAFKAS_TIMES, QUICK_TIMES, KafkaCluster
from .kafka import KafkaServer
from .postgres import PostgresServer
from .service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "KAFKAS_TIMES",
    "QUICK_TIMES",
    "DevServiceError",
    "DevServices",
    "KafkaCluster",
    "KafkaServer",
    "PostgresServer",
    "Service",
    "dev_services",
    "services_at",
]


_CLUSTER: Final = "kafka-cluster"


@dataclass(frozen=True)
class DevServices:
    """The services of one state folder; `kafka` or `postgres` is None if it was not asked for.

    With several brokers, `cluster` has them, and `kafka` is None.
    """

    home: Path
    kafka: KafkaServer | None
    postgres: PostgresServer | None
    cluster: KafkaCluster | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Kafka's address for clients, or all brokers' addresses."""
        if self.cluster is not None:
            return self.cluster.bootstrap_servers
        if self.kafka is None:
            raise ConfigurationError("there is no Kafka among these services: leave out kafka=False")
        return self.kafka.bootstrap_servers

    @property
    def dsn(self) -> str:
        """PostgreSQL's connection URI, password included."""
        if self.postgres is None:
            raise ConfigurationError("there is no PostgreSQL among these services: leave out postgres=False")
        return self.postgres.dsn

    @property
    def named(self) -> dict[str, Service]:
        """The services asked for, by names for people."""
        brokers = self.cluster.brokers if self.cluster is not None else {}
        named: dict[str, Service] = {f"{broker.title} broker {n}": broker for n, broker in brokers.items()}
        return named | {one.title: one for one in (self.kafka, self.postgres) if one is not None}

    @property
    def each(self) -> list[Service]:
        """The services asked for."""
        return list(self.named.values())

    def start(self, timeout: float = 60.0) -> None:
        """Start those that do not run, together, and wait until all answer (`timeout` in seconds, for each)."""
        for service in self.each:
            service.start()
        for service in self.each:
            service.wait_ready(timeout)
        if self.cluster is not None:
            self.cluster.wait_in_sync()

    def stop(self) -> None:
        """Stop those that run, together: brokers of a cluster wait for each other."""
        with ThreadPoolExecutor(max(1, len(self.each))) as threads:
            list(threads.map(lambda service: service.stop(), self.each))


def services_at(
    home: str | Path | None = None,
    *,
    kafka: bool = True,
    postgres: bool = True,
    brokers: int | None = None,
    detached: bool = False,
) -> DevServices:
    """Return the services of a state folder, started or not.

    Args:
        home: State folder; default ONCEWARD_DEV_HOME, else `.run` in the current folder.
        kafka: True if Kafka is wanted.
        postgres: True if PostgreSQL is wanted.
        brokers: Number of Kafka brokers; several have Kafka's own times (KAFKAS_TIMES). Default: as many as the folder
            has, else 1.
        detached: True if what is started outlives this program. Several brokers always do.

    Raises:
        ConfigurationError: The folder has another number of brokers.
    """
    folder = state_home(home)
    clustered = len(list((folder / _CLUSTER).glob("*/settings.json")))
    there = clustered or int((folder / "kafka" / "settings.json").exists())
    if kafka and brokers is not None and there not in (0, brokers):
        raise ConfigurationError(
            f"{folder} has {there} Kafka broker{'s' if there > 1 else ''}, not {brokers}: give another folder as the "
            "services' home, or delete them with `onceward dev down --no-postgres --delete`"
        )
    number, cluster, server = brokers or there, None, None
    if kafka and (clustered or number > 1):
        cluster = KafkaCluster(folder / _CLUSTER, brokers=number, times=KAFKAS_TIMES, detached=True)
    elif kafka:
        server = KafkaServer(folder / "kafka", detached=detached)
    return DevServices(
        folder, server, PostgresServer(folder / "postgres", detached=detached) if postgres else None, cluster
    )


@contextmanager
def dev_services(home: str | Path | None = None, *, kafka: bool = True, postgres: bool = True) -> Iterator[DevServices]:
    """Run services while the `with` block runs; those that ran before (`onceward dev up`) are used and left alone.

    Args:
        home: State folder; default ONCEWARD_DEV_HOME, else `.run` in the current folder.
        kafka: True to run Kafka.
        postgres: True to run PostgreSQL.

    Raises:
        ConfigurationError: Java or PostgreSQL's programs are missing; the message says what to install.
        DevServiceError: A service could not be started.
    """
    services = services_at(home, kafka=kafka, postgres=postgres)
    own = [service for service in services.each if not service.running]
    try:
        services.start()
        yield services
    finally:
        for service in own:
            service.stop()
