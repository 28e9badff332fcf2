"""A decision log in PostgreSQL keeps the contract of every store, and its server's crash."""

from __future__ import annotations

import re
import time
import uuid
from contextlib import closing, contextmanager
from pathlib import Path
from signal import SIGQUIT
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from onceward.core.contract.policy import CommitPolicy
from onceward.core.errors import DecisionInDoubtError, StoreError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import EpochInput, LogWriter, open_store, read, time_limits
from onceward.core.log import writer as log_writer
from onceward.core.log.entries import key_of
from onceward.core.log.view import NONE

from .postgres_kit import running_server
from .simulator_kit import store_contract

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.core.log import LogStore
    from onceward.testing.services import PostgresServer

pytestmark = pytest.mark.postgres
DOCS = Path(__file__).parents[1] / "docs" / "stores.md"


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


def test_nothing_is_prepared_on_the_server(store: LogStore):
    """Behind PgBouncer before 1.21 the next transaction may have another server, which does not know the statement."""
    for number in range(12):  # psycopg prepares what it executes for the sixth time
        store.put_if_absent(f"{number:020d}", b"x")
        store.get(f"{number:020d}")
        store.list_keys()
    with store._engine.connect() as connection:  # type: ignore[attr-defined]
        assert connection.exec_driver_sql("SELECT statement FROM pg_prepared_statements").all() == []


@pytest.fixture
def short_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (time_limits, log_writer):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 2.0)


@pytest.mark.usefixtures("short_answers")
def test_a_decision_that_a_stopped_backend_does_not_answer_is_in_doubt_soon_and_found_by_the_next_start(url: str):
    """libpq would wait for ever, and with it a decision that is behind the timeout of its transactions."""
    with closing(open_store(url, pipeline="contract")) as store:  # type: ignore[type-var]
        writer = LogWriter(store, "contract", CommitPolicy())
        writer.start()
        with store._engine.connect() as connection:  # type: ignore[attr-defined]
            backend = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()

        def stop(step: Step) -> None:
            if step is Step.LOG_PUT_BEFORE:
                psutil.Process(backend).suspend()

        began = time.monotonic()
        try:
            with hooked(stop), pytest.raises(DecisionInDoubtError, match="has not answered for 2 s"):
                writer.decide(0, [], sinks=["a"], epoch_input=EpochInput())
        finally:
            psutil.Process(backend).resume()
        assert time.monotonic() - began < 10
    with opened(url.replace("+psycopg", "")) as again:
        view = LogWriter(again, "contract", CommitPolicy()).start()
        assert view.decided in (NONE, 0)


@pytest.mark.usefixtures("short_answers")
def test_a_server_that_takes_connections_and_does_not_answer_is_an_error():
    with running_server() as server:
        postmaster = psutil.Process(server.pid)
        postmaster.suspend()
        try:
            with pytest.raises(StoreError, match="has not answered for 2 s"), opened(server.dsn):
                pass
        finally:
            postmaster.resume()


def test_the_slot_of_a_client_that_is_gone_is_free_again(store: LogStore):
    with store._changing("write in") as connection:  # type: ignore[attr-defined]
        assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one() == "1min"


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
    def store_server(self, postgres: PostgresServer) -> Server:
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


# Rights


class Role:
    """A role that may do nothing in the database of a test but what it is granted."""

    def __init__(self, dsn: str) -> None:
        self.name = f"driver_{uuid.uuid4().hex[:12]}"
        self.look = psycopg.connect(dsn, autocommit=True)
        self.dsn = dsn.replace(dsn.partition("://")[2].partition("@")[0], f"{self.name}:geheim-is-it")
        self.run(f"CREATE ROLE {self.name} LOGIN PASSWORD 'geheim-is-it'")
        self.run(f'REVOKE ALL ON DATABASE "{self.look.info.dbname}" FROM PUBLIC')
        self.run("REVOKE ALL ON SCHEMA public FROM PUBLIC")

    def run(self, statement: str) -> None:
        self.look.execute(statement.encode())

    def grant(self, rights: list[str]) -> None:
        self.run(f"DROP OWNED BY {self.name}")
        for right in rights:
            place = right.replace("DATABASE decisions", f'DATABASE "{self.look.info.dbname}"')
            self.run(f"GRANT {place} TO {self.name}")

    def entries(self) -> list[Any]:
        return self.look.execute("SELECT pipeline, entry FROM onceward_decision_log ORDER BY 1, 2").fetchall()


