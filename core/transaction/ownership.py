"""Whose a target's names are, and how far their decision log had come when the target last saw a commit.

A target that remembers both can refuse a decision log that would write its input a second time: another log (the
checkpoint folder was deleted), or an outdated copy of this one (the folder was restored from a backup).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import EpochConflictError

if TYPE_CHECKING:
    from ..names import Scope

_CHOICES: Final = (
    "Choices: bring back the checkpoint (or store) that belongs to this pipeline; give the pipeline another name; or, "
    'if the target was emptied or a second writing is wanted, go back on purpose with rewind="…" and a reason'
)


class Progress(NamedTuple):
    """How far a decision log has come, or how much of it a target has seen; compared as a tuple.

    Generations, unlike epochs, never go back: a rewound pipeline writes older epochs under a newer START.
    """

    generation: int
    """Position of the writer's START."""
    epoch: int


NOTHING: Final = Progress(-1, -1)
"""No decision, or no commit."""


def other_log(scope: Scope, log: str, where: str) -> EpochConflictError:
    """The error for names that belong to another decision log.

    Args:
        scope: The names, and this log.
        log: The other log.
        where: Which target says so.
    """
    return EpochConflictError(
        f"{where} knows this pipeline and sink from decision log {log}, but this is decision log {scope.log}: either "
        "the checkpoint folder was deleted or replaced, and going on would write its input a second time, or another "
        f"job runs under the same name. {_CHOICES}",
        pipeline=scope.pipeline,
        sink=scope.sink,
    )


def outdated_log(scope: Scope, known: Progress, newest: Progress, where: str) -> EpochConflictError:
    """The error for a decision log that knows less than its target.

    Args:
        scope: The names, and this log.
        known: The newest commit that the target knows.
        newest: The newest decision that the log knows.
        where: Which target says so.
    """
    log = f"knows epochs up to {newest.epoch}" if newest != NOTHING else "knows of no epoch"
    return EpochConflictError(
        f"this decision log is an outdated copy: {where} holds epoch {known.epoch} (generation {known.generation}) of "
        f"it, and the log {log}. Was the checkpoint folder restored from a backup? Going on would write the epochs "
        f"since then a second time. {_CHOICES}",
        pipeline=scope.pipeline,
        sink=scope.sink,
        epoch=known.epoch,
    )
