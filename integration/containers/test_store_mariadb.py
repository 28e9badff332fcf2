"""A decision log in MariaDB, in a container: the contract of every store, and what its server must be set to."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import make_url

from onceward.core.errors import ConfigurationError, StoreError
from onceward.core.log import EpochInput, LogWriter, open_store, read
from onceward.core.log.entries import key_of
from onceward.testing.containers import MariaDbContainer

from ..simulator_kit import store_contract
from ..sql_kit import MariaDatabase, maria_database

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.log import LogStore

pytestmark = pytest.mark.containers


@contextmanager
def opened(url: str, pipeline: str = "contract") -> Iterator[LogStore]:
    store = open_store(url, pipeline=pipeline)
    try:
        yield store
    finally:
        store.close()  # type: ignore[attr-defined]


class Server:
    """As the contract wants it: started means that it answers."""

    def __init__(self, container: MariaDbContainer) -> None:
        self.kill = container.kill
        self.start = container.start_again


class TestMariaDb(store_contract.ServerStoreContract):
    @pytest.fixture
    def url(self, database: MariaDatabase) -> str:
        return database.url

    @pytest.fixture
    def store(self, url: str) -> Iterator[LogStore]:
        with opened(url) as store:
            yield store

    @pytest.fixture
    def store_server(self, mariadb_container: MariaDbContainer) -> Server:
        return Server(mariadb_container)


def test_pipelines_whose_names_differ_in_case_have_their_own_logs(database: MariaDatabase) -> None:
    with opened(database.url, "orders") as one, opened(database.url, "Orders") as other:
        assert one.put_if_absent(key_of(0), b"one")
        assert other.put_if_absent(key_of(0), b"other")
        assert (one.get(key_of(0)), other.get(key_of(0))) == (b"one", b"other")


@contextmanager
def global_setting(database: MariaDatabase, name: str, value: str) -> Iterator[None]:
    before = database.run(f"SELECT @@global.{name}")[0][0]
    database.run(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        database.run(f"SET GLOBAL {name} = {before}")


@pytest.mark.parametrize("value", ["0", "2"])
def test_a_server_that_answers_before_a_commit_is_on_disk_is_refused(database: MariaDatabase, value: str) -> None:
    with opened(database.url) as store:
        setting = "innodb_flush_log_at_trx_commit"
        with global_setting(database, setting, value):
            with pytest.raises(ConfigurationError, match=f"SET GLOBAL {setting} = 1"):
                open_store(database.url, pipeline="contract")
            with pytest.raises(StoreError, match=f"SET GLOBAL {setting} = 1"):
                store.put_if_absent(key_of(0), b"x")
        assert store.list_keys() == []
        assert store.put_if_absent(key_of(0), b"x")


def test_a_binary_log_that_is_synced_later_is_refused_because_a_crash_rolls_back_what_it_lacks() -> None:
    with MariaDbContainer(config={"log_bin": "binlog", "server_id": "1"}) as container:
        with pytest.raises(ConfigurationError, match="SET GLOBAL sync_binlog = 1"):
            open_store(container.url, pipeline="contract")
        with (
            maria_database(container.url) as database,
            global_setting(database, "sync_binlog", "1"),
            opened(database.url) as store,
        ):
            assert store.put_if_absent(key_of(0), b"x")


def test_a_table_that_would_cut_decisions_or_mix_names_up_is_refused_with_what_to_do(database: MariaDatabase) -> None:
    database.run(
        "CREATE TABLE onceward_decision_log (pipeline VARCHAR(64) NOT NULL, entry VARCHAR(20) NOT NULL,"
        " data BLOB NOT NULL, PRIMARY KEY (pipeline, entry)) ENGINE=MyISAM"
    )
    database.run("INSERT INTO onceward_decision_log VALUES ('contract', '00000000000000000000', 'x')")
    with pytest.raises(ConfigurationError, match="run ALTER TABLE") as caught:
        open_store(database.url, pipeline="contract")
    database.run(str(caught.value).partition("and run ")[2])
    with opened(database.url) as store:
        assert store.get(key_of(0)) == b"x"
        assert store.put_if_absent(key_of(1), bytes(100_000))


def whole_run(url: str) -> None:
    """Two epochs, and what is pruned after each."""
    with opened(url) as store:
        writer = LogWriter(store, "contract", store_contract.quick())
        writer.start()
        for epoch in range(read(store).decided + 1, read(store).decided + 3):
            writer.decide(epoch, [], sinks=["out"], epoch_input=EpochInput())
            writer.complete(epoch)


def test_the_documented_rights_are_enough_and_each_is_needed(database: MariaDatabase) -> None:
    place = make_url(database.url)
    user = f"driver_{uuid.uuid4().hex[:8]}"
    url = place.set(username=user, password="geheim-is-it").render_as_string(hide_password=False)
    database.run(f"CREATE USER {user} IDENTIFIED BY 'geheim-is-it'")
    rights = ("SELECT", "INSERT", "DELETE")
    with opened(database.url):  # an administrator creates the table
        pass
    try:
        for without in ("", *rights):
            granted = ", ".join(right for right in rights if right != without)
            database.run(f"GRANT {granted} ON {place.database}.onceward_decision_log TO {user}")
            before = database.run("SELECT entry FROM onceward_decision_log")
            if without:
                with pytest.raises(
                    StoreError, match=f"{without} command denied|needs SELECT, INSERT, DELETE"
                ) as caught:
                    whole_run(url)
                assert "geheim" not in str(caught.value)
                assert database.run("SELECT entry FROM onceward_decision_log") == before
            else:
                whole_run(url)
            database.run(f"REVOKE ALL PRIVILEGES, GRANT OPTION FROM {user}")
        database.run("DROP TABLE onceward_decision_log")
        database.run(f"GRANT SELECT, INSERT, DELETE ON {place.database}.* TO {user}")
        with pytest.raises(StoreError, match=r"Let its administrator run this.* CREATE TABLE onceward_decision_log"):
            whole_run(url)
        database.run(f"GRANT CREATE ON {place.database}.* TO {user}")
        whole_run(url)
    finally:
        database.run(f"DROP USER {user}")
