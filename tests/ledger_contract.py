"""What every sink with a ledger owes; tests/ runs it on SQLite, integration/ on the servers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Barrier

import pyarrow as pa
import pytest

from onceward.connectors.database.sink import DatabaseSink
from onceward.core.contract.names import NOTHING, Scope
from onceward.core.contract.transaction import (
    AbortStatus,
    CommitStatus,
    Committable,
    Observation,
    Progress,
    WriteContext,
)
from onceward.core.errors import EpochConflictError

SCOPE = Scope("orders", "words", "0123abcd")
OTHER = SCOPE._replace(log="ffff0000")
Make = Callable[..., DatabaseSink]
_IDS = count()


def prepare(sink: DatabaseSink, epoch: int = 0, *, scope: Scope = SCOPE, generation: int = 3) -> Committable:
    """One row, which no other call writes, prepared or staged."""
    where = WriteContext(**scope._asdict(), generation=generation, epoch=epoch, subtask=0)
    transaction = sink.begin(where)
    sink.write(transaction, pa.RecordBatch.from_pydict({"id": [next(_IDS)], "word": ["x"]}))
    return sink.pre_commit(transaction)


def finish(sink: DatabaseSink, epoch: int = 0, *, scope: Scope = SCOPE, generation: int = 3) -> Committable:
    """As a coordinator does: decided, claimed, committed."""
    committable = prepare(sink, epoch, scope=scope, generation=generation)
    sink.ledger().claim(scope)
    assert sink.commit(committable).status is CommitStatus.COMMITTED
    return committable


class LedgerContract:
    """Subclass it, and give the fixtures `make` (a sink of a given name) and `elsewhere` (in another database)."""

    @pytest.fixture
    def sink(self, make: Make) -> DatabaseSink:
        return make("words")

    # Whose the names are

    def test_a_log_that_decided_nothing_leaves_the_names_free(self, sink: DatabaseSink):
        left = prepare(sink)
        sink.ledger().check_claim(OTHER, NOTHING)
        finish(sink, scope=OTHER)
        sink.ledger().check_claim(OTHER, Progress(3, 0))
        with pytest.raises(EpochConflictError, match="from decision log ffff0000"):
            sink.ledger().check_claim(SCOPE, NOTHING)
        assert sink.abort(left).status is AbortStatus.ABORTED

    def test_a_claimed_name_is_refused_to_every_other_log(self, sink: DatabaseSink):
        sink.ledger().claim(SCOPE)
        sink.ledger().claim(SCOPE)
        for refused in (
            lambda: sink.ledger().check_claim(OTHER, NOTHING),
            lambda: sink.ledger().claim(OTHER),
            lambda: prepare(sink, scope=OTHER),
        ):
            with pytest.raises(EpochConflictError, match=r'from decision log 0123abcd.*rewind="'):
                refused()
        sink.ledger().check_claim(SCOPE._replace(pipeline="orders-eu"), NOTHING)

    def test_a_pipeline_that_another_log_has_written_is_refused_under_any_sinks_name(self, sink: DatabaseSink):
        """Invariant 9 and rule J: a fresh checkpoint and a renamed sink must not write the input a second time."""
        sink.ledger().claim(SCOPE)
        renamed = OTHER._replace(sink="words-2")
        for refused in (lambda: sink.ledger().check_claim(renamed, NOTHING), lambda: sink.ledger().claim(renamed)):
            with pytest.raises(EpochConflictError, match=r"knows this pipeline \(its sink words\) from decision log"):
                refused()
        sink.ledger().check_claim(SCOPE._replace(sink="words-2"), NOTHING)
        sink.ledger().release(renamed)
        sink.ledger().check_claim(renamed, NOTHING)
        sink.ledger().check_claim(OTHER._replace(sink="words-3"), NOTHING)
        with pytest.raises(EpochConflictError):
            sink.ledger().check_claim(SCOPE, NOTHING)

    def test_checking_writes_nothing(self, sink: DatabaseSink, make: Make):
        sink.ledger().check_claim(SCOPE, NOTHING)
        make("words").ledger().check_claim(OTHER, NOTHING)
        finish(sink)

    def test_of_two_logs_that_claim_at_once_one_wins(self, make: Make):
        for n in range(10):
            barrier = Barrier(2)

            def claims(log: str, pipeline: str = f"p{n}", barrier: Barrier = barrier) -> bool:
                sink = make("words")
                sink.ledger().check_claim(Scope(pipeline, "words", log), NOTHING)
                barrier.wait(30)
                try:
                    sink.ledger().claim(Scope(pipeline, "words", log))
                except EpochConflictError:
                    return False
                return True

            with ThreadPoolExecutor(2) as pool:
                assert sorted(pool.map(claims, ["0123abcd", "ffff0000"])) == [False, True]

    # How far the log had come

    def test_a_log_that_has_not_come_so_far_is_refused(self, sink: DatabaseSink):
        for epoch in range(3):
            finish(sink, epoch)
        finish(sink, 3, generation=9)
        for newest in (NOTHING, Progress(3, 2), Progress(3, 7), Progress(9, 2)):
            with pytest.raises(EpochConflictError, match=r"outdated copy.*holds epoch 3 \(generation 9\)"):
                sink.ledger().check_claim(SCOPE, newest)
        for newest in (Progress(9, 3), Progress(9, 4), Progress(11, 0)):
            sink.ledger().check_claim(SCOPE, newest)

    def test_a_pruned_ledger_answers_as_one_that_never_was(self, sink: DatabaseSink):
        old, newest = finish(sink, 5), finish(sink, 6)
        sink.ledger().completed(SCOPE, 100_000)
        sink.ledger().completed(SCOPE, 200_000)
        with pytest.raises(EpochConflictError, match=r"holds epoch 6 \(generation 3\)"):
            sink.ledger().check_claim(SCOPE, Progress(3, 5))
        sink.ledger().check_claim(SCOPE, Progress(3, 6))
        assert sink.commit(newest).status is CommitStatus.ALREADY_COMMITTED
        assert sink.commit(old).status is CommitStatus.UNKNOWN

    def test_all_transactions_of_the_newest_epoch_are_counted_and_outlive_pruning(self, sink: DatabaseSink):
        """Those of a healed epoch are of two writers."""
        for epoch, generation in ((5, 3), (6, 3), (6, 7)):
            finish(sink, epoch, generation=generation)
        for _ in range(2):
            known = sink.ledger().check_claim(SCOPE, Progress(7, 6))
            assert known is not None
            assert known.transactions == 2
            sink.ledger().completed(SCOPE, 100_000)

    def test_pruning_is_noted_without_a_claim_too(self, sink: DatabaseSink):
        """A database that the pipeline has moved to: nobody claims there again."""
        old, newest = (prepare(sink, epoch) for epoch in (5, 6))
        assert [sink.commit(c).status for c in (old, newest)] == [CommitStatus.COMMITTED] * 2
        sink.ledger().completed(SCOPE, 100_000)
        assert [sink.commit(c).status for c in (old, newest)] == [CommitStatus.UNKNOWN, CommitStatus.ALREADY_COMMITTED]

    def test_release_takes_the_names_and_sets_aside_what_was_known(self, sink: DatabaseSink):
        theirs, later = finish(sink, 0), finish(sink, 1, generation=9)
        for _ in range(2):
            sink.ledger().release(SCOPE)
            sink.ledger().check_claim(SCOPE, NOTHING)
        assert sink.commit(later).status is CommitStatus.ALREADY_COMMITTED
        finish(sink, 1, generation=5)  # of the outdated copy, whose positions come again
        sink.ledger().check_claim(SCOPE, Progress(5, 1))
        with pytest.raises(EpochConflictError, match=r"holds epoch 1 \(generation 5\)"):
            sink.ledger().check_claim(SCOPE, Progress(3, 0))
        for _ in range(2):
            sink.ledger().release(OTHER)
        sink.ledger().check_claim(OTHER, NOTHING)
        with pytest.raises(EpochConflictError, match="from decision log ffff0000"):
            sink.ledger().check_claim(SCOPE, Progress(5, 1))
        finish(sink, 0, scope=OTHER)
        assert sink.commit(theirs).status is CommitStatus.ALREADY_COMMITTED

    # What an absent row proves

    def test_before_the_first_claim_what_was_aborted_is_proven_lost(self, sink: DatabaseSink):
        committable = prepare(sink)
        assert sink.abort(committable).status is AbortStatus.ABORTED
        assert sink.abort(committable).status is AbortStatus.ABORTED
        assert list(sink.inspect_many([committable])) == [Observation.ABORTED]
        sink.ledger().claim(SCOPE)
        assert sink.commit(committable).status is CommitStatus.LOST

    def test_a_claim_in_another_database_proves_nothing(self, sink: DatabaseSink, elsewhere: DatabaseSink):
        """A restart after the first decision, with a wrong address: it claims there, and finds nothing."""
        committable = prepare(sink)
        elsewhere.ledger().claim(SCOPE)
        assert elsewhere.commit(committable).status is CommitStatus.UNKNOWN
        assert list(elsewhere.inspect_many([committable])) == [Observation.ABSENT]
        sink.ledger().claim(SCOPE)
        assert sink.commit(committable).status is CommitStatus.COMMITTED

    def test_after_a_rewind_the_epochs_that_come_again_are_proven_lost_or_not(self, sink: DatabaseSink):
        """However far the ledger was pruned before; what is from before the rewind stays unknown for good."""
        old = [finish(sink, epoch) for epoch in (5, 6)]
        sink.ledger().completed(SCOPE, 100_000)
        sink.ledger().release(SCOPE)
        lost = prepare(sink, 1, generation=9)
        assert sink.abort(lost).status is AbortStatus.ABORTED
        assert sink.commit(lost).status is CommitStatus.LOST
        assert [sink.commit(c).status for c in old] == [CommitStatus.UNKNOWN, CommitStatus.ALREADY_COMMITTED]
        newest = finish(sink, 2, generation=9)
        sink.ledger().completed(SCOPE, 200_000)
        assert list(sink.inspect_many([*old, newest])) == [
            Observation.UNKNOWN,
            Observation.COMMITTED,
            Observation.COMMITTED,
        ]
        sink.ledger().release(SCOPE)
        assert sink.commit(old[0]).status is CommitStatus.UNKNOWN
        again = prepare(sink, 2, generation=12)
        assert sink.abort(again).status is AbortStatus.ABORTED
        assert sink.commit(again).status is CommitStatus.LOST
        finish(sink, 0, generation=12)
        sink.ledger_epochs = 100
        sink.ledger().completed(SCOPE, 200)
        late = prepare(sink, 1, generation=9)
        assert sink.abort(late).status is AbortStatus.ABORTED
        assert sink.commit(late).status is CommitStatus.UNKNOWN

    def test_what_a_rewind_takes_back_is_proven_lost_although_its_writer_had_committed_earlier_epochs(
        self, sink: DatabaseSink
    ):
        """A running query writes all its epochs under one START, so the generation alone tells nothing."""
        committed = [finish(sink, 0, generation=3), finish(sink, 1, generation=3)]
        taken_back = [prepare(sink, 2, generation=3), prepare(sink, 1, generation=3)]
        sink.ledger().release(SCOPE)
        for _ in range(2):
            assert [sink.abort(c).status for c in taken_back] == [AbortStatus.ABORTED] * 2
            assert set(sink.inspect_many(taken_back)) == {Observation.ABORTED}
        finish(sink, 0, generation=9)
        sink.ledger().completed(SCOPE, 200_000)
        assert set(sink.inspect_many(taken_back)) <= {Observation.ABORTED, Observation.UNKNOWN}
        assert sink.inspect_many(committed) == [Observation.UNKNOWN, Observation.COMMITTED]

    # What sinks of other names left behind

    def test_leftovers_of_other_sinks_are_listed_by_pipeline_and_log_and_aborted(self, make: Make):
        renamed = SCOPE._replace(sink="renamed")
        ours = [prepare(make("words"), 1), prepare(make("renamed"), 2, scope=renamed)]
        foreign = [
            prepare(make("words"), 3, scope=SCOPE._replace(pipeline="orders-eu")),
            prepare(make("words"), 4, scope=OTHER),
        ]
        sink = make("words")
        found = list(sink.lingering_elsewhere(SCOPE.pipeline, SCOPE.log))
        assert sorted(c.identity() for c in found) == sorted(c.identity() for c in ours)
        assert {c.sink for c in found} == {"words", "renamed"}
        for committable in found:
            assert sink.abort(committable).status is AbortStatus.ABORTED
        assert list(sink.lingering_elsewhere(SCOPE.pipeline, SCOPE.log)) == []
        assert [sink.commit(c).status for c in foreign] == [CommitStatus.COMMITTED] * 2

    def test_nothing_is_found_where_nothing_was_written(self, sink: DatabaseSink):
        assert list(sink.lingering_elsewhere(SCOPE.pipeline, SCOPE.log)) == []
