"""How the engine reads a source: its units in turn, and from each stored position on exactly what is left."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import FileSource
from onceward.core.contract.source import Piece, Split
from onceward.core.engine.channels import Barrier
from onceward.core.engine.source_and_sink import EXHAUSTED, ResettableLogic
from onceward.sources import SequenceSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from onceward.core.contract.source import Position, ResettableSource


class Watched(SequenceSource):
    """Notes which unit each piece is of, and refuses that two are read at once: a source may have one connection."""

    def __init__(self, rows: int, *, units: int, batch_rows: int = 5, turn: int | None = 20) -> None:
        super().__init__([{"n": n} for n in range(rows)], units=units, batch_rows=batch_rows)
        self.turn = turn
        self.pieces: list[str] = []
        self.opened = self.reading = 0

    @property
    def rows_per_turn(self) -> int | None:
        return self.turn

    def read(self, split: Split) -> Iterator[Piece]:
        assert not self.reading
        self.opened += 1
        self.reading += 1
        try:
            for piece in super().read(split):
                self.pieces.append(split.unit)
                yield piece
        finally:
            self.reading -= 1


def a_logic(source: ResettableSource, position: Position | None = None) -> ResettableLogic:
    logic = ResettableLogic(source, 0, source.start() if position is None else position)
    logic.open()
    return logic


def numbers(logic: ResettableLogic, batches: int = 1_000_000) -> list[int]:
    """The rows of so many batches, or of all that are left."""
    found: list[int] = []
    while batches and (batch := logic.poll()) is not EXHAUSTED:
        found += batch["n"].to_pylist()
        batches -= 1
    return found


def position_of(logic: ResettableLogic) -> Any:
    return logic.freeze(Barrier(1)).write(None, "")[0].position


def test_units_are_read_in_turn_and_each_gives_a_bounded_number_of_rows():
    source = Watched(900, units=3)
    assert sorted(numbers(a_logic(source))) == list(range(900))
    assert source.pieces[:13] == ["0"] * 4 + ["1"] * 4 + ["2"] * 4 + ["0"]
    assert source.opened == 3 * 300 // 20


def test_a_unit_that_is_alone_is_read_without_a_pause():
    source = Watched(900, units=1)
    numbers(a_logic(source))
    assert source.opened == 1


class Shelf(Split, frozen=True):
    """A range that knows more than its numbers, as Kafka's knows the id of its topic."""

    shelf: str = ""


def test_what_a_range_knows_besides_its_numbers_is_kept_for_its_next_turn():
    class Shelves(Watched):
        def splits(self, start: Position, end: Position, parallelism: int = 1) -> list[Split]:
            return [Shelf(s.unit, s.start, s.end, f"of {s.unit}") for s in super().splits(start, end, parallelism)]

        def read(self, split: Split) -> Iterator[Piece]:
            assert isinstance(split, Shelf)
            assert split.shelf == f"of {split.unit}"
            return super().read(split)

    assert sorted(numbers(a_logic(Shelves(200, units=3)))) == list(range(200))


def test_large_rows_end_a_turn_by_their_bytes():
    source = Watched(8, units=2, batch_rows=1)
    source._table = pa.table({"n": range(8), "v": [b"x" * 9 * 2**20] * 8})
    numbers(a_logic(source))
    assert source.pieces == ["0", "0", "1", "1"] * 2


def test_of_a_source_that_has_an_order_one_unit_is_read_after_the_other(tmp_path: Path):
    for number, name in enumerate("cab"):
        pq.write_table(pa.table({"n": range(number * 50_000, (number + 1) * 50_000)}), tmp_path / f"{name}.parquet")
    read = numbers(a_logic(FileSource(tmp_path, bounded=True)))
    assert all(left < right for left, right in pairwise(read))


class Numbered(Watched):
    """Its numbers do not count rows, as Kafka's offsets: each is thrice that of the row."""

    @property
    def counts_rows(self) -> bool:
        return False

    def start(self) -> Any:
        return {unit: 3 * at for unit, at in super().start().items()}

    def end(self) -> Any:
        return {unit: 3 * at for unit, at in super().end().items()}

    def latest(self, position: Any, limit: int | None = None, until: Any = None) -> Any:  # noqa: ARG002 - signature
        return self.end() if until is None else until

    def read(self, split: Split) -> Iterator[Piece]:
        at = -(-split.start // 3)
        for piece in super().read(Split(split.unit, at, -(-split.end // 3))):
            yield Piece(piece.batch, 3 * piece.next - 2, [3 * n for n in range(at, piece.next)])
            at = piece.next


@pytest.mark.parametrize("kind", [Watched, Numbered])
@given(
    st.integers(0, 60),
    st.fixed_dictionaries({"units": st.integers(1, 4), "batch_rows": st.integers(1, 5), "turn": st.integers(1, 7)}),
    st.data(),
)
def test_from_any_position_on_exactly_the_rest_is_read(
    kind: type[Watched], rows: int, options: dict[str, int], data: st.DataObject
):
    source, units = kind(rows, **options), options["units"]
    logic, before = a_logic(source), list[int]()
    for _ in range(data.draw(st.integers(0, 80))):
        logic.most_rows = data.draw(st.integers(1, 6))
        before += numbers(logic, 1)
    stored = position_of(logic)
    logic.close()
    after = numbers(a_logic(source, stored))
    assert sorted(before + after) == list(range(rows))
    for unit in range(units):
        assert [n for n in before + after if n % units == unit] == list(range(unit, rows, units))


@pytest.mark.parametrize("turn", [1, 7, None])
def test_a_unit_that_ends_in_a_gap_is_read_to_its_end(turn: int | None):
    class Gaps(Watched):
        """As Kafka's offsets: the last numbers of a unit have no row."""

        @property
        def counts_rows(self) -> bool:
            return False

        def read(self, split: Split) -> Iterator[Piece]:
            held = Split(split.unit, split.start, min(split.end, 12))
            return super().read(held) if held.start < held.end else iter(())

    source = Gaps(60, units=3, turn=turn)
    logic = a_logic(source)
    assert len(numbers(logic)) == 36
    assert position_of(logic) == {"0": 20, "1": 20, "2": 20}
