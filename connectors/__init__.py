"""Connectors: what an author subclasses and returns, so that commands and Spark formats know his system.

A sink says how rows are committed (`onceward.sinks`); its `Connector` says everything else. Every command imports the
modules of all connectors, so these import the packages of their clients inside of methods, and so each name here is
imported when it is asked for. The connectors that onceward brings along are the packages below this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceward._lazy import LazyNames

if TYPE_CHECKING:
    from onceward.core.connector import GROUP as GROUP
    from onceward.core.connector import Connector as Connector
    from onceward.core.connector import SystemAddress as SystemAddress
    from onceward.core.connector import connector_of as connector_of
    from onceward.core.connector import connectors as connectors
    from onceward.core.operations.findings import Finding as Finding
    from onceward.core.operations.findings import Health as Health
    from onceward.core.operations.findings import failed as failed
    from onceward.core.operations.findings import ok as ok
    from onceward.core.operations.findings import skipped as skipped
    from onceward.core.operations.findings import warning as warning
    from onceward.core.operations.targets import Target as Target
    from onceward.core.place import Place as Place
    from onceward.core.proof import ALL_EPOCHS as ALL_EPOCHS
    from onceward.core.proof import Reread as Reread
    from onceward.core.proof import RereadPiece as RereadPiece

    from .spark.formats.formats import format_of as format_of

_TABLE: Final = {  # by the extra that they need
    "": {
        ".core.connector": "Connector GROUP SystemAddress connector_of connectors",
        ".core.operations.findings": "Finding Health failed ok skipped warning",
        ".core.operations.targets": "Target",
        ".core.place": "Place",
        ".core.proof": "ALL_EPOCHS RereadPiece Reread",
    },
    "spark": {".connectors.spark.formats.formats": "format_of"},
}
_NAMES: Final = LazyNames(__name__, _TABLE)
__dir__ = _NAMES.listed

if not TYPE_CHECKING:  # so that type checkers find names that do not exist
    __getattr__ = _NAMES.attribute
