"""A decision log in PostgreSQL keeps the contract of every store, and its server's crash."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from onceward.core.log import open_store

from .simulator_kit import store_contract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.connectors.dev import PostgresServer
    from onceward.core.log import LogStore

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://", 1)


@pytest.fixture
def store(url: str) -> Iterator[LogStore]:
    store = open_store(url, pipeline="contract")
    yield store
    store.close()  # type: ignore[attr-defined]


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
