"""A Spark query is taken over, and hands over: what the program sees of it, and what a mistake must not do."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pyarrow as pa
import pytest

from onceward.connectors.spark.session.classic import INTERRUPTED
from onceward.connectors.spark.session.options import MOVED_MARK
from onceward.connectors.spark.session.query import epoch_input
from onceward.connectors.spark.write.warm_up import warm_up
from onceward.core.errors import ConfigurationError, EpochConflictError
from onceward.core.log import LogWriter, read
from onceward.core.run.handover import SILENT_SECONDS, Successor, run_steps

from .core_fakes import policy
from .sink_kit import TargetSink
from .spark_kit import Frame, Query, active


class OwnSession:
    """The program's session, whose streams the program awaits; it counts the sessions that were made beside it."""

    def __init__(self) -> None:
        self.others = 0

    @property
    def readStream(self) -> NoReturn:  # noqa: N802 - Spark's name
        raise AssertionError("a query that ends here makes awaitAnyTermination return at once")

    def newSession(self) -> Any:  # noqa: N802 - Spark's name
        self.others += 1
        raise RuntimeError("there is no JVM, and warming up fails nothing")


def test_a_session_is_warmed_up_by_a_query_that_the_program_does_not_see() -> None:
    spark: Any = OwnSession()
    warm_up(spark, [object()])
    assert spark.others == 1


@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_a_query_that_was_stopped_while_it_waited_has_not_failed_in_any_version_of_spark(version: str) -> None:
    between = {"3.5": r".+(\r\n|\r|\n): ", "4.0": r"((.|\r\n|\r|\n)*)"}[version]  # StreamExecution.PROXY_ERROR
    pattern = f"py4j.protocol.Py4JJavaError: An error occurred while calling{between}(java.lang.InterruptedException)"
    assert re.search(pattern, f"Traceback (most recent call last):\n  ...\nStoppedError: {INTERRUPTED}\n")


@pytest.fixture
def query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Query:
    """A query that runs, as Spark lists it."""
    monkeypatch.setattr("onceward.connectors.spark.write.handler._ROUND", (0.02, 5.0))
    made = Query(tmp_path)
    streams = made.spark.streams
    monkeypatch.setattr(streams, "active", [active(made)], raising=False)
    monkeypatch.setattr(
        streams, "get", lambda _, before=streams.get: SimpleNamespace(**{**vars(active(made)), **vars(before(_))})
    )
    return made


@pytest.mark.parametrize("before", ["nothing", "a driver that has died"])
def test_a_query_is_handed_over_before_its_first_epoch(query: Query, before: str) -> None:
    if before != "nothing":
        LogWriter(query.store, "p", policy()).start()
    query.handler.watch(query.spark.query, query.spark.run, query.store)
    newer = LogWriter(query.store, "p", policy())
    assert run_steps(Successor(query.store, 30.0).take(newer.start))
    assert query.spark.streams.active == []
    assert read(query.store).writer_id == newer.token.writer_id


def test_a_query_that_began_without_a_decision_log_does_not_answer_for_another_driver(query: Query) -> None:
    query.handler.find_log = lambda: query.store if read(query.store).tail >= 0 else None
    query.handler.watch(query.spark.query, query.spark.run, None)
    time.sleep(0.2)
    LogWriter(query.store, "p", policy()).start()
    newest = LogWriter(query.store, "p", policy())
    assert not run_steps(Successor(query.store, 30.0).take(newest.start))


def test_a_query_is_handed_over_after_its_first_epoch_however_long_that_takes(query: Query) -> None:
    """Its START, which comes with the epoch, is not taken for the other driver's, nor the other way round."""
    LogWriter(query.store, "p", policy()).start()
    query.handler.watch(query.spark.query, query.spark.run, query.store)
    newer, taken = LogWriter(query.store, "p", policy()), list[bool]()
    asking = threading.Thread(target=lambda: taken.append(run_steps(Successor(query.store, 60.0).take(newer.start))))

    def wait() -> None:
        asking.start()
        time.sleep(SILENT_SECONDS + 2)
        assert newer.token.start < 0, "the epoch is under way"

    query.checkpoint.plan(0)
    frame = Frame([0])
    frame.before = wait
    query.handler(frame, 0)  # type: ignore[arg-type]
    asking.join(30)
    assert taken == [True]
    assert newer.view.completed == 0
    assert query.spark.streams.active == []


