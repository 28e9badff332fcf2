# ruff: noqa: ARG002 - the fakes keep the contract's signatures
"""A sink that breaks its contract: the error names its class, its method, and what to do."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest

from onceward.core.checkpoint import sink_share
from onceward.core.checkpoint.coordinator import Coordinator
from onceward.core.checkpoint.subtask import SubtaskEpoch
from onceward.core.contract.transaction import Acknowledgement, CommitOutcome, CommitStatus, Committable, WriteContext
from onceward.core.engine.completion import as_own_error
from onceward.core.errors import LifecycleError, SinkError
from onceward.core.log import EpochInput
from onceward.sinks import FolderClaims, WriteAheadLogSink

from .core_fakes import MemoryStore, policy, prepared
from .losses_kit import COMMITTED, Bench
from .sink_kit import TargetSink, Transaction

CONTEXT = WriteContext(pipeline="p", sink="a", log="abcd1234", generation=0, epoch=0, subtask=0)


class Returning(TargetSink):
    """Returns what it is told to."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(name="a")
        self.told = answers

    def pre_commit(self, transaction: Transaction) -> Committable:
        return self.told["pre_commit"] if "pre_commit" in self.told else super().pre_commit(transaction)

    def commit_many(self, committables: Any) -> Any:
        return self.told.get("commit_many") if "commit_many" in self.told else super().commit_many(committables)

    def lingering(self, scope: Any) -> Any:
        return self.told["lingering"] if "lingering" in self.told else super().lingering(scope)

    def abort(self, committable: Committable) -> Any:
        return self.told["abort"] if "abort" in self.told else super().abort(committable)

    def check_claim(self, scope: Any, newest: Any) -> Any:
        return self.told.get("check_claim")

    def ledger(self) -> Any:
        return self.told.get("ledger", self)


def run(sink: TargetSink, store: MemoryStore | None = None) -> None:
    """One epoch of one subtask."""
    coordinator = Coordinator("p", store or MemoryStore(), [sink], policy())
    coordinator.open()
    about = EpochInput(query="q", start=None, end=0)
    coordinator.admit(0, about)
    writing = SubtaskEpoch(sink, coordinator.context("a", 0, subtask=0))
    writing.write(pa.RecordBatch.from_pydict({"n": [1]}))
    committable = writing.pre_commit()
    assert committable is not None
    ack = Acknowledgement(epoch=0, subtask=0, attempt=0, sinks=("a",), committables=(committable,))
    coordinator.commit(0, [ack], about)


DONE = CommitOutcome(CommitStatus.COMMITTED)


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            {"pre_commit": None},
            r"pre_commit of Returning returned None, not a Committable; end it with `return context",
        ),
        ({"pre_commit": "name"}, r"returned a value of type str, not a Committable"),
        ({"commit_many": None}, r"commit of Returning returned None, not a sequence of CommitOutcome"),
        ({"commit_many": [True]}, r"commit of Returning returned a value of type bool instead of a CommitOutcome"),
        ({"commit_many": [DONE, DONE]}, r"returned 2 values for 1 committables; give one for each"),
        ({"lingering": None}, r"lingering of Returning returned None, not a sequence of Committable"),
        ({"lingering": ["name"]}, r"lingering of Returning returned a value of type str instead of a Committable"),
        ({"lingering": "name"}, r"lingering of Returning returned a value of type str, not a sequence of Committable"),
        ({"ledger": None}, r"ledger of Returning returned None instead of a Ledger"),
        (
            {"check_claim": True},
            r"ledger\(\).check_claim of Returning returned .* bool instead of a Remembered",
        ),
    ],
)
def test_what_a_method_must_not_return_is_named(answers: dict[str, Any], message: str):
    with pytest.raises(LifecycleError, match=message) as caught:
        run(Returning(**answers))
    assert caught.value.sink == "a"


def test_what_abort_must_not_return_is_named():
    sink = Returning(abort=True)
    coordinator = Coordinator("p", MemoryStore(), [sink], policy())
    coordinator.open()
    own = WriteContext(pipeline="p", sink="a", log=coordinator.writer.token.log, generation=-1, epoch=0, subtask=0)
    sink.told["lingering"] = [prepared(own)]
    with pytest.raises(
        LifecycleError, match=r"abort of Returning returned a value of type bool instead of an AbortOutcome"
    ):
        coordinator.give_up()


