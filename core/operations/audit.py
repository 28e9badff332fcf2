"""Compare what a decision log proves of its epochs with what a target holds.

The log is read before the target and once more afterwards. What was completed by the first time must be there; what was
decided by the second may be. So the pipeline may go on meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from ..errors import ConfigurationError
from ..proof import ALL_EPOCHS, Wrote, without
from ..row_hash import hexadecimal, row_hashes
from .refusals import Refusal, RefusedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ..log import LogView
    from ..proof import ProvenEpoch, Reread
    from .comparison import Comparison

OLDER: Final = "older"
FOREIGN: Final = "foreign"


class EpochVerdict(StrEnum):
    """What was found out of some epochs in one target."""

    PROVEN = "proven"
    """The target holds exactly the rows that were written."""
    DIFFERS = "differs"
    UNPROVEN = "unproven"
    """It is not known what was written."""


class Line(msgspec.Struct, frozen=True):
    """What was found out of one epoch, or of all older ones together."""

    epoch: int | None
    """None for all epochs that are not told one by one."""
    written: int
    """Rows, by the log."""
    found: int
    """Rows in the target."""
    verdict: EpochVerdict
    source: EpochVerdict | None = None
    """Whether the source's rows give those that were written; None if that was not asked for."""

    @property
    def proven(self) -> bool:
        """Whether nothing differs."""
        return self.verdict is EpochVerdict.PROVEN and self.source in (None, EpochVerdict.PROVEN)


@dataclass(frozen=True)
class Expected:
    """What a decision log says of one sink.

    Attributes:
        epochs: Completed epochs that it tells one by one.
        marks: Epoch of each mark, also of those that are decided and not completed.
        older: What all other epochs wrote together; None if that is not known.
        total: What all epochs wrote together; None if that is not known.
    """

    epochs: Mapping[int, Wrote]
    marks: Mapping[str, int]
    older: Wrote | None
    total: Wrote | None

    @classmethod
    def of(cls, view: LogView, sink: str) -> Expected:
        """Read it out of the log."""
        epochs: dict[int, Wrote] = {}
        for epoch in view.proofs.epochs:
            if sink in epoch.sinks:
                epochs[epoch.epoch] = epochs.get(epoch.epoch, Wrote()).plus(epoch.sinks[sink])
        marks = {mark: number for number, written in epochs.items() for mark in written.marks}
        waiting = view.undone.committables if view.undone is not None else ()
        marks |= {c.proof.mark: c.epoch for c in waiting if c.sink == sink and c.proof is not None}
        total = view.proofs.total.get(sink, Wrote()) if view.proofs.whole else None
        return cls(epochs, marks, _rest(total, epochs.values()), total)

    def without(self, unmarked: Collection[int]) -> Expected:
        """The same, with some epochs among the others that are judged together."""
        epochs = {number: written for number, written in self.epochs.items() if number not in unmarked}
        return replace(self, epochs=epochs, older=_rest(self.total, epochs.values()))


def _rest(total: Wrote | None, known: Iterable[Wrote]) -> Wrote | None:
    if total is None:
        return None
    rows, hashed = total.rows, total.hash
    for written in known:
        rows -= written.rows
        hashed = without(hashed, written.hash) if hashed and written.hash else ""
    return Wrote(rows, hashed)


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
            "longer says what the epochs in between wrote: stop the pipeline, or name a smaller target"
        )


def check_stopped(before: LogView, after: LogView, place: str) -> None:
    """Refuse if it is not certain which epochs' rows a target held while it was read, and it does not show that.

    Raises:
        RefusedError: An epoch was decided meanwhile, or is not completed.
    """
    if after.undone is not None or before.undone is not None or before.proofs.total != after.proofs.total:
        raise RefusedError(
            f"{place} does not show which epoch wrote a row, and an epoch was committed while it was read, or is "
            "decided and not completed",
            Refusal.NOT_STOPPED,
        )


def tally(reread: Reread) -> dict[str, Wrote]:
    """Count and hash everything that a target holds, by mark."""
    rows: dict[str, int] = defaultdict(int)
    sums: dict[str, Any] = defaultdict(lambda: np.zeros(2, np.uint64))
    for piece in reread.pieces:
        numbers = {mark: number for number, mark in enumerate(dict.fromkeys(piece.marks))}
        of_rows = np.array([numbers[mark] for mark in piece.marks])
        hashes = row_hashes(piece.rows) if piece.rows.num_columns else np.zeros((2, len(of_rows)), np.uint64)
        for mark, number in numbers.items():
            mine = of_rows == number
            rows[mark] += int(mine.sum())
            sums[mark] += hashes[:, mine].sum(axis=1, dtype=np.uint64)
    return {mark: Wrote(count, hexadecimal(sums[mark])) for mark, count in rows.items()}


