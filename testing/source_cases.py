"""The conformance suite for sources: subclass SourceConformance and give one fixture.

    class TestMySource(SourceConformance):
        @pytest.fixture
        def source_under_test(self, tmp_path):
            return SourceUnderTest(make=lambda: MySource(tmp_path), append=lambda numbers: put(tmp_path, numbers))

The numbers in the tests' names are those of the project's list of a hundred scenarios.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from onceward.connectors.files.sink import FileSink
from onceward.core.contract.source import read_split
from onceward.core.errors import SourceError
from onceward.core.kit.crash_points import Step, hooked
from onceward.sources import Piece, ResettableSource, Split

from .faults import Faults, fail, lose_answer
from .sink_case import fast_pipeline, not_applicable, numbered
from .wrappers import FaultySource

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

MOST_SHARES = 4


def numbers_in(batch: pa.RecordBatch) -> list[int]:
    """Return column n."""
    found: list[int] = batch.column("n").to_pylist()
    return found


@dataclass(frozen=True)
class SourceUnderTest:
    """A source and the functions that the conformance suite needs to test it.

    Attributes:
        make: A new object of the source, bounded by what is there now.
        append: Adds rows with these numbers, in several units if the source has units.
        numbers: The numbers in a batch that the source delivers; default: column `n`.
        many: So many rows come in several pieces from at least one unit.
        published: Asks the outside how far it was told that the source was read; nothing, if it was not told.
        lose: Takes away what `append` added, as retention does.
        grow: Adds rows with these numbers in a new unit: a new partition, a new file.
    """

    make: Callable[[], ResettableSource]
    append: Callable[[list[int]], None]
    numbers: Callable[[pa.RecordBatch], list[int]] = numbers_in
    many: int = 120
    published: Callable[[], object] | None = None
    lose: Callable[[], None] | None = None
    grow: Callable[[list[int]], None] | None = None

    def read(self, source: ResettableSource, start: Any, end: Any) -> dict[str, list[int]]:
        """Return the numbers between two positions, by unit, in order."""
        found: dict[str, list[int]] = {}
        for split in source.splits(start, end):
            for piece in read_split(source, split):
                found.setdefault(split.unit, []).extend(self.numbers(piece.batch))
        return found

    def all(self, source: ResettableSource, start: Any, end: Any) -> list[int]:
        """Return the numbers between two positions, sorted."""
        return sorted(n for numbers in self.read(source, start, end).values() for n in numbers)


class SourceConformance:
    """Subclass it, and give the fixture `source_under_test`."""

    @pytest.fixture
    def source_under_test(self) -> SourceUnderTest:
        """Return the source to test; a subclass overrides this fixture."""
        raise NotImplementedError("give the fixture `source_under_test`, which returns a SourceUnderTest")

    def test_what_is_returned_is_what_the_contract_says(self, source_under_test: SourceUnderTest) -> None:
        source_under_test.append(list(range(50)))
        source = source_under_test.make()
        start, end = source.start(), source.end()
        _check_position("start", start)
        _check_position("end", end)
        _check_position("latest", source.latest(start, until=end))
        splits = source.splits(start, end)
        assert splits is not None, "splits returned None"
        for split in splits:
            assert isinstance(split, Split), f"splits returned {split!r} instead of a Split"
            pieces = source.read(split)
            assert isinstance(pieces, Iterable), f"read returned {pieces!r}; it yields a Piece for each batch"
            for piece in pieces:
                assert isinstance(piece, Piece), f"read yielded a {type(piece).__name__} instead of a Piece"
                assert isinstance(piece.next, int), f"Piece.next is {piece.next!r}; it is where the split goes on"
                assert piece.batch.num_rows, "read yielded a batch without rows"
                assert piece.batch.schema.equals(source.schema), (
                    f"a batch has the schema\n{piece.batch.schema}\nand the source says\n{source.schema}"
                )

    def test_67_the_same_positions_give_the_same_rows_in_the_same_order(
        self, source_under_test: SourceUnderTest
    ) -> None:
        source_under_test.append(list(range(200)))
        source = source_under_test.make()
        start, end = source.start(), source.end()
        first = source_under_test.read(source, start, end)
        source_under_test.append(list(range(200, 250)))
        there = pickle.loads(pickle.dumps(source))  # noqa: S301 - made right here
        assert source_under_test.read(there, start, end) == first
        assert sorted(n for numbers in first.values() for n in numbers) == list(range(200))

    def test_67_a_split_goes_on_from_any_piece(self, source_under_test: SourceUnderTest) -> None:
        source_under_test.append(list(range(source_under_test.many)))
        source = source_under_test.make()
        cut = False
        for split in source.splits(source.start(), source.end()):
            pieces = list(source.read(split))
            cut = cut or len(pieces) > 1
            rows = [source_under_test.numbers(piece.batch) for piece in pieces]
            for at, piece in enumerate(pieces[:-1]):
                rest = [n for later in rows[at + 1 :] for n in later]
                left = type(split)(split.unit, piece.next, split.end)
                assert [n for p in source.read(left) for n in source_under_test.numbers(p.batch)] == rest
        assert cut, (
            f"no split came in several pieces: give SourceUnderTest.many more than {source_under_test.many} rows"
        )

    def test_67_positions_are_json_and_parts_make_up_the_whole(self, source_under_test: SourceUnderTest) -> None:
        source_under_test.append(list(range(300)))
        source = source_under_test.make()
        position, end, seen = source.start(), source.end(), list[int]()
        for _ in range(1000):
            position = json.loads(json.dumps(position))
            further = source.latest(position, limit=50, until=end)
            if further == position:
                break
            seen += source_under_test.all(source, position, further)
            position = further
        assert Counter(seen) == Counter(range(300))
        assert source.latest(position, until=end) == position, "a position that was reached went on growing"

    @pytest.mark.parametrize("units", range(1, MOST_SHARES))
    def test_67_each_row_belongs_to_one_subtask_whatever_their_number(
        self, source_under_test: SourceUnderTest, units: int
    ) -> None:
        source_under_test.append(list(range(100)))
        source = source_under_test.make()
        shares = [source.share(subtask, units) for subtask in range(units)]
        parts = [source_under_test.all(share, share.start(), share.end()) for share in shares]
        assert sorted(n for part in parts for n in part) == list(range(100))
        stored = [share.end() for share in shares]
        source_under_test.append(list(range(100, 160)))
        again = source_under_test.make()
        for others in range(1, MOST_SHARES):
            found: list[int] = []
            for subtask in range(others):
                share = again.share(subtask, others)
                found += source_under_test.all(share, share.merge(stored), share.end())
            assert sorted(found) == list(range(100, 160)), f"from {units} subtasks to {others}"

    def test_68_what_is_gone_is_an_error_and_never_silence(self, source_under_test: SourceUnderTest) -> None:
        if source_under_test.lose is None:
            not_applicable("no SourceUnderTest.lose: nothing is ever taken away from the source")
        source_under_test.append(list(range(50)))
        source = source_under_test.make()
        start, end = source.start(), source.end()
        source_under_test.lose()
        with pytest.raises(SourceError):
            source_under_test.all(source_under_test.make(), start, end)

    def test_69_the_outside_is_told_only_after_completion(
        self, source_under_test: SourceUnderTest, tmp_path: Path
    ) -> None:
        if type(source_under_test.make()).publish is ResettableSource.publish:
            not_applicable("the source publishes no positions")
        if source_under_test.published is None:
            not_applicable("no SourceUnderTest.published: nobody can ask what was published")
        source_under_test.append(list(range(100)))
        published = source_under_test.published
        before: list[object] = []

        def note(step: Step) -> None:
            if step is Step.COMPLETE_BEFORE and not before:
                before.append(published())

        self._run(source_under_test, tmp_path, FaultySource(source_under_test.make(), Faults()), note)
        assert not before[0], "something was published before anything was completed"
        assert published(), "nothing was published"

    def test_70_what_has_appeared_since_is_read_from_its_beginning(self, source_under_test: SourceUnderTest) -> None:
        if source_under_test.grow is None:
            not_applicable("no SourceUnderTest.grow: the source has no units that appear")
        source_under_test.append(list(range(50)))
        source = source_under_test.make()
        stored = source.merge([source.end()])
        source_under_test.grow(list(range(50, 80)))
        again = source_under_test.make()
        assert source_under_test.all(again, stored, again.latest(stored)) == list(range(50, 80))

    @pytest.mark.parametrize("seed", range(3))
    def test_in_a_pipeline_with_faults_each_row_takes_effect_once(
        self, source_under_test: SourceUnderTest, tmp_path: Path, seed: int
    ) -> None:
        source_under_test.append(list(range(400)))
        # Each leaves rows to read, so a next call is certain: both of "splits" strike, and one of "piece" at least.
        splits = fail("splits", times=seed + 1), lose_answer("splits", nth=seed + 2)
        pieces = fail("piece"), lose_answer("piece", nth=seed + 2)
        faults = Faults(*splits, *pieces)
        left = [Step.PRE_COMMIT_AFTER, Step.ACKNOWLEDGED, Step.DECIDE_AFTER, Step.COMMIT_AFTER]

        def fails(step: Step) -> None:
            if step in left:
                left.remove(step)
                raise ConnectionError(f"injected failure at {step}")

        seen = self._run(source_under_test, tmp_path, FaultySource(source_under_test.make(), faults), fails)
        assert seen == Counter(range(400))
        assert {fault.call for fault in faults.struck} == {"splits", "piece"}

    def _run(
        self, source_under_test: SourceUnderTest, folder: Path, source: FaultySource, hook: Callable[[Step], None]
    ) -> Counter[int]:
        target = folder / "target"
        pipeline = fast_pipeline("sources-conformance")
        rows = pipeline.source(source, uid="source", parallelism=2)
        numbers = rows.map_batches(lambda batch: numbered(source_under_test.numbers(batch)), uid="numbers")
        numbers.sink(FileSink("target", target, format="jsonl"))
        with hooked(hook):
            pipeline.start()
            assert pipeline.wait(120), "it did not come to its end"
        lines = [line for path in target.glob("*.jsonl") for line in path.read_text().splitlines()]
        return Counter(json.loads(line)["n"] for line in lines)


def _check_position(method: str, position: object) -> None:
    assert isinstance(position, dict), f"{method} returned {position!r}; a position is a dict"
    try:
        reread = json.loads(json.dumps(position))
    except TypeError:
        reread = None
    assert reread == position, f"{method} returned {position!r}, which JSON changes or cannot hold"
