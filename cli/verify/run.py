"""Read a decision log, its pipeline's targets, and the source where rows differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from onceward.core.errors import ConfigurationError
from onceward.core.names import Scope
from onceward.core.proof import ALL_EPOCHS
from onceward.core.row_hash import RowHash
from onceward.testing.judge import compare

from .audit import FOREIGN, Audit, Expected, Verdict, check_overlap, check_stopped, grouped, judge, tally, with_starts
from .places import Place, Systems
from .rows import mapped, records, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa

    from onceward.core.log import LogView
    from onceward.core.proof import ProvenEpoch

    from ..operate.logs import Log
    from .audit import Line
    from .places import Rows


class Question(NamedTuple):
    """What is to be verified."""

    log: Log
    wanted: range | None
    """Which epochs; None: all."""
    origin: Place | None
    """What the pipeline reads."""
    function: Rows | None
    """From the source's rows to the sink's."""
    key: str | None
    """Column that identifies a row."""


def audits(question: Question, targets: Sequence[str], access: Systems) -> list[Audit]:
    """Audit each target, given as SINK=PLACE.

    Raises:
        ConfigurationError: The log knows no such sink, or a place cannot be read.
        SinkError: A target does not answer.
    """
    return [_audit(question, sink, place) for sink, place in _targets(question.log, targets, access)]


def _targets(log: Log, given: Sequence[str], access: Systems) -> list[tuple[str, Place]]:
    view = log.view
    known = sorted({*view.proofs.total, *(view.newest.sinks if view.newest is not None else ())})
    found = []
    for text in given:
        sink, mark, place = text.partition("=")
        if not mark or ":" in sink:  # of the place: no sink's name has one
            if len(known) != 1:
                raise ConfigurationError(
                    f"--target {text}: which sink's? Give SINK={text}, of {', '.join(known) or 'no sink'}"
                )
            sink, place = known[0], text
        if sink not in known:
            raise ConfigurationError(f"the decision log knows no sink {sink!r}: it has {', '.join(known) or 'none'}")
        found.append((sink, Place.parse(place, access)))
    return found


def _audit(question: Question, sink: str, place: Place) -> Audit:
    log, wanted = question.log, question.wanted
    before = log.view
    scope, expected = Scope(log.pipeline, sink, before.log), Expected.of(before, sink)
    columns = sorted({name for written in expected.epochs.values() for name in written.columns})
    reread = place.reread(scope, columns)
    if reread.unmarked is ALL_EPOCHS and question.origin is not None:
        raise ConfigurationError(
            f"{place.title} does not show which epoch wrote a row, so what an epoch read cannot be compared with it: "
            "leave out --source, or compare all rows by --key, without the decision log"
        )
    found = tally(reread)
    after = log.view
    check_overlap(before, after)
    if reread.unmarked is ALL_EPOCHS:
        check_stopped(before, after, place.title)
    held = grouped(found, reread, expected, Expected.of(after, sink))
    lines, foreign = judge(expected, held, reread.unmarked)
    if wanted is not None:
        # Those that are not told one by one are judged with all others that are not.
        lines = [line for line in lines if line.epoch in wanted] or [line for line in lines if line.epoch is None]
        if not lines or wanted.start > max((epoch.epoch for epoch in before.proofs.epochs), default=-1):
            raise ConfigurationError(f"--epochs: sink {sink} has written nothing in these epochs")
    source = _Source(question, place, before, reread.schema)
    lines = [source.checked(line, expected) for line in lines]
    bad = {line.epoch for line in lines if not line.proven and line.verdict is not Verdict.UNPROVEN}
    rows = None
    if foreign or (bad and source.is_known):
        told = {FOREIGN, *bad} if source.is_known else {FOREIGN}
        present = records(place.reread(scope, columns), {mark for mark, group in held.groups.items() if group in told})
        rows = compare(place.title, source.rows(bad), present, question.key)
    waiting = before.undone.epoch if before.undone is not None else None
    return Audit(sink, place.title, lines, foreign, reread.left_out, rows, waiting)


class _Source:
    """What the pipeline reads, epoch by epoch."""

    def __init__(self, question: Question, place: Place, view: LogView, schema: pa.Schema) -> None:
        self._question, self._place, self._schema = question, place, schema
        self._epochs: dict[int | None, list[ProvenEpoch]] = {}
        for epoch in with_starts(view.proofs.epochs):
            self._epochs.setdefault(epoch.epoch, []).append(epoch)

    @property
    def is_known(self) -> bool:
        return self._question.origin is not None

    def _batches(self, epoch: int | None) -> Iterator[pa.RecordBatch]:
        if self._question.origin is not None:
            for one in self._epochs.get(epoch, ()):
                batches = self._question.origin.of_epoch(one)
                yield from mapped(batches, self._place, self._schema, self._question.function)

    def rows(self, epochs: Collection[int | None]) -> Iterator[dict[str, Any]]:
        for epoch in epochs:
            yield from shown(self._batches(epoch))

    def checked(self, line: Line, expected: Expected) -> Line:
        """With whether the source's rows, read again, give those that were written."""
        written = expected.epochs.get(line.epoch) if line.epoch is not None else None
        if not self.is_known or written is None or not written.hash:
            return line
        found = RowHash()
        for batch in self._batches(line.epoch):
            found.add(batch)
        same = (found.rows, found.proof().hash) == (written.rows, written.hash)
        return msgspec.structs.replace(line, source=Verdict.PROVEN if same else Verdict.DIFFERS)
