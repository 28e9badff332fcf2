"""How an attempt begins.

In this order: find the metadata, validate, map state to operators by uid, check parallelism, refuse what nobody claims,
assign handles, rewind sources, START, finish decided commits, abort what lingers, run. What can fail for a mistake or a
source that is away fails before START, which would fence a run that is well.

State belongs to an operator by its uid. Keyed state is distributed by key groups, positions by the source itself,
operator state item by item.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..checkpoint.numbering import CHECKPOINTS
from ..contract.events import EpochBegan, tell, wall_clock
from ..contract.source import ResettableSource
from ..run.pipeline_run import PipelineRun
from ..run.source_watch import titles
from .batch_sizing import MOST_ROWS
from .channels import Barrier
from .completion import Completer
from .recomputation import Again, can_be_read_again
from .reference import Reference, inline, prove_newest, resolve_reference
from .retention import Retained
from .starting_checkpoint import find_origin
from .state.handles import Metadata, SubtaskState
from .state.key_types import merge_types
from .state.keys import groups_of
from .state_compatibility import check_fits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..checkpoint import CommitPolicy, Coordinator
    from ..log import LogStore, LogView, RunWriters
    from .channels import TaskId
    from .config import CheckpointConfig, RestartStrategy
    from .graph import Graph, Operator
    from .starting_checkpoint import Origin, Restore
    from .state.handles import KeyedHandle, OperatorRecord
    from .state.row_store import StateBackend
    from .state.storage import CheckpointStorage

_log = logging.getLogger("onceward.engine")


@dataclass(frozen=True)
class EngineWorld:
    """The world as the engine needs it, beside the policy's clock; the simulator puts in its own.

    Attributes:
        now: Seconds since 1970, for timers.
        between: A number between two others, at random.
        choose: Function by which a gate picks one of its channels; None: in turns.
    """

    now: Callable[[], float] = time.time
    between: Callable[[float, float], float] = random.uniform
    choose: Callable[[Sequence[int]], int] | None = None


class Setup(NamedTuple):
    """The parts and settings of a pipeline."""

    pipeline: str
    graph: Graph
    store: LogStore
    backend: StateBackend
    """Backend of keyed state, bound to the pipeline's name."""
    config: CheckpointConfig
    policy: CommitPolicy
    restart: RestartStrategy
    world: EngineWorld
    most_rows: int = MOST_ROWS
    """Maximum number of rows that a task works on in one piece."""
    linger: float = 0.0
    """Seconds for which a source waits for more rows before it passes on a small batch."""


class Assigned(NamedTuple):
    """The restored state of one subtask."""

    positions: list[Any] | None = None
    """Positions that the source's subtasks stored; None for a source that is new."""
    keyed: tuple[KeyedHandle, ...] = ()
    """Handles that overlap the subtask's key groups."""
    lists: Mapping[str, list[bytes]] = {}
    """Items of each operator state that belong to the subtask."""
    key_types: Sequence[Sequence[str]] = ()
    """Types of the keys that the operator's state is under, column by column."""
    all_new_types: bool = True
    """True if keys of other types are accepted from the first row on."""
    layouts: Mapping[str, str] = {}
    """Layout of each of the operator's states in the handles, by its name; empty in those of early versions."""


class StartedAttempt(NamedTuple):
    """The parts of an attempt that has started."""

    setup: Setup
    coordinator: Coordinator
    completer: Completer
    backend: StateBackend
    """Backend of keyed state, bound to the decision log too."""
    restored_storage: CheckpointStorage | None
    """Storage of the restored files; None if there are none."""
    assigned: Mapping[TaskId, Assigned]
    positions: Mapping[TaskId, Any]
    """Position at which each subtask of a resettable source begins."""
    next_id: int
    """Id of the next checkpoint; epoch of the first rows."""
    restored: int | None
    """Id of the checkpoint that was restored; None for a fresh start."""
    again: Again | None = None
    """The decided epoch that the attempt computes again; then it ends."""


