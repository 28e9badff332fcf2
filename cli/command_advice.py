"""What an operator can do, in terms of commands and options, where `onceward.operations` names its own functions."""

from __future__ import annotations

from typing import Final

from onceward.core.errors import text_of
from onceward.core.operations.survey import Advice
from onceward.operations import Refusal, RefusedError

ADVICE: Final = {
    Advice.COMMIT: "the pipeline's next start commits it, or now `txn commit`",
    Advice.ABORT: "no decision names it: the pipeline's next start aborts it, or now `txn abort`",
    Advice.WAIT: "its writer may still be running. If it is not: the pipeline's next start ends it, or `txn abort` now",
    Advice.LOST: "decided, but the target ended it without a commit: its rows are lost there. on_lost='replay' writes "
    "the epoch again if that is safe; `txn commit --skip-lost WHY` continues without it",
    Advice.GIVEN_UP: "an operator skipped it (`onceward checkpoints` shows who): the next start completes its epoch "
    "without it",
    Advice.FIND_LOG: "made under another decision log: find that one and give it as --store. Only if it is gone for "
    "good: `txn abort --orphaned`",
    Advice.GIVE_LOG: "give its decision log as --store, to see whether it is decided",
    Advice.OUTDATED_LOG: "this log is an outdated copy: the current one knows more. Give that one as --store, and do "
    "not use this one again",
}
REMEDIES: Final = {
    Refusal.DECIDED: " (`txn commit`)",
    Refusal.FOREIGN: ". If that log is lost for good, pass --orphaned",
    Refusal.LOG_UNKNOWN: ": pass it as --store. If it is lost for good, pass --orphaned",
    Refusal.LOG_GIVEN: ": omit --orphaned",
    Refusal.NOT_HELD: ": see `txn list`",
    Refusal.NEEDS_PIPELINE: ": give --pipeline, or the --store of its decision log",
    Refusal.NEEDS_TARGET: ": give --at SYSTEM=ADDRESS, or the pipeline's own --sinks module:name",
    Refusal.NEEDS_SINKS: ". Pass the pipeline's own --sinks module:name",
    Refusal.NEEDS_MAPPING: ": give --map MODULE:FUNCTION to convert the source's rows",
    Refusal.SHOWS_NO_EPOCHS: ": leave out --source, or compare all rows by --key, without the decision log",
    Refusal.NOT_STOPPED: ": stop the pipeline, complete the epoch (`onceward txn commit`), and verify again",
}


def advice(what: Advice) -> str:
    """Return advice in one sentence."""
    return ADVICE.get(what, what.text)


def message(error: Exception) -> str:
    """Return an error's message."""
    if isinstance(error, RefusedError) and error.reason in REMEDIES:
        error.message = error.problem + REMEDIES[error.reason]
    return text_of(error)
