"""Sources: resettable, so that an epoch can be read again exactly as it was. The ready ones are in `onceward`.

SequenceSource, which needs no system, is here.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

from onceward.core.contract.source import LiveSource, Piece, Position, ResettableSource, Source, Split
from onceward.core.errors import ConfigurationError, SourceError
from onceward.core.kit.pieces import PIECE_BYTES, join_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "LiveSource",
    "Piece",
    "Position",
    "ResettableSource",
    "SequenceSource",
    "Source",
    "Split",
]

BATCH_ROWS: Final = 1000


class SequenceSource(ResettableSource):
    """Rows out of a table or a list of dicts, distributed among units whose rows keep their order.

    For tests, examples and back-fills.

    Args:
        rows: The rows: a `pyarrow.Table`, or dicts.
        units: Number of parts among which the rows are distributed, one by one. Each part is read by one subtask, so at
            most this many subtasks read.
        batch_rows: Maximum number of rows in one batch; large rows make smaller batches (about 16 MiB).
        schema: Arrow schema. Default: the table's own, or inferred from the dicts.

    Raises:
        ConfigurationError: A setting is wrong.
    """

    def __init__(
        self,
        rows: pa.Table | Sequence[Mapping[str, Any]],
        *,
        units: int = 1,
        batch_rows: int = BATCH_ROWS,
        schema: pa.Schema | None = None,
    ) -> None:
        if units < 1 or batch_rows < 1:
            raise ConfigurationError(f"units and batch_rows must be 1 or more, not {units} and {batch_rows}")
        if not isinstance(rows, pa.Table) and not all(isinstance(row, Mapping) for row in rows):
            raise ConfigurationError("rows must be a pyarrow.Table or dicts")
        table = rows if isinstance(rows, pa.Table) else _table(rows, schema)
        self._table = table.cast(schema) if schema is not None else table
        self._units = units
        self._batch_rows = batch_rows
        self._mine = range(units)

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def bounded(self) -> bool:
        return True

    def start(self) -> Position:
        """Return the beginning of each unit."""
        return {str(unit): 0 for unit in self._mine}

    def end(self) -> Position:
        """Return the end of each unit."""
        return {str(unit): self._size(unit) for unit in self._mine}

    def latest(self, position: Position, limit: int | None = None, until: Position | None = None) -> Position:
        ends = until if until is not None else self.end()
        for unit, at in position.items():
            if at > self._size(int(unit)):
                raise SourceError(f"unit {unit} of the sequence has {self._size(int(unit))} rows; {at} were read")
        if limit is None:
            return {unit: max(at, ends.get(unit, at)) for unit, at in position.items()}
        each = max(1, limit // max(1, len(position)))
        return {unit: max(at, min(ends.get(unit, at), at + each)) for unit, at in position.items()}

    def splits(self, start: Position, end: Position, parallelism: int = 1) -> Sequence[Split]:  # noqa: ARG002 - units are not cut
        return [Split(unit, start.get(unit, 0), to) for unit, to in sorted(end.items()) if start.get(unit, 0) < to]

    def read(self, split: Split) -> Iterator[Piece]:
        unit = int(split.unit)
        if split.end > self._size(unit):
            raise SourceError(f"unit {unit} of the sequence has {self._size(unit)} rows; row {split.end} was asked for")
        step = self._rows_at_once()
        for at in range(split.start, split.end, step):
            to = min(split.end, at + step)
            rows = pa.array(range(unit + at * self._units, unit + to * self._units, self._units), pa.int64())
            done = at
            for batch in join_batches(self._table.take(rows).to_batches()):
                done += batch.num_rows
                yield Piece(batch, done)

    def advance(self, position: Position, split: Split, to: int) -> Position:
        return {**position, split.unit: to}

    def share(self, subtask: int, parallelism: int) -> Self:
        """Return the part with every unit whose number leaves `subtask` when divided by `parallelism`."""
        part = copy.copy(self)
        part._mine = range(subtask, self._units, parallelism)  # noqa: SLF001 - its own copy
        return part

    def merge(self, positions: Sequence[Position]) -> Position:
        merged = {unit: at for position in positions for unit, at in position.items()}
        if merged.keys() != {str(unit) for unit in range(self._units)}:
            raise SourceError(
                f"the stored position has {len(merged)} units, and the sequence has {self._units}: the number of units "
                "must not change"
            )
        return {str(unit): merged.get(str(unit), 0) for unit in self._mine}

    def _rows_at_once(self) -> int:
        """Return the number of rows in one batch: fewer than `batch_rows` where they are large."""
        average: int = self._table.nbytes // max(1, self._table.num_rows)
        return min(self._batch_rows, max(1, PIECE_BYTES // max(1, average)))

    def _size(self, unit: int) -> int:
        return len(range(unit, self._table.num_rows, self._units))


def _table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    """Make a table with all fields of all rows; pyarrow itself takes the first row's, and drops the others."""
    names = dict.fromkeys(name for row in rows for name in row)
    if schema is None:
        return pa.Table.from_pydict({name: [row.get(name) for row in rows] for name in names})
    if unknown := [name for name in names if name not in schema.names]:
        raise ConfigurationError(f"rows have fields {unknown}, which are not in the schema {schema.names}")
    return pa.Table.from_pylist(list(rows), schema=schema)
