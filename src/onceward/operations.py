"""What operators do with pipelines, from Python: see transactions that are in doubt, and end them.

`onceward txn` and `onceward checkpoints` do the same from a shell.
"""

from .core.checkpoint.recovery import TransactionStatus
from .core.operations.logs import Log, open_log
from .core.operations.refusals import Refusal, RefusedError
from .core.operations.resolve import (
    Aborted,
    CommitPlan,
    CommittedEpoch,
    NotAborted,
    RepairedLog,
    RepairPlan,
    abort_orphaned,
    abort_undecided,
    abortable,
    commit_decided,
    plan_commit,
    plan_repair,
    repair_log,
)
from .core.operations.survey import Advice, FoundTransaction, History, Survey, history, survey
from .core.operations.targets import Target, sinks_target

__all__ = [
    "Aborted",
    "Advice",
    "CommitPlan",
    "CommittedEpoch",
    "FoundTransaction",
    "History",
    "Log",
    "NotAborted",
    "Refusal",
    "RefusedError",
    "RepairPlan",
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
    "plan_commit",
    "plan_repair",
    "repair_log",
    "sinks_target",
    "survey",
]
