"""What a pipeline reads and writes: Kafka topics, tables, folders of files, and anything else by two functions.

Outputs are read as the strictest reader sees them, with clients that share no code with onceward's sinks.
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from abc import ABC, abstractmethod
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final

from onceward.core.errors import ConfigurationError, ExternalError, text_of
from onceward.core.kit.extras import needing
from onceward.core.operations.comparison import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import ModuleType

    import confluent_kafka
    import sqlalchemy as sa

    from onceward.core.operations.comparison import Row

KAFKA, POSTGRES = "kafka", "postgres"

_SECONDS: Final = 20.0
_DELIVERY_MS: Final = 120_000
_PREPARED: Final = {
    "postgresql": "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()",
    "mysql": "XA RECOVER",
    "mariadb": "XA RECOVER",
}


_NO_TABLE: Final = ("42P01", "3F000", 1146)
"""PostgreSQL's codes for a missing table or schema, and MariaDB's for a missing table."""


class UnreadableError(ExternalError):
    """An input or output does not answer now; it may later."""


@dataclass(frozen=True)
class Addresses:
    """The addresses of a case's services and files.

    Attributes:
        folder: A folder of the case's own, which outlives the driver's restarts.
        bootstrap_servers: Kafka's address, if an input or output is a topic.
        dsn: URI of an empty PostgreSQL database, if an input or output is a table in it.
    """

    folder: Path
    bootstrap_servers: str = ""
    dsn: str = ""

    def environment(self) -> dict[str, str]:
        """Return the environment variables that a driver gets."""
        variables = {"KAFKA_BOOTSTRAP_SERVERS": self.bootstrap_servers, "DATABASE_URL": self.dsn}
        own = {
            "PIPELINE_FOLDER": str(self.folder),
            "PIPELINE_NAME": f"case-{zlib.crc32(str(self.folder).encode()):08x}",
        }
        return {**own, **{name: value for name, value in variables.items() if value}}


class Endpoint(ABC):
    """An input or output of a pipeline: holds settings only, and serves every case. Subclass it for other systems."""

    kind: ClassVar[str]
    name: str

    @property
    def title(self) -> str:
        """The name for people."""
        return f"{self.kind} {self.name}"

    @property
    def needs(self) -> str | None:
        """The service that has to run for it: KAFKA, POSTGRES or None."""
        return None

    @abstractmethod
    def create(self, addresses: Addresses) -> None:
        """Create the endpoint before a case, and leave it empty."""

    @abstractmethod
    def feed(self, addresses: Addresses, rows: Sequence[Row]) -> None:
        """Append rows, as an input; return when they are durable."""

    @abstractmethod
    def read(self, addresses: Addresses) -> list[Record]:
        """Read everything that the strictest reader sees.

        Raises:
            UnreadableError: It does not answer now.
        """

    def left_open(self, addresses: Addresses) -> list[str]:  # noqa: ARG002 - for subclasses
        """List open and prepared transactions, in words that stay the same while readers are blocked at the same place.

        Raises:
            UnreadableError: It does not answer now.
        """
        return []


def _decode_json(value: bytes | None) -> Row:
    try:
        found = json.loads(value or b"null")
    except ValueError:
        found = repr(value)
    return found if isinstance(found, dict) else {"value": found}


def _encode_json(row: Row) -> bytes:
    return json.dumps(row, default=str).encode()


@dataclass(frozen=True)
class KafkaTopic(Endpoint):
    """A Kafka topic. It is read with isolation level read_committed, up to the last stable offset.

    Args:
        name: Name of the topic.
        partitions: Number of partitions.
        key: Column whose value, as text, becomes the message's key and selects the partition; default: no key.
        encode: Makes a message's value of a row that is fed; default: a JSON object.
        decode: Makes a row of a message's value; default: the JSON object, or `{"value": …}` of anything else.
    """

    kind: ClassVar[str] = "topic"
    name: str
    partitions: int = 1
    key: str | None = None
    encode: Callable[[Row], bytes] = _encode_json
    decode: Callable[[bytes | None], Row] = _decode_json

    @property
    def needs(self) -> str | None:
        return KAFKA

    def create(self, addresses: Addresses) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 - optional dependency

        with _kafka():
            admin = AdminClient({"bootstrap.servers": addresses.bootstrap_servers, "log_level": 0})
            admin.create_topics([NewTopic(self.name, self.partitions, 1)])[self.name].result(_SECONDS)

    def feed(self, addresses: Addresses, rows: Sequence[Row]) -> None:
        producer = _producer(addresses)
        errors: list[object] = []

        def delivered(error: object, _: object) -> None:
            errors.extend([error] if error else [])

        for row in rows:
            value, key = self.encode(row), None if self.key is None else str(row[self.key]).encode()
            partition = zlib.crc32(key or value) % self.partitions
            while True:
                try:
                    producer.produce(self.name, value, key, partition, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(_DELIVERY_MS / 1000) or errors:
            raise UnreadableError(f"rows could not be produced to topic {self.name}: {errors or 'no answer'}")

    def read(self, addresses: Addresses) -> list[Record]:
        found: list[Record] = []
        with _kafka() as confluent_kafka, self._consumer(addresses, "read_committed") as consumer:
            consumer.assign([confluent_kafka.TopicPartition(self.name, n, 0) for n in self._numbers(consumer)])
            unread, deadline = set(self._numbers(consumer)), time.monotonic() + _SECONDS
            while unread:
                if time.monotonic() > deadline:
                    raise UnreadableError(f"topic {self.name} did not answer within {_SECONDS:g} s")
                for message in consumer.consume(5000, 0.05):  # waits for so many messages, or for so long
                    error, partition = message.error(), message.partition()
                    deadline = time.monotonic() + _SECONDS
                    if error is None:
                        row = self.decode(message.value())
                        found.append(Record(row, f"{self.name}-{partition}@{message.offset()}"))
                    elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                        unread.discard(partition)
                    else:
                        raise confluent_kafka.KafkaException(error)
        return found

    def left_open(self, addresses: Addresses) -> list[str]:
        """Describe the partitions whose last stable offset is below the end: an open transaction holds readers up."""
        stable, ends = (self._ends(addresses, level) for level in ("read_committed", "read_uncommitted"))
        return [
            f"topic {self.name}-{partition}: a transaction is open; readers wait at offset {offset}"
            for partition, offset in stable.items()
            if offset < ends[partition]
        ]

    def _ends(self, addresses: Addresses, isolation: str) -> dict[int, int]:
        with _kafka() as confluent_kafka, self._consumer(addresses, isolation) as consumer:
            partitions = [confluent_kafka.TopicPartition(self.name, n) for n in self._numbers(consumer)]
            return {p.partition: consumer.get_watermark_offsets(p, timeout=_SECONDS)[1] for p in partitions}

    def _numbers(self, consumer: confluent_kafka.Consumer) -> list[int]:
        return sorted(consumer.list_topics(self.name, timeout=_SECONDS).topics[self.name].partitions)

    def _consumer(self, addresses: Addresses, isolation: str) -> closing[confluent_kafka.Consumer]:
        import confluent_kafka  # noqa: PLC0415 - optional dependency

        settings = {"enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0}
        settings |= {"isolation.level": isolation, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 10}
        return closing(confluent_kafka.Consumer({"bootstrap.servers": addresses.bootstrap_servers, **settings}))


@lru_cache(maxsize=1)
def _producer(addresses: Addresses) -> confluent_kafka.Producer:
    """Return a producer for all rows of a case, as each one needs half a second before its first message."""
    import confluent_kafka  # noqa: PLC0415 - optional dependency

    settings = {"enable.idempotence": True, "delivery.timeout.ms": _DELIVERY_MS, "log_level": 0}
    return confluent_kafka.Producer({"bootstrap.servers": addresses.bootstrap_servers, **settings})


@contextmanager
def _kafka() -> Iterator[ModuleType]:
    """Yield the client, whose errors become ours."""
    import confluent_kafka  # noqa: PLC0415 - optional dependency

    try:
        yield confluent_kafka
    except confluent_kafka.KafkaException as error:
        raise UnreadableError(f"Kafka: {text_of(error)}") from error


@dataclass(frozen=True)
class Table(Endpoint):
    """A database table, read by a session of its own.

    Args:
        name: Name of the table.
        columns: Column definitions, as in CREATE TABLE; a table of this name is dropped first. "": the pipeline makes
            the table, which counts as empty until then.
        query: Text of the SQL query to read with; default all columns of the table. It may read tables that the
            pipeline makes.
        url: SQLAlchemy's URL of another database, in which `{folder}` is the case's folder; default: the case's own
            PostgreSQL database.
    """

    kind: ClassVar[str] = "table"
    name: str
    columns: str = ""
    query: str = ""
    url: str = ""

    @property
    def needs(self) -> str | None:
        return None if self.url else POSTGRES

    def create(self, addresses: Addresses) -> None:
        with self._connection(addresses) as connection:
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {self.name}")
            if self.columns:
                connection.exec_driver_sql(f"CREATE TABLE {self.name} ({self.columns})")

    def feed(self, addresses: Addresses, rows: Sequence[Row]) -> None:
        import sqlalchemy as sa  # noqa: PLC0415 - optional dependency

        names = list(rows[0]) if rows else []
        schema, _, name = self.name.rpartition(".")
        table = sa.table(name, *map(sa.column, names), schema=schema or None)
        with self._connection(addresses) as connection:
            if rows:
                connection.execute(sa.insert(table), rows)

    def read(self, addresses: Addresses) -> list[Record]:
        import sqlalchemy as sa  # noqa: PLC0415 - optional dependency

        with self._connection(addresses) as connection:
            try:
                rows = connection.exec_driver_sql(self.query or f"SELECT * FROM {self.name}").mappings()  # noqa: S608
            except sa.exc.DBAPIError as error:
                if self.columns or not _is_missing_table(error.orig):
                    raise
                return []  # the pipeline has not made it yet
            return [Record(dict(row), f"{self.name}@{number}") for number, row in enumerate(rows)]

    def left_open(self, addresses: Addresses) -> list[str]:
        """Describe the prepared transactions of the database."""
        with self._connection(addresses) as connection:
            query = _PREPARED.get(connection.dialect.name)
            found = connection.exec_driver_sql(query).all() if query else []
            return [f"database of table {self.name}: transaction {row[-1]} is prepared" for row in found]

    @contextmanager
    def _connection(self, addresses: Addresses) -> Iterator[sa.Connection]:
        with needing("postgres"):
            import sqlalchemy as sa  # noqa: PLC0415 - optional dependency
        try:
            with connected(self.url.format(folder=addresses.folder) or addresses.dsn) as connection:
                yield connection
        except sa.exc.DBAPIError as error:
            raise UnreadableError(f"table {self.name}: {text_of(error)}") from error


def _is_missing_table(error: object) -> bool:
    """Return whether PostgreSQL, MariaDB or SQLite refused a statement because a table does not exist."""
    code = getattr(error, "sqlstate", None) or next(iter(getattr(error, "args", ())), "")
    return code in _NO_TABLE or str(code).startswith("no such table")


@contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    """Connect, and commit each statement: to PostgreSQL by its URI, or to any database by SQLAlchemy's URL."""
    with needing("postgres"):
        import sqlalchemy as sa  # noqa: PLC0415 - optional dependency

        target = sa.make_url(url)
        if target.drivername == "postgresql":
            target = target.set(drivername="postgresql+psycopg")
        engine = sa.create_engine(target, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection


@dataclass(frozen=True)
class Folder(Endpoint):
    """A folder of files, in the case's folder. Rows are fed as JSON lines; names that begin with `.` or `_` are hidden.

    Args:
        name: Name of the folder below the case's.
        format: Format of the files: "json" (lines), "parquet", "csv", "arrow" (Arrow's IPC files).
    """

    kind: ClassVar[str] = "folder"
    name: str
    format: str = "json"

    def create(self, addresses: Addresses) -> None:
        (addresses.folder / self.name).mkdir(parents=True)

    def feed(self, addresses: Addresses, rows: Sequence[Row]) -> None:
        if self.format != "json":
            raise ConfigurationError(f"rows are fed as JSON lines: leave out format of the input {self.name}")
        folder = addresses.folder / self.name
        file = folder / f"{len(list(folder.iterdir())):06d}.jsonl"  # as Spark and FileSource read them
        partial = file.with_name(f".{file.name}")
        partial.write_bytes(b"".join(_encode_json(row) + b"\n" for row in rows))
        partial.rename(file)

    def read(self, addresses: Addresses) -> list[Record]:
        import pyarrow.dataset as pads  # noqa: PLC0415 - takes long

        folder = addresses.folder / self.name
        return [
            Record(row, f"{fragment.path.removeprefix(f'{addresses.folder}/')}@{number}")
            for fragment in sorted(pads.dataset(folder, format=self.format).get_fragments(), key=lambda f: f.path)
            for number, row in enumerate(fragment.to_table().to_pylist())
        ]


@dataclass(frozen=True)
class Custom(Endpoint):
    """Anything else, by two functions.

    Args:
        name: Name of the endpoint, for messages.
        reader: Returns all rows that the strictest reader sees, from the case's addresses.
        feeder: Appends rows; needed for an input.
    """

    kind: ClassVar[str] = "custom"
    name: str
    reader: Callable[[Addresses], Iterable[Row]]
    feeder: Callable[[Addresses, Sequence[Row]], object] | None = None

    def create(self, addresses: Addresses) -> None:
        pass

    def feed(self, addresses: Addresses, rows: Sequence[Row]) -> None:
        if self.feeder is None:
            raise ConfigurationError(f"{self.name} is an input and has no feeder: give Custom(…, feeder=…)")
        self.feeder(addresses, rows)

    def read(self, addresses: Addresses) -> list[Record]:
        return [Record(row, f"{self.name}@{number}") for number, row in enumerate(self.reader(addresses))]
