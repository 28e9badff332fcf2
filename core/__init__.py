"""The protocol: decision log, transactions, coordination; and the embedded engine. No pyspark, Kafka or psycopg.

The engine is imported when it is asked for, so that an executor's start stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from .log import open_store

if TYPE_CHECKING:
    from .engine.config import CheckpointConfig, CheckpointMode, RestartStrategy, Retention
    from .engine.functions import FunctionContext, ProcessFunction
    from .engine.job import JobState
    from .engine.pipeline import Pipeline
    from .engine.state.keyed import ListState, MapState, OperatorState, ReducingState, ValueState
    from .engine.state.memory import FileBackend, MemoryBackend
    from .engine.state.rocksdb import RocksDBBackend

__all__ = [
    "CheckpointConfig",
    "CheckpointMode",
    "FileBackend",
    "FunctionContext",
    "JobState",
    "ListState",
    "MapState",
    "MemoryBackend",
    "OperatorState",
    "Pipeline",
    "ProcessFunction",
    "ReducingState",
    "RestartStrategy",
    "Retention",
    "RocksDBBackend",
    "ValueState",
    "open_store",
]

_HOMES: Final = {
    "config": "CheckpointConfig CheckpointMode RestartStrategy Retention",
    "functions": "FunctionContext ProcessFunction",
    "job": "JobState",
    "pipeline": "Pipeline",
    "state.keyed": "ListState MapState OperatorState ReducingState ValueState",
    "state.memory": "FileBackend MemoryBackend",
    "state.rocksdb": "RocksDBBackend",
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f".engine.{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
