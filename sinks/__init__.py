"""Sinks: the classes to subclass, and the ready ones."""

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
from .base import Guarantee, Sink, TwoPhaseCommitSink

__all__ = [
    "AbortOutcome",
    "AbortStatus",
    "CommitOutcome",
    "CommitStatus",
    "Committable",
    "ExternalState",
    "Guarantee",
    "Scope",
    "Sink",
    "TwoPhaseCommitSink",
    "WriteContext",
]
