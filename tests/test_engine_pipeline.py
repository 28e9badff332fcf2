"""The embedded engine end to end, in one process: the worked examples, failures, restarts, savepoints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from onceward.core import (
    CheckpointConfig,
    FileBackend,
    JobState,
    ListState,
    MapState,
    MemoryBackend,
    OperatorState,
    ProcessFunction,
    ReducingState,
    RestartStrategy,
    RocksDBBackend,
)
from onceward.core.contract.policy import CommitPolicy
from onceward.core.errors import (
    CheckpointFailedError,
    ConfigurationError,
    EpochConflictError,
    FencedError,
    OncewardWarning,
    OperatorError,
    SchemaError,
    StateDamagedError,
)
from onceward.core.log import MemoryStore
from onceward.sources import SequenceSource

from .engine_kit import RunningSum, Slowly, decided, numbers, pipeline, reach, sums, values
from .sink_kit import Target, TargetSink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from onceward.core.contract.transaction import CommitOutcome, Committable

ROWS = numbers(6000, keys=7)


class FailsAt(RunningSum):
    """Fails when it meets these numbers, once each."""

    def __init__(self, *numbers_: int) -> None:
        self.left = Left(numbers_)

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        if self.left.take(record["n"]):
            raise ValueError("told to fail")
        yield from super().process(record, context)


class Left:
    """What is left to do, shared by all copies of a function."""

    def __init__(self, items: Any) -> None:
        self.items = set(items)
        self.lock = threading.Lock()

    def take(self, item: int) -> bool:
        with self.lock:
            found = item in self.items
            self.items.discard(item)
            return found

    def __deepcopy__(self, memo: Any) -> Left:
        return self


def check_exact(target: Target, rows: list[dict[str, Any]]) -> None:
    """Each row's effect shows once, with the right sum, and nothing is left prepared."""
    assert target.counts("n") == Counter({row["n"]: 1 for row in rows})
    assert {row["n"]: row["sum"] for row in target.rows} == sums(rows)
    assert target.prepared == {}


