"""`onceward verify`: whether targets still hold exactly what each epoch wrote into them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import msgspec
import typer

from onceward.core.errors import ConfigurationError, OncewardError
from onceward.core.operations.audit import sinks_in
from onceward.core.operations.comparison import Verdict
from onceward.operations import (
    EpochVerdict,
    Refusal,
    RefusedError,
    audit,
    compare_places,
    epochs_of_day,
    open_log,
)

from ..command_advice import message
from ..shared_options import Access, AsJson, Pipeline, place_forms, with_group
from ..show import console, print_json
from .places import load_function, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from onceward.core.contract.place import Place
    from onceward.core.operations.audit import AuditLine
    from onceward.operations import Audit, Comparison, Log

EXIT_DIFFERS, EXIT_UNPROVEN = 1, 3
_SHOWN: Final = 20
"""Number of different epochs that are shown one by one."""
_ATTEMPTS: Final = 3
"""Number of attempts to read a target that does not show which epoch wrote a row, if an epoch is committed
meanwhile."""
_STYLE: Final = {EpochVerdict.PROVEN: "green", EpochVerdict.DIFFERS: "red", EpochVerdict.UNPROVEN: "yellow"}


@with_group
def verify(
    store: Annotated[
        str | None,
        typer.Argument(help="The checkpoint folder, or the URL of the decision log's store; none: compare by --key."),
    ] = None,
    *,
    store_option: Annotated[
        str | None, typer.Option("--store", help="The same as the argument, as other commands take it.")
    ] = None,
    target: Annotated[
        list[str],
        typer.Option(
            metavar="[SINK=]PLACE",
            help=f"Where a sink wrote to: {place_forms()}; repeatable. SINK may be left out if there is only one sink.",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Topic that the pipeline reads; needed to name the rows that differ."),
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            "--map",
            metavar="MODULE:FUNCTION",
            help="Function from a batch of the source's rows to the sink's. Default: copies, or the columns of JSON.",
        ),
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="COLUMN[,COLUMN]", help="Column or columns that identify a row.")
    ] = None,
    epochs: Annotated[str | None, typer.Option(metavar="A:B", help="Only epochs from A to B.")] = None,
    day: Annotated[
        str | None,
        typer.Option(metavar="DAY", help="Only epochs of a day (UTC), such as 2026-11-27, or yesterday: for a job."),
    ] = None,
    pipeline: Pipeline = None,
    access: Access,
    as_json: AsJson = False,
) -> None:
    """Prove that targets still hold exactly the rows that were written, or name the epochs and rows that differ.

    With a decision log, each target is read again and compared with the number and the hash of the rows that each epoch
    recorded. Upserts record no hash: with --source and --key, the newest row of each key is compared. Without a
    decision log, a source and a target are compared by key. Changes nothing.

    Exit codes: 0 all is proven; 1 something differs, or a system did not answer; 2 wrong arguments; 3 nothing differs
    as far as can be known, and not all can be proven, for example because an epoch was committed meanwhile.
    """
    if store is not None and store_option is not None:
        raise ConfigurationError("the store is given twice: as the argument and as --store")
    store = store or store_option
    columns = [name.strip() for name in key.split(",")] if key is not None else None
    origin = place_of(source, access) if source is not None else None
    function = load_function(mapping) if mapping is not None else None
    if store is None:
        if origin is None or len(target) != 1 or epochs is not None or day is not None:
            raise ConfigurationError(
                "without a decision log, give --source and exactly one --target, and neither --epochs nor --day; "
                "or give the checkpoint folder or the store as the argument"
            )
        comparison = compare_places(origin, place_of(target[0], access), mapping=function, key=columns)
        _show_rows(comparison, as_json=as_json)
        raise typer.Exit(0 if comparison.exact else EXIT_DIFFERS)
    if epochs is not None and day is not None:
        raise ConfigurationError("give --epochs or --day, not both")
    log, wanted = open_log(store, pipeline), _range(epochs)
    audits: list[Audit | Unread] = []
    for sink, place in _targets(log, target, access):
        if day is not None and (wanted := epochs_of_day(log, sink, _date(day))) is None:
            console(stderr=True).print(f"{sink}: no known epoch wrote rows on {_date(day)}")
            continue
        try:
            audits.append(_audit(log, sink, place, epochs=wanted, source=origin, mapping=function, key=columns))
        except OncewardError as error:  # the other targets are read nevertheless
            if isinstance(error, ConfigurationError) and not _is_moving(error):
                raise
            audits.append(Unread(sink, place.title, message(error), moving=_is_moving(error)))
    _show(audits, as_json=as_json)
    raise typer.Exit(_exit_code(audits))


class Unread(NamedTuple):
    """A target that was not judged."""

    sink: str
    target: str
    error: str
    moving: bool
    """True if the reason is that an epoch was committed while it was read, or waits for its commit."""


def _is_moving(error: OncewardError) -> bool:
    return isinstance(error, RefusedError) and error.reason is Refusal.NOT_STOPPED


def _audit(log: Log, sink: str, place: Place, **options: Any) -> Audit:
    """Audit a target, again if an epoch was committed meanwhile and the target does not show which rows are its."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return audit(log, sink, place, **options)
        except RefusedError as error:
            if not _is_moving(error) or log.view.undone is not None:
                raise
    return audit(log, sink, place, **options)


