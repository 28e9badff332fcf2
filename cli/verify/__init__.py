"""`onceward verify`: whether targets still hold exactly what each epoch wrote into them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import typer

from onceward.core.errors import ConfigurationError
from onceward.core.names import Scope
from onceward.core.operations.audit import (
    FOREIGN,
    Audit,
    EpochVerdict,
    Expected,
    check_overlap,
    check_stopped,
    grouped,
    judge,
    tally,
    with_starts,
)
from onceward.core.operations.comparison import Verdict, compare
from onceward.core.operations.logs import open_log
from onceward.core.operations.rows import compared, mapped, records, shown
from onceward.core.proof import ALL_EPOCHS
from onceward.core.row_hash import RowHash

from ..options import Access, AsJson, Pipeline, with_group
from ..show import console, print_json
from .places import load_function, place_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa

    from onceward.core.log import LogView
    from onceward.core.operations.audit import Line
    from onceward.core.operations.comparison import Comparison
    from onceward.core.operations.logs import Log
    from onceward.core.operations.rows import Rows
    from onceward.core.place import Place
    from onceward.core.proof import ProvenEpoch

_STYLE: Final = {EpochVerdict.PROVEN: "green", EpochVerdict.DIFFERS: "red", EpochVerdict.UNPROVEN: "yellow"}


@with_group
def verify(
    store: Annotated[
        str | None,
        typer.Argument(help="The checkpoint folder, or the URL of the decision log's store; none: compare by --key."),
    ] = None,
    *,
    target: Annotated[
        list[str],
        typer.Option(
            metavar="[SINK=]PLACE",
            help="Where a sink wrote to: kafka:TOPIC, postgres:TABLE, sql:TABLE, redis:KEY or files:FOLDER; repeatable."
            " SINK may be left out if there is one.",
        ),
    ],
    source: Annotated[
        str | None, typer.Option(metavar="PLACE", help="What the pipeline reads: to name the rows that differ.")
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="MODULE:FUNCTION",
            help="Function from a batch of the source's rows to the sink's. Default: copies, or the columns of JSON.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Column that identifies a row.")] = None,
    epochs: Annotated[str | None, typer.Option(metavar="A:B", help="Only epochs from A to B.")] = None,
    pipeline: Pipeline = None,
    access: Access,
    as_json: AsJson = False,
) -> None:
    """Prove that targets still hold exactly the rows that were written, or name the epochs and rows that differ.

    With a decision log, each target is read again and compared with the number and the hash of the rows that each epoch
    recorded. Without one, a source and a target are compared by key. Changes nothing.
    """
    origin = place_of(source, access) if source is not None else None
    function = load_function(mapping) if mapping is not None else None
    if store is None:
        if origin is None or len(target) != 1 or epochs is not None:
            raise ConfigurationError(
                "without a decision log give --source, one --target, and no --epochs; with one, its checkpoint folder "
                "or store as the argument"
            )
        found = compared(origin, place_of(target[0], access), function, key)
        _show_rows(found, as_json=as_json)
        raise typer.Exit(int(not found.exact))
    question = _Question(open_log(store, pipeline), _range(epochs), origin, function, key)
    told = _audits(question, target, access)
    _show(told, as_json=as_json)
    raise typer.Exit(int(not all(audit.proven for audit in told)))


def _range(text: str | None) -> range | None:
    """Of A:B, either of which may be left out; a number alone is one epoch."""
    if text is None:
        return None
    first, mark, last = text.partition(":")
    try:
        wanted = range(int(first or 0), int(last or (sys.maxsize if mark else first)) + 1)
    except ValueError:
        wanted = range(0)
    if not wanted:
        raise ConfigurationError(f"--epochs takes A:B, two numbers, the smaller one first, not {text!r}")
    return wanted


class _Question(NamedTuple):
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


def _audits(question: _Question, targets: Sequence[str], access: Access) -> list[Audit]:
    """Audit each target, given as SINK=PLACE."""
    return [_audit(question, sink, place) for sink, place in _targets(question.log, targets, access)]


def _targets(log: Log, given: Sequence[str], access: Access) -> list[tuple[str, Place]]:
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
        found.append((sink, place_of(place, access)))
    return found


def _audit(question: _Question, sink: str, place: Place) -> Audit:
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
    bad = {line.epoch for line in lines if not line.proven and line.verdict is not EpochVerdict.UNPROVEN}
    rows = None
    if foreign or (bad and source.is_known):
        told = {FOREIGN, *bad} if source.is_known else {FOREIGN}
        present = records(place.reread(scope, columns), {mark for mark, group in held.groups.items() if group in told})
        rows = compare(place.title, source.rows(bad), present, question.key)
    waiting = before.undone.epoch if before.undone is not None else None
    return Audit(sink, place.title, lines, foreign, reread.left_out, rows, waiting)


class _Source:
    """What the pipeline reads, epoch by epoch."""

    def __init__(self, question: _Question, place: Place, view: LogView, schema: pa.Schema) -> None:
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
        return msgspec.structs.replace(line, source=EpochVerdict.PROVEN if same else EpochVerdict.DIFFERS)


def _show(found: Sequence[Audit], *, as_json: bool) -> None:
    """Each target: what is proven in one line, what is not epoch by epoch, then the rows."""
    if as_json:
        print_json([_plain(audit) for audit in found])
        return
    out = console()
    for audit in found:
        proven = [line for line in audit.lines if line.proven]
        rows = sum(line.found for line in proven)
        out.print(f"{audit.sink} in {audit.target}", style="bold")
        if proven:
            out.print(f"  proven: {_epochs(proven)}, {rows} rows", style=_STYLE[EpochVerdict.PROVEN])
        for line in audit.lines:
            if not line.proven:
                out.print(f"  {_words(line)}", style=_STYLE[EpochVerdict.DIFFERS if line.source else line.verdict])
        if audit.foreign:
            out.print(f"  {audit.foreign} rows that no epoch wrote", style=_STYLE[EpochVerdict.DIFFERS])
        for note in _notes(audit):
            out.print(f"  {note}")
        if audit.rows is not None:
            _show_rows(audit.rows, as_json=False)


def _notes(audit: Audit) -> Iterator[str]:
    """What was not judged or compared."""
    if audit.waiting is not None:
        yield f"not checked: epoch {audit.waiting}, which is decided and waits for its commit"
    if not audit.lines and not audit.foreign:
        yield "no epoch is completed, and there are no rows"
    if audit.left_out:
        yield f"not compared: {', '.join(audit.left_out)}"
    if any(line.verdict is EpochVerdict.UNPROVEN for line in audit.lines):
        yield (
            "no hash is recorded by upserts, with proof=False, and of rows without a column that is compared: compare "
            "the rows themselves, without a decision log (--source, --target and --key)"
        )


def _show_rows(found: Comparison, *, as_json: bool) -> None:
    """Rows that differ."""
    if as_json:
        print_json(_rows(found))
        return
    for line in Verdict((found,)).lines():
        console().print(f"  {line}")


def _epochs(lines: Sequence[Line]) -> str:
    numbers = [line.epoch for line in lines if line.epoch is not None]
    words = ["all older epochs"] if len(numbers) < len(lines) else []
    if numbers:
        words.append(f"epochs {min(numbers)} to {max(numbers)}" if len(numbers) > 1 else f"epoch {numbers[0]}")
    return " and ".join(words)


def _words(line: Line) -> str:
    what = f"epoch {line.epoch}" if line.epoch is not None else "older epochs together"
    if line.verdict is EpochVerdict.PROVEN:
        return f"{what}: the target holds what was written, but the source's rows give something else"
    if line.verdict is EpochVerdict.UNPROVEN:
        return f"{what}: no hash of its rows was recorded; the target shows {line.found} rows of it"
    if line.written == line.found:
        return f"{what}: {line.found} rows, but not the same ones as were written"
    return f"{what}: {line.written} rows were written, {line.found} of them are there"


def _plain(audit: Audit) -> dict[str, Any]:
    return {
        "sink": audit.sink,
        "target": audit.target,
        "proven": audit.proven,
        "epochs": audit.lines,
        "foreign": audit.foreign,
        "left_out": audit.left_out,
        "waiting": audit.waiting,
        "rows": _rows(audit.rows) if audit.rows is not None else None,
    }


def _rows(found: Comparison) -> dict[str, Any]:
    findings = [msgspec.to_builtins(finding._asdict(), enc_hook=str) for finding in found.findings]
    return {"output": found.output, "expected": found.expected, "found": found.found, "findings": findings}