@pytest.fixture(params=["memory", "files", "rocksdb", "rocksdb in full", "files in objects", "rocksdb in objects"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Any]:
    return {
        "memory": MemoryBackend,
        "files": lambda: FileBackend(tmp_path / "checkpoints"),
        "rocksdb": lambda: RocksDBBackend(tmp_path / "checkpoints"),
        "rocksdb in full": lambda: RocksDBBackend(tmp_path / "checkpoints", incremental=False),
        "files in objects": lambda: FileBackend(f"memory://{tmp_path}"),
        "rocksdb in objects": lambda: RocksDBBackend(f"memory://{tmp_path}"),
    }[request.param]


def totals(target: Target, source: Any, function: Any = None, **options: Any) -> Any:
    p = pipeline(**options)
    stream = p.source(source, uid="numbers").key_by("k")
    stream.process(function or RunningSum(), uid="sum", parallelism=options.get("parallelism", 3)).sink(
        TargetSink(target)
    )
    return p


def test_a_bounded_pipeline_commits_everything_once_and_ends(backend: Callable[[], Any]):
    target = Target()
    p = totals(target, SequenceSource(ROWS, batch_rows=100), backend=backend())
    p.run()
    check_exact(target, ROWS)
    assert p.checkpoints[-1].kind == "final"


@pytest.mark.slow
def test_failures_of_a_function_duplicate_and_lose_nothing(backend: Callable[[], Any]):
    target = Target()
    failing = FailsAt(500, 2000, 2001, 5999)
    p = totals(target, SequenceSource(ROWS, batch_rows=100), failing, backend=backend())
    job = p.start()
    p.wait(60)
    assert 3 <= job.restarts <= 4  # two may fail at once
    check_exact(target, ROWS)


@pytest.mark.slow
def test_a_new_process_goes_on_where_the_old_one_was_stopped(backend: Callable[[], Any]):
    target, store = Target(), MemoryStore()
    source = Slowly(ROWS, batch_rows=100)
    first = totals(target, source, store=store, backend=backend())
    source.let(30)
    job = first.start()
    while not target.committed:
        assert not job.wait(0.01)
    source.let(1)
    first.stop()
    assert 0 < len(target.rows) < len(ROWS)
    for parallelism in (2, 5):
        again = totals(
            target, SequenceSource(ROWS, batch_rows=100), store=store, backend=backend(), parallelism=parallelism
        )
        again.run()
    check_exact(target, ROWS)


def test_a_keyed_running_sum_goes_back_to_the_barrier_and_writes_each_result_once():
    """A worked example: b2 b3 c1 | barrier | a2 a2 c2, and a failure after the end."""
    rows = [
        {"n": n, "k": k, "v": v}
        for n, (k, v) in enumerate([("b", 2), ("b", 3), ("c", 1), ("a", 2), ("a", 2), ("c", 2)])
    ]
    target, store = Target(), MemoryStore()
    source = Slowly(rows, batch_rows=1)
    p = totals(target, source, FailsAt(5), store=store, checkpointing=CheckpointConfig(), parallelism=3)
    source.let(3)
    job = p.start()
    while job.state is not JobState.RUNNING or source.taken < 3:
        assert not job.wait(0.01)
    job.checkpoint(timeout=10)
    assert values(decided(store), "sum", "total") == {"b": 5, "c": 1}  # and a is 0
    assert next(state.position for state in decided(store).operators["numbers"].subtasks) == {"0": 3}
    assert target.counts("n") == Counter([0, 1, 2])
    source.let(100)
    p.wait(30)
    assert job.restarts == 1
    assert {row["k"]: row["sum"] for row in sorted(target.rows, key=lambda row: row["n"])} == {"a": 4, "b": 5, "c": 3}
    check_exact(target, rows)


def test_59_stopping_with_a_savepoint_commits_what_came_before(backend: Callable[[], Any], tmp_path: Path):
    target, store = Target(), MemoryStore()
    source = Slowly(ROWS, batch_rows=100)
    p = totals(target, source, store=store, backend=backend(), checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 7)
    where = job.stop_with_savepoint(str(tmp_path / "save"), timeout=20)
    assert job.state is JobState.FINISHED
    assert target.counts("n") == Counter(range(700))
    again = totals(target, SequenceSource(ROWS, batch_rows=100), store=store, backend=backend(), parallelism=2)
    again.run()
    check_exact(target, ROWS)
    assert (Path(where) / "metadata").exists()


def test_59_an_intermediate_savepoint_commits_nothing(tmp_path: Path):
    target, store = Target(), MemoryStore()
    source = Slowly(ROWS, batch_rows=100)
    p = totals(target, source, store=store, checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 5)
    where = job.savepoint(str(tmp_path / "save"), timeout=20)
    assert target.rows == []
    source.let(100)
    p.wait(30)
    check_exact(target, ROWS)
    other = Target()
    fork = totals(other, SequenceSource(ROWS, batch_rows=100), name="fork", store=MemoryStore())
    fork.run(restore=where, import_from="p")
    assert other.counts("n") == Counter(range(500, 6000))
    assert {row["n"]: row["sum"] for row in other.rows} == {n: s for n, s in sums(ROWS).items() if n >= 500}


def test_an_intermediate_savepoint_is_not_restored_before_a_later_checkpoint_committed_its_rows(tmp_path: Path):
    target, store = Target(), MemoryStore()
    source = Slowly(ROWS, batch_rows=100)
    p = totals(target, source, store=store, checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 5)
    where = job.savepoint(str(tmp_path / "save"), timeout=20)
    source.let(1)
    p.stop()
    with pytest.raises(EpochConflictError, match="was never decided"):
        totals(target, SequenceSource(ROWS), store=store).run(restore=where, rewind="test")


def test_18_an_older_checkpoint_is_restored_only_on_purpose(tmp_path: Path):
    target, store = Target(), MemoryStore()
    source = Slowly(ROWS, batch_rows=100)
    p = totals(target, source, store=store, checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 5)
    where = job.savepoint(str(tmp_path / "save"), timeout=20)
    source.let(100)
    p.wait(30)
    with pytest.raises(EpochConflictError, match="Pass rewind"):
        totals(target, SequenceSource(ROWS), store=store).run(restore=where)
    totals(target, SequenceSource(ROWS, batch_rows=100), store=store).run(restore=where, rewind="a test of going back")
    assert target.counts("n") == Counter(range(6000)) + Counter(range(500, 6000))


def test_60_state_that_no_operator_claims_is_refused_unless_allowed():
    target, store = Target(), MemoryStore()
    totals(target, SequenceSource(ROWS), store=store).run()
    other = pipeline(store=store)
    other.source(SequenceSource(ROWS), uid="numbers").key_by("k").process(RunningSum(), uid="renamed").sink(
        TargetSink(target)
    )
    with pytest.raises(ConfigurationError, match=r"does not have: sum\. .*allow_non_restored_state"):
        other.run()
    other.run(allow_non_restored_state=True)
    check_exact(target, ROWS)


def test_the_number_of_key_groups_cannot_change_while_there_is_state():
    target, store = Target(), MemoryStore()
    totals(target, SequenceSource(ROWS), store=store).run()
    with pytest.raises(ConfigurationError, match="max_parallelism 128, the pipeline has 64"):
        totals(target, SequenceSource(ROWS), store=store, max_parallelism=64).run()


def test_61_of_two_runs_under_one_name_the_older_is_fenced():
    target, store = Target(), MemoryStore()
    source = Slowly(ROWS, batch_rows=100)
    old = totals(target, source, store=store)
    source.let(5)
    old.start()
    while source.taken < 5:
        assert not old.wait(0.01)
    totals(target, SequenceSource(ROWS, batch_rows=100), store=store).run()
    source.let(100)
    with pytest.raises(FencedError):
        old.wait(30)
    assert target.counts("n") == Counter(range(6000))
    totals(target, SequenceSource(ROWS, batch_rows=100), store=store).run()  # sweeps what the old one prepared late
    check_exact(target, ROWS)


@pytest.mark.parametrize("kind", ["files", "rocksdb"])
def test_a_checkpoint_damaged_on_disk_is_detected_named_and_not_replaced(tmp_path: Path, kind: str):
    """Every file: a byte flipped, the end cut off, or the file missing. SCENARIOS 56."""
    target, store = Target(), MemoryStore()
    backends = {"files": FileBackend, "rocksdb": RocksDBBackend}
    checkpoints = tmp_path / "checkpoints"
    totals(target, SequenceSource(ROWS), store=store, backend=backends[kind](checkpoints)).run()
    files = [path for path in checkpoints.rglob("*") if path.is_file() and path.name != "decided"]
    assert len(files) > 3
    for path in files:
        whole = path.read_bytes()
        for damage in damages(whole):
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage)
            with pytest.raises(StateDamagedError, match=path.name.replace("[", r"\[")):
                totals(
                    target,
                    SequenceSource(ROWS),
                    store=store,
                    backend=backends[kind](checkpoints),
                    restart=RestartStrategy.none(),
                ).run()
            path.write_bytes(whole)
    totals(target, SequenceSource(ROWS), store=store, backend=backends[kind](checkpoints)).run()
    check_exact(target, ROWS)


