"""Which offsets are read next: laws of the pure planning functions."""

from __future__ import annotations

import random

import pytest

from onceward.connectors.kafka.positions import (
    HeldOffsets,
    Partition,
    begin,
    cut,
    from_json,
    in_share,
    losses,
    offsets_as_json,
    ranges,
    reach,
    step_towards,
)
from onceward.core.contract.source import Split

A, B, C = Partition("a", 0), Partition("a", 1), Partition("b", 0)


def random_world(seed: int):
    """A position, and what brokers hold that agrees with it."""
    dice = random.Random(seed)
    position, held = {}, {}
    for number in range(dice.randint(1, 6)):
        partition = Partition(dice.choice("xyz"), number)
        earliest = 0 if dice.random() < 0.5 else dice.randint(0, 50)
        stable = earliest + dice.randint(0, 1000)
        held[partition] = HeldOffsets(earliest, stable, stable + dice.choice([0, 3]))
        if earliest or dice.random() < 0.8:
            position[partition] = dice.randint(earliest, held[partition].end)
    return dice, position, held


@pytest.mark.parametrize("seed", range(25))
def test_steps_of_any_size_read_each_offset_exactly_once(seed: int):
    """S1: the ranges of all steps, put together, are the ranges of one step."""
    dice, position, held = random_world(seed)
    goal = reach(position, held)
    read: dict[Partition, list[int]] = {}
    at = dict(position)
    for _ in range(10_000):
        end = reach(at, held, limit=dice.randint(1, 400))
        for partition, first, stop in ranges(at, end):
            read.setdefault(partition, []).extend(range(first, stop))
        if end == at:
            break
        at = end
    assert at == goal
    whole = {partition: list(range(first, stop)) for partition, first, stop in ranges(position, goal)}
    assert read == whole


@pytest.mark.parametrize("seed", range(25))
def test_no_range_goes_beyond_the_stable_end_or_back(seed: int):
    """S3."""
    _, position, held = random_world(seed)
    end = reach(position, held, limit=100)
    assert set(end) == set(held)
    for partition, offset in end.items():
        start = position.get(partition, 0)
        assert offset >= start
        assert offset <= max(start, held[partition].stable)


def test_a_position_behind_the_stable_end_waits_there():
    """After read_uncommitted a position may lie where transactions are open."""
    held = {A: HeldOffsets(0, 5, 9)}
    assert losses({A: 7}, held) == []
    assert reach({A: 7}, held) == {A: 7}


def test_a_new_partition_begins_at_offset_0():
    """S2."""
    held = {A: HeldOffsets(0, 10, 10), B: HeldOffsets(0, 4, 4)}
    assert ranges({A: 10}, reach({A: 10}, held)) == [(B, 0, 4)]


def test_records_deleted_before_anybody_saw_them_are_a_loss():
    """S2, S4."""
    [loss] = losses({}, {A: HeldOffsets(3, 10, 10)})
    assert (loss.partition, loss.wanted) == (A, 0)
    assert "offsets 0 to 2 are deleted" in str(loss)


def test_each_kind_of_loss_says_what_is_gone():
    """S4."""
    position = {A: 5, B: 20, C: 7}
    told = [str(loss) for loss in losses(position, {A: HeldOffsets(8, 10, 10), B: HeldOffsets(0, 12, 12)})]
    assert told == [
        "a-0: offsets 5 to 7 are deleted (retention)",
        "a-1 ends at offset 12, before 20, which was reached: the topic was recreated, or its log was truncated",
        "b-0 was deleted after offset 7 was reached",
    ]


def test_where_losses_are_allowed_reading_goes_on_past_them():
    assert begin(5, HeldOffsets(8, 10, 10)) == 8
    assert begin(20, HeldOffsets(2, 12, 12)) == 2
    assert begin(9, HeldOffsets(8, 10, 10)) == 9
    held = {A: HeldOffsets(8, 10, 10), B: HeldOffsets(0, 12, 12)}
    end = reach({A: 5, B: 20, C: 7}, held)
    assert end == {A: 10, B: 12}
    assert ranges({A: 5, B: 20, C: 7}, end) == [(A, 5, 10), (B, 0, 12)]


