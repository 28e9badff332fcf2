"""A database as commands ask it: its transactions and staged rows, its tables, and whether it is set up well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

from onceward.core.contract.connector import SystemAddress
from onceward.core.contract.targets import Target
from onceward.core.errors import ConfigurationError

from .capabilities import load_part
from .checks import check_database, check_target
from .connector import DatabaseConnector, SqlConnector
from .engines import read_server
from .target import LEDGER_SCHEMA, PREPARED, STAGED
from .target_checks import check_written

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from onceward.core.contract.findings import Finding
    from onceward.core.contract.place import Place
    from onceward.core.contract.sink import Sink
    from onceward.core.contract.source import ResettableSource

    from .sink import DatabaseSink
    from .target import Url

_SETTINGS = frozenset({"ledger_schema"})


class DatabaseSystem(DatabaseConnector):
    """A database, with the packages that ask it.

    Attributes:
        title: Title of this kind of database, for people.
        address_argument: Argument of the sink that takes the address.
    """

    title: ClassVar[str] = "database"
    address_argument: ClassVar[str] = "url"

    @classmethod
    def sink_class(cls) -> type[DatabaseSink]:
        """Import the class of its sink."""
        return cast("type[DatabaseSink]", super().sink_class())

    def a_sink(self, name: str, table: str = "any") -> DatabaseSink:
        """Return a sink at this address; the name of a transaction or a staged row says which table it is for."""
        unknown = sorted(self.settings.keys() - _SETTINGS)
        if unknown:
            raise ConfigurationError(f"{self.name} has no setting {unknown[0]!r}: the only one is ledger_schema")
        kind: Any = self.sink_class()
        sink: DatabaseSink = kind(name, table=table, **{self.address_argument: self.address}, **self.settings)
        return sink

    @property
    def url(self) -> Url:
        """The database's address; a text of it shows no password."""
        return self.a_sink("any").target.url

    def target(self) -> Target:
        """List and end transactions of any pipeline, prepared or staged."""
        return Target(
            title=f"{self.title} {self.url}",
            names=lambda _: {scope[:2] for scope in self.a_sink("any").open_names()},
            known=lambda pipeline: self.a_sink("any").known_sinks(pipeline),
            holds=lambda kind, _: kind in (PREPARED, STAGED),
            sink=self.a_sink,
        )

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterable[Finding]:  # noqa: ARG002
        """Check the server's durability and room, this role's rights, and tables."""
        yield from check_database(check_target(self.url, self.settings.get("ledger_schema")))
        yield from (check_written(self.a_sink("any", name)) for name in names)

    @classmethod
    def check_parts(
        cls,
        sinks: Sequence[Sink],
        sources: Sequence[ResettableSource],  # noqa: ARG003
        pipeline: str | None,  # noqa: ARG003
    ) -> Iterable[Finding]:
        """Check each sink's database once, and each sink's table."""
        own = [sink for sink in sinks if isinstance(sink, cls.sink_class())]
        for target in {sink.target.url: sink.target for sink in own}.values():
            yield from (finding if finding.where else finding.of(str(target.url)) for finding in check_database(target))
        yield from map(check_written, own)

    @classmethod
    def reach(cls, sink: Sink) -> None:
        """Connect to the database."""
        if isinstance(sink, cls.sink_class()):
            read_server(sink.target)

    @classmethod
    def address_of(cls, part: Sink | ResettableSource) -> SystemAddress | None:
        """Return the database's address without its password."""
        if not isinstance(part, cls.sink_class()):
            return None
        url, schema = part.target.url, part.target.ledger_schema
        address, complete = cls._shown(url)
        settings = (f"ledger_schema={schema}",) if schema not in (None, LEDGER_SCHEMA) else ()
        return SystemAddress(address, settings, "" if complete else cls.login, str(part.target.table))

    @classmethod
    def _shown(cls, url: Url) -> tuple[str, bool]:
        """Return an address without its secrets, as `--at` takes it, and whether it had none."""
        return url.without_secrets()

    def place(self, name: str) -> Place:
        """Return a table."""
        target = self.a_sink("any", name).target
        place: Place = load_part(target.url.capabilities.place)(f"{self.name}:{name}", target)
        return place


class SqlSystem(DatabaseSystem, SqlConnector):
    """A database that SQLAlchemy reaches, with SQLAlchemy."""
