"""The stream writer and the batch writer of a onceward format, and what travels between the processes that use one.

Spark asks for a stream writer in two driver-side Python processes per micro-batch: the first creates it and pickles
it, the second creates its own right before commit or abort. So an epoch is opened and admitted when the writer is
pickled, before any executor runs: START, the sweep, and the finishing of decided epochs. What the first process knows
then travels inside the writer and comes back in each commit message. Nothing is kept in a process: it lives on across
batches and even across query runs.

A batch write is one epoch, in a decision log of its own. A pipeline and a run key together name the log, so that a
rerun finds its own decision, however many other runs of the pipeline lie between. Without them a run has a random name
and a temporary log: all rows or none, but a rerun writes them again. That log is in a folder that only this user can
enter, and is deleted when no task of the run can prepare any more (run_folder.py); a run that is killed leaves it in
the system's temporary folder (`onceward-batch-…`), where an operator finds what was decided.

A task of a batch looks at the log again after it has prepared: if the run was given up meanwhile, or another run under
the same key has started, nobody else may be left to end its transaction, so the task does.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from onceward.core.checkpoint import Admission
from onceward.core.contract.names import PIPELINE_LENGTH
from onceward.core.contract.transaction import Acknowledgement, Committable, WriteContext
from onceward.core.errors import ConfigurationError, EpochConflictError, FencedError, OncewardError, ProtocolError
from onceward.core.kit.json_logs import show_if_asked
from onceward.core.log import DirectoryStore, EpochInput, LogStore, Start, WriterToken, read
from onceward.core.log.note_kinds import EpochNote, ErrorNote, FailureNote, StartNote
from onceward.core.log.notes import notes_beside
from onceward.core.run.pipeline_log import check_store_outlives_driver, existing_log, local_store, open_pipeline_log
from onceward.core.run.pipeline_run import PipelineRun

from ..session.options import FormatOptions, check_not_moved
from ..session.processes import observe_if_asked
from ..session.query import epoch_input, newest_batch, read_text, reason
from ..write.spark_task import place, write_partition
from . import run_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from onceward.core.contract.pipeline_settings import FormatSettings
    from onceward.sinks import TwoPhaseCommitSink

    from ..read.kafka_offsets import OnComplete

_BATCH, _RUN = "streaming.sql.batchId", "spark.jobGroup.id"
_DIGEST = 16
_NOTES = 20
"""Number of notes of each kind that are searched for the cause of a failure."""


class OpenedEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch that was opened and admitted.

    Attributes:
        token: Token of the writer that opened the epoch.
        context: Context in which the epoch is written, with subtask and attempt still to be filled in.
        replay: True if the epoch is decided and completed: then nothing is written.
        since: Time before which no transaction of the epoch was begun, in seconds on the monotonic clock, which is the
            same for all processes of a machine.
        local_store: The decision log's store, if one machine alone sees it.
        lost: Transactions that are written again, of an epoch that is decided and visible in part.
        only: The subtasks that write then; None for all.
    """

    token: WriterToken
    context: WriteContext
    replay: bool
    since: float
    local_store: str = ""
    lost: tuple[str, ...] = ()
    only: frozenset[int] | None = None


@dataclass(frozen=True)
class WrittenPartition(WriterCommitMessage):
    """An executor's answer: its acknowledgement (None if the epoch was a replay), and the START it wrote under."""

    opened: OpenedEpoch
    acknowledgement: Acknowledgement | None


