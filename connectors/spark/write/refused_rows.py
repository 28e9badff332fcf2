"""What an executor, or the driver, does with its partition of an epoch where refused rows go to a dead-letter sink.

As task.write_partition, but a sink whose transaction is refused for the values of rows is left out of the rest of the
pass. When all rows are through, its refused rows are isolated, and the others written (core/checkpoint/isolation.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from onceward.core.checkpoint.isolation import Isolation, Spool, reasons
from onceward.core.checkpoint.subtask import DirectlyWritten, SubtaskEpoch
from onceward.core.contract.dead_letters import SOURCE, letters_of, rows_for, source_position
from onceward.core.contract.pipeline_settings import DEFAULT_LIMIT
from onceward.core.contract.transaction import Acknowledgement
from onceward.core.errors import OncewardError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from onceward.core.contract.transaction import Committable, WriteContext, Written
    from onceward.sinks import TwoPhaseCommitSink

SOURCE_COLUMN: Final = "source"
"""Column beside those of the sinks that says where a row came from."""
_REASONS: Final = 10
"""Different reasons that a subtask reports."""
_LETTERS: Final = 1000
_LETTER_BYTES: Final = 4 * 2**20
"""Number and bytes of dead letters that are written together."""


@dataclass(frozen=True)
class Letters:
    """Settings with which a subtask writes dead letters.

    Attributes:
        sink: Sink that takes the dead letters.
        context: Context of their transactions, with subtask and attempt still to be filled in.
        most: Number of refused rows above which a subtask stops; None for any number.
        written: True if dead letters are written; False if the epoch lost other rows and is written again.
        share: Share of its own rows above which a subtask stops, once it is above DEFAULT_LIMIT rows: few rows say
            little of the others. None for any.
    """

    sink: TwoPhaseCommitSink[Any]
    context: WriteContext
    most: int | None
    written: bool = True
    share: float | None = None

    def limit(self, rows: int) -> tuple[int | None, str]:
        """Return the limit of a subtask that has so many rows, and how it is told if that is not as a number."""
        if self.share is None:
            return self.most, ""
        most = max(DEFAULT_LIMIT, int(self.share * rows))
        return most, f"{most} of {rows} rows of a task for one sink, and so more than the share that is allowed"


class IsolatingPartition:
    """One partition of an epoch, whose sinks may refuse rows.

    Args:
        epochs: Epoch of the subtask for each sink, in the order of the sinks.
        writing: The numbers of those that write.
        part: The rows of a sink, by its number, in a batch.
        source: Function that returns the columns that say where these rows came from, in the same order; None if
            nothing does.
        letters: Settings of the dead letters, to which refused rows go.
        context: Context of the dead letters' transaction.

    Attributes:
        letters: The dead letters' epoch.
    """

    def __init__(
        self,
        epochs: Sequence[SubtaskEpoch],
        writing: Sequence[int],
        part: Callable[[pa.RecordBatch, int], pa.RecordBatch],
        source: Callable[[pa.RecordBatch, int], pa.RecordBatch | None],
        *,
        letters: Letters,
        context: WriteContext,
    ) -> None:
        self._epochs, self._writing, self._part, self._source = epochs, writing, part, source
        self._settings, self.letters = letters, SubtaskEpoch(letters.sink, context)
        self._sizes: dict[int, list[int]] = {number: [] for number in writing}
        self._refusals: dict[int, OncewardError] = {}
        self._spool = Spool()
        self._told: dict[str, int] = {}

    def write(self, batches: Iterable[pa.RecordBatch]) -> Acknowledgement:
        """Write all rows, prepare, and acknowledge; on any failure roll back what is not prepared."""
        try:
            for batch in batches:
                self._spool.add(batch)
                for number in self._writing:
                    rows = self._part(batch, number)
                    self._sizes[number].append(rows.num_rows)
                    if number not in self._refusals:
                        self._attempt(number, partial(SubtaskEpoch.write, batch=rows))
            prepared: list[Committable | None] = []
            written: list[Written] = []
            for number, epoch in enumerate(self._epochs):
                committable = None
                if number in self._writing and number not in self._refusals:
                    committable = self._attempt(number, SubtaskEpoch.pre_commit)
                amount = epoch.written
                if number in self._refusals:
                    committable, amount = self._isolate(number)
                prepared.append(committable)
                written.append(amount)
            if self._settings.written:
                prepared.append(self.letters.pre_commit())
                written.append(self.letters.written)
            return self._acknowledge(prepared, written)
        finally:
            self._spool.close()

    def _attempt(self, number: int, step: Callable[[SubtaskEpoch], Any]) -> Any:
        """Do a step of a sink; if it refuses rows, note that and roll it back."""
        epoch = self._epochs[number]
        try:
            return step(epoch)
        except OncewardError as error:
            # What a direct sink has written is visible already, so it cannot be rolled back and written without some.
            if not error.refuses_rows or isinstance(epoch.sink, DirectlyWritten):
                raise
            epoch.discard()
            self._refusals[number] = error
            return None

    def _isolate(self, number: int) -> tuple[Committable | None, Written]:
        epoch, sizes = self._epochs[number], self._sizes[number]
        most, limit = self._settings.limit(sum(sizes))
        isolation = Isolation(
            epoch.sink,
            epoch.context,
            lambda at: self._part(self._spool[at], number),
            sizes,
            most=most,
            limit=limit,
        )
        committable, written = isolation.write(self._refusals[number])
        self._told |= reasons(epoch.sink, isolation.refused)
        if self._settings.written and isolation.refused:
            self._write_letters(number, isolation.refused)
        return committable, msgspec.structs.replace(written, refused=len(isolation.refused))

    def _write_letters(self, number: int, refused: Mapping[int, OncewardError]) -> None:
        """Write the dead letters of a sink, a few megabytes at a time: the rows may be large, and many."""
        letters: list[pa.RecordBatch] = []
        size = 0
        for place in sorted(refused):
            letters.append(self._letter(number, place, refused[place]))
            size += letters[-1].nbytes
            if size > _LETTER_BYTES or len(letters) == _LETTERS:
                self._write_together(letters)
                letters, size = [], 0
        if letters:
            self._write_together(letters)

    def _write_together(self, letters: Sequence[pa.RecordBatch]) -> None:
        for batch in pa.Table.from_batches(letters).combine_chunks().to_batches():
            self.letters.write(rows_for(self._settings.sink, batch))

    def _letter(self, number: int, place: int, error: OncewardError) -> pa.RecordBatch:
        at = 0
        for size in self._sizes[number]:
            if place < size:
                break
            place, at = place - size, at + 1
        batch = self._spool[at]
        source = self._source(batch, number)
        where = {} if source is None else source_position(source.slice(place, 1))
        row = self._part(batch, number).slice(place, 1)
        return letters_of(self._epochs[number].context, row, error, where)

    def _acknowledge(self, prepared: Sequence[Committable | None], written: Sequence[Written]) -> Acknowledgement:
        context = self.letters.context
        names = [epoch.context.sink for epoch in self._epochs]
        return Acknowledgement(
            epoch=context.epoch,
            subtask=context.subtask,
            attempt=context.attempt,
            sinks=tuple([*names, context.sink] if self._settings.written else names),
            committables=tuple(committable for committable in prepared if committable is not None),
            retried=context.attempt > 0 or bool(self._refusals),
            written=tuple(written),
            refused=dict(list(self._told.items())[:_REASONS]),
        )


def source_of(batch: pa.RecordBatch, rows: pa.Array | None) -> pa.RecordBatch | None:
    """Return where the rows of a batch came from; None if it does not say.

    Args:
        batch: Rows with the columns of SOURCE, or with SOURCE_COLUMN beside those of the sinks.
        rows: The sink's column, null where a row is not for it; None if the batch has the rows themselves.
    """
    if rows is None:
        return batch.select(SOURCE) if set(SOURCE) <= set(batch.schema.names) else None
    if SOURCE_COLUMN not in batch.schema.names:
        return None
    column = batch.column(SOURCE_COLUMN)
    return pa.RecordBatch.from_struct_array(column.filter(rows.is_valid()) if rows.null_count else column)
