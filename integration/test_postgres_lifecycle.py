"""What the conformance suite does not ask of every sink, for each of PostgreSQL's ways to wait for the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onceward.connectors.database.sink import PostgresSink
from onceward.core.contract.names import NOTHING, Scope
from onceward.core.contract.transaction import AbortStatus, CommitStatus, Committable, Observation
from onceward.core.errors import EpochConflictError

from .postgres_kit import (
    SCHEMA,
    SCOPE,
    WORDS,
    Database,
    context,
    expected,
    fresh_database,
    make_sink,
    running_server,
    words,
    words_table,
    write,
)
from .simulator_kit import ledger_contract

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = [pytest.mark.postgres, pytest.mark.tables(WORDS)]


@pytest.fixture(params=["prepared", "staging", "upsert"])
def sink(request: pytest.FixtureRequest, database: Database) -> PostgresSink:
    made = make_sink(database, request.param)
    made.validate(SCHEMA)
    made.ledger().claim(SCOPE)
    return made


def statuses(sink: PostgresSink, *committables: Committable) -> list[CommitStatus]:
    return [outcome.status for outcome in sink.commit_many(committables)]


def test_rows_of_a_complete_epoch_are_visible_exactly_once(sink: PostgresSink, database: Database) -> None:
    committables = [write(sink, context(subtask=n), words(10 * n), words(10 * n + 3)) for n in range(3)]
    assert statuses(sink, *committables) == [CommitStatus.COMMITTED] * 3
    assert database.rows() == expected(0, 6) + expected(10, 6) + expected(20, 6)
    assert list(sink.inspect_many(committables)) == [Observation.COMMITTED] * 3
    assert database.one("SELECT sum(row_count) FROM onceward.ledger") == 18
    assert [c.rows for c in committables] == [6, 6, 6]


def test_an_epoch_of_empty_batches_leaves_nothing_behind(sink: PostgresSink, database: Database) -> None:
    committable = write(sink, context(), words(1, 0))
    assert committable.rows == 0
    assert statuses(sink, committable) == [CommitStatus.COMMITTED]
    assert (database.rows(), database.prepared(), database.staged()) == ([], [], 0)


def test_a_decided_transaction_that_somebody_aborted_is_lost(sink: PostgresSink) -> None:
    committable = write(sink, context(), words(1))
    assert sink.abort(committable).status is AbortStatus.ABORTED
    outcome = sink.commit(committable)
    assert outcome.status is CommitStatus.LOST
    assert "nor in the ledger" in outcome.detail
    assert list(sink.inspect_many([committable])) == [Observation.ABORTED]


def test_a_lost_one_does_not_keep_the_others_from_their_commit(sink: PostgresSink, database: Database) -> None:
    committables = [write(sink, context(subtask=n), words(10 * n)) for n in range(2)]
    sink.abort(committables[0])
    assert statuses(sink, *committables) == [CommitStatus.LOST, CommitStatus.COMMITTED]
    assert database.rows() == expected(10)


def test_an_absent_row_proves_nothing_once_the_ledger_is_pruned(sink: PostgresSink, database: Database) -> None:
    committable, newest = (write(sink, context(epoch), words(10 * epoch)) for epoch in (5, 6))
    assert statuses(sink, committable, newest) == [CommitStatus.COMMITTED] * 2
    sink.ledger_epochs = 100
    sink.ledger().completed(SCOPE, 150)
    assert statuses(sink, committable) == [CommitStatus.ALREADY_COMMITTED]
    sink.ledger().completed(SCOPE, 200)
    assert database.run("SELECT epoch FROM onceward.ledger") == [(6,)]
    assert statuses(sink, committable) == [CommitStatus.UNKNOWN]
    assert sink.abort(committable).status is AbortStatus.UNKNOWN


def test_pruning_leaves_young_epochs_and_other_pipelines_alone(sink: PostgresSink, database: Database) -> None:
    sink.ledger_epochs = 100
    other = context(5, pipeline="orders-eu")
    committables = [write(sink, where, words(10 * n)) for n, where in enumerate([context(101), context(100), other])]
    for committable in committables:
        assert statuses(sink, committable) == [CommitStatus.COMMITTED]
    sink.ledger().completed(SCOPE, 200)
    left = database.run("SELECT pipeline, epoch FROM onceward.ledger ORDER BY 1, 2")
    assert left == [("orders", 101), ("orders-eu", 5)]


def test_aborting_an_unknown_transaction_has_no_effect(sink: PostgresSink) -> None:
    committable = write(sink, context(), words(1))
    name = committable.transaction
    unknown = Committable.from_json(committable.to_json().replace(name, f"{name}0"))
    assert sink.abort(unknown).status is AbortStatus.ABORTED
    assert statuses(sink, committable) == [CommitStatus.COMMITTED]


def test_aborting_a_committed_transaction_is_refused(sink: PostgresSink, database: Database) -> None:
    committable = write(sink, context(), words(1))
    sink.commit(committable)
    assert sink.abort(committable).status is AbortStatus.COMMITTED
    assert database.rows() == expected(1)


def test_aborting_twice_has_no_effect(sink: PostgresSink, database: Database) -> None:
    committable = write(sink, context(), words(1))
    assert [sink.abort(committable).status for _ in range(2)] == [AbortStatus.ABORTED] * 2
    assert (database.prepared(), database.staged()) == ([], 0)


def test_leftovers_of_another_log_are_listed_with_their_log(sink: PostgresSink) -> None:
    own = write(sink, context(), words(1))
    scope = Scope("orders", "words", "ffff0000")
    sink.ledger().release(scope)
    assert [(c.log, c.transaction) for c in sink.lingering(scope)] == [(SCOPE.log, own.transaction)]


def test_ledger_rows_of_another_log_are_a_conflict_even_without_its_claim(
    sink: PostgresSink, database: Database
) -> None:
    sink.commit(write(sink, context(4), words(1)))
    database.run("DELETE FROM onceward.pipelines")
    other = Scope("orders", "words", "ffff0000")
    for look in (lambda: sink.ledger().claim(other), lambda: sink.ledger().check_claim(other, NOTHING)):
        with pytest.raises(EpochConflictError, match=f"from decision log {SCOPE.log}"):
            look()
    sink.ledger().claim(SCOPE)


@pytest.mark.parametrize("how", ["prepared", "staging"])
class TestLedger(ledger_contract.LedgerContract):
    @pytest.fixture
    def make(self, database: Database, how: str) -> Callable[..., PostgresSink]:
        return lambda name: PostgresSink(name, dsn=database.dsn, table="words", commit=how)

    @pytest.fixture
    def elsewhere(self, how: str) -> Iterator[PostgresSink]:
        with running_server(fsync="off") as server, fresh_database(server) as other:
            words_table(other)
            yield make_sink(other, how)

    def test_a_start_makes_no_schema(self, make: Callable[..., PostgresSink], database: Database) -> None:
        make("words").ledger().check_claim(SCOPE, NOTHING)
        assert database.one("SELECT to_regnamespace('onceward') IS NULL")


def test_rows_staged_or_prepared_by_the_other_way_are_still_found(database: Database) -> None:
    prepared, staging = make_sink(database, "prepared"), make_sink(database, "staging")
    committables = [write(prepared, context(1), words(1)), write(staging, context(2), words(10))]
    for made in (prepared, staging):
        assert {c.identity() for c in made.lingering(SCOPE)} == {c.identity() for c in committables}
    assert statuses(prepared, *committables) == [CommitStatus.COMMITTED] * 2
    assert database.rows() == expected(1) + expected(10)


def test_subtasks_with_different_columns_are_merged_out_of_one_large_staging_table(database: Database) -> None:
    """A large staging table is emptied whole: not before all that it holds of this epoch is moved."""
    sink = make_sink(database, "staging")
    many = words(0, 60_000, word="w" * 60)
    committables = [
        write(sink, context(subtask=0), many),
        write(sink, context(subtask=1), words(100_000, 60_000).select(["id"])),
    ]
    assert statuses(sink, *committables) == [CommitStatus.COMMITTED] * 2
    assert database.one("SELECT count(*) FROM words") == 120_000
