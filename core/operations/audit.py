"""Audit targets: compare what a decision log proves of its epochs with what a target holds.

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

from ..contract.names import Scope
from ..contract.proof import ALL_EPOCHS, Wrote, without
from ..contract.refusals import Refusal, RefusedError
from ..contract.row_hash import RowHash, hexadecimal, row_hashes
from ..errors import ConfigurationError
from .comparison import compare, key_names
from .row_comparison import map_rows, marked_records, records, shown
from .upserts import NewestRows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from ..contract.place import Place
    from ..contract.proof import ProvenEpoch, Reread
    from ..log import LogView
    from .comparison import Comparison
    from .log_locations import Log
    from .row_comparison import RowMapping
    from .upserts import Judgment

OLDER: Final = "older"
FOREIGN: Final = "foreign"


class EpochVerdict(StrEnum):
    """What an audit has found out about an epoch."""

    PROVEN = "proven"
    """The target holds exactly the rows that were written."""
    DIFFERS = "differs"
    """The target does not hold exactly the rows that were written."""
    UNPROVEN = "unproven"
    """The audit cannot know which rows were written."""


class AuditLine(msgspec.Struct, frozen=True):
    """What an audit has found out about one epoch, or about all older ones together."""

    epoch: int | None
    """Number of the epoch; None for all epochs of which the log keeps no hash of their own."""
    written: int
    """Rows that were written, by the log."""
    found: int
    """Rows in the target."""
    verdict: EpochVerdict
    """Verdict on whether the target holds the rows that were written."""
    source: EpochVerdict | None = None
    """Verdict on whether the source's rows give those that were written; None if that was not asked for."""
    keys: int | None = None
    """Number of keys of upserts with their newest row in this epoch, by the source; None if that was not asked for.
    If the target does not show which epoch wrote a row, `found` is the number of them whose row is in the target."""
    ledger: int | None = None
    """Rows that the epoch wrote by the target's own ledger, if that is another number than the log's."""

    @property
    def proven(self) -> bool:
        """Whether the target holds what was written, and the source gives the same."""
        return self.verdict is EpochVerdict.PROVEN and self.source in (None, EpochVerdict.PROVEN)

    @property
    def differs(self) -> bool:
        """Whether the target does not hold what was written, or the source gives something else."""
        return EpochVerdict.DIFFERS in {self.verdict, self.source}


@dataclass(frozen=True)
class Expected:
    """What a decision log says of one sink.

    Attributes:
        epochs: Completed epochs that it lists individually.
        marks: Epoch of each mark, also of those that are decided and not completed.
        older: Rows that all other epochs wrote together; None if that is not known.
        total: Rows that all epochs wrote together; None if that is not known.
        ordered: The numbers of those of `epochs` that are later than all epochs from before a rewind, in the order in
            which they were written.
    """

    epochs: Mapping[int, Wrote]
    marks: Mapping[str, int]
    older: Wrote | None
    total: Wrote | None
    ordered: Sequence[int] = ()

    @classmethod
    def of(cls, view: LogView, sink: str) -> Expected:
        """Read what a log says of one sink."""
        epochs: dict[int, Wrote] = {}
        for epoch in view.proofs.epochs:
            if sink in epoch.sinks:
                epochs[epoch.epoch] = epochs.get(epoch.epoch, Wrote()).plus(epoch.sinks[sink])
        marks = {mark: number for number, written in epochs.items() for mark in written.marks}
        waiting = view.undone.committables if view.undone is not None else ()
        marks |= {c.proof.mark: c.epoch for c in waiting if c.sink == sink and c.proof is not None}
        total = view.proofs.total.get(sink, Wrote()) if view.proofs.whole else None
        return cls(epochs, marks, _rest(total, epochs.values()), total, _since_rewind(view, sink))

    @property
    def is_unhashed(self) -> bool:
        """Whether rows were written, and none of the epochs that are told one by one has a hash, as of upserts."""
        written = [one for one in self.epochs.values() if one.rows]
        return bool(written) and not any(one.hash for one in written)

    def upserted(self, lines: Iterable[AuditLine]) -> list[int]:
        """Return the epochs of these lines that have no hash of their own."""
        numbers = {line.epoch for line in lines if line.epoch is not None}
        return [number for number in sorted(numbers & self.epochs.keys()) if not self.epochs[number].hash]

    def wrote_all(self, numbers: Collection[int]) -> bool:
        """Return whether it is known that no other epochs than these wrote rows."""
        others = self.without(self.epochs.keys() - set(numbers)).older
        return others is not None and not others.rows

    def without(self, unmarked: Collection[int]) -> Expected:
        """Return the same, with some epochs among the others that are judged together."""
        epochs = {number: written for number, written in self.epochs.items() if number not in unmarked}
        return replace(self, epochs=epochs, older=_rest(self.total, epochs.values()))


