"""A target with a ledger that went back to an older state after its commits: noticed at the next start, and told."""

from __future__ import annotations

import msgspec
import pytest

from onceward.core.checkpoint import Coordinator, OnLost
from onceward.core.errors import DataLossError, RetryableSinkError
from onceward.core.log import EpochInput
from onceward.core.transaction import CommitStatus, Committable, Observation
from onceward.testing.faults import Faults
from onceward.testing.wrappers import FaultySink

from .core_fakes import FakeSink, MemoryStore, acknowledgement, policy, prepared

COMMITTED, PREPARED, ABORTED = Observation.COMMITTED, Observation.PREPARED, Observation.ABORTED


class Bench:
    """A pipeline `p` whose sink `a` keeps a ledger, after one completed epoch."""

    def __init__(self, seen: Observation, *, keeps_ledger: bool = True) -> None:
        self.store, self.sink = MemoryStore(), FakeSink()
        self.sink.keeps_ledger = keeps_ledger  # type: ignore[misc]
        coordinator = self.open()
        about = EpochInput(query="q", start=0, end=1)
        coordinator.admit(0, about)
        self.done: Committable = prepared(coordinator.context("a", 0, subtask=0), rows=7)
        coordinator.commit(0, [acknowledgement(self.done)], about)
        self.sink.states[self.done.transaction] = seen
        self.sink.committed.clear()

    def open(self, **changes: object) -> Coordinator:
        coordinator = Coordinator("p", self.store, [self.sink], policy(**changes))
        coordinator.open()
        return coordinator


def test_what_is_still_committed_is_left_alone():
    bench = Bench(COMMITTED)
    bench.open()
    assert bench.sink.committed == []


@pytest.mark.parametrize("seen", [Observation.ABSENT, Observation.UNKNOWN, Observation.NO_ANSWER])
def test_nothing_is_concluded_from_no_proof(seen: Observation):
    bench = Bench(seen)
    bench.open()
    assert bench.sink.committed == []


def test_what_is_prepared_again_is_committed_again(caplog: pytest.LogCaptureFixture):
    """Invariant 1: the completed decision names it."""
    bench = Bench(PREPARED)
    bench.sink.open = [bench.done]
    bench.open()
    assert (bench.sink.committed, bench.sink.aborted) == ([bench.done.transaction], [])
    assert "was committed, and was prepared again" in caplog.text


def test_a_target_that_does_not_answer_then_fails_the_start():
    bench = Bench(PREPARED)
    bench.sink.answers = [CommitStatus.RETRY_LATER]
    with pytest.raises(RetryableSinkError, match="cannot commit again"):
        bench.open()


def test_what_is_gone_is_a_loud_loss_at_each_start_and_nothing_is_swept():
    """Invariant 8. What is prepared there may be of an epoch that was committed once."""
    bench = Bench(ABORTED)
    older = msgspec.structs.replace(bench.done, transaction=f"{bench.done.transaction}x", subtask=1)
    bench.sink.open = [older]
    for _ in range(2):
        with pytest.raises(DataLossError, match=r"1 decided transactions with 7 rows.*standby.*rewind='why'"):
            bench.open()
    assert (bench.sink.committed, bench.sink.aborted) == ([], [])


def test_injected_faults_do_not_hide_a_ledger():
    bench = Bench(ABORTED)
    with pytest.raises(DataLossError):
        Coordinator("p", bench.store, [FaultySink(bench.sink, Faults())], policy()).open()


def test_replay_is_no_choice_for_a_completed_epoch():
    with pytest.raises(DataLossError, match="rewind='why', with an older checkpoint"):
        Bench(ABORTED).open(on_lost=OnLost.REPLAY)


def test_on_lost_skip_goes_on_and_leaves_an_audit_record():
    bench = Bench(ABORTED)
    assert bench.open(on_lost=OnLost.SKIP).view.skipped == {bench.done.transaction}
    bench.open()  # it is said once


def test_a_rewind_asks_for_nothing():
    Coordinator("p", (bench := Bench(ABORTED)).store, [bench.sink], policy()).open(rewind="the database was restored")


def test_a_sink_without_a_ledger_is_not_asked():
    Bench(ABORTED, keeps_ledger=False).open()