class _Writer:
    """The common part of writers of streams and batches."""

    def __init__(self, sink: TwoPhaseCommitSink[Any], options: FormatOptions) -> None:
        observe_if_asked()  # Spark makes it in processes that no user's code runs in
        self.sink = sink
        self.options = options
        self.settings = options.settings
        self.opened: OpenedEpoch | None = None

    def _pipeline(self) -> str:
        raise NotImplementedError

    def _store(self, pipeline: str) -> LogStore:
        raise NotImplementedError

    def _run(self) -> PipelineRun:
        """Return the run as this process knows it: it opens an epoch, or goes on with one that another has opened."""
        return PipelineRun(self._pipeline(), [self.sink], self.options.policy(), self._existing_log, explain=reason)

    def _offered(self) -> tuple[int, EpochInput]:
        """Return the epoch that will be written, and its input."""
        raise NotImplementedError

    def __getstate__(self) -> dict[str, Any]:
        """Start before pickling: Spark pickles the writer in its first driver process, before any executor runs."""
        # Spark pickles it twice, and the epoch is opened once.
        if self.opened is None:
            try:
                self.opened = self._open()
            except Exception as error:
                epoch = None
                # What fails here again may be the very error that is told, so it is not raised in its place.
                with contextlib.suppress(OncewardError):
                    epoch = self._offered()[0]
                with contextlib.suppress(OncewardError):  # its name may be what is missing
                    self._run().failed(epoch, error)
                raise
        return dict(self.__dict__)

    def _existing_log(self) -> LogStore | None:
        """Return the store of the decision log, for notes; None if this process does not see it."""
        raise NotImplementedError

    def _cause(self, epoch: int) -> ErrorNote | None:
        """Return the newest note of why this epoch failed, of the commit or of a task; Spark does not say why."""
        for one in reversed(notes_beside(self._existing_log(), _NOTES)):
            if isinstance(one, ErrorNote) and one.epoch == epoch:
                return one
            if isinstance(one, StartNote | EpochNote):
                break
        return None

    def _open(self) -> OpenedEpoch:
        run = self._run()
        # Taken before anything is opened, so that no transaction of the epoch can be older.
        since = run.policy.monotonic()
        epoch, about = self._offered()
        coordinator = run.open(
            self._store(run.pipeline),
            self._validate,
            epoch=(epoch, about),
            adopt=self.settings["adopt"],
            rewind=self.settings["rewind"],
        )
        admission = coordinator.admit(epoch, about, adopt=self.settings["adopt"])
        lost = coordinator.lost
        return OpenedEpoch(
            lost=() if lost is None else tuple(c.transaction for c in lost.committables),
            only=None if lost is None else lost.writes(self.sink.name),
            token=coordinator.writer.token,
            context=coordinator.context(self.sink.name, epoch, subtask=-1),
            replay=admission is Admission.REPLAY,
            since=since,
            local_store=local_store(coordinator.writer.store),
        )

    def _validate(self) -> None:
        """Check the target before the epoch is written, unless that was done when the writer was made."""

    def _write(self, epoch: int, batches: Iterator[pa.RecordBatch], session: str = "") -> WrittenPartition:
        opened = self.opened
        if opened is None:
            raise ConfigurationError("a format's writer works inside Spark only, which pickles it before it writes")
        check_store_outlives_driver(opened.local_store, place().master)
        if epoch != opened.context.epoch:
            raise EpochConflictError(
                f"Spark writes this epoch, but epoch {opened.context.epoch} was opened: is another query using this "
                "checkpoint?",
                pipeline=opened.context.pipeline,
                epoch=epoch,
            )
        if opened.replay:
            for _ in batches:  # a stateful query must run all the same
                pass
            return WrittenPartition(opened, None)
        # A name must not stand twice in a decision, so a process that heals one uses none that it used before.
        context = msgspec.structs.replace(opened.context, session="" if opened.lost else session)
        return WrittenPartition(opened, write_partition([self.sink], [context], batches, [opened.only]))

    @contextlib.contextmanager
    def _noting_task(self, epoch: int) -> Iterator[None]:
        """Note the failure of a task, if this machine sees the log: the process that aborts is not told why."""
        show_if_asked()
        try:
            yield
        except Exception as error:
            self._run().note_task_failed(epoch, error)
            raise

    @contextlib.contextmanager
    def _noting_commit(self, epoch: int) -> Iterator[None]:
        """Note why a commit failed: what Spark calls next, `abort`, is not told."""
        try:
            yield
        except Exception as error:
            self._run().note_failed(epoch, error)
            raise

    def _commit(self, messages: Sequence[WriterCommitMessage | None], epoch: int, about: EpochInput) -> None:
        written = [message for message in messages if isinstance(message, WrittenPartition)]
        if not written:  # Spark runs one empty task even for a batch without partitions
            raise ProtocolError(
                "no partition returned a commit message, so the START of its writer is unknown. Nothing was decided"
            )
        if len(written) < len(messages):  # Spark calls abort() then; invariant 2 does not rely on it
            raise ProtocolError(f"{len(written)} of {len(messages)} partitions answered; nothing was decided")
        opened, run = self._resumed(written)
        admitted = run.admit(epoch, about, adopt=self.settings["adopt"])
        if admitted.admission is Admission.REPLAY:
            return
        acks = [message.acknowledgement for message in written if message.acknowledgement is not None]
        # Spark does not tell this process of lost attempts and of stages that ran twice: always look for leftovers.
        age = run.policy.monotonic() - opened.since
        admitted.commit(acks, sweep_after=True, age=age)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803 - Spark's
        """Abort what is not decided (driver). Called with decided messages too, when commit raised."""
        why, is_noted = self._why_aborted(batchId, "batch")
        run = self._run()
        run.tell_failed(batchId, why)
        written = [m for m in messages if isinstance(m, WrittenPartition) and m.acknowledgement is not None]
        fenced: FencedError | None = None
        if written:
            try:
                self._resumed(written)[1].give_up()
            except FencedError as error:  # decided, or a newer writer has started: both look after it
                fenced = error
        if not is_noted:  # a commit has noted its own failure
            run.note_failed(batchId, fenced, why)

    def _why_aborted(self, epoch: int, what: str) -> tuple[str, bool]:
        """Return why an epoch failed, as far as that is known, and whether it is noted already."""
        cause = self._cause(epoch)
        why = f"Spark aborted the {what}, because a task or the commit failed"
        if cause is None:
            return why, False
        return f"{why}: {cause.error}", isinstance(cause, FailureNote)

    def _resumed(self, written: Sequence[WrittenPartition]) -> tuple[OpenedEpoch, PipelineRun]:
        opened = written[0].opened
        if any(message.opened.token != opened.token for message in written):
            raise ProtocolError("the commit messages come from different writers; nothing was decided")
        run = self._run()
        run.resume(opened.token, opened.lost, store=self._store(run.pipeline))
        return opened, run


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A writer of each micro-batch of a streaming query as one epoch: `write` on executors, the rest on the driver.

    Args:
        sink: Sink that the epochs are written into.
        options: The common options.
        on_complete: Called after an epoch's COMPLETED entry, with its number and input.
        schema: That of the rows, with which each epoch validates the sink: the process that opens one does not know
            whether it is the first of a run. None: it is not validated.
    """

    def __init__(
        self,
        sink: TwoPhaseCommitSink[Any],
        options: FormatOptions,
        on_complete: OnComplete | None = None,
        *,
        schema: pa.Schema | None = None,
    ) -> None:
        super().__init__(sink, options)
        self.on_complete = on_complete
        self.schema = schema

    def _validate(self) -> None:
        if self.schema is not None:
            self.sink.validate(self.schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext  # noqa: PLC0415 - only there on an executor

        context = TaskContext.get()
        batch = context.getLocalProperty(_BATCH) if context is not None else None
        if context is None or batch is None:
            raise ConfigurationError("this format's stream writer works inside a streaming query only")
        with self._noting_task(int(batch)):
            return self._write(int(batch), iterator, context.getLocalProperty(_RUN) or "")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        about = self._input(batchId)
        with self._noting_commit(batchId):
            self._commit(messages, batchId, about)
        if self.on_complete is not None:
            self.on_complete(batchId, about)

    def _offered(self) -> tuple[int, EpochInput]:
        batch = newest_batch(self.options.checkpoint_root())
        return batch, self._input(batch)

    def _input(self, batch: int) -> EpochInput:
        return epoch_input(read_text, self.options.checkpoint_root(), self.options.query(), batch)

    def _pipeline(self) -> str:
        return self.settings["pipeline"] or self.options.query()

    def _existing_log(self) -> LogStore | None:
        name = None
        with contextlib.suppress(OncewardError):
            name = self._pipeline()
        return existing_log(self.settings["store"], self.options.checkpoint, name)

    def _store(self, pipeline: str) -> LogStore:
        store = self.settings["store"]
        if store is not None:
            check_not_moved(self.options.checkpoint_root(), pipeline)
        return open_pipeline_log(store, self.options.checkpoint_root() if store is None else "", pipeline)


class BatchWriter(_Writer, DataSourceArrowWriter):
    """A writer of one batch DataFrame as one epoch: idempotent by pipeline and run key, else atomic only."""

    def __init__(self, sink: TwoPhaseCommitSink[Any], options: FormatOptions) -> None:
        settings: FormatSettings = {**options.settings, "rewind": None, "adopt": False}  # a run has one epoch
        super().__init__(sink, FormatOptions(**settings))
        self.run_key = settings["run_key"] or uuid.uuid4().hex
        dataset = sink.dataset()
        self.place = dataset[0] if dataset is not None else ""
        """Address of the target, as it was given."""
        pipeline = settings["pipeline"] or "batch"
        target = dataset[1] if dataset is not None else run_folder.target_text(sink)
        identity = json.dumps([pipeline, self.run_key, sink.name, target])
        digest = hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST]
        self.name = f"{pipeline[: PIPELINE_LENGTH - _DIGEST - 1]}.{digest}"
        self.temporary = ""
        """Folder of the decision log if only this run uses it: known to whoever has this writer."""
        self._sees_folder = False
        """Whether a task runs where that folder is."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with self._taking_part():
            if self.temporary and not self._is_open():
                raise FencedError("this batch write has ended already", pipeline=self.name)
            with self._noting_task(0):
                written = self._write(0, iterator)
            if not self._is_open():
                for committable in committables_of([written]):
                    self.sink.abort(committable)  # no decision can name it: nobody was told of it yet
                raise FencedError(
                    "this batch write has ended, was given up, or another one with the same runKey has started; the "
                    "task's rows were rolled back",
                    pipeline=self.name,
                )
        return written

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        try:
            with self._noting_commit(0):
                self._commit(messages, *self._offered())
        except OncewardError as error:
            if self.temporary:
                error.add_note(f"The decision log of this run is in {self.temporary}, under the name {self.name}.")
            raise
        if self.temporary:
            run_folder.end_folder(Path(self.temporary), self.name, self.sink)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: ARG002, N803 - Spark's
        """Abort what is not decided, what tasks prepare from now on included. Spark has not waited for its tasks."""
        why, is_noted = self._why_aborted(0, "batch write")
        run = self._run()
        run.tell_failed(0, why)
        if self.opened is None:
            run.note_failed(0, None, why)
            return
        folder = Path(self.temporary) if self.temporary else None
        if folder is not None:
            run_folder.mark_failed(folder, self.name, self.sink)
        fenced: FencedError | None = None
        try:
            run.resume(self.opened.token, store=self._store(self.name))
            run.give_up()
            # Once more, because a task that was still running may have prepared after the first time.
            if folder is not None and run_folder.wait_for_tasks(folder):
                run.give_up()
        except FencedError as error:  # decided, or another run has started, whose sweep may have come too early
            fenced = error
            self._abort_fenced(run, messages)
        if not is_noted:
            run.note_failed(0, fenced, why)
        if folder is not None and run_folder.has_ended(folder):
            run_folder.delete_folder(folder, self.sink)

    def _abort_fenced(self, run: PipelineRun, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort this run's prepared transactions, if another START has made its decision impossible."""
        assert self.opened is not None  # noqa: S101 - for type checkers
        next_to_own = self.opened.token.last + 1
        # Its decision could only stand right after its last entry, so a START there proves that none ever will.
        if any(isinstance(e, Start) and e.position == next_to_own for e in run.writer().look().entries):
            for committable in committables_of(messages):
                self.sink.abort(committable)

    @contextlib.contextmanager
    def _taking_part(self) -> Iterator[None]:
        """Register this task, so that `abort` waits for it, if the run's folder is on this machine."""
        master, folder = place().master, Path(self.temporary)
        if not self.temporary or (not folder.is_dir() and master is not None and not master.startswith("local")):
            yield
            return
        try:
            with run_folder.taking_part(folder, master):
                self._sees_folder = True
                yield
        except FileNotFoundError:
            # Without its folder the run has ended, because that is deleted when none of its tasks can prepare any more.
            if folder.is_dir():
                raise
            raise FencedError("this batch write has ended already", pipeline=self.name) from None

    def _is_open(self) -> bool:
        """Return whether no other START is in the log, and the run is not completed.

        True also if this machine cannot read the log: others must sweep then. A sweep follows COMPLETED, too, so an
        attempt that lost either finds it here, or is found by that sweep.
        """
        if self.opened is None or self.opened.replay:
            return True
        if self.temporary and not Path(self.temporary).is_dir():
            return not self._sees_folder  # deleted when the run had ended
        try:
            view = read(self._store(self.name, existing=True))
        except OncewardError:
            return True
        newest = (view.writer_id, view.start) == (self.opened.token.writer_id, self.opened.token.start)
        return newest and view.completed < self.opened.context.epoch

    def _open(self) -> OpenedEpoch:
        if all(self.settings[name] is None for name in ("store", "run_key", "pipeline")):
            run_folder.sweep_failed_runs(self.sink, self.options.policy())
            self.temporary = run_folder.new_folder()
        try:
            return super()._open()
        except EpochConflictError as error:
            self._delete_unused_log()
            error.add_note(
                "If this runKey was already used for a target of the same name at another address, nothing was "
                "written here. Give the address that was used then, or another runKey if this is another server."
            )
            error.add_note(
                "A batch write takes no rewind. Restore the store that held the decision of this runKey; or give "
                "another runKey, which writes the rows again."
            )
            raise
        except OncewardError:
            self._delete_unused_log()
            raise

    def _offered(self) -> tuple[int, EpochInput]:
        return 0, EpochInput(query=self.run_key, end=self.place)  # the caller says by the run key that it is the same

    def _pipeline(self) -> str:
        return self.name

    def _existing_log(self) -> LogStore | None:
        with contextlib.suppress(OncewardError):
            return self._store(self.name, existing=True) if self.settings["run_key"] is not None else None
        return None

    def _store(self, pipeline: str, *, existing: bool = False) -> LogStore:
        given, run_key = self.settings["store"], self.settings["run_key"]
        if (self.settings["pipeline"] is None) != (run_key is None):
            raise ConfigurationError(
                "options pipeline and runKey go together: give both for an idempotent run, or neither"
            )
        if given is None and run_key is None:
            return DirectoryStore(self.temporary, shared=True)  # no other driver will look for it
        if given is None:
            raise ConfigurationError(
                "an idempotent batch write needs option('store', …): a folder or database where its decision is kept, "
                "for example '/var/lib/onceward' or 'postgresql+psycopg://user@host/db'"
            )
        store = str(given)
        if store.startswith("file:"):  # a folder of the run's own; other stores keep pipelines apart by themselves
            folder, mark, query = store.partition("?")
            store = f"{folder.rstrip('/')}/{pipeline}{mark}{query}"
        elif "://" not in store:
            store = f"{store.rstrip('/')}/{pipeline}"
        return open_pipeline_log(store, "", pipeline, existing=existing)

    def _delete_unused_log(self) -> None:
        if self.temporary:
            run_folder.delete_folder(Path(self.temporary), self.sink)


def committables_of(messages: Sequence[WriterCommitMessage | None]) -> list[Committable]:
    """Return the prepared transactions of the tasks that answered."""
    acks = [m.acknowledgement for m in messages if isinstance(m, WrittenPartition)]
    return [committable for ack in acks if ack is not None for committable in ack.committables]
