"""Checkpoints: the coordinator of epochs, its policy, finishing decisions, sweeping."""

from ..policy import Backoff, CommitPolicy, OnLost
from .admission import Admission
from .commit import finish
from .coordinator import Coordinator
from .recovery import Swept, sweep

__all__ = [
    "Admission",
    "Backoff",
    "CommitPolicy",
    "Coordinator",
    "OnLost",
    "Swept",
    "finish",
    "sweep",
]
