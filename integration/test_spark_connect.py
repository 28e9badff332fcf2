"""`exactly_once` over Spark Connect: a real server in local mode, whose processes of foreachBatch are killed."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors.exceptions.connect import SparkConnectException, StreamingQueryException

import onceward
from onceward import FileSink, ForeachBatch, Output, PostgresSink, exactly_once
from onceward.connectors.spark.session.connect import ConnectSession, node_names, read_by_session
from onceward.connectors.spark.session.kinds import plan_of
from onceward.connectors.spark.session.query import read_text
from onceward.core.errors import ConfigurationError, SchemaError
from onceward.core.kit.crash_points import Step
from onceward.core.log import open_store, read

from .connect_kit import ConnectServer, CrashAt, HoldAt, WorkerCrash, remote_functions, wait_until
from .spark_kit import Feed, once

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark]


@pytest.fixture
def session(connect_server: ConnectServer) -> Iterator[SparkSession]:
    with remote_functions():
        client = connect_server.session()
        yield client
        client.stop()


class Job:
    """A pipeline of the tests: a folder of JSON files → files."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.session, self.folder = session, folder
        self.feed = Feed(folder)
        self.checkpoint, self.out = folder / "checkpoint", folder / "out"
        self.pipeline = f"words-{folder.name}"[:60]

    def start(self, frame: DataFrame | None = None, *sinks: Any, **options: Any) -> StreamingQuery:
        frame = self.feed.stream(self.session) if frame is None else frame
        options = {"checkpoint": str(self.checkpoint), "pipeline": self.pipeline, **options}
        return (
            exactly_once(frame, *(sinks or [FileSink("files", self.out)]), **options).trigger(availableNow=True).start()
        )

    def run(self, *args: Any, **options: Any) -> None:
        query = self.start(*args, **options)
        query.awaitTermination()

    def ids(self, folder: Path | None = None) -> Counter[int]:
        return Counter(ds.dataset(folder or self.out).to_table(columns=["id"])["id"].to_pylist())

    def seen_once(self) -> bool:
        return self.ids() == once(self.feed.rows)

    def completed(self) -> int:
        return read(open_store(str(self.checkpoint / "onceward"), pipeline=self.pipeline)).completed


@pytest.fixture
def connect_job(session: SparkSession, tmp_path: Path) -> Job:
    return Job(session, tmp_path)


def test_each_record_takes_effect_once_across_restarts(connect_job: Job) -> None:
    for _ in range(2):
        connect_job.feed.add()
        connect_job.feed.add()
        connect_job.run()
        assert connect_job.seen_once()
    assert connect_job.completed() == 3


BY_DAY = (Step.START_AFTER, Step.ACKNOWLEDGED, Step.DECIDE_AFTER, Step.COMMIT_AFTER, Step.COMPLETE_AFTER)
BY_NIGHT = (Step.SWEEP_AFTER, Step.DECIDE_BEFORE, Step.COMMIT_BEFORE, Step.COMPLETE_BEFORE)


@pytest.mark.parametrize("step", [*BY_DAY, *(pytest.param(step, marks=pytest.mark.nightly) for step in BY_NIGHT)])
def test_a_process_of_foreach_batch_that_dies_at_any_step_loses_and_doubles_nothing(
    connect_job: Job, step: Step
) -> None:
    connect_job.feed.add()
    connect_job.run()
    connect_job.feed.add()
    with pytest.raises(StreamingQueryException, match="crashed"):
        connect_job.run(on_complete=CrashAt(step))
    connect_job.feed.add()
    connect_job.run()
    assert connect_job.seen_once()


@pytest.mark.parametrize("step", [Step.WRITE_AFTER, Step.PRE_COMMIT_AFTER])
def test_a_python_worker_that_dies_is_replaced_and_its_attempt_does_not_count(connect_job: Job, step: Step) -> None:
    connect_job.feed.add()
    connect_job.run(None, WorkerCrash("files", connect_job.out, connect_job.folder / "mark", step))
    assert (connect_job.folder / "mark").exists()
    assert connect_job.seen_once()


def test_transformations_of_outputs_are_computed_once_and_both_sinks_get_the_same(connect_job: Job) -> None:
    connect_job.feed.add()
    totals = connect_job.folder / "totals"
    frame = connect_job.feed.stream(connect_job.session).selectExpr("id", "word", "uuid() AS chance")
    outputs = [
        FileSink("files", connect_job.out),
        Output(FileSink("totals", totals), lambda batch: batch.where("id >= 10").selectExpr("id", "chance")),
    ]
    connect_job.run(frame, *outputs)
    connect_job.feed.add()
    connect_job.run(frame, *outputs)
    assert connect_job.seen_once()
    rows = {row["id"]: row["chance"] for row in ds.dataset(connect_job.out).to_table().to_pylist()}
    assert {row["id"]: row["chance"] for row in ds.dataset(totals).to_table().to_pylist()} == {
        number: rows[number] for number in range(10, 40)
    }