def run_of(
    setup: Setup, progress: Callable[[], object] | None = None, writers: RunWriters | None = None
) -> PipelineRun:
    """Return the run of a pipeline of the engine, which each of its attempts starts again.

    Args:
        setup: The pipeline's graph, stores and settings.
        progress: Function that returns a value that changes with each completed checkpoint.
        writers: The writers that the run has become so far; None for a run that begins.
    """
    return PipelineRun(
        setup.pipeline,
        [operator.what for operator in setup.graph.of_kind("sink")],
        setup.policy,
        lambda: setup.store,
        numbering=CHECKPOINTS,
        heals=can_be_read_again(setup.graph),
        sources=titles({operator.uid: operator.what for operator in setup.graph.of_kind("source")}),
        progress=progress,
        writers=writers,
    )


def start(setup: Setup, restore: Restore, run: PipelineRun, *, again: bool = False) -> StartedAttempt:
    """Begin an attempt; `again` after a failure, when the newest decided checkpoint is restored.

    Args:
        setup: The pipeline's graph, stores and settings.
        restore: The restore that was asked for.
        run: The run that makes the attempt.
        again: True if an attempt of this run was begun before.

    Raises:
        OncewardError: Nothing was begun, or the next start with the same `restore` goes on from here.
    """
    while True:
        log = run.writer()
        origin, assigned, positions = _find(setup, log.look(), restore, again=again)
        if origin.goes_back:  # behind all that an older run has decided until it is fenced: numbers never go back
            origin, assigned, positions = _find(setup, log.start(), restore, again=again)
        if origin.goes_back:
            coordinator = run.open(rewind=restore.why, first_epoch=origin.newest + 1, query=origin.identity)
        else:
            coordinator = run.open()
        prove_newest(coordinator.view)
        if coordinator.lost is not None:
            return _begin_again(setup, coordinator, restore)
        # Else an older run has decided more since the log was looked at, and the origin is found anew.
        if origin.goes_back or coordinator.view.decided == origin.decided:
            _log.info("pipeline %s begins with %s", setup.pipeline, origin, extra={"pipeline": setup.pipeline})
            return _begin(setup, coordinator, origin, assigned, positions)


def check_can_start(setup: Setup, view: LogView, restore: Restore) -> None:
    """Refuse what `start` would refuse before its START.

    Raises:
        OncewardError: The restore cannot be found, does not fit, or a source is away.
    """
    _find(setup, view, restore, again=False)


def _begin_again(setup: Setup, coordinator: Coordinator, restore: Restore) -> StartedAttempt:
    """Begin an attempt that computes the newest decided epoch once more."""
    again = Again.of(setup.graph, coordinator)
    epoch = again.lost.decision.epoch
    coordinator.admit(epoch, again.lost.decision.input)
    metadata, storage = resolve_reference(again.before.checkpoint)
    check_fits(setup.graph, metadata, allow_non_restored=restore.allow_non_restored)
    assigned = assign(setup.graph, metadata)
    positions = start_positions(setup.graph, assigned, skip=False)
    backend = setup.backend.bind(coordinator.writer.token.log)
    retained = Retained(backend.storage, setup.config.retained, coordinator.writer.token.start)
    completer = Completer(setup.graph, coordinator, retained)
    name, before = setup.pipeline, metadata.checkpoint
    _log.info("pipeline %s computes epoch %s again, from checkpoint %s", name, epoch, before, extra={"pipeline": name})
    return StartedAttempt(setup, coordinator, completer, backend, storage, assigned, positions, epoch, before, again)


def _find(
    setup: Setup, view: LogView, restore: Restore, *, again: bool
) -> tuple[Origin, Mapping[TaskId, Assigned], Mapping[TaskId, Any]]:
    """Find and check the origin; return it with each task's share of its state, and where sources begin."""
    origin = find_origin(view, restore, setup.pipeline)
    if origin.metadata is not None:
        check_fits(setup.graph, origin.metadata, allow_non_restored=restore.allow_non_restored)
    assigned: Mapping[TaskId, Assigned] = assign(setup.graph, origin.metadata)
    if not (again or restore.allow_non_restored):  # after a failure, the program is the one that made the checkpoint
        assigned = {task: each._replace(all_new_types=False) for task, each in assigned.items()}
    orderly = origin.metadata is None or origin.metadata.terminal
    skip = setup.config.mode == "at-most-once" and (again or not orderly)
    return origin, assigned, start_positions(setup.graph, assigned, skip=skip)


