"""Real services for the tests: one Kafka broker, one PostgreSQL server and one Spark session for the whole run.

A test may crash, pause or restart a service; whatever it leaves down is up again before the next test.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import database, pytest_collection_finish

from onceward.testing.services import KafkaCluster, KafkaServer, PostgresServer
from onceward.testing.services.jars import PEER_JARS, ensure_jars

from . import scheduling
from .class_archives import use_class_archives, with_warm_workers
from .kafka_kit import Bench
from .postgres_kit import folder_open_to_all, fresh_database, running_server
from .scheduling import NIGHTLY, SECONDS, is_left_to_ci, pytest_runtest_setup, scope_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession
    from xdist.remote import Producer

    from onceward.testing.services import Service

    from .connect_kit import ConnectServer
    from .postgres_kit import Database
    from .scheduling import ByScope

__all__ = ["database", "pytest_collection_finish", "pytest_runtest_setup"]  # a fixture, and hooks that also run here
STARTED: pytest.StashKey[dict[Service, int | None]] = pytest.StashKey()
"""Services of the whole run, each with its process."""
HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STARTED] = {}
    if not hasattr(config, "workerinput") and not config.option.collectonly:  # workers inherit the environment
        use_class_archives(config.cache.mkdir("classes"))


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.path.is_relative_to(HERE):
        item.add_marker("integration")
    if item.nodeid in NIGHTLY:
        item.add_marker("nightly")
    if is_left_to_ci(item.nodeid):
        item.add_marker("by_ci")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest scope first, so that no worker begins a long one when the others are done."""
    items.sort(key=lambda item: -SECONDS.get(scope_of(item.nodeid), 0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByScope | None:
    return scheduling.pytest_xdist_make_scheduler(config, log)


def _run(service: Service, config: pytest.Config) -> Iterator[Any]:
    try:
        service.start()
        service.wait_ready()
        config.stash[STARTED][service] = service.pid
        yield service
    finally:
        config.stash[STARTED].pop(service, None)
        service.delete()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[KafkaServer]:
    """A Kafka broker that serves clients at `kafka.bootstrap_servers`."""
    yield from _run(KafkaServer(tmp_path_factory.mktemp("kafka")), pytestconfig)


@pytest.fixture(scope="session")
def postgres(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """A PostgreSQL server; take `dsn` for a database of the test's own."""
    with folder_open_to_all() as folder:
        yield from _run(PostgresServer(folder), pytestconfig)


@pytest.fixture(autouse=True)
def _services_up_again(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    for service in request.config.stash[STARTED]:
        _start_again(service, request.config)


def _start_again(service: Service, config: pytest.Config) -> None:
    """Start the service if the test has killed, stopped or paused it."""
    before = config.stash[STARTED][service]
    if service.pid != before or psutil.Process(before).status() == psutil.STATUS_STOPPED:
        service.resume()
        service.start()
        service.wait_ready()
        config.stash[STARTED][service] = service.pid


@pytest.fixture
def topic(kafka: KafkaServer) -> Callable[..., str]:
    """Makes topics: `topic(partitions=3, **config)` returns the name, new at each call."""

    def make(partitions: int = 1, *, prefix: str = "topic", **config: str) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:12]}"
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        settings = {key.replace("_", "."): value for key, value in config.items()}
        created = admin.create_topics([NewTopic(name, partitions, 1, config=settings)])
        created[name].result(timeout=90)
        while admin.list_topics(name, timeout=90).topics[name].error is not None:  # the broker learns it a moment later
            time.sleep(0.02)
        return name

    return make


@pytest.fixture
def dsn(postgres: PostgresServer, pytestconfig: pytest.Config) -> Iterator[str]:
    """Connection URI of an empty database, dropped after the test with whatever is still prepared in it."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield postgres.dsn_of(name)
    _start_again(postgres, pytestconfig)
    _drop(postgres, name)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """A PostgreSQL server that a module may kill and restart, and whose prepared transactions are its own.

    `pytest.mark.server("CREATE ROLE …", wal_level="logical")` has statements of its administrator, and settings. A
    process that is killed loses nothing that it gave to the system: fsync=off only spares the disk.
    """
    mark = request.node.get_closest_marker("server") or pytest.mark.server().mark
    with running_server(**{"fsync": "off", "full_page_writes": "off", **mark.kwargs}) as running:
        with psycopg.connect(running.dsn, autocommit=True) as admin:
            for statement in mark.args:
                admin.execute(statement)
        yield running


@pytest.fixture
def new_database(server: PostgresServer) -> AbstractContextManager[Database]:
    """What the fixture `database` opens; tests of another database system have their own."""
    return fresh_database(server)


def _drop(postgres: PostgresServer, name: str) -> None:
    with psycopg.connect(postgres.dsn_of(name), autocommit=True) as connection:
        mine = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        for (gid,) in connection.execute(mine).fetchall():
            connection.execute(f"ROLLBACK PREPARED {psycopg.sql.quote(gid)}")
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(scope="session")
def driver_environment() -> dict[str, str]:
    """Environment for a Spark driver in a process of its own: this Python, this source, no word of another Spark."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    driver = {
        **inherited,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(SOURCE), inherited.get("PYTHONPATH")])),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return with_warm_workers(driver)


@pytest.fixture(scope="session")
def connect_environment(driver_environment: dict[str, str]) -> dict[str, str]:
    """Environment for a Spark Connect server whose processes find the classes of the tests, too."""
    path = os.pathsep.join([driver_environment["PYTHONPATH"], str(HERE.parent)])
    return {**driver_environment, "PYTHONPATH": path}


@pytest.fixture(scope="session")
def connect_server(
    connect_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ConnectServer]:
    """A Spark Connect server, which has Spark's own Kafka source."""
    from .connect_kit import ConnectServer

    folder = tmp_path_factory.mktemp("connect")
    jars = ",".join(map(str, ensure_jars(PEER_JARS).glob("*.jar")))
    server = ConnectServer(folder / "server", connect_environment, {**spark_settings(folder), "spark.jars": jars})
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def spark(driver_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark session with two task slots and no web page."""
    from pyspark.sql import SparkSession

    patch = pytest.MonkeyPatch()
    for key in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_LOCAL_IP"):
        patch.setenv(key, driver_environment[key])
    builder = SparkSession.builder.master("local[2]").appName("onceward tests")
    for key, value in spark_settings(tmp_path_factory.mktemp("spark")).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    patch.undo()


@pytest.fixture
def job(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path: Path,
    kafka: KafkaServer,
    *,
    topic: Callable[..., str],
    dsn: str,
) -> Any:
    """The pipeline of a module's class `Job`: through Spark into a new topic and an empty database."""
    return request.module.Job(spark, tmp_path, kafka, topic(partitions=2), dsn)


@pytest.fixture
def bench(kafka: KafkaServer, topic: Callable[..., str]) -> Bench:
    """A Kafka sink of the test's own, into a new topic."""
    return Bench(kafka.bootstrap_servers, topic())


def spark_settings(scratch: Path) -> dict[str, str]:
    """Settings of a small local session whose files stay in the scratch folder."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch / "local"),
    }


@pytest.fixture
def pair(tmp_path):
    """Two brokers of the test's own; the log of transactions is on both, so that its coordinators can move."""
    with KafkaCluster(tmp_path, brokers=2, controllers=1) as cluster:
        yield cluster
