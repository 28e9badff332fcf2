"""How an attempt begins.

In this order: find the metadata, validate, map state to operators by uid, check parallelism, refuse what nobody claims,
assign handles, rewind sources, START, finish decided commits, abort what lingers, run. What can fail for a mistake or a
source that is away fails before START, which would fence a run that is well.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ..checkpoint import CommitPolicy, Coordinator
from ..log import LogWriter
from ..sink import TwoPhaseCommit
from .completion import Completer
from .config import Mode
from .elements import Barrier, TaskId
from .origin import find_origin
from .plan import start_positions
from .reference import Reference, inline, prove_newest
from .restore import assign, check_fits
from .retained import Retained
from .state.handles import Metadata, OperatorRecord, SubtaskState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..log import LogStore, LogView
    from .config import CheckpointConfig
    from .graph import Graph
    from .origin import Origin, Restore
    from .restore import Assigned
    from .state.storage import CheckpointStorage
    from .state.store import StateBackend

_log = logging.getLogger("onceward.engine")


@dataclass(frozen=True)
class Started:
    """What an attempt begins with."""

    graph: Graph
    coordinator: Coordinator
    completer: Completer
    retained: Retained
    backend: StateBackend
    restored_storage: CheckpointStorage | None
    assigned: Mapping[TaskId, Assigned]
    positions: Mapping[TaskId, Any]
    next_id: int
    restored: int | None
    """Id of the checkpoint that was restored; None for a fresh start."""


class Starter:
    """Begins attempts of one pipeline.

    Args:
        pipeline: Its name.
        graph: Its operators.
        store: Its decision log's store.
        backend: Where keyed state lives, bound to the pipeline.
        config: Settings of checkpoints.
        policy: Of commits.
    """

    def __init__(
        self,
        pipeline: str,
        graph: Graph,
        store: LogStore,
        *,
        backend: StateBackend,
        config: CheckpointConfig,
        policy: CommitPolicy,
    ) -> None:
        self.pipeline = pipeline
        self._graph = graph
        self._store = store
        self._backend = backend
        self._config = config
        self._policy = policy

    def start(self, restore: Restore, *, again: bool = False) -> Started:
        """Begin an attempt.

        Args:
            restore: What somebody asked for; a restart after a failure restores what was decided.
            again: This is such a restart.

        Raises:
            OncewardError: Nothing was begun, or the next start with the same `restore` goes on from here.
        """
        sinks = [o.what for o in self._graph.of_kind("sink") if isinstance(o.what, TwoPhaseCommit)]
        coordinator = Coordinator(self.pipeline, self._store, sinks, self._policy, gaps=True)
        while True:
            log = LogWriter(self._store, self.pipeline, self._policy.writer_clock())
            origin, assigned, positions = self._find(log.look(), restore, again=again)
            if origin.goes_back:  # behind all that an older run has decided until it is fenced: numbers never go back
                origin, assigned, positions = self._find(log.start(), restore, again=again)
            if origin.goes_back:
                coordinator.open(rewind=restore.why, first_epoch=origin.newest + 1, query=origin.identity)
            else:
                coordinator.open()
            prove_newest(coordinator.view)
            if origin.goes_back or coordinator.view.decided == origin.decided:
                _log.info("pipeline %s begins with %s", self.pipeline, origin)
                return self._begin(coordinator, origin, assigned, positions)

    def _find(
        self, view: LogView, restore: Restore, *, again: bool
    ) -> tuple[Origin, Mapping[TaskId, Assigned], Mapping[TaskId, Any]]:
        """What to begin with, checked; what each task gets of it; and where sources begin."""
        origin = find_origin(view, restore, self.pipeline)
        if origin.metadata is not None:
            check_fits(self._graph, origin.metadata, allow_non_restored=restore.allow_non_restored)
        assigned = assign(self._graph, origin.metadata)
        return origin, assigned, self._positions(origin, assigned, again=again)

    def _positions(self, origin: Origin, assigned: Mapping[TaskId, Assigned], *, again: bool) -> dict[TaskId, Any]:
        """Where the sources begin; at most once, an interrupted run's successor ignores what came since."""
        orderly = origin.metadata is None or origin.metadata.terminal
        skip = self._config.mode is Mode.AT_MOST_ONCE and (again or not orderly)
        return start_positions(self._graph, assigned, skip=skip)

    def _begin(
        self,
        coordinator: Coordinator,
        origin: Origin,
        assigned: Mapping[TaskId, Assigned],
        positions: Mapping[TaskId, Any],
    ) -> Started:
        backend = self._backend.bind(coordinator.writer.token.log)
        before, newest = origin.metadata, origin.newest
        retained = Retained(backend.storage, self._config.retained, coordinator.writer.token.start)
        completer = Completer(self._graph, coordinator, retained, origin.restored)
        is_new = coordinator.view.newest is None
        if is_new or (before is not None and any(assigned[task].positions is None for task in positions)):
            newest += 1
            completer.begin(*self._beginning(completer, newest, origin, positions, asked=is_new))
        if origin.reference is not None and before is not None:
            retained.restored(origin.reference, up_to=before.checkpoint, clean=origin.goes_on)
        return Started(
            graph=self._graph,
            coordinator=coordinator,
            completer=completer,
            retained=retained,
            backend=backend,
            restored_storage=origin.storage,
            assigned=assigned,
            positions=positions,
            next_id=newest + 1,
            restored=before.checkpoint if before is not None else None,
        )

    def _beginning(
        self, completer: Completer, epoch: int, origin: Origin, positions: Mapping[TaskId, Any], *, asked: bool
    ) -> tuple[Metadata, Reference]:
        """What the first decision says, or one after going back, or with a new source: state, and where sources begin.

        A source is asked only once where it begins, so the answer is decided before anything is read.
        """
        barrier = Barrier(epoch)
        fresh = completer.metadata(
            barrier,
            {
                task: SubtaskState(position=positions.get(task))
                for operator in self._graph.operators
                for task in operator.tasks()
            },
        )
        if origin.metadata is None or origin.reference is None:
            return fresh, inline(fresh)
        known = origin.metadata.operators
        added = {o.uid for o in self._graph.of_kind("source")} - {uid for uid in known if _has_positions(known[uid])}
        if asked and not added:
            return msgspec.structs.replace(fresh, commits=True), origin.reference
        operators = {**known, **{uid: fresh.operators[uid] for uid in added}}
        whole = msgspec.structs.replace(origin.metadata, checkpoint=epoch, operators=operators)
        return whole, inline(whole, origin.storage)


def _has_positions(record: OperatorRecord) -> bool:
    return any(state.position is not None for state in record.subtasks)