def damages(whole: bytes) -> Iterator[bytes | None]:
    """Some of the ways in which a file can be wrong."""
    for at in sorted({0, len(whole) // 3, len(whole) - 1} if whole else set()):
        yield whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    if whole:
        yield whole[:-1]
    yield None


def test_56_the_fallback_to_an_older_checkpoint_is_explicit_and_writes_again_what_came_since(tmp_path: Path):
    target, store = Target(), MemoryStore()
    source = Slowly(ROWS, batch_rows=100)
    config = CheckpointConfig(retained=2)
    p = totals(target, source, store=store, backend=FileBackend(tmp_path), checkpointing=config)
    job = p.start()
    for batches in (5, 5):
        taken = source.taken
        source.let(batches)
        while source.taken < taken + batches:
            assert not job.wait(0.01)
        newest = job.checkpoint(timeout=10)
    p.stop()
    older_folder, newest_folder = sorted((tmp_path / "p").rglob("chk-*"))
    assert newest_folder.name.startswith(f"chk-{newest}-")
    shutil.rmtree(newest_folder)
    again = {"store": store, "backend": FileBackend(tmp_path), "restart": RestartStrategy.none()}
    with pytest.raises(
        StateDamagedError,
        match=r"nothing was started\. Bring it back, or pass restore=<its new location>\. Or rewind on purpose",
    ):
        totals(target, SequenceSource(ROWS), **again).run()
    totals(target, SequenceSource(ROWS, batch_rows=100), **again).run(restore=str(older_folder), rewind="chk damaged")
    assert target.counts("n") == Counter(range(6000)) + Counter(range(500, 1000))


def test_54_the_commit_belongs_to_a_checkpoints_duration_and_the_minimum_pause_follows_it():
    now, slow = [0.0], 1000.0
    policy = CommitPolicy(monotonic=lambda: now[0] + time.monotonic())

    class Slow(TargetSink):
        def commit(self, committable: Committable) -> CommitOutcome:
            now[0] += slow
            return super().commit(committable)

    source = Slowly(ROWS, batch_rows=100)
    p = pipeline(checkpointing=CheckpointConfig(interval=0.01, min_pause=0.2))
    p.setup = p.setup._replace(policy=policy)
    p.source(source).sink(Slow(Target()))
    source.let(1)
    job = p.start()
    while len(job.checkpoints) < 2:
        assert not job.wait(0.01)
    p.stop()
    first, second = job.checkpoints[:2]
    assert first.duration >= slow
    assert second.triggered - (first.triggered + first.duration) >= 0.2


def test_a_failing_function_is_named_with_its_operator_subtask_and_record():
    p = totals(Target(), SequenceSource(ROWS), FailsAt(17), restart=RestartStrategy.none(), parallelism=1)
    with pytest.raises(OperatorError, match=r"operator sum, subtask 0: ValueError: told to fail; at \{'n': 17"):
        p.run()


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map"])
def test_a_failing_plain_function_is_named_too(kind: str):
    p = pipeline(restart=RestartStrategy.none())
    stream = p.source(SequenceSource(ROWS))
    getattr(stream, kind)(lambda record: record["nothing"], uid="mine").sink(TargetSink(Target()))
    with pytest.raises(OperatorError, match=r"operator mine, subtask 0: KeyError: 'nothing'; at \{'n': 0"):
        p.run()


def test_map_filter_flat_map_map_batches_and_union():
    target = Target()
    p = pipeline(parallelism=2)
    source = p.source(SequenceSource(ROWS, units=4))
    even = source.filter(lambda r: r["n"] % 2 == 0).map(lambda r: {"n": r["n"], "what": "even"})
    odd = source.filter(lambda r: r["n"] % 2).flat_map(lambda r: [{"n": r["n"], "what": w} for w in ("odd", "again")])
    duplicated = source.map_batches(lambda b: pa.RecordBatch.from_pydict({"n": b["n"], "what": ["batch"] * b.num_rows}))
    even.union(odd, duplicated).sink(TargetSink(target))
    p.run()
    assert target.counts("what") == {"even": 3000, "odd": 3000, "again": 3000, "batch": 6000}


class Passes(ProcessFunction):
    """Gives what it gets."""

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        yield record


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "Europe/Berlin"), pa.duration("ns")])
@pytest.mark.parametrize("how", ["map", "process", "key_by"])
def test_a_function_of_records_gets_no_time_that_python_would_cut(how: str, kind: pa.DataType):
    def run(nanoseconds: int) -> list[Any]:
        target = Target()
        times = pa.table({"n": [1], "t": pa.array([[nanoseconds]], pa.list_(kind))})
        p = pipeline(restart=RestartStrategy.none(), parallelism=2)
        stream = p.source(SequenceSource(times))
        if how == "map":
            stream = stream.map(lambda record: record)
        else:
            stream = stream.key_by("t" if how == "key_by" else "n").process(Passes())
        stream.sink(TargetSink(target))
        p.run()
        return [type(row["t"][0]).__module__ for row in target.rows]

    assert run(86_400_000_001_000) == ["datetime"]  # not pandas
    with pytest.raises(SchemaError, match=r"column 't' has a time with a fraction of a microsecond.*round it before"):
        run(1)


