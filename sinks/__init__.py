"""Sinks: the classes to subclass, and the ready ones.

The ready sinks need extras (`onceward[kafka]`, `onceward[postgres]`), so they are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.errors import ConfigurationError
from ..core.names import Scope
from ..core.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    ExternalState,
    WriteContext,
)
from .base import DirectSink, Guarantee, IdempotentSink, Sink, TwoPhaseCommitSink
from .files import FileSink
from .write_ahead import WriteAheadLogSink

if TYPE_CHECKING:
    from .kafka import KafkaSink
    from .postgres import PostgresSink

__all__ = [
    "AbortOutcome",
    "AbortStatus",
    "CommitOutcome",
    "CommitStatus",
    "Committable",
    "DirectSink",
    "ExternalState",
    "FileSink",
    "Guarantee",
    "IdempotentSink",
    "KafkaSink",
    "PostgresSink",
    "Scope",
    "Sink",
    "TwoPhaseCommitSink",
    "WriteAheadLogSink",
    "WriteContext",
]

_READY = {"KafkaSink": "kafka", "PostgresSink": "postgres"}


def __getattr__(name: str) -> Any:
    if name not in _READY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _READY[name]
    try:
        return getattr(import_module(f".{module}", __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("onceward"):
            raise
        raise ConfigurationError(f"{name} needs {error.name}: pip install 'onceward[{module}]'") from error