def _since_rewind(view: LogView, sink: str) -> list[int]:
    """Return the epochs that are later than all from before a rewind, after which numbers begin anew."""
    numbers = [epoch.epoch for epoch in view.proofs.epochs if sink in epoch.sinks]
    highest, rewound = -1, -1
    for number in numbers:
        if number < highest:
            rewound = highest
        highest = max(highest, number)
    return sorted({number for number in numbers if number > rewound})


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
    """Refuse if it is not certain which epochs' rows a target held while it was read, and its rows do not show that.

    Raises:
        RefusedError: An epoch was decided meanwhile, or is not completed.
    """
    if after.undone is not None or before.undone is not None or before.proofs.total != after.proofs.total:
        raise RefusedError(
            f"{place} does not show which epoch wrote a row, and an epoch was committed while it was read, or is "
            "decided and not completed. Stop the pipeline, or try again while it is idle",
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
            matches = of_rows == number
            rows[mark] += int(matches.sum())
            sums[mark] += hashes[:, matches].sum(axis=1, dtype=np.uint64)
    return {mark: Wrote(count, hexadecimal(sums[mark])) for mark, count in rows.items()}


class Held(NamedTuple):
    """What a target holds, by the epoch that wrote it."""

    epochs: dict[int, Wrote]
    older: Wrote
    """Rows of epochs that the log does not list individually."""
    foreign: Wrote
    """Rows that no known epoch wrote."""
    groups: dict[str, int | str]
    """Epoch of each mark, or OLDER or FOREIGN."""
    differing: list[AuditLine]
    """Older epochs of which the target itself knows that it holds more or fewer rows than they wrote."""


def group_by_epoch(amounts: Mapping[str, Wrote], reread: Reread, expected: Expected, later: Expected) -> Held:
    """Sort the rows of a target by epochs.

    Args:
        amounts: Number and hash of the target's rows, by mark.
        reread: The target's rows, from which `amounts` were summed up.
        expected: Rows that must be there, by the log as it was before the target was read.
        later: The same by the log as it was afterwards: epochs that came in between are not judged.
    """
    expected = expected.without(reread.unmarked)
    marked = set(expected.marks.values()) | set(reread.epochs.values())
    all_marked = all(epoch in marked for epoch, written in expected.epochs.items() if written.rows)
    nothing_older = all_marked and expected.older is not None and not expected.older.rows
    listed = () if reread.unmarked is ALL_EPOCHS else reread.unmarked
    oldest = min(expected.epochs, default=max(listed, default=-1) + 1)
    epochs: dict[int, Wrote] = {}
    others = {OLDER: Wrote(), FOREIGN: Wrote()}
    groups: dict[str, int | str] = {}
    old = {epoch: 0 for epoch in reread.counts if epoch < oldest and epoch not in reread.unmarked}
    for mark, written in amounts.items():
        epoch = expected.marks.get(mark, later.marks.get(mark, reread.epochs.get(mark)))
        if epoch is None:
            group: int | str = FOREIGN if nothing_older or reread.is_foreign(mark) else OLDER
        else:
            group = OLDER if epoch < oldest or epoch in reread.unmarked else epoch
        groups[mark] = group
        if epoch in old:
            old[epoch] += written.rows
        where: dict[Any, Wrote] = epochs if isinstance(group, int) else others
        retyped = group != FOREIGN and _retyped(reread.kinds.get(mark, ()), expected, group)
        where[group] = where.get(group, Wrote()).plus(written, *([_RETYPED] if retyped else []))
    counts = [(epoch, reread.counts[epoch], rows) for epoch, rows in sorted(old.items())]
    wrong = [count for count in counts if count[1] < count[2] or (count[1] != count[2] and not expected.is_unhashed)]
    differing = [AuditLine(*count, EpochVerdict.DIFFERS) for count in wrong]  # later upserts overwrite rows
    return Held(epochs, others[OLDER], others[FOREIGN], groups, differing)


def _retyped(kinds: Collection[str], expected: Expected, group: int | str) -> bool:
    """Return whether rows are in columns of other kinds than they were written in, if that is known."""
    wrote = expected.epochs.get(group) if isinstance(group, int) else expected.total
    return wrote is not None and bool(wrote.kinds) and not set(wrote.kinds).issuperset(kinds)


_RETYPED: Final = Wrote(hash="0" * 31 + "1")
"""Amount that is added to rows with the values that were written and other types, so that their hash is another one."""


def judge_epochs(expected: Expected, held: Held, unmarked: Collection[int] = ()) -> tuple[list[AuditLine], int]:
    """Return a line for each epoch, one for all that are not told apart, and how many rows no epoch wrote.

    Hashes add up: if all that the target holds is all that was written, then nothing differs, whether or not the
    target still shows who wrote what (after it was restored from a dump, for example).

    Args:
        expected: Rows that must be there, by the log.
        held: Rows that are there, by the target.
        unmarked: Epochs that the target cannot tell apart.
    """
    everything = held.older.plus(held.foreign)
    for number in expected.epochs:
        everything = everything.plus(held.epochs.get(number, Wrote()))
    apart = expected.without(unmarked)
    amounts = [(number, written, held.epochs.get(number, Wrote())) for number, written in apart.epochs.items()]
    lines = [*held.differing, *(_line(*one) for one in amounts)]
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


def _line(epoch: int | None, written: Wrote, amount: Wrote) -> AuditLine:
    verdict = (
        EpochVerdict.PROVEN if (written.rows, written.hash) == (amount.rows, amount.hash) else EpochVerdict.DIFFERS
    )
    return AuditLine(epoch, written.rows, amount.rows, verdict if written.hash else EpochVerdict.UNPROVEN)


def with_starts(epochs: Iterable[ProvenEpoch]) -> Iterator[ProvenEpoch]:
    """Add the offsets where each epoch's input began, which are left out where the one before ended there."""
    end = None
    for epoch in epochs:
        yield msgspec.structs.replace(epoch, start=epoch.start if epoch.start is not None else end)
        end = epoch.end


@dataclass(frozen=True)
class Audit:
    """What an audit has found out about the target of one sink.

    Attributes:
        sink: Name of the sink.
        target: Title of the target, such as `postgres:orders`.
        lines: Epoch by epoch, oldest first.
        foreign: Number of rows in the target that no epoch wrote.
        left_out: Columns that are not compared.
        rows: The rows that are not as they must be, as far as they can be named; None if all is as it must be.
        waiting: The epoch that is decided and waits for its commit, and is therefore not judged; None if none does.
        by_key: True if epochs without a hash can be proven by the newest row of each key, with a source and a key.
    """

    sink: str
    target: str
    lines: Sequence[AuditLine]
    foreign: int
    left_out: Sequence[str]
    rows: Comparison | None
    waiting: int | None = None
    by_key: bool = False

    @property
    def proven(self) -> bool:
        """Whether the target holds exactly what was written."""
        return self.verdict is EpochVerdict.PROVEN

    @property
    def verdict(self) -> EpochVerdict:
        """What was found out: UNPROVEN if nothing differs, as far as can be known, and not all is proven."""
        if self.foreign or any(line.differs for line in self.lines):
            return EpochVerdict.DIFFERS
        return EpochVerdict.PROVEN if all(line.proven for line in self.lines) else EpochVerdict.UNPROVEN


def sinks_in(view: LogView) -> list[str]:
    """Return the names of the sinks of which a decision log knows."""
    return sorted({*view.proofs.total, *(view.newest.sinks if view.newest is not None else ())})


def audit(
    log: Log,
    sink: str,
    place: Place,
    *,
    epochs: range | None = None,
    source: Place | None = None,
    mapping: RowMapping | None = None,
    key: str | Sequence[str] | None = None,
) -> Audit:
    """Compare what a decision log says that a sink wrote with what its target holds. Changes nothing.

    Each epoch's rows are read again and compared with the number and the hash of the rows that the sink recorded. The
    pipeline may run meanwhile, unless the target does not show which epoch wrote a row (tables of MariaDB and SQLite,
    Redis). Upserts record no hash: the numbers of rows in the target's ledger are compared, and with a source and a key
    each key's newest row.

    Args:
        log: The pipeline's decision log.
        sink: Name of the sink.
        place: Target of the sink, as `open_place` returns it.
        epochs: Judge these alone; None: all. Epochs of which the log keeps no hash of their own are judged together.
        source: Place that the pipeline reads, to name the rows that differ; None if that is not asked for. It must be
            a topic.
        mapping: Function from a record batch of the source's rows to one of the sink's; None: a topic gets a copy, a
            table the columns of JSON.
        key: Column or columns that identify a row: one of other content is then reported as wrong, and not also as
            missing. Of upserts, the key of the table.

    Raises:
        ConfigurationError: The log does not know the sink, or it wrote nothing in these epochs; or the pipeline went
            on for more epochs meanwhile than the log remembers.
        RefusedError: The target does not show which epoch wrote a row, and an epoch was committed meanwhile or waits
            for its commit, or a source was given for rows that have a hash; or the source's rows do not fit.
        SinkError: The target does not answer.
        SourceError: The source does not answer, or no longer holds what the epochs read.
        StoreError: The log's store did not answer.
    """
    before = log.view
    if sink not in (known := sinks_in(before)):
        raise ConfigurationError(f"the decision log knows no sink {sink!r}: it has {', '.join(known) or 'none'}")
    scope, expected = Scope(log.pipeline, sink, before.log), Expected.of(before, sink)
    columns = sorted({name for written in expected.epochs.values() for name in written.columns})
    reread = place.reread(scope, columns)
    unmarked_upserts = place.holds_upserts and reread.unmarked is ALL_EPOCHS and expected.is_unhashed
    if reread.unmarked is ALL_EPOCHS and source is not None and (key is None or not unmarked_upserts):
        raise RefusedError(
            f"{place.title} does not show which epoch wrote a row, so what an epoch read cannot be compared with it",
            Refusal.SHOWS_NO_EPOCHS,
        )
    waiting = before.undone.epoch if before.undone is not None else None
    held = _held(log, before, sink, reread, place)
    lines, foreign = judge_epochs(expected, held, reread.unmarked)
    if unmarked_upserts:
        lines = _by_ledger(expected, held, reread, apart=source is not None)
    if epochs is not None:
        lines = _of_epochs(lines, epochs, sink, before)
    origin = _Input(source, mapping, place, before, reread.schema)
    lines = [origin.checked(_counted(line, reread), expected) for line in lines]
    upserted = expected.upserted(lines) if place.holds_upserts and key is not None and origin.is_known else []
    if key is not None and upserted:
        again = place.reread(scope, columns)
        if unmarked_upserts:
            read = [number for number in expected.ordered if number >= min(upserted)]
            nothing_else = expected.wrote_all(read)
        else:
            read, nothing_else = upserted, False
        newest = origin.newest(read, key_names(key))
        judged = newest.compare(
            place.title,
            marked_records(again),
            lambda mark: expected.marks.get(mark, again.epochs.get(mark)),
            lambda mark: nothing_else or held.groups.get(mark) == FOREIGN,
            upserted,
        )
        if unmarked_upserts:
            check_stopped(before, log.view, place.title)
            foreign = judged.foreign
        lines = [_of_upserts(line, judged, newest.keys(), upserted, shown=not unmarked_upserts) for line in lines]
        rows = judged.comparison if judged.comparison.findings else None
        return Audit(sink, place.title, lines, foreign, reread.left_out, rows, waiting)
    bad = {line.epoch for line in lines if not line.proven and line.verdict is not EpochVerdict.UNPROVEN}
    rows = None
    if foreign or (bad and origin.is_known):
        signs = {FOREIGN, *bad} if origin.is_known else {FOREIGN}
        present = records(place.reread(scope, columns), {mark for mark, group in held.groups.items() if group in signs})
        rows = compare(place.title, origin.rows(bad), present, key)
    by_key = place.holds_upserts and bool(expected.upserted(lines) or unmarked_upserts)
    return Audit(sink, place.title, lines, foreign, reread.left_out, rows, waiting, by_key)


def _by_ledger(expected: Expected, held: Held, reread: Reread, *, apart: bool) -> list[AuditLine]:
    """Return lines of upserts in a target that does not show which epoch wrote a row, but has a ledger.

    Args:
        expected: Rows that must be there, by the log.
        held: Rows that are there, by the target.
        reread: The target's rows and its ledger, from which `held` was made.
        apart: True if each epoch has a line, because its newest rows will be compared. Otherwise only those have one of
            which the ledger has another number of rows.
    """
    written = [(number, expected.epochs[number].rows) for number in expected.ordered]
    lines = [AuditLine(number, rows, 0, EpochVerdict.UNPROVEN) for number, rows in written if rows]
    if not apart:
        lines = [line for line in lines if _counted(line, reread).differs]
    if not apart or not expected.wrote_all(expected.ordered):
        others = expected.without(set(expected.epochs) - set(expected.ordered) if apart else expected.epochs).older
        counts = held.older.rows
        too_many = not apart and others is not None and counts > others.rows
        verdict = EpochVerdict.DIFFERS if too_many else EpochVerdict.UNPROVEN
        lines.insert(0, AuditLine(None, others.rows if others is not None else 0, counts, verdict))
    return lines


def _counted(line: AuditLine, reread: Reread) -> AuditLine:
    """Say that an epoch without a hash differs if the target has more rows of it, or its ledger other ones."""
    if line.verdict is not EpochVerdict.UNPROVEN or line.epoch is None:
        return line
    ledger = reread.counts.get(line.epoch, line.written)
    if line.found > line.written or ledger != line.written:
        ledger_differs = ledger if ledger != line.written else None
        return msgspec.structs.replace(line, verdict=EpochVerdict.DIFFERS, ledger=ledger_differs)
    return line


def _of_upserts(
    line: AuditLine, judged: Judgment, keys: Mapping[int, int], upserted: Collection[int], *, shown: bool
) -> AuditLine:
    """Add what the newest rows prove of a line's epoch.

    Args:
        line: The line of the epoch.
        judged: Result of the comparison of all keys.
        keys: Number of keys that have their newest row in each epoch.
        upserted: The epochs that were compared.
        shown: True if the target shows which epoch wrote a row; otherwise the line has no number of its rows yet.
    """
    if line.epoch is None or line.epoch not in upserted:
        return line if shown or line.epoch is not None else msgspec.structs.replace(line, found=judged.older)
    differs = line.epoch in judged.wrong or line.differs
    return msgspec.structs.replace(
        line,
        verdict=EpochVerdict.DIFFERS if differs else EpochVerdict.PROVEN,
        keys=keys.get(line.epoch, 0),
        found=line.found if shown else judged.right[line.epoch],
    )


def _held(log: Log, before: LogView, sink: str, reread: Reread, place: Place) -> Held:
    """Read the target to its end, and then the log once more."""
    counts = tally(reread)
    after = log.view
    check_overlap(before, after)
    if reread.unmarked is ALL_EPOCHS:
        check_stopped(before, after, place.title)
    return group_by_epoch(counts, reread, Expected.of(before, sink), Expected.of(after, sink))


def _of_epochs(lines: Sequence[AuditLine], epochs: range, sink: str, view: LogView) -> list[AuditLine]:
    """Return the lines of these epochs: those that have none of their own are judged with all others that have none."""
    chosen = [line for line in lines if line.epoch in epochs] or [line for line in lines if line.epoch is None]
    if not chosen or epochs.start > max((epoch.epoch for epoch in view.proofs.epochs), default=-1):
        raise ConfigurationError(f"sink {sink} has written nothing in these epochs")
    return chosen


class _Input:
    """What the pipeline reads, epoch by epoch."""

    def __init__(
        self, source: Place | None, mapping: RowMapping | None, place: Place, view: LogView, schema: pa.Schema
    ) -> None:
        self._source, self._mapping, self._place, self._schema = source, mapping, place, schema
        self._epochs: dict[int | None, list[ProvenEpoch]] = {}
        for epoch in with_starts(view.proofs.epochs):
            self._epochs.setdefault(epoch.epoch, []).append(epoch)

    @property
    def is_known(self) -> bool:
        return self._source is not None

    def _pieces(self, epoch: int | None) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield rows as the target has them, each piece with the partition of the source that it is from."""
        if self._source is None:
            return
        for one in self._epochs.get(epoch, ()):
            for batch in self._source.of_epoch(one):
                has_partitions = batch.num_rows and "partition" in batch.schema.names
                partition = batch.column("partition")[0].as_py() if has_partitions else 0
                for piece in map_rows([batch], self._place, self._schema, self._mapping):
                    yield partition, piece

    def _batches(self, epoch: int | None) -> Iterator[pa.RecordBatch]:
        yield from (batch for _, batch in self._pieces(epoch))

    def newest(self, epochs: Iterable[int], key: Sequence[str]) -> NewestRows:
        """Return the newest row of each key that these epochs read."""
        rows = NewestRows(key)
        for number in epochs:
            for partition, batch in self._pieces(number):
                if missing := [name for name in key if name not in batch.schema.names]:
                    raise RefusedError(f"the source's rows have no column {missing[0]!r}", Refusal.NEEDS_MAPPING)
                rows.add(number, partition, batch.schema.names, shown([batch]))
        return rows

    def rows(self, epochs: Collection[int | None]) -> Iterator[dict[str, Any]]:
        for epoch in epochs:
            yield from shown(self._batches(epoch))

    def checked(self, line: AuditLine, expected: Expected) -> AuditLine:
        """Add whether the source's rows, read again, give those that were written."""
        written = expected.epochs.get(line.epoch) if line.epoch is not None else None
        if not self.is_known or written is None or not written.hash:
            return line
        digest = RowHash()
        for batch in self._batches(line.epoch):
            digest.add(batch)
        same = (digest.rows, digest.proof().hash) == (written.rows, written.hash)
        return msgspec.structs.replace(line, source=EpochVerdict.PROVEN if same else EpochVerdict.DIFFERS)
