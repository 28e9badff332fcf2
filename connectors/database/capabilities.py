"""The capabilities of each database, as data, and where the code for it is. Nothing here needs a driver.

Code outside of the dialects asks for a field of `Capabilities`, or calls a method of the dialect, and never asks which
database it talks to. Another database is one entry of DATABASES.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from onceward.core.errors import PostgresError, SqlError


@dataclass(frozen=True)
class Capabilities:
    """All that differs between databases and needs no code."""

    title: str
    """The name of the database in messages."""
    driver: str
    """The one driver with which the commit protocol was tested."""
    dialect: str
    """The class of the dialect, as `module:name` in this package; see dialect.py."""
    loader: str
    """The class that brings rows into tables; see loader.py."""
    place: str
    """The class that reads rows back from a table; see core/contract/place.py."""
    lineage: str
    """OpenLineage's name for such systems."""
    port: int | None = None
    """The port of a server whose URL names none."""
    finding: str = "database"
    """The name of the finding whether it answers."""
    is_file: bool = False
    """True if the database is a file, which the driver creates if it is missing, and not a server."""
    default_schema: str | None = None
    """The schema of tables that are named without one, if a database contains schemas. Onceward's own tables have a
    schema of their own there; elsewhere their names begin with `onceward_`."""
    schema_is_database: bool = False
    """True if a table's schema is what others call its database."""
    longest_name: int = sys.maxsize
    """Bytes that are kept of a name; longer ones are cut silently."""
    refusal: type[SqlError] = SqlError
    """The class of errors that a retry does not help."""
    lock_timeout_code: str | int | None = None
    """Code of the error that ends a wait for a lock, as failures.code returns it; None if no transaction stays open."""
    asks_with_lock: bool = False
    """True if a query of the ledger must wait for transactions that are just ending."""
    tells_names: bool = True
    """True if a prepared transaction's identifier contains the names of its pipeline and sink."""
    locks_rows: bool = True
    """True if transactions that write into one table wait for each other row by row, and so may deadlock."""
    trial_needs: str = ""
    """Rights that a trial of rows needs beyond those for writing; empty if there are none."""
    times_are_texts: bool = False
    """True if dates and times are stored as texts, of which several may tell the same time."""


@cache
def load_part(reference: str) -> Any:
    """Return the class that a field of Capabilities names.

    Raises:
        ImportError: The driver, or another package, is missing.
    """
    module, _, name = reference.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


_MARIADB: Final = Capabilities(
    title="MariaDB",
    driver="pymysql",
    dialect="mariadb:MariaDb",
    loader="batched_inserts:PieceLoader",
    place="reread:OtherTable",
    lineage="mysql",
    port=3306,
    schema_is_database=True,
    lock_timeout_code=1205,
    asks_with_lock=True,
    tells_names=False,
    trial_needs="CREATE TEMPORARY TABLES on the table's database, and SELECT on the table",
)
POSTGRESQL: Final = Capabilities(
    title="PostgreSQL",
    driver="psycopg",
    dialect="postgres.dialect:PostgreSql",
    loader="postgres.loader:CopyLoader",
    place="postgres.reread:PostgresTable",
    lineage="postgres",
    port=5432,
    finding="postgresql server",
    default_schema="public",
    longest_name=63,
    refusal=PostgresError,
    lock_timeout_code="55P03",
    trial_needs="TEMPORARY on the database and SELECT on the table",
)
_SQLITE: Final = Capabilities(
    title="SQLite",
    driver="pysqlite",
    dialect="sqlite:Sqlite",
    loader="batched_inserts:PieceLoader",
    place="reread:OtherTable",
    lineage="sqlite",
    is_file=True,
    locks_rows=False,
    times_are_texts=True,
)
DATABASES: Final = {"postgresql": POSTGRESQL, "mariadb": _MARIADB, "mysql": _MARIADB, "sqlite": _SQLITE}
"""The databases, by the names that SQLAlchemy's URLs have for them."""
