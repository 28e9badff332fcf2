"""Kafka, PostgreSQL and MariaDB in containers, set up for transactions, made to be crashed.

The classes work with `with`. As pytest fixtures, one container each for a whole run:

    # in conftest.py: kafka_container, postgres_container, mariadb_container
    pytest_plugins = ["onceward.testing.containers"]

The images are the official ones unless the environment names others (ONCEWARD_TEST_KAFKA_IMAGE,
ONCEWARD_TEST_POSTGRES_IMAGE, ONCEWARD_TEST_MARIADB_IMAGE). Needs the extra `testing`, and `kafka`, `postgres` or
`mariadb`.

Host ports are chosen by us and fixed: one that Docker chose would move when a killed container starts again, and
the broker would go on advertising the old one.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from testcontainers.core.container import DockerContainer

from onceward.core.errors import ExternalError
from onceward.core.kit.extras import needing

from .machine import LOOPBACK, broker_answers, free_port
from .services.kafka import FAST_ONE_NODE, listener_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

IMAGES: Final = {"KAFKA": "apache/kafka:4.3.1", "POSTGRES": "postgres:17", "MARIADB": "mariadb:11.4"}
_BROKER_PORT, _CONTROLLER_PORT, _POSTGRES_PORT, _MARIADB_PORT = 29092, 29093, 5432, 3306
_PASSWORD: Final = "test"  # noqa: S105 - of a server that only this machine reaches, for as long as a test takes
_POLL_SECONDS: Final = 0.1


class _Crashable(DockerContainer):
    """A container that can be killed, started again, frozen and cut off, at an address that stays."""

    def __init__(self, image: str | None, system: str, **kwargs: Any) -> None:
        super().__init__(image or os.environ.get(f"ONCEWARD_TEST_{system}_IMAGE", IMAGES[system]), **kwargs)
        self.port = free_port()

    def start(self) -> Self:
        """Start the container and wait until the server serves clients."""
        super().start()
        self.wait_ready()
        return self

    def answers(self) -> bool:
        """Return whether the server serves clients now."""
        raise NotImplementedError

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until the server serves clients.

        Args:
            timeout: Seconds to wait.

        Raises:
            ExternalError: The container ended, or does not answer in time; the message ends with its log.
        """
        deadline = time.monotonic() + timeout
        container = self.get_wrapped_container()
        while not self.answers():
            container.reload()
            if container.status in {"exited", "dead"} or time.monotonic() > deadline:
                log = container.logs(tail=15).decode(errors="replace")
                raise ExternalError(
                    f"{self.image} is {container.status} and does not answer. The end of its log:\n{log}"
                )
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Crash the server with SIGKILL; its data stays."""
        container = self.get_wrapped_container()
        container.kill()
        container.wait()

    def start_again(self, timeout: float = 60.0) -> None:
        """Start the server after `kill`, on the same data and port, and wait until it answers (seconds)."""
        self.get_wrapped_container().start()
        self.wait_ready(timeout)

    def pause(self) -> None:
        """Freeze the server: connections stay open and nothing is answered."""
        self.get_wrapped_container().pause()

    def resume(self) -> None:
        """Continue a paused server."""
        self.get_wrapped_container().unpause()

    @property
    def _address(self) -> str:
        host = self.get_docker_client().host()
        return f"{LOOPBACK if host == 'localhost' else host}:{self.port}"


class KafkaContainer(_Crashable):
    """One Kafka broker in KRaft mode in a container like apache/kafka's.

    Args:
        image: Name and tag of the image.
        config: Broker settings beside or instead of those for one fast node.
        alias: Name by which other containers of the same network reach the broker, at port 29092.
        behind_proxy: A port of this machine on which the broker listens too, and the address `host:port` that its
            clients there are told: that of a proxy before it.
    """

    def __init__(
        self,
        image: str | None = None,
        *,
        config: Mapping[str, str] | None = None,
        alias: str = "localhost",
        behind_proxy: tuple[int, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(image, "KAFKA", **kwargs)
        self.with_bind_ports(self.port, self.port)
        if alias != "localhost":
            self.with_network_aliases(alias)
        listeners = {
            "CLIENT": (f":{self.port}", self.bootstrap_servers),
            "BROKER": (f":{_BROKER_PORT}", f"{alias}:{_BROKER_PORT}"),
            "CONTROLLER": (f":{_CONTROLLER_PORT}", ""),
        }
        if behind_proxy is not None:
            port, told = behind_proxy
            self.with_bind_ports(port, port)
            listeners["PROXIED"] = (f":{port}", told)
        settings = {
            **FAST_ONE_NODE,
            **listener_settings(listeners),
            "inter.broker.listener.name": "BROKER",
            "controller.quorum.voters": f"1@localhost:{_CONTROLLER_PORT}",
        }
        for setting, value in {**settings, **(config or {})}.items():
            # The spelling of apache/kafka's image.
            name = setting.replace("_", "__").replace("-", "___").replace(".", "_").upper()
            self.with_env(f"KAFKA_{name}", value)
        self.with_env("KAFKA_HEAP_OPTS", "-Xmx512m")

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients on this machine, `host:port`."""
        return self._address

    def answers(self) -> bool:
        """Return whether the broker is registered and serves metadata."""
        return broker_answers(self.bootstrap_servers)


