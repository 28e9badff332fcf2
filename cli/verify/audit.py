"""Compare what a decision log proves of its epochs with what a target holds.

The log is read before the target and once more afterwards. What was completed by the first time must be there; what was
decided by the second may be. So the pipeline may go on meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from onceward.core.errors import ConfigurationError
from onceward.core.log.proven import Written
from onceward.core.proof import add
from onceward.core.row_hash import hexadecimal, row_hashes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from onceward.core.log import LogView
    from onceward.core.log.proven import ProvenEpoch
    from onceward.core.reread import Reread
    from onceward.testing.pipeline.judge import Comparison

OLDER: Final = "older"
FOREIGN: Final = "foreign"


class Verdict(StrEnum):
    """What was found out of some epochs in one target."""

    PROVEN = "proven"
    """The target holds exactly the rows that were written."""
    DIFFERS = "differs"
    UNPROVEN = "unproven"
    """It is not known what was written."""


class Line(msgspec.Struct, frozen=True):
    """What was found out of one epoch, or of all older ones together."""

    epoch: int | None
    """None for all epochs that are older than those which the log tells one by one."""
    written: int
    """Rows, by the log."""
    found: int
    """Rows in the target."""
    verdict: Verdict


@dataclass(frozen=True)
class Expected:
    """What a decision log says of one sink.

    Attributes:
        epochs: Completed epochs that it tells one by one.
        marks: Epoch of each mark, also of those that are decided and not completed.
        older: What older epochs wrote together; None if that is not known.
    """

    epochs: Mapping[int, Written]
    marks: Mapping[str, int]
    older: Written | None

    @classmethod
    def of(cls, view: LogView, sink: str) -> Expected:
        """Read it out of the log."""
        epochs: dict[int, Written] = {}
        for epoch in view.proofs.epochs:
            if sink in epoch.sinks:
                epochs[epoch.epoch] = epochs.get(epoch.epoch, Written()).plus(epoch.sinks[sink])
        marks = {mark: number for number, written in epochs.items() for mark in written.marks}
        waiting = view.undone.committables if view.undone is not None else ()
        marks |= {c.proof.mark: c.epoch for c in waiting if c.sink == sink and c.proof is not None}
        return cls(epochs, marks, _older(view, sink, epochs))


def _older(view: LogView, sink: str, epochs: Mapping[int, Written]) -> Written | None:
    total = view.proofs.total.get(sink, Written())
    known = Written()
    for written in epochs.values():
        known = known.plus(written)
    if not view.proofs.whole:
        return None
    rows = total.rows - known.rows
    return Written(rows, add(total.hash, known.hash, -1) if total.hash and known.hash else "")


def check_overlap(before: LogView, after: LogView) -> None:
    """Refuse if the pipeline went on for more epochs than the log remembers.

    Raises:
        ConfigurationError: It did.
    """
    newest = max((epoch.epoch for epoch in before.proofs.epochs), default=None)
    oldest = min((epoch.epoch for epoch in after.proofs.epochs), default=None)
    if newest is not None and oldest is not None and oldest > newest + 1 and before.proofs.epochs:
        raise ConfigurationError(
            f"the pipeline went from epoch {newest} beyond epoch {oldest} while its target was read, and the log no "
            "longer tells what the epochs between wrote: stop the pipeline, or name a smaller target"
        )


def tally(reread: Reread) -> dict[str, Written]:
    """Count and hash everything that a target holds, by mark."""
    rows: dict[str, int] = defaultdict(int)
    sums: dict[str, Any] = defaultdict(lambda: np.zeros(2, np.uint64))
    for piece in reread.pieces:
        numbers = {mark: number for number, mark in enumerate(dict.fromkeys(piece.marks))}
        of_rows = np.array([numbers[mark] for mark in piece.marks])
        hashes = row_hashes(piece.rows)
        for mark, number in numbers.items():
            mine = of_rows == number
            rows[mark] += int(mine.sum())
            sums[mark] += hashes[:, mine].sum(axis=1, dtype=np.uint64)
    return {mark: Written(count, hexadecimal(sums[mark])) for mark, count in rows.items()}


class Held(NamedTuple):
    """What a target holds, by the epoch that wrote it."""

    epochs: dict[int, Written]
    older: Written
    """Of epochs that the log does not tell one by one."""
    foreign: Written
    """Of nobody that the pipeline knows."""
    groups: dict[str, int | str]
    """Of each mark its epoch, or OLDER or FOREIGN."""


def grouped(found: Mapping[str, Written], reread: Reread, expected: Expected, later: Expected) -> Held:
    """Sort what was found by epochs.

    Args:
        found: By mark.
        reread: Where that comes from.
        expected: By the log as it was before.
        later: By the log as it was afterwards: epochs that came in between are not judged.
    """
    nothing_older = expected.older is not None and not expected.older.rows
    oldest = min(expected.epochs, default=0)
    epochs: dict[int, Written] = {}
    others = {OLDER: Written(), FOREIGN: Written()}
    groups: dict[str, int | str] = {}
    for mark, written in found.items():
        epoch = expected.marks.get(mark, later.marks.get(mark, reread.epochs.get(mark)))
        if epoch is None:
            group: int | str = FOREIGN if nothing_older or reread.is_foreign(mark) else OLDER
        else:
            group = OLDER if epoch < oldest else epoch
        groups[mark] = group
        where: dict[Any, Written] = epochs if isinstance(group, int) else others
        where[group] = where.get(group, Written()).plus(written)
    return Held(epochs, others[OLDER], others[FOREIGN], groups)


def judge(expected: Expected, held: Held, wanted: range | None) -> list[Line]:
    """A line for each epoch, and one for all older ones together.

    Args:
        expected: By the log.
        held: By the target.
        wanted: Epochs to judge; None: all, and the older ones.
    """
    lines = [_line(number, written, held.epochs.get(number, Written())) for number, written in expected.epochs.items()]
    if wanted is not None:
        return [line for line in lines if line.epoch in wanted]
    if expected.older is not None and (expected.older.rows or held.older.rows):
        return [_line(None, expected.older, held.older), *lines]
    return [_line(None, Written(hash=""), held.older), *lines] if held.older.rows else lines


def _line(epoch: int | None, written: Written, found: Written) -> Line:
    verdict = Verdict.PROVEN if (written.rows, written.hash) == (found.rows, found.hash) else Verdict.DIFFERS
    return Line(epoch, written.rows, found.rows, verdict if written.hash else Verdict.UNPROVEN)


def with_starts(epochs: Iterable[ProvenEpoch]) -> Iterator[ProvenEpoch]:
    """Each epoch with the offsets where its input began, which are left out where the one before ended there."""
    end = None
    for epoch in epochs:
        yield msgspec.structs.replace(epoch, start=epoch.start if epoch.start is not None else end)
        end = epoch.end


@dataclass(frozen=True)
class Audit:
    """What was found out of one sink's target.

    Attributes:
        sink: Its name.
        target: In words.
        lines: Epoch by epoch.
        foreign: Rows in the target that no epoch wrote.
        left_out: Columns that are not compared.
        rows: The rows that are not as they must be, as far as they can be named.
    """

    sink: str
    target: str
    lines: Sequence[Line]
    foreign: int
    left_out: Sequence[str]
    rows: Comparison | None

    @property
    def proven(self) -> bool:
        """Whether the target holds exactly what was written."""
        return not self.foreign and all(line.verdict is Verdict.PROVEN for line in self.lines)
