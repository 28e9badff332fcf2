"""Any sink, source or store, with injected faults (faults.py). Each is used in place of what it wraps.

An outcome is a value: where a sink's contract says so (commit, abort), a lost call answers "retry later" or "unknown",
as a target does that is away; everywhere else it raises an error that may pass.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from onceward.core.transaction import AbortOutcome, AbortStatus, CommitOutcome, CommitStatus, Observation
from onceward.sinks.base import DirectSink, TwoPhaseCommitSink

from .faults import InjectedSinkError, InjectedStoreError, raising
from .faulty_sources import FaultyLiveSource, FaultySource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

    from onceward.core.log import LogStore
    from onceward.core.names import Scope
    from onceward.core.sink import Guarantee
    from onceward.core.transaction import Committable, Progress, WriteContext

    from .faults import Faults

__all__ = ["FaultyDirectSink", "FaultyLiveSource", "FaultySink", "FaultySource", "FaultyStore"]

_sink_fails = raising(InjectedSinkError)
_store_fails = raising(InjectedStoreError)


class FaultySink(TwoPhaseCommitSink[Any]):
    """A TwoPhaseCommitSink with faults.

    Args:
        sink: The sink.
        faults: What goes wrong; calls are named as the methods: begin, write, pre_commit, discard, commit_many (also
            for commit), abort, lingering, inspect_many, claim, release, completed, warm_up, validate.
    """

    def __init__(self, sink: TwoPhaseCommitSink[Any], faults: Faults) -> None:
        super().__init__(sink.name, select=sink.select, where=sink.where)
        self.sink = sink
        self.faults = faults

    @property
    def guarantee(self) -> Guarantee:
        return self.sink.guarantee

    @property
    def transaction_timeout(self) -> float | None:
        return self.sink.transaction_timeout

    def validate(self, schema: pa.Schema) -> None:
        self._raise("validate", schema)

    def validate_complete_mode(self) -> None:
        self.sink.validate_complete_mode()

    def begin(self, context: WriteContext) -> Any:
        return self._raise("begin", context, again=False)

    def write(self, transaction: Any, batch: pa.RecordBatch) -> None:
        self._raise("write", transaction, batch, again=False)

    def pre_commit(self, transaction: Any) -> Committable:
        committable: Committable = self._raise("pre_commit", transaction, again=False)
        return committable

    def discard(self, transaction: Any) -> None:
        self._raise("discard", transaction, again=False)

    def commit(self, committable: Committable) -> CommitOutcome:
        return self.commit_many([committable])[0]

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        make = partial(self.sink.commit_many, committables)
        return self.faults.around(
            "commit_many", make, lambda words: [CommitOutcome(CommitStatus.RETRY_LATER, words)] * len(committables)
        )

    def abort(self, committable: Committable) -> AbortOutcome:
        make = partial(self.sink.abort, committable)
        return self.faults.around("abort", make, lambda words: AbortOutcome(AbortStatus.RETRY_LATER, words))

    def lingering(self, scope: Scope) -> Iterable[Committable]:
        found: Iterable[Committable] = self._raise("lingering", scope)
        return found

    def inspect_many(self, committables: Sequence[Committable]) -> Sequence[Observation]:
        make = partial(self.sink.inspect_many, committables)
        unknown = [Observation.UNKNOWN] * len(committables)
        return self.faults.around("inspect_many", make, lambda _words: unknown)

    def lingering_elsewhere(self, pipeline: str, log: str) -> Iterable[Committable]:
        found: Iterable[Committable] = self._raise("lingering_elsewhere", pipeline, log)
        return found

    def check_claim(self, scope: Scope, newest: Progress) -> None:
        self._raise("check_claim", scope, newest)

    def claim(self, scope: Scope) -> None:
        self._raise("claim", scope)

    def release(self, scope: Scope) -> None:
        self._raise("release", scope)

    def completed(self, scope: Scope, epoch: int) -> None:
        self._raise("completed", scope, epoch)

    def warm_up(self, context: WriteContext) -> None:
        self._raise("warm_up", context)

    def _raise(self, call: str, *arguments: Any, again: bool = True) -> Any:
        return self.faults.around(call, partial(getattr(self.sink, call), *arguments), _sink_fails, again=again)


class FaultyDirectSink(DirectSink[Any]):
    """A DirectSink or IdempotentSink with faults.

    Args:
        sink: The sink.
        faults: What goes wrong; calls: open, write (which DUPLICATE makes twice), flush, close, validate.
    """

    def __init__(self, sink: DirectSink[Any], faults: Faults) -> None:
        super().__init__(sink.name, select=sink.select, where=sink.where)
        self.sink = sink
        self.faults = faults

    @property
    def guarantee(self) -> Guarantee:
        return self.sink.guarantee

    def validate(self, schema: pa.Schema) -> None:
        self._call("validate", schema)

    def open(self, context: WriteContext) -> Any:
        return self._call("open", context, again=False)

    def write(self, writer: Any, batch: pa.RecordBatch) -> None:
        self._call("write", writer, batch)

    def flush(self, writer: Any) -> None:
        self._call("flush", writer)

    def close(self, writer: Any) -> None:
        self._call("close", writer, again=False)

    def _call(self, call: str, *arguments: Any, again: bool = True) -> Any:
        return self.faults.around(call, partial(getattr(self.sink, call), *arguments), _sink_fails, again=again)


class FaultyStore:
    """A store of a decision log with faults.

    Args:
        store: The store.
        faults: What goes wrong; calls: put_if_absent, get, list_keys, delete. A put that is made twice answers the
            second time that a value is there.
    """

    def __init__(self, store: LogStore, faults: Faults) -> None:
        self.store = store
        self.faults = faults

    def put_if_absent(self, key: str, data: bytes) -> bool:
        stored: bool = self._call("put_if_absent", key, data)
        return stored

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._call("get", key)
        return found

    def list_keys(self) -> list[str]:
        found: list[str] = self._call("list_keys")
        return found

    def delete(self, key: str) -> None:
        self._call("delete", key)

    def describe(self) -> str:
        return self.store.describe()

    @property
    def shared(self) -> bool:
        return self.store.shared

    def _call(self, call: str, *arguments: Any) -> Any:
        return self.faults.around(call, partial(getattr(self.store, call), *arguments), _store_fails)
