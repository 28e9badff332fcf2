"""Kafka and PostgreSQL for a test run: containers, or local processes where there is no Docker."""

from __future__ import annotations

import uuid
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias
from urllib.parse import urlsplit

from onceward.core.kit.extras import needing

from ..machine import LOOPBACK, free_port
from ..proxy import Proxy
from .endpoints import KAFKA, POSTGRES, connected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Services: TypeAlias = Literal["auto", "containers", "local"]
_SECONDS: Final = 30.0


class Server(Protocol):
    """A server, in a container or not, as faults need it."""

    def kill(self) -> None:
        """Kill the server (SIGKILL)."""

    def start_again(self) -> None:
        """Start the server after `kill`, and wait until it answers."""

    def pause(self) -> None:
        """Freeze the server (SIGSTOP)."""

    def resume(self) -> None:
        """Let the server continue after `pause`."""


class Servers:
    """The servers of a test run, each with a proxy; both are started when they are first asked for, and kept.

    Args:
        folder: Folder for the state of local servers.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[tuple[str, bool], tuple[Any, Proxy]] = {}

    def get(self, system: str, services: Services) -> tuple[Any, Proxy]:
        """Return a running Server, with `bootstrap_servers` (KAFKA) or `dsn` (POSTGRES), and the proxy before it."""
        containers = services == "containers" or (services == "auto" and docker_answers())
        if (system, containers) not in self._running:
            self._running[system, containers] = (_kafka if system == KAFKA else _postgres)(containers, self._folder)
        server, proxy = self._running[system, containers]
        server.start_again()  # a case that failed may have left it down
        return server, proxy

    def stop(self) -> None:
        """Stop all servers, and delete their data."""
        for (_, container), (server, proxy) in self._running.items():
            proxy.close()
            server.stop() if container else server.delete()
        self._running.clear()


def _kafka(container: bool, folder: Path) -> tuple[Any, Proxy]:
    """Start a broker that tells its proxy's address to clients of the proxy, and its own to the kit's clients."""
    inner = free_port()
    listen = free_port({inner})
    behind_proxy = (inner, f"{LOOPBACK}:{listen}")
    if container:
        from ..containers import KafkaContainer  # noqa: PLC0415 - optional dependency

        server: Any = KafkaContainer(behind_proxy=behind_proxy).start()
    else:
        with needing("dev-services"):
            from ..services import KafkaServer  # noqa: PLC0415 - optional dependency

            server = KafkaServer(folder / KAFKA, behind_proxy=behind_proxy)
    return server, Proxy(server.bootstrap_servers.rpartition(":")[0], inner, listen)


def _postgres(container: bool, folder: Path) -> tuple[Any, Proxy]:
    if container:
        from ..containers import PostgresContainer  # noqa: PLC0415 - optional dependency

        server: Any = PostgresContainer().start()
    else:
        with needing("dev-services"):
            from ..services import PostgresServer  # noqa: PLC0415 - optional dependency

            server = PostgresServer(folder / POSTGRES)
    where = urlsplit(server.dsn)
    return server, Proxy(where.hostname or LOOPBACK, where.port or 0)


@cache
def docker_answers() -> bool:
    """Return whether testcontainers is installed and a Docker engine answers."""
    try:
        import docker  # noqa: PLC0415 - optional dependency
        import testcontainers  # noqa: F401, PLC0415
    except ImportError:
        return False
    try:
        return bool(docker.from_env(timeout=5).ping())
    except docker.errors.DockerException:
        return False


def empty_kafka(bootstrap_servers: str) -> None:
    """Delete every topic and consumer group that an earlier case has left."""
    from confluent_kafka import KafkaException  # noqa: PLC0415 - optional dependency
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    topics = [name for name in admin.list_topics(timeout=_SECONDS).topics if not name.startswith("__")]
    for deleted in (admin.delete_topics(topics) if topics else {}).values():
        deleted.result(_SECONDS)
    groups = [group.group_id for group in admin.list_consumer_groups().result(_SECONDS).valid]
    for gone in (admin.delete_consumer_groups(groups) if groups else {}).values():
        with suppress(KafkaException):  # of a member that was killed: its offsets went with the topics
            gone.result(_SECONDS)


@contextmanager
def new_database(dsn: str) -> Iterator[str]:
    """Create a database and yield its URI; drop it after the block, with the transactions prepared in it."""
    name = f"case_{uuid.uuid4().hex[:12]}"
    with connected(dsn) as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    own = urlsplit(dsn)._replace(path=f"/{name}").geturl()
    try:
        yield own
    finally:
        with connected(own) as connection:
            mine = "SELECT quote_literal(gid) FROM pg_prepared_xacts WHERE database = current_database()"
            for (gid,) in connection.exec_driver_sql(mine).all():
                connection.exec_driver_sql(f"ROLLBACK PREPARED {gid}")
        with connected(dsn) as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
