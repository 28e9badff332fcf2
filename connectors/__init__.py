"""Connectors: what an author subclasses and returns, so that commands and Spark formats know his system.

A sink says how rows are committed (`onceward.sinks`); its `Connector` says everything else. Every command imports the
modules of all connectors, so these import the packages of their clients inside of methods, and so each name here is
imported when it is asked for. The connectors that onceward brings along are the packages below this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceward._lazy import LazyNames

if TYPE_CHECKING:
    from onceward.core.contract.connector import GROUP as GROUP
    from onceward.core.contract.connector import Connector as Connector
    from onceward.core.contract.connector import SystemAddress as SystemAddress
    from onceward.core.contract.connector import connector_of as connector_of
    from onceward.core.contract.connector import connectors as connectors
    from onceward.core.contract.findings import Finding as Finding
    from onceward.core.contract.findings import Health as Health
    from onceward.core.contract.findings import failed as failed
    from onceward.core.contract.findings import ok as ok
    from onceward.core.contract.findings import skipped as skipped
    from onceward.core.contract.findings import warning as warning
    from onceward.core.contract.place import Place as Place
    from onceward.core.contract.proof import ALL_EPOCHS as ALL_EPOCHS
    from onceward.core.contract.proof import Reread as Reread
    from onceward.core.contract.proof import RereadPiece as RereadPiece
    from onceward.core.contract.targets import Target as Target

    from .spark.formats.formats import format_of as format_of

_TABLE: Final = {  # by the extra that they need
    "": {
        ".core.contract.connector": "Connector GROUP SystemAddress connector_of connectors",
        ".core.contract.findings": "Finding Health failed ok skipped warning",
        ".core.contract.targets": "Target",
        ".core.contract.place": "Place",
        ".core.contract.proof": "ALL_EPOCHS RereadPiece Reread",
    },
    "spark": {".connectors.spark.formats.formats": "format_of"},
}
_NAMES: Final = LazyNames(__name__, _TABLE)
__dir__ = _NAMES.listed

if not TYPE_CHECKING:  # so that type checkers find names that do not exist
    __getattr__ = _NAMES.attribute
