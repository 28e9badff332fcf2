"""Look at everything under onceward's names: what the targets hold, what the decision logs say of it and of the past.

The targets are listed first and the logs read afterwards, so that what is decided in between is not called in doubt.
What a waiting decision names is added even where the target no longer has it open: it may be committed already, or
lost.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Final

from ..checkpoint.recovery import Action, TransactionStatus, action, status_of
from ..contract.names import Scope
from ..contract.transaction import Committable, Observation
from ..errors import ExternalError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ..contract.targets import OtherTransaction, Target
    from ..log import LogView
    from .log_locations import Log


class Advice(StrEnum):
    """What happens with a transaction, and what an operator can do about it."""

    NOTHING = "nothing"
    COMMIT = "commit"
    """The transaction is decided: the pipeline's next start commits it, or `commit_decided`."""
    ABORT = "abort"
    """No decision names it: the pipeline's next start aborts it, or `abort_undecided`."""
    WAIT = "wait"
    """The transaction's writer may still be running. If it is not, ABORT holds."""
    LOST = "lost"
    """The transaction is decided, and its rows are lost in the target."""
    GIVEN_UP = "given up"
    """An operator has skipped it."""
    STILL_OPEN = "still open"
    """The transaction's decision is completed, but the target still has it open."""
    COMMITTED_BY_HAND = "committed by hand"
    """The transaction is committed, and no decision names it."""
    FIND_LOG = "find its log"
    """The transaction belongs to another decision log than those given."""
    GIVE_LOG = "give its log"
    """No decision log was given for it."""
    OUTDATED_LOG = "outdated log"
    """The decision log given is an outdated copy."""

    @property
    def text(self) -> str:
        """One sentence for people."""
        return _TEXTS[self]


_TEXTS: Final = {
    Advice.NOTHING: "nothing",
    Advice.COMMIT: "the pipeline's next start commits it, or `commit_decided` now",
    Advice.ABORT: "no decision names it: the pipeline's next start aborts it, or `abort_undecided` now",
    Advice.WAIT: "its writer may still be running. If it is not: the pipeline's next start ends it, or "
    "`abort_undecided` now",
    Advice.LOST: "decided, but the target ended it without a commit: its rows are lost there. on_lost='replay' writes "
    "the epoch again if that is safe; `commit_decided` with `skip_lost` continues without it",
    Advice.GIVEN_UP: "an operator skipped it (`history` shows who): the next start completes its epoch without it",
    Advice.STILL_OPEN: "its decision is completed, but the target still has it open: ask the target's operators",
    Advice.COMMITTED_BY_HAND: "committed, though no decision names it: somebody did it by hand, and its rows may be "
    "duplicated",
    Advice.FIND_LOG: "made under another decision log: find that one and survey with it. Only if it is gone for good: "
    "`abort_orphaned`",
    Advice.GIVE_LOG: "survey with its decision log, to see whether it is decided",
    Advice.OUTDATED_LOG: "this log is an outdated copy: the current one knows more. Survey with that one, and do not "
    "use this one again",
}
_BY_ACTION: Final = {
    Action.NOTHING: Advice.NOTHING,
    Action.COMMIT: Advice.COMMIT,
    Action.ABORT: Advice.ABORT,
    Action.LOST: Advice.LOST,
}
_BY_STATUS: Final = {
    TransactionStatus.COMPLETED: Advice.STILL_OPEN,
    TransactionStatus.IN_DOUBT: Advice.WAIT,
    TransactionStatus.LINGERING: Advice.COMMITTED_BY_HAND,
    TransactionStatus.FOREIGN: Advice.FIND_LOG,
    TransactionStatus.OUTDATED_LOG: Advice.OUTDATED_LOG,
    TransactionStatus.UNKNOWN: Advice.GIVE_LOG,
}
"""Advice for transactions that are only reported, by their status."""


def advise(status: TransactionStatus, state: Observation) -> Advice:
    """Return what happens with a transaction of which the log says this and the target that."""
    what = action(status, state)
    return _BY_STATUS[status] if what is Action.REPORT else _BY_ACTION[what]


