"""The function that Spark calls with each micro-batch: what is written, decided, replayed, swept, told, and when."""

from __future__ import annotations

import logging
import time
import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import SparkRuntimeException

from onceward.connectors.spark.session.classic import ClassicSession
from onceward.connectors.spark.session.query import any_stage_failed, check_offset_log, epoch_input, read_text, reason
from onceward.connectors.spark.write.handler import EpochHandler, check_pickles, refuse_other_targets
from onceward.connectors.spark.write.parallelism import TOO_LARGE
from onceward.core.contract.policy import OnLost
from onceward.core.errors import ConfigurationError, EpochConflictError, FencedError, SinkError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import DirectoryStore, LogWriter, Rewind, read
from onceward.core.log.note_kinds import FailureNote
from onceward.core.log.notes import notes
from onceward.core.log.run_writers import OVERTAKEN, RUN_VARIABLE
from onceward.core.run.handover import Successor, run_steps
from onceward.core.run.pipeline_log import checked_log

from .core_fakes import policy
from .sink_kit import TargetSink
from .spark_kit import QUERY, Checkpoint, Frame, Query, active, stage

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


@pytest.fixture
def leftover(query: Query) -> Callable[..., None]:
    """Leaves what a lost attempt of the batch has prepared."""

    def leave(batch: int) -> None:
        coordinator = query.handler.run.coordinator
        assert coordinator is not None
        context = coordinator.context("target", batch, subtask=0)
        sink = TargetSink(query.target)
        sink.pre_commit(sink.begin(context))

    return leave


def test_each_batch_is_written_once_and_told_when_it_is_completed(query: Query):
    for batch in range(3):
        query.run(batch, [10 * batch], [10 * batch + 1])
    assert query.shown() == [0, 1, 10, 11, 20, 21]
    assert query.told == [(0, 0), (1, 1), (2, 2)]


def test_few_rows_are_written_by_the_driver_from_the_second_batch_of_a_query_on(query: Query):
    one = query.driver(cheap=True)
    assert [query.run(batch, [2 * batch, 2 * batch + 1], handler=one).gathered for batch in range(3)] == [0, 1, 1]
    other = query.driver(cheap=True)
    assert [query.run(batch, [2 * batch, 2 * batch + 1], handler=other).gathered for batch in (3, 4)] == [1, 1]
    assert query.shown() == list(range(10))
    assert query.told == [(batch, batch) for batch in range(5)]


class Coalesced(Frame):
    """What few tasks read."""