def _date(day: str) -> str:
    return (datetime.now(UTC) - timedelta(days=1)).date().isoformat() if day == "yesterday" else day


def _exit_code(audits: Sequence[Audit | Unread]) -> int:
    failed = any(not one.moving if isinstance(one, Unread) else one.verdict is EpochVerdict.DIFFERS for one in audits)
    unproven = any(isinstance(one, Unread) or one.verdict is EpochVerdict.UNPROVEN for one in audits)
    return EXIT_DIFFERS if failed else EXIT_UNPROVEN if unproven else 0


def _range(text: str | None) -> range | None:
    """Parse A:B, either of which may be left out; a number alone is one epoch."""
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


def _targets(log: Log, addresses: Sequence[str], access: Access) -> list[tuple[str, Place]]:
    known = sinks_in(log.view)
    targets = []
    for text in addresses:
        sink, mark, place = text.partition("=")
        if not mark or ":" in sink:  # of the place: no sink's name has one
            if len(known) != 1:
                raise ConfigurationError(
                    f"--target {text}: which sink's? Give SINK={text}, of {', '.join(known) or 'no sink'}"
                )
            sink, place = known[0], text
        if sink not in known:
            raise ConfigurationError(f"the decision log knows no sink {sink!r}: it has {', '.join(known) or 'none'}")
        targets.append((sink, place_of(place, access)))
    return targets


def _show(audits: Sequence[Audit | Unread], *, as_json: bool) -> None:
    """Print each target: proven epochs in one line, others epoch by epoch, then the rows."""
    if as_json:
        print_json([_plain(one) for one in audits])
        return
    out = console()
    for one in audits:
        if isinstance(one, Unread):
            out.print(f"{one.sink} in {one.target}", style="bold")
            out.print(f"  not checked: {one.error}", style=_STYLE[EpochVerdict.UNPROVEN])
            continue
        proven = [line for line in one.lines if line.proven]
        rows = sum(line.found for line in proven)
        out.print(f"{one.sink} in {one.target}", style="bold")
        if proven:
            keys = [line.keys for line in proven if line.keys is not None]
            shown = f"the newest rows of {sum(keys)} keys" if keys else f"{rows} rows"
            out.print(f"  proven: {_epochs(proven)}, {shown}", style=_STYLE[EpochVerdict.PROVEN])
        for text in _differing(one):
            out.print(f"  {text}", style=_STYLE[EpochVerdict.DIFFERS])
        for text in _unproven(one):
            out.print(f"  {text}", style=_STYLE[EpochVerdict.UNPROVEN])
        if one.foreign:
            out.print(f"  {one.foreign} rows that no epoch wrote", style=_STYLE[EpochVerdict.DIFFERS])
        for note in _notes(one):
            out.print(f"  {note}")
        if one.rows is not None:
            _show_rows(one.rows, as_json=False)


