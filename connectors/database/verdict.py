"""What the ledger proves of a transaction that is neither prepared nor staged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from onceward.core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Observation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from onceward.core.transaction import Committable


class Verdict(Enum):
    """The possible proofs."""

    COMMITTED = "committed"
    NOT_COMMITTED = "not committed"
    ASK_AGAIN = "ask again"
    UNKNOWN = "unknown"


_COMMITS: Final = {
    Verdict.COMMITTED: CommitStatus.ALREADY_COMMITTED,
    Verdict.NOT_COMMITTED: CommitStatus.LOST,
    Verdict.ASK_AGAIN: CommitStatus.RETRY_LATER,
    Verdict.UNKNOWN: CommitStatus.UNKNOWN,
}
_ABORTS: Final = {
    Verdict.COMMITTED: AbortStatus.COMMITTED,
    Verdict.NOT_COMMITTED: AbortStatus.ABORTED,
    Verdict.ASK_AGAIN: AbortStatus.RETRY_LATER,
    Verdict.UNKNOWN: AbortStatus.UNKNOWN,
}
_STATES: Final = {
    Verdict.COMMITTED: Observation.COMMITTED,
    Verdict.NOT_COMMITTED: Observation.ABORTED,
    Verdict.ASK_AGAIN: Observation.UNKNOWN,
    Verdict.UNKNOWN: Observation.UNKNOWN,
}


@dataclass(frozen=True)
class Facts:
    """One look into the ledger for one pipeline's sink.

    An absent row proves something only if the transaction was written into this very database. Its writer noted that
    before it wrote. Who owns the names proves nothing: a restart that was given another database claims them there.
    """

    behind: str
    """Why this server may lag behind another one; empty if it does not."""
    logs: Mapping[str, int]
    """Decision logs whose writers noted that they write here, and the newest epoch of which each one's ledger rows may
    have been pruned."""
    committed: frozenset[str]
    """Which of the transactions that were asked for are in the ledger."""

    def judge(self, committable: Committable) -> tuple[Verdict, str]:
        """What is proven of one of the transactions that were asked for, and why."""
        if committable.transaction in self.committed:
            return Verdict.COMMITTED, "its row is in the ledger"
        if self.behind:
            return Verdict.ASK_AGAIN, self.behind
        pruned = self.logs.get(committable.log)
        if pruned is None:
            return Verdict.UNKNOWN, "no writer of this decision log has written here: is it another database?"
        if committable.epoch <= pruned:
            return Verdict.UNKNOWN, f"ledger rows of epochs up to {pruned} were pruned"
        return Verdict.NOT_COMMITTED, "neither prepared, nor staged, nor in the ledger"

    def commit_outcome(self, committable: Committable, said: str = "") -> CommitOutcome:
        """What a commit that found nothing to commit proved."""
        verdict, why = self.judge(committable)
        return CommitOutcome(_COMMITS[verdict], _joined(said, why))

    def abort_outcome(self, committable: Committable, said: str = "") -> AbortOutcome:
        """What an abort that found nothing to abort proved."""
        verdict, why = self.judge(committable)
        if verdict is Verdict.UNKNOWN and committable.log not in self.logs:
            return AbortOutcome(AbortStatus.ABORTED, _joined(said, "nor has this decision log ever written here"))
        return AbortOutcome(_ABORTS[verdict], _joined(said, why))

    def state(self, committable: Committable) -> Observation:
        """The state of a transaction that is not waiting."""
        return _STATES[self.judge(committable)[0]]


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
