"""A decision log in PostgreSQL keeps the contract of every store, and its server's crash."""

from __future__ import annotations

from contextlib import contextmanager
from signal import SIGQUIT
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from onceward.core.log import open_store
from onceward.core.log.entries import key_of

from .postgres_kit import running_server
from .simulator_kit import store_contract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.log import LogStore
    from onceward.testing.services import PostgresServer

pytestmark = pytest.mark.postgres


def as_sqlalchemy(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://", 1)


@contextmanager
def opened(dsn: str) -> Iterator[LogStore]:
    store = open_store(as_sqlalchemy(dsn), pipeline="contract")
    try:
        yield store
    finally:
        store.close()  # type: ignore[attr-defined]


@pytest.fixture
def url(dsn: str) -> str:
    return as_sqlalchemy(dsn)


@pytest.fixture
def store(url: str) -> Iterator[LogStore]:
    with opened(url) as store:
        yield store


class Server:
    """As the contract wants it: started means that it answers."""

    def __init__(self, postgres: PostgresServer) -> None:
        self.postgres = postgres
        self.kill = postgres.kill

    def start(self) -> None:
        self.postgres.start()
        self.postgres.wait_ready()


class TestPostgres(store_contract.ServerStoreContract):
    @pytest.fixture
    def url(self, url: str) -> str:
        return url

    def test_it_is_shared_and_its_description_hides_the_password(self, store: LogStore, url: str):
        assert store.shared
        secret = urlsplit(url).password
        assert secret
        assert secret not in store.describe()

    @pytest.fixture
    def server(self, postgres: PostgresServer) -> Server:
        return Server(postgres)


def test_an_entry_that_was_answered_survives_a_crash_whatever_the_role_says_of_synchronous_commit() -> None:
    with running_server(fsync="on", wal_writer_delay="10s") as server:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        with opened(server.dsn) as store:
            check_crash(server, store)


def check_crash(server: PostgresServer, store: LogStore) -> None:
    assert store.put_if_absent(key_of(0), b"gone")
    store.delete(key_of(0))
    assert store.put_if_absent(key_of(1), b"decided")
    crash(server)
    server.start()
    server.wait_ready()
    assert (store.list_keys(), store.get(key_of(1))) == ([key_of(1)], b"decided")


def crash(server: PostgresServer) -> None:
    """An immediate shutdown: nothing is flushed any more."""
    assert server.pid is not None
    postmaster = psutil.Process(server.pid)
    postmaster.send_signal(SIGQUIT)
    postmaster.wait(20)
    server.kill()


@pytest.mark.parametrize(
    ("role", "used"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("on", "on"), ("remote_apply", "remote_apply")],
)
def test_puts_and_deletes_commit_synchronously_and_never_less_than_the_server_wants(
    dsn: str, role: str, used: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as look:
        look.execute(f"ALTER DATABASE {look.info.dbname} SET synchronous_commit = {role}")
    with opened(dsn) as store, psycopg.connect(dsn, autocommit=True) as look:
        look.execute("CREATE TABLE seen (setting text)")
        look.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN"
            " INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NULL; END$$"
        )
        look.execute("CREATE TRIGGER note AFTER INSERT OR DELETE ON onceward_decision_log EXECUTE FUNCTION note()")
        assert store.put_if_absent(key_of(0), b"x")
        store.delete(key_of(0))
        assert look.execute("SELECT setting FROM seen").fetchall() == [(used,), (used,)]