@pytest.fixture
def read_by(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By which frames the driver has gathered epochs."""
    told: list[str] = []
    to_arrow = Frame.toArrow

    def tell(frame: Frame) -> Any:
        told.append(type(frame).__name__)
        return to_arrow(frame)

    monkeypatch.setattr(Frame, "toArrow", tell)
    monkeypatch.setattr(Frame, "coalesce", lambda frame, _: Coalesced(*frame.partitions))
    return told


@pytest.mark.parametrize("writers", [None, 2])
def test_what_is_lost_is_read_again_by_the_tasks_that_wrote_it(
    query: Query, writers: int | None, monkeypatch: pytest.MonkeyPatch
):
    """Partitions are in another order where their number is limited, as Spark does."""

    def driver() -> EpochHandler:
        return query.driver(writers=writers, policy=policy(on_lost=OnLost.REPLAY))

    def die(step: Step) -> None:
        if step is Step.DECIDE_AFTER:
            raise OSError("the driver dies")

    monkeypatch.setattr(Frame, "coalesce", lambda frame, _: Frame(*reversed(frame.partitions)))
    with hooked(die), pytest.raises(OSError, match="the driver dies"):
        query.run(0, [0, 1], [2, 3], handler=driver())
    undone = read(query.store).undone
    assert undone is not None
    first, second = sorted(undone.committables, key=lambda committable: committable.subtask)
    sink = TargetSink(query.target)
    assert sink.commit(first).settled
    assert sink.abort(second).done
    query.run(0, [0, 1], [2, 3], handler=driver())
    assert query.shown() == [0, 1, 2, 3]


def test_all_tasks_read_the_first_epoch_of_a_run_and_few_the_others(query: Query, read_by: list[str]):
    """Each partition waits for a client of the source at first; how many rows come out is of no account."""
    query.run(0)
    for batches in ((1, 2, 3), (4, 5)):
        handler = query.driver(cheap=True)
        for batch in batches:
            query.run(batch, [], [], handler=handler)
    assert read_by == ["Frame", "Coalesced", "Coalesced", "Frame", "Coalesced"]


def test_few_tasks_read_the_epoch_after_one_that_tasks_have_written(query: Query, read_by: list[str]):
    handler = query.driver(cheap=True)
    for batch in range(2):  # nothing counts the input of the query's very first one
        query.run(batch, [], [], handler=handler)
    assert read_by == ["Coalesced"]


def test_rows_that_are_too_large_for_the_driver_are_written_by_tasks_until_the_run_ends(
    query: Query, monkeypatch: pytest.MonkeyPatch
):
    handler = query.driver(cheap=True)
    query.run(0, handler=handler)
    with monkeypatch.context() as patched:
        patched.setattr(Frame, "toArrow", lambda _: fail(SparkRuntimeException(f"[USER_RAISED_EXCEPTION] {TOO_LARGE}")))
        query.run(1, handler=handler)
    assert query.run(2, handler=handler).gathered == 0
    assert query.shown() == [0, 1, 2]
    assert read(query.store).completed == 2


def test_when_the_driver_cannot_write_it_gives_up_the_epoch(query: Query, monkeypatch: pytest.MonkeyPatch):
    handler = query.driver(cheap=True)
    query.run(0, handler=handler)
    sink: Any = handler.sinks[0]
    monkeypatch.setattr(sink, "write", lambda *_: fail(OSError("the target is full")))
    with pytest.raises(OSError, match="the target is full"):
        query.run(1, handler=handler)
    monkeypatch.undo()
    query.run(1, handler=handler)
    assert query.shown() == [0, 1]
    assert read(query.store).completed == 1


def fail(error: Exception) -> None:
    raise error


def test_executors_that_cannot_write_are_refused_before_start_and_the_next_run_is_not(query: Query):
    asked: Any = SimpleNamespace(problem=lambda: ConfigurationError("another version"))
    with pytest.raises(ConfigurationError, match="another version"):
        query.run(0, handler=query.driver(executors=asked))
    assert read(query.store).start < 0
    query.run(0)
    assert query.shown() == [0]


def test_what_is_decided_is_committed_before_executors_are_refused(query: Query):
    def hook(step: Step) -> None:
        if step is Step.DECIDE_AFTER:
            raise OSError("killed")

    with hooked(hook), pytest.raises(OSError, match="killed"):
        query.run(0)
    assert query.shown() == []
    asked: Any = SimpleNamespace(problem=lambda: ConfigurationError("another version"))
    with pytest.raises(ConfigurationError, match="another version"):
        query.run(0, handler=query.driver(executors=asked))
    assert query.shown() == [0]
    assert read(query.store).completed == 0


@pytest.mark.parametrize("batch", [0, 2])
def test_a_batch_that_is_replayed_is_run_and_not_written(query: Query, batch: int):
    """The driver died before Spark logged the batch; a stateful query needs the batch all the same."""
    for done in range(batch + 1):
        query.run(done)
    again = query.run(batch, [99], handler=query.driver())
    assert query.shown() == list(range(batch + 1))
    assert again.drained == 1
    assert query.told[-1] == (batch, batch)


@pytest.mark.parametrize("other", [{"end": 11}, {"watermark": 60_000}], ids=["offsets", "watermark"])
def test_a_batch_of_the_same_number_from_other_input_is_no_replay(query: Query, other: dict[str, int]):
    query.run(0)
    query.checkpoint.plan(0, **other)
    with pytest.raises(EpochConflictError, match="decided with other input"):
        query.driver()(Frame([5]), 0)  # type: ignore[arg-type]
    assert query.shown() == [0]


def test_an_error_that_says_what_to_do_reaches_spark_without_our_frames(query: Query, caplog: pytest.LogCaptureFixture):
    query.run(0)
    query.checkpoint.plan(0, end=11)
    caplog.set_level(logging.DEBUG, "onceward.spark")
    with pytest.raises(EpochConflictError) as raised:
        query.driver()(Frame([5]), 0)  # type: ignore[arg-type]
    frames = [frame.name for frame in traceback.extract_tb(raised.tb)]
    assert frames[1:] == ["__call__"]
    [record] = [record for record in caplog.records if record.exc_info]
    assert "admission" in "".join(traceback.format_tb(record.exc_info[2]))  # type: ignore[index]
    with pytest.raises(OSError, match="the executor is lost") as other:
        query.run(1, [1], [2], fails=1)
    assert len(traceback.extract_tb(other.tb)) > 3


def test_an_error_that_a_mistake_in_code_caused_keeps_its_frames(query: Query, monkeypatch: pytest.MonkeyPatch):
    handler = query.driver()
    sink: Any = handler.sinks[0]

    def write(*_: object) -> None:
        try:
            {}["order"]
        except KeyError as error:
            raise SinkError("cannot write row 3") from error

    monkeypatch.setattr(sink, "write", write)
    with pytest.raises(SinkError, match="row 3") as raised:
        query.run(0, handler=handler)
    assert "write" in [frame.name for frame in traceback.extract_tb(raised.tb)]
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_batch_begins_where_the_one_before_ended(query: Query):
    query.run(0)
    query.checkpoint.plan(0, end=11)
    with pytest.raises(EpochConflictError, match="does not begin where"):
        query.run(1, handler=query.driver())


def test_the_input_is_what_the_offsets_files_say(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path / "c")
    for batch in range(2):
        checkpoint.plan(batch)
    first, second = (epoch_input(read_text, str(checkpoint.root), QUERY, batch) for batch in range(2))
    assert (first.start, first.end) == (None, ['{"t":{"0":10}}'])
    assert (second.start, second.end) == (first.end, ['{"t":{"0":20}}'])
    assert first.digest != second.digest
    assert epoch_input(read_text, str(checkpoint.root), QUERY, 0) == first
    checkpoint.plan(1, watermark=60_000)
    again = epoch_input(read_text, str(checkpoint.root), QUERY, 1)
    assert (again.start, again.end) == (second.start, second.end)
    assert again.digest != second.digest
    with pytest.raises(ConfigurationError, match="no offsets/2"):
        epoch_input(read_text, str(checkpoint.root), QUERY, 2)


@pytest.mark.parametrize(
    ("lines", "sources"),
    [
        (["v1", "{}", '{"a":1}', "-", '{"b":2}'], ['{"a":1}', "-", '{"b":2}']),
        (["v2", "{}", '1:{"b":2}', '0:{"a":1}'], ['{"a":1}', '{"b":2}']),
        (["v2", "{}", *(f"{n}:{n}" for n in (3, 10, 1, 0, 2, 4, 5, 6, 7, 8, 9))], [str(n) for n in range(11)]),
        (["v2", "{}", '2:{"b":2}', '0:{"a":1}'], ['{"a":1}', "-", '{"b":2}']),
        (["v2", "{}"], []),
    ],
)
def test_offsets_are_read_by_source_whatever_the_version_of_the_file(lines: list[str], sources: list[str]) -> None:
    about = epoch_input({"c/offsets/0": "\n".join(lines)}.get, "c", QUERY, 0)
    assert about.end == sources


@pytest.mark.parametrize("lines", [["v3", "{}", "0:{}"], ["v2", "{}", "orders:{}"]])
def test_offsets_of_a_later_version_are_refused(lines: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="formatVersion=1"):
        epoch_input({"c/offsets/0": "\n".join(lines)}.get, "c", QUERY, 0)


@pytest.mark.parametrize(
    ("setting", "value"), [("offsetLog.formatVersion", "3"), ("queryEvolution.enableSourceEvolution", "true")]
)
def test_offsets_that_could_not_be_read_are_refused_before_the_query_starts(setting: str, value: str) -> None:
    settings = {f"spark.sql.streaming.{setting}": value}
    session: Any = SimpleNamespace(setting=settings.get)
    with pytest.raises(ConfigurationError, match=setting):
        check_offset_log(session)


def test_what_partitions_prepared_for_a_batch_that_failed_is_aborted_at_once(query: Query):
    with pytest.raises(OSError, match="the executor is lost"):
        query.run(0, [1], [2], [3], fails=2)
    assert query.target.prepared == {}
    assert len(query.target.aborted) == 2
    query.run(0, [1], [2], [3])
    assert query.shown() == [1, 2, 3]
    assert read(query.store).start > 0  # the first START is of no use any more


@pytest.mark.parametrize(
    ("seen", "swept"),
    [
        (stage(), False),
        (stage(failed=1), True),
        (stage(attempt=1), True),
        (None, True),
    ],
    ids=["clean", "a task failed", "the stage ran twice", "Spark has forgotten it"],
)
def test_after_a_stage_that_was_not_clean_lost_attempts_are_swept(
    query: Query, leftover: Callable[[int], None], seen: Any, swept: bool
):
    query.run(0)
    leftover(1)
    query.spark.stages = {1: seen}
    query.run(1)
    assert bool(query.target.aborted) is swept
    assert bool(query.target.prepared) is not swept
    assert query.shown() == [0, 1]


def test_one_stage_among_several_is_enough(query: Query):
    query.spark.stages = {1: stage(), 2: stage(failed=1), 3: stage()}
    assert any_stage_failed(query.spark, [1, 2, 3])  # type: ignore[arg-type]
    assert not any_stage_failed(query.spark, [1, 3])  # type: ignore[arg-type]
    assert any_stage_failed(query.spark, [1, 4])  # type: ignore[arg-type]


def test_with_speculation_each_batch_is_followed_by_a_sweep(query: Query, leftover: Callable[[int], None]):
    """A copy that was killed is not a task that failed."""
    query.spark.conf["spark.speculation"] = "true"
    query.handler = query.driver()
    query.run(0)
    leftover(1)
    query.run(1)
    assert query.target.prepared == {}
    assert len(query.target.aborted) == 1


def test_a_run_that_is_started_again_in_the_same_process_puts_a_start(query: Query):
    query.run(0)
    before = read(query.store).start
    query.run(1)
    assert read(query.store).start == before
    query.spark.run = "run-2"
    query.run(2)
    assert read(query.store).start > before
    assert query.shown() == [0, 1, 2]


def test_a_rewind_left_in_the_command_line_is_done_once(query: Query):
    """Killed between a decision and Spark's commit log each time, the command line offers the same batch again."""
    for batch in range(3):
        query.run(batch)
    for batch in (1, 2):
        for _ in range(2):
            query.run(batch, [100 + batch], handler=query.driver(rewind="wrong code"))
    assert query.shown() == [0, 1, 2, 101, 102]


def test_a_rewind_says_at_which_batch_it_begins(query: Query):
    for batch in range(3):
        query.run(batch)
    with pytest.raises(OSError, match="lost"):
        query.run(1, fails=0, handler=query.driver(rewind="wrong code"))
    [rewind] = [entry.rewind for entry in read(query.store).entries if isinstance(entry, Rewind)]
    assert (rewind.query, rewind.epoch, rewind.why) == (QUERY, 1, "wrong code")
    with pytest.raises(EpochConflictError):
        query.run(2, handler=query.driver())


@pytest.mark.parametrize(("master", "taken"), [("local[2]", True), ("yarn", False)])
def test_a_decision_log_on_the_drivers_disk_is_for_a_driver_that_stays_there(
    query: Query, tmp_path: Path, master: str, taken: bool
):
    query.spark.master = master
    handler = query.driver(store=str(tmp_path / "log"))
    if taken:
        query.run(0, handler=handler)
        assert read(DirectoryStore(tmp_path / "log")).completed == 0
    else:
        with pytest.raises(ConfigurationError, match="local disk"):
            query.run(0, handler=handler)
        assert query.target.written == 0


def test_a_query_without_a_checkpoint_is_refused(tmp_path: Path):
    """Spark makes a temporary one, with which the decision log would go."""
    query = Query(tmp_path / "temporary-0b5f4c6e-7d0a-4f9e-8c3b-2a1d5e6f7a8b")
    query.checkpoint.root = query.checkpoint.root.rename(tmp_path / "temporary-5c2f9a10-7d0a-4f9e-8c3b-2a1d5e6f7a8b")
    with pytest.raises(ConfigurationError, match="the query has no checkpoint"):
        query.run(0)
    assert query.target.written == 0


@pytest.mark.parametrize(
    ("store", "pipeline", "told"),
    [
        ("hdfs://nn/x", "p", "hdfs:// cannot hold a decision log"),
        (None, "other", "belongs to pipeline 'p'"),
        (None, "p", None),
    ],
)
def test_a_decision_log_is_looked_at_before_there_is_input(
    tmp_path: Path, store: str | None, pipeline: str, told: str | None
):
    LogWriter(DirectoryStore(tmp_path / "checkpoint" / "onceward"), "p", policy()).start()
    checkpoint = f"file:{tmp_path}/checkpoint"
    if told is None:
        checked_log(store, checkpoint, pipeline, "local[2]")
        return
    with pytest.raises((ConfigurationError, EpochConflictError), match=told):
        checked_log(store, checkpoint, pipeline, "local[2]")


def test_looking_at_a_decision_log_makes_none(tmp_path: Path):
    checked_log(None, f"file:{tmp_path}/checkpoint", "p", "local[2]")
    with pytest.raises(ConfigurationError, match="hdfs://, which cannot hold"):
        checked_log(None, "hdfs://nn/checkpoint", "p", "yarn")
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_has_moved_is_refused_before_there_is_input(tmp_path: Path):
    writer = LogWriter(DirectoryStore(tmp_path), "p", policy())
    writer.start()
    writer.move("elsewhere")
    with pytest.raises(EpochConflictError, match="moved the pipeline to elsewhere"):
        checked_log(str(tmp_path), "", "p", "local[2]")


def test_an_epoch_that_fails_is_one_line_of_the_log(query: Query, caplog: pytest.LogCaptureFixture):
    with pytest.raises(OSError, match="lost"):
        query.run(0, fails=0)
    [line] = [record for record in caplog.records if record.name == "onceward.spark"]
    assert (line.levelname, line.getMessage()) == (
        "ERROR",
        "epoch 0 of pipeline p failed: OSError: the executor is lost",
    )
    assert (line.pipeline, line.epoch) == ("p", 0)  # type: ignore[attr-defined]


def test_an_epoch_that_fails_leaves_a_note_beside_the_log(query: Query, tmp_path: Path):
    store = DirectoryStore(tmp_path / "log")
    handler = query.driver(store=store)
    query.run(0, handler=handler)
    with pytest.raises(OSError, match="lost"):
        query.run(1, handler=handler, fails=0)
    newest = notes(store.path, 10)[-1]
    assert newest == FailureNote(at=newest.at, epoch=1, error="OSError: the executor is lost")


_WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "sink.py", line 1, in write
    raise KafkaError("no broker")
onceward.core.errors.KafkaError: no broker

JVM stacktrace:
org.apache.spark.SparkException"""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (RuntimeError(_WORKER), "KafkaError: no broker"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(error: BaseException, told: str):
    assert reason(error) == told


def test_a_sink_that_cannot_be_sent_to_the_executors_is_refused_with_its_member():
    sink = TargetSink(name="a")
    check_pickles(sink)
    sink.claim_error = Unpicklable()
    told = r"sink a cannot be sent to the executors \(holds a socket: member claim_error\). A sink holds config"
    with pytest.raises(ConfigurationError, match=told):
        check_pickles(sink)


class Unpicklable(Exception):  # noqa: N818 - it stands for a connection
    def __reduce__(self) -> Any:
        raise TypeError("holds a socket")


def test_the_writer_refuses_what_would_remove_onceward_from_the_query():
    class Writer:
        def format(self, source: str) -> None:
            raise AssertionError(source)

        def trigger(self) -> str:
            return "as before"

    writer = Writer()
    refuse_other_targets(writer)
    for call in (
        lambda: writer.format("console"),
        lambda: writer.foreachBatch(print),  # type: ignore[attr-defined]
        lambda: writer.foreach(print),  # type: ignore[attr-defined]
        lambda: writer.toTable("t"),  # type: ignore[attr-defined]
    ):
        with pytest.raises(ConfigurationError, match="would replace what exactly_once has set up"):
            call()
    assert writer.trigger() == "as before"


@pytest.mark.parametrize("how", ["handed over", "stopped", "failed", "fenced"])
def test_a_query_that_ended_is_started_again_in_the_same_program(
    query: Query, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The same function of foreachBatch, and nothing of the run before."""
    monkeypatch.setattr("onceward.connectors.spark.write.handler._ROUND", (0.02, 5.0))
    streams = query.spark.streams
    monkeypatch.setattr(streams, "active", [active(query)], raising=False)
    monkeypatch.setattr(streams, "get", lambda _, before=streams.get: _and(before(_), active(query)))
    for number in range(1, 4):
        query.spark.run = f"run-{number}"
        streams.active[:] = [active(query)]
        query.handler.watch(query.spark.query, query.spark.run, None)
        query.run(2 * number - 2)
        query.run(2 * number - 1)
        kept = query.handler._this.keeper
        newer = LogWriter(query.store, "p", policy())
        if how == "handed over":
            assert run_steps(Successor(query.store, 30.0).take(newer.start))
        elif how == "failed":
            with pytest.raises(OSError, match="lost"):
                query.run(2 * number, fails=0)
        elif how == "fenced":
            newer.start()
            with pytest.raises(FencedError):
                query.run(2 * number)
        query.spark.run = f"run-{number + 1}"
        streams.active[:] = [active(query)]  # at once
        until = time.monotonic() + 10
        while threads_of(kept) and time.monotonic() < until:
            time.sleep(0.01)
        assert not threads_of(kept)
    streams.active.clear()
    assert query.shown() == [0, 1, 2, 3, 4, 5]


def test_only_the_run_that_was_handed_over_is_stopped() -> None:
    stopped: list[str] = []
    streams = SimpleNamespace(get=lambda _: SimpleNamespace(id="q", runId="new", stop=lambda: stopped.append("new")))
    conf = SimpleNamespace(getConf=dict)
    session = ClassicSession(SimpleNamespace(streams=streams, sparkContext=conf))  # type: ignore[arg-type]
    session.stop("q", "old")
    assert not stopped
    session.stop("q", "new")
    assert stopped == ["new"]


def _and(stream: Any, more: Any) -> Any:
    return SimpleNamespace(**{**vars(more), **vars(stream)})


def threads_of(*owners: Any) -> list[threading.Thread]:
    threads = [owner._thread for owner in owners]
    return [one for one in threads if one is not None and one.is_alive()]


def test_what_a_run_keeps_ends_with_it(query: Query) -> None:
    """What is kept is the program's: the session, where the log is, a lock, and what `prepare` says before a run."""
    query.run(0)
    used, new = query.handler, query.driver()
    used._note_size(7.0)
    before = dict(vars(used))
    for handler in (used, new):
        handler._enter(query.spark.query, "run-2")
    kept = {name for name, value in vars(used).items() if name.startswith("_") and before[name] is value}
    state = {name for name in kept if before[name] != vars(new)[name]}
    assert state == {"_session", "_between_runs", "_is_validated"}
    assert used.run.coordinator is None


def test_a_run_that_took_the_pipeline_over_is_one_run_in_each_start(query: Query) -> None:
    for number in range(1, 3):
        query.spark.run = f"run-{number}"
        taken = query.handler._next = query.handler._new_run()
        taken.take_over(0.0, store=query.store)
        start = taken.start
        query.run(number - 1)
        assert query.handler.run is taken
        assert taken.start != start
        assert query.handler._next is None


def test_what_a_late_attempt_prepares_is_swept_while_the_query_is_idle(
    query: Query, leftover: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the next epoch it would hold locks, and readers back."""
    monkeypatch.setattr(query.spark.streams, "active", [active(query)], raising=False)
    handler = query.handler = query.driver(policy=policy(sweep_every=0.05))
    query.run(0)
    leftover(0)
    until = time.monotonic() + 10
    while query.target.prepared and time.monotonic() < until:
        time.sleep(0.01)
    assert not query.target.prepared
    with handler.run.turn(1):  # an epoch is under way
        leftover(0)
        time.sleep(0.3)
        assert query.target.prepared
    query.spark.streams.active.clear()
    until = time.monotonic() + 10
    while threads_of(handler._this.keeper) and time.monotonic() < until:
        time.sleep(0.01)
    assert not threads_of(handler._this.keeper)


def test_a_driver_that_onceward_run_starts_again_does_not_drive_out_a_newer_run(
    query: Query, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv(RUN_VARIABLE, str(folder))
    query.run(0)
    query.run(1, handler=query.driver())  # the next process of the same run
    monkeypatch.delenv(RUN_VARIABLE)
    newer = query.driver()
    query.run(2, handler=newer)
    monkeypatch.setenv(RUN_VARIABLE, str(folder))
    with pytest.raises(FencedError, match="is of another run, which has started since"):
        query.run(3, handler=query.driver())
    assert (folder / OVERTAKEN).read_text().startswith("pipeline p: entry ")
    query.run(3, handler=newer)
    assert query.shown() == [0, 1, 2, 3]