def test_a_topic_made_anew_is_read_from_its_beginning_whether_it_is_longer_or_shorter_than_the_old_one():
    """Spark's offsets hold no topic id: an end before the start marks a new topic, and the next step reads the rest."""
    for length in range(13):
        at, read = {A: 5}, []
        for step in range(3):
            end = reach(at, {A: HeldOffsets(0, length, length)}, anew={"a"} if step == 0 else ())
            read += [offset for _, first, stop in ranges(at, end) for offset in range(first, stop)]
            at = end
        assert read == list(range(length))
    assert reach({A: 5}, {A: HeldOffsets(0, 12, 12)}, limit=3, anew={"a"}) == {A: 3}
    assert reach({A: 1}, {A: HeldOffsets(0, 12, 12)}, anew={"a"}) == {A: 0}
    assert reach({}, {A: HeldOffsets(0, 12, 12)}, anew={"a"}) == {A: 12}
    assert ranges({A: 5}, reach({A: 5}, {A: HeldOffsets(7, 12, 12)}, anew={"a"})) == [(A, 5, 12)]


def test_until_bounds_what_is_read_and_leaves_later_partitions_alone():
    held = {A: HeldOffsets(0, 10, 10), B: HeldOffsets(0, 10, 10), C: HeldOffsets(0, 10, 10)}
    assert reach({A: 2, C: 3}, held, until={A: 6}) == {A: 6, C: 3}
    assert reach({A: 8}, held, until={A: 6}) == {A: 8}


def test_a_limit_is_shared_in_proportion_to_the_backlog():
    end = step_towards({A: 0, B: 0, C: 100}, {A: 9000, B: 1000, C: 100}, 1000)
    assert end == {A: 900, B: 100, C: 100}


def test_a_small_backlog_does_not_starve():
    assert step_towards({A: 0, B: 0}, {A: 1_000_000, B: 3}, 100) == {A: 99, B: 1}


@pytest.mark.parametrize("seed", range(25))
def test_a_limit_is_kept_but_for_one_row_a_partition_and_always_makes_progress(seed: int):
    dice, position, held = random_world(seed)
    limit = dice.randint(1, 2000)
    start = {p: begin(position.get(p, 0), h) for p, h in held.items()}
    end, goal = reach(position, held, limit=limit), reach(position, held)
    taken = sum(end[p] - start[p] for p in end)
    left = sum(goal[p] - start[p] for p in goal)
    assert taken <= max(limit, 0) + len(held)
    assert taken >= min(left, 1)
    if left <= limit:
        assert end == goal


@pytest.mark.parametrize("seed", range(25))
def test_cutting_keeps_every_offset_and_reaches_the_number_of_parts(seed: int):
    dice = random.Random(seed)
    whole = [Split(f"t-{n}", 100 * n, 100 * n + dice.randint(1, 90)) for n in range(dice.randint(1, 5))]
    parts = dice.randint(1, 40)
    longest = dice.choice([None, dice.randint(1, 30)])
    pieces = cut(whole, parts, longest)
    before = [(s.unit, o) for s in whole for o in range(s.start, s.end)]
    assert [(s.unit, o) for s in pieces for o in range(s.start, s.end)] == before
    assert all(s.start < s.end for s in pieces)
    assert len(pieces) >= min(parts, len(before))
    if longest is not None:
        assert max(s.end - s.start for s in pieces) <= longest


def test_the_longest_ranges_are_cut_first():
    pieces = cut([Split("a-0", 0, 100), Split("a-1", 0, 10)], 4)
    assert [(s.unit, s.end - s.start) for s in pieces] == [("a-0", 33), ("a-0", 33), ("a-0", 34), ("a-1", 10)]


def test_nothing_to_read_gives_no_split():
    assert cut([], 8) == []
    assert ranges({A: 5}, {A: 5}) == []


def test_offsets_have_the_shape_of_sparks_own_source():
    assert offsets_as_json({B: 2, C: 3, A: 1}) == {"a": {"0": 1, "1": 2}, "b": {"0": 3}}
    assert from_json('{"a": {"0": 1, "1": 2}, "b": {"0": 3}}') == {A: 1, B: 2, C: 3}


def test_equal_offsets_give_equal_text():
    assert list(offsets_as_json({B: 2, A: 1})["a"]) == list(offsets_as_json({A: 1, B: 2})["a"])


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
def test_each_partition_belongs_to_exactly_one_share(parallelism: int):
    for partition in [Partition(topic, n) for topic in ("orders", "x") for n in range(10)]:
        assert [in_share(partition, i, parallelism) for i in range(parallelism)].count(True) == 1