def test_a_function_that_reads_its_batch_twice_sees_one_value_of_each_row(connect_job: Job) -> None:
    connect_job.feed.add()
    frame = connect_job.feed.stream(connect_job.session).selectExpr("id", "uuid() AS chance")
    connect_job.run(frame, Output(FileSink("files", connect_job.out), lambda batch: batch.union(batch)))
    rows = ds.dataset(connect_job.out).to_table().to_pylist()
    assert len(rows) == 2 * connect_job.feed.rows
    assert len({(row["id"], row["chance"]) for row in rows}) == connect_job.feed.rows


def test_a_block_of_foreach_batch_is_refused_by_start(connect_job: Job) -> None:
    connect_job.feed.add()
    handler = ForeachBatch(FileSink("files", connect_job.out), pipeline=connect_job.pipeline)
    writer = connect_job.feed.stream(connect_job.session).writeStream.foreachBatch(handler)
    with pytest.raises(SparkConnectException, match="ForeachBatch needs a classic Spark session"):
        writer.option("checkpointLocation", str(connect_job.checkpoint)).start()


def test_a_stateful_query_goes_on_after_a_replay(connect_job: Job) -> None:
    connect_job.feed.add()
    counts = connect_job.feed.stream(connect_job.session).groupBy("word").count().selectExpr("`count` AS id", "word")

    def run(**options: Any) -> None:
        sinks = [FileSink("files", connect_job.out)]
        writer = exactly_once(
            counts, *sinks, checkpoint=str(connect_job.checkpoint), pipeline=connect_job.pipeline, **options
        )
        writer.outputMode("update").trigger(availableNow=True).start().awaitTermination()

    run()
    connect_job.feed.add()
    with pytest.raises(StreamingQueryException):
        run(on_complete=CrashAt(Step.COMPLETE_AFTER))
    run()
    connect_job.feed.add()
    run()
    best: dict[str, int] = {}
    for row in ds.dataset(connect_job.out).to_table().to_pylist():
        best[row["word"]] = max(best.get(row["word"], 0), row["id"])
    assert best == Counter(f"w{number % 7}" for number in range(connect_job.feed.rows))


def test_stop_lets_the_epoch_end_that_is_under_way(connect_job: Job, connect_server: ConnectServer) -> None:
    connect_job.feed.add()

    def slowly(_epoch: int, _about: Any) -> None:
        import time
        from pathlib import Path

        (Path(os.fspath(folder)) / "reached").touch()
        time.sleep(3)
        (Path(os.fspath(folder)) / "ended").touch()

    folder = str(connect_job.folder)
    before = set(connect_server.workers())
    query = connect_job.start(on_complete=slowly)
    wait_until((connect_job.folder / "reached").exists)
    [process] = set(connect_server.workers()) - before  # those of an earlier test may be ending
    query.stop()
    wait_until((connect_job.folder / "ended").exists)
    wait_until(lambda: not process.is_running())
    connect_job.run()
    assert connect_job.seen_once()


def test_a_client_that_starts_the_same_query_takes_it_over(connect_job: Job, connect_server: ConnectServer) -> None:
    """Spark stops the run that another client has started, because it is the same query."""
    writer = exactly_once(
        connect_job.feed.stream(connect_job.session),
        FileSink("files", connect_job.out),
        checkpoint=str(connect_job.checkpoint),
        pipeline=connect_job.pipeline,
    )
    connect_job.feed.add()
    first = writer.start()
    wait_until(connect_job.checkpoint.joinpath("commits/0").exists)
    other = connect_server.session()
    second = Job(other, connect_job.folder)
    connect_job.feed.add()
    second.run()
    assert not first.isActive
    assert connect_job.seen_once()
    other.stop()


def test_two_queries_of_a_session_do_not_take_each_other_for_themselves(connect_job: Job) -> None:
    jobs = [Job(connect_job.session, connect_job.folder / name) for name in ("one", "two")]
    for number, each in enumerate(jobs):
        each.pipeline = f"pipeline-{number}"
        each.feed.add(20 + number)
    for query in [each.start() for each in jobs]:
        query.awaitTermination()
    assert all(each.seen_once() for each in jobs)


def test_the_checkpoint_counts_that_the_writer_has_when_it_is_started(connect_job: Job) -> None:
    connect_job.feed.add()
    writer = exactly_once(
        connect_job.feed.stream(connect_job.session),
        FileSink("files", connect_job.out),
        checkpoint=str(connect_job.checkpoint),
        pipeline=connect_job.pipeline,
    )
    elsewhere = connect_job.folder / "elsewhere"
    writer.trigger(availableNow=True).option("checkpointLocation", str(elsewhere)).start().awaitTermination()
    assert (elsewhere / "onceward").exists()
    assert not connect_job.checkpoint.exists()
    assert connect_job.seen_once()


