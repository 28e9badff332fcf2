"""What onceward knows of databases beyond its sinks; imported by every command, so without SQLAlchemy."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from onceward.core.contract.connector import Connector, SystemAddress
from onceward.core.contract.findings import skipped
from onceward.core.contract.targets import Target
from onceward.core.errors import ConfigurationError
from onceward.core.kit.secrets import is_secret_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onceward.core.contract.findings import Finding
    from onceward.core.contract.place import Place
    from onceward.core.contract.sink import Sink
    from onceward.core.contract.source import ResettableSource

    from .sink import DatabaseSink
    from .target import Url

_SETTINGS = frozenset({"ledger_schema"})
_PARAMETER = (
    r"(?:(?:host|user|dbname|target_session_attrs|application_name)=\w[\w.@,-]*|host=/[\w./-]*|hostaddr=[\w.:,]+"
    r"|(?:port|connect_timeout)=[\d,]+|sslmode=[a-z-]+|(?:sslrootcert|sslcert|sslkey)=[\w./-]+)"
)
"""A parameter of libpq that neither runs nor loads anything."""


class DatabaseConnector(Connector):
    """A database; its one setting is `ledger_schema`, the schema of onceward's own tables."""

    place_form = "TABLE"
    place_pattern = r"\w+(?:\.\w+)?"
    setting_patterns: ClassVar[Mapping[str, str]] = {"ledger_schema": r"\w+"}
    login = "the password in the URL"
    extra = "sql"
    title: ClassVar[str] = "database"

    @abstractmethod
    def a_sink(self, name: str, table: str = "any") -> DatabaseSink:
        """Return a sink at this address; the name of a transaction or a staged row says which table it is for."""

    @abstractmethod
    def url(self) -> Url:
        """Return its address; a text of it shows no password."""

    def _arguments(self) -> dict[str, Any]:
        unknown = sorted(self.settings.keys() - _SETTINGS)
        if unknown:
            raise ConfigurationError(f"{self.name} has no setting {unknown[0]!r}: the only one is ledger_schema")
        return dict(self.settings)

    def target(self) -> Target:
        """List and end transactions of any pipeline, prepared or staged."""
        from .target import PREPARED, STAGED  # noqa: PLC0415 - an extra

        return Target(
            title=f"{self.title} {self.url()}",
            names=lambda _: {scope[:2] for scope in self.a_sink("any").open_names()},
            known=lambda pipeline: self.a_sink("any").known_sinks(pipeline),
            holds=lambda kind, _: kind in (PREPARED, STAGED),
            sink=self.a_sink,
        )

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterable[Finding]:  # noqa: ARG002
        """Check the server's durability and room, this role's rights, and tables."""
        from .checks import check_database, target_of  # noqa: PLC0415 - an extra
        from .target_checks import check_written  # noqa: PLC0415

        yield from check_database(target_of(self.url(), self._arguments().get("ledger_schema")))
        yield from (check_written(self.a_sink("any", name)) for name in names)

    @classmethod
    def check_parts(
        cls,
        sinks: Sequence[Sink],
        sources: Sequence[ResettableSource],  # noqa: ARG003
        pipeline: str | None,  # noqa: ARG003
    ) -> Iterable[Finding]:
        """Check each sink's database once, and each sink's table."""
        from .checks import check_database  # noqa: PLC0415 - an extra
        from .sink import DatabaseSink  # noqa: PLC0415
        from .target_checks import check_written  # noqa: PLC0415

        targets = {sink.target.url: sink.target for sink in sinks if hasattr(sink, "target")}
        for target in targets.values():
            yield from (finding if finding.where else finding.of(str(target.url)) for finding in check_database(target))
        yield from (check_written(sink) for sink in sinks if isinstance(sink, DatabaseSink))

    @classmethod
    def reach(cls, sink: Sink) -> None:
        """Connect to the database."""
        from .engines import read_server  # noqa: PLC0415 - an extra
        from .sink import DatabaseSink  # noqa: PLC0415

        if isinstance(sink, DatabaseSink):
            read_server(sink.target)

    @classmethod
    def address_of(cls, part: Sink | ResettableSource) -> SystemAddress | None:
        """Return the database's address without its password."""
        from .sink import DatabaseSink  # noqa: PLC0415 - an extra
        from .target import LEDGER_SCHEMA  # noqa: PLC0415

        if not isinstance(part, DatabaseSink):
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
        from .capabilities import load_part  # noqa: PLC0415 - an extra

        target = self.a_sink("any", name).target
        place: Place = load_part(target.url.capabilities.place)(f"{self.name}:{name}", target)
        return place


class PostgresConnector(DatabaseConnector):
    """A PostgreSQL database, at a connection string of libpq."""

    name = "postgres"
    sink = "onceward.connectors.database.sink:PostgresSink"
    address_form = "DSN"
    address_pattern = rf"{_PARAMETER}(?: {_PARAMETER})*"
    title = "PostgreSQL"
    extra = "postgres"
    login = "the password: PGPASSWORD or ~/.pgpass"

    @classmethod
    def _shown(cls, url: Url) -> tuple[str, bool]:
        from psycopg.conninfo import make_conninfo  # noqa: PLC0415 - an extra

        parameters = url.libpq()
        shown = {name: value for name, value in parameters.items() if not is_secret_name(name)}
        return make_conninfo("", **shown), len(shown) == len(parameters)

    def a_sink(self, name: str, table: str = "any") -> DatabaseSink:
        """Return a PostgresSink."""
        from .sink import PostgresSink  # noqa: PLC0415 - an extra

        return PostgresSink(name, table=table, dsn=self.address, **self._arguments())

    def check(self, names: Sequence[str], pipeline: str | None) -> Iterable[Finding]:
        """Check the same; a missing or broken package is reported before the connection string is read."""
        import psycopg as _psycopg  # noqa: F401, PLC0415 - an extra

        return super().check(names, pipeline)

    def url(self) -> Url:
        """Read the connection string."""
        from .target import Url  # noqa: PLC0415 - an extra

        return Url.from_dsn(self.address)

    @classmethod
    def check_log(cls, url: str) -> Iterable[Finding]:
        """Check whether a PostgreSQL server that holds a decision log can lose entries at a failover."""
        if not url.startswith(("postgresql:", "postgresql+")):
            return ()
        from .checks import check_log_server  # noqa: PLC0415 - an extra

        return [check_log_server(url)]


class SqlConnector(DatabaseConnector):
    """A database that SQLAlchemy reaches, at its URL: MariaDB, SQLite, or PostgreSQL."""

    name = "sql"
    sink = "onceward.connectors.database.sink:SqlAlchemySink"
    address_form = "URL"
    address_pattern = (
        r"(?:mariadb|mysql|postgresql)://(?:[\w.%-]+@)?(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?/[\w.%-]*"
        r"(?:\?charset=\w+)?|sqlite:////?[\w./ %+,-]+"
    )

    def a_sink(self, name: str, table: str = "any") -> DatabaseSink:
        """Return a SqlAlchemySink."""
        from .sink import SqlAlchemySink  # noqa: PLC0415 - an extra

        return SqlAlchemySink(name, table=table, url=self.address, **self._arguments())

    def url(self) -> Url:
        """Read the URL."""
        from .target import Url  # noqa: PLC0415 - an extra

        return Url.of(self.address)

    @classmethod
    def check_log(cls, url: str) -> Iterable[Finding]:
        """Say that standbys of other servers than PostgreSQL are not looked at."""
        if url.startswith(("mariadb", "mysql")):
            yield skipped("standbys", "of PostgreSQL only: see whether this server is replicated synchronously")
