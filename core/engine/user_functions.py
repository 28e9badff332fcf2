"""What a user's functions must be, checked before a run starts: each mistake names its operator.

A mistake that only showed while the run starts would be one more failure, after which it starts again and again.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..contract.source import LiveSource, ResettableSource
from ..errors import ConfigurationError, text_of
from ..kit.methods import idle
from .logic import RowFilter
from .state.keyed import ReducingState, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .graph import Graph, Operator

T = TypeVar("T")
_CALLED: Final = frozenset({"open", "on_checkpoint_complete", "close"})
_GIVE_RECORDS: Final = frozenset({"process", "on_timer", "on_end", "snapshot", "finish"})
"""Methods of a ProcessFunction, those that may be generators."""
_OF_SOURCES: Final = frozenset(name for kind in (ResettableSource, LiveSource) for name in dir(kind) if name[0] != "_")
_READ: Final = frozenset({"listen", "read", "splits"})
"""Methods of a source that may be generators."""


def check_functions(graph: Graph) -> None:
    """Refuse functions that are async, or generators where a generator does nothing, and those that cannot be copied.

    Raises:
        ConfigurationError: A function is; the message names its operator.
    """
    for operator in graph.operators:
        for name, function, listed in _functions_of(operator):
            if why := idle(function, listed=listed):
                raise ConfigurationError(f"operator {operator.uid}: {name} is {why}")
        if operator.kind == "process":
            _check_states(operator)
            own_copy(operator.uid, operator.what)


def _functions_of(operator: Operator) -> Iterator[tuple[str, Any, bool]]:
    """Yield name and function of all that the engine will call, and whether it may be a generator."""
    what = operator.what
    if operator.kind in {"map", "filter", "flat_map", "map_batches"}:
        function = what.predicate if isinstance(what, RowFilter) else what
        if callable(function):
            yield getattr(function, "__name__", type(function).__name__), function, operator.kind == "flat_map"
        return
    methods = {"process": _CALLED | _GIVE_RECORDS, "source": _OF_SOURCES}.get(operator.kind, frozenset())
    for name in sorted(methods):
        if callable(method := getattr(type(what), name, None)):
            yield f"{type(what).__name__}.{name}", method, name in _GIVE_RECORDS | _READ
    if operator.kind == "process":
        for name, state in _class_attributes(type(what)).items():
            if isinstance(state, ReducingState):
                yield f"the function of state {name!r}", state.reduce, False


def _class_attributes(kind: type) -> dict[str, Any]:
    return {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}


def _check_states(operator: Operator) -> None:
    for name, value in vars(operator.what).items():
        if isinstance(value, State):
            raise ConfigurationError(
                f"operator {operator.uid}: state {name!r} was made in a method. Make it an attribute of the class "
                f"{type(operator.what).__name__}, beside its methods"
            )


def own_copy(uid: str, function: T) -> T:
    """Return a copy of an operator's function, for one subtask.

    Raises:
        ConfigurationError: It cannot be copied; the message names the attribute.
    """
    try:
        return copy.deepcopy(function)
    except Exception as error:
        raise ConfigurationError(
            f"operator {uid}: each subtask works on its own copy of the {type(function).__name__}, which cannot be "
            f"copied{_attribute(function)}: {type(error).__name__}: {text_of(error)}. Make locks, connections and the "
            "like in open(), which each copy calls"
        ) from error


def _attribute(function: object) -> str:
    """Return the name of the attribute that cannot be copied, as a part of a sentence."""
    for name, value in getattr(function, "__dict__", {}).items():
        try:
            copy.deepcopy(value)
        except Exception:  # noqa: BLE001 - whatever it raises
            return f" because of its attribute {name!r}"
    return ""