def test_a_sequence_has_the_fields_of_all_its_rows():
    target = Target()
    p = pipeline()
    p.source(SequenceSource([{"n": 1}, {"n": 2, "late": "x"}, {}])).sink(TargetSink(target))
    p.run()
    assert target.rows == [{"n": 1, "late": None}, {"n": 2, "late": "x"}, {"n": None, "late": None}]


def test_a_filter_keeps_nanoseconds():
    target = Target()
    p = pipeline()
    times = pa.table({"t": pa.array([1, None], pa.timestamp("ns"))})
    kept = p.source(SequenceSource(times)).filter(lambda record: record["t"] is not None)
    kept.map_batches(lambda batch: pa.record_batch({"n": batch["t"].cast(pa.int64())})).sink(TargetSink(target))
    p.run()
    assert target.rows == [{"n": 1}]


def test_filter_by_batches_drops_rows_for_which_the_mask_is_null():
    target = Target()
    p = pipeline(parallelism=2)
    rows = [{"n": n, "v": None if n % 5 == 0 else n} for n in range(100)]
    source = p.source(SequenceSource(rows, units=2, batch_rows=7))
    by_expression = source.filter(pc.field("v") > 50)
    by_mask = source.filter(lambda batch: pc.call_function("greater", [batch["v"], 50]), batches=True)
    by_expression.union(by_mask).sink(TargetSink(target))
    p.run()
    assert target.counts("n") == Counter({n: 2 for n in range(51, 100) if n % 5})


