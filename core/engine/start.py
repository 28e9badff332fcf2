"""How an attempt begins.

In this order: find the metadata, validate, map state to operators by uid, check parallelism, refuse what nobody claims,
assign handles, rewind sources, START, finish decided commits, abort what lingers, run. What can fail for a mistake or a
source that is away fails before START, which would fence a run that is well.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..checkpoint import CommitPolicy, Coordinator, OnLost
from ..errors import ConfigurationError, EpochConflictError, StateDamagedError
from ..log import LogWriter
from ..log.view import NONE
from .completion import Completer
from .config import Mode
from .elements import Barrier, TaskId
from .plan import is_two_phase, start_positions
from .restore import assign, check_fits
from .retained import Reference, Retained, inline, load, reference_to, resolve
from .state.handles import Metadata, OperatorRecord, SubtaskState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..log import LogStore, LogView
    from .config import CheckpointConfig
    from .graph import Graph
    from .machine import EngineWorld
    from .restore import Assigned
    from .state.storage import CheckpointStorage
    from .state.store import StateBackend


@dataclass(frozen=True)
class Restore:
    """A restore that somebody asks for.

    Attributes:
        path: Folder of a savepoint or checkpoint.
        claim: The pipeline owns it from now on, and deletes it when newer ones are there.
        why: Why the pipeline goes back on purpose; needed if it has decided epochs since. Without a path it begins
            anew, without any state.
        allow_non_restored: State that no operator claims is dropped.
    """

    path: str | None = None
    claim: bool = False
    why: str | None = None
    allow_non_restored: bool = False

    @property
    def asks(self) -> bool:
        """Whether something else than the newest decision's checkpoint is asked for."""
        return self.path is not None or self.why is not None


@dataclass(frozen=True)
class Started:
    """What an attempt begins with."""

    graph: Graph
    coordinator: Coordinator
    completer: Completer
    retained: Retained
    backend: StateBackend
    own_storage: CheckpointStorage | None
    restored_storage: CheckpointStorage | None
    assigned: Mapping[TaskId, Assigned]
    positions: Mapping[TaskId, Any]
    next_id: int
    restored: int | None
    """Id of the checkpoint that was restored; None for a fresh start."""


@dataclass(frozen=True)
class Found:
    """The checkpoint to restore, before anything was changed."""

    metadata: Metadata | None
    storage: CheckpointStorage | None
    reference: Reference | None
    decided: int
    """Newest decided epoch then."""

    @property
    def newest(self) -> int:
        """The newest epoch that was ever decided or restored: numbers never go back."""
        return max(self.decided, self.metadata.checkpoint if self.metadata is not None else NONE)


