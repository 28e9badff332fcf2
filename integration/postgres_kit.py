"""What the PostgreSQL tests share: servers, fresh databases, contexts, child processes that die."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
from psycopg import sql

from onceward.connectors.database.engines import close_idle
from onceward.connectors.database.postgres_sink import PostgresSink
from onceward.core.names import Scope
from onceward.core.transaction import CommitStatus, Committable, WriteContext
from onceward.testing.services import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOG = "0123abcd"
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
_numbers = itertools.count()


@contextmanager
def running_server(**config: str) -> Iterator[PostgresServer]:
    # Not in pytest's own folders, which only their owner may enter: the server runs as another user than root.
    with TemporaryDirectory(prefix="onceward-test-") as folder:
        Path(folder).chmod(0o755)
        server = PostgresServer(Path(folder), config=config)
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


def words_table(database: Database) -> None:
    database.run("CREATE TABLE words (id bigint PRIMARY KEY, word text)")


def make_sink(database: Database, how: str = "prepared", **settings: Any) -> PostgresSink:
    """`how`: prepared, staging, or upsert."""
    chosen: dict[str, Any] = {"key": ["id"]} if how == "upsert" else {"commit": how}
    return PostgresSink("words", **{"dsn": database.dsn, "table": "words", **chosen, **settings})


def context(epoch: int = 1, subtask: int = 0, **fields: Any) -> WriteContext:
    given = {"pipeline": "orders", "sink": "words", "log": LOG, "writer": 3, "attempt": 0, **fields}
    return WriteContext(epoch=epoch, subtask=subtask, **given)


SCOPE = Scope("orders", "words", LOG)


def words(first: int, count: int = 3, word: str = "w") -> pa.RecordBatch:
    ids = list(range(first, first + count))
    return pa.record_batch([ids, [f"{word}{number}" for number in ids]], schema=SCHEMA)


def write(sink: PostgresSink, where: WriteContext, *batches: pa.RecordBatch) -> Committable:
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


class Proxy:
    """A TCP proxy in front of a server, which can lose answers.

    When `when` is true of a piece of the client's data, the piece is passed on, the server's answer is awaited, and
    both sides are cut (`hang`: the answer is swallowed and the client left waiting).
    """

    def __init__(self, port: int, when: Callable[[bytes], bool], *, hang: bool = False, times: int = 1) -> None:
        self._port = port
        self._when = when
        self._hang = hang
        self.times = times
        self.lost = 0
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._start(self._accept)

    def _start(self, run: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [client, server]
                losing = threading.Event()
                self._start(self._upward, client, server, losing)
                self._start(self._downward, server, client, losing)

    def _upward(self, client: socket.socket, server: socket.socket, losing: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.lost < self.times and self._when(data):
                    self.lost += 1
                    losing.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _downward(self, server: socket.socket, client: socket.socket, losing: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if not losing.is_set():
                    client.sendall(data)
                elif not self._hang:
                    break
            client.shutdown(socket.SHUT_RDWR)
            server.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._sockets:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for link in self._sockets:
            link.close()
