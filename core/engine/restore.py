"""Restoring: which subtask of the new run gets which state of the old one.

State belongs to an operator by its uid. Keyed state is distributed by key groups, positions by the source itself,
operator state item by item.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ConfigurationError
from ..source import ResettableSource
from .functions import states_of
from .state.keys import groups_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .elements import TaskId
    from .graph import Graph, Operator
    from .state.handles import KeyedHandle, Metadata, OperatorRecord


@dataclass(frozen=True)
class Assigned:
    """What one subtask starts from.

    Attributes:
        positions: Those that the source's subtasks stored; None for a source that is new.
        keyed: Handles that overlap its key groups.
        lists: Its items of each operator state.
    """

    positions: list[Any] | None = None
    keyed: tuple[KeyedHandle, ...] = ()
    lists: dict[str, list[bytes]] = field(default_factory=dict)


def check_fits(graph: Graph, metadata: Metadata, *, allow_non_restored: bool) -> None:
    """Check that a checkpoint's state has a place in the graph.

    Raises:
        ConfigurationError: It has not; nothing was changed.
    """
    if metadata.max_parallelism != graph.max_parallelism:
        raise ConfigurationError(
            f"checkpoint {metadata.checkpoint} was made with max_parallelism {metadata.max_parallelism}, the pipeline "
            f"has {graph.max_parallelism}: it cannot change while there is state"
        )
    operators = {operator.uid: operator for operator in graph.operators}
    unclaimed = [
        uid
        for uid, record in metadata.operators.items()
        if uid not in operators and not all(state.empty for state in record.subtasks)
    ]
    if unclaimed and not allow_non_restored:
        raise ConfigurationError(
            f"checkpoint {metadata.checkpoint} holds state of operators that the pipeline does not have: "
            f"{', '.join(sorted(unclaimed))}. Give an operator its uid, or drop the state on purpose with "
            "allow_non_restored_state=True"
        )
    if not allow_non_restored:
        _check_states(operators, metadata)
    for uid, record in metadata.operators.items():
        if uid in operators and operators[uid].kind != record.kind:
            raise ConfigurationError(
                f"operator {uid} is a {operators[uid].kind}; in checkpoint {metadata.checkpoint} it was a {record.kind}"
            )


def _check_states(operators: Mapping[str, Operator], metadata: Metadata) -> None:
    """Refuse to drop a state that a function no longer declares, or the keyed state of a stream without keys."""
    for uid, record in metadata.operators.items():
        operator = operators.get(uid)
        if operator is None or operator.kind != "process" or all(state.empty for state in record.subtasks):
            continue
        keyed = any(state.keyed is not None for state in record.subtasks)
        gone = sorted(set(record.states) - set(states_of(operator.what)))
        if gone or (keyed and operator.keys is None):
            what = f"states {', '.join(gone)}" if gone else "keyed state, and its stream has no keys now"
            raise ConfigurationError(
                f"operator {uid} has in checkpoint {metadata.checkpoint} {what}: it would be lost. Declare it again, "
                "or drop it on purpose with allow_non_restored_state=True"
            )


def assign(graph: Graph, metadata: Metadata | None) -> dict[TaskId, Assigned]:
    """What each subtask starts from; nothing without a checkpoint."""
    records = metadata.operators if metadata is not None else {}
    return {
        task: _assigned(operator, task.subtask, records.get(operator.uid), graph.max_parallelism)
        for operator in graph.operators
        for task in operator.tasks()
    }


def _assigned(operator: Operator, subtask: int, record: OperatorRecord | None, groups: int) -> Assigned:
    if record is None:
        return Assigned()
    mine = groups_of(subtask, operator.parallelism, groups)
    states = record.subtasks
    names = {name: handle.redistribute for state in states for name, handle in state.lists.items()}
    return Assigned(
        positions=[state.position for state in states if state.position is not None] or None,
        keyed=tuple(
            state.keyed
            for state in states
            if state.keyed is not None and state.keyed.first < mine.stop and mine.start < state.keyed.end
        ),
        lists={name: _items(record, name, how, subtask, operator.parallelism) for name, how in names.items()},
    )


def _items(record: OperatorRecord, name: str, redistribute: str, subtask: int, parallelism: int) -> list[bytes]:
    parts = [state.lists[name].items if name in state.lists else [] for state in record.subtasks]
    if redistribute == "split" and len(parts) == parallelism:
        return list(parts[subtask])
    everything = [item for part in parts for item in part]
    return everything if redistribute == "union" else everything[subtask::parallelism]


def start_positions(graph: Graph, assigned: Mapping[TaskId, Assigned], *, skip: bool) -> dict[TaskId, Any]:
    """Where each subtask of each resettable source begins.

    Args:
        graph: The operators.
        assigned: What was restored.
        skip: At most once: what came since is not read; each source goes on at its end.
    """
    found: dict[TaskId, Any] = {}
    for operator in graph.of_kind("source"):
        if not isinstance(operator.what, ResettableSource):
            continue
        for task in operator.tasks():
            share = operator.what.share(task.subtask, operator.parallelism)
            stored = assigned[task].positions
            if stored is None:
                found[task] = share.start()
            else:
                found[task] = share.end() if skip else share.merge(stored)
    return found
