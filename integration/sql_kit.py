"""What the tests of SqlAlchemySink on MariaDB share, wherever the server runs."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pymysql
from sqlalchemy import make_url

from onceward.connectors.database.engines import close_idle
from onceward.connectors.database.sinks import SqlAlchemySink

if TYPE_CHECKING:
    from collections.abc import Iterator


class MariaDatabase:
    """A fresh database of a MariaDB server, and a connection to look into it.

    Args:
        url: Of the server, with a user who may do everything.
    """

    def __init__(self, url: str) -> None:
        self.name = f"test_{uuid.uuid4().hex[:12]}"
        self.server = make_url(url)
        self.url = self.server.set(database=self.name).render_as_string(hide_password=False)
        self.connect("")
        self.run(f"CREATE DATABASE {self.name}")
        self.run(f"USE {self.name}")

    def connect(self, name: str | None = None) -> None:
        self.look = self.another(self.name if name is None else name)

    def another(self, name: str | None = None) -> pymysql.connections.Connection[Any]:
        """One more connection."""
        at = self.server
        database = (self.name if name is None else name) or None
        return pymysql.connect(
            host=at.host,
            port=at.port or 3306,
            user=at.username,
            password=at.password or "",
            database=database,
            autocommit=True,
        )

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        with self.look.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def rows(self, table: str = "words") -> list[tuple[Any, ...]]:
        return sorted(self.run(f"SELECT * FROM {table}"))

    def prepared(self) -> list[str]:
        """Identifiers of all prepared transactions of the server, as XA commands take them."""
        return [row[3] for row in self.run("XA RECOVER FORMAT='SQL'")]

    def sink(self, how: str = "prepared", **settings: Any) -> SqlAlchemySink:
        """`how`: prepared, staging, or upsert."""
        chosen: dict[str, Any] = {"key": ["id"]} if how == "upsert" else {"commit": how}
        return SqlAlchemySink("words", **{"url": self.url, "table": "words", **chosen, **settings})


@contextmanager
def maria_database(url: str) -> Iterator[MariaDatabase]:
    """An empty database, dropped at the end with whatever is still prepared on the server."""
    database = MariaDatabase(url)
    try:
        yield database
    finally:
        close_idle()
        database.connect()
        for xid in database.prepared():
            database.run(f"XA ROLLBACK {xid}")
        database.run(f"DROP DATABASE {database.name}")
        database.look.close()
