"""What onceward knows of databases beyond its sinks; imported by every command, so without SQLAlchemy."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from onceward.core.contract.connector import Connector
from onceward.core.contract.findings import skipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from onceward.core.contract.findings import Finding

_PARAMETER = (
    r"(?:(?:host|user|dbname|target_session_attrs|application_name)=\w[\w.@,-]*|host=/[\w./-]*|hostaddr=[\w.:,]+"
    r"|(?:port|connect_timeout)=[\d,]+|sslmode=[a-z-]+|(?:sslrootcert|sslcert|sslkey)=[\w./-]+)"
)
"""A parameter of libpq that neither runs nor loads anything."""


class DatabaseConnector(Connector):
    """A database; its one setting is `ledger_schema`, the schema of onceward's own tables."""

    lists_transactions = True
    place_form = "TABLE"
    place_pattern = r"\w+(?:\.\w+)?"
    setting_patterns: ClassVar[Mapping[str, str]] = {"ledger_schema": r"\w+"}
    login = "the password in the URL"
    extra = "sql"


class PostgresConnector(DatabaseConnector):
    """A PostgreSQL database, at a connection string of libpq."""

    name = "postgres"
    sink = "onceward.connectors.database.sink:PostgresSink"
    implementation = "onceward.connectors.database.postgres.postgres_system:PostgresSystem"
    address_form = "DSN"
    address_pattern = rf"{_PARAMETER}(?: {_PARAMETER})*"
    extra = "postgres"
    login = "the password: PGPASSWORD or ~/.pgpass"

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
    implementation = "onceward.connectors.database.database_system:SqlSystem"
    address_form = "URL"
    address_pattern = (
        r"(?:mariadb|mysql|postgresql)://(?:[\w.%-]+@)?(?:\w[\w.-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?/[\w.%-]*"
        r"(?:\?charset=\w+)?|sqlite:////?[\w./ %+,-]+"
    )

    @classmethod
    def check_log(cls, url: str) -> Iterable[Finding]:
        """Say that standbys of other servers than PostgreSQL are not looked at."""
        if url.startswith(("mariadb", "mysql")):
            yield skipped("standbys", "of PostgreSQL only: see whether this server is replicated synchronously")
