"""Isolate the rows that a target refuses for their values, so that an epoch can be decided without them.

A subtask whose transaction is refused rolls it back, and finds the refused rows by halving: each half that the target
takes holds none. Why this does not weaken the protocol:

1. Each trial is a transaction like any other, prepared and then aborted. No acknowledgement names it, so no decision
   can, and the sweep ends those of a process that died in between. So it may be aborted without barring anything.
2. What is acknowledged is one transaction that holds all other rows of the subtask, prepared as a whole.
3. Halves may be taken alone and not together, for example two rows with one key. If what is left is refused again,
   each trial also holds everything that was accepted before. Of rows that exclude each other the first one stays.
4. A row is refused only where it is the only new one, after all accepted rows before it (rule Y), because it may refer
   to one of them, as a child to its parent. So a row that is refused alone is tried once more after them, unless the
   error says that its own values are the reason (`refuses_alone`). If it is taken then, or if what is left is refused
   again, so that this trial proved nothing, all rows are tried again, each trial as in (3).
5. Rows that exclude each other count for the limit as soon as they are found: of a range that was refused although each
   of its rows is taken alone, at least one row will be refused, and no two such ranges share a row.

A fault (no answer, a lock, a full disk) is never taken for a refusal: it fails the attempt, as without isolation.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..errors import DeadLetterLimitError, ExternalError, OncewardError, text_of
from .subtask import SubtaskEpoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..contract.sink import TwoPhaseCommitSink
    from ..contract.transaction import Committable, WriteContext, Written

IN_MEMORY: Final = 32 * 2**20
"""Bytes of a subtask's rows that are kept in memory."""