@pytest.fixture
def role(dsn: str) -> Iterator[Role]:
    made = Role(dsn)
    yield made
    made.run(f"DROP OWNED BY {made.name}")
    made.run(f"DROP ROLE {made.name}")
    made.look.close()


def whole_run(dsn: str) -> None:
    """Two starts, three epochs, and what is pruned after each."""
    for epochs in (range(2), range(2, 3)):
        with opened(dsn) as store:
            writer = LogWriter(store, "contract", store_contract.quick())
            writer.start()
            for epoch in epochs:
                writer.decide(epoch, [], sinks=["out"], epoch_input=EpochInput())
                writer.complete(epoch)
    with closing(open_store(as_sqlalchemy(dsn), pipeline="contract")) as store:
        assert read(store).completed == 2


SAYS = {
    "CONNECT": "permission denied for database",
    "USAGE": "no schema has been selected to create in.*Let its administrator run this.* CREATE TABLE onceward_dec",
    "SELECT": "which needs SELECT, INSERT, DELETE, .*permission denied for table onceward_decision_log",
}


def test_the_documented_rights_are_enough_and_each_is_needed(dsn: str, role: Role) -> None:
    lines = re.findall(r"^GRANT (.+) TO driver;(  -- .*)?$", DOCS.read_text(), re.MULTILINE)
    rights = [right for right, _ in lines]
    assert [right.split()[0] for right in rights] == ["CONNECT", "USAGE", "SELECT", "INSERT", "DELETE"]
    with opened(dsn):  # an administrator creates the table
        pass
    role.grant(rights)
    whole_run(role.dsn)
    kept = role.entries()
    assert len(kept) < 5, "nothing was pruned"
    for right in rights:
        role.grant([other for other in rights if other != right])
        with pytest.raises(StoreError, match=SAYS.get(right.split()[0], SAYS["SELECT"])) as caught:
            whole_run(role.dsn)
        assert "geheim" not in str(caught.value)
        assert role.entries() == kept, right


def test_the_right_to_read_is_enough_to_look_into_a_log(dsn: str, role: Role) -> None:
    whole_run(dsn)
    rights = re.findall(r"^GRANT (.+) TO driver;  -- also to read$", DOCS.read_text(), re.MULTILINE)
    assert [right.split()[0] for right in rights] == ["CONNECT", "USAGE", "SELECT"]
    role.grant(rights)
    with closing(open_store(as_sqlalchemy(role.dsn), pipeline="contract", existing=True)) as store:
        assert read(store).completed == 2


def test_a_table_that_a_role_may_create_needs_no_other_right(role: Role) -> None:
    role.grant(["CONNECT ON DATABASE decisions", "CREATE ON SCHEMA public"])
    with pytest.raises(StoreError):
        whole_run(role.dsn)
    role.grant(["CONNECT ON DATABASE decisions", "USAGE, CREATE ON SCHEMA public"])
    whole_run(role.dsn)
    assert role.look.execute("SELECT tableowner FROM pg_tables WHERE tablename ~ 'onceward'").fetchall() == [
        (role.name,)
    ]


def test_pipelines_in_schemas_of_their_own_cannot_touch_each_others_log(dsn: str, role: Role) -> None:
    role.run("CREATE SCHEMA orders")
    role.run("CREATE SCHEMA payments")
    places = {schema: f"{dsn}?options=-csearch_path%3D{schema}" for schema in ("orders", "payments")}
    for place in places.values():
        whole_run(place)
    role.grant(
        [
            "CONNECT ON DATABASE decisions",
            "USAGE ON SCHEMA orders",
            "SELECT, INSERT, DELETE ON orders.onceward_decision_log",
        ]
    )
    mine, theirs = (f"{role.dsn}?options=-csearch_path%3D{schema}" for schema in places)
    with opened(mine) as store:
        assert read(store).completed == 2
    with pytest.raises(StoreError):
        whole_run(theirs)
