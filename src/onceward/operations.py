"""What operators do with pipelines, from Python: see transactions that are in doubt, and end them.

`onceward txn` and `onceward checkpoints` do the same from a shell.
"""

from .core.checkpoint.recovery import TransactionStatus
from .core.operations.logs import Log, open_log
from .core.operations.refusals import Refusal, RefusedError
from .core.operations.resolve import (
    Aborted,
    CommittedEpoch,
    NotAborted,
    RepairedLog,
    abort_orphaned,
    abort_undecided,
    abortable,
    commit_decided,
    repair_log,
)
from .core.operations.survey import Advice, FoundTransaction, History, Survey, history, survey
from .core.operations.targets import Target, sinks_target

__all__ = [
    "Aborted",
    "Advice",
    "CommittedEpoch",
    "FoundTransaction",
    "History",
    "Log",
    "NotAborted",
    "Refusal",
    "RefusedError",
    "RepairedLog",
    "Survey",
    "Target",
    "TransactionStatus",
    "abort_orphaned",
    "abort_undecided",
    "abortable",
    "commit_decided",
    "history",
    "open_log",
    "repair_log",
    "sinks_target",
    "survey",
]
