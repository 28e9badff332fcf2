"""What the epochs of a decision log wrote, carried from one decision to the next.

A decision is pruned when the next one is completed, and its committables' proofs with it. So each decision also holds
what all epochs before it wrote together, and one by one as many of the newest as fit. That costs no write of its own,
and needs no other place than the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from ..proof import NO_ROWS, total

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from ..transaction import Committable

HISTORY_BYTES: Final = 16 * 2**10
"""How much of a decision may be the proofs of earlier epochs, in bytes of JSON: a hundred epochs, more or less."""


class Written(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one sink wrote in one or more epochs."""

    rows: int = 0
    hash: str = NO_ROWS
    """Empty if a transaction has no proof."""
    columns: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    def plus(self, *others: Written) -> Written:
        """All of them together."""
        every = (self, *others)
        return Written(
            rows=sum(one.rows for one in every),
            hash=total(one.hash for one in every) if all(one.hash for one in every) else "",
            columns=tuple(sorted({column for one in every for column in one.columns})),
            marks=tuple(mark for one in every for mark in one.marks),
        )

    @classmethod
    def of(cls, committable: Committable) -> Written:
        """What a committable says of its transaction."""
        proof = committable.proof
        if proof is None:
            return cls(rows=committable.rows, hash="" if committable.rows else NO_ROWS)
        return cls(committable.rows, proof.hash, proof.columns, (proof.mark,) if proof.mark else ())


class ProvenEpoch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A completed epoch."""

    epoch: int
    sinks: dict[str, Written] = {}
    end: Any = None
    """Offsets where its input ended, as JSON values."""
    start: Any = None
    """Offsets where its input began, if that is not where the epoch before it ended."""


class Proofs(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a decision log proves of its completed epochs: the newest of them one by one, and all of them together."""

    epochs: tuple[ProvenEpoch, ...] = ()
    """Oldest first."""
    total: dict[str, Written] = {}
    """By sink: all epochs of the log. Without a sink's hash if any of its transactions had none."""
    whole: bool = True
    """Whether `total` begins with the log's first epoch."""

    def plus(self, decided: Iterable[Committable], skipped: Collection[str], begun: Any, ended: Any) -> Proofs:
        """With one more decision that was completed.

        Args:
            decided: Its committables; on the embedded engine they may be of several epochs.
            skipped: Transactions that somebody gave up: what they wrote is not in the target.
            begun: Where the decision's input began.
            ended: Where it ended.
        """
        found: dict[tuple[int, str], list[Written]] = {}
        for c in decided:
            if c.transaction not in skipped:
                found.setdefault((c.epoch, c.sink), []).append(Written.of(c))
        if not found:
            return self
        written: dict[int, dict[str, Written]] = {}
        totals = dict(self.total)
        for (epoch, sink), parts in found.items():
            one = Written().plus(*parts)
            written.setdefault(epoch, {})[sink] = one
            totals[sink] = totals.get(sink, Written()).plus(msgspec.structs.replace(one, marks=()))
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
    """As many of the newest as fit into a decision."""
    size = 0
    for number, epoch in enumerate(reversed(epochs)):
        size += len(msgspec.json.encode(epoch))
        if size > HISTORY_BYTES and number:
            return tuple(epochs[len(epochs) - number :])
    return tuple(epochs)
