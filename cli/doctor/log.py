"""Checks of a pipeline's decision log, and of what the targets know of the pipeline's name; nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from onceward.core.checkpoint.losses import forgotten
from onceward.core.checkpoint.recovery import Action, action
from onceward.core.errors import EpochConflictError, NoDecisionLogError, OncewardError
from onceward.core.log import Completed, Decide, Start
from onceward.core.log.store import local_folder
from onceward.core.names import NOTHING, Scope

from ..operate.logs import history, open_log
from ..operate.survey import survey
from . import Finding, failed, ok, skipped, warning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.core.log import LogView
    from onceward.core.sink import TwoPhaseCommitSink

    from ..operate.logs import Log
    from ..operate.targets import Target

OWNERSHIP: Final = "ownership"
STARTS: Final = "starts"
DECIDED: Final = "decided transactions"
_MANY_STARTS: Final = 3


def check_starts(log: Log) -> Finding:
    """How often the pipeline was started since it last decided something."""
    name, starts = STARTS, _starts(log.view)
    if not starts:
        return ok(name, "none since the newest decision")
    told = f"{len(starts)} since the newest decision, the newest at {starts[-1].at}"
    if len({start.writer for start in starts}) < _MANY_STARTS:
        return ok(name, told)
    return warning(
        name,
        f"{told}, and nothing was decided in between",
        "either the pipeline fails repeatedly, or two jobs run under one name and log and fence each other: run "
        "it only once at a time",
    )


def _starts(view: LogView) -> list[Start]:
    starts: list[Start] = []
    for entry in view.entries:
        if isinstance(entry, Decide | Completed):
            starts.clear()
        elif isinstance(entry, Start):
            starts.append(entry)
    return starts


def check_decided(log: Log, targets: Sequence[Target]) -> Finding:
    """Whether what is decided can still be committed, and whether anybody has given something up."""
    name, given_up = DECIDED, history(log).given_up
    try:
        found = [one for one in survey([log], targets, log.pipeline) if one.listed is False]
    except OncewardError as error:
        return skipped(name, str(error))
    lost = [one for one in found if action(one.status, one.state) is Action.LOST]
    if lost:
        told = f"{len(lost)} of epoch {lost[0].committable.epoch} were ended otherwise, for example {lost[0].name}"
        return failed(name, told, f"{lost[0].next}. Leave names that begin with `onceward:` alone")
    if given_up:
        told = f"{len(given_up)} were given up, the newest at {given_up[-1].at} by {given_up[-1].who}"
        return warning(name, told, "see `onceward checkpoints`")
    return ok(name, "none waits for its commit" if log.view.undone is None else "wait for their commit")


def check_pipeline(url: str, pipeline: str | None, targets: Sequence[Target]) -> list[Finding]:
    """What the decision log, and the targets, know of the pipeline.

    Args:
        url: Of the decision log's store, or the checkpoint folder.
        pipeline: Its name; a folder tells it by itself.
        targets: Where its transactions are.
    """
    try:
        log = open_log(url, pipeline)
    except NoDecisionLogError:
        return _owned_by(None, pipeline, targets, _searched(url)) if pipeline is not None else []
    except OncewardError:
        return []  # check_store tells
    return [check_starts(log), check_decided(log, targets), *_owned_by(log.view, log.pipeline, targets)]


def _searched(url: str) -> str:
    """Where there is no decision log, as a sentence; a path may be meant from another folder."""
    folder, _ = local_folder(url) or (None, False)
    if folder is None:
        return ""
    relative = "" if folder.is_absolute() else f" ({folder} is relative to the current folder)"
    return f". There is none in {folder.absolute()}{relative}"


def _owned_by(view: LogView | None, pipeline: str, targets: Sequence[Target], searched: str = "") -> list[Finding]:
    found = []
    for target in targets:
        try:
            names = list(target.known(pipeline))
        except OncewardError as error:
            found.append(skipped(OWNERSHIP, str(error), target.title))
            continue
        found += [
            _owned(target.sink(name), Scope(pipeline, name, view.log if view is not None else ""), view, searched)
            for name in names
        ]
        if not names:
            used = ", ".join(sorted(view.claimed)) if view is not None else ""
            elsewhere = f"; the decision log has sinks that have written: {used}" if used else ""
            found.append(ok(OWNERSHIP, f"no sink of {pipeline} has written here{elsewhere}", target.title))
    return found


def _owned(sink: TwoPhaseCommitSink[Any], scope: Scope, view: LogView | None, searched: str) -> Finding:
    """Whether the target knows the name from another decision log, from a newer state of this one, or no longer.

    Without a log, the first start makes one, which nobody knows yet.
    """
    try:
        remembered = sink.check_claim(scope, view.progress if view is not None else NOTHING)
    except EpochConflictError as error:
        return failed(
            OWNERSHIP, error.message + searched, "the pipeline's next start is refused: see the message", sink.name
        )
    except OncewardError as error:
        return skipped(OWNERSHIP, str(error), sink.name)
    if view is not None and (why := forgotten(view, sink.name, remembered)):
        return failed(OWNERSHIP, why, "the pipeline's next start is refused: bring back what is missing", sink.name)
    return ok(OWNERSHIP, "no other decision log has this name", sink.name)
