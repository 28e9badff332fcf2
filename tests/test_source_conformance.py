"""FileSource and SequenceSource pass the conformance suite; sources that are wrong fail the case that is about it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from onceward import FileSource
from onceward.core.contract.source import read_split
from onceward.core.errors import SourceError
from onceward.sources import ResettableSource, SequenceSource, Split
from onceward.testing.conformance import SourceConformance, SourceUnderTest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from onceward.sources import Piece

EXAMPLES = Path(__file__).parent.parent / "examples"


class Folder:
    """Files of at most 25 rows, each a little younger than the one before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def append(self, numbers: list[int]) -> None:
        rows = max(25, len(numbers) // 4)
        for first in range(0, len(numbers), rows):
            name = f"{time.monotonic_ns()}.parquet"
            pyarrow.parquet.write_table(pa.table({"n": numbers[first : first + rows]}), self.folder / f".{name}")
            (self.folder / f".{name}").rename(self.folder / name)

    def lose(self) -> None:
        for path in self.folder.glob("*.parquet"):
            path.unlink()

    def source_under_test(self) -> SourceUnderTest:
        schema = pa.schema({"n": pa.int64()})
        return SourceUnderTest(
            make=lambda: FileSource(self.folder, schema=schema, bounded=True),
            append=self.append,
            many=100_000,
            lose=self.lose,
            grow=self.append,
        )


class TestFileSource(SourceConformance):
    @pytest.fixture
    def source_under_test(self, tmp_path: Path) -> SourceUnderTest:
        return Folder(tmp_path / "in").source_under_test()


def sequence(kind: Callable[..., ResettableSource] = SequenceSource) -> SourceUnderTest:
    rows: list[dict[str, Any]] = []

    def make() -> ResettableSource:
        return kind(pa.table({"n": pa.array([row["n"] for row in rows], pa.int64())}), units=3, batch_rows=7)

    return SourceUnderTest(make=make, append=lambda numbers: rows.extend({"n": n} for n in numbers), lose=rows.clear)


class TestSequenceSource(SourceConformance):
    @pytest.fixture
    def source_under_test(self) -> SourceUnderTest:
        return sequence()


# Wrong sources


class SilentAboutLosses(SequenceSource):
    def splits(self, start: Any, end: Any, parallelism: int = 1) -> Sequence[Split]:
        return super().splits(start, self.latest(self.start(), until=end), parallelism)

    def latest(self, position: Any, limit: int | None = None, until: Any = None) -> Any:
        there = {unit: min(at, self._size(int(unit))) for unit, at in position.items()}
        return super().latest(
            there, limit, until and {unit: min(at, self._size(int(unit))) for unit, at in until.items()}
        )


class AnotherOrder(SequenceSource):
    times = 0

    def read(self, split: Split) -> Iterator[Piece]:
        AnotherOrder.times += 1
        for piece in super().read(split):
            rows = pa.array(reversed(range(piece.batch.num_rows)))
            yield piece._replace(batch=piece.batch.take(rows)) if self.times % 2 else piece


class SharesTwice(SequenceSource):
    def share(self, subtask: int, parallelism: int) -> SequenceSource:  # noqa: ARG002 - that is its fault
        return self


class ReadsOneRowTwice(SequenceSource):
    def read(self, split: Split) -> Iterator[Piece]:
        for piece in super().read(split):
            yield piece._replace(next=piece.next - 1)


class LeavesRowsOut(SequenceSource):
    """The last rows of a split are missing, and nobody is told."""

    def read(self, split: Split) -> Iterator[Piece]:
        yield from list(super().read(split))[:-1]


class GivesTooFewRows(SequenceSource):
    """As a source does that keeps the first of several chunks."""

    def read(self, split: Split) -> Iterator[Piece]:
        for piece in super().read(split):
            yield piece._replace(batch=piece.batch.slice(0, 1))


class YieldsBatches(SequenceSource):
    def read(self, split: Split) -> Iterator[Any]:
        return (piece.batch for piece in super().read(split))


class SplitsIntoTuples(SequenceSource):
    def splits(self, start: Any, end: Any, parallelism: int = 1) -> Any:
        return [(split.unit, split.start, split.end) for split in super().splits(start, end, parallelism)]


class KeepsSetsInItsPosition(SequenceSource):
    def start(self) -> Any:
        return {unit: {at} for unit, at in super().start().items()}


class HasAnotherSchema(SequenceSource):
    @property
    def schema(self) -> pa.Schema:
        return pa.schema({"m": pa.int64()})


CONTRACT = "test_what_is_returned_is_what_the_contract_says"
WRONG = {
    YieldsBatches: CONTRACT,
    SplitsIntoTuples: CONTRACT,
    KeepsSetsInItsPosition: CONTRACT,
    HasAnotherSchema: CONTRACT,
    SilentAboutLosses: "test_68_what_is_gone_is_an_error_and_never_silence",
    AnotherOrder: "test_67_the_same_positions_give_the_same_rows_in_the_same_order",
    ReadsOneRowTwice: "test_67_a_split_goes_on_from_any_piece",
}


@pytest.mark.parametrize("kind", [LeavesRowsOut, GivesTooFewRows, ReadsOneRowTwice])
def test_no_reader_loses_a_row_unseen(kind: type[SequenceSource]) -> None:
    """A read() that delivered 12 of 20 rows passed unnoticed."""
    source = kind(pa.table({"n": range(20)}), batch_rows=6)
    with pytest.raises(SourceError, match=f"{kind.__name__} (delivered|read)"):
        list(read_split(source, Split("0", 0, 20)))


def test_a_source_whose_numbers_have_gaps_is_checked_for_order_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SequenceSource, "counts_rows", False)
    rows = pa.table({"n": range(20)})
    pieces = list(read_split(LeavesRowsOut(rows, batch_rows=6), Split("0", 0, 20)))
    assert [piece.next for piece in pieces] == [6, 12, 18]
    with pytest.raises(SourceError, match="from 5 to 5"):
        list(read_split(ReadsOneRowTwice(rows, batch_rows=1), Split("0", 5, 20)))


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_a_wrong_source_fails_the_case_that_is_about_its_fault(kind: type[SequenceSource]) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(SourceConformance(), WRONG[kind])(sequence(kind))


def test_a_source_whose_subtasks_read_the_same_is_caught() -> None:
    with pytest.raises(AssertionError):
        SourceConformance().test_67_each_row_belongs_to_one_subtask_whatever_their_number(sequence(SharesTwice), 2)


def test_the_example_of_a_custom_source_passes() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_custom_source.py"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "12 passed, 1 skipped" in done.stdout
