"""End transactions on an operator's word: what is decided is committed, what is not is aborted, never otherwise."""

from __future__ import annotations

import getpass
import os
import socket
from typing import TYPE_CHECKING

from ...core.checkpoint import Backoff, CommitPolicy, OnLost, finish, sweep
from ...core.checkpoint.standing import Standing
from ...core.errors import ConfigurationError, FencedError
from ...core.log import LogWriter
from ...core.transaction import ExternalState
from ...core.transaction.recovery import PROVEN_NOT_COMMITTED
from ...sinks.base import TwoPhaseCommitSink
from .survey import participants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...core.checkpoint import Swept
    from ...core.log import Decide
    from ...core.transaction import AbortOutcome
    from .logs import Log
    from .survey import Found

_WHY_NOT = {
    Standing.DECIDED: "a decision names it: it is committed, never aborted (`txn commit`)",
    Standing.COMPLETED: "a completed decision names it: it is committed, never aborted",
    Standing.FOREIGN: "another decision log made it. If that log is gone for good, say --orphaned",
    Standing.UNKNOWN: "its decision log is not known: give it as --store. If it is gone for good, say --orphaned",
}
_GONE = frozenset({ExternalState.ABORTED, ExternalState.EXPIRED})
_PATIENCE = Backoff(attempts=8)


def commit_decided(log: Log, found: Sequence[Found], *, skip_lost: str | None = None) -> Decide | None:
    """Become the newest writer and finish the decision; None if there was none left to finish.

    Args:
        log: The pipeline's decision log.
        found: What it has decided, as the survey found it.
        skip_lost: Why the pipeline shall go on without what is proven not to be committed, now and for ever; None:
            that is an error.

    Raises:
        ConfigurationError: A transaction is in none of the targets given, or not known there; nothing was done.
        CommitPendingError: A target did not answer in time; the decision stands.
        DataLossError: A transaction can no longer be committed.
        FencedError: Another writer has started at the same time.
        StoreError: The store did not answer.
    """
    decided = [one for one in found if one.standing is Standing.DECIDED]
    sinks = participants(decided)
    _check_there([one for one in decided if not one.given_up], skip=skip_lost is not None)
    policy = CommitPolicy(commits=_PATIENCE)
    if skip_lost is not None:
        policy = CommitPolicy(
            commits=_PATIENCE,
            on_lost=OnLost.SKIP,
            skips=PROVEN_NOT_COMMITTED,
            skipped_by=_who(),
            skipped_why=skip_lost,
        )
    writer = LogWriter(log.store, log.pipeline, policy.writer_clock())
    permit = writer.start().permit()
    if permit is None:
        return None
    if {c.sink for c in permit.decision.committables} - sinks.keys():
        raise FencedError("another epoch was decided meanwhile: look again", pipeline=log.pipeline)
    finish(permit, writer, sinks, policy)
    return permit.decision


def _check_there(decided: Sequence[Found], *, skip: bool) -> None:
    """Who gives the wrong target is told before a run is fenced, and before rows that are elsewhere are given up."""
    for one in decided:
        title = one.place.title if one.place is not None else ""
        if not one.listed and one.state is ExternalState.UNKNOWN and _can_tell(one):
            raise ConfigurationError(
                f"{title} does not know {one.name}, which is decided: is it the right target? If it is, its trace has "
                "expired, and only the pipeline itself can go on, with on_lost='skip'. Nothing was done"
            )
        if one.state in _GONE and not skip:
            raise ConfigurationError(
                f"{title} has ended {one.name} otherwise ({one.state}), so its rows are lost there. To go on without "
                "them: --skip-lost WHY. Nothing was done"
            )


def _can_tell(one: Found) -> bool:
    """Whether its sink can ask the target about a transaction that is not listed."""
    if one.place is None:
        return False
    return type(one.place.sink(one.committable.sink)).inspect_many is not TwoPhaseCommitSink.inspect_many


def abort_undecided(log: Log, found: Sequence[Found]) -> Swept:
    """Become the newest writer, so that none of these can be decided any more, and abort exactly these.

    What was decided, or ended, since they were found is left alone.

    Raises:
        FencedError: Another writer has started at the same time; nothing was aborted.
        StoreError: The store did not answer; nothing was aborted.
    """
    sinks = {(one.place.title, one.committable.sink): one.place for one in found if one.place is not None}
    writer = LogWriter(log.store, log.pipeline, CommitPolicy().writer_clock())
    writer.start()
    meant = {one.committable.identity() for one in found}
    swept = sweep(writer, [place.sink(sink) for (_, sink), place in sinks.items()], only=meant)
    if not swept.aborted and not writer.still_newest():
        raise FencedError("another writer has started meanwhile; nothing was aborted", pipeline=log.pipeline)
    return swept


def abort_orphaned(found: Sequence[Found]) -> list[AbortOutcome]:
    """Abort exactly these, whose decision log is gone for good: nobody can decide or commit them any more."""
    return [one.place.sink(one.committable.sink).abort(one.committable) for one in found if one.place is not None]


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
    by_name = {one.name: one for one in found if one.held}
    for name in names:
        if name not in by_name:
            raise ConfigurationError(f"{name} is not open or prepared in any of the targets given: see `txn list`")
        standing = by_name[name].standing
        if standing not in may:
            why = "its decision log is here and can settle it: leave out --orphaned" if orphaned else ""
            raise ConfigurationError(f"{name} is not aborted: {_WHY_NOT.get(standing, why)}")
    return [by_name[name] for name in dict.fromkeys(names)]


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
