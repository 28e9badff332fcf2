"""One pipeline of one conformance case, and what the suite needs to know of a sink."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence  # noqa: TC003 - a dataclass field's type
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeVar

import pyarrow as pa
import pytest

from onceward.core import CheckpointConfig, Pipeline, RestartStrategy
from onceward.core.checkpoint import Backoff, CommitPolicy, Coordinator
from onceward.core.checkpoint.subtask import DirectlyWritten, SubtaskEpoch
from onceward.core.contract.names import Scope
from onceward.core.contract.transaction import (
    AbortOutcome,
    AbortStatus,
    Acknowledgement,
    CommitOutcome,
    CommitStatus,
    Committable,
)
from onceward.core.errors import OncewardError
from onceward.core.kit.crash_points import Step, hooked
from onceward.core.log import EpochInput, LogStore, MemoryStore
from onceward.sinks import DirectSink, Guarantee, Sink, TwoPhaseCommitSink
from onceward.sources import SequenceSource

from .faults import Faults, delay
from .plugin import NOT_APPLICABLE
from .proxy import Proxy  # noqa: TC001 - a dataclass field's type
from .watch import SinkWatch
from .wrappers import FaultySink, FaultySource

ROWS: Final = 40
RUN_SECONDS: Final = 40.0
STOP_SECONDS: Final = 5.0
ALWAYS: Final = frozenset(
    {
        Step.START_AFTER,
        Step.BEGIN_BEFORE,
        Step.WRITE_AFTER,
        Step.PRE_COMMIT_BEFORE,
        Step.PRE_COMMIT_AFTER,
        Step.ACKNOWLEDGED,
        Step.DECIDE_BEFORE,
        Step.DECIDE_AFTER,
        Step.COMMIT_BEFORE,
        Step.COMMIT_AFTER,
        Step.COMPLETE_BEFORE,
        Step.COMPLETE_AFTER,
    }
)
"""Steps that a run with any sink passes."""
GOOD: Final = (CommitStatus.COMMITTED, CommitStatus.ALREADY_COMMITTED)
_AGAIN: Final = Backoff(first=0.01, most=0.2, attempts=20)
T = TypeVar("T")


def not_applicable(reason: str) -> NoReturn:
    """Skip this case, which does not apply to this sink; the plugin reports it by name and reason at the end."""
    pytest.skip(f"{NOT_APPLICABLE}{reason}")


def numbered(numbers: list[int]) -> pa.RecordBatch:
    """Make rows with a number and a text: n: int64, text: string."""
    return pa.RecordBatch.from_pydict({"n": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]})


@dataclass(frozen=True)
class SinkUnderTest:
    """A sink and the functions that the conformance suite needs to test it.

    Attributes:
        make: A new object of the sink, always with the same name and target. A sink without transactions (DirectSink,
            IdempotentSink) gets the cases that do not need them.
        read: The numbers of all rows that are visible now to a reader with the strictest isolation.
        rows: Rows with these numbers, in columns that the sink takes. Default: `n: int64, text: string`.
        steps: Durable steps to fail at; default: all.
        kill: Also run the sink in processes that die by SIGKILL at each step and call, and interrupt its commits before
            each of their lines: its class must be importable by name, and its target within reach of another process.
        restart: Restarts the target, and returns when it answers again.
        hasty: The same sink, with a transaction_timeout of a few seconds.
        refused: Rows that `validate` lets pass, and that the target refuses when they are written or prepared.
        misfit: A schema that the target cannot take.
        remembers: True if the target can tell how far a decision log had come when it last committed; Kafka cannot.
        secret: A password that the sink is given; nothing may show it.
        take_away: Removes all visible rows from the target, as its readers or its retention may; what the sink itself
            remembers of its commits stays. Needed where `commit` answers LOST or FENCED.
        delete_prepared: Deletes the prepared rows of this transaction in the target, behind the sink's back.
        read_rows: All rows that are visible now, as `read` sees them, with all columns, in the types of Arrow's
            `to_pylist`.
        columns: Columns beside `n`, of types that the sink stores unchanged: the suite makes rows of values that are
            easily lost. Default: `text: string` if `rows` is left out, too.
        keyed: True if the target keeps one row for each value of `n`.
        ordered: True if `read` returns the rows of a subtask in the order in which they were written.
        proxy: The sink reaches its target through it (`onceward.testing.proxy`), so that the suite can refuse
            connections, cut answers, delay and lose them.
        break_target: Makes the target fail each request; with `mend_target`, for targets that no proxy can cut off.
        mend_target: Makes the target work again.
        time_limit: Seconds that a case may take.
    """

    make: Callable[[], TwoPhaseCommitSink[Any] | DirectSink[Any]]
    read: Callable[[], list[int]]
    rows: Callable[[list[int]], pa.RecordBatch] = numbered
    steps: tuple[Step, ...] = tuple(Step)
    kill: bool = False
    restart: Callable[[], None] | None = None
    hasty: Callable[[], TwoPhaseCommitSink[Any]] | None = None
    refused: Callable[[list[int]], pa.RecordBatch] | None = None
    misfit: pa.Schema | None = None
    remembers: bool = True
    secret: str = ""
    take_away: Callable[[], None] | None = None
    delete_prepared: Callable[[Committable], None] | None = None
    read_rows: Callable[[], list[dict[str, Any]]] | None = None
    columns: pa.Schema | None = None
    keyed: bool = False
    ordered: bool = False
    proxy: Proxy | None = None
    break_target: Callable[[], None] | None = None
    mend_target: Callable[[], None] | None = None
    time_limit: float = 120.0


def is_direct(sink: Sink) -> bool:
    """Return whether a sink is written without transactions."""
    return isinstance(sink, DirectSink | DirectlyWritten)


def own(sink: Any) -> Any:
    """Return the author's sink."""
    return sink.sink if isinstance(sink, DirectlyWritten) else sink


