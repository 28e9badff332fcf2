"""The stream writer and the batch writer of a onceward format."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from onceward.core.checkpoint import Admission, Coordinator
from onceward.core.errors import ConfigurationError, FencedError, OncewardError, ProtocolError

from .opened import Opened, one_token, open_writer
from .options import (
    FormatOptions,
    batch_epoch,
    batch_pipeline,
    batch_store,
    delete_temporary_log,
    newest_batch,
    read_text,
    temporary_log,
)
from .projection import Projection
from .query import epoch_input
from .store import check_store, master_of_task
from .task import where_am_i, write_partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from onceward.core.log import EpochInput, LogStore
    from onceward.core.transaction import Acknowledgement
    from onceward.sinks.base import TwoPhaseCommitSink

    from .publication import OnComplete

_BATCH, _RUN = "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass(frozen=True)
class WrittenPartition(WriterCommitMessage):
    """What an executor answers: its acknowledgement (None if the epoch was a replay), and under which START."""

    opened: Opened
    acknowledgement: Acknowledgement | None


class _Writer:
    """What streams and batches share: opened once, when it is pickled."""

    def __init__(self, sink: TwoPhaseCommitSink[Any], options: FormatOptions) -> None:
        self.sink = sink
        self.options = options
        self.opened: Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Spark pickles the writer in its first driver process, before any executor runs: start there."""
        if self.opened is None:
            self.opened = self._open()
        return dict(self.__dict__)

    def _open(self) -> Opened:
        raise NotImplementedError

    def _store(self, pipeline: str) -> LogStore:
        raise NotImplementedError

    def _write(
        self, opened: Opened, epoch: int, batches: Iterator[pa.RecordBatch], session: str = ""
    ) -> WrittenPartition:
        check_store(opened.local_store, master_of_task())
        if opened.is_replay(epoch):
            for _ in batches:  # a stateful query must run all the same
                pass
            return WrittenPartition(opened, None)
        subtask, attempt = where_am_i()
        context = opened.context(self.sink.name, epoch, subtask=subtask, attempt=attempt, session=session)
        ack = write_partition([self.sink], [context], Projection([self.sink]), batches, retried=attempt > 0)
        return WrittenPartition(opened, ack)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], epoch: int, about: EpochInput) -> None:
        written = [message for message in messages if isinstance(message, WrittenPartition)]
        if not written:  # Spark runs one empty task even for a batch without partitions
            raise ProtocolError("no partition answered, so nobody can tell under which START; nothing was decided")
        if len(written) < len(messages):  # Spark calls abort() then; invariant 2 does not rely on it
            raise ProtocolError(f"{len(written)} of {len(messages)} partitions answered; nothing was decided")
        opened = one_token([message.opened for message in written])
        coordinator = Coordinator(opened.pipeline, self._store(opened.pipeline), [self.sink], self.options.policy())
        coordinator.resume(opened.token)
        if coordinator.admit(epoch, about, adopt=opened.adopt) is Admission.REPLAY:
            return
        acks = [message.acknowledgement for message in written if message.acknowledgement is not None]
        # Spark does not tell this process of lost attempts and of stages that ran twice: always look for leftovers.
        age = coordinator.policy.monotonic() - opened.since
        coordinator.commit(epoch, acks, about, sweep_after=True, age=age)

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Touch nothing that is decided; else make the decision impossible first, then abort (invariant 4)."""
        written = [message for message in messages if isinstance(message, WrittenPartition)]
        found = [c for m in written if m.acknowledgement is not None for c in m.acknowledgement.committables]
        if not found:
            return
        opened = one_token([message.opened for message in written])
        coordinator = Coordinator(opened.pipeline, self._store(opened.pipeline), [self.sink], self.options.policy())
        try:
            coordinator.resume(opened.token)
            coordinator.give_up()
        except FencedError:
            return  # decided, or a newer writer has started: both look after these transactions


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """Writes each micro-batch of a streaming query as one epoch.

    Args:
        sink: Where it goes.
        options: The common options.
        on_complete: Called after an epoch's COMPLETED entry, with its number and input.
    """

    def __init__(
        self, sink: TwoPhaseCommitSink[Any], options: FormatOptions, on_complete: OnComplete | None = None
    ) -> None:
        super().__init__(sink, options)
        self.on_complete = on_complete

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition of one epoch (executor)."""
        from pyspark import TaskContext  # noqa: PLC0415 - only there on an executor

        context = TaskContext.get()
        batch = context.getLocalProperty(_BATCH) if context is not None else None
        if context is None or batch is None or self.opened is None:
            raise ConfigurationError("this format's stream writer works inside a streaming query only")
        return self._write(self.opened, int(batch), iterator, context.getLocalProperty(_RUN) or "")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Decide and commit the epoch (driver)."""
        root = self.options.checkpoint_root()
        about = epoch_input(read_text, root, self.options.query(), batchId)
        self._commit(messages, batchId, about)
        if self.on_complete is not None:
            self.on_complete(batchId, about)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        """Abort what is not decided (driver). Called with decided messages too, when commit raised."""
        self._abort(messages)

    def _open(self) -> Opened:
        query = self.options.query()
        name = self.options.pipeline or query
        return open_writer(
            name,
            query,
            self._store(name),
            self.sink,
            self.options.policy(),
            adopt=self.options.adopt,
            rewind=self.options.rewind,
            offered=self._offered(query) if self.options.rewind is not None else None,
        )

    def _offered(self, query: str) -> tuple[int, EpochInput]:
        """The epoch that will be written: Spark logs its offsets before it plans the batch."""
        root = self.options.checkpoint_root()
        batch = newest_batch(root)
        return batch, epoch_input(read_text, root, query, batch)

    def _store(self, pipeline: str) -> LogStore:
        return self.options.open_store(pipeline)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """Writes one batch DataFrame as one epoch: idempotent by pipeline and run key, else atomic only."""

    def __init__(self, sink: TwoPhaseCommitSink[Any], options: FormatOptions) -> None:
        super().__init__(sink, options)
        self.run = options.run_key or uuid.uuid4().hex
        self.name = batch_pipeline(options, self.run)
        self.temporary = ""
        """Folder of the decision log if only this run uses it: known to whoever has this writer."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition (executor)."""
        if self.opened is None:
            raise ConfigurationError("this format's writer works inside Spark only")
        return self._write(self.opened, 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decide and commit (driver)."""
        try:
            self._commit(messages, 0, batch_epoch(self.run))
        except OncewardError as error:
            if self.temporary:
                error.add_note(f"The decision log of this run is in {self.temporary}, under the name {self.name}.")
            raise
        delete_temporary_log(self.temporary)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort what is not decided (driver)."""
        self._abort(messages)
        delete_temporary_log(self.temporary)

    def _open(self) -> Opened:
        self.temporary = temporary_log(self.options)
        try:
            return open_writer(self.name, self.run, self._store(self.name), self.sink, self.options.policy())
        except OncewardError:
            delete_temporary_log(self.temporary)
            raise

    def _store(self, pipeline: str) -> LogStore:
        return batch_store(self.options, pipeline, self.temporary)