@pytest.mark.parametrize("mask", [lambda _: [True], lambda batch: batch["n"], lambda _: pa.array([True])])
def test_a_mask_that_is_none_is_named(mask: Any):
    p = pipeline(restart=RestartStrategy.none())
    p.source(SequenceSource(ROWS)).filter(mask, batches=True, uid="mine").sink(TargetSink(Target()))
    with pytest.raises(OperatorError, match=r"operator mine, subtask 0: .*; at \['n', 'k', 'v'\]"):
        p.run()


def test_map_batches_casts_to_the_schema_or_fails():
    for value, fits in ((127, True), (128, False)):
        target = Target()
        p = pipeline(restart=RestartStrategy.none())
        stream = p.source(SequenceSource([{"n": value}])).map_batches(lambda b: b, schema=pa.schema({"n": pa.int8()}))
        stream.map_batches(lambda b: pa.RecordBatch.from_pydict({"type": [str(b.schema.types[0])]})).sink(
            TargetSink(target)
        )
        if fits:
            p.run()
            assert target.rows == [{"type": "int8"}]
        else:
            with pytest.raises(OperatorError, match="Integer value 128 not in range"):
                p.run()


class Everything(ProcessFunction):
    """Uses every kind of state."""

    seen = ListState()
    by_value = MapState()
    biggest = ReducingState(max)
    mine = OperatorState()

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:
        self.seen.append(record["n"])
        self.by_value.put(record["v"], self.by_value.get(record["v"], 0) + 1)
        self.biggest.add(record["n"])
        self.mine.append(record["n"])
        if len(self.seen.get()) == 3:
            yield {
                "k": context.key,
                "seen": self.seen.get(),
                "by": str(dict(self.by_value.items())),
                "most": self.biggest.add(0) or self.biggest.get(),
            }


