"""One sink's share of a decision: what of it waits, what is visible, what is proven lost.

A decision of the embedded engine may name several epochs (of checkpoints that were given up). An epoch is committed
only when those before it have ended, or an upsert that has to wait would overwrite a later one's rows.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from ..contract import validated as answers
from ..contract.events import about
from ..contract.outcome import LOST_STATES, VISIBLE_STATES
from ..contract.transaction import CommitOutcome, CommitStatus, Observation
from ..errors import DataLossError, ExternalError, FencedError, OncewardError, SinkError, named_text_of
from ..kit.crash_points import Step, crash_point
from .subtask import DirectlyWritten

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..contract.sink import TwoPhaseCommitSink
    from ..contract.transaction import Committable
    from ..log import CommitPermit, LogWriter
    from .loss_table import Failures

_log = logging.getLogger("onceward.commit")

SLOW: Final = 60.0
"""Seconds after which a warning names a call that has not returned."""


class Share:
    """One sink's share of a decision.

    Attributes:
        sink: Sink whose share it is.
        expires: True if the target ends the sink's transactions by itself after a while.
        failures: Transactions that can no longer be committed, with the target's answer.
        error: Error that the sink raised, if asking again does not help; None if there is none.
        visible: True if readers see any of its rows that nobody may write again.
        seconds: Seconds that its commit took.
        detail: Reason why it waits.
        unseen: True if its target did not answer `look`; then it gets no commits in this round.
        accepted: True if the policy has accepted a loss of its target in this commit.
        owns: True if the sink owns its names in its target once its share has ended.
    """

    def __init__(
        self, permit: CommitPermit, sink: TwoPhaseCommitSink[Any], writer: LogWriter, *, claims: bool = True
    ) -> None:
        self.sink = sink
        self.expires = _expires(sink)
        self._clock = writer.policy.monotonic
        self._began = self._clock()
        self.failures: Failures = []
        self.error: Exception | None = None
        self.visible = False
        self.seconds = 0.0
        self.detail = ""
        self.unseen = self.accepted = False
        own = [c for c in permit.committables(sink.name) if c.transaction not in writer.view.skipped]
        own.sort(key=lambda c: c.epoch)
        self.committables = tuple(own)
        self._epochs = [list(epoch) for _, epoch in groupby(own, key=lambda c: c.epoch)]
        claimed, claims = sink.name in writer.view.claimed, claims and sink.name in permit.decision.sinks
        self.owns = claimed or claims
        self._to_claim = None if claimed or not claims else writer.scope(sink.name)

    @property
    def waits(self) -> bool:
        """Whether there is something left to ask for."""
        return self.error is None and bool(self._epochs or self._to_claim)

    @property
    def refused(self) -> bool:
        """Whether its target has refused a commit for a reason that another target's commit may remove."""
        return isinstance(self.error, SinkError) and not isinstance(self.error, DataLossError) and bool(self.pending)

    @property
    def ended(self) -> bool:
        """Whether every transaction of this sink is committed, without a loss or an error."""
        return not (self.waits or self.failures or self.error is not None)

    @property
    def pending(self) -> list[Committable]:
        """Transactions that are neither committed nor lost."""
        return [c for epoch in self._epochs for c in epoch]

    @property
    def lost_before_others(self) -> bool:
        """Whether it has lost something of an epoch that others follow in the same decision."""
        newest = self.committables[-1].epoch if self.committables else 0
        return any(c.epoch < newest for c, _ in self.failures)

    def expires_at(self) -> float | None:
        """Return when the first pending transaction expires, for monitoring; None if that is not known."""
        try:
            times = [self.sink.expires_at(c) for c in self.pending]
        except Exception:  # noqa: BLE001 - whatever a sink raises here is no matter
            return None
        return min((at for at in times if at is not None), default=None)

    def look(self) -> None:
        """Ask the target what has become of the pending transactions, without committing any.

        A target that does not answer is asked again, before it is told to commit.
        """
        pending, self.unseen = self.pending, False
        if not pending:
            return
        try:
            observations = answers.of_each(
                self.sink, "inspect_many", pending, self.sink.inspect_many(pending), Observation
            )
            if any(at is Observation.NO_ANSWER for _, at in observations):
                self.unseen, self.detail = True, self.sink.why_silent(pending)
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - what is wrong with a sink's own code, the commit raises again
            self.detail = named_text_of(error)
            if isinstance(error, ExternalError):  # the commit might be answered all the same, and tear the epoch
                self.unseen = True
                self.error = None if error.retryable else error
            return
        lost = [(c, at) for c, at in observations if at in LOST_STATES]
        if lost:
            self.failures += [(c, CommitOutcome(CommitStatus.LOST, f"the target shows it {at}")) for c, at in lost]
            names = {c.transaction for c, _ in lost}
            remaining = ([c for c in epoch if c.transaction not in names] for epoch in self._epochs)
            self._epochs = [epoch for epoch in remaining if epoch]
        if any(at in VISIBLE_STATES for _, at in observations):
            self._show()

    def ask(self) -> None:
        """Commit one epoch after another, until an answer has to be waited for."""
        try:
            # (Rule J) Claim after the decision is durable and before its first commit. Then commit in the order of
            # epochs: an upsert that has to wait would overwrite a later one's rows.
            if self._to_claim is not None:
                answers.ledger(self.sink).claim(self._to_claim)
                self._to_claim = None
            while self._epochs and self._commit(self._epochs[0]):
                self._epochs.pop(0)
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever one sink raises, the others are asked
            self.detail = named_text_of(error)
            if not (isinstance(error, ExternalError) and error.retryable):
                self.error = error
            if not isinstance(error, OncewardError):
                error.add_note(f"raised by sink {self.sink.name} in a commit; its epoch stays decided")
        finally:
            self.seconds = self._clock() - self._began

    def _commit(self, epoch: list[Committable]) -> bool:
        crash_point(Step.COMMIT_BEFORE)
        with _warning_if_slow(self.sink, epoch[0]):
            answer = self.sink.commit_many(epoch)
        crash_point(Step.COMMIT_AFTER)
        outcomes = answers.of_each(self.sink, "commit", epoch, answer, CommitOutcome)
        if any(outcome.settled for _, outcome in outcomes):
            self._show()
        unsettled = [(c, outcome) for c, outcome in outcomes if not outcome.settled]
        later = [(c, outcome) for c, outcome in unsettled if outcome.status is CommitStatus.RETRY_LATER]
        # (Invariant 8) What can no longer be committed is kept, for the policy to decide about.
        self.failures += [(c, outcome) for c, outcome in unsettled if outcome.status is not CommitStatus.RETRY_LATER]
        self.detail = later[0][1].detail if later else ""
        epoch[:] = [c for c, _ in later]
        return not epoch

    def _show(self) -> None:
        """Note that rows are visible. A direct sink's always are, and each attempt writes them again."""
        self.visible = not isinstance(self.sink, DirectlyWritten)


def _expires(sink: TwoPhaseCommitSink[Any]) -> bool:
    try:
        return sink.transaction_timeout is not None
    except ExternalError:  # only a sink with a timeout asks its target for it
        return True


@contextmanager
def _warning_if_slow(sink: TwoPhaseCommitSink[Any], committable: Committable) -> Iterator[None]:
    def warn() -> None:
        _log.warning(
            "the commit of epoch %s in sink %s has not returned for %g s. Nothing interrupts it: commit_timeout counts "
            "only between two calls. If it does not end by itself, give the sink's requests a timeout",
            committable.epoch,
            sink.name,
            SLOW,
            extra=about(committable),
        )

    timer = threading.Timer(SLOW, warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
