"""What each way of numbering epochs permits: micro-batches without gaps, checkpoints with gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from onceward.core.checkpoint import Coordinator
from onceward.core.checkpoint.numbering import CHECKPOINTS, CONSECUTIVE, EpochNumbering
from onceward.core.contract.transaction import Observation
from onceward.core.errors import ConfigurationError, EpochConflictError, ProtocolError, TargetWentBackError
from onceward.core.log import EpochInput, Rewound, read

from .core_fakes import MemoryStore, acknowledgement, policy, prepared
from .sink_kit import TargetSink

if TYPE_CHECKING:
    from onceward.core.contract.transaction import Committable


def about(epoch: int, query: str = "q") -> EpochInput:
    return EpochInput(query=query, start=epoch, end=epoch + 1)


class Case:
    """A pipeline whose epochs are numbered in one way."""

    def __init__(self, numbering: EpochNumbering) -> None:
        self.numbering, self.store, self.sink = numbering, MemoryStore(), TargetSink(name="a")

    def coordinator(self) -> Coordinator:
        return Coordinator("p", self.store, [self.sink], policy(), numbering=self.numbering)

    def opened(self, **how: Any) -> Coordinator:
        coordinator = self.coordinator()
        coordinator.open(**how)
        return coordinator

    def waiting(self) -> Committable:
        """Leave a decision of epoch 0 that nobody has committed yet."""
        coordinator = self.opened()
        committable = prepared(coordinator.context("a", 0, subtask=0))
        follows = self.numbering.follows(coordinator.view)
        coordinator.writer.decide(0, [committable], sinks=["a"], epoch_input=about(0), follows=follows)
        return committable


def test_only_checkpoints_may_leave_out_numbers():
    coordinator = Case(CHECKPOINTS).opened()
    for epoch, before in ((4, 0), (9, 5)):
        coordinator.admit(epoch, EpochInput(query="q", start=before, end=epoch + 1))
        coordinator.commit(epoch, [acknowledgement(epoch=epoch)], EpochInput(query="q", start=before, end=epoch + 1))
    follows = [decision.follows for decision, _ in coordinator.view.decisions]
    assert follows[-1] == 4, "a decision names the epoch that it follows (1)"
    with pytest.raises(EpochConflictError):
        Case(CONSECUTIVE).opened().admit(4, about(4))


def test_only_a_checkpoint_carries_transactions_of_those_that_were_given_up():
    for case in (Case(CHECKPOINTS), Case(CONSECUTIVE)):
        coordinator = case.opened()
        acks = [acknowledgement(prepared(coordinator.context("a", 0, subtask=0)), epoch=1)]
        if case.numbering is CHECKPOINTS:
            coordinator.commit(1, acks, about(1))
            assert len(case.sink.target.commits) == 1
        else:
            with pytest.raises(ProtocolError, match="not written for this epoch"):
                coordinator.commit(1, acks, about(1))


def test_a_transaction_of_an_epoch_that_is_decided_counts_in_no_later_checkpoint():
    case = Case(CHECKPOINTS)
    coordinator = case.opened()
    done = prepared(coordinator.context("a", 3, subtask=0))
    coordinator.commit(3, [acknowledgement(done, epoch=3)], about(3))
    with pytest.raises(ProtocolError, match="not written for this epoch"):
        coordinator.commit(5, [acknowledgement(done, epoch=5)], about(4))
    assert read(case.store).decided == 3


def test_a_checkpoint_leaves_alone_what_its_own_writer_has_prepared():
    """A micro-batch's writer does not work between two epochs, so what it still has is swept (3)."""
    for case, aborted in ((Case(CHECKPOINTS), False), (Case(CONSECUTIVE), True)):
        coordinator = case.opened()
        left = prepared(coordinator.context("a", 0, subtask=7))
        case.sink.target.hold(left)
        coordinator.commit(0, [acknowledgement()], about(0), sweep_after=True)
        assert (left.transaction in case.sink.target.aborted) is aborted


@pytest.mark.parametrize("first_epoch", [0, 1, 7])
def test_a_rewind_of_checkpoints_takes_back_whatever_waits(first_epoch: int):
    case = Case(CHECKPOINTS)
    waiting = case.waiting()
    case.opened(rewind="the table was emptied", first_epoch=first_epoch, query="q")
    assert waiting.transaction not in case.sink.target.commits


@pytest.mark.parametrize(("first_epoch", "committed"), [(0, False), (1, True)])
def test_a_rewind_of_micro_batches_takes_back_what_will_be_offered_again(first_epoch: int, committed: bool):
    case = Case(CONSECUTIVE)
    waiting = case.waiting()
    case.opened(rewind="the table was emptied", first_epoch=first_epoch, query="q")
    assert (waiting.transaction in case.sink.target.commits) is committed


def test_micro_batches_that_went_back_belong_to_the_query_that_asked():
    case = Case(CONSECUTIVE)
    case.opened().commit(0, [acknowledgement()], about(0))
    case.opened(rewind="another query takes over", query="other")
    with pytest.raises(EpochConflictError, match="another query"):
        case.opened().admit(0, about(0))
    case.opened().admit(0, about(0, "other"))


def test_only_micro_batches_need_a_sink():
    Coordinator("p", MemoryStore(), [], policy(), numbering=CHECKPOINTS)
    with pytest.raises(ConfigurationError, match="at least one sink"):
        Coordinator("p", MemoryStore(), [], policy())


def test_both_agree_that_a_rewind_to_any_epoch_takes_back_what_waits():
    case = Case(CONSECUTIVE)
    case.waiting()
    undone = read(case.store).undone
    assert undone is not None
    for numbering in (CONSECUTIVE, CHECKPOINTS):
        assert numbering.takes_back(Rewound(query="q", epoch=-1, why="any"), undone)


def test_an_engine_whose_sweep_commits_again_decides_nothing_that_was_prepared_before():
    store, sink = MemoryStore(), TargetSink(name="a")
    sink.records_transactions = True  # type: ignore[misc]
    first = Coordinator("p", store, [sink], policy(), numbering=CHECKPOINTS)
    first.open()
    left = prepared(first.context("a", 5, subtask=0))
    coordinator = Coordinator("p", store, [sink], policy(), numbering=CHECKPOINTS)
    coordinator.open()
    coordinator.admit(0, about(0))
    done = prepared(coordinator.context("a", 0, subtask=0))
    early = prepared(coordinator.context("a", 1, subtask=0))

    def fail_over() -> None:
        sink.target.states[done.transaction] = Observation.PREPARED

    sink.target.hold(left)
    sink.when_listed = fail_over
    coordinator.commit(0, [acknowledgement(done)], about(0), sweep_after=True)
    assert sink.target.commits.count(done.transaction) == 2
    sink.when_listed = None
    coordinator.admit(1, about(1))
    with pytest.raises(TargetWentBackError):
        coordinator.commit(1, [acknowledgement(early, epoch=1)], about(1))
