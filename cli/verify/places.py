"""What is compared: topics, tables, folders and keys, by the names that a person gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from onceward.core.errors import ConfigurationError
from onceward.core.kit.extras import needing

from ..options import Access, imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from onceward.core.names import Scope
    from onceward.core.proof import ProvenEpoch, Reread

    Rows = Callable[[pa.RecordBatch], pa.RecordBatch]

KINDS: Final = {
    "kafka": ("TOPIC", "bootstrap_servers"),
    "postgres": ("TABLE", "dsn"),
    "sql": ("TABLE", "url"),
    "redis": ("KEY", "url"),
    "files": ("FOLDER", None),
}
"""What names a place of each kind, and the option that says where its system is."""


@dataclass(kw_only=True)
class Systems(Access):
    """How systems are reached: the options that all places share."""

    url: Annotated[
        str | None,
        typer.Option(help="Where sql:TABLE or redis:KEY is: SQLAlchemy's URL of a database, or a redis://… URL."),
    ] = None


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
    access: Systems

    @classmethod
    def parse(cls, text: str, access: Systems) -> Place:
        """Read `kafka:TOPIC` or one of the other KINDS.

        Raises:
            ConfigurationError: It is none, or the option that says where its system is was not given.
        """
        kind, _, name = text.partition(":")
        if kind not in KINDS or not name:
            forms = " or ".join(f"{known}:{what}" for known, (what, _) in KINDS.items())
            raise ConfigurationError(f"{text!r} is no place: give {forms}")
        option = KINDS[kind][1]
        if option is not None and getattr(access, option) is None:
            raise ConfigurationError(f"{text} needs --{option.replace('_', '-')}")
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
        with needing(self.kind):
            if self.kind == "kafka":
                from onceward.connectors.kafka import reread as kafka  # noqa: PLC0415 - an extra

                return kafka.reread(self.access.bootstrap_servers or "", self.access.config, self.name)
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

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, as they are."""
        if self.kind != "kafka":
            yield from (piece.rows for piece in self.reread(None, ()).pieces)
            return
        from onceward.connectors.kafka.reread import messages  # noqa: PLC0415 - an extra

        yield from messages(self.access.bootstrap_servers or "", self.access.config, self.name)

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
        yield from messages(access.bootstrap_servers or "", access.config, self.name, position, {self.name: end})


def load_function(reference: str) -> Rows:
    """Import the function from a source's rows to a target's: of record batches."""
    found = imported("--map", reference)
    if not callable(found):
        raise ConfigurationError(f"{reference} is no function")
    return found  # type: ignore[no-any-return]
