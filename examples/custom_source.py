"""A custom source: the rows of an SQLite table, which can be read again from any position."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Self

import pyarrow as pa

from onceward import ResettableSource
from onceward.errors import SourceError
from onceward.sources import Piece, Split

Position = Mapping[str, int]  # of each shop, the number of the next order: a JSON value


class OrdersSource(ResettableSource):
    """Table orders(shop TEXT, number INTEGER, n INTEGER): each shop numbers its orders 0, 1, 2, … and changes none.

    Its units are the shops: each is read by one subtask, in the order of the numbers.
    """

    def __init__(
        self, path: str, *, bounded: bool = False, batch_rows: int = 1000, subtask: int = 0, parallelism: int = 1
    ) -> None:
        self.path = path  # configuration only: the object is pickled into other processes
        self.batch_rows = batch_rows
        self._bounded = bounded
        self._subtask, self._parallelism = subtask, parallelism

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch."""
        return pa.schema([("shop", pa.string()), ("n", pa.int64())])

    @property
    def bounded(self) -> bool:
        """Whether a pipeline of the embedded engine ends when it has read what is there at its start."""
        return self._bounded

    # Positions: on Spark, the driver asks for them; in the embedded engine, each subtask does, for its share

    def start(self) -> Position:
        """Return the position at which nothing is read: a shop that it does not name is read from its beginning."""
        return {}

    def end(self) -> Position:
        """Return where each shop's orders end now."""
        found = self._rows("SELECT shop, max(number) + 1 FROM orders GROUP BY shop")
        return {shop: end for shop, end in found if self._reads(shop)}

    def latest(self, position: Position, limit: int | None = None, until: Position | None = None) -> Position:
        """Go on to the end, but by no more than about `limit` rows, and not beyond `until`."""
        ends = self.end()
        further = dict(position)
        for shop in {**position, **ends}:
            done, end = position.get(shop, 0), ends.get(shop, 0)
            if end < done:
                raise SourceError(f"{self.path}: orders of shop {shop} are gone: it has {end}, and {done} were read")
            if until is not None:
                end = min(end, until.get(shop, done))
            if limit is not None:
                end = min(end, done + max(1, limit // len(ends)))
            if end > done:
                further[shop] = end
        return further

    def advance(self, position: Position, split: Split, to: int) -> Position:
        """Return the position after the shop was read up to `to`."""
        return {**position, split.unit: to}

    def share(self, subtask: int, parallelism: int) -> Self:
        """Return the same source for the shops of one subtask."""
        return type(self)(
            self.path,
            bounded=self._bounded,
            batch_rows=self.batch_rows,
            subtask=subtask,
            parallelism=parallelism,
        )

    def merge(self, positions: Sequence[Position]) -> Position:
        """Take this subtask's shops out of what all subtasks of an earlier run have stored."""
        return {shop: at for position in positions for shop, at in position.items() if self._reads(shop)}

    # Rows: in any process, and again after a failure

    def splits(self, start: Position, end: Position, parallelism: int = 1) -> Sequence[Split]:
        """Return one range for each shop that has new orders."""
        return [Split(shop, start.get(shop, 0), at) for shop, at in sorted(end.items()) if at > start.get(shop, 0)]

    def read(self, split: Split) -> Iterator[Piece]:
        """Read a range in pieces. Rows that are missing are an error, never left out."""
        query = "SELECT shop, n FROM orders WHERE shop = ? AND number >= ? AND number < ? ORDER BY number"
        for at in range(split.start, split.end, self.batch_rows):
            to = min(at + self.batch_rows, split.end)
            rows = self._rows(query, split.unit, at, to)
            if len(rows) != to - at:
                raise SourceError(f"{self.path}: of orders {at} to {to} of shop {split.unit}, {len(rows)} are left")
            shops, numbers = zip(*rows, strict=True)
            yield Piece(pa.RecordBatch.from_arrays([pa.array(shops), pa.array(numbers)], schema=self.schema), to)

    def _reads(self, shop: str) -> bool:
        return sum(shop.encode()) % self._parallelism == self._subtask  # the same in every process; hash() is not

    def _rows(self, query: str, *values: object) -> list[tuple[str, int]]:
        with closing(sqlite3.connect(self.path, timeout=10)) as connection:
            return connection.execute(query, values).fetchall()
