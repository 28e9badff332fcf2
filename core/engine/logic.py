"""What a task does with rows and barriers, apart from channels and threads: the base, and operators without state."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from ..errors import OncewardError, OperatorError, named_text_of
from .mixed_records import cut_by_shape, is_mixed, records_of
from .records import Record, batches, copied
from .state.handles import SubtaskState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..contract.transaction import Committable, Written
    from .channels import Barrier, TaskId
    from .state.storage import CheckpointStorage

P = ParamSpec("P")
T = TypeVar("T")
_LONGEST = 500
_RECORDS_AT_ONCE = (16, 64)
"""Numbers of records after which the time is checked: the first time, and each later time."""


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items in their order, a few at a time."""
    first, later = _RECORDS_AT_ONCE
    yield items[:first]
    for at in range(first, len(items), later):
        yield items[at : at + later]


class Frozen(NamedTuple):
    """The result of the synchronous part of a snapshot."""

    write: Callable[[CheckpointStorage | None, str], tuple[SubtaskState, int]]
    """The asynchronous part: writes the state out; returns handles, and how many bytes were written."""
    committables: tuple[Committable, ...] = ()
    discard: Callable[[], None] = lambda: None
    """Free what the freezing holds; called once, at the end."""
    written: Written | None = None
    """The work of a sink since the last barrier; None for other tasks."""


def nothing_to_write(_storage: CheckpointStorage | None, _folder: str) -> tuple[SubtaskState, int]:
    """Write nothing, as the asynchronous part of a task without state."""
    return SubtaskState(), 0


