"""The embedded engine: sources, functions with state, and sinks in one process, checkpointed by barriers."""

from __future__ import annotations

from .config import CheckpointConfig, Mode, RestartStrategy, Retention
from .events import CheckpointFailedError, CheckpointRecord
from .functions import FunctionContext, ProcessFunction
from .graph import EndToEnd
from .job import Job, JobState
from .pipeline import Pipeline, Stream
from .start import EngineWorld
from .state.keyed import ListState, MapState, OperatorState, ReducingState, ValueState
from .state.memory import FileBackend, MemoryBackend

__all__ = [
    "CheckpointConfig",
    "CheckpointFailedError",
    "CheckpointRecord",
    "EndToEnd",
    "EngineWorld",
    "FileBackend",
    "FunctionContext",
    "Job",
    "JobState",
    "ListState",
    "MapState",
    "MemoryBackend",
    "Mode",
    "OperatorState",
    "Pipeline",
    "ProcessFunction",
    "ReducingState",
    "RestartStrategy",
    "Retention",
    "Stream",
    "ValueState",
]
