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
from typing import TYPE_CHECKING, Any

import pytest
from testcontainers.community.postgres import PostgresContainer as _OfficialPostgres
from testcontainers.core.container import DockerContainer

from onceward.core.errors import ConfigurationError, ExternalError

from .services.kafka import FAST_ONE_NODE
from .services.machine import LOOPBACK, broker_answers, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Self

KAFKA_IMAGE = "apache/kafka:4.3.1"
POSTGRES_IMAGE = "postgres:17"
MARIADB_IMAGE = "mariadb:11.4"
BROKER_PORT, CONTROLLER_PORT, POSTGRES_PORT, MARIADB_PORT = 29092, 29093, 5432, 3306
POLL_SECONDS = 0.1


class _Crashable(DockerContainer):
    """A container that can be killed, started again, frozen and cut off, at an address that stays."""

    def answers(self) -> bool:
        """Whether the server serves clients now."""
        raise NotImplementedError

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Waits until the server serves clients.

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
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """Crashes the server with SIGKILL; its data stays."""
        container = self.get_wrapped_container()
        container.kill()
        container.wait()

    def start_again(self, timeout: float = 60.0) -> None:
        """Starts the server after `kill`, on the same data and port, and waits until it answers (seconds)."""
        self.get_wrapped_container().start()
        self.wait_ready(timeout)

    def pause(self) -> None:
        """Freezes the server: connections stay open and nothing is answered."""
        self.get_wrapped_container().pause()

    def resume(self) -> None:
        """Lets a paused server go on."""
        self.get_wrapped_container().unpause()

    def _address(self) -> str:
        host = self.get_docker_client().host()
        return LOOPBACK if host == "localhost" else host


class KafkaContainer(_Crashable):
    """One Kafka broker in KRaft mode in a container like apache/kafka's.

    Args:
        image: The image.
        config: Broker settings beside or instead of those for one fast node.
        alias: Name by which other containers of the same network reach the broker, at port 29092.
    """

    def __init__(
        self,
        image: str | None = None,
        *,
        config: Mapping[str, str] | None = None,
        alias: str = "localhost",
        **kwargs: Any,
    ) -> None:
        super().__init__(image or os.environ.get("ONCEWARD_TEST_KAFKA_IMAGE", KAFKA_IMAGE), **kwargs)
        self.port = free_port()
        self.with_bind_ports(self.port, self.port)
        if alias != "localhost":
            self.with_network_aliases(alias)
        settings = {**FAST_ONE_NODE, **self._listeners(alias), **(config or {})}
        for key, value in settings.items():
            self.with_env(broker_variable(key), value)
        self.with_env("KAFKA_HEAP_OPTS", "-Xmx512m")

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients on this machine, `host:port`."""
        return f"{self._address()}:{self.port}"

    def answers(self) -> bool:
        """Whether the broker is registered and serves metadata."""
        return broker_answers(self.bootstrap_servers)

    def start(self) -> Self:
        """Starts the container and waits until the broker answers."""
        super().start()
        self.wait_ready()
        return self

    def _listeners(self, alias: str) -> dict[str, str]:
        return {
            "listeners": f"CLIENT://:{self.port},BROKER://:{BROKER_PORT},CONTROLLER://:{CONTROLLER_PORT}",
            "advertised.listeners": f"CLIENT://{self.bootstrap_servers},BROKER://{alias}:{BROKER_PORT}",
            "listener.security.protocol.map": "CLIENT:PLAINTEXT,BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKER",
            "controller.quorum.voters": f"1@localhost:{CONTROLLER_PORT}",
        }


def broker_variable(setting: str) -> str:
    """The environment variable by which apache/kafka's image takes a broker setting."""
    return "KAFKA_" + setting.replace("_", "__").replace("-", "___").replace(".", "_").upper()


class PostgresContainer(_OfficialPostgres, _Crashable):
    """A PostgreSQL server in a container, with prepared transactions switched on.

    Args:
        image: The image.
        config: Server settings beside or instead of `max_prepared_transactions = 100`.
    """

    def __init__(self, image: str | None = None, *, config: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        chosen = image or os.environ.get("ONCEWARD_TEST_POSTGRES_IMAGE", POSTGRES_IMAGE)
        super().__init__(chosen, driver=None, **kwargs)
        self.host_port = free_port()
        self.with_bind_ports(POSTGRES_PORT, self.host_port)
        settings = {"max_prepared_transactions": "100", **(config or {})}
        self.with_command([part for key, value in settings.items() for part in ("-c", f"{key}={value}")])

    @property
    def dsn(self) -> str:
        """Connection URI for clients on this machine, password included."""
        return f"postgresql://{self.username}:{self.password}@{self._address()}:{self.host_port}/{self.dbname}"

    def answers(self) -> bool:
        """Whether the server takes a connection."""
        try:
            import psycopg  # noqa: PLC0415 - optional dependency
        except ImportError as error:
            raise ConfigurationError("psycopg is needed: pip install 'onceward[postgres]'") from error
        try:
            psycopg.connect(self.dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def start(self) -> Self:
        """Starts the container and waits until the server takes connections."""
        DockerContainer.start(self)
        self.wait_ready()
        return self


class MariaDbContainer(_Crashable):
    """A MariaDB server in a container like the official one.

    Args:
        image: The image.
        config: Server settings, for example `{"max_connections": "50"}`.
    """

    def __init__(self, image: str | None = None, *, config: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        super().__init__(image or os.environ.get("ONCEWARD_TEST_MARIADB_IMAGE", MARIADB_IMAGE), **kwargs)
        self.port = free_port()
        self.password = "test"  # noqa: S105 - of a server that only this machine reaches, for as long as a test takes
        self.with_bind_ports(MARIADB_PORT, self.port)
        self.with_env("MARIADB_ROOT_PASSWORD", self.password)
        self.with_env("MARIADB_DATABASE", "test")
        self.with_command([f"--{key.replace('_', '-')}={value}" for key, value in (config or {}).items()])

    @property
    def url(self) -> str:
        """URL of SQLAlchemy for clients on this machine, password included."""
        return f"mariadb+pymysql://root:{self.password}@{self._address()}:{self.port}/test"

    def answers(self) -> bool:
        """Whether the server takes a connection."""
        try:
            import pymysql  # type: ignore[import-untyped]  # noqa: PLC0415 - optional dependency
        except ImportError as error:
            raise ConfigurationError("pymysql is needed: pip install 'onceward[mariadb]'") from error
        address = {"host": self._address(), "port": self.port, "user": "root", "password": self.password}
        try:
            pymysql.connect(**address, database="test", connect_timeout=2).close()
        except pymysql.MySQLError:
            return False
        return True

    def start(self) -> Self:
        """Starts the container and waits until the server takes connections."""
        super().start()
        self.wait_ready()
        return self


@pytest.fixture(scope="session")
def kafka_container() -> Iterator[KafkaContainer]:
    """A Kafka broker in a container, for the whole run."""
    with KafkaContainer() as container:
        yield container


@pytest.fixture(scope="session")
def postgres_container() -> Iterator[PostgresContainer]:
    """A PostgreSQL server in a container, for the whole run."""
    with PostgresContainer() as container:
        yield container


@pytest.fixture(scope="session")
def mariadb_container() -> Iterator[MariaDbContainer]:
    """A MariaDB server in a container, for the whole run."""
    with MariaDbContainer() as container:
        yield container
