"""Whether the state of a checkpoint has a place in a graph: checked before anything is changed.

State belongs to an operator by its uid. What it says of itself must be what the operator declares: its kind, the states
of its function and how they are laid out, the columns of its keys, and the types of the keys and of an aggregate's
columns, as far as schemas fix them. Where only the rows can show a type, the operator compares it with the first rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ..errors import ConfigurationError, OncewardError
from .aggregate import Aggregation, check_part_types, types_of_totals
from .functions import state_layouts
from .state.key_types import changed_keys_error, merge_types, type_name, types_by_name
from .state.keyed import unpack
from .state.ttl import without_times

if TYPE_CHECKING:
    from .graph import Graph, Operator
    from .state.handles import Metadata, OperatorRecord


def check_fits(graph: Graph, metadata: Metadata, *, allow_non_restored: bool) -> None:
    """Check that a checkpoint's state has a place in the graph, before anything is changed."""
    where = f"checkpoint {metadata.checkpoint}"
    if metadata.max_parallelism != graph.max_parallelism:
        raise ConfigurationError(
            f"{where} was made with max_parallelism {metadata.max_parallelism}, the pipeline has "
            f"{graph.max_parallelism}: it cannot change while there is state"
        )
    operators = {operator.uid: operator for operator in graph.operators}
    stored = {uid: r for uid, r in metadata.operators.items() if not all(state.empty for state in r.subtasks)}
    unclaimed = sorted(stored.keys() - operators)
    if unclaimed and not allow_non_restored:
        raise ConfigurationError(
            f"{where} holds state of operators that the pipeline does not have: {', '.join(unclaimed)}. Give an "
            "operator its uid, or drop the state on purpose with allow_non_restored_state=True"
        )
    for uid, record in stored.items():
        if uid in operators and not allow_non_restored and operators[uid].kind == record.kind == "process":
            _check_states(operators[uid], record, where)
            _check_types(operators[uid], record, where)
    for uid, record in metadata.operators.items():
        if uid in operators and operators[uid].kind != record.kind:
            raise ConfigurationError(f"operator {uid} is a {operators[uid].kind}; in {where} it was a {record.kind}")


def _check_states(operator: Operator, record: OperatorRecord, where: str) -> None:
    """Refuse to drop a state that a function no longer declares, or the keyed state of a stream without keys."""
    keyed = any(state.keyed is not None for state in record.subtasks)
    now = state_layouts(operator)
    gone = sorted({*record.states, *record.kinds} - now.keys())
    other = [f"{name} (a {kind})" for name, kind in record.kinds.items() if _differ(now.get(name, kind), kind)]
    if other:
        raise ConfigurationError(
            f"operator {operator.uid} has in {where} states of another kind than it declares now: "
            f"{', '.join(other)}. Declare the new ones under other names, and drop the old ones on purpose with "
            "allow_non_restored_state=True"
        )
    if gone or (keyed and operator.keys is None):
        what = f"states {', '.join(gone)}" if gone else "keyed state, and its stream has no keys now"
        raise ConfigurationError(
            f"operator {operator.uid} has in {where} {what}: it would be lost. Declare it again, or drop it on purpose "
            "with allow_non_restored_state=True"
        )


def _differ(layout: str, other: str) -> bool:
    return without_times(layout) != without_times(other)


def _check_types(operator: Operator, record: OperatorRecord, where: str) -> None:
    """Refuse keyed state that would not be found under the keys, or not be read with the types, that rows have now."""
    known = merge_types(state.key_types for state in record.subtasks)
    if operator.keys is None or not known:  # of an earlier version, or no row has come yet
        return
    columns, fixed = operator.keys.columns, types_before(operator)
    now = [[type_name(fixed[column])] if column in fixed else [] for column in columns]
    other = any(type_ and type_ not in before for before, types in zip(known, now, strict=False) for type_ in types)
    if record.keys != list(columns) or other:
        raise changed_keys_error(operator.uid, where, types_by_name(record.keys, known), types_by_name(columns, now))
    if isinstance(operator.what, Aggregation):
        items = [item for state in record.subtasks for item in state.lists["types"].items]
        check_part_types(operator.what, operator.uid, where, [unpack(item) for item in dict.fromkeys(items)], fixed)


def types_before(operator: Operator) -> dict[str, pa.DataType]:
    """Return the types of the columns that an operator with one input reads, as far as schemas fix them."""
    return _types_of(operator.inputs[0][0])


def _types_of(operator: Operator) -> dict[str, pa.DataType]:
    """Return the types of the columns that an operator gives, as far as schemas fix them."""
    if operator.kind == "source":
        return _of_schema(_schema_of_source(operator))
    if operator.schema is not None:
        return _of_schema(operator.schema)
    if operator.kind == "filter":
        return types_before(operator)
    if isinstance(operator.what, Aggregation) and operator.keys is not None:
        before = types_before(operator)
        keys = {column: before[column] for column in operator.keys.columns if column in before}
        return keys | types_of_totals(operator.what, before)
    if operator.kind == "union":
        first, *others = [_types_of(each) for each, _ in operator.inputs]
        return {name: type_ for name, type_ in first.items() if all(other.get(name) == type_ for other in others)}
    return {}


def _of_schema(schema: pa.Schema | None) -> dict[str, pa.DataType]:
    return {} if schema is None else {field.name: field.type for field in schema}


def _schema_of_source(operator: Operator) -> pa.Schema | None:
    """Return a source's schema; None if it is not known yet, as of a folder without files."""
    try:
        schema = operator.what.schema
    except OncewardError:
        return None
    return schema if isinstance(schema, pa.Schema) else None
