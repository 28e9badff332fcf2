"""Real Kafka and PostgreSQL in the background, for development, tests and the demo; no Docker, no root."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


@dataclass(frozen=True)
class DevServices:
    """The services of one state folder; `kafka` or `postgres` is None if it was not asked for."""

    home: Path
    kafka: KafkaServer | None
    postgres: PostgresServer | None

    @property
    def bootstrap_servers(self) -> str:
        """Kafka's address for clients."""
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
    def each(self) -> list[Service]:
        """The services asked for."""
        return [service for service in (self.kafka, self.postgres) if service is not None]

    def start(self, timeout: float = 60.0) -> None:
        """Start those that do not run, together, and wait until all answer (`timeout` in seconds, for each)."""
        for service in self.each:
            service.start()
        for service in self.each:
            service.wait_ready(timeout)

    def stop(self) -> None:
        """Stop those that run."""
        for service in self.each:
            service.stop()


def services_at(
    home: str | Path | None = None, *, kafka: bool = True, postgres: bool = True, detached: bool = False
) -> DevServices:
    """Return the services of a state folder, started or not.

    Args:
        home: State folder; default ONCEWARD_DEV_HOME, else `.run` in the current folder.
        kafka: True if Kafka is wanted.
        postgres: True if PostgreSQL is wanted.
        detached: True if what is started outlives this program.
    """
    folder = state_home(home)
    return DevServices(
        folder,
        KafkaServer(folder / "kafka", detached=detached) if kafka else None,
        PostgresServer(folder / "postgres", detached=detached) if postgres else None,
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
