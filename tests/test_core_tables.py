"""The recovery table, the lifecycle table, outcomes and the permit."""

from __future__ import annotations

from itertools import product

import pytest

from onceward.core.checkpoint.recovery import RECOVERY, Action, TransactionStatus, action
from onceward.core.errors import LifecycleError
from onceward.core.log import CommitPermit, LogView
from onceward.core.transaction import (
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Observation,
    abort_outcome,
    commit_outcome,
)
from onceward.core.transaction.lifecycle import PREDECESSORS, Lifecycle, TransactionState
from onceward.core.transaction.outcome import OUTCOMES, PROVEN_NOT_COMMITTED


def test_every_pair_of_states_has_exactly_one_action():
    assert set(RECOVERY) == set(TransactionStatus)
    for status, seen in product(TransactionStatus, Observation):
        assert action(status, seen) in Action


def test_only_a_durable_and_open_decision_commits():
    commits = {status for status, rows in RECOVERY.items() if Action.COMMIT in rows.values()}
    assert commits == {TransactionStatus.DECIDED}


def test_nothing_that_a_decision_names_is_ever_aborted():
    aborts = {status for status, rows in RECOVERY.items() if Action.ABORT in rows.values()}
    assert aborts == {TransactionStatus.LINGERING}


def test_what_is_not_of_this_log_is_never_changed():
    foreign = {action(TransactionStatus.FOREIGN, seen) for seen in Observation}
    assert foreign == {Action.REPORT, Action.NOTHING}


def test_a_decided_transaction_that_is_gone_is_loud():
    for seen in (Observation.ABORTED, Observation.EXPIRED):
        assert action(TransactionStatus.DECIDED, seen) is Action.LOST


def test_every_observation_proves_one_thing_to_a_commit_and_one_to_an_abort():
    assert set(OUTCOMES) == set(Observation)
    settled = {seen for seen in Observation if commit_outcome(seen).settled}
    assert settled == {Observation.COMMITTED}
    proven = {seen for seen in Observation if commit_outcome(seen).status in PROVEN_NOT_COMMITTED}
    assert proven == {Observation.ABORTED, Observation.EXPIRED}
    gone = {seen for seen in Observation if abort_outcome(seen).done}
    assert gone == {*proven, Observation.ABSENT}
    assert not PROVEN_NOT_COMMITTED & {status for status in CommitStatus if CommitOutcome(status).settled}


def test_abort_says_who_won():
    assert {"aborted", "committed"} <= set(AbortStatus)


@pytest.mark.parametrize(("before", "after"), list(product(TransactionState, TransactionState)))
def test_a_transaction_moves_only_along_the_table(before: TransactionState, after: TransactionState):
    life = Lifecycle("t")
    life.state = before
    if before in PREDECESSORS[after]:
        life.enter(after)
        life.require(after, TransactionState.NEW)
        assert life.state is after
    else:
        with pytest.raises(LifecycleError, match=f"t cannot go from {before} to {after}"):
            life.enter(after)
        assert life.state is before


def test_every_state_has_a_row_and_the_ends_have_no_successor():
    assert set(PREDECESSORS) == set(TransactionState)
    entered_from = set().union(*PREDECESSORS.values())
    assert set(TransactionState) - entered_from == {
        TransactionState.COMMITTED,
        TransactionState.ABORTED,
        TransactionState.LOST,
    }


def test_a_decided_transaction_is_never_aborted():
    assert TransactionState.DECIDED not in PREDECESSORS[TransactionState.ABORTED]
    with pytest.raises(LifecycleError, match="is new, not decided or prepared"):
        Lifecycle("t").require(TransactionState.DECIDED, TransactionState.PREPARED)


def test_a_permit_cannot_be_made_without_a_decision_in_the_log():
    with pytest.raises(LifecycleError, match="made of a decision that waits in the decision log"):
        CommitPermit(LogView())
