"""Compute a decided epoch again, because some of it was lost; see core/checkpoint/healing.py for why that is sound.

The attempt begins with the checkpoint before the epoch, which is kept until the epoch is completed. Sources end where
the decision says that the epoch ends. Then comes a barrier that keeps no state, and at it the subtasks of sinks that
lost something prepare; all others compute and write nothing. A subtask that has lost the rows of one epoch of several
that the decision names leaves out the others by their numbers. The next attempt goes on from the decision's own state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..contract.source import ResettableSource
from ..errors import DataLossError
from .channels import CheckpointKind
from .reference import Decided, resolve_reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..checkpoint import Coordinator
    from ..checkpoint.healing import Lost
    from ..log import Decide
    from .channels import TaskId
    from .graph import Graph


class Again(NamedTuple):
    """A decided epoch that is computed again.

    Attributes:
        lost: The epoch's decision and its lost transactions.
        before: The engine's part of the decision before it.
        ends: Position at which each subtask of a source ends.
        kind: Kind of the barrier at the epoch's end.
    """

    lost: Lost
    before: Decided
    ends: Mapping[TaskId, Any]
    kind: CheckpointKind = CheckpointKind.AGAIN

    @classmethod
    def of(cls, graph: Graph, coordinator: Coordinator) -> Again:
        """Return how to compute the epoch that has lost something.

        Raises:
            DataLossError: The decision before it, or a source that it read, is not there any more.
        StateDamagedError: The checkpoint that was decided is damaged.
        """
        lost = coordinator.lost
        assert lost is not None  # noqa: S101 - the caller has looked
        before = next((d for d, done in reversed(coordinator.view.decisions) if done is not None), None)
        state = Decided.of(before)
        if state is None:
            raise _refused(lost.decision, "the decision log no longer has the decision before it")
        ends: dict[TaskId, Any] = {}
        for operator in graph.of_kind("source"):
            stored = lost.decision.input.end.get(operator.uid)
            if not isinstance(operator.what, ResettableSource) or not stored:
                raise _refused(lost.decision, f"source {operator.uid} cannot be read again, or is a new one")
            for task in operator.tasks():
                share = operator.what.share(task.subtask, operator.parallelism)
                ends[task] = share.merge([position for position in stored if position is not None])
        return cls(
            lost, state, ends, CheckpointKind.AGAIN_DRAINED if _was_drained(lost.decision) else CheckpointKind.AGAIN
        )

    def skips(self, sink: str, subtask: int) -> list[tuple[int, int]]:
        """Return which rows of a subtask of a sink are not lost, as ranges of their places since the epoch's beginning.

        A decision names the transactions of several epochs, if checkpoints before it were given up. Each has the rows
        that came after those of the epoch before.
        """
        lost = {c.transaction for c in self.lost.committables}
        own = (c for c in self.lost.decision.committables if (c.sink, c.subtask) == (sink, subtask))
        begin, ranges = 0, []
        for committable in sorted(own, key=lambda c: c.epoch):
            end = begin + committable.rows
            if committable.transaction not in lost:
                ranges.append((begin, end))
            begin = end
        return ranges

    def writes(self, sink: str, subtask: int) -> bool:
        """Return whether a subtask of a sink has rows of the lost epoch to write again."""
        only = self.lost.writes(sink)
        return sink in self.lost.sinks and (only is None or subtask in only)


def _was_drained(decision: Decide) -> bool:
    """Return whether operators gave the rows they held back at the end of an epoch."""
    state = Decided.of(decision)
    if state is None:
        return False
    metadata, _ = resolve_reference(state.checkpoint)
    return metadata.drained or (metadata.terminal and not metadata.savepoint)  # an older version did not note it


def can_be_read_again(graph: Graph) -> bool:
    """Return whether all sources can be read again."""
    return all(isinstance(operator.what, ResettableSource) for operator in graph.of_kind("source"))


def _refused(decision: Decide, why: str) -> DataLossError:
    return DataLossError(
        f"some of the epoch was lost, and it cannot be computed again: {why}. Choices: bring that back; "
        "on_lost='skip' continues without what is lost and leaves an audit record; rewind='…' with an older checkpoint "
        "writes everything after it again",
        pipeline=decision.pipeline,
        epoch=decision.epoch,
    )