def test_all_kinds_of_keyed_state(backend: Callable[[], Any]):
    target = Target()
    rows = [{"n": n, "k": n % 2, "v": n // 4} for n in range(6)]
    p = pipeline(backend=backend())
    p.source(SequenceSource(rows)).key_by("k").process(Everything(), parallelism=2).sink(TargetSink(target))
    p.run()
    assert sorted(target.rows, key=lambda row: row["k"]) == [
        {"k": 0, "seen": [0, 2, 4], "by": "{0: 2, 1: 1}", "most": 4},
        {"k": 1, "seen": [1, 3, 5], "by": "{0: 2, 1: 1}", "most": 5},
    ]


class Alarm(ProcessFunction):
    """Gives a row when a key's timer fires."""

    def process(self, record: dict[str, Any], context: Any) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - signature
        context.timer_at(context.now() + 0.05)
        context.timer_at(context.now() + 1000.0)
        context.drop_timer(context.now() + 5.0)
        return iter(())

    def on_timer(self, at: float, context: Any) -> Iterator[dict[str, Any]]:
        yield {"k": context.key, "late": context.now() >= at}


def test_timers_fire_once_under_their_key():
    target = Target()
    source = Slowly([{"k": "a"}, {"k": "b"}, {"k": "c"}], batch_rows=1)
    p = pipeline()
    p.source(source).key_by("k").process(Alarm(), parallelism=2).sink(TargetSink(target))
    source.let(2)
    p.start()
    while len(target.rows) < 2:
        assert not p.wait(0.01)
    source.let(1)
    p.wait(20)
    found = target.counts("k")
    assert found["a"] == found["b"] == 1
    assert all(row["late"] for row in target.rows)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda _: None, "no source"),
        (lambda p: p.source(SequenceSource(ROWS)), "the output of source-0 is not used"),
        (lambda p: p.source(SequenceSource(ROWS)).map(lambda r: r), "the output of map-1 is not used"),
    ],
)
def test_a_graph_that_cannot_run_is_refused(build: Any, match: str):
    p = pipeline()
    build(p)
    with pytest.raises(ConfigurationError, match=match):
        p.start()


def test_two_operators_cannot_have_one_uid():
    p = pipeline()
    stream = p.source(SequenceSource(ROWS), uid="one")
    with pytest.raises(ConfigurationError, match="uid 'one'"):
        stream.map(lambda r: r, uid="one")


def test_a_savepoint_of_a_pipeline_that_does_not_run_is_an_error(tmp_path: Path):
    p = totals(Target(), SequenceSource(ROWS))
    with pytest.raises(CheckpointFailedError, match="not been started"):
        p.savepoint(str(tmp_path))
    p.run()
    with pytest.raises(CheckpointFailedError, match="finished"):
        p.savepoint(str(tmp_path))


EXAMPLES = Path(__file__).parent.parent / "examples"


def run_example(name: str, *arguments: object) -> str:
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent / "src")}
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_example_of_a_running_sum_writes_each_result_once(tmp_path: Path):
    said = run_example("engine_running_sum.py", tmp_path)
    before, after = said.split("restarted 1 time with checkpoint 1; in the end:\n")
    results = [{"user": "b", "total": 2}, {"user": "b", "total": 5}, {"user": "c", "total": 1}]
    assert [json.loads(line) for line in sorted(before.splitlines()[1:]) if line] == results
    later = [{"user": "a", "total": 2}, {"user": "a", "total": 4}, {"user": "c", "total": 3}]
    found = Counter(line for line in after.splitlines() if line)
    assert found == Counter(json.dumps(row) for row in results + later)


