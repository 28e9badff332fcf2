"""Transactions: lifecycle, committables, outcomes, the permit to commit, and the recovery table."""

from .committable import ANY_EPOCH, Acknowledgement, Committable
from .context import WriteContext
from .outcome import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, ExternalState
from .ownership import Progress

__all__ = [
    "ANY_EPOCH",
    "AbortOutcome",
    "AbortStatus",
    "Acknowledgement",
    "CommitOutcome",
    "CommitStatus",
    "Committable",
    "ExternalState",
    "Progress",
    "WriteContext",
]
