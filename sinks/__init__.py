"""Sinks: the classes to subclass, and what a sink of one's own needs: names of transactions, hashes of rows, claims.

The ready sinks are in `onceward` and, by system, in `onceward.connectors`.
"""

from onceward.core.contract.ledger import Ledger
from onceward.core.contract.names import (
    NOTHING,
    Progress,
    Remembered,
    Scope,
    TransactionName,
    file_name,
    other_log,
    outdated_log,
    parse_file_name,
    parse_transaction_name,
)
from onceward.core.contract.row_hash import RowHash
from onceward.core.contract.sink import DirectSink, Guarantee, IdempotentSink, Sink, TwoPhaseCommitSink
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    CommitOutcome,
    CommitStatus,
    Committable,
    Observation,
    WriteContext,
)
from onceward.core.kit.folders import make_folder, sync_folder

from .folder_claims import FolderClaims, with_file_errors
from .write_ahead import Delivery, WriteAheadLogSink

__all__ = [
    "NOTHING",
    "AbortOutcome",
    "AbortStatus",
    "CommitOutcome",
    "CommitStatus",
    "Committable",
    "Delivery",
    "DirectSink",
    "FolderClaims",
    "Guarantee",
    "IdempotentSink",
    "Ledger",
    "Observation",
    "Progress",
    "Remembered",
    "RowHash",
    "Scope",
    "Sink",
    "TransactionName",
    "TwoPhaseCommitSink",
    "WriteAheadLogSink",
    "WriteContext",
    "file_name",
    "make_folder",
    "other_log",
    "outdated_log",
    "parse_file_name",
    "parse_transaction_name",
    "sync_folder",
    "with_file_errors",
]
