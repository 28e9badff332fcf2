"""What makes a checkpoint complete: its metadata, and the decision that names them and every prepared transaction.

In this order: shared files are registered, the metadata are written, core.checkpoint.Coordinator decides, commits and
puts COMPLETED; then the proof is written beside the metadata, and the oldest checkpoint beyond those that are kept is
dropped. A crash anywhere leaves either no decision (the checkpoint never was, its files are leftovers) or one that the
next start finishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from ..contract.events import EpochBegan, tell, wall_clock
from ..contract.transaction import Acknowledgement
from ..errors import CheckpointFailedError, OncewardError, OperatorError, named_text_of
from ..log import EpochInput
from .coordinator_events import CompletedCheckpoint, NotCompleted
from .functions import state_layouts
from .reference import Decided, Reference, Restored, inline, prove, resolve_reference
from .state.handles import Metadata, OperatorRecord, SubtaskState
from .state.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..checkpoint import Coordinator
    from ..contract.transaction import Committable, Written
    from .channels import Barrier, TaskId
    from .coordinator_events import Pending
    from .graph import Graph
    from .retention import Retained

QUERY = "embedded"
"""Identity in each decision: which operators there are may change, their state is found by uid."""


class Completer:
    """Completes checkpoints of one attempt; each decision names the newest restore that took effect."""

    def __init__(
        self, graph: Graph, coordinator: Coordinator, retained: Retained, restored: Restored | None = None
    ) -> None:
        self._graph = graph
        self._coordinator = coordinator
        self.retained = retained
        self._restored = restored
        self._since = coordinator.policy.monotonic()
        self._savepoints: dict[int, Reference] = {}
        """Those that commit nothing and whose rows no checkpoint has committed yet."""

    def complete(self, pending: Pending, under_way: Collection[int] = ()) -> CompletedCheckpoint | NotCompleted:
        """Make a checkpoint durable and commit it; `under_way` are others that are in progress."""
        barrier = pending.barrier
        if barrier.kind.again:
            return self._complete_again(pending)
        metadata = self.metadata(barrier, {task: ack.state for task, (ack, _) in pending.acks.items()})
        try:
            reference = _write_savepoint(barrier.target, metadata) if barrier.target else self.retained.write(metadata)
        except OncewardError as error:
            return NotCompleted(error)
        if not barrier.kind.commits:
            self._savepoints[barrier.checkpoint] = reference
            self._prove_savepoints()
            return CompletedCheckpoint(barrier.target)
        try:
            self.decide(metadata, reference, pending.committables(), pending.written(), began=self._since)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a sink does, the decision may stand
            if self._coordinator.view.awaited == barrier.checkpoint:
                return NotCompleted(_voided(barrier.checkpoint), in_doubt=True)
            return NotCompleted(as_own_error("commit", error), in_doubt=True)
        self._since = pending.triggered
        tell(EpochBegan(metadata.pipeline, wall_clock(self._coordinator.policy.monotonic() - self._since)))
        prove(reference, metadata.log, barrier.checkpoint)
        self._prove_savepoints()
        # A savepoint belongs to the user: the pipeline's own checkpoints stay as they are.
        self.retained.keep(None if barrier.target else barrier.checkpoint, under_way)
        return CompletedCheckpoint(barrier.target or barrier.checkpoint)

    def _complete_again(self, pending: Pending) -> CompletedCheckpoint | NotCompleted:
        """Commit the lost transactions of a decided epoch, which were written again."""
        coordinator, lost = self._coordinator, self._coordinator.lost
        assert lost is not None  # noqa: S101 - the attempt was begun for it
        ack = Acknowledgement(
            epoch=lost.decision.epoch,
            subtask=0,
            attempt=0,
            sinks=tuple(lost.sinks),
            committables=tuple(pending.committables()),
            written=pending.written(),
        )
        age = coordinator.policy.monotonic() - self._since
        try:
            coordinator.commit(lost.decision.epoch, [ack], lost.decision.input, age=age)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a sink does, the replacement may stand
            return NotCompleted(as_own_error("commit", error), in_doubt=True)
        return CompletedCheckpoint(lost.decision.epoch)

    def drop_state(self, why: str) -> None:
        """Decide that the pipeline has no state, only positions: then its checkpoints are not needed any more.

        A start must neither miss what its user had deleted, nor read again what was committed.
        """
        newest = Decided.of(self._coordinator.view.newest)
        if newest is None:
            return
        metadata, _ = resolve_reference(newest.checkpoint)
        if metadata.savepoint and not newest.checkpoint.claimed:
            return  # the state is its user's, who did not say that it may be deleted
        operators = {
            uid: OperatorRecord(kind=o.kind, subtasks=[SubtaskState(position=s.position) for s in o.subtasks])
            for uid, o in metadata.operators.items()
        }
        epoch = self._coordinator.view.decided + 1
        stateless = msgspec.structs.replace(
            metadata, log=self._coordinator.writer.token.log, checkpoint=epoch, operators=operators, dropped=why
        )
        self.decide(stateless, inline(stateless))

    def metadata(self, barrier: Barrier, states: Mapping[TaskId, SubtaskState]) -> Metadata:
        return Metadata(
            pipeline=self._coordinator.pipeline,
            log=self._coordinator.writer.token.log,
            checkpoint=barrier.checkpoint,
            savepoint=barrier.target is not None,
            commits=barrier.kind.commits,
            terminal=barrier.kind.terminal,
            drained=barrier.kind.drains,
            max_parallelism=self._graph.max_parallelism,
            operators={
                operator.uid: OperatorRecord(
                    kind=operator.kind,
                    subtasks=[states[task] for task in operator.tasks()],
                    states=sorted(state_layouts(operator)),
                    kinds=state_layouts(operator),
                    keys=list(operator.keys.columns) if operator.kind == "process" and operator.keys else [],
                )
                for operator in self._graph.operators
            },
        )

    def decide(
        self,
        metadata: Metadata,
        reference: Reference,
        committables: Collection[Committable] = (),
        written: tuple[Written, ...] = (),
        began: float | None = None,
    ) -> None:
        """Decide a checkpoint, and commit; without committables, where a run begins, before it reads its first row."""
        coordinator, view, epoch = self._coordinator, self._coordinator.view, metadata.checkpoint
        positions = {
            uid: [state.position for state in operator.subtasks]
            for uid, operator in metadata.operators.items()
            if operator.kind == "source"
        }
        about = EpochInput(query=QUERY, start=view.before.end if view.before is not None else None, end=positions)
        coordinator.admit(epoch, about)
        ack = Acknowledgement(
            epoch=epoch,
            subtask=0,
            attempt=0,
            sinks=tuple(coordinator.sinks),
            # Subtasks acknowledge all that they do not know to be decided, which an earlier decision may name.
            committables=tuple(c for c in committables if c.epoch > view.decided),
            written=written,
        )
        age = coordinator.policy.monotonic() - began if began is not None else 0.0
        savepoints = tuple(savepoint for id_, savepoint in self._savepoints.items() if id_ < epoch)
        decided = Decided(checkpoint=reference, savepoints=savepoints, restored=self._restored)
        coordinator.commit(epoch, [ack], about, state=msgspec.to_builtins(decided), age=age)

    def _prove_savepoints(self) -> None:
        """Write proof of the savepoints whose rows are committed by now."""
        epoch = self._coordinator.view.completed
        for id_ in [id_ for id_ in self._savepoints if id_ < epoch]:
            prove(self._savepoints.pop(id_), self._coordinator.writer.token.log, epoch)


def _write_savepoint(target: str, metadata: Metadata) -> Reference:
    return Reference(folder=target, sha256=CheckpointStorage(target).write_metadata(metadata, "").sha256)


def _voided(checkpoint: int) -> OncewardError:
    return CheckpointFailedError(
        f"what was prepared for checkpoint {checkpoint} is lost, and proven not committed. With on_lost='replay' a "
        "restart goes back to the checkpoint before"
    )


def as_own_error(what: str, error: BaseException) -> OncewardError:
    """Return the error itself if it is this library's, else an OperatorError that it has caused."""
    if isinstance(error, OncewardError):
        return error
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    wrapped = OperatorError(f"{what}: {named_text_of(error)}{notes}")
    wrapped.__cause__ = error
    return wrapped