class Logic:
    """Work of one subtask of one operator, used by one thread at a time. The base class passes rows on (union)."""

    def open(self) -> None:
        """Prepare for work, once, before anything else."""

    def rows(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        """Handle rows; return the resulting ones."""
        return [batch]

    reads_mixed = True
    """True if it takes batches of records of several shapes as they are; otherwise they are cut first."""
    joins = False
    """True if small parts are joined first: rows that a sink gets at once may become a request, or a row group."""

    @property
    def lag(self) -> int | None:
        """Rows, or numbers of rows, that a source has seen and not read; None if it does not know."""
        return None

    @property
    def timers_set(self) -> int | None:
        """The number of timers that are set; None where there can be none."""
        return None

    def some_rows(
        self,
        batch: pa.RecordBatch,
        enough: Callable[[], bool],  # noqa: ARG002 - for subclasses
    ) -> tuple[int, Sequence[pa.RecordBatch]]:
        """Handle the first rows of a batch, one at least, until `enough`; return their number and the results."""
        parts = [batch] if self.reads_mixed else cut_by_shape(batch)
        return batch.num_rows, [output for part in parts for output in self.rows(part)]

    def timers(self, now: float, enough: Callable[[], bool]) -> Sequence[pa.RecordBatch] | None:  # noqa: ARG002 - for subclasses
        """Handle timers that are due until it is enough, at least one; None if none is due."""
        return None

    def next_timer(self) -> float | None:
        """Return when the next timer is due, in processing time (seconds since 1970)."""
        return None

    def finish(self) -> Sequence[pa.RecordBatch]:
        """Return the rows that were held back, when the input has ended."""
        return []

    def before_barrier(self, barrier: Barrier) -> Sequence[pa.RecordBatch]:  # noqa: ARG002 - for subclasses
        """Return the rows that still belong before the barrier."""
        return []

    def freeze(self, barrier: Barrier) -> Frozen:  # noqa: ARG002 - for subclasses
        """Run the synchronous part of a snapshot; return the asynchronous part.

        Raises:
            StateError: It cannot be made, and nothing has changed: the checkpoint is declined.
        """
        return Frozen(nothing_to_write)

    def confirm(self, checkpoint: int) -> None:
        """Confirm a checkpoint: it is completed and committed."""

    def close(self) -> None:
        """Release resources, once at the end, also after a failure, possibly without open."""


class Guarded:
    """Calls a user's function so that an error names the operator, the subtask and the record."""

    def __init__(self, task: TaskId, schema: pa.Schema | None) -> None:
        self.task = task
        self._schema = schema

    def call(self, at: Any, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function and return its result; an error names `at`, the record or whatever it was called with."""
        try:
            return function(*args, **kwargs)
        except OncewardError:
            raise
        except Exception as error:
            raise self.failed(at, error) from error

    def listed(
        self, at: Any, function: Callable[P, Iterable[Record] | None], *args: P.args, **kwargs: P.kwargs
    ) -> list[Record]:
        """Call a function and return all records that it gives, which may be none."""
        return self.call(at, lambda: list(copies(function(*args, **kwargs) or ())))

    def done(self, at: Any, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call a function that returns when its work is done, and refuse one that is not done then."""
        answer = self.call(at, function, *args, **kwargs)
        if isinstance(answer, Awaitable):
            raise self.failed(at, TypeError(f"it returned a {no_answer(answer)}, for which nobody waits"))

    def failed(self, at: Any, error: Exception) -> OperatorError:
        shown = repr(at)
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
        return OperatorError(
            f"operator {self.task.uid}, subtask {self.task.subtask}: {named_text_of(error)}; at {shown}"
        )

    def batch(self, records: Sequence[Record]) -> list[pa.RecordBatch]:
        """Convert records to batches.

        What cannot be converted together is tried in halves. This finds the record that cannot be converted, and makes
        several batches of values that have more bytes than one Arrow array can hold (2 GiB).

        Raises:
            OperatorError: A record cannot be converted; it names the first one.
        """
        try:
            return list(batches(records, self._schema))
        except (pa.ArrowException, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
            if len(records) > 1:
                half = len(records) // 2
                return self.batch(records[:half]) + self.batch(records[half:])
            (record,) = records
            if isinstance(record, Mapping):
                raise self.failed(record, error) from error
            no_record = TypeError(f"a record must be a dictionary, not {type(record).__name__}")
            raise self.failed(record, no_record) from error


def copies(records: Iterable[Record]) -> Iterator[Record]:
    """Return copies of the records that a function gives, each made when it is given; refuse what are no records."""
    if not isinstance(records, Iterable):
        raise TypeError(f"a function must return or yield records, not {no_answer(records)}")
    return map(copied, records)


def is_true(answer: Any) -> bool:
    """Return whether the answer of a predicate is true; refuse one that is always true, such as a coroutine."""
    if answer is True or answer is False:
        return answer
    kind = type(answer)
    if hasattr(kind, "__bool__") or hasattr(kind, "__len__"):
        return bool(answer)
    raise TypeError(f"filter's function must return True or False, not {no_answer(answer)}")


def no_answer(answer: Any) -> str:
    """Return how an answer is called that cannot be used, and close it if it is a coroutine, which would complain."""
    if isinstance(answer, Coroutine):
        answer.close()
    return type(answer).__name__


class RecordLogic(Logic):
    """map, filter, flat_map: a function of single records."""

    def __init__(self, kind: str, guarded: Guarded, function: Callable[[Record], Any]) -> None:
        self._kind = kind
        self._guarded = guarded
        self._function = function

    def some_rows(self, batch: pa.RecordBatch, enough: Callable[[], bool]) -> tuple[int, Sequence[pa.RecordBatch]]:
        plain = self._kind == "filter" and not is_mixed(batch)
        answers: list[Any] = []
        for records in chunks(batch.to_pylist() if plain else records_of(batch)):
            answers += [self._guarded.call(record, self._answer, record) for record in records]
            if enough():
                break
        return len(answers), self._made(batch.slice(0, len(answers)), answers)

    def _made(self, batch: pa.RecordBatch, answers: list[Any]) -> Sequence[pa.RecordBatch]:
        if self._kind == "map":
            return self._guarded.batch(answers)
        if self._kind == "flat_map":
            return self._guarded.batch([record for answer in answers for record in answer])
        if all(answers):
            return [batch]
        return [batch.filter(pa.array(answers, pa.bool_()))] if any(answers) else []

    def _answer(self, record: Record) -> Any:
        answer = self._function(record)
        if self._kind == "flat_map":
            return list(copies(answer))
        return is_true(answer) if self._kind == "filter" else copied(answer)


class BatchLogic(Logic):
    """map_batches, and filter by record batches: a function of record batches."""

    reads_mixed = False

    def __init__(
        self, guarded: Guarded, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema | None = None
    ) -> None:
        self._guarded = guarded
        self._function = function
        self._schema = schema

    def rows(self, batch: pa.RecordBatch) -> Sequence[pa.RecordBatch]:
        return [self._guarded.call(batch.schema.names, self._made, batch)]

    def _made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        output = self._function(batch)
        if not isinstance(output, pa.RecordBatch):
            raise TypeError(f"map_batches must return a pyarrow.RecordBatch, not {no_answer(output)}")
        return output if self._schema is None else output.cast(self._schema)


class RowFilter:
    """Those rows of a batch for which an Arrow expression, or a function's mask, is true: neither false nor null."""

    def __init__(self, predicate: pc.Expression | Callable[[pa.RecordBatch], Any]) -> None:
        self.predicate = predicate

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if isinstance(self.predicate, pc.Expression):
            return batch.filter(self.predicate)
        mask = self.predicate(batch)
        if not isinstance(mask, pa.Array | pa.ChunkedArray) or not pa.types.is_boolean(mask.type):
            what = mask.type if isinstance(mask, pa.Array | pa.ChunkedArray) else no_answer(mask)
            raise TypeError(f"filter(batches=True) needs a pyarrow.BooleanArray with one value per row, not {what}")
        return batch.filter(mask)
