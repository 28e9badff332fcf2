"""Spark: `exactly_once` for several sinks in one decision, the data source formats, and savepoints of queries.

The names below are imported when they are asked for: savepoints are made and restored without pyspark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .any_source import read_stream
    from .foreach_batch import ForeachBatch
    from .formats import format_of, register
    from .handler import exactly_once
    from .outputs import Output

__all__ = ["ForeachBatch", "Output", "exactly_once", "format_of", "read_stream", "register"]

_HOMES: Final = {
    "ForeachBatch": ".foreach_batch",
    "Output": ".outputs",
    "exactly_once": ".handler",
    "format_of": ".formats",
    "read_stream": ".any_source",
    "register": ".formats",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name], __name__), name)
    return value
