"""Cases of the conformance suite about neighbors in one target: other pipelines, other sinks, other decision logs.

What one pipeline's housekeeping deletes, another one may still need: prepared rows, proofs of commits, claims
(invariant 9). And a proof of its own must outlive epochs in which the sink got no rows: it is then older than the
newest epoch, and still the newest that shows how far the decision log had come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from onceward.core.contract.outcome import PROVEN_NOT_COMMITTED
from onceward.core.contract.sink import TwoPhaseCommitSink
from onceward.core.contract.transaction import ANY_EPOCH, Observation
from onceward.core.errors import EpochConflictError
from onceward.core.log import MemoryStore

from .sink_case import GOOD, SinkCase, not_applicable

if TYPE_CHECKING:
    from onceward.core.log import LogStore

EPOCHS = 4
NOT_COMMITTED = (Observation.ABORTED, Observation.EXPIRED, Observation.PREPARED, Observation.OPEN)
NOT_PREPARED = (Observation.COMMITTED, Observation.ABORTED, Observation.EXPIRED)


class NeighborCases:
    """Cases of SinkConformance."""

    def test_37_what_other_pipelines_and_sinks_have_prepared_survives_completed_epochs(self, case: SinkCase) -> None:
        other = SinkCase(case.sink_under_test, f"{case.pipeline}-2")
        theirs, of_another_sink = other.prepare(), case.prepare(name=f"{case.sink.name}-2")
        for epoch in range(1, EPOCHS):
            case.finish(epoch - 1, case.prepare(epoch - 1))
        case.sink.ledger().forget(case.scope._replace(log="0" * len(case.scope.log)))
        assert [one.transaction for one in other.lingering()] == [theirs.transaction], (
            "`completed` of one pipeline deleted what another pipeline has prepared: look at the whole scope"
        )
        other.finish(0, theirs)
        other.assert_visible(other.numbers())
        scope = case.scope._replace(sink=of_another_sink.sink)
        left = [one.transaction for one in case.make().lingering(scope)]
        assert left == [of_another_sink.transaction], "`completed` deleted what another sink of the pipeline prepared"

    def test_37_and_91_what_the_target_knows_of_other_pipelines_survives_completed_epochs(self, case: SinkCase) -> None:
        other = SinkCase(case.sink_under_test, f"{case.pipeline}-2")
        first = other.prepare(0)
        other.finish(0, first)
        copy = _copy(other.store)
        other.finish(1, other.prepare(1))
        for epoch in range(EPOCHS):
            case.finish(epoch, case.prepare(epoch))
        case.coordinator.open(rewind="a test", first_epoch=EPOCHS)
        _refused(other, MemoryStore(), "the claim of another pipeline")
        if case.sink_under_test.remembers:
            _refused(other, copy, "how far the decision log of another pipeline had come")
        other.start()
        other.finish(2, other.prepare(2))
        other.assert_visible(other.numbers(0, 1, 2))

    def test_04_and_91_epochs_without_rows_leave_the_newest_proof(self, case: SinkCase) -> None:
        case.finish(0, case.prepare(0))
        copy = _copy(case.store)
        committable = case.prepare(1)
        case.finish(1, committable)
        for epoch in (2, 3, 4):
            case.finish(epoch)
        assert case.commit(committable).status not in PROVEN_NOT_COMMITTED, (
            "commit says that the newest rows were never committed, after epochs without rows: `completed` has deleted "
            "the newest proof"
        )
        case.start()
        if case.sink_under_test.remembers:
            _refused(case, copy, "how far this decision log had come: after epochs in which the sink got no rows that,")
        _refused(
            case, MemoryStore(), "the claim of this decision log: after epochs in which the sink got no rows that,"
        )
        case.start()
        case.finish(5, case.prepare(5))
        case.assert_visible(case.numbers(0, 1, 5))

    def test_37_and_44_what_is_listed_says_whose_it_is(self, case: SinkCase) -> None:
        committable = case.prepare()
        foreign = case.scope._replace(log=SinkCase(case.sink_under_test).scope.log)
        for scope, who in ((case.scope, "its own decision log"), (foreign, "another decision log")):
            [listed] = case.make().lingering(scope)
            for attribute in ("transaction", "kind", "pipeline", "sink", "log"):
                said, right = getattr(listed, attribute), getattr(committable, attribute)
                assert said == right, (
                    f"a transaction of log {committable.log}, listed for {who}, has {attribute} {said!r} and not "
                    f"{right!r} as in pre_commit's committable. What is listed for the wrong log is aborted by it"
                )
            assert listed.epoch in {ANY_EPOCH, committable.epoch}
        case.finish(0, committable)
        case.assert_visible(case.numbers())

    def test_20_and_23_what_is_inspected_is_seen_as_it_is(self, case: SinkCase) -> None:
        if type(case.sink).inspect_many is TwoPhaseCommitSink.inspect_many:
            not_applicable("the sink does not define inspect_many")
        committed, aborted, prepared = case.prepare(0), case.prepare(0, case.numbers(1), subtask=1), case.prepare(1)
        case.abort(aborted)
        case.finish(0, committed)
        seen = case.make().inspect_many([committed, aborted, prepared])
        assert seen[0] not in NOT_COMMITTED, f"inspect_many answers {str(seen[0])!r} for a committed transaction"
        assert seen[1] not in {Observation.COMMITTED, Observation.PREPARED}, (
            f"it answers {str(seen[1])!r} for an aborted one"
        )
        assert seen[2] not in NOT_PREPARED, f"inspect_many answers {str(seen[2])!r} for a prepared transaction"
        assert case.commit(prepared).status in GOOD


def _copy(store: LogStore) -> MemoryStore:
    copy = MemoryStore()
    for key in store.list_keys():
        copy.put_if_absent(key, store.get(key) or b"")
    return copy


def _refused(case: SinkCase, store: LogStore, what: str) -> None:
    mine, case.store = case.store, store
    try:
        with pytest.raises(EpochConflictError):
            case.start()
            pytest.fail(f"the target has forgotten {what} is accepted", pytrace=False)
    finally:
        case.store = mine
