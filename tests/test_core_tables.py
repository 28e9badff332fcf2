"""The recovery table, outcomes, a subtask's states and the permit."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any
from unittest.mock import create_autospec

import pyarrow as pa
import pytest

from onceward.core.checkpoint.recovery import RECOVERY, Action, TransactionStatus, action
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.outcome import OUTCOMES, PROVEN_NOT_COMMITTED
from onceward.core.contract.transaction import (
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Observation,
    WriteContext,
    abort_outcome,
    commit_outcome,
)
from onceward.core.errors import LifecycleError
from onceward.core.log import CommitPermit, LogView

from .core_fakes import prepared
from .sink_kit import TargetSink


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


def test_only_an_open_transaction_is_written_prepared_or_discarded():
    context = WriteContext(pipeline="p", sink="a", log="abcd1234", generation=0, epoch=0, subtask=0)
    sink: Any = create_autospec(TargetSink)
    sink.pre_commit.return_value = prepared(context)
    rows = pa.RecordBatch.from_pydict({"a": [1]})
    prepared_epoch, discarded, empty = (SubtaskEpoch(sink, context) for _ in range(3))
    empty.write(rows[:0])
    assert empty.pre_commit() is None
    empty.discard()
    assert not sink.begin.called
    for epoch, end in ((prepared_epoch, prepared_epoch.pre_commit), (discarded, discarded.discard)):
        epoch.write(rows)
        end()
        for step in (partial(epoch.write, rows), epoch.pre_commit):
            with pytest.raises(LifecycleError, match=r"is (prepared|discarded), not open"):
                step()
        epoch.discard()
    sink.discard.assert_called_once()


def test_a_permit_cannot_be_made_without_a_decision_in_the_log():
    with pytest.raises(LifecycleError, match="made of a decision that waits in the decision log"):
        CommitPermit(LogView())
