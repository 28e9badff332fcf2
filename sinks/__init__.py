"""Sinks: the classes to subclass. The ready ones are in `onceward` and, by system, in `onceward.connectors`."""

from onceward.core.names import Scope
from onceward.core.sink import Guarantee
from onceward.core.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    WriteContext,
)

from .base import DirectSink, IdempotentSink, Sink, TwoPhaseCommitSink
from .write_ahead import WriteAheadLogSink

__all__ = [
    "AbortOutcome",
    "AbortStatus",
    "CommitOutcome",
    "CommitStatus",
    "Committable",
    "DirectSink",
    "Guarantee",
    "IdempotentSink",
    "Observation",
    "Scope",
    "Sink",
    "TwoPhaseCommitSink",
    "WriteAheadLogSink",
    "WriteContext",
]
