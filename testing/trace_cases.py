"""Cases of the conformance suite about transactions that have left no trace in the target.

"I cannot find it" can have three reasons: the transaction was never prepared; its prepared data is gone; or it was
committed, and what showed that is gone. A sink that takes one of them for another loses rows silently, or writes them
twice:

1. COMMITTED or ALREADY_COMMITTED for the first two: the epoch is completed without its rows, and no error says so.
2. LOST or FENCED for the third: with `on_lost="replay"` the rows are written a second time.

So a commit that finds nothing answers UNKNOWN, or LOST if the target remembers what it committed for longer than
readers keep the rows (invariant 8 of ARCHITECTURE.md and its rule G).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import pytest

from onceward.core.contract.names import parse_pooled_name, parse_transaction_name
from onceward.core.contract.outcome import PROVEN_NOT_COMMITTED
from onceward.core.contract.transaction import CommitStatus, Committable
from onceward.core.errors import OncewardError

from .sink_case import GOOD, SinkCase, not_applicable

if TYPE_CHECKING:
    from onceward.core.contract.transaction import CommitOutcome

SILENT: Final = (
    "{what}, and commit answered {status!r}. Such an epoch would be completed without its rows, and no error would "
    "say so. Answer UNKNOWN for a transaction of which the target has no trace; answer LOST only if the target would "
    "remember its commit"
)
ENDLESS: Final = (
    "{what}, and commit still answers {status!r}. That is for temporary faults: this transaction will not come back, "
    "so the pipeline would wait until its commit_timeout and never say what was lost. Answer UNKNOWN, or LOST if the "
    "target would remember its commit"
)
UNPROVEN: Final = (
    "commit answers {status!r} for a transaction that was never prepared. That is a proof: with on_lost='replay' its "
    "rows are written again. It is a proof only if the target still remembers what it committed after readers have "
    "taken the rows away: give SinkUnderTest.take_away, which removes all visible rows, so that the suite can try it; "
    "or answer UNKNOWN"
)


class TraceCases:
    """Cases of SinkConformance."""

    def test_23_a_transaction_that_was_never_prepared_is_not_taken_for_committed(self, case: SinkCase) -> None:
        real = case.prepare()
        never = never_prepared(real)
        case.sink.ledger().claim(case.scope)
        outcome = self._commit(case, never)
        _check_loud(outcome, "A transaction was never prepared")
        if outcome is not None and outcome.status in PROVEN_NOT_COMMITTED and not _is_answered_by_onceward(case):
            assert case.sink_under_test.take_away is not None, UNPROVEN.format(status=str(outcome.status))
        case.assert_visible([])
        assert case.commit(real).status in GOOD
        case.assert_visible(case.numbers())

    def test_23_and_28_what_is_committed_together_does_not_vouch_for_what_was_never_prepared(
        self, case: SinkCase
    ) -> None:
        first, second = case.prepare(0), case.prepare(0, case.numbers(1), subtask=1)
        case.sink.ledger().claim(case.scope)
        try:
            outcomes = case.commit_many([first, never_prepared(first), second])
        except OncewardError:
            return
        _check_loud(outcomes[1], "Of three transactions one was never prepared")

    def test_22_and_23_prepared_rows_that_somebody_deleted_are_a_loud_loss(self, case: SinkCase) -> None:
        delete = case.sink_under_test.delete_prepared
        if delete is None:
            not_applicable("no SinkUnderTest.delete_prepared: the test cannot delete prepared rows in the target")
        case.finish(0, case.prepare(0))
        committable = case.prepare(1)
        delete(committable)
        case.sink.ledger().claim(case.scope)
        _check_loud(self._commit(case, committable), "The prepared rows were deleted in the target")
        with pytest.raises(OncewardError):
            case.finish(1, committable)
        case.assert_visible(case.numbers(0))

    def test_23_committed_rows_that_a_reader_took_away_are_not_lost(self, case: SinkCase) -> None:
        take_away = case.sink_under_test.take_away
        if take_away is None:
            not_applicable("no SinkUnderTest.take_away: the test cannot remove visible rows from the target")
        committable = case.prepare()
        case.finish(0, committable)
        take_away()
        case.assert_visible([])
        outcome = case.commit(committable)
        assert outcome.status not in PROVEN_NOT_COMMITTED, (
            f"the rows were committed, a reader took them away, and commit answers {str(outcome.status)!r}. With "
            "on_lost='replay' they would be written again. Remember each commit elsewhere than in the rows, or answer "
            "UNKNOWN"
        )
        case.assert_visible([])

    @staticmethod
    def _commit(case: SinkCase, committable: Committable) -> CommitOutcome | None:
        """Return the outcome; None if the sink refuses the committable with an error, which is loud, too."""
        try:
            return case.commit(committable)
        except OncewardError:
            return None


def _is_answered_by_onceward(case: SinkCase) -> bool:
    """Return whether commits are a base class's, whose own tests take rows away: that of a WriteAheadLogSink."""
    methods = (type(case.sink).commit, type(case.sink).commit_many)
    return all(method.__module__.startswith("onceward.") for method in methods)


def never_prepared(committable: Committable) -> Committable:
    """Return a committable like this one, but of a transaction that was never prepared.

    It has another value in the part of the name that makes it unique, in the handle, too.
    """
    name = parse_transaction_name(committable.transaction) or parse_pooled_name(committable.transaction)
    unique = committable.transaction if name is None else name.unique
    other = f"{unique}-never" if name is None else secrets.token_hex(8)[: len(unique)]
    return Committable.from_json(committable.to_json().replace(unique, other))


def _check_loud(outcome: CommitOutcome | None, what: str) -> None:
    if outcome is None:
        return
    status = str(outcome.status)
    assert outcome.status not in GOOD, SILENT.format(what=what, status=status)
    assert outcome.status is not CommitStatus.RETRY_LATER, ENDLESS.format(what=what, status=status)
