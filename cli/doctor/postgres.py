"""Checks of a PostgreSQL server: what the commit protocol needs of it."""

from __future__ import annotations

import psycopg

from onceward.connectors.database.postgres.checks import read_server
from onceward.connectors.database.postgres.dsn import Dsn
from onceward.connectors.database.postgres.explain import HOW_TO_ENABLE

from .finding import Finding, failed, ok, skipped, warning

_CREATE = """
SELECT has_database_privilege(current_database(), 'CREATE'), current_user::text, current_database()::text,
       to_regnamespace('onceward') IS NOT NULL
"""
_PREPARED = "SELECT count(*), coalesce(extract(epoch FROM max(now() - prepared)), 0) FROM pg_prepared_xacts"
_OLD_SECONDS = 3600
_FEW = 16


def check_postgres(dsn: str | None) -> list[Finding]:
    """Server reachable and writable, max_prepared_transactions, permissions, old prepared transactions."""
    if dsn is None:
        return [skipped("postgresql", "give --dsn to check it")]
    try:
        with psycopg.connect(dsn, connect_timeout=10, autocommit=True) as connection:
            return _look(connection)
    except psycopg.Error as error:
        return [failed("postgresql server", f"{Dsn(dsn)}: {error}".strip(), "check address, role and password")]


def _look(connection: psycopg.Connection[tuple[object, ...]]) -> list[Finding]:
    facts = read_server(connection)
    found = [ok("postgresql server", f"version {connection.info.server_version // 10000}")]
    if facts.standby or facts.read_only:
        found.append(failed("primary", "a standby, or read-only", "connect to the primary"))
    if not facts.fsync:
        found.append(warning("fsync", "off", "a crash of the server can lose committed and prepared rows: turn it on"))
    found.append(_prepared_slots(facts.max_prepared))
    row = connection.execute(_CREATE).fetchone()
    assert row is not None  # noqa: S101 - the query always gives one row
    may_create, user, database, there = row
    name = "schema for the ledger"
    if may_create or there:
        found.append(ok(name, "there" if there else f"role {user} may create it"))
    else:
        advice = f'as an administrator: CREATE SCHEMA onceward AUTHORIZATION "{user}"'
        found.append(failed(name, f"role {user} may not create a schema in {database}", advice))
    return [*found, _old(connection)]


def _prepared_slots(most: int) -> Finding:
    name = "max_prepared_transactions"
    if most == 0:
        return warning(name, "0: sinks use staging and merge", f"for prepared transactions: {HOW_TO_ENABLE}")
    if most < _FEW:
        return warning(name, str(most), "set it to at least twice the number of partitions of all pipelines together")
    return ok(name, str(most))


def _old(connection: psycopg.Connection[tuple[object, ...]]) -> Finding:
    row = connection.execute(_PREPARED).fetchone()
    assert row is not None  # noqa: S101 - the query always gives one row
    count, oldest = int(str(row[0])), float(str(row[1]))
    name = "prepared transactions"
    if oldest > _OLD_SECONDS:
        advice = "they hold locks and VACUUM back: start their pipelines once, or look at pg_prepared_xacts"
        return warning(name, f"{count}, the oldest {oldest / 3600:.1f} h old", advice)
    return ok(name, f"{count}")
