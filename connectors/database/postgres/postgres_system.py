"""A PostgreSQL database as commands ask it.

psycopg is imported first of all: a missing or broken package is reported before the connection string is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from onceward.core.kit.secrets import is_secret_name

from ..connector import PostgresConnector
from ..database_system import DatabaseSystem

if TYPE_CHECKING:
    from ..target import Url


class PostgresSystem(DatabaseSystem, PostgresConnector):
    """A PostgreSQL database, with psycopg."""

    title = "PostgreSQL"
    address_argument = "dsn"

    @classmethod
    def _shown(cls, url: Url) -> tuple[str, bool]:
        parameters = url.libpq()
        shown = {name: value for name, value in parameters.items() if not is_secret_name(name)}
        return make_conninfo("", **shown), len(shown) == len(parameters)
