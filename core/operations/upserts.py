"""Prove what upserts left in a table: of each key, the newest row that the epochs read.

Upserts have no hash, because later epochs overwrite rows of earlier ones. But the source's rows, read again epoch by
epoch, say which row of each key is the newest. So a row that was changed, lost or added by hand differs.

- If a row of the table shows which transaction wrote it last (PostgreSQL), a row that a later epoch has overwritten is
  not judged, and the pipeline may run.
- If it does not (MariaDB, SQLite), all epochs up to the newest one are read again, also those after the ones that are
  judged, and none may be committed meanwhile. A key that none of them read is that of an older epoch, if there is one.

A key of several partitions has no order within an epoch: the newest row of each partition may be the one that stayed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .comparison import Comparison, Discrepancy, Mismatch, clipped, text_of_row

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from .comparison import Record, Row


_Key: TypeAlias = tuple[Any, ...]


class KeyRows(NamedTuple):
    """The newest rows of a key."""

    epoch: int
    rows: dict[int, Row]
    """Newest row of each partition of the source; one of them is in the table."""


class Judgment(NamedTuple):
    """What a comparison of a table with the newest rows has found out."""

    comparison: Comparison
    wrong: set[int]
    """The epochs that rows which differ belong to."""
    right: Counter[int]
    """Number of keys, by epoch, that have the row of it that they must have."""
    older: int
    """Rows of keys that none of the epochs read, but an older one may have."""
    foreign: int
    """Rows of keys that no epoch read."""


class NewestRows:
    """The newest row of each key, out of what the epochs of a range read.

    Args:
        key: Columns that identify a row.
    """

    def __init__(self, key: Sequence[str]) -> None:
        self._key = key
        self._keys: dict[_Key, KeyRows] = {}
        self._columns: set[str] = set(key)
        self._epochs: set[int] = set()

    def add(self, epoch: int, partition: int, columns: Iterable[str], rows: Iterable[Row]) -> None:
        """Add rows of an epoch; epochs come in their order, and the rows of a partition in theirs."""
        self._columns.update(columns)
        self._epochs.add(epoch)
        for row in rows:
            name = self._name(row)
            known = self._keys.get(name)
            if known is None or known.epoch != epoch:
                known = self._keys[name] = KeyRows(epoch, {})
            known.rows[partition] = row

    def keys(self) -> Counter[int]:
        """Return how many keys have their newest row in each epoch."""
        return Counter(known.epoch for known in self._keys.values())

    def _name(self, row: Row) -> _Key:
        """Return the key's values themselves: 0.0 and -0.0 are one key to a database, bytes and their text are two."""
        values = [row.get(column) for column in self._key]
        return tuple(text_of_row({"": value}) if isinstance(value, list | dict) else value for value in values)

    def compare(
        self,
        title: str,
        records: Iterable[tuple[str, Record]],
        epoch_of: Callable[[str], int | None],
        is_foreign: Callable[[str], bool],
        judged: Collection[int] | None = None,
    ) -> Judgment:
        """Compare the table with the newest rows.

        Args:
            title: Title of the table.
            records: The table's rows, each with the mark of the transaction that wrote it last.
            epoch_of: The epoch of a mark; None: an older one, or none. A later one than those added has overwritten
                the row.
            is_foreign: Function that returns whether no epoch wrote the rows of a mark.
            judged: The epochs whose rows are compared; None: all that were added. The others only say which rows were
                overwritten.
        """
        judged = self._epochs if judged is None else judged
        last = max(self._epochs, default=-1)
        wanted = {name: known for name, known in self._keys.items() if known.epoch in judged}
        counts: Counter[_Key] = Counter()
        overwritten: set[_Key] = set()
        findings: list[Discrepancy] = []
        bad: set[int] = set()
        right: Counter[int] = Counter()
        older = foreign = 0
        for mark, record in records:
            row = {name: value for name, value in record.row.items() if name in self._columns}
            name, epoch = self._name(row), epoch_of(mark)
            if epoch is not None and epoch > last:
                overwritten.add(name)
                continue
            known = wanted.get(name)
            if known is None:
                unknown = name not in self._keys and is_foreign(mark)
                foreign += unknown
                older += name not in self._keys and not unknown
                if epoch in judged or unknown:
                    findings.append(Discrepancy(Mismatch.WRONG, clipped(row), 1, (record.position,)))
                    bad.update({epoch} if epoch is not None and epoch in judged else ())
                continue
            counts[name] += 1
            kind = None if row in known.rows.values() else Mismatch.WRONG
            kind = Mismatch.DUPLICATED if kind is None and counts[name] > 1 else kind
            if kind is not None:
                findings.append(Discrepancy(kind, clipped(row), 1, (record.position,)))
                bad.add(known.epoch)
            else:
                right[known.epoch] += 1
        missing = [known for name, known in wanted.items() if name not in counts and name not in overwritten]
        findings += [
            Discrepancy(Mismatch.MISSING, clipped(next(iter(known.rows.values()))), 1, ()) for known in missing
        ]
        bad |= {known.epoch for known in missing}
        expected = len(wanted.keys() - overwritten)
        return Judgment(Comparison(title, expected, counts.total(), tuple(findings)), bad, right, older, foreign)