class _Database(_Crashable):
    @property
    def url(self) -> str:
        """URL of SQLAlchemy for clients on this machine, password included."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Return whether the server accepts a connection."""
        with needing("postgres,mariadb"):
            import sqlalchemy as sa  # noqa: PLC0415 - optional dependency

            engine = sa.create_engine(self.url, poolclass=sa.NullPool, connect_args={"connect_timeout": 2})
        try:
            engine.connect().close()
        except sa.exc.DBAPIError:
            return False
        return True


class PostgresContainer(_Database):
    """A PostgreSQL server in a container, with prepared transactions switched on.

    Args:
        image: Name and tag of the image.
        config: Server settings beside or instead of `max_prepared_transactions = 100`.
    """

    def __init__(self, image: str | None = None, *, config: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(image, "POSTGRES", **kwargs)
        self.with_bind_ports(_POSTGRES_PORT, self.port)
        for name in ("USER", "PASSWORD", "DB"):
            self.with_env(f"POSTGRES_{name}", _PASSWORD)
        settings = {"max_prepared_transactions": "100", **(config or {})}
        self.with_command([part for key, value in settings.items() for part in ("-c", f"{key}={value}")])

    @property
    def dsn(self) -> str:
        """Connection URI for clients on this machine, password included."""
        return f"postgresql://test:{_PASSWORD}@{self._address}/test"

    @property
    def url(self) -> str:
        """URL of SQLAlchemy for clients on this machine, password included."""
        return self.dsn.replace("postgresql:", "postgresql+psycopg:")


class MariaDbContainer(_Database):
    """A MariaDB server in a container like the official one.

    Args:
        image: Name and tag of the image.
        config: Server settings, for example `{"max_connections": "50"}`.
    """

    def __init__(self, image: str | None = None, *, config: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(image, "MARIADB", **kwargs)
        self.with_bind_ports(_MARIADB_PORT, self.port)
        self.with_env("MARIADB_ROOT_PASSWORD", _PASSWORD)
        self.with_env("MARIADB_DATABASE", "test")
        self.with_command([f"--{key.replace('_', '-')}={value}" for key, value in (config or {}).items()])

    @property
    def url(self) -> str:
        """URL of SQLAlchemy for clients on this machine, password included."""
        return f"mariadb+pymysql://root:{_PASSWORD}@{self._address}/test"


@pytest.fixture(scope="session")
def kafka_container() -> Iterator[KafkaContainer]:
    """Start a Kafka broker in a container for the whole run."""
    with KafkaContainer() as container:
        yield container


@pytest.fixture(scope="session")
def postgres_container() -> Iterator[PostgresContainer]:
    """Start a PostgreSQL server in a container for the whole run."""
    with PostgresContainer() as container:
        yield container


@pytest.fixture(scope="session")
def mariadb_container() -> Iterator[MariaDbContainer]:
    """Start a MariaDB server in a container for the whole run."""
    with MariaDbContainer() as container:
        yield container