class SinkCase:
    """One pipeline of one test.

    Args:
        sink_under_test: Sink that is tested, with the functions that the suite needs.
        pipeline: Its name; default: a new one.
        store: Store of its decision log; default: a new one in memory.
    """

    def __init__(
        self, sink_under_test: SinkUnderTest, pipeline: str | None = None, store: LogStore | None = None
    ) -> None:
        self.sink_under_test = sink_under_test
        self.sink = self.make()
        self.pipeline = pipeline or f"conformance-{secrets.token_hex(4)}"
        self.store: LogStore = store or MemoryStore()
        self.first = secrets.randbelow(1 << 40) * 1000
        self.coordinator = self.start()

    def make(self) -> TwoPhaseCommitSink[Any]:
        """Make a new object of the sink; one without transactions is driven like one that has some."""
        sink = self.sink_under_test.make()
        return DirectlyWritten(sink) if isinstance(sink, DirectSink) else sink

    def start(self, sink: TwoPhaseCommitSink[Any] | None = None) -> Coordinator:
        """Start a new writer: START, finish what is decided, sweep."""
        policy = CommitPolicy(commits=Backoff(first=0.01, most=0.2, attempts=100))
        coordinator = Coordinator(self.pipeline, self.store, [sink or self.make()], policy)
        coordinator.open()
        self.coordinator = coordinator
        return coordinator

    @property
    def scope(self) -> Scope:
        """Whose transactions these are."""
        return Scope(self.pipeline, self.sink.name, self.coordinator.writer.token.log)

    def numbers(self, *epochs: int) -> list[int]:
        """Return the numbers of epochs, three of each, that no other test writes; default: of epoch 0."""
        return [self.first + epoch * 100 + n for epoch in epochs or (0,) for n in range(3)]

    def rows(self, epoch: int = 0) -> pa.RecordBatch:
        """Return rows with the numbers of an epoch."""
        return self.sink_under_test.rows(self.numbers(epoch))

    def begin(self, epoch: int = 0, *, subtask: int = 0, name: str | None = None) -> SubtaskEpoch:
        """Begin an attempt of a subtask; with a name, of a sink that had another one."""
        return SubtaskEpoch(self.sink, self.coordinator.context(name or self.sink.name, epoch, subtask=subtask))

    def write(
        self, epoch: int = 0, numbers: list[int] | None = None, *, subtask: int = 0, name: str | None = None
    ) -> SubtaskEpoch:
        """Begin an attempt, and write rows."""
        writing = self.begin(epoch, subtask=subtask, name=name)
        batch = self.rows(epoch) if numbers is None else self.sink_under_test.rows(numbers)
        self.sink.validate(batch.schema)
        writing.write(batch)
        return writing

    def prepare(
        self, epoch: int = 0, numbers: list[int] | None = None, *, subtask: int = 0, name: str | None = None
    ) -> Committable:
        """Write and pre-commit."""
        writing = self.write(epoch, numbers, subtask=subtask, name=name)
        committable = writing.pre_commit()
        assert committable is not None, "pre_commit of a transaction with rows gave no committable"
        assert committable.rows == writing.written.rows, "a committable says how many rows were written"
        return committable

    def prepare_in_pieces(self, epoch: int, numbers: list[int]) -> Committable:
        """Write each row as a batch of its own, and pre-commit: so a commit has as many steps as the sink can make."""
        writing = self.begin(epoch)
        for number in numbers:
            writing.write(self.sink_under_test.rows([number]))
        committable = writing.pre_commit()
        assert committable is not None
        return committable

    def finish(self, epoch: int, *committables: Committable) -> None:
        """Decide and commit an epoch."""
        about = EpochInput(query="conformance", start=epoch - 1 if epoch else None, end=epoch)
        acks = [
            Acknowledgement(epoch=epoch, subtask=n, attempt=0, sinks=(self.sink.name,), committables=(c,))
            for n, c in enumerate(committables)
        ]
        self.coordinator.admit(epoch, about)
        self.coordinator.commit(epoch, acks, about)

    def commit_many(self, committables: Sequence[Committable]) -> Sequence[CommitOutcome]:
        """Commit with a new sink, and repeat it while it answers "later", as a coordinator does."""
        return _asked(
            lambda: self.make().commit_many(committables),
            lambda outcomes: any(outcome.status is CommitStatus.RETRY_LATER for outcome in outcomes),
        )

    def commit(self, committable: Committable) -> CommitOutcome:
        """Commit one transaction with a new sink, and repeat it while it answers "later"."""
        return self.commit_many([committable])[0]

    def abort(self, committable: Committable) -> AbortOutcome:
        """Abort with a new sink, and repeat it while it answers "later"."""
        return _asked(
            lambda: self.make().abort(committable),
            lambda outcome: outcome.status is AbortStatus.RETRY_LATER,
        )

    def lingering(self) -> list[Committable]:
        """Return the transactions that a new sink finds under this pipeline's name."""
        return list(self.make().lingering(self.scope))

    def visible(self) -> Counter[int]:
        """Count this test's numbers that are visible."""
        return Counter(n for n in self.sink_under_test.read() if self.first <= n < self.first + 1000)

    def assert_visible(self, numbers: list[int]) -> None:
        """Assert that the rows with these numbers are visible, each once, and no others."""
        assert self.visible() == Counter(numbers)

    def assert_as_promised(self, numbers: list[int]) -> None:
        """Assert that all of these are visible, each once if the sink promises that."""
        seen = Counter(n for n in self.sink_under_test.read() if min(numbers) <= n <= max(numbers))
        missing = Counter(numbers) - seen
        assert not missing, f"{missing.total()} rows are missing, among them {sorted(missing)[:5]}"
        if self.sink.guarantee is not Guarantee.AT_LEAST_ONCE:
            more = seen - Counter(numbers)
            assert not more, f"{more.total()} rows are there more than once, among them {sorted(more)[:5]}"

    def run(
        self,
        steps: Sequence[Step],
        *,
        faults: Faults | None = None,
        store: LogStore | None = None,
        pause: float = 0,
    ) -> None:
        """Run the sink in an embedded pipeline that fails at each of these steps once.

        Args:
            steps: Steps at which the pipeline fails.
            faults: Faults of the sink's calls.
            store: Store of the decision log.
            pause: Seconds before each batch, so that there are several epochs.
        """
        left, lock = list(steps), threading.Lock()

        def fails(step: Step) -> None:
            with lock:
                if step not in left:
                    return
                left.remove(step)
            raise ConnectionError(f"injected failure at {step}")

        numbers = list(range(self.first, self.first + ROWS))
        rows = SequenceSource(pa.Table.from_batches([self.sink_under_test.rows(numbers)]), units=2, batch_rows=4)
        watch = SinkWatch()
        pipeline = fast_pipeline(self.pipeline + "-run", store, watch.restarts())
        slow = Faults(delay("piece", pause, times=1000))
        sink = FaultySink(FaultySink(self.sink, watch), faults or Faults())
        pipeline.source(FaultySource(rows, slow), parallelism=2).sink(sink, parallelism=2)
        with hooked(fails):
            ended = self._wait(pipeline, watch)
        assert ended, f"it did not come to its end; steps that were not reached: {left}"
        missed = [step for step in left if step in ALWAYS]
        assert not missed, f"these steps were never reached, so nothing was shown of them: {missed}"
        self.assert_as_promised(numbers)

    @staticmethod
    def _wait(pipeline: Pipeline, watch: SinkWatch) -> bool:
        """Run to the end, or until the watch or the time ends it; return whether the run has come to its end."""
        deadline, ended = time.monotonic() + RUN_SECONDS, False
        try:
            pipeline.start()
            while not ended and watch.bug is None and time.monotonic() < deadline:
                ended = pipeline.wait(0.05)
        except OncewardError:
            watch.check()
            raise
        if not ended:
            pipeline.stop()
            pipeline.wait(STOP_SECONDS)
        watch.check()
        return ended


def fast_pipeline(name: str, store: LogStore | None = None, restart: RestartStrategy | None = None) -> Pipeline:
    """Make an embedded pipeline with checkpoints all the time, which restarts at once after any failure."""
    return Pipeline(
        name,
        store=store or MemoryStore(),
        checkpointing=CheckpointConfig(interval=0.02, tolerable_failures=1000),
        restart=restart or RestartStrategy.fixed_delay(attempts=1000, delay=0),
    )


def _asked(ask: Callable[[], T], is_later: Callable[[T], bool]) -> T:
    attempt = 0
    while is_later(answer := ask()) and _AGAIN.pause(attempt):
        attempt += 1
    return answer
