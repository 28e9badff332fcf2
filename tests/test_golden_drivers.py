"""Each way to run a pipeline leaves the log entries, events and notes that it left before, on fixed inputs.

After a change that is meant: `pytest tests/test_golden_drivers.py --update-golden`, and read the difference.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from onceward import FileSink, Pipeline, SequenceSource
from onceward.connectors.spark.formats.writers import BatchWriter
from onceward.connectors.spark.session.options import FormatOptions
from onceward.connectors.spark.write import foreach_batch
from onceward.connectors.spark.write.foreach_batch import ForeachBatch
from onceward.core import RestartStrategy
from onceward.core.contract import events
from onceward.core.contract.policy import CommitPolicy
from onceward.core.errors import OncewardError, RetryableSinkError
from onceward.core.log import DirectoryStore, LogWriter, read
from onceward.core.log.notes import notes

from .core_fakes import policy
from .formats_kit import Query as FormatQuery
from .golden_kit import compare
from .sink_kit import Target, TargetSink
from .spark_kit import Frame, Query, Session, batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.core.log import LogStore

GOLDEN = Path(__file__).parent / "golden_drivers"
WAITS = CommitPolicy.of("replay", 0.05, 0.05)


class Story:
    """What is told and written while a pipeline runs, as lines of text."""

    def __init__(self, store: LogStore) -> None:
        self.store, self.lines = store, list[str]()
        self._entries: set[int] = set()
        self._notes = 0

    def __call__(self, event: Any) -> None:
        epoch = getattr(event, "epoch", None)
        self._add("event", type(event).__name__, "" if epoch is None else f"epoch {epoch}")

    def _add(self, *words: object) -> None:
        line = " ".join(str(word) for word in words if word != "")
        if self.lines[-1:] != [line]:  # how often a commit is tried depends on the machine
            self.lines.append(line)

    def step(self, title: str, work: Callable[[], object]) -> None:
        """Do one step; write down the error that it raises, and what stands in log and notes after it."""
        self._add("#", title)
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a part of the story
            self._add("raised", type(error).__name__)
        for entry in read(self.store).entries:
            if entry.position not in self._entries:
                self._entries.add(entry.position)
                self._add("log", entry.position, type(entry).__name__, *_epoch_of(entry))
        assert isinstance(self.store, DirectoryStore)
        written = notes(self.store.path, 100)
        for note in written[self._notes :]:
            self._add("note", note.what, *_epoch_of(note), getattr(note, "error", "")[:60])
        self._notes = len(written)


def _epoch_of(one: Any) -> list[str]:
    epoch = getattr(one, "epoch", None)
    return [] if epoch is None else [f"epoch {epoch}"]


@pytest.fixture
def tell(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Story]:
    story = Story(DirectoryStore(tmp_path / "log"))
    monkeypatch.setattr(events, "_observers", [story])
    yield story
    name = request.node.name.removeprefix("test_")
    compare(GOLDEN / f"{name}.txt", "\n".join(story.lines) + "\n", request)


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[], object]]:
    """Return a function that makes a method of sinks fail until what it returns is called."""

    def break_(method: str, kind: type = TargetSink) -> Callable[[], object]:
        def fail(*_: Any) -> None:
            raise RetryableSinkError("the target is away", sink="target")

        kept = getattr(kind, method)
        monkeypatch.setattr(kind, method, fail)
        return lambda: monkeypatch.setattr(kind, method, kept)

    return break_


def test_exactly_once(tell: Story, tmp_path: Path, breaks: Any) -> None:
    query = Query(tmp_path)
    changed: Any = query
    changed.store = tell.store
    driver = query.driver(policy=WAITS)
    tell.step("two epochs", lambda: [query.run(n, [n], [n + 1], handler=driver) for n in (0, 1)])
    tell.step("a task fails", lambda: query.run(2, [1], [2], handler=driver, fails=1))
    tell.step("the same epoch again, in the same run", lambda: query.run(2, handler=driver))
    mend = breaks("commit")
    tell.step("a commit is not answered", lambda: query.run(3, handler=driver))
    mend()
    query.spark.run = "run-2"
    tell.step("the next run finds it decided", lambda: query.run(3, handler=driver))
    other = query.driver(policy=policy())
    tell.step("another driver writes the next epoch", lambda: query.run(4, handler=other))
    tell.step("the fenced driver goes on", lambda: query.run(4, handler=driver))
    mend = breaks("lingering")
    fresh = query.driver(policy=policy())
    tell.step("a start whose target is away", lambda: query.run(5, handler=fresh))
    mend()
    tell.step("a micro-batch that was left out", lambda: query.run(9, handler=fresh))
    assert query.shown() == [0, 1, 1, 2, 2, 3, 4]


class Batch(Frame):
    """A micro-batch that knows its session."""

    dtypes = (("n", "bigint"),)
    schema = StructType([StructField("n", LongType())])

    def __init__(self, session: Any, *partitions: list[int]) -> None:
        super().__init__(*partitions)
        self.sparkSession = session


def test_foreach_batch(tell: Story, tmp_path: Path, breaks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "query_session": lambda session, _: (session, None),
        "warn_of_python": lambda _: None,
        "plan_only_writes": lambda *_: False,
        "nodes": lambda _: [],
        "plan_keeps_state": lambda _: False,
        "sources_in": lambda _: [],
    }.items():
        monkeypatch.setattr(foreach_batch, name, value)
    monkeypatch.setattr(Session, "_jvm", None, raising=False)
    query = Query(tmp_path)
    session: Any = query.spark
    session.streams.active = []
    sink = TargetSink(query.key)
    made = [ForeachBatch(sink, pipeline="p", store=tell.store, commit_timeout=0.05, commit_backoff=0.05)]

    def run(number: int, *, fails: bool = False) -> None:
        query.checkpoint.plan(number)
        batch: Any = Batch(session, [number])
        with made[0].epoch(batch, number) as epoch:
            epoch.write(batch, sink)
            if fails:
                raise ValueError("the function fails")

    tell.step("two epochs", lambda: [run(0), run(1)])
    tell.step("the function fails", lambda: run(2, fails=True))
    mend = breaks("pre_commit")
    tell.step("a task fails", lambda: run(2))
    mend()
    tell.step("the same epoch again", lambda: run(2))
    mend = breaks("commit")
    tell.step("a commit is not answered", lambda: run(3))
    mend()
    session.run = "run-2"
    tell.step("the next run finds it decided", lambda: run(3))
    assert query.shown() == [0, 1, 2, 3]


def test_a_stream_through_a_format(tell: Story, tmp_path: Path, breaks: Any) -> None:
    query = FormatQuery(tmp_path)
    query.options["commitTimeout"] = "0.05"
    tell.step("two epochs", lambda: [query.run(0), query.run(1)])
    query.checkpoint.plan(2)
    mend = breaks("pre_commit")
    tell.step("a task fails", lambda: query.write(query.begin(), 2, [1]))
    mend()
    tell.step("Spark aborts", lambda: query.abort([None], 2))
    written: list[Any] = []

    def commit() -> None:
        written.extend(query.write(query.begin(), 2, [20]))
        query.commit(written, 2)

    mend = breaks("commit")
    tell.step("a commit is not answered", commit)
    tell.step("Spark aborts", lambda: query.abort(written, 2))
    mend()
    tell.step("the next run finds it decided", lambda: query.run(2))
    query.checkpoint.plan(3)
    mend = breaks("lingering")
    tell.step("a start whose target is away", query.begin)
    mend()
    old = query.write(query.begin(), 3, [30])
    tell.step("another driver writes the epoch", lambda: query.run(3))
    tell.step("the fenced one commits", lambda: query.commit(old, 3))
    tell.step("Spark aborts", lambda: query.abort(old, 3))
    assert query.shown() == [0, 1, 10, 11, 20, 30, 31]


def test_a_batch_through_a_format(tell: Story, tmp_path: Path, breaks: Any) -> None:
    def run(*, away: str = "", key: str = "monday") -> None:
        options = {"pipeline": "days", "runKey": key, "store": str(tmp_path / "logs"), "commitTimeout": "0.05"}
        pickled = pickle.dumps(BatchWriter(FileSink("files", tmp_path / "out"), FormatOptions.parse(options)))
        written: list[Any] = []
        mend = breaks(away, FileSink) if away else lambda: None
        try:
            written.append(pickle.loads(pickled).write(batches([1])))
            pickle.loads(pickled).commit(written)
        except OncewardError:
            pickle.loads(pickled).abort(written or [None])
            raise
        finally:
            mend()

    def located(work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            [tell.store.path] = (tmp_path / "logs").iterdir()  # type: ignore[attr-defined]

    tell.step("a task fails", lambda: located(lambda: run(away="pre_commit")))
    tell.step("a commit is not answered", lambda: run(away="commit_many"))
    tell.step("the same run key finds it decided", run)
    tell.step("and once more", run)


def test_the_engine(tell: Story, breaks: Any) -> None:
    target, rows = Target(), [{"n": n} for n in range(4)]

    def run() -> None:
        pipeline = Pipeline("p", store=tell.store, restart=RestartStrategy.none())
        pipeline.source(SequenceSource(rows, batch_rows=2), uid="numbers").sink(TargetSink(target))
        pipeline.run()

    tell.step("a whole run", run)
    rows += [{"n": 4}]
    mend = breaks("pre_commit", TargetSink)
    tell.step("a subtask fails", run)
    mend()
    tell.step("the next run", run)
    LogWriter(tell.store, "p", policy()).start()
    tell.step("a run after another writer", run)
    assert sorted(row["n"] for row in target.rows) == [0, 1, 2, 3, 4]
