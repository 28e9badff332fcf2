"""Checks of a database: what the commit protocol, and a decision log, need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceward.core.contract.findings import Finding, failed
from onceward.core.errors import SinkError

from .engines import dialect_for, reading
from .postgres.checks import check_standbys
from .target import LEDGER_SCHEMA, DatabaseTarget, TableName, Url

if TYPE_CHECKING:
    from collections.abc import Sequence


def check_target(url: Url, ledger_schema: str | None = None) -> DatabaseTarget:
    """Return a target for checks of a database, which look at no table."""
    return DatabaseTarget(url, TableName(None, "any"), answer_within=10, ledger_schema=ledger_schema or LEDGER_SCHEMA)


def check_database(target: DatabaseTarget) -> Sequence[Finding]:
    """Check that a database is reachable, and what its dialect needs of it."""
    try:
        with reading(target, "cannot read the server's settings") as connection:
            dialect = dialect_for(target)
            facts = dialect.read_server(connection)
            return list(dialect.check_server(connection, facts, target.ledger_schema or LEDGER_SCHEMA))
    except SinkError as error:
        return [failed(target.url.capabilities.finding, str(error), "check address, role and password")]


def check_log_server(url: str) -> Finding:
    """Check whether the server of a decision log can lose entries when a standby takes over."""
    target = check_target(Url.of(url))
    try:
        with reading(target, "cannot look") as connection:
            return check_standbys(connection).of("the decision log's server")
    except SinkError as error:
        return failed("standbys", str(error), "check address, role and password")
