"""Connectors: what an author subclasses and returns, so that commands and Spark formats know his system.

A sink says how rows are committed (`onceward.sinks`); its `Connector` says everything else. Every command imports the
modules of all connectors, so these import the packages of their clients inside of methods, and so each name here is
imported when it is asked for. The connectors that onceward brings along are the packages below this one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from onceward.core.connector import GROUP, Connector, connector_of, connectors
    from onceward.core.operations.findings import Finding, Health, failed, ok, skipped, warning
    from onceward.core.operations.targets import Target
    from onceward.core.place import Place
    from onceward.core.proof import ALL_EPOCHS, Piece, Reread

    from .spark.formats import format_of

__all__ = [
    "ALL_EPOCHS",
    "GROUP",
    "Connector",
    "Finding",
    "Health",
    "Piece",
    "Place",
    "Reread",
    "Target",
    "connector_of",
    "connectors",
    "failed",
    "format_of",
    "ok",
    "skipped",
    "warning",
]

_MODULES: Final = {
    "onceward.core.connector": "Connector GROUP connector_of connectors",
    "onceward.core.operations.findings": "Finding Health failed ok skipped warning",
    "onceward.core.operations.targets": "Target",
    "onceward.core.place": "Place",
    "onceward.core.proof": "ALL_EPOCHS Piece Reread",
    "onceward.connectors.spark.formats": "format_of",
}
_HOMES: Final = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
