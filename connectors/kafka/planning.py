"""Which offsets to read next: pure functions over what was read and what the brokers hold.

Invariants: (S1) the ranges between two positions cover each offset exactly once. (S2) A partition that a position does
not know begins at offset 0: so its range is the same at each replay, and records that were deleted before anybody saw
them are a loss like any other. (S3) No range goes beyond the stable end: what lies there may still change. (S4) Nothing
is left out in silence: what a position needs and the brokers no longer hold is a `Loss`.
"""

from __future__ import annotations

import itertools
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from onceward.core.source import Split

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from .positions import Offsets, Partition


class Held(NamedTuple):
    """What the brokers hold of a partition."""

    earliest: int
    """First offset that is still there."""
    stable: int
    """End of what no longer changes: the last stable offset, or with read_uncommitted the end."""
    end: int
    """Where the next record goes; `stable` if that was not asked for."""


class Loss(NamedTuple):
    """Records that should be read and are not there."""

    partition: Partition
    wanted: int
    """The offset from which on they were wanted."""
    held: Held | None
    """What is there instead; None: no such partition."""
    anew: bool = False
    """The topic is another one of the same name."""

    def __str__(self) -> str:
        if self.anew:
            return f"{self.partition} was deleted and recreated after offset {self.wanted} was reached"
        if self.held is None:
            return f"{self.partition} was deleted after offset {self.wanted} was reached"
        if self.wanted < self.held.earliest:
            return f"{self.partition}: offsets {self.wanted} to {self.held.earliest - 1} are deleted (retention)"
        return (
            f"{self.partition} ends at offset {self.held.end}, before {self.wanted}, which was reached: "
            "the topic was recreated, or its log was truncated"
        )


def losses(position: Mapping[Partition, int], held: Mapping[Partition, Held], anew: Collection[str] = ()) -> list[Loss]:
    """What a position needs and the brokers do not hold, new partitions included.

    Args:
        position: How far was read.
        held: What the brokers hold.
        anew: Topics that are known to be others than those of the position.
    """
    found = []
    for partition in sorted({*position, *held}):
        there, wanted = held.get(partition), position.get(partition, 0)
        other = partition.topic in anew and wanted > 0
        if other or there is None or wanted < there.earliest or wanted > max(there.stable, there.end):
            found.append(Loss(partition, wanted, there, other))
    return found


def begin(wanted: int, held: Held) -> int:
    """Where reading a partition can go on: where it was, or past what is lost."""
    if wanted > max(held.stable, held.end):
        return held.earliest
    return max(wanted, held.earliest)


def reach(
    position: Mapping[Partition, int],
    held: Mapping[Partition, Held],
    *,
    limit: int | None = None,
    until: Mapping[Partition, int] | None = None,
) -> Offsets:
    """How far to read now.

    Args:
        position: How far was read.
        held: What the brokers hold; a partition that is not in it is dropped.
        limit: Go at most about this many offsets further.
        until: Do not go beyond; a partition that is not in it stays where it is.
    """
    start = {partition: begin(position.get(partition, 0), there) for partition, there in held.items()}
    end: Offsets = {}
    for partition, there in held.items():
        if until is not None and partition not in until:
            if partition in position:
                end[partition] = position[partition]
            continue
        stop = there.stable if until is None else min(there.stable, until[partition])
        end[partition] = max(start[partition], stop)
    return end if limit is None else limited(start, end, limit)


def limited(start: Mapping[Partition, int], end: Mapping[Partition, int], limit: int) -> Offsets:
    """Go from `start` at most about `limit` offsets towards `end`: each partition in proportion to its backlog.

    A partition with a backlog moves by one at least, so that small ones do not starve. As Spark's own source does
    (KafkaOffsetReader, rate limit).
    """
    backlog = {partition: stop - start.get(partition, 0) for partition, stop in end.items()}
    total = sum(size for size in backlog.values() if size > 0)
    if total <= limit:
        return dict(end)
    moved = dict(end)
    for partition, size in backlog.items():
        if size > 0:
            moved[partition] = end[partition] - size + min(size, max(1, limit * size // total))
    return moved


def ranges(start: Mapping[Partition, int], end: Mapping[Partition, int]) -> list[tuple[Partition, int, int]]:
    """The non-empty ranges between two positions, in order.

    An end before the start is how `reach` goes on with a topic that was made anew, where losses are allowed.
    """
    found = []
    for partition in sorted(end):
        stop, wanted = end[partition], start.get(partition, 0)
        found.append((partition, wanted if wanted <= stop else 0, stop))
    return [(partition, begins, stop) for partition, begins, stop in found if begins < stop]


def cut(splits: Sequence[Split], parts: int, longest: int | None = None) -> list[Split]:
    """Cut ranges into at least `parts`, as equal as can be, none longer than `longest`; in order.

    The next cut always goes to the range with the longest pieces.
    """
    if not splits:
        return []
    counts = [1 if longest is None else -(-(split.end - split.start) // longest) for split in splits]
    heap = [(-(s.end - s.start) / counts[i], i) for i, s in enumerate(splits)]
    heapify(heap)
    missing = parts - sum(counts)
    while missing > 0:
        _, i = heap[0]
        size = splits[i].end - splits[i].start
        if size <= counts[i]:
            break
        counts[i] += 1
        missing -= 1
        heapreplace(heap, (-size / counts[i], i))
    return [piece for split, count in zip(splits, counts, strict=True) for piece in _pieces(split, count)]


def _pieces(split: Split, count: int) -> Iterable[Split]:
    size = split.end - split.start
    marks = [split.start + size * i // count for i in range(count + 1)]
    return (Split(split.unit, a, b) for a, b in itertools.pairwise(marks) if a < b)
