"""A decision log in PostgreSQL keeps the contract of every store, and its server's crash."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from onceward.core.errors import StoreError
from onceward.core.log import EpochInput, LogWriter, open_store, read
from onceward.core.log.entries import key_of

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


class TestPostgres(store_contract.StoreContract):
    @pytest.fixture
    def url(self, url: str) -> str:
        return url

    def test_it_is_shared_and_its_description_hides_the_password(self, store: LogStore, url: str):
        assert store.shared
        secret = urlsplit(url).password
        assert secret
        assert secret not in store.describe()

    def test_an_entry_that_was_answered_survives_a_crash_of_the_server(self, store: LogStore, postgres: PostgresServer):
        writer = LogWriter(store, "contract", store_contract.clock())
        writer.start()
        writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        postgres.kill()
        with pytest.raises(StoreError):
            store.put_if_absent(key_of(2), b"while it is down")
        postgres.start()
        postgres.wait_ready()
        assert read(store).decided == 0
        writer.complete(0)
        assert read(store).completed == 0
