"""End transactions on an operator's word: what is decided is committed, what is not is aborted, never otherwise."""

from __future__ import annotations

import getpass
import socket
from typing import TYPE_CHECKING

from ...core.checkpoint import CommitPolicy, OnLost, Swept, finish, sweep
from ...core.checkpoint.standing import Standing
from ...core.errors import ConfigurationError
from ...core.log import LogWriter
from .survey import participants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...core.log import Decide
    from ...core.transaction import AbortOutcome
    from .logs import Log
    from .places import Place
    from .survey import Found

_WHY_NOT = {
    Standing.DECIDED: "a decision names it: it is committed, never aborted (`txn commit`)",
    Standing.COMPLETED: "a completed decision names it: it is committed, never aborted",
    Standing.FOREIGN: "another decision log made it. If that log is gone for good, say --orphaned",
    Standing.UNKNOWN: "its decision log is not known: give it as --store. If it is gone for good, say --orphaned",
}


def commit_decided(log: Log, places: Sequence[Place], *, skip_lost: str | None = None) -> Decide | None:
    """Become the newest writer and finish the decision; None if there was none to finish.

    Args:
        log: The pipeline's decision log.
        places: Where its transactions are.
        skip_lost: Why the pipeline shall go on without what can no longer be committed; None: that is an error.

    Raises:
        ConfigurationError: A transaction can be reached through none of the places; nothing was done.
        CommitPendingError: A target did not answer in time; the decision stands.
        DataLossError: A transaction can no longer be committed.
        FencedError: Another writer has started at the same time.
        StoreError: The store did not answer.
    """
    if log.view.undone is not None:
        participants(log.view.undone.committables, places)  # before anybody is fenced
    policy = CommitPolicy()
    if skip_lost is not None:
        policy = CommitPolicy(on_lost=OnLost.SKIP, skipped_by=f"{_who()}: {skip_lost}")
    writer = LogWriter(log.store, log.pipeline, policy.writer_clock())
    permit = writer.start().permit()
    if permit is None:
        return None
    finish(permit, writer, participants(permit.decision.committables, places), policy)
    return permit.decision


def abort_undecided(log: Log, places: Sequence[Place], found: Sequence[Found]) -> Swept:
    """Become the newest writer, so that none of these can be decided any more, and abort exactly these.

    What was decided, or ended, since they were found is left alone.

    Raises:
        FencedError: Another writer has started at the same time; nothing was aborted.
        StoreError: The store did not answer; nothing was aborted.
    """
    sinks = participants([one.committable for one in found], places)
    writer = LogWriter(log.store, log.pipeline, CommitPolicy().writer_clock())
    writer.start()
    return sweep(writer, sinks.values(), only={one.committable.identity() for one in found})


def abort_orphaned(places: Sequence[Place], found: Sequence[Found]) -> list[AbortOutcome]:
    """Abort exactly these, whose decision log is gone for good: nobody can decide or commit them any more."""
    sinks = participants([one.committable for one in found], places)
    return [sinks[one.sink].abort(one.committable) for one in found]


def chosen(found: Sequence[Found], names: Sequence[str], *, orphaned: bool) -> list[Found]:
    """Which of what was found is to be aborted.

    Args:
        found: Everything.
        names: Transactions that are meant; empty for all that no decision can name.
        orphaned: Those whose log is another one, or not given, are meant.

    Raises:
        ConfigurationError: A name is not there, or must not be aborted.
    """
    may = {Standing.FOREIGN, Standing.UNKNOWN} if orphaned else {Standing.IN_DOUBT, Standing.LINGERING}
    if not names:
        if orphaned:
            raise ConfigurationError("--orphaned needs the names of the transactions: nobody else can vouch for them")
        return [one for one in found if one.held and one.standing in may]
    by_name = {one.transaction: one for one in found if one.held}
    for name in names:
        if name not in by_name:
            raise ConfigurationError(f"{name} is not open or prepared in any of the targets given: see `txn list`")
        standing = by_name[name].standing
        if standing not in may:
            why = "its decision log is here and can settle it: leave out --orphaned" if orphaned else ""
            raise ConfigurationError(f"{name} is not aborted: {_WHY_NOT.get(standing, why)}")
    return [by_name[name] for name in names]


def _who() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"
