"""Look at everything under onceward's names: what the targets hold, and what the decision logs say of it.

The targets are listed first and the logs read afterwards, so that what is decided in between is not called in doubt.
What a waiting decision names is added even where the target no longer has it open: it may be committed already, or
lost.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from onceward.core.checkpoint.recovery import Action, TransactionStatus, action, status_of
from onceward.core.errors import ConfigurationError
from onceward.core.names import Scope
from onceward.core.transaction import ANY_EPOCH, Committable, Observation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from onceward.core.log import LogView
    from onceward.core.sink import TwoPhaseCommit

    from .logs import Log
    from .targets import Target

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


_PREPARED = Observation.PREPARED
UNPROVEN: Final = frozenset({Observation.UNKNOWN, Observation.ABSENT, Observation.NO_ANSWER})
"""What tells nothing of a transaction."""
_ENDED = frozenset({Observation.ABORTED, Observation.EXPIRED})
GIVEN_UP = (
    "given up on somebody's word (`onceward checkpoints` says whose): the next start completes its epoch without it"
)


@dataclass(frozen=True)
class Found:
    """A transaction.

    Attributes:
        committable: Its handle.
        target: In which target; None if none of those given can have it.
        status: What the decision log says.
        state: What the target says when it is asked for this one.
        listed: Whether the target lists it as open or prepared.
        given_up: Whether somebody has said to go on without it.
    """

    committable: Committable
    target: Target | None
    status: TransactionStatus
    state: Observation
    listed: bool
    given_up: bool = False

    @property
    def name(self) -> str:
        """Of the transaction."""
        return self.committable.transaction

    @property
    def held(self) -> bool:
        """Whether it holds locks or readers."""
        return self.listed and self.state is not Observation.COMMITTED

    @property
    def next(self) -> str:
        """What happens with it, or what can be done."""
        if self.given_up:
            return GIVEN_UP
        # What is listed is held, also where the target has ended it in part only.
        held = self.held and self.status is not TransactionStatus.DECIDED and self.state in _ENDED
        return advice(self.status, _PREPARED if held else self.state)

    def as_json(self) -> dict[str, Any]:
        """As `--json` shows it; null is what the target cannot tell."""
        c = self.committable
        dated = c.epoch != ANY_EPOCH
        return {
            "pipeline": c.pipeline,
            "sink": c.sink,
            "transaction": c.transaction,
            "target": self.target.title if self.target is not None else None,
            "status": self.status,
            "state": self.state,
            "held": self.held,
            "epoch": c.epoch if dated else None,
            "subtask": c.subtask if dated else None,
            "rows": c.rows or None,
            "next": self.next,
            "committable": c,
        }


@dataclass(frozen=True)
class _Seen:
    committable: Committable
    target: Target | None
    state: Observation
    listed: bool


def survey(logs: Sequence[Log], targets: Sequence[Target], pipeline: str | None = None) -> list[Found]:
    """What is open, prepared, or waits for its commit.

    Args:
        logs: The decision logs that are known.
        targets: Where to look; of two that have the same transaction, the first counts.
        pipeline: Look at this one alone; None: at all.

    Raises:
        ConfigurationError: A target cannot be searched without the name of a pipeline.
        SinkError: A target did not answer.
        StoreError: A store did not answer.
    """
    known = {log.pipeline for log in logs} | ({pipeline} if pipeline is not None else set())
    seen: dict[tuple[str, ...], _Seen] = {}
    for target in targets:
        for found in _listed(target, known, pipeline):
            seen.setdefault((found.committable.pipeline, *found.committable.identity()), found)
    views = _newest([(log.pipeline, log.view) for log in logs if pipeline in (None, log.pipeline)])
    names = {_name(found.committable) for found in seen.values()}
    waiting = [found for _, view in views for found in _waiting(view, targets, names)]
    return [_found(found, views) for found in [*seen.values(), *waiting]]


def _newest(views: Iterable[tuple[str, LogView]]) -> list[tuple[str, LogView]]:
    """Of copies of one log, the one that is furthest."""
    newest: dict[str, tuple[str, LogView]] = {}
    for pipeline, view in views:
        if view.log not in newest or newest[view.log][1].tail < view.tail:
            newest[view.log] = pipeline, view
    return list(newest.values())


def sinks_of(found: Iterable[Found]) -> Mapping[str, TwoPhaseCommit[Any]]:
    """By which these of one pipeline are ended, by the name of the sink.

    Raises:
        ConfigurationError: One is in none of the targets given, or those of one sink are in two.
    """
    targets: dict[str, Target] = {}
    for one in found:
        c = one.committable
        if one.target is None:
            raise ConfigurationError(
                f"transactions of kind {c.kind} (sink {c.sink}) can be reached through none of the targets given: give "
                "--bootstrap-servers, --dsn, or the pipeline's own --sinks module:name",
                pipeline=c.pipeline,
            )
        if targets.setdefault(c.sink, one.target) is not one.target:
            raise ConfigurationError(
                f"sink {c.sink} has transactions in {targets[c.sink].title} and in {one.target.title}: give one of "
                "them",
                pipeline=c.pipeline,
            )
    return {name: target.sink(name) for name, target in targets.items()}


def _listed(target: Target, known: set[str], pipeline: str | None) -> Iterable[_Seen]:
    for names in sorted(target.names(known)):
        if pipeline not in (None, names.pipeline):
            continue
        sink = target.sink(names.sink)
        listed = list(sink.lingering(Scope(names.pipeline, names.sink, "")))
        for committable, state in zip(listed, sink.inspect_many(listed), strict=True):
            # To be listed is an answer, where the target gives no better one.
            yield _Seen(committable, target, _PREPARED if state in UNPROVEN else state, listed=True)


def _waiting(view: LogView, targets: Sequence[Target], seen: set[tuple[str, ...]]) -> Iterable[_Seen]:
    """What the undone decision names and no listing showed."""
    decided = view.undone.committables if view.undone is not None else ()
    by_sink: dict[tuple[str, str], list[Committable]] = defaultdict(list)
    for committable in decided:
        if _name(committable) not in seen:
            by_sink[committable.kind, committable.sink].append(committable)
    for (kind, sink), committables in by_sink.items():
        target = next((target for target in targets if target.holds(kind, sink)), None)
        unknown = [Observation.UNKNOWN for _ in committables]
        states = target.sink(sink).inspect_many(committables) if target is not None else unknown
        for committable, state in zip(committables, states, strict=True):
            yield _Seen(committable, target, state, listed=False)


def _name(committable: Committable) -> tuple[str, ...]:
    return (committable.pipeline, committable.sink, committable.transaction)


def _found(seen: _Seen, views: Sequence[tuple[str, LogView]]) -> Found:
    """With the word of its own log if that is among them, else of another one of its pipeline."""
    c = seen.committable
    of_pipeline = [view for pipeline, view in views if pipeline == c.pipeline]
    view = next((view for view in of_pipeline if view.log == c.log), of_pipeline[0] if of_pipeline else None)
    status = status_of(c, view)
    decided = view.named(c) if view is not None and status is TransactionStatus.DECIDED else None
    given_up = decided is not None and view is not None and c.transaction in view.skipped
    # The decision's committable knows more than the listing's.
    return Found(decided or c, seen.target, status, seen.state, seen.listed, given_up)
