"""Errors of operations that are refused, by their reasons, and what to do about each.

The remedies here are in terms of `onceward.operations`. The command line shows its own commands and options instead.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ..errors import ConfigurationError
from ..kit.secrets import without_logins


class Refusal(StrEnum):
    """Why an operation was refused."""

    DECIDED = "decided"
    """A decision names the transaction that was to be aborted."""
    COMPLETED = "completed"
    """A completed decision names it."""
    FOREIGN = "of another log"
    """The transaction belongs to another decision log."""
    LOG_UNKNOWN = "log not given"
    """The transaction's decision log was not given."""
    LOG_GIVEN = "log given"
    """The transaction was to be aborted as an orphan, and its decision log was given."""
    NOT_HELD = "not held"
    """The transaction is not open or prepared in any of the targets."""
    NEEDS_PIPELINE = "needs a pipeline"
    """The name of the pipeline was not given."""
    NEEDS_TARGET = "needs a target"
    """The targets do not have the decided transactions."""
    NEEDS_SINKS = "needs sinks"
    """Transactions of this kind of system are found through the pipeline's own sinks alone."""
    NEEDS_MAPPING = "needs a mapping"
    """The rows of a source do not fit the target."""
    SHOWS_NO_EPOCHS = "shows no epochs"
    """A target that does not show which epoch wrote a row was to be compared with what each epoch read."""
    NOT_STOPPED = "not stopped"
    """An epoch was committed while its target was read, or waits for its commit."""


_REMEDIES: Final = {
    Refusal.DECIDED: " (`commit_decided`)",
    Refusal.COMPLETED: "",
    Refusal.FOREIGN: ". If that log is lost for good, pass orphaned=True",
    Refusal.LOG_UNKNOWN: ": pass it to the survey. If it is lost for good, pass orphaned=True",
    Refusal.LOG_GIVEN: ": omit orphaned=True",
    Refusal.NOT_HELD: ": survey the targets again",
    Refusal.NEEDS_PIPELINE: ": pass its name",
    Refusal.NEEDS_TARGET: ": pass the target that has them, or the pipeline's own sinks",
    Refusal.NEEDS_SINKS: ". Pass the pipeline's own sinks",
    Refusal.NEEDS_MAPPING: ": pass a mapping, to convert the source's rows",
    Refusal.SHOWS_NO_EPOCHS: ": audit it without a source, or compare all rows (`compare_places`)",
    Refusal.NOT_STOPPED: ": stop the pipeline, commit the epoch (`commit_decided`), and audit again",
}


class RefusedError(ConfigurationError):
    """An operation was refused. Nothing was done.

    Args:
        problem: Description of the problem. The message adds what to do about it.
        reason: Reason why the operation was refused.
        pipeline: Name of the pipeline, if known.

    Attributes:
        problem: Description of the problem, without what to do about it.
        reason: Reason why the operation was refused.
    """

    def __init__(self, problem: str, reason: Refusal, *, pipeline: str | None = None) -> None:
        super().__init__(problem + _REMEDIES[reason], pipeline=pipeline)
        self.problem, self.reason = without_logins(problem), reason
