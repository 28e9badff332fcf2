"""Checks of a PostgreSQL server: what the commit protocol needs of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceward.connectors.database.engines import dialect_for, reading
from onceward.connectors.database.postgres_sink import PostgresSink
from onceward.core.errors import SinkError

from . import Finding, failed, ok, skipped, warning

if TYPE_CHECKING:
    import sqlalchemy as sa

    from onceward.connectors.database.dialect import ServerFacts

_CREATE: Final = """
SELECT has_database_privilege(current_database(), 'CREATE'), current_user::text, current_database()::text,
       to_regnamespace('onceward') IS NOT NULL
"""
_PREPARED: Final = "SELECT count(*), coalesce(extract(epoch FROM max(now() - prepared)), 0) FROM pg_prepared_xacts"
_OLD_SECONDS: Final = 3600
_FEW: Final = 16


def check_postgres(dsn: str | None) -> list[Finding]:
    """Server reachable and writable, max_prepared_transactions, permissions, old prepared transactions."""
    if dsn is None:
        return [skipped("postgresql", "give --dsn to check it")]
    target = PostgresSink("doctor", dsn=dsn, table="any", answer_within=10).target
    try:
        with reading(target, "cannot look") as connection:
            facts = dialect_for(target).read_server(connection)
            version = connection.dialect.server_version_info or ("?",)
            found = [ok("postgresql server", f"version {version[0]}")]
            if facts.unusable:
                found.append(failed("primary", facts.unusable, "connect to a writable primary"))
            found += [warning("durability", text, "turn it on") for text in facts.warnings]
            return [*found, _prepared_slots(facts), _schema(connection), _old(connection)]
    except SinkError as error:
        return [failed("postgresql server", str(error), "check address, role and password")]


def _prepared_slots(facts: ServerFacts) -> Finding:
    name, most = "max_prepared_transactions", facts.max_prepared
    if most == 0:
        return warning(name, "0: sinks use staging and merge", f"for prepared transactions: {facts.why_none}")
    if most < _FEW:
        return warning(name, str(most), "set it to at least twice the number of partitions of all pipelines together")
    return ok(name, str(most))


def _schema(connection: sa.Connection) -> Finding:
    name = "schema for the ledger"
    may_create, user, database, there = connection.exec_driver_sql(_CREATE).one()
    if may_create or there:
        return ok(name, "there" if there else f"role {user} may create it")
    advice = f'as an administrator: CREATE SCHEMA onceward AUTHORIZATION "{user}"'
    return failed(name, f"role {user} may not create a schema in {database}", advice)


def _old(connection: sa.Connection) -> Finding:
    name = "prepared transactions"
    count, oldest = connection.exec_driver_sql(_PREPARED).one()
    if oldest > _OLD_SECONDS:
        advice = "they hold locks and block VACUUM. Restart their pipelines, or see pg_prepared_xacts"
        return warning(name, f"{count}, the oldest {oldest / 3600:.1f} h old", advice)
    return ok(name, f"{count}")