def test_the_example_of_two_sources_keeps_rows_behind_a_barrier_out_of_the_snapshot(tmp_path: Path):
    said = run_example("engine_two_sources.py", tmp_path)
    assert "complete: False" in said
    assert "checkpoint 2 holds [1, 2, 3, 7, 8]" in said
    assert "in the end there are [1, 2, 3, 4, 5, 6, 7, 8]" in said


def test_the_example_of_an_idempotent_sink_goes_back_once_and_ends_right(tmp_path: Path):
    said = run_example("engine_idempotent.py", tmp_path)
    totals = {f"u{user}": sum(range(user, 300, 3)) for user in range(3)}
    assert f"totals: {totals}" in said
    assert "went back 1 time" in said


@pytest.mark.parametrize("policy", ["keep", "delete"])
@pytest.mark.parametrize("how", ["cancel", "failure"])
def test_what_becomes_of_checkpoints_when_a_run_does_not_end_by_itself(
    tmp_path: Path, how: str, policy: str, caplog: pytest.LogCaptureFixture
):
    """Deleted state is gone; what was committed is not written again, and nothing is left out."""
    caplog.set_level("INFO", "onceward.engine")
    target, store, source = Target(), MemoryStore(), Slowly(ROWS, batch_rows=100)
    config = CheckpointConfig(on_cancel=policy, on_failure=policy)  # type: ignore[arg-type]
    failing = FailsAt(1500) if how == "failure" else None
    options = {"store": store, "restart": RestartStrategy.none()}
    p = totals(target, source, failing, backend=FileBackend(tmp_path), checkpointing=config, **options)
    job = p.start()
    reach(source, job, 10)
    job.checkpoint(timeout=10)
    if how == "cancel":
        p.stop()
        assert job.state is JobState.STOPPED
    else:
        source.let(10)
        with pytest.raises(OperatorError):
            p.wait(20)
        assert job.state is JobState.FAILED
    assert bool(list(tmp_path.rglob("metadata"))) is (policy == "keep")
    again = totals(target, SequenceSource(ROWS, batch_rows=100), backend=FileBackend(tmp_path), **options)
    if policy == "keep":
        again.run()
        check_exact(target, ROWS)
    else:
        again.run()
        assert target.counts("n") == Counter(range(6000))
        anew = sums([row for row in ROWS if row["n"] >= 1000])
        assert {row["n"]: row["sum"] for row in target.rows} == {**sums(ROWS[:1000]), **anew}
        assert f"without state (on_{how}='delete')" in caplog.text


@pytest.mark.parametrize("claim", [True, False])
def test_86_a_savepoint_is_deleted_only_if_it_was_claimed(tmp_path: Path, claim: bool):
    source, where = Slowly(ROWS, batch_rows=100), tmp_path / "save"
    p = totals(Target(), source, backend=RocksDBBackend(tmp_path / "one"), checkpointing=CheckpointConfig())
    job = p.start()
    reach(source, job, 10)
    job.stop_with_savepoint(str(where), timeout=20)
    target = Target()
    fork = totals(target, SequenceSource(ROWS), name="fork", backend=RocksDBBackend(tmp_path / "two"))
    fork.run(restore=str(where), claim=claim, import_from="p")
    assert target.counts("n") == Counter(range(1000, 6000))
    assert {row["n"]: row["sum"] for row in target.rows} == {n: s for n, s in sums(ROWS).items() if n >= 1000}
    assert where.exists() is not claim


