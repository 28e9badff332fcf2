"""What makes a checkpoint complete: its metadata, and the decision that names them and every prepared transaction.

In this order: shared files are registered, the metadata are written, core.checkpoint.Coordinator decides, commits and
puts COMPLETED; then the oldest checkpoint beyond those that are kept is dropped. A crash anywhere leaves either no
decision (the checkpoint never was, its files are leavings) or one that the next start finishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import OncewardError, OperatorError, ProtocolError
from ..log import EpochInput
from ..transaction import Acknowledgement
from .checkpoints import InDoubtError
from .functions import states_of
from .retained import Reference
from .state.handles import Metadata, OperatorRecord
from .state.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ..checkpoint import Coordinator
    from .elements import Barrier, TaskId
    from .graph import Graph
    from .pending import Pending
    from .retained import Retained
    from .state.handles import SubtaskState

QUERY = "embedded"
"""Identity in each decision: which operators there are may change, their state is found by uid."""


class Completer:
    """Completes checkpoints of one attempt.

    Args:
        graph: The operators.
        coordinator: Decides and commits.
        retained: What is kept.
        began: When the attempt began, in seconds on the monotonic clock.
    """

    def __init__(self, graph: Graph, coordinator: Coordinator, retained: Retained, began: float) -> None:
        self._graph = graph
        self._coordinator = coordinator
        self._retained = retained
        self._since = began

    def complete(self, pending: Pending, under_way: Collection[int] = ()) -> Any:
        """Make it durable and commit it; the folder of a savepoint.

        Args:
            pending: It.
            under_way: Others that are under way.

        Raises:
            InDoubtError: A restart has to find out, or to finish.
            OncewardError: It is not durable and will not be.
        """
        barrier = pending.barrier
        metadata = self.metadata(barrier, {task: ack.state for task, (ack, _) in pending.acks.items()})
        if barrier.target is not None:
            reference = _write_savepoint(barrier.target, metadata)
            if not barrier.kind.commits:
                return barrier.target
        else:
            reference = self._retained.write(metadata)
        try:
            self._decide(pending, metadata, reference)
        except OncewardError as error:
            raise InDoubtError(error) from error
        except Exception as error:
            raise InDoubtError(unexpected("commit", error)) from error
        self._since = pending.triggered
        if barrier.target is None:
            self._retained.keep(barrier.checkpoint, under_way)
        else:
            self._retained.superseded(under_way)
        return barrier.target or barrier.checkpoint

    def begin(self, metadata: Metadata, reference: Reference) -> None:
        """Decide where a run begins, before it reads its first row: a crash must not find another beginning."""
        self._write(metadata.checkpoint, [], metadata, reference)

    def metadata(self, barrier: Barrier, states: Mapping[TaskId, SubtaskState]) -> Metadata:
        """What its tasks stored."""
        return Metadata(
            pipeline=self._coordinator.pipeline,
            checkpoint=barrier.checkpoint,
            savepoint=barrier.target is not None,
            commits=barrier.kind.commits,
            terminal=barrier.kind.terminal,
            max_parallelism=self._graph.max_parallelism,
            operators={
                operator.uid: OperatorRecord(
                    kind=operator.kind,
                    subtasks=[states[task] for task in operator.tasks()],
                    states=sorted(states_of(operator.what)) if operator.kind == "process" else [],
                )
                for operator in self._graph.operators
            },
        )

    def _decide(self, pending: Pending, metadata: Metadata, reference: Reference) -> None:
        self._write(pending.checkpoint, pending.committables(), metadata, reference, triggered=pending.triggered)

    def _write(
        self,
        epoch: int,
        committables: list[Any],
        metadata: Metadata,
        reference: Reference,
        *,
        triggered: float | None = None,
    ) -> None:
        view = self._coordinator.view
        positions = {
            uid: [state.position for state in operator.subtasks]
            for uid, operator in metadata.operators.items()
            if operator.kind == "source"
        }
        about = EpochInput(query=QUERY, start=view.before.end if view.before is not None else None, end=positions)
        self._coordinator.admit(epoch, about)
        ack = Acknowledgement(
            epoch=epoch,
            subtask=0,
            attempt=0,
            sinks=tuple(self._coordinator.sinks),
            committables=tuple(c for c in committables if c.epoch > view.decided),
        )
        age = self._coordinator.policy.monotonic() - self._since if triggered is not None else 0.0
        self._coordinator.commit(epoch, [ack], about, state=reference.as_state(), age=age)


def _write_savepoint(target: str, metadata: Metadata) -> Reference:
    ref = CheckpointStorage(target).write_metadata(metadata, "")
    return Reference(folder=target, sha256=ref.sha256)


def unexpected(what: str, error: BaseException) -> OncewardError:
    """An error that is not this library's, as one that is."""
    if isinstance(error, OncewardError):
        return error
    wrapped = OperatorError(f"{what}: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


def is_final(error: OncewardError) -> bool:
    """Whether another attempt in this process is of no use: a newer writer runs the pipeline, or data is lost."""
    return isinstance(error, ProtocolError) and not error.retryable
