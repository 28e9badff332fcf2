"""Any sink, source and store with injected faults (faults.py), to be used in place of what is wrapped.

An outcome is a value: where a sink's contract says so (commit, abort), a lost call answers "retry later" or "unknown",
as a target does that is down; everywhere else it raises a retryable error.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from onceward.core.contract.ledger import Ledger
from onceward.core.contract.source import LiveSource, ResettableSource
from onceward.core.contract.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Observation
from onceward.sinks import DirectSink, TwoPhaseCommitSink

from .faults import InjectedSinkError, InjectedSourceError, InjectedStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    import pyarrow as pa

    from onceward.core.contract.source import Piece, Split
    from onceward.core.contract.transaction import Committable
    from onceward.core.errors import OncewardError
    from onceward.core.log import LogStore

    from .faults import Faults

Wrapper = TypeVar("Wrapper")
__all__ = ["FaultyDirectSink", "FaultyLiveSource", "FaultySink", "FaultySource", "FaultyStore"]
_SAME: Final = ("check_schema", "dataset", "validate_complete_mode")
"""Methods of each sink that ask no target."""


class _Faulty:
    wrapped: Any
    faults: Faults
    error: type[OncewardError]
    """Error that a caller gets whose call, or its answer, is lost."""

    def _lost(self, words: str) -> Any:
        raise self.error(words)


def _call(name: str, *, again: bool = True, lost: Callable[[Any, str], Any] | None = None) -> Any:
    """Return a method that calls the wrapped object's, with faults; without `again` no fault makes the call twice.

    A caller whose call, or its answer, is lost gets what `lost` makes of the first argument and words; else an error.
    """

    def method(self: _Faulty, *arguments: Any, **options: Any) -> Any:
        make = partial(getattr(self.wrapped, name), *arguments, **options)
        instead = self._lost if lost is None else partial(lost, arguments[0])
        return self.faults.around(name, make, instead, again=again)

    return method


def _same(name: str) -> Any:
    """Return a property for the wrapped object's attribute or method of this name, without faults."""
    return property(lambda self: getattr(self.wrapped, name))


def _forwarding(
    contract: type, *, same: Collection[str], once: Collection[str] = ()
) -> Callable[[type[Wrapper]], type[Wrapper]]:
    """Make a class forward all of a contract that it does not define itself.

    Args:
        contract: Properties are forwarded as they are, methods with faults.
        same: Methods without faults.
        once: Methods that are never made twice.
    """

    def complete(kind: type[Wrapper]) -> type[Wrapper]:
        for name in (name for name in dir(contract) if name[0] != "_" and name not in vars(kind)):
            is_call = callable(getattr(contract, name)) and name not in same
            setattr(kind, name, _call(name, again=name not in once) if is_call else _same(name))
        return kind

    return complete


@_forwarding(TwoPhaseCommitSink, same=(*_SAME, "expires_at", "why_silent"), once=("discard",))
class FaultySink(_Faulty, TwoPhaseCommitSink[Any]):
    """A TwoPhaseCommitSink with faults.

    Args:
        sink: Sink whose calls fail.
        faults: Faults of the calls, which are named as the methods: begin, write, pre_commit, discard, commit_many
            (also for commit), abort, lingering, lingering_elsewhere, inspect_many, warm_up, validate, and of its ledger
            check_claim, claim, release, accept_loss, completed, forget.
    """

    error = InjectedSinkError

    def __init__(self, sink: TwoPhaseCommitSink[Any], faults: Faults) -> None:
        super().__init__(sink.name, select=sink.select, where=sink.where)
        self.wrapped = sink
        self.faults = faults

    begin = _call("begin", again=False)
    write = _call("write", again=False)
    pre_commit = _call("pre_commit", again=False)
    lingering = _call("lingering")
    commit_many = _call(
        "commit_many", lost=lambda all_, why: [CommitOutcome(CommitStatus.RETRY_LATER, why)] * len(all_)
    )
    abort = _call("abort", lost=lambda _, why: AbortOutcome(AbortStatus.RETRY_LATER, why))
    inspect_many = _call("inspect_many", lost=lambda all_, _: [Observation.UNKNOWN] * len(all_))

    def commit(self, committable: Committable) -> CommitOutcome:
        return self.commit_many([committable])[0]

    def ledger(self) -> FaultyLedger:
        return FaultyLedger(self.wrapped.ledger(), self.faults)


