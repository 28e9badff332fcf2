"""What happens with a transaction, or what an operator can do, from the log's word and the target's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onceward.core.checkpoint.recovery import Action, TransactionStatus, action

if TYPE_CHECKING:
    from onceward.core.transaction import Observation

_REPORT: Final = {
    TransactionStatus.COMPLETED: "its decision is completed, and yet the target has it open: ask those who run the "
    "target",
    TransactionStatus.IN_DOUBT: "its writer may be at work. If it is not: the pipeline's next start ends it, or "
    "`txn abort` now",
    TransactionStatus.LINGERING: "committed, though no decision names it: somebody did it by hand, and its rows "
    "may be duplicated",
    TransactionStatus.FOREIGN: "made under another decision log: find that one and give it as --store. Only if it is "
    "gone for good: `txn abort --orphaned`",
    TransactionStatus.AHEAD: "this log is an outdated copy: the current one knows more. Give that one as --store, and "
    "do not use this one again",
    TransactionStatus.UNKNOWN: "give its decision log as --store, to see whether it is decided",
}
_ADVICE: Final = {
    Action.COMMIT: "the pipeline's next start commits it, or now `txn commit`",
    Action.ABORT: "no decision names it: the pipeline's next start aborts it, or now `txn abort`",
    Action.NOTHING: "nothing",
    Action.LOST: "decided, and the target ended it otherwise: its rows are lost there. on_lost='replay' writes the "
    "epoch again where that is sound; `txn commit --skip-lost WHY` goes on without it",
}


def advice(status: TransactionStatus, state: Observation) -> str:
    """What happens with it, or what an operator can do."""
    what = action(status, state)
    return _REPORT[status] if what is Action.REPORT else _ADVICE[what]
