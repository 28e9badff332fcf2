"""The targets: their sinks, what the strictest reader sees, and what must not be left in them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceward import FileSink, HttpSink, KafkaSink, PostgresSink, RedisSink, SqlAlchemySink
from onceward.testing.pipeline import Custom, Folder, KafkaTopic, Table
from onceward.testing.pipeline.endpoints import Addresses, connected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.sinks import TwoPhaseCommitSink
    from onceward.testing.pipeline import Endpoint

COLUMNS = "id bigint, word text"
JSON = ["to_json(struct(*)) AS value"]


class Kind(StrEnum):
    """A target."""

    KAFKA = "Kafka"
    PREPARED = "PostgreSQL, prepared"
    STAGING = "PostgreSQL, staging"
    FILES = "files"
    WAL = "write-ahead log"
    """RedisSink, into Valkey."""
    SQLITE = "SQLite"
    XA = "MariaDB, prepared"
    MARIADB = "MariaDB, staging"
    HTTP = "HTTP"


SIX = (Kind.KAFKA, Kind.PREPARED, Kind.STAGING, Kind.FILES, Kind.WAL, Kind.SQLITE)
DELIVERED = {Kind.WAL, Kind.HTTP}
"""Targets of a write-ahead log."""
ON_MARIADB = {Kind.XA, Kind.MARIADB}
COMBINATIONS = {
    **{str(kind): (kind,) for kind in Kind},
    "Kafka and PostgreSQL": (Kind.KAFKA, Kind.PREPARED),
    "all six": SIX,
    "MariaDB, HTTP and Valkey": (Kind.XA, Kind.MARIADB, Kind.HTTP, Kind.WAL),
}


@dataclass(frozen=True)
class Place:
    """Where a pipeline's targets are.

    Attributes:
        name: Of the pipeline, its topic and its tables.
        folder: For everything in files.
        servers: Kafka's address.
        dsn: PostgreSQL's.
        redis: Valkey's URL.
        http: The HTTP server's URL.
        mariadb: MariaDB's URL; empty if it is not installed.
    """

    name: str
    folder: Path
    servers: str
    dsn: str
    redis: str
    http: str
    mariadb: str

    @property
    def addresses(self) -> Addresses:
        return Addresses(self.folder, self.servers, self.dsn)

    @property
    def database(self) -> str:
        """SQLite's URL."""
        return f"sqlite:///{self.folder}/rows.db"

    def table(self, kind: Kind) -> str:
        prepared, staged = f"{self.name}_prepared", f"{self.name}_staged"
        tables = {Kind.PREPARED: prepared, Kind.XA: prepared, Kind.STAGING: staged, Kind.MARIADB: staged}
        return tables.get(kind, "rows")

    def options(self, kind: Kind) -> tuple[str, dict[str, str]]:
        """The format of a kind and its options."""
        return {
            Kind.KAFKA: ("kafka", {"kafka.bootstrap.servers": self.servers, "topic": self.name}),
            Kind.PREPARED: ("postgres", {"dsn": self.dsn, "dbtable": self.table(kind), "commit": "prepared"}),
            Kind.STAGING: ("postgres", {"dsn": self.dsn, "dbtable": self.table(kind), "commit": "staging"}),
            Kind.FILES: ("files", {"path": str(self.folder / "files"), "fileFormat": "jsonl"}),
            Kind.WAL: (
                "redis",
                {"url": self.redis, "key": self.name, "folder": str(self.folder / "wal"), "rows_per_send": "5"},
            ),
            Kind.SQLITE: ("sql", {"url": self.database, "dbtable": self.table(kind)}),
            Kind.XA: ("sql", {"url": self.mariadb, "dbtable": self.table(kind), "commit": "prepared"}),
            Kind.MARIADB: ("sql", {"url": self.mariadb, "dbtable": self.table(kind), "commit": "staging"}),
            Kind.HTTP: (
                "http",
                {"url": f"{self.http}/{self.name}", "folder": str(self.folder / "hook"), "rows_per_send": "5"},
            ),
        }[kind]

    def sink(self, kind: Kind, *, select: list[str] | None = None) -> TwoPhaseCommitSink[Any]:
        """The sink of a kind, from the same options."""
        form, options = self.options(kind)
        classes: dict[str, Any] = {
            "kafka": KafkaSink,
            "postgres": PostgresSink,
            "files": FileSink,
            "redis": RedisSink,
            "sql": SqlAlchemySink,
            "http": HttpSink,
        }
        made: TwoPhaseCommitSink[Any] = classes[form].from_options({"name": kind.name.lower(), **options})
        made.select = select
        return made

    def endpoint(self, kind: Kind) -> Endpoint:
        """A reader that shares no code with the sink."""
        if kind is Kind.KAFKA:
            return KafkaTopic(self.name, partitions=2)
        if kind in (Kind.PREPARED, Kind.STAGING, Kind.SQLITE, *ON_MARIADB):
            url = self.database if kind is Kind.SQLITE else self.mariadb if kind in ON_MARIADB else ""
            return Table(self.table(kind), COLUMNS, url=url)
        if kind is Kind.HTTP:
            return Custom("hook", self._posted)
        if kind is Kind.FILES:
            return Folder("files")
        return Custom("stream", self._stream)

    def left_over(self, kind: Kind) -> Iterator[str]:
        """What is open, prepared, staged or pending, in words."""
        yield from self.endpoint(kind).left_open(self.addresses)
        if kind is Kind.FILES:
            for folder in filter(Path.is_dir, (self.folder / "files" / "_onceward").glob("*")):
                if not folder.name.endswith(".commit") or any(path.is_file() for path in folder.rglob("*")):
                    yield f"pending files in {folder}"
        elif kind in DELIVERED:
            for suffix in ("partial", "segment"):
                folder = self.folder / ("wal" if kind is Kind.WAL else "hook")
                yield from (f"segment {path}" for path in folder.rglob(f"*.{suffix}"))
        elif kind is Kind.STAGING:
            yield from _staged(self.dsn, "onceward.staged", self.name)
        elif kind is Kind.SQLITE:
            yield from _staged(self.database, "onceward_staged", self.name)
        elif kind is Kind.MARIADB:
            yield from _staged(self.mariadb, "onceward_staged", self.name)
        elif kind is Kind.XA:
            with connected(self.mariadb) as connection:
                yield from (f"prepared {row[3]}" for row in connection.exec_driver_sql("XA RECOVER"))

    def _stream(self, _: Addresses) -> list[dict[str, Any]]:
        import redis

        with redis.Redis.from_url(self.redis, decode_responses=True) as client:
            entries: Any = client.xrange(self.name)
            return [{"id": int(fields["id"]), "word": fields["word"]} for _, fields in entries]

    def _posted(self, _: Addresses) -> list[dict[str, Any]]:
        import httpx

        found: list[dict[str, Any]] = httpx.get(f"{self.http}/{self.name}").json()
        return found


def _staged(url: str, table: str, pipeline: str) -> Iterator[str]:
    import sqlalchemy as sa

    with connected(url) as connection:
        schema, _, name = table.rpartition(".")
        if sa.inspect(connection).has_table(name, schema=schema or None):
            query = sa.text(f"SELECT name FROM {table} WHERE pipeline = :pipeline")
            yield from (f"staged rows of {row[0]}" for row in connection.execute(query, {"pipeline": pipeline}))


def rows(first: int, count: int) -> list[dict[str, Any]]:
    """Rows with these numbers."""
    return [{"id": number, "word": f"w{number % 7}"} for number in range(first, first + count)]


def message(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a Kafka message."""
    return {"value": json.dumps(row).encode()}
