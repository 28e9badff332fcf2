"""Committing several epochs in their order."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from onceward.core.transaction import CommitOutcome, CommitStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from onceward.core.transaction import Committable


def epoch_by_epoch(
    committables: Sequence[Committable], commit_epoch: Callable[[list[Committable]], list[CommitOutcome]]
) -> list[CommitOutcome]:
    """Commit each epoch after those before it; what comes behind one that has to wait, waits too.

    Args:
        committables: In any order.
        commit_epoch: Commits transactions of one epoch; one outcome for each, in order.

    Returns:
        One outcome for each committable, in the order given.
    """
    outcomes: dict[str, CommitOutcome] = {}
    held = False
    ordered = sorted(committables, key=lambda c: (c.log, c.epoch))
    for _, group in groupby(ordered, key=lambda c: (c.log, c.epoch)):
        epoch = list(group)
        if held:
            answers = [CommitOutcome(CommitStatus.RETRY_LATER, "waits for an epoch before it")] * len(epoch)
        else:
            answers = commit_epoch(epoch)
        held = held or any(answer.status is CommitStatus.RETRY_LATER for answer in answers)
        outcomes |= {c.transaction: answer for c, answer in zip(epoch, answers, strict=True)}
    return [outcomes[c.transaction] for c in committables]
