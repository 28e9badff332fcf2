"""A PostgreSQL server with a standby, which is promoted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from onceward.connectors.database.engines import close_idle

from .kafka_kit import eventually

if TYPE_CHECKING:
    from contextlib import ExitStack

    from onceward.testing.services import PostgresServer

QUIET = {"fsync": "off", "full_page_writes": "off"}


class Pair:
    """A primary and its standby."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, opened: ExitStack) -> None:
        self.primary, self.standby, self.opened = primary, standby, opened
        with self.connect(primary) as admin:
            admin.execute("CREATE TABLE words (id bigint, word text)")
            admin.execute("CREATE UNIQUE INDEX words_id ON words (id)")

    @property
    def dsn(self) -> str:
        """Both servers: clients look for the primary."""
        both = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        return self.primary.dsn.replace(f"127.0.0.1:{self.primary.port}", both)

    @property
    def store(self) -> str:
        hosts = "&".join(f"host=127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        user = self.primary.dsn.split("@")[0].replace("postgresql://", "postgresql+psycopg://")
        return f"{user}@/postgres?{hosts}&target_session_attrs=primary"

    def connect(self, server: PostgresServer) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(server.dsn, autocommit=True)

    def replicate(self, level: str) -> None:
        """Synchronous from now on: `on` (the standby has it on its disk) or `remote_apply` (readers there see it)."""
        with self.connect(self.primary) as admin:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            admin.execute(f"ALTER SYSTEM SET synchronous_commit = {level}")
            admin.execute("SELECT pg_reload_conf()")
            synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
            eventually(lambda: admin.execute(synchronous).fetchone() == (1,), "the standby is synchronous")

    def catch_up(self) -> None:
        """Until the standby has all that the primary has written."""
        with self.connect(self.primary) as admin, self.connect(self.standby) as other:
            (end,) = admin.execute("SELECT pg_current_wal_flush_lsn()").fetchone() or (None,)
            there = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            eventually(lambda: other.execute(there, [end]).fetchone() == (True,), "caught up")

    def fail_over(self) -> None:
        self.primary.kill()
        self.standby.start_again()
        with self.connect(self.standby) as admin:
            assert admin.execute("SELECT pg_promote()").fetchone() == (True,)
        close_idle()

    def rows(self) -> list[int]:
        with self.connect(self.standby) as look:
            return [n for (n,) in look.execute("SELECT id FROM words ORDER BY id").fetchall()]

    def left(self) -> tuple[int, int]:
        """Prepared and staged transactions."""
        with self.connect(self.standby) as look:
            count = "SELECT (SELECT count(*) FROM pg_prepared_xacts), (SELECT count(*) FROM onceward.staged)"
            try:
                return look.execute(count).fetchone() or (-1, -1)
            except psycopg.errors.UndefinedTable:
                return look.execute("SELECT count(*), 0 FROM pg_prepared_xacts").fetchone() or (-1, -1)
