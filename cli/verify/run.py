"""Read a decision log, its pipeline's targets, and the source where rows differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from onceward.core.errors import ConfigurationError
from onceward.core.names import Scope

from .audit import FOREIGN, Audit, Expected, Verdict, check_overlap, grouped, judge, tally, with_starts
from .places import Access, Place
from .rows import of_epochs, records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..operate.logs import Log
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


def audits(question: Question, targets: Sequence[str], access: Access) -> list[Audit]:
    """Audit each target, given as SINK=PLACE.

    Raises:
        ConfigurationError: The log knows no such sink, or a place cannot be read.
        SinkError: A target does not answer.
    """
    return [_audit(question, sink, place) for sink, place in _targets(question.log, targets, access)]


def _targets(log: Log, given: Sequence[str], access: Access) -> list[tuple[str, Place]]:
    view = log.view
    known = sorted({*view.proofs.total, *(view.newest.sinks if view.newest is not None else ())})
    found = []
    for text in given:
        sink, mark, place = text.partition("=")
        if not mark:
            if len(known) != 1:
                raise ConfigurationError(
                    f"--target {text}: whose? Give SINK={text}, of {', '.join(known) or 'no sink'}"
                )
            sink, place = known[0], text
        if sink not in known:
            raise ConfigurationError(f"the decision log knows no sink {sink!r}: it has {', '.join(known) or 'none'}")
        found.append((sink, Place.parse(place, access)))
    return found


def _audit(question: Question, sink: str, place: Place) -> Audit:
    log, wanted, origin, function, key = question
    before = log.view
    scope, expected = Scope(log.pipeline, sink, before.log), Expected.of(before, sink)
    columns = sorted({name for written in expected.epochs.values() for name in written.columns})
    reread = place.reread(scope, columns)
    found = tally(reread)
    after = log.view
    check_overlap(before, after)
    held = grouped(found, reread, expected, Expected.of(after, sink))
    lines = judge(expected, held, wanted)
    bad = {line.epoch for line in lines if line.verdict is Verdict.DIFFERS}
    rows = None
    if held.foreign.rows or (bad and origin is not None):
        told = {FOREIGN, *bad} if origin is not None else {FOREIGN}
        present = records(place.reread(scope, columns), {mark for mark, group in held.groups.items() if group in told})
        wrong = [epoch for epoch in with_starts(before.proofs.epochs) if epoch.epoch in bad]
        rows = of_epochs(place, wrong, present, origin=origin, schema=reread.schema, function=function, key=key)
    return Audit(sink, place.title, lines, held.foreign.rows, reread.left_out, rows)