def _begin(
    setup: Setup,
    coordinator: Coordinator,
    origin: Origin,
    assigned: Mapping[TaskId, Assigned],
    positions: Mapping[TaskId, Any],
) -> StartedAttempt:
    backend = setup.backend.bind(coordinator.writer.token.log)
    before, newest = origin.metadata, origin.newest
    retained = Retained(backend.storage, setup.config.retained, coordinator.writer.token.start)
    completer = Completer(setup.graph, coordinator, retained, origin.restored)
    is_new = coordinator.view.newest is None
    if is_new or (before is not None and any(assigned[task].positions is None for task in positions)):
        newest += 1
        completer.decide(*_beginning(setup.graph, completer, newest, origin, positions, asked=is_new))
    if origin.reference is not None and before is not None:
        retained.restored(origin.reference, up_to=before.checkpoint, clean=origin.goes_on)
    restored = before.checkpoint if before is not None else None
    tell(EpochBegan(setup.pipeline, wall_clock()))
    return StartedAttempt(
        setup, coordinator, completer, backend, origin.storage, assigned, positions, newest + 1, restored
    )


def _beginning(
    graph: Graph, completer: Completer, epoch: int, origin: Origin, positions: Mapping[TaskId, Any], *, asked: bool
) -> tuple[Metadata, Reference]:
    """Return the metadata of a first decision, after going back or with a new source too, and their reference.

    A source is asked only once where it begins, so the answer is decided before anything is read: a crash must not find
    another beginning.
    """
    tasks = [task for operator in graph.operators for task in operator.tasks()]
    fresh = completer.metadata(Barrier(epoch), {task: SubtaskState(position=positions.get(task)) for task in tasks})
    if origin.metadata is None or origin.reference is None:
        return fresh, inline(fresh)
    known = origin.metadata.operators
    read = {uid for uid, record in known.items() if any(state.position is not None for state in record.subtasks)}
    added = {o.uid for o in graph.of_kind("source")} - read
    if asked and not added:
        return msgspec.structs.replace(fresh, commits=True), origin.reference
    operators = {**known, **{uid: fresh.operators[uid] for uid in added}}
    whole = msgspec.structs.replace(origin.metadata, checkpoint=epoch, operators=operators)
    return whole, inline(whole, origin.storage)


def assign(graph: Graph, metadata: Metadata | None) -> dict[TaskId, Assigned]:
    """Return the restored state of each subtask; none without a checkpoint."""
    records = metadata.operators if metadata is not None else {}
    return {
        task: _assigned(operator, task.subtask, records[operator.uid], graph.max_parallelism)
        if operator.uid in records
        else Assigned()
        for operator in graph.operators
        for task in operator.tasks()
    }


def _assigned(operator: Operator, subtask: int, record: OperatorRecord, groups: int) -> Assigned:
    states = record.subtasks
    own = groups_of(subtask, operator.parallelism, groups)
    keyed = [state.keyed for state in states if state.keyed is not None]
    names = {name: handle.redistribute for state in states for name, handle in state.lists.items()}
    return Assigned(
        positions=[state.position for state in states if state.position is not None] or None,
        keyed=tuple(handle for handle in keyed if handle.first < own.stop and own.start < handle.end),
        lists={name: _items(states, name, how, subtask, operator.parallelism) for name, how in names.items()},
        key_types=merge_types(state.key_types for state in states),
        layouts=record.kinds,
    )


def _items(states: Sequence[SubtaskState], name: str, how: str, subtask: int, parallelism: int) -> list[bytes]:
    parts = [state.lists[name].items if name in state.lists else [] for state in states]
    if how == "split" and len(parts) == parallelism:
        return list(parts[subtask])
    everything = [item for part in parts for item in part]
    return everything if how == "union" else everything[subtask::parallelism]


def start_positions(graph: Graph, assigned: Mapping[TaskId, Assigned], *, skip: bool) -> dict[TaskId, Any]:
    """Return the position at which each subtask of each resettable source begins.

    `skip` is for at most once: an interrupted run's successor ignores what came since; each source goes on at its end.
    """
    positions: dict[TaskId, Any] = {}
    for operator in graph.of_kind("source"):
        if not isinstance(operator.what, ResettableSource):
            continue
        for task in operator.tasks():
            share = operator.what.share(task.subtask, operator.parallelism)
            stored = assigned[task].positions
            if stored is None:
                positions[task] = share.start()
            else:
                positions[task] = share.end() if skip else share.merge(stored)
    return positions