def _differing(one: Audit) -> Iterator[str]:
    """Yield the epochs that differ, not more than a person reads."""
    differing = [line for line in one.lines if line.differs]
    yield from map(_words, differing[:_SHOWN])
    if rest := differing[_SHOWN:]:
        yield f"… and {len(rest)} more that differ: {_epochs(rest)}"


def _unproven(one: Audit) -> Iterator[str]:
    """Yield what is known of the epochs that are not proven and do not differ, those with a number together."""
    lines = [line for line in one.lines if not line.proven and not line.differs]
    yield from (_words(line) for line in lines if line.epoch is None)
    if numbered := [line for line in lines if line.epoch is not None]:
        rows = sum(line.found for line in numbered)
        yield f"{_epochs(numbered)}: no hash of the rows was recorded; the target shows {rows} rows"


def _notes(one: Audit) -> Iterator[str]:
    """Yield notes about data that was not checked or compared."""
    if one.waiting is not None:
        yield f"not checked: epoch {one.waiting}, which is decided and waits for its commit"
    if not one.lines and not one.foreign:
        yield "no epoch is completed, and there are no rows"
    if one.left_out:
        yield f"not compared: {', '.join(one.left_out)}"
    unproven = [line.epoch for line in one.lines if line.verdict is EpochVerdict.UNPROVEN]
    if unproven:
        text = "no hash is recorded for upserts, with proof=False, or for rows none of whose columns is compared. "
        if one.by_key:
            text += "Upserts are proven by the newest row of each key: give --source and --key. "
        yield f"{text}To compare the rows directly, leave the decision log out and give --source, --target and --key"


def _show_rows(comparison: Comparison, *, as_json: bool) -> None:
    """Print the rows that differ."""
    if as_json:
        print_json(_rows(comparison))
        return
    for line in Verdict((comparison,)).lines():
        console().print(f"  {line}")


def _epochs(lines: Sequence[AuditLine]) -> str:
    numbers = [line.epoch for line in lines if line.epoch is not None]
    words = ["all older epochs"] if len(numbers) < len(lines) else []
    if numbers:
        words.append(f"epochs {min(numbers)} to {max(numbers)}" if len(numbers) > 1 else f"epoch {numbers[0]}")
    return " and ".join(words)


def _words(line: AuditLine) -> str:
    what = f"epoch {line.epoch}" if line.epoch is not None else "older epochs together"
    if line.verdict is EpochVerdict.PROVEN:
        return f"{what}: the target holds what was written, but the source's rows give something else"
    if line.verdict is EpochVerdict.UNPROVEN:
        return f"{what}: no hash of the rows was recorded; the target shows {line.found} rows"
    if line.ledger is not None:
        return f"{what}: the decision log records {line.written} rows, and the target's ledger {line.ledger}"
    if line.keys is not None:
        return f"{what}: {line.keys} keys have their newest row in it, but the table does not hold all of these rows"
    if line.written == line.found:
        return f"{what}: {line.found} rows, but not the same ones as were written"
    return f"{what}: {line.written} rows were written, {line.found} of them are there"


def _plain(one: Audit | Unread) -> dict[str, Any]:
    if isinstance(one, Unread):
        return {
            "sink": one.sink,
            "target": one.target,
            "verdict": EpochVerdict.UNPROVEN,
            "proven": False,
            "error": one.error,
            "epochs": [],
            "foreign": 0,
            "left_out": [],
            "waiting": None,
            "rows": None,
        }
    return {
        "sink": one.sink,
        "target": one.target,
        "verdict": one.verdict,
        "proven": one.proven,
        "error": None,
        "epochs": one.lines,
        "foreign": one.foreign,
        "left_out": one.left_out,
        "waiting": one.waiting,
        "rows": _rows(one.rows) if one.rows is not None else None,
    }


def _rows(comparison: Comparison) -> dict[str, Any]:
    findings = [msgspec.to_builtins(finding._asdict(), enc_hook=str) for finding in comparison.findings]
    return {
        "output": comparison.output,
        "expected": comparison.expected,
        "found": comparison.found,
        "findings": findings,
    }