@_forwarding(Ledger, same=())
class FaultyLedger(_Faulty, Ledger):
    """The ledger of a FaultySink.

    Args:
        ledger: The ledger of the sink that is wrapped.
        faults: Faults of the calls, which are named as the methods.
    """

    error = InjectedSinkError

    def __init__(self, ledger: Ledger, faults: Faults) -> None:
        self.wrapped = ledger
        self.faults = faults


@_forwarding(DirectSink, same=_SAME, once=("close",))
class FaultyDirectSink(_Faulty, DirectSink[Any]):
    """A DirectSink or IdempotentSink with faults.

    Args:
        sink: Sink whose calls fail.
        faults: Faults of the calls: open, write (which DUPLICATE makes twice), flush, close, validate.
    """

    error = InjectedSinkError

    def __init__(self, sink: DirectSink[Any], faults: Faults) -> None:
        super().__init__(sink.name, select=sink.select, where=sink.where)
        self.wrapped = sink
        self.faults = faults

    open = _call("open", again=False)
    write = _call("write")


@_forwarding(ResettableSource, same=("snapshot", "on_checkpoint_complete"))
class FaultySource(_Faulty, ResettableSource):
    """A ResettableSource with faults.

    Args:
        source: Source whose calls fail.
        faults: Faults of the calls: start, end, latest, splits, read, piece (each part that a read delivers), publish,
            validate.
    """

    error = InjectedSourceError

    def __init__(self, source: ResettableSource, faults: Faults) -> None:
        self.wrapped = source
        self.faults = faults

    schema = _same("schema")
    bounded = _same("bounded")
    advance = _same("advance")
    merge = _same("merge")
    start = _call("start")
    end = _call("end")
    latest = _call("latest")
    splits = _call("splits")

    def read(self, split: Split) -> Iterator[Piece]:
        for piece in self.faults.around("read", partial(self.wrapped.read, split), self._lost):
            yield self.faults.around("piece", lambda piece=piece: piece, self._lost)

    def share(self, subtask: int, parallelism: int) -> FaultySource:
        return FaultySource(self.wrapped.share(subtask, parallelism), self.faults)


@_forwarding(LiveSource, same=("snapshot", "on_checkpoint_complete"))
class FaultyLiveSource(_Faulty, LiveSource):
    """A LiveSource with faults.

    Args:
        source: Source whose calls fail.
        faults: Faults of the calls: listen, arrival (each batch that comes), validate. A batch whose arrival fails is
            lost, as with any live source.
    """

    error = InjectedSourceError

    def __init__(self, source: LiveSource, faults: Faults) -> None:
        self.wrapped = source
        self.faults = faults

    schema = _same("schema")
    bounded = _same("bounded")

    def listen(self, subtask: int, parallelism: int) -> Iterator[pa.RecordBatch | None]:
        for batch in self.faults.around("listen", partial(self.wrapped.listen, subtask, parallelism), self._lost):
            yield batch if batch is None else self.faults.around("arrival", lambda batch=batch: batch, self._lost)


class FaultyStore(_Faulty):
    """A store of a decision log with faults.

    Args:
        store: Store whose calls fail.
        faults: Faults of the calls: put_if_absent, get, list_keys, delete. A put that is made twice answers the second
            time that a value is there.
    """

    error = InjectedStoreError

    def __init__(self, store: LogStore, faults: Faults) -> None:
        self.wrapped = store
        self.faults = faults

    shared = _same("shared")
    describe = _same("describe")
    put_if_absent = _call("put_if_absent")
    get = _call("get")
    list_keys = _call("list_keys")
    delete = _call("delete")
