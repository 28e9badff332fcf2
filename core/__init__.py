"""The protocol: decision log, transactions, coordination; and the embedded engine. No pyspark, Kafka or psycopg.

What is named here is imported when it is asked for, so that an executor's start stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .engine.config import CheckpointConfig, CheckpointMode, RestartStrategy, Retention
    from .engine.functions import FunctionContext, ProcessFunction
    from .engine.job import JobState
    from .engine.pipeline import Pipeline
    from .engine.state.keyed import ListState, MapState, OperatorState, ReducingState, ValueState
    from .engine.state.memory import FileBackend, MemoryBackend
    from .engine.state.rocksdb import RocksDBBackend
    from .log import open_store

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
    ".engine.config": "CheckpointConfig CheckpointMode RestartStrategy Retention",
    ".engine.functions": "FunctionContext ProcessFunction",
    ".engine.job": "JobState",
    ".engine.pipeline": "Pipeline",
    ".engine.state.keyed": "ListState MapState OperatorState ReducingState ValueState",
    ".engine.state.memory": "FileBackend MemoryBackend",
    ".engine.state.rocksdb": "RocksDBBackend",
    ".log": "open_store",
}

if not TYPE_CHECKING:  # so that type checkers find names that do not exist

    def __getattr__(name: str) -> Any:
        # Without kit.lazy: a thread that imports a part of this package at the same time would wait for this one.
        for module, names in _HOMES.items():
            if name in names.split():
                return getattr(import_module(module, __name__), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
