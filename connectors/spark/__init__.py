"""Spark: `exactly_once` for several sinks in one decision, the data source formats, and savepoints of queries.

The names below are imported when they are asked for: savepoints are made and restored without pyspark.
"""

from typing import TYPE_CHECKING, Final

from onceward.core.kit.lazy import importing

if TYPE_CHECKING:
    from .formats.formats import format_of, register
    from .read.any_source import read_stream
    from .write.foreach_batch import ForeachBatch
    from .write.handler import exactly_once
    from .write.outputs import Output

__all__ = ["ForeachBatch", "Output", "exactly_once", "format_of", "read_stream", "register"]

_HOMES: Final = {
    ".read.any_source": "read_stream",
    ".write.foreach_batch": "ForeachBatch",
    ".formats.formats": "format_of register",
    ".write.handler": "exactly_once",
    ".write.outputs": "Output",
}

if not TYPE_CHECKING:  # so that type checkers find names that do not exist
    __getattr__ = importing(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
