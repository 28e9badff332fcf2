"""What the PostgreSQL tests share: servers, fresh databases, contexts, child processes that die."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from onceward.connectors.database.engines import close_idle
from onceward.connectors.database.sink import DatabaseSink, PostgresSink
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import CommitStatus, Committable, WriteContext
from onceward.testing.services import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG = "0123abcd"
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
_numbers = itertools.count()


class StandbyServer(PostgresServer):
    """A copy of a server, which follows it by streaming replication until it is promoted."""

    def __init__(self, folder: Path, primary: PostgresServer, **config: str) -> None:
        super().__init__(folder, config=config)
        self._primary = primary
        self.settings["password"] = primary.settings["password"]  # the roles are those of the primary

    def _initialise(self, data: Path) -> None:
        options = ["--dbname", self._primary.dsn, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        done = self._run("pg_basebackup", "--pgdata", data, *options)
        assert done.returncode == 0, done.stdout


@contextmanager
def running_server(*, of_system: bool = False, **config: str) -> Iterator[PostgresServer]:
    """Run a server with some settings: that of the wheel, which has neither ICU nor TLS, or that of the system."""
    with ExitStack() as opened:
        if of_system:
            opened.enter_context(_programs_of_system())
        folder = opened.enter_context(folder_open_to_all())
        yield opened.enter_context(_running(PostgresServer(folder, config=config)))


@contextmanager
def _programs_of_system() -> Iterator[None]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        pytest.skip("no PostgreSQL of the system in /usr/lib/postgresql")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEWARD_POSTGRES_BIN", str(found[-1]))
        yield


@contextmanager
def running_standby(primary: PostgresServer, **config: str) -> Iterator[PostgresServer]:
    with folder_open_to_all() as folder, _running(StandbyServer(folder, primary, **config)) as server:
        yield server


@contextmanager
def folder_open_to_all() -> Iterator[Path]:
    # Not in pytest's own folders, which only their owner may enter: the server runs as another user than root.
    with TemporaryDirectory(prefix="onceward-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def _running(server: PostgresServer) -> Iterator[PostgresServer]:
    server.start()
    try:
        server.wait_ready()
        yield server
    finally:
        close_idle()
        _free.pop(server.port, None)
        server.stop()


def data_directory(server: PostgresServer) -> Path:
    with psycopg.connect(server.dsn) as connection:
        return Path(connection.execute("SHOW data_directory").fetchone()[0])


class Database:
    """A fresh database, with a connection to look into it."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name
        self.dsn = server.dsn_of(name)
        self.look = psycopg.connect(self.dsn, autocommit=True, prepare_threshold=None)

    def run(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.look.execute(statement.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, statement: str, *parameters: Any) -> Any:
        return self.run(statement, *parameters)[0][0]

    def rows(self, table: str = "words") -> list[tuple[Any, ...]]:
        return sorted(self.run(f"SELECT * FROM {table}"))

    def prepared(self) -> list[str]:
        return [row[0] for row in self.run("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")]

    def staged(self) -> int:
        if self.one("SELECT to_regclass('onceward.staged') IS NULL"):
            return 0
        return self.one("SELECT count(*) FROM onceward.staged")

    def empty(self) -> None:
        for gid in self.prepared():
            self.look.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        others = (
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        self.run(others)
        for (schema,) in self.run("SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$'"):
            self.look.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        for (name,) in self.run("SELECT pubname FROM pg_publication"):
            self.look.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(name)))
        self.run("CREATE SCHEMA public")
        self.run("GRANT USAGE ON SCHEMA public TO PUBLIC")

    def reconnect(self) -> None:
        self.look.close()
        self.look = psycopg.connect(self.dsn, autocommit=True, prepare_threshold=None)


_free: dict[int, list[str]] = {}
"""Databases that were used and emptied, by their server's port: creating and dropping one takes half a second."""


@contextmanager
def fresh_database(server: PostgresServer) -> Iterator[Database]:
    free = _free.setdefault(server.port, [])
    if free:
        name = free.pop()
    else:
        name = f"test_{next(_numbers)}"
        _administer(server, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    database = Database(server, name)
    try:
        yield database
    finally:
        close_idle()
        database.reconnect()
        database.empty()
        database.look.close()
        free.append(name)


def _administer(server: PostgresServer, statement: sql.Composed) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(statement)


WORDS = "CREATE TABLE words (id bigint PRIMARY KEY, word text)"


def words_table(database: Database) -> None:
    database.run(WORDS)


def make_sink(database: Database, how: str = "prepared", **settings: Any) -> PostgresSink:
    """`how`: prepared, staging, or upsert."""
    chosen: dict[str, Any] = {"key": ["id"]} if how == "upsert" else {"commit": how}
    return PostgresSink("words", **{"dsn": database.dsn, "table": "words", **chosen, **settings})


def context(epoch: int = 1, subtask: int = 0, **fields: Any) -> WriteContext:
    given = {"pipeline": "orders", "sink": "words", "log": LOG, "generation": 3, "attempt": 0, **fields}
    return WriteContext(epoch=epoch, subtask=subtask, **given)


SCOPE = Scope("orders", "words", LOG)


def words(first: int, count: int = 3, word: str = "w") -> pa.RecordBatch:
    ids = list(range(first, first + count))
    return pa.record_batch([ids, [f"{word}{number}" for number in ids]], schema=SCHEMA)


def write(sink: DatabaseSink, where: WriteContext, *batches: pa.RecordBatch) -> Committable:
    transaction = sink.begin(where)
    for batch in batches:
        sink.write(transaction, batch)
    return sink.pre_commit(transaction)


def asked_again(sink: PostgresSink, *committables: Committable) -> list[CommitStatus]:
    """As a coordinator does: commit until no answer is "later"."""
    for _ in range(1000):
        answers = [outcome.status for outcome in sink.commit_many(committables)]
        if CommitStatus.RETRY_LATER not in answers:
            return answers
        time.sleep(0.005)
    raise AssertionError(f"{answers} after a thousand times")


def expected(first: int, count: int = 3, word: str = "w") -> list[tuple[int, str]]:
    return [(number, f"{word}{number}") for number in range(first, first + count)]


def in_child(body: str, *arguments: Any) -> str:
    """Run Python statements in a process of their own, which sees `arguments`; its output.

    The statement `die()` ends it by SIGKILL.
    """
    script = (
        "import os, pickle, signal, sys\n"
        "arguments = pickle.load(sys.stdin.buffer)\n"
        "def die():\n    sys.stdout.flush()\n    os.kill(os.getpid(), signal.SIGKILL)\n" + body
    )
    source = str(Path(__file__).resolve().parents[1] / "src")
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(arguments),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": source},
        timeout=60,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    return done.stdout.decode()