def test_the_page_on_operators_says_what_is_true(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Its code makes a pipeline (that would run if there were a broker)."""
    text = (EXAMPLES.parent / "docs" / "operators.md").read_text()
    pipeline_code, batches_code, function_code, ttl_code, hooks_code = re.findall(
        r"```python\n(.*?)```", text, re.DOTALL
    )
    names: dict[str, Any] = {}
    for code in (function_code, ttl_code, hooks_code):
        exec(code, names)
    monkeypatch.setitem(sys.modules, "running_sum", SimpleNamespace(RunningSum=names["RunningSum"]))
    exec(pipeline_code.replace("/var/lib/onceward", str(tmp_path)).replace("pipeline.run()", ""), names)
    assert names["pipeline"].guarantee() == ("exactly-once", ())
    target = Target()
    p = pipeline()
    rows = [{"user": "a", "amount": 2}, {"user": "a", "amount": 3}]
    p.source(SequenceSource(rows)).key_by("user").process(names["RunningSum"]()).sink(TargetSink(target))
    p.run()
    assert [row["total"] for row in target.rows] == [2, 5]
    target = Target()
    p = pipeline()
    exec(batches_code, names)
    names["running_totals"](p.source(SequenceSource([*rows, {"user": "b", "amount": -1}]))).sink(TargetSink(target))
    p.run()
    assert target.rows == [{"user": "a", "total": 595, "orders": 2, "largest": 357}]
    target = Target()
    p = pipeline()
    visits = [{"user": "a", "page": page, "at": at, "amount": 1} for at, page in enumerate("xyx")]
    orders = p.source(SequenceSource(visits))
    orders.key_by("user").process(names["Visits"]()).sink(TargetSink(target))
    names["totals_of_the_day"](orders).sink(TargetSink(target, "days"))
    p.run()
    assert [(row["pages"], row["clicks"]) for row in target.by_sink("target")] == [(1, 1), (2, 2), (2, 3)]
    assert target.by_sink("days")[-1]["total"] == 3
    target = Target()
    p = pipeline()
    p.source(SequenceSource(rows)).process(names["Batches"]()).sink(TargetSink(target))
    p.run()
    assert target.rows == rows
    assert "2 records are committed" in capsys.readouterr().out


def test_leaving_the_block_of_a_pipeline_ends_its_run_with_a_checkpoint_and_says_before_that_nothing_else_commits():
    target, source = Target(), Slowly(ROWS, batch_rows=100)
    with pipeline(checkpointing=CheckpointConfig()) as p:
        p.source(source, uid="orders").sink(TargetSink(target))
        with pytest.warns(OncewardWarning, match=r"orders never ends: nothing is committed .*interval=1\.0"):
            job = p.start()
        reach(source, job, 1)
        assert not target.rows
    assert len(target.rows) == 100


@pytest.mark.parametrize("how", ["it has an end", "it has an interval"])
def test_a_pipeline_that_will_commit_is_not_warned_of(how: str, recwarn: pytest.WarningsRecorder):
    bounded = how == "it has an end"
    source = SequenceSource(ROWS) if bounded else Slowly(ROWS, batch_rows=100)
    with pipeline(checkpointing=CheckpointConfig(interval=None if bounded else 0.05)) as p:
        p.source(source).sink(TargetSink(Target()))
        p.start()
    assert not [each for each in recwarn if "never ends" in str(each.message)]


def test_leaving_the_block_after_a_run_has_failed_raises_nothing():
    with pipeline(restart=RestartStrategy.none()) as p:
        started = threading.Event()  # start() raises the error of a run that has failed already

        def mine(record: Any) -> Any:
            started.wait(10)
            return record["nothing"]

        p.source(SequenceSource(ROWS)).map(mine, uid="mine").sink(TargetSink(Target()))
        job = p.start()
        started.set()
        while not job.wait(0.01):
            pass
    assert isinstance(job.error, OperatorError)


def test_a_stop_between_two_looks_of_the_pause_ends_it() -> None:
    """The pause clears its event after it has looked whether it is to end: a stop between the two was not heard."""
    p = pipeline()
    p.source(SequenceSource(numbers(3)), uid="in").sink(TargetSink(Target()))
    job: Any = p.start()
    p.wait()

    class Cleared(threading.Event):
        def clear(self) -> None:
            job._cancel.set()
            self.set()  # as `stop` does
            super().clear()

    job._cancel.clear()
    job._resume = Cleared()
    began = time.monotonic()
    assert job._pause(30.0)
    assert time.monotonic() - began < 10
