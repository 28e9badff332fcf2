"""What is compared: topics, tables, folders and keys, by the names that a person gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from onceward.core.errors import ConfigurationError

from ..operate.targets import imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from onceward.core.names import Scope
    from onceward.core.proof import ProvenEpoch, Reread

    Rows = Callable[[pa.RecordBatch], pa.RecordBatch]

KINDS: Final = {"kafka": "TOPIC", "postgres": "TABLE", "sql": "TABLE", "redis": "KEY", "files": "FOLDER"}


@dataclass(frozen=True)
class Access:
    """How systems are reached: the options that all places share."""

    servers: str | None = None
    config: Mapping[str, str] | None = None
    dsn: str | None = None
    url: str | None = None
    ledger_schema: str | None = None


@dataclass(frozen=True)
class Place:
    """A topic, a table, a folder, or the keys of a Redis.

    Attributes:
        kind: One of KINDS.
        name: Its name.
        access: How its system is reached.
    """

    kind: str
    name: str
    access: Access

    @classmethod
    def parse(cls, text: str, access: Access) -> Place:
        """Read `kafka:TOPIC` or one of the other KINDS.

        Raises:
            ConfigurationError: It is none, or the option that says where its system is was not given.
        """
        kind, _, name = text.partition(":")
        if kind not in KINDS or not name:
            forms = " or ".join(f"{known}:{what}" for known, what in KINDS.items())
            raise ConfigurationError(f"{text!r} is no place: give {forms}")
        options = {
            "kafka": ("--bootstrap-servers", access.servers),
            "postgres": ("--dsn", access.dsn),
            "sql": ("--url", access.url),
            "redis": ("--url", access.url),
        }
        option, given = options.get(kind, ("", ""))
        if given is None:
            raise ConfigurationError(f"{text} needs {option}")
        return cls(kind, name, access)

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.kind}:{self.name}"

    def reread(self, scope: Scope | None, columns: Sequence[str]) -> Reread:
        """What it holds, with what shows the transaction that wrote each row; see onceward.core.proof.

        Raises:
            SinkError: Its system does not answer, or refuses.
            ConfigurationError: An extra is not installed.
        """
        try:
            if self.kind == "kafka":
                from onceward.connectors.kafka import reread as kafka  # noqa: PLC0415 - an extra

                return kafka.reread(self.access.servers or "", self.access.config or {}, self.name)
            if self.kind == "files":
                from onceward.connectors.files import reread as files  # noqa: PLC0415 - pyarrow's readers

                return files.reread(self.name, scope, columns)
            if self.kind == "redis":
                from onceward.connectors.redis import forms as keys  # noqa: PLC0415 - an extra

                return keys.reread(self.access.url or "", self.name, columns)
            from onceward.connectors.database.sinks import PostgresSink, SqlAlchemySink  # noqa: PLC0415 - an extra

            more: dict[str, Any] = {"table": self.name}
            if self.access.ledger_schema is not None:
                more["ledger_schema"] = self.access.ledger_schema
            if self.kind == "postgres":
                target = PostgresSink("any", dsn=self.access.dsn or "", **more).target
            else:
                target = SqlAlchemySink("any", url=self.access.url or "", **more).target
            if target.url.backend != "postgresql":
                from onceward.connectors.database import reread as tables  # noqa: PLC0415

                return tables.reread(target, columns)
            from onceward.connectors.database.postgres import reread as postgres  # noqa: PLC0415

            return postgres.reread(target, scope, columns)
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"{error.name} is needed: pip install 'onceward[{self.kind}]'") from error

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, as they are."""
        if self.kind != "kafka":
            yield from (piece.rows for piece in self.reread(None, ()).pieces)
            return
        from onceward.connectors.kafka.reread import messages  # noqa: PLC0415 - an extra

        yield from messages(self.access.servers or "", self.access.config or {}, self.name)

    def of_epoch(self, epoch: ProvenEpoch) -> Iterator[pa.RecordBatch]:
        """What an epoch read from it; it must be a topic.

        Raises:
            ConfigurationError: It is none, or the decision log does not say which offsets the epoch read.
            SourceError: The brokers do not answer, or do not hold these offsets any more.
        """
        if self.kind != "kafka":
            raise ConfigurationError(f"{self.title}: a decision log says only for a topic what each epoch read")
        from onceward.connectors.kafka.reread import messages, offsets_in  # noqa: PLC0415 - an extra

        start, end = offsets_in(epoch.start, self.name), offsets_in(epoch.end, self.name)
        if not end:
            raise ConfigurationError(f"epoch {epoch.epoch}: the decision log names no offsets of {self.title}")
        position = {self.name: dict.fromkeys(end, 0) | start}
        access = self.access
        yield from messages(access.servers or "", access.config or {}, self.name, position, {self.name: end})


def load_function(reference: str) -> Rows:
    """Import the function from a source's rows to a target's: of record batches."""
    found = imported("--map", reference)
    if not callable(found):
        raise ConfigurationError(f"{reference} is no function")
    return found  # type: ignore[no-any-return]