class Spool:
    """Keeps the batches of a subtask until it has prepared: in memory first, then in a file without a name.

    Args:
        in_memory: Bytes to keep in memory.
    """

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        self._left = in_memory
        self._kept: list[pa.RecordBatch] = []
        self._file: Any = None
        self._writer: Any = None
        self._reader: Any = None
        self._spilled = 0
        self._last: tuple[int, pa.RecordBatch] | None = None

    def __len__(self) -> int:
        return len(self._kept) + self._spilled

    def __getitem__(self, number: int) -> pa.RecordBatch:
        if number < len(self._kept):
            return self._kept[number]
        if self._last is None or self._last[0] != number:  # trials and dead letters ask for the same one many times
            self._last = number, self._read(number - len(self._kept))
        return self._last[1]

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch. All have the schema of the first one.

        Raises:
            ExternalError: The folder for temporary files cannot take it.
        """
        self._left -= batch.nbytes
        if self._left >= 0:
            self._kept.append(batch)
            return
        with _naming_the_folder():
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="onceward-")  # noqa: SIM115 - closed by `close`
                self._writer = pa.ipc.new_file(pa.PythonFile(self._file, "w"), batch.schema)
            self._writer.write_batch(batch)
        self._spilled += 1

    def _read(self, number: int) -> pa.RecordBatch:
        with _naming_the_folder():
            if self._reader is None:
                self._writer.close()
                self._reader = pa.ipc.open_file(pa.PythonFile(self._file, "r"))
            return self._reader.get_batch(number)

    def close(self) -> None:
        """Forget everything."""
        self._kept, self._last = [], None
        if self._file is not None:
            self._file.close()


@contextmanager
def _naming_the_folder() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExternalError(
            f"a task cannot keep its rows until it has prepared them, as it must where refused rows go to dead "
            f"letters: {text_of(error)}. Make room in {tempfile.gettempdir()}, or give the executors another folder in "
            "TMPDIR"
        ) from error


class _RelatedRows(Exception):  # noqa: N818 - it is a signal, not a fault
    """A row is taken after others, and not alone."""


class Isolation:
    """One sink in one subtask, whose transaction was refused.

    Args:
        sink: Sink whose transaction was refused.
        context: Context of the subtask.
        parts: Function that returns the rows of the sink in a batch that the subtask got, by the batch's number.
        sizes: Numbers of the sink's rows in these batches, in the same order.
        most: Number of refused rows above which to stop; None for any number.
        limit: The limit in words, if it is another one than a number of rows.
    """

    def __init__(
        self,
        sink: TwoPhaseCommitSink[Any],
        context: WriteContext,
        parts: Callable[[int], pa.RecordBatch],
        sizes: list[int],
        *,
        most: int | None,
        limit: str = "",
    ) -> None:
        self._sink, self._context, self._parts, self._most, self._limit = sink, context, parts, most, limit
        self._starts = [0, *accumulate(sizes)]
        self.refused: dict[int, OncewardError] = {}
        """The refused rows, by their place in the subtask, and why."""
        self._excluding = 0
        """Number of ranges that are refused although each of their rows is taken alone (5)."""

    def write(self, error: OncewardError) -> tuple[Committable | None, Written]:
        """Write the rows that the target takes into one transaction (2), and return it.

        Args:
            error: Error with which the transaction of all rows was refused.

        Raises:
            DeadLetterLimitError: More rows than allowed are refused.
            OncewardError: The target fails in another way, or refuses rows together that it takes one by one.
        """
        total = self._starts[-1]
        if total == 1:
            self._refuse(0, error)
            return self._prepared()
        try:
            self._halve(0, total, error, accepted=None)
            return self._prepared()
        except _RelatedRows:
            pass
        except OncewardError as together:
            if not together.refuses_rows:
                raise
            error = together
        self._excluding, self.refused = 0, {}  # which rows these are is found now
        self._halve(0, total, error, accepted=[])
        return self._prepared()

    def _prepared(self) -> tuple[Committable | None, Written]:
        epoch = SubtaskEpoch(self._sink, self._context)
        try:
            for begin, end in self._accepted(self._starts[-1]):
                for rows in self._rows(begin, end):
                    epoch.write(rows)
            return epoch.pre_commit(), epoch.written
        except BaseException:
            epoch.discard()
            raise

    def _accepted(self, before: int) -> list[tuple[int, int]]:
        """Return the ranges of rows between the refused ones, up to row `before`."""
        refused = sorted(number for number in self.refused if number < before)
        ends, begins = [*refused, before], [0, *(number + 1 for number in refused)]
        return [(begin, end) for begin, end in zip(begins, ends, strict=True) if begin < end]

    def _halve(self, begin: int, end: int, error: OncewardError, accepted: list[tuple[int, int]] | None) -> None:
        """Find the refused rows in a range of several that was refused as a whole, with this error."""
        middle = (begin + end) // 2
        if not self._try(begin, middle, accepted):
            self._try(middle, end, accepted)
        elif end - middle > 1:  # they must be in the other half, unless it is taken alone (3)
            self._halve(middle, end, error, accepted)
        elif self._try(middle, end, accepted) and accepted is None:  # otherwise it has an error of its own
            self._excluding += 1  # (5)
            self._check_limit(error)

    def _try(self, begin: int, end: int, accepted: list[tuple[int, int]] | None) -> bool:
        """Have the target take a range of rows, after those that were accepted (3); halve it if it is refused.

        Returns:
            Whether it was taken as a whole.
        """
        error = self._refusal([*(accepted or ()), (begin, end)])
        before = self._accepted(begin)
        alone = accepted is None and end - begin == 1
        if error is not None and alone and before and not error.refuses_alone:
            error = self._refusal([*before, (begin, end)])  # (4)
            if error is None:
                raise _RelatedRows
        if error is None:
            if accepted is not None:
                accepted.append((begin, end))
            return True
        if end - begin == 1:
            self._refuse(begin, error)
        else:
            self._halve(begin, end, error, accepted)
        return False

    def _refusal(self, spans: list[tuple[int, int]]) -> OncewardError | None:
        """Have the target take ranges of rows, and give them up again; return why it refuses them, if it does."""
        epoch = SubtaskEpoch(self._sink, self._context)
        try:
            for span in spans:
                for rows in self._rows(*span):
                    epoch.write(rows)
            committable = epoch.pre_commit()
        except OncewardError as error:
            epoch.discard()
            if not error.refuses_rows:
                raise
            return error
        except BaseException:
            epoch.discard()
            raise
        if committable is not None:
            self._sink.abort(committable)  # (1)
        return None

    def _refuse(self, row: int, error: OncewardError) -> None:
        self.refused[row] = error
        self._check_limit(error)

    def _check_limit(self, error: OncewardError) -> None:
        count = len(self.refused) + self._excluding
        if self._most is not None and count > self._most:
            counts = reasons(self._sink, {0: error})
            raise over_limit(self._context, count, self._limit or f"{self._most} rows", counts)

    def _rows(self, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        number = bisect_right(self._starts, begin) - 1
        while begin < end:
            start, stop = self._starts[number], self._starts[number + 1]
            if begin < stop:
                yield self._parts(number).slice(begin - start, min(end, stop) - begin)
                begin = min(end, stop)
            number += 1


def reasons(sink: TwoPhaseCommitSink[Any], refused: Mapping[int, OncewardError]) -> dict[str, int]:
    """Return how often each reason was given, for a message to people."""
    counts: dict[str, int] = {}
    for error in refused.values():
        reason = _reason(sink, error)
        counts[reason] = counts.get(reason, 0) + 1
    return counts


def _reason(sink: TwoPhaseCommitSink[Any], error: OncewardError) -> str:
    return f"sink {sink.name}: {error.message}"


def over_limit(context: WriteContext, count: int, limit: str, counts: Mapping[str, int]) -> DeadLetterLimitError:
    """Return the error for too many refused rows."""
    first = "; ".join(list(counts)[:_TOLD])
    return DeadLetterLimitError(
        f"targets refuse more than {limit} of this epoch ({count} so far), so it is given up, and a restart writes it "
        f"again. {first}. Correct the query or the table, or raise max_dead_letters",
        pipeline=context.pipeline,
        epoch=context.epoch,
    )


_TOLD: Final = 3
"""Number of reasons in a message."""