def test_a_query_that_fails_while_it_is_asked_is_not_waited_for(query: Query) -> None:
    query.handler.watch(query.spark.query, query.spark.run, query.store)
    newer = LogWriter(query.store, "p", policy())
    took = Successor(query.store, 600.0).take(newer.start)

    def fail() -> None:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            time.sleep(next(took))
        raise OSError("the executor is lost")

    query.checkpoint.plan(0)
    frame = Frame([0])
    frame.before = fail
    with pytest.raises(OSError, match="lost"):
        query.handler(frame, 0)  # type: ignore[arg-type]
    query.spark.streams.active.clear()
    failed = time.monotonic()
    run_steps(took)
    assert time.monotonic() - failed < SILENT_SECONDS + 5


class Refuses(TargetSink):
    """Writes into a target that is not set up for it."""

    def validate(self, schema: Any) -> None:
        raise ConfigurationError(f"the table has no such column: {schema.names}")


class OnlyAppends(TargetSink):
    def validate_complete_mode(self) -> None:
        raise ConfigurationError("the target would show rows of earlier epochs, too")


class Runs:
    """What takes a pipeline over, with Spark's own answers to it."""

    def __init__(self, query: Query, monkeypatch: pytest.MonkeyPatch, mode: str = "append") -> None:
        self.query = query
        monkeypatch.setattr("onceward.connectors.spark.write.handler.check_runs", lambda _: mode)
        monkeypatch.setattr("onceward.connectors.spark.write.handler.warm_up", lambda *_: None)
        monkeypatch.setattr("onceward.connectors.spark.write.handler.try_newest_batch", lambda *_: None)

    def start(self, sink: TargetSink, **changes: Any) -> None:
        """Start a new version; nothing of what it refuses has changed anything in the log."""
        new: Any = self.query.driver(sinks=[sink], schemas={sink.name: pa.schema({"n": pa.int64()})}, **changes)
        new.prepare(read(self.query.store))
        new.take_over(self.query.spark, str(self.query.checkpoint.root), 30.0, object())


def test_a_start_that_a_target_refuses_leaves_the_run_that_finishes_a_decision_meanwhile(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The targets could not be asked before the request: what is decided would have waited for them."""
    query.run(0)
    starts, runs, decided = read(query.store).start, Runs(query, monkeypatch), threading.Event()

    def finish() -> None:
        with query.handler.run.turn(1):
            writer = query.handler.run.coordinator.writer  # type: ignore[union-attr]
            said = epoch_input(lambda url: Path(url).read_text(), str(query.checkpoint.root), query.spark.query, 1)
            writer.decide(1, [], sinks=["target"], epoch_input=said)
            decided.set()
            time.sleep(1)
            writer.complete(1)

    query.checkpoint.plan(1)
    threading.Thread(target=finish).start()
    decided.wait()
    with pytest.raises(ConfigurationError, match="no such column"):
        runs.start(Refuses(query.key))
    assert read(query.store).start == starts
    assert query.spark.streams.active, "it goes on"


@pytest.mark.parametrize("why", ["checkpoint", "older copy", "other offsets", "output mode", "moved"])
def test_a_start_that_is_refused_asks_nobody_to_end(query: Query, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    query.run(0)
    runs = Runs(query, monkeypatch, mode="complete" if why == "output mode" else "append")
    monkeypatch.setattr(Successor, "take", lambda *_: pytest.fail("it asks"))
    sink = TargetSink(query.key)
    if why == "checkpoint":
        (query.checkpoint.root / "metadata").unlink()
    elif why == "older copy":
        (query.checkpoint.root / "offsets/0").unlink()
    elif why == "other offsets":
        (query.checkpoint.root / "offsets/0").write_text("v1\n{}\n7")
    elif why == "moved":
        (query.checkpoint.root / "onceward").mkdir()
        (query.checkpoint.root / MOVED_MARK).write_text("elsewhere")
    else:
        sink = OnlyAppends(query.key)
    with pytest.raises((ConfigurationError, EpochConflictError)):
        runs.start(sink)