class Held(NamedTuple):
    """What a target holds, by the epoch that wrote it."""

    epochs: dict[int, Wrote]
    older: Wrote
    """Of epochs that the log does not tell one by one."""
    foreign: Wrote
    """Of nobody that the pipeline knows."""
    groups: dict[str, int | str]
    """Of each mark its epoch, or OLDER or FOREIGN."""
    differing: list[Line]
    """Older epochs of which the target itself knows that it holds more or fewer rows than they wrote."""


def grouped(found: Mapping[str, Wrote], reread: Reread, expected: Expected, later: Expected) -> Held:
    """Sort what was found by epochs.

    Args:
        found: By mark.
        reread: Where that comes from.
        expected: By the log as it was before.
        later: By the log as it was afterwards: epochs that came in between are not judged.
    """
    expected = expected.without(reread.unmarked)
    nothing_older = expected.older is not None and not expected.older.rows
    listed = () if reread.unmarked is ALL_EPOCHS else reread.unmarked
    oldest = min(expected.epochs, default=max(listed, default=-1) + 1)
    epochs: dict[int, Wrote] = {}
    others = {OLDER: Wrote(), FOREIGN: Wrote()}
    groups: dict[str, int | str] = {}
    old = {epoch: 0 for epoch in reread.counts if epoch < oldest and epoch not in reread.unmarked}
    for mark, written in found.items():
        epoch = expected.marks.get(mark, later.marks.get(mark, reread.epochs.get(mark)))
        if epoch is None:
            group: int | str = FOREIGN if nothing_older or reread.is_foreign(mark) else OLDER
        else:
            group = OLDER if epoch < oldest or epoch in reread.unmarked else epoch
        groups[mark] = group
        if epoch in old:
            old[epoch] += written.rows
        where: dict[Any, Wrote] = epochs if isinstance(group, int) else others
        where[group] = where.get(group, Wrote()).plus(written)
    counts = [(epoch, reread.counts[epoch], rows) for epoch, rows in sorted(old.items())]
    differing = [Line(*count, EpochVerdict.DIFFERS) for count in counts if count[1] != count[2]]
    return Held(epochs, others[OLDER], others[FOREIGN], groups, differing)


def judge(expected: Expected, held: Held, unmarked: Collection[int] = ()) -> tuple[list[Line], int]:
    """A line for each epoch, and one for all that are not told apart; and how many rows no epoch wrote.

    Hashes add up: if all that the target holds is all that was written, then nothing differs, whether or not the
    target still shows who wrote what (after it was restored from a dump, for example).

    Args:
        expected: By the log.
        held: By the target.
        unmarked: Epochs that the target cannot tell apart.
    """
    everything = held.older.plus(held.foreign)
    for number in expected.epochs:
        everything = everything.plus(held.epochs.get(number, Wrote()))
    apart = expected.without(unmarked)
    told = [(number, written, held.epochs.get(number, Wrote())) for number, written in apart.epochs.items()]
    lines = [*held.differing, *(_line(*one) for one in told)]
    rest = apart.older if apart.older is not None else Wrote(hash="")
    if rest.rows or held.older.rows:
        lines.insert(0, _line(None, rest, held.older))
    if expected.total is not None and (
        held.foreign.rows or any(line.verdict is not EpochVerdict.PROVEN for line in lines)
    ):
        whole = _line(None, expected.total, everything)
        if whole.verdict is EpochVerdict.PROVEN:
            return [whole], 0
    return lines, held.foreign.rows


def _line(epoch: int | None, written: Wrote, found: Wrote) -> Line:
    verdict = EpochVerdict.PROVEN if (written.rows, written.hash) == (found.rows, found.hash) else EpochVerdict.DIFFERS
    return Line(epoch, written.rows, found.rows, verdict if written.hash else EpochVerdict.UNPROVEN)


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
        waiting: The epoch that is decided and waits for its commit, and is therefore not judged; None if none does.
    """

    sink: str
    target: str
    lines: Sequence[Line]
    foreign: int
    left_out: Sequence[str]
    rows: Comparison | None
    waiting: int | None = None

    @property
    def proven(self) -> bool:
        """Whether the target holds exactly what was written."""
        return not self.foreign and all(line.proven for line in self.lines)
