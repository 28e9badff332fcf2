"""`exactly_once`: a streaming query whose every micro-batch reaches all sinks in one atomic decision.

The micro-batch boundary is the barrier. Executors write and pre-commit inside mapInArrow; the driver collects their
acknowledgements, decides once for all sinks, commits, and puts COMPLETED before the function returns, hence before
Spark logs the batch. A batch that Spark replays because it died in between is recognized and not written again.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from onceward.core.checkpoint import Admission, CommitPolicy, Coordinator, OnLost
from onceward.core.checkpoint.policy import COMMIT_BACKOFF, COMMIT_TIMEOUT
from onceward.core.errors import ConfigurationError, OncewardError
from onceward.core.log import LogStore, open_store
from onceward.core.names import check_pipeline_name
from onceward.core.sink import Guarantee
from onceward.core.transaction import Acknowledgement
from onceward.sinks.base import DirectSink, TwoPhaseCommitSink
from onceward.sinks.direct import DirectlyWritten

from .executors import warn_of_python
from .projection import Projection, schema_for
from .publication import with_publication
from .query import QueryRun, any_stage_failed, current_run, epoch_input, hadoop_reader
from .store import check_store, default_store, local_store
from .task import ACK_COLUMN, ACK_SCHEMA, STAGE_COLUMN, EpochTask
from .writers import Writers, checked_writers, only_writes, writers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from onceward.core.log import EpochInput

_log = logging.getLogger("onceward.spark")
AnySink = TwoPhaseCommitSink[Any] | DirectSink[Any]


def exactly_once(
    df: DataFrame,
    *sinks: AnySink,
    checkpoint: str | None = None,
    pipeline: str | None = None,
    store: str | LogStore | None = None,
    writers: Writers = "auto",
    commit_timeout: float = COMMIT_TIMEOUT,
    commit_backoff: float = COMMIT_BACKOFF,
    on_lost: OnLost | str = OnLost.FAIL,
    adopt: bool = False,
    rewind: str | None = None,
    on_complete: Callable[[int, EpochInput], None] | None = None,
) -> DataStreamWriter:
    """Write a streaming DataFrame into one or more sinks, so that each record takes effect exactly once in each.

    Args:
        df: A streaming DataFrame.
        sinks: Where it goes; each sink has its own name. A sink's `select` and `where` choose its columns and rows.
            A sink that promises less (an IdempotentSink, a DirectSink) keeps its own guarantee, and a warning says so.
        checkpoint: Spark's checkpoint folder; by default the one that Spark's configuration sets.
        pipeline: Name of the pipeline, part of every transaction's name; by default the query's id.
        store: Where the decision log lives (a URL for `open_store`); by default inside the checkpoint.
        writers: The most tasks that write an epoch; fewer than its partitions are fewer transactions, and more rows
            for each. "auto": as many as can run at once, and fewer if the query's tasks do little but write and few
            rows come in; None: one for each partition. Work in the same stage, back to the last shuffle, is done by
            these tasks, too.
        commit_timeout: Seconds for which a commit is tried again while a target does not answer. Then the query fails
            with CommitPendingError; the decision stands, and its next start commits it.
        commit_backoff: Longest pause between two attempts, in seconds; the first pauses are shorter.
        on_lost: What to do when a decided transaction can no longer be committed: "fail", "replay" or "skip".
        adopt: Start at whatever batch the query has reached, because it ran with another sink until now.
        rewind: Why the pipeline goes back to an older state on purpose; recorded in the log, and done once: a query
            that is started again with the same reason continues.
        on_complete: Called on the driver after an epoch's COMPLETED entry is durable, with its number and input.
            Called again for the newest epoch after a restart.

    Returns:
        A DataStreamWriter: set trigger, output mode and query name, then `start()`.

    Raises:
        ConfigurationError: A setting is wrong, or a target is not set up for the guarantee.
        SchemaError: A column does not fit a sink; the message names it.
    """
    _check(df, sinks, pipeline)
    warn_of_python(df.sparkSession)
    driven = [DirectlyWritten(sink) if isinstance(sink, DirectSink) else sink for sink in sinks]
    for sink in driven:
        if sink.guarantee is not Guarantee.EXACTLY_ONCE:
            _log.warning("sink %s promises %s, whatever drives it", sink.name, sink.guarantee)
        sink.validate(schema_for(df, sink))
    handler = EpochHandler(
        df.sparkSession,
        driven,
        pipeline=pipeline,
        store=store,
        policy=CommitPolicy.of(on_lost, commit_timeout, commit_backoff),
        adopt=adopt,
        rewind=rewind,
        writers=checked_writers(writers),
        cheap=only_writes(df),
        on_complete=with_publication(df, on_complete),
    )
    writer = df.writeStream.foreachBatch(handler)
    return writer.option("checkpointLocation", checkpoint) if checkpoint is not None else writer


def _check(df: DataFrame, sinks: Sequence[AnySink], pipeline: str | None) -> None:
    if type(df).__module__.startswith("pyspark.sql.connect"):
        raise ConfigurationError(
            "exactly_once needs a classic Spark session, and this DataFrame is of a Spark Connect session: run the "
            "query on the driver (SparkSession.builder.master(…), or spark-submit)"
        )
    if not df.isStreaming:
        raise ConfigurationError("exactly_once needs a streaming DataFrame; use df.write.format(…) for a batch")
    if not sinks or not all(isinstance(sink, TwoPhaseCommitSink | DirectSink) for sink in sinks):
        given = ", ".join(type(sink).__name__ for sink in sinks) or "none"
        raise ConfigurationError(
            f"exactly_once takes one or more sinks, each a TwoPhaseCommitSink or a DirectSink; given: {given}"
        )
    names = [sink.name for sink in sinks]
    if len(set(names)) != len(names):
        raise ConfigurationError(f"each sink of a pipeline needs a name of its own; got {names}")
    if pipeline is not None:
        check_pipeline_name(pipeline)


class EpochHandler:
    """Function that Spark calls with each micro-batch; it keeps one coordinator per run of the query."""

    def __init__(
        self,
        spark: SparkSession,
        sinks: Sequence[TwoPhaseCommitSink[Any]],
        *,
        pipeline: str | None,
        store: str | LogStore | None,
        policy: CommitPolicy,
        adopt: bool,
        rewind: str | None,
        writers: Writers,
        cheap: bool,
        on_complete: Callable[[int, EpochInput], None] | None,
    ) -> None:
        self.spark = spark
        self.sinks = sinks
        self.pipeline = pipeline
        self.store = store
        self.policy = policy
        self.adopt = adopt
        self.rewind = rewind
        self.writers = writers
        self.cheap = cheap
        self.on_complete = on_complete
        self._projection = Projection(sinks)
        self._read_text = hadoop_reader(spark)
        self._speculates = spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true"
        self._run: QueryRun | None = None
        self._coordinator: Coordinator | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Run one micro-batch as one epoch."""
        run = current_run(self.spark)
        if self._run != run:
            self._coordinator, self._read_text = None, hadoop_reader(self.spark)
        about = epoch_input(self._read_text, run.checkpoint, run.query, batch)
        coordinator = self._coordinator_of(run, batch, about)
        if coordinator.admit(batch, about, adopt=self.adopt) is Admission.REPLAY:
            _log.warning("epoch %s is decided and completed: it is replayed without writing", batch)
            # A stateful query must run the batch all the same, or its state store misses a version for ever.
            frame.write.format("noop").mode("overwrite").save()
        else:
            tasks = writers_of(self.writers, self.spark, about, cheap=self.cheap)
            rows = self._write(frame if tasks is None else frame.coalesce(tasks), coordinator, batch)
            acks = [Acknowledgement.from_json(row[ACK_COLUMN]) for row in rows]
            lost = self._speculates or any_stage_failed(self.spark, {row[STAGE_COLUMN] for row in rows})
            coordinator.commit(batch, acks, about, sweep_after=lost)
        if self.on_complete is not None:
            self.on_complete(batch, about)

    def _write(self, frame: DataFrame, coordinator: Coordinator, batch: int) -> list[Row]:
        contexts = [coordinator.context(sink.name, batch, subtask=-1) for sink in self.sinks]
        task = EpochTask(self.sinks, contexts, self._projection)
        try:
            return self._projection.of(frame, self.sinks).mapInArrow(task, ACK_SCHEMA).collect()
        except BaseException:
            # Partitions that were through hold locks and readers: end them now, not at the next start.
            self._coordinator = None
            with contextlib.suppress(OncewardError):
                coordinator.give_up()
            raise

    def _coordinator_of(self, run: QueryRun, batch: int, about: EpochInput) -> Coordinator:
        if self._coordinator is None:
            if run.complete:
                for sink in self.sinks:
                    sink.validate_complete_mode()
            name = self.pipeline or run.query
            coordinator = Coordinator(name, self._open_store(run, name), self.sinks, self.policy)
            coordinator.open(rewind=self.rewind, first_epoch=batch, query=run.query, epoch_input=about)
            self._run, self._coordinator = run, coordinator
        return self._coordinator

    def _open_store(self, run: QueryRun, pipeline: str) -> LogStore:
        if self.store is None:
            store = default_store(run.checkpoint, pipeline)
        else:
            store = open_store(self.store, pipeline=pipeline) if isinstance(self.store, str) else self.store
        check_store(local_store(store), self.spark.sparkContext.master)
        return store