@pytest.mark.parametrize(
    ("handle", "message"),
    [
        (
            {"rows": pa.RecordBatch.from_pydict({"n": [1]})},
            r"whose handle\['rows'\] is a value of type pyarrow.*Keep",
        ),
        ({"ids": [1, b"x"]}, r"whose handle\['ids'\]\[1\] is a value of type bytes, which JSON cannot hold"),
        ({"by": {1: "x"}}, r"whose key in handle\['by'\] is a value of type int, which JSON cannot hold"),
    ],
)
def test_a_handle_that_another_process_reads_differently_is_refused_before_the_decision(
    handle: dict[str, Any], message: str
):
    store = MemoryStore()
    committable = CONTEXT.committable(kind="fake", transaction="t", rows=1, handle=handle)
    with pytest.raises(LifecycleError, match=message):
        run(Returning(pre_commit=committable), store)
    assert len(store.list_keys()) == 1, "only START is in the log"


def test_a_method_that_would_do_nothing_is_refused_where_the_class_is_defined():
    with pytest.raises(LifecycleError, match=r"Lazy.write is async, so a call of it does nothing.*asyncio.run"):

        class Lazy(TargetSink):
            async def write(self, transaction: Any, batch: pa.RecordBatch) -> None: ...  # type: ignore[override]

    with pytest.raises(LifecycleError, match=r"Yields.write is a generator, so a call of it does nothing"):

        class Yields(TargetSink):
            def write(self, transaction: Any, batch: pa.RecordBatch) -> Any:
                yield None


@pytest.mark.parametrize("name", ["_send", "_path", "_mark", "_names", "_lost", "_commit", "_place"])
def test_a_private_name_that_hides_one_of_a_base_class_is_refused_where_the_class_is_defined(name: str):
    methods = {name: len, "send": len}
    with pytest.raises(LifecycleError, match=rf"Hook\.{name} hides a private attribute of .*begin it with two under"):
        type("Hook", (WriteAheadLogSink,), methods)
    with pytest.raises(LifecycleError, match=r"Claims\._of_pipeline hides a private attribute of FolderClaims"):
        type("Claims", (FolderClaims,), {"_of_pipeline": len})


def test_private_names_of_a_users_own_classes_are_theirs():
    class Hook(WriteAheadLogSink):
        def __send(self) -> str:
            return "mine"

        def _post(self) -> str:
            return self.__send()

        def send(self, rows: pa.RecordBatch, delivery: Any) -> None: ...

    class Other(Hook):
        def _post(self) -> str:
            return super()._post()

    assert Other("hook", "folder")._post() == "mine"


def test_a_sink_that_forgets_to_call_super_says_so():
    class Forgetful(TargetSink):
        def __init__(self) -> None: ...

    for attribute in ("name", "select", "where"):
        with pytest.raises(AttributeError, match=r"must call super\(\).__init__\(name\)"):
            getattr(Forgetful(), attribute)
    assert not hasattr(Forgetful(), "other")


def test_an_exception_in_a_commit_names_the_sink():
    sink = Returning()
    sink.answers = [ValueError("on fire")]
    with pytest.raises(ValueError, match="on fire") as caught:
        run(sink)
    assert str(as_own_error("commit", caught.value)) == (
        "commit: ValueError: on fire (raised by sink a in a commit; its epoch stays decided)"
    )


def test_a_commit_that_does_not_return_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    class Slow(Returning):
        def commit_many(self, committables: Any) -> Any:
            end = time.monotonic() + 10
            while "has not returned" not in caplog.text and time.monotonic() < end:
                time.sleep(0.01)
            return super().commit_many(committables)

    monkeypatch.setattr(sink_share, "SLOW", 0.01)
    run(Slow())
    assert "the commit of epoch 0 in sink a has not returned for 0.01 s" in caplog.text


def test_a_bug_of_a_sink_is_told_with_its_name():
    bench = Bench(COMMITTED)
    bench.sink.claim_error = RuntimeError("a bug")
    with pytest.raises(SinkError, match=r"asked what it remembers, it raised RuntimeError\('a bug'\)"):
        bench.open()
