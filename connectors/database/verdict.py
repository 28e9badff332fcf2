"""What the ledger proves of a transaction that is neither prepared nor staged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from ...core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, ExternalState

if TYPE_CHECKING:
    from ...core.transaction import Committable


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
    Verdict.COMMITTED: ExternalState.COMMITTED,
    Verdict.NOT_COMMITTED: ExternalState.ABORTED,
    Verdict.ASK_AGAIN: ExternalState.UNKNOWN,
    Verdict.UNKNOWN: ExternalState.UNKNOWN,
}


@dataclass(frozen=True)
class Facts:
    """One look into the ledger for one pipeline's sink."""

    behind: str
    """Why this server may lag behind another one; empty if it does not."""
    log: str | None
    """Which decision log owns the names; None if none does."""
    pruned: int
    """Newest epoch of which rows may have been pruned."""
    committed: frozenset[str]
    """Which of the transactions that were asked for are in the ledger."""

    def judge(self, committable: Committable) -> tuple[Verdict, str]:
        """What is proven of one of the transactions that were asked for, and why."""
        if committable.transaction in self.committed:
            return Verdict.COMMITTED, "its row is in the ledger"
        if self.behind:
            return Verdict.ASK_AGAIN, self.behind
        if self.log is None:
            return Verdict.UNKNOWN, "this database's ledger does not know the pipeline: is it another database?"
        if self.log != committable.log:
            return Verdict.UNKNOWN, f"this database's ledger belongs to decision log {self.log}"
        if committable.epoch <= self.pruned:
            return Verdict.UNKNOWN, f"ledger rows of epochs up to {self.pruned} were pruned"
        return Verdict.NOT_COMMITTED, "neither prepared, nor staged, nor in the ledger"

    def commit_outcome(self, committable: Committable, said: str = "") -> CommitOutcome:
        """What a commit that found nothing to commit proved."""
        verdict, why = self.judge(committable)
        return CommitOutcome(_COMMITS[verdict], _joined(said, why))

    def abort_outcome(self, committable: Committable, said: str = "") -> AbortOutcome:
        """What an abort that found nothing to abort proved."""
        verdict, why = self.judge(committable)
        if verdict is Verdict.UNKNOWN and self.log is None:
            return AbortOutcome(AbortStatus.ABORTED, _joined(said, "nor is this pipeline known here"))
        return AbortOutcome(_ABORTS[verdict], _joined(said, why))

    def state(self, committable: Committable) -> ExternalState:
        """The state of a transaction that is not waiting."""
        return _STATES[self.judge(committable)[0]]


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
