"""Types of arguments, for annotations of functions that pass them on. Each is imported when it is asked for."""

from __future__ import annotations

# ruff: noqa: PLC0414 - type checkers take `X as X` for exported
from typing import TYPE_CHECKING, Final

from ._lazy import LazyNames

if TYPE_CHECKING:
    from .connectors.database.target import CommitMode as CommitMode
    from .connectors.database.target import WriteMode as WriteMode
    from .connectors.files.file_formats import FileFormat as FileFormat
    from .connectors.http.sink import Body as Body
    from .connectors.http.sink import KeyFormat as KeyFormat
    from .connectors.http.sink import Probe as Probe
    from .connectors.kafka.source import InvalidTimestamps as InvalidTimestamps
    from .connectors.kafka.source import Isolation as Isolation
    from .connectors.redis.forms import Form as Form
    from .core.contract.dead_letters import Limit as Limit
    from .core.contract.pipeline_settings import ExactlyOnceSettings as ExactlyOnceSettings
    from .core.contract.pipeline_settings import ForeachBatchSettings as ForeachBatchSettings
    from .core.contract.pipeline_settings import Persist as Persist
    from .core.contract.pipeline_settings import StartSettings as StartSettings
    from .core.contract.pipeline_settings import Writers as Writers
    from .core.contract.policy import AnyOnLost as AnyOnLost
    from .core.contract.sink import AnySink as AnySink
    from .core.engine.aggregate import AggregateFunction as AggregateFunction
    from .core.engine.config import CheckpointMode as CheckpointMode
    from .core.engine.config import Retention as Retention
    from .core.engine.records import Record as Record
    from .core.engine.state.keyed import Redistribution as Redistribution
    from .core.kit.text_options import Names as Names

_TABLE: Final = {  # by the extra that they need
    "": {
        ".connectors.files.file_formats": "FileFormat",
        ".core.contract.dead_letters": "Limit",
        ".core.engine.aggregate": "AggregateFunction",
        ".core.engine.config": "CheckpointMode Retention",
        ".core.engine.records": "Record",
        ".core.engine.state.keyed": "Redistribution",
        ".core.kit.text_options": "Names",
        ".core.contract.pipeline_settings": "ExactlyOnceSettings ForeachBatchSettings Persist StartSettings Writers",
        ".core.contract.policy": "AnyOnLost",
        ".core.contract.sink": "AnySink",
    },
    "http": {".connectors.http.sink": "Body KeyFormat Probe"},
    "kafka": {".connectors.kafka.source": "InvalidTimestamps Isolation"},
    "redis": {".connectors.redis.forms": "Form"},
    "sql": {".connectors.database.target": "CommitMode WriteMode"},
}
_NAMES: Final = LazyNames(__name__, _TABLE)
__path__: list[str] = []  # an import then asks as it asks a package: another module's errors are replaced
__dir__ = _NAMES.listed

if not TYPE_CHECKING:  # so that type checkers find names that do not exist
    __getattr__ = _NAMES.attribute
