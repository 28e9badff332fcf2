"""Checkpoints: the coordinator of epochs, its policy, finishing decisions, sweeping."""

from .commit import finish
from .coordinator import Admission, Coordinator
from .participant import Participant
from .policy import Backoff, CommitPolicy, OnLost
from .sweep import Swept, sweep

__all__ = [
    "Admission",
    "Backoff",
    "CommitPolicy",
    "Coordinator",
    "OnLost",
    "Participant",
    "Swept",
    "finish",
    "sweep",
]
