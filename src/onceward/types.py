"""Types of arguments, for annotations of functions that pass them on. Each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .connectors.database.target import CommitMode, WriteMode
    from .connectors.files.formats import FileFormat
    from .connectors.http.sink import Body, KeyFormat, Probe
    from .connectors.kafka.source import InvalidTimestamps, Isolation
    from .connectors.redis.forms import Form
    from .connectors.spark.outputs import AnySink, Persist
    from .connectors.spark.parallelism import Writers
    from .core.dead_letters import Limit
    from .core.engine.aggregate import AggregateFunction
    from .core.engine.config import CheckpointMode, Retention
    from .core.engine.records import Record
    from .core.engine.state.keyed import Redistribution
    from .core.kit.options import Names
    from .core.policy import AnyOnLost

__all__ = [
    "AggregateFunction",
    "AnyOnLost",
    "AnySink",
    "Body",
    "CheckpointMode",
    "CommitMode",
    "FileFormat",
    "Form",
    "InvalidTimestamps",
    "Isolation",
    "KeyFormat",
    "Limit",
    "Names",
    "Persist",
    "Probe",
    "Record",
    "Redistribution",
    "Retention",
    "WriteMode",
    "Writers",
]

_MODULES: Final = {
    ".connectors.database.target": "CommitMode WriteMode",
    ".connectors.files.formats": "FileFormat",
    ".connectors.http.sink": "Body KeyFormat Probe",
    ".connectors.kafka.source": "InvalidTimestamps Isolation",
    ".connectors.redis.forms": "Form",
    ".connectors.spark.outputs": "AnySink Persist",
    ".connectors.spark.parallelism": "Writers",
    ".core.dead_letters": "Limit",
    ".core.engine.aggregate": "AggregateFunction",
    ".core.engine.config": "CheckpointMode Retention",
    ".core.engine.records": "Record",
    ".core.engine.state.keyed": "Redistribution",
    ".core.kit.options": "Names",
    ".core.policy": "AnyOnLost",
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name], __package__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
