"""A second server that subscribes to the target: its copy of the table is exact, and what staging tables do to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from psycopg import sql

from onceward.core.contract.transaction import CommitStatus

from .kafka_kit import eventually
from .postgres_kit import Database, context, fresh_database, make_sink, running_server, words, words_table, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from onceward.connectors.database.sink import PostgresSink
    from onceward.testing.services import PostgresServer

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

QUIET = {"fsync": "off", "full_page_writes": "off"}
WAYS = ("staging", "upsert", "changes", "prepared")
FAILURES = "SELECT coalesce(sum(apply_error_count), 0) FROM pg_stat_subscription_stats"


class Pair:
    """A target and its subscriber, each a server of its own."""

    def __init__(self, target: Database, copy: Database) -> None:
        self.target, self.copy = target, copy
        for database in (target, copy):
            words_table(database)

    def subscribe(self, publication: str) -> None:
        self.target.run(f"CREATE PUBLICATION feed {publication}")
        statement = sql.SQL("CREATE SUBSCRIPTION feed CONNECTION {} PUBLICATION feed")
        self.copy.look.execute(statement.format(sql.Literal(self.target.dsn)))
        copied = "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'"
        eventually(lambda: self.copy.one(copied) == 0, "the tables are copied")

    def caught_up(self) -> None:
        """Wait until the copy has the same rows."""
        eventually(lambda: self.copy.rows() == self.target.rows(), "the copy has the target's rows")

    def failures(self) -> int:
        return int(self.copy.one(FAILURES))

    def end(self) -> None:
        for statement in ("DISABLE", "SET (slot_name = NONE)"):
            self.copy.run(f"ALTER SUBSCRIPTION feed {statement}")
        self.copy.run("DROP SUBSCRIPTION feed")
        self.target.run("DROP PUBLICATION feed")
        slots = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active"
        eventually(
            lambda: not self.target.run(slots) and not self.target.run("SELECT FROM pg_replication_slots"), "no slot"
        )


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with (
        running_server(**QUIET, wal_level="logical") as target,
        running_server(**QUIET, wal_retrieve_retry_interval="100ms") as copy,
    ):
        yield target, copy


@pytest.fixture
def pair(servers: tuple[PostgresServer, PostgresServer]) -> Iterator[Pair]:
    with fresh_database(servers[0]) as target, fresh_database(servers[1]) as copy:
        made = Pair(target, copy)
        try:
            yield made
        finally:
            made.end()


def sink_of(pair: Pair, way: str) -> PostgresSink:
    if way == "changes":
        return make_sink(pair.target, "upsert", change_column="op")
    return make_sink(pair.target, way)


def rows_for(way: str, first: int, count: int, word: str = "w", *, delete: bool = False) -> pa.RecordBatch:
    batch = words(first, count, word)
    return batch.append_column("op", pa.array(["d" if delete else "c"] * count)) if way == "changes" else batch


def run(sink: PostgresSink, epoch: int, *batches: pa.RecordBatch) -> None:
    """Run an epoch with a subtask for each batch."""
    sink.validate(batches[0].schema)
    committables = [write(sink, context(epoch, subtask), batch) for subtask, batch in enumerate(batches)]
    assert {outcome.status for outcome in sink.commit_many(committables)} == {CommitStatus.COMMITTED}
    sink.ledger().completed(committables[0].read_name().scope, epoch)


def run_epochs(sink: PostgresSink, way: str, first: int) -> None:
    """Run five epochs, which take turns with all staging tables."""
    for epoch in range(first, first + 5):
        run(sink, epoch, rows_for(way, 200 * epoch, 50), rows_for(way, 200 * epoch + 100, 50))
    if way in {"upsert", "changes"}:
        run(sink, first + 5, rows_for(way, 200 * first, 50, "again"), rows_for(way, 200 * first + 50, 10))
    if way == "changes":
        run(sink, first + 6, rows_for(way, 200 * first + 20, 20, delete=True))


@pytest.mark.parametrize("way", WAYS)
def test_a_subscriber_of_the_target_s_schema_gets_exactly_the_target_s_rows(pair: Pair, way: str) -> None:
    pair.subscribe("FOR TABLES IN SCHEMA public")
    sink = sink_of(pair, way)
    run_epochs(sink, way, 1)
    pair.caught_up()
    for database in (pair.copy, pair.target):
        database.run("ALTER TABLE words ADD more int DEFAULT 7")
    run_epochs(sink, way, 11)
    pair.caught_up()
    assert pair.target.one("SELECT count(*) FROM words") >= 960
    assert pair.failures() == 0


@pytest.mark.parametrize("way", WAYS)
def test_a_subscriber_of_all_tables_goes_on_once_it_has_onceward_s_tables(
    pair: Pair, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Sinks go on meanwhile, and nothing is lost."""
    pair.subscribe("FOR ALL TABLES")
    sink = sink_of(pair, way)
    run_epochs(sink, way, 1)
    eventually(lambda: pair.failures() > 0, "the subscriber stops at a table that it has not")
    assert pair.copy.rows() == []
    assert "replication target relation" in caplog.text
    run_epochs(sink, way, 11)
    copy_schema(pair)
    pair.caught_up()
    assert pair.copy.one("SELECT count(*) FROM words") >= 960
    failures = pair.failures()
    run_epochs(sink, way, 21)
    pair.caught_up()
    assert pair.failures() == failures


def copy_schema(pair: Pair) -> None:
    """Do as docs/postgres.md says: pg_dump --schema-only --schema=onceward | psql."""
    server: Any = pair.target.server
    dump = server._run("pg_dump", "--schema-only", "--schema=onceward", "--no-owner", "--dbname", pair.target.dsn)
    assert dump.returncode == 0, dump.stdout
    pair.copy.run("\n".join(line for line in dump.stdout.splitlines() if not line.startswith("\\")))  # psql's own
    pair.copy.reconnect()
