"""Types of arguments, for annotations of functions that pass them on. Each is imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .connectors.spark.outputs import AnySink, Persist
    from .connectors.spark.parallelism import Writers
    from .core.dead_letters import Limit
    from .core.engine.config import CheckpointMode, Retention
    from .core.engine.records import Record

__all__ = ["AnySink", "CheckpointMode", "Limit", "Persist", "Record", "Retention", "Writers"]

_MODULES: Final = {
    ".connectors.spark.outputs": "AnySink Persist",
    ".connectors.spark.parallelism": "Writers",
    ".core.dead_letters": "Limit",
    ".core.engine.config": "CheckpointMode Retention",
    ".core.engine.records": "Record",
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name], __package__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
