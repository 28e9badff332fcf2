"""Checks of a PostgreSQL server: what the commit protocol, and a decision log, need of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceward.core.contract.findings import Finding, failed, ok, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

    from ..dialect import ServerFacts

_CREATE: Final = """
SELECT has_database_privilege(current_database(), 'CREATE'), current_user::text, current_database()::text,
       to_regnamespace(quote_ident(%(schema)s)) IS NOT NULL
"""
_PREPARED: Final = "SELECT count(*), coalesce(extract(epoch FROM max(now() - prepared)), 0) FROM pg_prepared_xacts"
_STANDBYS: Final = """
SELECT count(*), count(*) FILTER (WHERE coalesce(sync_state, 'async') IN ('async', 'potential')),
       current_setting('synchronous_standby_names')
FROM pg_stat_replication
"""
"""Only a superuser or a member of pg_read_all_stats sees sync_state."""
_TIMEOUTS: Final = """
SELECT name, setting::bigint / 1000 FROM pg_settings
WHERE name IN ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout')
      AND setting::bigint > 0
ORDER BY name
"""
_LOCKS: Final = """
SELECT current_setting('max_locks_per_transaction')::int
       * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int),
       (SELECT count(*) FROM pg_locks WHERE NOT fastpath AND mode <> 'SIReadLock')
"""
_PARTITIONS: Final = """
WITH RECURSIVE part(root, oid) AS (
  SELECT oid, oid FROM pg_class WHERE relkind = 'p' AND NOT relispartition
  UNION ALL SELECT root, inhrelid FROM part JOIN pg_inherits ON inhparent = part.oid
)
SELECT root::regclass::text, count(DISTINCT oid), count(DISTINCT oid) + count(indexrelid)
FROM part LEFT JOIN pg_index ON indrelid = oid GROUP BY root ORDER BY 3 DESC LIMIT 1
"""
"""The table with the most partitions and indexes, and how many locks a transaction takes that writes to all of them."""
_OLD_SECONDS: Final = 3600
_FEW: Final = 16


def check_postgres_server(connection: sa.Connection, facts: ServerFacts, schema: str) -> Iterator[Finding]:
    """Check that the server is writable and durable, and has room; check rights and old transactions."""
    version = connection.dialect.server_version_info or ("?",)
    yield ok("postgresql server", f"version {version[0]}")
    if facts.unusable:
        yield failed("primary", facts.unusable, "connect to a writable primary")
    yield from (_durability(facts, connection), _timeouts(connection), check_standbys(connection))
    yield from (_prepared_slots(facts), _locks(connection), _schema(connection, schema), _old(connection))


def _durability(facts: ServerFacts, connection: sa.Connection) -> Finding:
    name, pages = "durability", connection.exec_driver_sql("SHOW full_page_writes").scalar_one()
    if facts.warnings or pages != "on":
        unsafe = [*facts.warnings, *([] if pages == "on" else ["full_page_writes is off: a power cut may damage data"])]
        return warning(name, "; ".join(unsafe), "turn it on")
    return ok(name, "fsync and full_page_writes are on; the sink itself asks for synchronous commits")


def _timeouts(connection: sa.Connection) -> Finding:
    """Report session timeouts as harmless: no transaction of a sink is subject to them."""
    limits = ", ".join(f"{setting} {s} s" for setting, s in connection.exec_driver_sql(_TIMEOUTS))
    harmless = f"{limits}; harmless, because the sink sets them to 0 in its own transactions"
    return ok("session timeouts", harmless if limits else "none")


def _locks(connection: sa.Connection) -> Finding:
    """Compare the server's room for locks with those held, and with the needs of the table with the most partitions."""
    name = "max_locks_per_transaction"
    room, held = connection.exec_driver_sql(_LOCKS).one()
    table, partitions, needed = connection.exec_driver_sql(_PARTITIONS).one_or_none() or ("", 0, 0)
    text = f"room for about {room} locks, {held} are held"
    advice = "raise it and restart the server, or write the rows of an epoch into fewer partitions"
    if needed * _FEW > room:
        many = f"{text}; one transaction that writes to all {partitions - 1} partitions of {table} takes {needed}"
        return warning(name, many, advice)
    return warning(name, text, advice) if held * 2 > room else ok(name, text)


def check_standbys(connection: sa.Connection) -> Finding:
    """Check whether a standby that takes over may lack what was committed."""
    name = "standbys"
    connected, asynchronous, names = connection.exec_driver_sql(_STANDBYS).one()
    if connected and (not names or asynchronous == connected):
        text = f"{asynchronous} of {connected} replicate asynchronously (synchronous_standby_names {names!r})"
        advice = (
            "if one is promoted, it may lack commits that were acknowledged. Set synchronous_standby_names, with a "
            "quorum from which the failover chooses the new primary"
        )
        return warning(name, text, advice)
    return ok(
        name, f"{connected} connected; {asynchronous} replicate asynchronously" if connected else "none connected"
    )


def _prepared_slots(facts: ServerFacts) -> Finding:
    name, most = "max_prepared_transactions", facts.max_prepared
    if most == 0:
        return warning(name, "0: sinks use staging and merge", f"for prepared transactions: {facts.why_none}")
    if most < _FEW:
        return warning(name, str(most), "set it to at least twice the number of partitions of all pipelines together")
    return ok(name, str(most))


def _schema(connection: sa.Connection, schema: str) -> Finding:
    name = "schema for the ledger"
    may_create, user, database, there = connection.exec_driver_sql(_CREATE, {"schema": schema}).one()
    if may_create or there:
        return ok(name, "there" if there else f"role {user} may create it")
    advice = f'as an administrator: CREATE SCHEMA "{schema}" AUTHORIZATION "{user}"'
    return failed(name, f"role {user} may not create a schema in {database}", advice)


def _old(connection: sa.Connection) -> Finding:
    name = "prepared transactions"
    count, oldest = connection.exec_driver_sql(_PREPARED).one()
    if oldest > _OLD_SECONDS:
        advice = "they hold locks and block VACUUM. Restart their pipelines, or see pg_prepared_xacts"
        return warning(name, f"{count}, the oldest {oldest / 3600:.1f} h old", advice)
    return ok(name, f"{count}")
