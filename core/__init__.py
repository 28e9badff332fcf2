"""The protocol: decision log, transactions, coordination; and the embedded engine. No pyspark, Kafka or psycopg.

The engine is imported when it is asked for, so that an executor's start stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .log import open_store

if TYPE_CHECKING:
    from .engine import (
        CheckpointConfig,
        FileBackend,
        ListState,
        MapState,
        MemoryBackend,
        OperatorState,
        Pipeline,
        ProcessFunction,
        ReducingState,
        RestartStrategy,
        ValueState,
    )
    from .engine.state.rocksdb import RocksDBBackend

__all__ = [
    "CheckpointConfig",
    "FileBackend",
    "ListState",
    "MapState",
    "MemoryBackend",
    "OperatorState",
    "Pipeline",
    "ProcessFunction",
    "ReducingState",
    "RestartStrategy",
    "RocksDBBackend",
    "ValueState",
    "open_store",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = ".engine.state.rocksdb" if name == "RocksDBBackend" else ".engine"
    return getattr(import_module(module, __name__), name)
