"""What a sink says of the rows that it wrote, what a decision log keeps of it, and how rows are read back to compare.

A transaction's proof is a hash of its rows in which their order makes no difference: the sum of a hash of each row
(`row_hash.py`). So rows that are written by several subtasks in any order, and read back in any other, give the same
sum; the sums of transactions add up to that of their epoch, and those of epochs to that of the table. Clarke, Devadas,
van Dijk, Gassend and Suh call it MSet-Add-Hash ("Incremental Multiset Hash Functions and Their Application to Memory
Integrity Checking", ASIACRYPT 2003), Bellare and Micciancio AdHash ("A New Paradigm for Collision-Free Hashing:
Incrementality at Reduced Cost", EUROCRYPT 1997).

Its key is known to everybody, and 128 bits fall to a generalized birthday attack. So it finds faults, not forgeries.

A decision is pruned when the next one is completed, and its committables' proofs with it. So each decision also holds
what all epochs before it wrote together, and one by one as many of the newest as fit. That costs no write of its own,
and needs no other place than the log.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

NO_ROWS: Final = "0" * 32
_DIGITS: Final = 16
_LANE: Final = 2**64
HISTORY_BYTES: Final = 16 * 2**10
"""Maximum size of the proofs of earlier epochs in a decision, in bytes of JSON: about a hundred epochs."""
NUMBER: Final = "onceward.number"
"""Metadata of a column whose texts are decimal numbers, as short as they can be: 1.5, and not 1.50."""
UUID: Final = "onceward.uuid"
"""Metadata of a column whose values are the 16 bytes of a UUID."""
PARTITION: Final = "onceward.partition"
"""Metadata of a column whose texts are parts of the names of folders."""
JSON_LINE: Final = "JSON line"
"""The only column of rows that are lines of JSON, beside those that are folders."""
ALL_EPOCHS: Final = range(2**62)
"""The epochs whose rows a target cannot tell apart, if it never shows who wrote a row."""


def total(hashes: Iterable[str]) -> str:
    """Return the hash of several sets of rows together."""
    every = list(hashes)
    lanes = [sum(int(one[at : at + _DIGITS], 16) for one in every) for at in (0, _DIGITS)]
    return "".join(f"{lane % _LANE:016x}" for lane in lanes)


def without(one: str, other: str) -> str:
    """Return the hash of a set of rows without another set that is part of it."""
    lanes = (int(one[at : at + _DIGITS], 16) - int(other[at : at + _DIGITS], 16) for at in (0, _DIGITS))
    return "".join(f"{lane % _LANE:016x}" for lane in lanes)


class Proof(msgspec.Struct, frozen=True, omit_defaults=True):
    """The proof of the rows that one transaction wrote; their number is in its committable."""

    hash: str
    """Sum of the rows' hashes: two numbers of 64 bits, in hex."""
    columns: tuple[str, ...] = ()
    """Names of the columns that were hashed."""
    mark: str = ""
    """Mark by which each row of the target shows its transaction; empty if the rows show the transaction's name."""
    kinds: tuple[str, ...] = ()
    """Digests of the kinds of the columns, one for each schema that was written; none if the target keeps no types."""


class Wrote(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows that one sink wrote in one or more epochs."""

    rows: int = 0
    hash: str = NO_ROWS
    """Sum of the rows' hashes, in hex; empty if a transaction has no proof."""
    columns: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """Digests of the kinds of the columns, of all schemas; empty if a transaction has none."""

    def plus(self, *others: Wrote) -> Wrote:
        """Return the sum of this and the others."""
        every = (self, *others)
        typed = all(one.kinds for one in every if one.rows)
        return Wrote(
            rows=sum(one.rows for one in every),
            hash=total(one.hash for one in every) if all(one.hash for one in every) else "",
            columns=tuple(sorted({column for one in every for column in one.columns})),
            marks=tuple(mark for one in every for mark in one.marks),
            kinds=tuple(sorted({kind for one in every for kind in one.kinds})) if typed else (),
        )


class ProvenEpoch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A completed epoch."""

    epoch: int
    sinks: dict[str, Wrote] = {}
    end: Any = None
    """Offsets where its input ended, as JSON values."""
    start: Any = None
    """Offsets where its input began, if that is not where the epoch before it ended."""


class Proofs(msgspec.Struct, frozen=True, omit_defaults=True):
    """The proofs of a log's completed epochs: the newest of them one by one, and all of them together."""

    epochs: tuple[ProvenEpoch, ...] = ()
    """Newest completed epochs that fit into a decision, oldest first."""
    total: dict[str, Wrote] = {}
    """Rows of all epochs of the log, by sink. A sink's hash is empty if any of its transactions had none."""
    whole: bool = True
    """True if `total` begins with the log's first epoch."""

    def plus(self, wrote: Iterable[tuple[int, str, Wrote]], begun: Any, ended: Any) -> Proofs:
        """Return the proofs with one more completed decision.

        Args:
            wrote: Epoch, sink and what was written, of each transaction that is in the target; on the embedded engine
                they may be of several epochs.
            begun: Offsets at which the decision's input began.
            ended: Offsets at which it ended.
        """
        groups: dict[tuple[int, str], list[Wrote]] = {}
        for epoch, sink, one in wrote:
            groups.setdefault((epoch, sink), []).append(one)
        if not groups:
            return self
        written: dict[int, dict[str, Wrote]] = {}
        totals = dict(self.total)
        for (epoch, sink), parts in groups.items():
            together = Wrote().plus(*parts)
            written.setdefault(epoch, {})[sink] = together
            totals[sink] = totals.get(sink, Wrote()).plus(msgspec.structs.replace(together, marks=()))
        before = self.epochs[-1].end if self.epochs else None
        last = max(written)
        new = [
            ProvenEpoch(
                epoch=number,
                sinks=written[number],
                end=ended if number == last else None,
                start=begun if begun != before else None,
            )
            for number in sorted(written)
        ]
        return msgspec.structs.replace(self, epochs=_newest([*self.epochs, *new]), total=totals)


def _newest(epochs: list[ProvenEpoch]) -> tuple[ProvenEpoch, ...]:
    """Return as many of the newest epochs as fit into a decision, one at least."""
    size = 0
    for number, epoch in enumerate(reversed(epochs)):
        size += len(msgspec.json.encode(epoch))
        if size > HISTORY_BYTES and number:
            return tuple(epochs[len(epochs) - number :])
    return tuple(epochs)


class RereadPiece(NamedTuple):
    """A part of a target's rows."""

    rows: pa.RecordBatch
    """The columns that were hashed, and no others."""
    marks: Sequence[str]
    """Transaction that wrote each row: the target's own name for it."""
    positions: Sequence[str]
    """Position of each row, for people."""


class Reread(NamedTuple):
    """The rows that a target holds."""

    pieces: Iterator[RereadPiece]
    epochs: Mapping[str, int]
    """The epochs of the marks, as far as the target itself knows them."""
    schema: pa.Schema
    """Schema of the pieces' rows."""
    is_foreign: Callable[[str], bool]
    """Function that returns whether a mark whose epoch is not known cannot be that of an old epoch either."""
    counts: Mapping[int, int] = MappingProxyType({})
    """Numbers of rows that the epochs wrote, as far as the target itself knows them."""
    unmarked: Collection[int] = ()
    """Epochs whose rows the target can no longer tell from those of others."""
    left_out: Sequence[str] = ()
    """Columns that are not compared, and, when all pieces are read, what could not be read."""
    kinds: Mapping[str, Collection[str]] = MappingProxyType({})
    """Digests of the kinds of the columns that each mark's rows have, where the target keeps types."""
