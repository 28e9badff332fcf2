"""The contract of ledgers: what a sink's target remembers of the decision logs that have written into it.

Who calls what, in which order (all on the driver, or in a command; `TwoPhaseCommitSink.ledger` makes the object):

    start:     check_claim                           (or release, until the first decision after a rewind)
    decision:  claim, before the first commit of the log's first decision
    epoch:     check_claim before its decision, completed after COMPLETED
    loss:      accept_loss, once the policy has accepted what check_claim reported
    end:       forget, once the log is deleted
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from ..kit.methods import refuse_hidden_names, refuse_idle_methods

if TYPE_CHECKING:
    from .names import Remembered, Scope
    from .transaction import Progress

_CALLED: Final = frozenset({"check_claim", "claim", "release", "accept_loss", "completed", "forget"})


class Ledger:
    """What a sink's target remembers of decision logs: which one owns its names, and how far that one had come.

    The methods of this class remember nothing; a subclass overrides those for which its target has an answer. The
    methods connect where they are called, as those of a sink do.

    Attributes:
        records_transactions: True if the target records each transaction, so that the sink's `inspect_many` can
            distinguish transactions that the newest completed epoch committed from those that were never committed.
            Then each start checks that the target still has that epoch: a target that was replaced by an older copy (a
            lagging standby was promoted, a backup was restored) does not.
    """

    records_transactions: ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Refuse a method that would do nothing when it is called, or that hides a private one of onceward's."""
        super().__init_subclass__(**arguments)
        refuse_idle_methods(cls, _CALLED)
        refuse_hidden_names(cls)

    def check_claim(self, scope: Scope, newest: Progress) -> Remembered | None:
        """Refuse a decision log that would write again what the target holds. Called at each start; writes nothing.

        Args:
            scope: The names, and the log.
            newest: Generation and epoch of the log's newest decision.

        Returns:
            What the target remembers of this log: if that is less than was committed, it is a different target, or an
            older copy. None if it cannot remember; Remembered(False, NOTHING) if it could, and knows nothing.

        Raises:
            EpochConflictError: The target knows this pipeline and sink from another decision log, for example
                because the checkpoint folder was deleted (`other_log`); or it knows a committed transaction of this
                log that is newer than `newest`, because the log is an outdated copy (`outdated_log`). The module
                `core.contract.names` has functions that make both errors.
        """

    def claim(self, scope: Scope) -> None:
        """Make this decision log the owner of the names in the target; idempotent; if two logs race, one wins.

        Called once the log's first decision for this sink is durable, before that decision's first commit: a start
        that fails earlier leaves no claim behind.

        Raises:
            EpochConflictError: Another decision log owns them.
        """

    def release(self, scope: Scope) -> None:
        """Forget other decision logs, and the progress of this one, after an explicit rewind; idempotent.

        Called once the rewind is durable in the decision log, because until then the target must refuse an outdated
        log; from then on instead of `check_claim`, until the first decision after it. A claim of this log stays.
        """

    def accept_loss(self, scope: Scope) -> None:
        """Take the target as it is, after a loss that `check_claim` reported; idempotent. By default, do nothing.

        Called once the policy `skip` has accepted the loss, with its audit record. From then on `check_claim` does not
        report it, and what is decided and was not acknowledged can be committed.
        """

    def completed(self, scope: Scope, epoch: int) -> None:
        """Do housekeeping after an epoch's COMPLETED entry is durable, for example prune rows. May be skipped."""

    def forget(self, scope: Scope) -> None:
        """Delete what the target remembers of a decision log that was deleted. By default, do nothing. May be skipped.

        Called after a batch write without `runKey`, when everything that its log decided is committed. The pipeline's
        name was random, so nobody will ask for it again. Data must stay, and so must whatever the sink's `lingering`
        lists.
        """
