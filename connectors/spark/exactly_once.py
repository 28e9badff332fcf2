"""`exactly_once`: a streaming query whose every micro-batch reaches all sinks in one atomic decision.

The micro-batch boundary is the barrier. Executors write and pre-commit inside mapInArrow; the driver collects their
acknowledgements, decides once for all sinks, commits, and puts COMPLETED before the function returns, hence before
Spark logs the batch. A batch that Spark replays because it died in between is recognized and not written again.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onceward.core.checkpoint import Admission, CommitPolicy, Coordinator, OnLost
from onceward.core.checkpoint.policy import COMMIT_BACKOFF, COMMIT_TIMEOUT
from onceward.core.errors import ConfigurationError, OncewardError
from onceward.core.names import check_pipeline_name
from onceward.core.sink import Guarantee
from onceward.core.transaction import Acknowledgement
from onceward.sinks.base import DirectlyWritten, DirectSink, TwoPhaseCommitSink

from .cluster import check_store, local_store, open_log, warn_of_python
from .publication import with_publication
from .query import QueryRun, any_stage_failed, checkpoint_reader, current_run, epoch_input
from .task import ACK_COLUMN, ACK_SCHEMA, STAGE_COLUMN, EpochTask, projected, schema_for
from .writers import Writers, checked_writers, only_writes, writers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from onceward.core.log import EpochInput, LogStore

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
        df: A streaming DataFrame of a classic session. A DataFrame of a Spark Connect session is refused.
        sinks: Where the rows go. Each sink has a name that is unique in the pipeline, and may choose columns and rows
            with `select` and `where`. A sink with a weaker guarantee (an IdempotentSink, a DirectSink) keeps it, and a
            warning says so.
        checkpoint: Spark's checkpoint folder of this query. Default: `spark.sql.streaming.checkpointLocation`, which
            the formats cannot see: they need the option.
        pipeline: Name of the pipeline, up to 64 letters, digits, `.`, `_` and `-`. It is part of every transaction's
            name, so it must not change between runs, and no two pipelines may share it. Default: the query's id.
        store: Where the decision log lives: a URL for `open_store`. Default: the folder `onceward` in the checkpoint.
        writers: The most tasks that write an epoch. "auto": as many as can run at the same time, and fewer if few rows
            come in and the query's tasks do little but write them. None: one for each partition. Each task is a
            transaction in each sink. It also does the work of its stage before the sinks, back to the last shuffle.
        commit_timeout: Seconds for which a commit is tried again while a target does not answer. Then the query fails
            with CommitPendingError; the decision stands, and the query's next start commits it.
        commit_backoff: Longest pause between two attempts to commit, in seconds; the first pauses are shorter.
        on_lost: What to do when a decided transaction can no longer be committed: "fail", "replay" or "skip".
        adopt: Start with an empty decision log at whatever batch the query has reached, because it ran with another
            sink until now.
        rewind: Why the pipeline goes back to an older state on purpose. It is recorded in the decision log and done
            once: a query that is started again with the same reason continues.
        on_complete: Function that is called on the driver after an epoch's COMPLETED entry is durable, with the epoch's
            number and its input. After a restart it is called again for the newest epoch.

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
            _log.warning("sink %s guarantees %s only, also with exactly_once", sink.name, sink.guarantee)
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


@dataclass
class EpochHandler:
    """Function that Spark calls with each micro-batch; it keeps one coordinator per run of the query."""

    spark: SparkSession
    sinks: Sequence[TwoPhaseCommitSink[Any]]
    pipeline: str | None
    store: str | LogStore | None
    policy: CommitPolicy
    adopt: bool
    rewind: str | None
    writers: Writers
    cheap: bool
    on_complete: Callable[[int, EpochInput], None] | None

    def __post_init__(self) -> None:
        self._read_text = checkpoint_reader(self.spark)
        self._speculates = self.spark.sparkContext.getConf().get("spark.speculation", "false").lower() == "true"
        self._run: QueryRun | None = None
        self._coordinator: Coordinator | None = None

    def __call__(self, frame: DataFrame, batch: int) -> None:
        """Run one micro-batch as one epoch."""
        run = current_run(self.spark, self._run)
        if self._run != run:
            self._coordinator, self._read_text = None, checkpoint_reader(self.spark)
        about = epoch_input(self._read_text, run.checkpoint, run.query, batch)
        coordinator = self._coordinator or self._open(run, batch, about)
        if coordinator.admit(batch, about, adopt=self.adopt) is Admission.REPLAY:
            fields = {"pipeline": coordinator.pipeline, "epoch": batch}
            _log.info("epoch %s is completed already: Spark runs it again, nothing is written", batch, extra=fields)
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

    def _open(self, run: QueryRun, batch: int, about: EpochInput) -> Coordinator:
        if run.complete:
            for sink in self.sinks:
                sink.validate_complete_mode()
        name = self.pipeline or run.query
        store = open_log(self.store, run.checkpoint, name)
        check_store(local_store(store), self.spark.sparkContext.master)
        coordinator = Coordinator(name, store, self.sinks, self.policy)
        coordinator.open(rewind=self.rewind, first_epoch=batch, query=run.query, epoch_input=about)
        self._run, self._coordinator = run, coordinator
        return coordinator

    def _write(self, frame: DataFrame, coordinator: Coordinator, batch: int) -> list[Row]:
        contexts = [coordinator.context(sink.name, batch, subtask=-1) for sink in self.sinks]
        try:
            return projected(frame, self.sinks).mapInArrow(EpochTask(self.sinks, contexts), ACK_SCHEMA).collect()
        except BaseException:
            # Partitions that were through hold locks and readers: end them now, not at the next start.
            self._coordinator = None
            with contextlib.suppress(OncewardError):
                coordinator.give_up()
            raise