STAGED: Final = "staged"
"""Ending of the kinds of committables whose rows wait in a staging table, and the state of such a transaction."""
UNPROVEN: Final = frozenset({Observation.UNKNOWN, Observation.ABSENT, Observation.NO_ANSWER})
"""Answers that say nothing about a transaction."""
_DIGEST: Final = 12
"""Hexadecimal digits of a handle's digest."""
_ENDED = frozenset({Observation.ABORTED, Observation.EXPIRED})


@dataclass(frozen=True)
class FoundTransaction:
    """A transaction that a target lists, or that a waiting decision names.

    Attributes:
        committable: Handle of the transaction.
        target: The target that has it; None if none of those given can have it.
        status: Status of the transaction by the decision log.
        state: State of the transaction by the target, when it is asked for this one.
        listed: True if the target lists it as open or prepared.
        given_up: True if an operator or a policy has skipped it.
        expires: Time at which the target ends it by itself, in seconds since 1970; None if it never does, or if that is
            not known.
    """

    committable: Committable
    target: Target | None
    status: TransactionStatus
    state: Observation
    listed: bool
    given_up: bool = False
    expires: float | None = None

    @property
    def expires_in(self) -> int | None:
        """Seconds until the target ends it by itself; None if it does not, or has done so."""
        open_ = self.held and self.state in (Observation.OPEN, Observation.PREPARED, Observation.BEGUN)
        return max(0, round(self.expires - time.time())) if open_ and self.expires is not None else None

    @property
    def shown_state(self) -> str:
        """What the target says, in the words of the glossary: rows in a staging table are staged, not prepared."""
        waits = self.state is Observation.PREPARED
        return STAGED if waits and self.committable.kind.endswith(f"-{STAGED}") else str(self.state)

    @property
    def name(self) -> str:
        """Name of the transaction."""
        return self.committable.transaction

    @property
    def exact(self) -> str:
        """Name of the transaction, with a digest of its handle: a target may use a name again for another one."""
        return f"{self.name}+{sha256(self.committable.identity()[-1].encode()).hexdigest()[:_DIGEST]}"

    @property
    def held(self) -> bool:
        """Whether the transaction holds locks in its target, or keeps readers waiting."""
        return self.listed and self.state is not Observation.COMMITTED

    @property
    def lost(self) -> bool:
        """Whether the transaction is decided, and its target shows that it can no longer be committed."""
        return not self.given_up and action(self.status, self.state) is Action.LOST

    @property
    def advice(self) -> Advice:
        """What happens with it, and what can be done."""
        if self.given_up:
            return Advice.GIVEN_UP
        # What is listed is held, also where the target has ended it in part only.
        held = self.held and self.status is not TransactionStatus.DECIDED and self.state in _ENDED
        return advise(self.status, Observation.PREPARED if held else self.state)


@dataclass(frozen=True)
class Survey:
    """The transactions that targets and decision logs show.

    Attributes:
        transactions: Transactions that are open, prepared, or wait for their commit.
        unanswered: Title of each target that did not answer, with the error. Its transactions are listed as far as the
            decision logs name them.
        others: Open transactions of other applications by the target's title; they hold back readers of the places that
            they have written to.
    """

    transactions: tuple[FoundTransaction, ...]
    unanswered: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Sequence[OtherTransaction]] = field(default_factory=dict)


def survey(
    logs: Sequence[Log], targets: Sequence[Target], pipeline: str | None = None, *, must_answer: bool = True
) -> Survey:
    """List the transactions that are open, prepared, or wait for their commit.

    Args:
        logs: The decision logs that are known.
        targets: Targets to ask; of two that have the same transaction, the first counts.
        pipeline: Name of the only pipeline to list; None: all.
        must_answer: True if a target that does not answer is an error.

    Raises:
        ConfigurationError: A target cannot be searched without the name of a pipeline.
        SinkError: A target did not answer.
        StoreError: A store did not answer.
    """
    known = {log.pipeline for log in logs} | ({pipeline} if pipeline is not None else set())
    transactions: dict[tuple[str, ...], FoundTransaction] = {}
    unanswered: dict[str, str] = {}
    others: dict[str, Sequence[OtherTransaction]] = {}
    for target in targets:
        try:
            if target.others is not None and (open_elsewhere := target.others()):
                others[target.title] = open_elsewhere
            listed_here = [
                one
                for owner, sink in sorted(target.names(known))
                if pipeline in (None, owner)
                for one in _listed(target, owner, sink)
            ]
        except ExternalError as error:
            if must_answer:
                raise
            unanswered[target.title] = str(error)
            continue
        for one in listed_here:
            transactions.setdefault((one.committable.pipeline, *one.committable.identity()), one)
    views = _newest([(log.pipeline, log.view) for log in logs if pipeline in (None, log.pipeline)])
    listed = {_name(one.committable) for one in transactions.values()}
    waiting = [one for _, view in views for one in _waiting(view, targets, listed, unanswered)]
    judged = [_judged(one, views) for one in [*transactions.values(), *waiting]]
    return Survey(tuple(_with_expiry(judged)), unanswered, others)


