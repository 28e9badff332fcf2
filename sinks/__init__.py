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
    from .http import HttpSink
    from .kafka import KafkaSink
    from .postgres import PostgresSink
    from .redis import RedisSink
    from .sqlalchemy import SqlAlchemySink

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
    "HttpSink",
    "IdempotentSink",
    "KafkaSink",
    "PostgresSink",
    "RedisSink",
    "Scope",
    "Sink",
    "SqlAlchemySink",
    "TwoPhaseCommitSink",
    "WriteAheadLogSink",
    "WriteContext",
]

_READY = {
    "HttpSink": ("http", "http"),
    "KafkaSink": ("kafka", "kafka"),
    "PostgresSink": ("postgres", "postgres"),
    "RedisSink": ("redis", "redis"),
    "SqlAlchemySink": ("sqlalchemy", "sql"),
}
"""Module and extra of each."""


def __getattr__(name: str) -> Any:
    if name not in _READY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, extra = _READY[name]
    try:
        return getattr(import_module(f".{module}", __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("onceward"):
            raise
        raise ConfigurationError(f"{name} needs {error.name}: pip install 'onceward[{extra}]'") from error