def test_the_sessions_folder_of_checkpoints_needs_the_name_of_the_query(connect_job: Job) -> None:
    connect_job.feed.add()
    connect_job.session.conf.set("spark.sql.streaming.checkpointLocation", str(connect_job.folder / "all"))
    writer = exactly_once(
        connect_job.feed.stream(connect_job.session), FileSink("files", connect_job.out), pipeline="p"
    )
    with pytest.raises(ConfigurationError, match="queryName"):
        writer.start()
    writer.trigger(availableNow=True).start(queryName="words").awaitTermination()
    assert (connect_job.folder / "all/words/onceward").exists()
    assert connect_job.seen_once()


def test_a_checkpoint_read_through_the_session_is_the_same_text(session: SparkSession, tmp_path: Path) -> None:
    """Its digest recognizes a replay, whoever reads it."""
    for name, text in {"1": "v1\nnaïve\n", "2": "v1\n{}\n{}", "3": "\n\nv1\r\n"}.items():
        (tmp_path / name).write_bytes(text.encode())
        url = f"file:{tmp_path}/{name}"
        assert read_by_session(session, url) == read_text(url) == text  # type: ignore[arg-type]
    assert read_by_session(session, f"file:{tmp_path}/4") is None  # type: ignore[arg-type]


def test_a_checkpoint_that_only_spark_can_read_is_read_through_the_session(
    connect_job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward.connectors.spark.session.connect.local_path", lambda _: None)
    connect_job.feed.add()
    query = (
        connect_job.feed.stream(connect_job.session)
        .writeStream.format("noop")
        .option("checkpointLocation", str(connect_job.checkpoint))
    )
    running = query.start()
    asked = ConnectSession(connect_job.session, f"file:{connect_job.checkpoint}")  # type: ignore[arg-type]
    wait_until((connect_job.checkpoint / "offsets/0").exists)
    run = asked.current_run(None)
    assert (run.query, run.run) == (str(running.id), str(running.runId))
    offsets = asked.reader()(f"file:{connect_job.checkpoint}/offsets/0")
    assert offsets == (connect_job.checkpoint / "offsets/0").read_text()
    running.stop()
    with pytest.raises(ConfigurationError, match="does not run in this session"):
        asked.current_run(None)


def test_what_a_session_says(session: SparkSession) -> None:
    asked = ConnectSession(session, "/nowhere")  # type: ignore[arg-type]
    assert asked.master == "local[2,4]"
    assert asked.slots() == 2
    assert asked.setting("spark.speculation", "false") == "false"
    assert not asked.is_active("no query")
    with pytest.raises(ConfigurationError, match="no metadata file"):
        asked.current_run(None)


def test_the_plan_is_that_of_the_server(session: SparkSession, tmp_path: Path) -> None:
    stream = Feed(tmp_path).stream(session)
    rate = session.readStream.format("rate").option("rowsPerSecond", "5").load()
    both = rate.join(stream, rate.value == stream.id)
    assert [source.format for source in plan_of(both).sources()] == ["rate", "json"]  # type: ignore[arg-type]
    assert plan_of(rate).sources()[0].options == {"rowspersecond": "5"}  # type: ignore[arg-type]
    plain = rate.where("value > 1").selectExpr("value", "'two\nlines' AS text")
    assert plan_of(plain).only_writes()
    assert node_names(rate.selectExpr("value", "'\nFilter' AS text"))[0] == "Project"
    assert not plan_of(stream).only_writes()
    assert not plan_of(rate.mapInArrow(lambda batches: batches, rate.schema)).only_writes()
    assert not plan_of(rate.groupBy("value").count()).only_writes()
    session.udf.register("hidden", lambda value: value, "long")
    assert not plan_of(rate.selectExpr("hidden(value) AS v")).only_writes()


def test_select_and_where_are_checked_as_in_a_classic_session(connect_job: Job) -> None:
    connect_job.feed.add()
    for select, where in (
        (["max(id) AS id"], None),
        (["row_number() OVER (ORDER BY id) AS id"], None),
        (None, "max(id) > 1"),
    ):
        with pytest.raises(ConfigurationError, match="row by row"):
            connect_job.start(None, FileSink("files", connect_job.out, select=select, where=where))
    with pytest.raises(SchemaError, match="nothing"):
        connect_job.start(None, FileSink("files", connect_job.out, select=["nothing"]))
    connect_job.run(None, FileSink("files", connect_job.out, select=["id", "word AS w"], where="id % 2 = 0"))
    assert connect_job.ids() == Counter(range(0, 20, 2))


def test_what_the_server_refuses_is_an_error_of_start(connect_job: Job) -> None:
    connect_job.feed.add()
    unreachable = PostgresSink("table", dsn="postgresql://nobody@127.0.0.1:1/nowhere?connect_timeout=2", table="t")
    with pytest.raises(SparkConnectException, match=r"127\.0\.0\.1"):
        connect_job.start(None, unreachable)
    connect_job.run()
    with pytest.raises(SparkConnectException, match="belongs to pipeline"):
        connect_job.start(pipeline="another")


def test_another_version_on_the_server_is_named(connect_job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onceward, "__version__", "0.0.7")
    with pytest.raises(SparkConnectException, match=r"onceward is 0\.0\.7 on the client and"):
        connect_job.start()


def test_a_module_of_the_client_alone_is_named_and_can_travel(
    connect_job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def tell(epoch, about):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here
    from pyspark import cloudpickle

    connect_job.feed.add()
    connect_job.session.addArtifacts(str(tmp_path / "only_here.py"), pyfile=True)
    with pytest.raises(SparkConnectException, match=r"register_pickle_by_value\(only_here\)"):
        connect_job.start(on_complete=only_here.tell)
    cloudpickle.register_pickle_by_value(only_here)
    try:
        connect_job.run(on_complete=only_here.tell)
    finally:
        cloudpickle.unregister_pickle_by_value(only_here)
    assert connect_job.seen_once()


def test_what_cannot_work_is_refused_before_the_server_is_asked(connect_job: Job) -> None:
    connect_job.feed.add()
    with pytest.raises(ConfigurationError, match="absolute path or a URL"):
        connect_job.start(checkpoint="checkpoint")
    with pytest.raises(ConfigurationError, match="checkpoint is empty"):
        connect_job.start(checkpoint=" ")
    with pytest.raises(ConfigurationError, match="cannot be sent"):
        connect_job.start(store=_unpicklable())
    stream, sink = connect_job.feed.stream(connect_job.session), FileSink("files", connect_job.out)
    writer = exactly_once(stream, sink, pipeline="p")
    with pytest.raises(ConfigurationError, match="no checkpoint"):
        writer.start()
    writer = exactly_once(stream, sink, pipeline="p", checkpoint=str(connect_job.checkpoint))
    with pytest.raises(ConfigurationError, match="asynchronous progress"):
        writer.option("asyncProgressTrackingEnabled", "true").start()
    with pytest.raises(ConfigurationError, match="would replace"):
        writer.start("/path")
    with pytest.raises(ConfigurationError, match="would replace"):
        writer.toTable("t")
    writer = exactly_once(stream, sink, pipeline="p", checkpoint=str(connect_job.checkpoint))
    with pytest.raises(ConfigurationError, match="real-time mode"):
        writer.trigger(realTime="5 seconds").start()
    assert not connect_job.checkpoint.exists()


def _unpicklable() -> Any:
    import threading

    class Store:
        lock = threading.Lock()

        def __init__(self) -> None:
            self.own = threading.Lock()

        put_if_absent = None

    return Store()


def test_output_mode_complete_is_refused_where_a_sink_cannot_write_all_again(connect_job: Job) -> None:
    connect_job.feed.add()
    totals = connect_job.feed.stream(connect_job.session).groupBy("word").count()
    writer = exactly_once(
        totals, FileSink("files", connect_job.out), checkpoint=str(connect_job.checkpoint), pipeline="p"
    )
    query = writer.outputMode("complete").trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="complete"):
        query.awaitTermination()


def test_a_server_that_dies_with_the_epoch_prepared_leaves_a_process_that_the_next_run_fences(
    connect_environment: dict[str, str], tmp_path: Path
) -> None:
    """The process of foreachBatch lives on without its server: between pre-commit and decision it may still decide."""
    held, free = tmp_path / "held", tmp_path / "free"
    server = ConnectServer(tmp_path / "server", connect_environment, {"spark.ui.enabled": "false"})
    server.start()
    try:
        with remote_functions():
            job = Job(server.session(), tmp_path)
            job.feed.add()
            job.start(on_complete=HoldAt(Step.DECIDE_BEFORE, held, free))
            wait_until(held.exists)
            [zombie] = server.workers()
            server.kill()
            server.start()
            job = Job(server.session(), tmp_path)
            job.feed.rows, job.feed.files = 20, 1
            job.feed.add()
            job.run()
            assert zombie.is_running()
            free.touch()
            wait_until(lambda: not zombie.is_running())
            assert job.seen_once()
            job.run()
            assert job.seen_once()
    finally:
        server.stop()
        shutil.rmtree(tmp_path / "server", ignore_errors=True)
