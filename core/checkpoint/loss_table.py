"""What happens to a decided epoch that has lost something: one table.

Invariant 8: a loss is never silent. Each rule stops the pipeline, leaves an audit record, or has rows written again,
but only rows that are proven not to have been committed. losses.py carries the rules out, ARCHITECTURE.md shows them,
and tests/test_loss_table.py checks that exactly one of them fits each loss.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from ..contract.policy import OnLost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..contract.transaction import CommitOutcome, Committable

Failures: TypeAlias = "list[tuple[Committable, CommitOutcome]]"
"""Transactions that can no longer be committed, with the answers of their targets."""


class LossAction(StrEnum):
    """The ways in which a loss can end."""

    SKIP = "skip"
    """Give up what is lost, with an audit record, and commit the rest."""
    VOID = "void"
    """Take the decision back, so that the whole epoch is written again."""
    HEAL = "heal"
    """Have the lost part written again, and nothing else (healing.py): an EpochTornError."""
    FAIL = "fail"
    """Stop the pipeline with a DataLossError."""


class Rest(StrEnum):
    """The treatment, before that, of what else of the epoch can expire, so that it is not lost, too."""

    LEFT = "left"
    """Commit nothing more."""
    ASKED = "asked once"
    """Commit it if its target answers now."""
    AWAITED = "awaited"
    """Commit it, and wait for its target."""


class LossFacts(NamedTuple):
    """What is known of a loss.

    Attributes:
        on_lost: The policy's reaction.
        waits: True if the decision is not completed; False if a target no longer has what was completed.
        skippable: True if the policy may skip each of the answers.
        proven: True if each lost transaction is proven not to have been committed.
        visible: True if readers see some of the epoch, or may see it: a commit that has begun counts, and what was
            given up earlier, too.
        late: Sinks that would overwrite what they have of a later epoch, if they wrote the lost rows again.
        heals: True if the caller can compute the epoch again.
        unhashed: Sinks whose lost rows could not be compared with those that are written again.
    """

    on_lost: OnLost
    waits: bool
    skippable: bool
    proven: bool = False
    visible: bool = False
    late: Sequence[str] = ()
    heals: bool = False
    unhashed: Sequence[str] = ()


class LossRule(NamedTuple):
    """One row of the table.

    Attributes:
        on_lost: Policies for which it holds.
        when: Conditions, by the fields of LossFacts. Fields that are not named do not matter.
        action: The result.
        why: The reason, for people; it is in the documentation.
        rest: The treatment of the rest of the epoch before that.
        obstacle: The reason why rows are not written again, for the error.
    """

    on_lost: tuple[OnLost, ...]
    when: Mapping[str, bool]
    action: LossAction
    why: str
    rest: Rest = Rest.LEFT
    obstacle: str = ""

    def fits(self, loss: LossFacts) -> bool:
        """Return whether it is the rule for this loss."""
        return loss.on_lost in self.on_lost and all(
            bool(getattr(loss, name)) is value for name, value in self.when.items()
        )


_TORN: Final = {"waits": True, "proven": True, "visible": True}
RULES: Final = (
    LossRule(
        (OnLost.SKIP,),
        {"skippable": True},
        LossAction.SKIP,
        "The policy allows it. An audit record in the decision log keeps the transaction, its rows and the reason.",
    ),
    LossRule(
        (OnLost.SKIP,),
        {"skippable": False},
        LossAction.FAIL,
        "An operator may skip only what is proven lost, not what a target does not know: it may be the wrong target.",
    ),
    LossRule(
        (OnLost.FAIL, OnLost.REPLAY),
        {"waits": False},
        LossAction.FAIL,
        "What was completed is not written again by itself, because the next epochs follow it.",
    ),
    LossRule(
        (OnLost.FAIL,),
        {"waits": True, "visible": False},
        LossAction.FAIL,
        "Nothing more is committed, so every choice is still open.",
    ),
    LossRule(
        (OnLost.FAIL,),
        {"waits": True, "visible": True},
        LossAction.FAIL,
        "The visible rows stay. What belongs to them and can expire must not be lost, too.",
        Rest.ASKED,
    ),
    LossRule(
        (OnLost.REPLAY,),
        {"waits": True, "proven": True, "visible": False},
        LossAction.VOID,
        "Nothing of the epoch was committed, and once the rest is aborted, nothing ever will be. If a target then "
        "shows otherwise, the epoch counts as visible.",
    ),
    LossRule(
        (OnLost.REPLAY,),
        {"waits": True, "proven": False},
        LossAction.FAIL,
        "What may have been committed would appear twice if it were written again.",
        Rest.AWAITED,
        "it cannot be proven that what is missing was not committed",
    ),
    LossRule(
        (OnLost.REPLAY,),
        {**_TORN, "late": True},
        LossAction.FAIL,
        "The older rows of an upsert would overwrite newer ones, which the same decision has committed.",
        Rest.AWAITED,
        "it would overwrite what {late} has of a later epoch of the same decision",
    ),
    LossRule(
        (OnLost.REPLAY,),
        {**_TORN, "late": False, "heals": False},
        LossAction.FAIL,
        "Only a start of the pipeline can compute the epoch again, from sources that can be read again.",
        Rest.AWAITED,
        "some of the epoch is visible already, and only a pipeline whose sources can be read again can compute the "
        "rest, when it starts",
    ),
    LossRule(
        (OnLost.REPLAY,),
        {**_TORN, "late": False, "heals": True, "unhashed": True},
        LossAction.FAIL,
        "If other rows took the place of the lost ones, nobody would notice.",
        Rest.AWAITED,
        "the decision holds no hash of all that {unhashed} was handed (proof=False, values that cannot be hashed, or a "
        "decision of an older version), so rows that are written again could not be compared",
    ),
    LossRule(
        (OnLost.REPLAY,),
        {**_TORN, "late": False, "heals": True, "unhashed": False},
        LossAction.HEAL,
        "The visible part stays. The lost part is computed again, and committed if its rows are those of the decision.",
        Rest.AWAITED,
    ),
)
"""The rules for losses: exactly one of them fits each loss."""


def rule_of(loss: LossFacts) -> LossRule:
    """Return the rule for a loss."""
    return next(rule for rule in RULES if rule.fits(loss))