def _with_expiry(transactions: Sequence[FoundTransaction]) -> list[FoundTransaction]:
    """Add when the targets end what is open, as far as they tell."""
    held = [one for one in transactions if one.target is not None and one.held]
    expires: dict[int, float | None] = {}
    for target in {id(one.target): one.target for one in held}.values():
        here = [one for one in held if one.target is target]
        assert target is not None  # noqa: S101 - as chosen
        expires |= zip(map(id, here), _expiries(target, [one.committable for one in here]), strict=True)
    return [replace(one, expires=expires.get(id(one))) for one in transactions]


def _expiries(target: Target, committables: Sequence[Committable]) -> Sequence[float | None]:
    try:
        if target.expires is not None:
            return target.expires(committables)
        return [target.sink(committable.sink).expires_at(committable) for committable in committables]
    except Exception:  # noqa: BLE001 - whatever a sink raises here: it is only shown
        return [None] * len(committables)


def _newest(views: Iterable[tuple[str, LogView]]) -> list[tuple[str, LogView]]:
    """Return one view of each log: of copies, the one that is furthest."""
    newest: dict[str, tuple[str, LogView]] = {}
    for pipeline, view in views:
        if view.log not in newest or newest[view.log][1].tail < view.tail:
            newest[view.log] = pipeline, view
    return list(newest.values())


def _listed(target: Target, pipeline: str, name: str) -> Iterable[FoundTransaction]:
    sink = target.sink(name)
    listed = list(sink.lingering(Scope(pipeline, name, "")))
    for committable, state in zip(listed, sink.inspect_many(listed), strict=True):
        # To be listed is an answer, where the target gives no better one.
        state = Observation.PREPARED if state in UNPROVEN else state  # noqa: PLW2901
        yield FoundTransaction(committable, target, TransactionStatus.UNKNOWN, state, listed=True)


def _waiting(
    view: LogView, targets: Sequence[Target], listed: set[tuple[str, ...]], silent: Collection[str]
) -> Iterable[FoundTransaction]:
    """Return the transactions that the undone decision names and no listing showed."""
    by_sink: dict[tuple[str, str], list[Committable]] = defaultdict(list)
    for committable in view.undone.committables if view.undone is not None else ():
        if _name(committable) not in listed:
            by_sink[committable.kind, committable.sink].append(committable)
    for (kind, sink), committables in by_sink.items():
        target = next((target for target in targets if target.holds(kind, sink)), None)
        if target is None or target.title in silent:
            states = [Observation.UNKNOWN if target is None else Observation.NO_ANSWER] * len(committables)
        else:
            states = list(target.sink(sink).inspect_many(committables))
        for committable, state in zip(committables, states, strict=True):
            yield FoundTransaction(committable, target, TransactionStatus.UNKNOWN, state, listed=False)


def _name(committable: Committable) -> tuple[str, ...]:
    return (committable.pipeline, committable.sink, committable.transaction)


def _judged(transaction: FoundTransaction, views: Sequence[tuple[str, LogView]]) -> FoundTransaction:
    """Return a transaction with its status by the log that made it, or else by another log of its pipeline."""
    c = transaction.committable
    of_pipeline = [view for pipeline, view in views if pipeline == c.pipeline]
    view = next((view for view in of_pipeline if view.log == c.log), of_pipeline[0] if of_pipeline else None)
    status = status_of(c, view)
    decided = view.named(c) if view is not None and status is TransactionStatus.DECIDED else None
    given_up = decided is not None and view is not None and c.transaction in view.skipped
    # The decision's committable knows more than the listing's.
    return replace(transaction, committable=decided or c, status=status, given_up=given_up)
