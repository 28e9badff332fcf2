"""What operators do with pipelines, from Python: look at them, end transactions, audit targets, make savepoints.

The command line does the same from a shell, by these functions. docs/operations-api.md shows how they are used.
"""

from .connectors.spark.savepoints.creation import create_savepoint, plan_savepoint
from .connectors.spark.savepoints.manifest import (
    FoundSavepoint,
    Manifest,
    delete_savepoint,
    savepoint_at,
    savepoints,
)
from .connectors.spark.savepoints.restore import RestorePlan, plan_restore, restore_savepoint
from .core.checkpoint.recovery import TransactionStatus
from .core.contract.refusals import Refusal, RefusedError
from .core.contract.targets import sinks_target
from .core.operations.audit import Audit, EpochVerdict, audit
from .core.operations.comparison import Comparison, Mismatch
from .core.operations.discovery import find_logs
from .core.operations.history import (
    Epoch,
    History,
    epochs_of_day,
    history,
    overview,
)
from .core.operations.log_locations import Log, open_log
from .core.operations.resolve import (
    Aborted,
    CommitPlan,
    CommittedEpoch,
    LogRepair,
    abort_orphaned,
    abort_undecided,
    abortable,
    commit_decided,
    plan_commit,
    plan_repair,
    repair_log,
)
from .core.operations.row_comparison import compare_places
from .core.operations.run_requests import request_savepoint
from .core.operations.status import PipelineState, PipelineStatus, pipeline_status
from .core.operations.survey import FoundTransaction, Survey, survey
from .core.operations.systems import open_place, open_target

__all__ = [
    "Aborted",
    "Audit",
    "CommitPlan",
    "CommittedEpoch",
    "Comparison",
    "Epoch",
    "EpochVerdict",
    "FoundSavepoint",
    "FoundTransaction",
    "History",
    "Log",
    "LogRepair",
    "Manifest",
    "Mismatch",
    "PipelineState",
    "PipelineStatus",
    "Refusal",
    "RefusedError",
    "RestorePlan",
    "Survey",
    "TransactionStatus",
    "abort_orphaned",
    "abort_undecided",
    "abortable",
    "audit",
    "commit_decided",
    "compare_places",
    "create_savepoint",
    "delete_savepoint",
    "epochs_of_day",
    "find_logs",
    "history",
    "open_log",
    "open_place",
    "open_target",
    "overview",
    "pipeline_status",
    "plan_commit",
    "plan_repair",
    "plan_restore",
    "plan_savepoint",
    "repair_log",
    "request_savepoint",
    "restore_savepoint",
    "savepoint_at",
    "savepoints",
    "sinks_target",
    "survey",
]
