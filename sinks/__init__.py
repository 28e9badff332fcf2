"""Sinks: the classes to subclass. The ready ones are in `onceward` and, by system, in `onceward.connectors`."""

from onceward.core.ledger import Ledger
from onceward.core.names import Scope
from onceward.core.row_hash import RowHash
from onceward.core.sink import DirectSink, Guarantee, IdempotentSink, Sink, TwoPhaseCommitSink
from onceward.core.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    WriteContext,
)

from .write_ahead import Delivery, WriteAheadLogSink

__all__ = [
    "AbortOutcome",
    "AbortStatus",
    "CommitOutcome",
    "CommitStatus",
    "Committable",
    "Delivery",
    "DirectSink",
    "Guarantee",
    "IdempotentSink",
    "Ledger",
    "Observation",
    "RowHash",
    "Scope",
    "Sink",
    "TwoPhaseCommitSink",
    "WriteAheadLogSink",
    "WriteContext",
]
