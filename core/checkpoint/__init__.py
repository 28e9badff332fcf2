"""Checkpoints: the coordinator of epochs, its policy, finishing decisions, sweeping.

What is named here is imported when it is asked for: a task needs the part that prepares alone.
"""

from typing import TYPE_CHECKING, Final

from ..kit.lazy import importing

if TYPE_CHECKING:
    from ..contract.policy import Backoff, CommitPolicy, OnLost
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

_HOMES: Final = {
    "..contract.policy": "Backoff CommitPolicy OnLost",
    ".admission": "Admission",
    ".commit": "finish",
    ".coordinator": "Coordinator",
    ".recovery": "Swept sweep",
}

if not TYPE_CHECKING:  # so that type checkers find names that do not exist
    __getattr__ = importing(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
