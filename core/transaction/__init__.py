"""Transactions: lifecycle, committables, what a target shows of them, and what that proves."""

from .committable import ANY_EPOCH, Acknowledgement, Committable
from .context import WriteContext
from .outcome import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Observation, abort_outcome, commit_outcome
from .ownership import Progress

__all__ = [
    "ANY_EPOCH",
    "AbortOutcome",
    "AbortStatus",
    "Acknowledgement",
    "CommitOutcome",
    "CommitStatus",
    "Committable",
    "Observation",
    "Progress",
    "WriteContext",
    "abort_outcome",
    "commit_outcome",
]
