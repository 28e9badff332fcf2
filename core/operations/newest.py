"""Prove what upserts left in a table: of each key, the newest row that the epochs read.

Upserts have no hash, because later epochs overwrite rows of earlier ones. But the source's rows, read again epoch by
epoch, say which row of each key is the newest, and a row of the table shows which transaction wrote it last. So a row
that was changed, lost or added by hand differs, and a row that a later epoch has overwritten is not judged.

A key of several partitions has no order within an epoch: the newest row of each partition may be the one that stayed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from .comparison import Comparison, Discrepancy, Mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .comparison import Record, Row


class KeyRows(NamedTuple):
    """The newest rows of a key."""

    epoch: int
    rows: dict[int, Row]
    """By partition of the source; one of them is in the table."""


class NewestRows:
    """The newest row of each key, out of what the epochs of a range read.

    Args:
        key: Column that identifies a row.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._keys: dict[str, KeyRows] = {}
        self._columns: set[str] = {key}
        self._epochs: set[int] = set()

    def add(self, epoch: int, partition: int, columns: Iterable[str], rows: Iterable[Row]) -> None:
        """Add rows of an epoch; epochs come in their order, and the rows of a partition in theirs."""
        self._columns.update(columns)
        self._epochs.add(epoch)
        for row in rows:
            name = str(row.get(self._key))
            known = self._keys.get(name)
            if known is None or known.epoch != epoch:
                known = self._keys[name] = KeyRows(epoch, {})
            known.rows[partition] = row

    def keys(self) -> Counter[int]:
        """Return how many keys have their newest row in each epoch."""
        return Counter(known.epoch for known in self._keys.values())

    def compare(
        self,
        title: str,
        found: Iterable[tuple[str, Record]],
        epoch_of: Callable[[str], int | None],
        is_foreign: Callable[[str], bool],
    ) -> tuple[Comparison, set[int]]:
        """Compare the table with the newest rows; return the rows that differ, and the epochs that they belong to.

        Args:
            title: Of the table.
            found: The table's rows, each with the mark of the transaction that wrote it last.
            epoch_of: The epoch of a mark; None: an older one, or none. A later one than those added has overwritten
                the row.
            is_foreign: Whether no epoch wrote the rows of a mark.
        """
        last = max(self._epochs, default=-1)
        seen: dict[str, int] = {}
        overwritten: set[str] = set()
        findings: list[Discrepancy] = []
        bad: set[int] = set()
        for mark, record in found:
            row = {name: value for name, value in record.row.items() if name in self._columns}
            name, epoch = str(row.get(self._key)), epoch_of(mark)
            if epoch is not None and epoch > last:
                overwritten.add(name)
                continue
            known = self._keys.get(name)
            if known is None:
                if epoch in self._epochs or is_foreign(mark):
                    findings.append(Discrepancy(Mismatch.WRONG, row, 1, (record.position,)))
                    bad.update({epoch} if epoch is not None and epoch in self._epochs else ())
                continue
            seen[name] = seen.get(name, 0) + 1
            kind = None if row in known.rows.values() else Mismatch.WRONG
            kind = Mismatch.DUPLICATED if kind is None and seen[name] > 1 else kind
            if kind is not None:
                findings.append(Discrepancy(kind, row, 1, (record.position,)))
                bad.add(known.epoch)
        missing = [name for name in self._keys if name not in seen and name not in overwritten]
        findings += [Discrepancy(Mismatch.MISSING, self._one(name), 1, ()) for name in missing]
        bad |= {self._keys[name].epoch for name in missing}
        return Comparison(title, len(self._keys) - len(overwritten), sum(seen.values()), tuple(findings)), bad

    def _one(self, name: str) -> dict[str, Any]:
        return next(iter(self._keys[name].rows.values()))