class Starter:
    """Begins attempts of one pipeline.

    Args:
        pipeline: Its name.
        graph: Its operators.
        store: Its decision log's store.
        backend: Where keyed state lives, bound to the pipeline.
        config: Settings of checkpoints.
        policy: Of commits.
        world: Clocks.
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
        world: EngineWorld,
    ) -> None:
        if policy.on_lost is OnLost.REPLAY:
            raise ConfigurationError("on_lost='replay' is not there in the embedded engine: give 'fail' or 'skip'")
        self._pipeline = pipeline
        self._graph = graph
        self._store = store
        self._backend = backend
        self._config = config
        self._policy = policy
        self._world = world

    def start(self, restore: Restore, *, again: bool = False) -> Started:
        """Begin an attempt.

        Args:
            restore: What somebody asked for; a restart after a failure restores what was decided.
            again: This is such a restart.

        Raises:
            OncewardError: Nothing was begun, or the next start with the same `restore` goes on from here.
        """
        sinks = [o.what for o in self._graph.of_kind("sink") if is_two_phase(o.what)]
        coordinator = Coordinator(self._pipeline, self._store, sinks, self._policy, gaps=True)
        while True:
            view = LogWriter(self._store, self._pipeline, self._policy.writer_clock()).look()
            found = self._find(view, restore)
            if found.metadata is not None:
                check_fits(self._graph, found.metadata, allow_non_restored=restore.allow_non_restored)
            assigned = assign(self._graph, found.metadata)
            positions = self._positions(found, assigned, again=again)
            first = found.newest + 1
            coordinator.open(rewind=restore.why, first_epoch=first if restore.why is not None else None)
            if restore.asks or coordinator.view.decided == found.decided:
                return self._begin(coordinator, found, restore, assigned, positions)

    def _positions(self, found: Found, assigned: Mapping[TaskId, Assigned], *, again: bool) -> dict[TaskId, Any]:
        """Where the sources begin; at most once, an interrupted run's successor passes over what came since."""
        orderly = found.metadata is None or found.metadata.terminal
        skip = self._config.mode is Mode.AT_MOST_ONCE and (again or not orderly)
        return start_positions(self._graph, assigned, skip=skip)

    def _find(self, view: LogView, restore: Restore) -> Found:
        """The checkpoint to restore.

        Raises:
            StateDamagedError: It is damaged; nothing else is restored in its place.
            EpochConflictError: It is not the newest, and nobody said why.
        """
        if restore.path is not None:
            return _asked_for(view, restore, self._pipeline)
        if restore.why is not None or (view.newest is None and not view.rewound):
            return Found(None, None, None, view.decided)
        if view.newest is None:
            raise EpochConflictError(
                "this pipeline was on its way back to an older state when it was interrupted. Say restore=… and why=… "
                "again as before",
                pipeline=self._pipeline,
            )
        reference = Reference.of(view.newest.state)
        if reference is None:
            raise EpochConflictError(
                "the newest epoch was not decided by the embedded engine: give this pipeline another name",
                pipeline=self._pipeline,
                epoch=view.decided,
            )
        try:
            metadata, storage = resolve(reference)
        except StateDamagedError as error:
            raise StateDamagedError(
                f"{error}. It is the newest checkpoint, so nothing was started. Bring it back, or go back on purpose: "
                "restore=<an older checkpoint's folder> with why=…, or why=… alone to begin anew, writes again what "
                "was committed since"
            ) from error
        return Found(metadata, storage, reference, view.decided)

    def _begin(
        self,
        coordinator: Coordinator,
        found: Found,
        restore: Restore,
        assigned: Mapping[TaskId, Assigned],
        positions: Mapping[TaskId, Any],
    ) -> Started:
        own, before = self._backend.storage, found.metadata
        retained = Retained(own, self._config.retained, coordinator.writer.token.start)
        completer = Completer(self._graph, coordinator, retained, self._policy.monotonic())
        newest, is_new = found.newest, coordinator.view.newest is None
        if is_new or (before is not None and any(assigned[task].positions is None for task in positions)):
            newest += 1
            completer.begin(*self._beginning(completer, newest, found, positions, asked=is_new))
        if found.reference is not None and before is not None:
            retained.restored(found.reference, up_to=before.checkpoint, clean=not restore.asks)
        return Started(
            graph=self._graph,
            coordinator=coordinator,
            completer=completer,
            retained=retained,
            backend=self._backend,
            own_storage=own,
            restored_storage=found.storage,
            assigned=assigned,
            positions=positions,
            next_id=newest + 1,
            restored=before.checkpoint if before is not None else None,
        )

    def _beginning(
        self, completer: Completer, epoch: int, found: Found, positions: Mapping[TaskId, Any], *, asked: bool
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
        if found.metadata is None or found.reference is None:
            return fresh, inline(fresh)
        known = found.metadata.operators
        added = {o.uid for o in self._graph.of_kind("source")} - {uid for uid in known if _has_positions(known[uid])}
        if asked and not added:
            return msgspec.structs.replace(fresh, commits=True), found.reference
        operators = {**known, **{uid: fresh.operators[uid] for uid in added}}
        whole = msgspec.structs.replace(found.metadata, checkpoint=epoch, operators=operators)
        return whole, inline(whole, found.storage)


def _has_positions(record: OperatorRecord) -> bool:
    return any(state.position is not None for state in record.subtasks)


def _asked_for(view: LogView, restore: Restore, pipeline: str) -> Found:
    path = Path(restore.path or "").absolute()
    try:
        metadata, storage = load(path)
    except StateDamagedError as error:
        raise ConfigurationError(f"restore={str(path)!r}: {error}; nothing was started") from error
    if view.decided != NONE and restore.why is None:
        raise EpochConflictError(
            f"checkpoint {metadata.checkpoint} in {path} is asked for, and this pipeline has decided epoch "
            f"{view.decided}: what was committed since would be written again. Say why=… to go back on purpose, or "
            "restore nothing to go on",
            pipeline=pipeline,
            epoch=view.decided,
        )
    if not metadata.commits and view.decided != NONE and view.decided < metadata.checkpoint:
        raise EpochConflictError(
            f"savepoint {metadata.checkpoint} in {path} commits nothing, and no later checkpoint has: rows written "
            "before it would be lost. Go on from the newest checkpoint",
            pipeline=pipeline,
            epoch=view.decided,
        )
    return Found(metadata, storage, reference_to(path, claimed=restore.claim), view.decided)
