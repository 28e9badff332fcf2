"""How the findings of `onceward verify` are printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import typer

from onceward.testing.pipeline.judge import Verdict as Found

from ..operate.show import console
from .audit import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceward.testing.pipeline.judge import Comparison

    from .audit import Audit, Line

_STYLE: Final = {Verdict.PROVEN: "green", Verdict.DIFFERS: "red", Verdict.UNPROVEN: "yellow"}


def audits(found: Sequence[Audit], *, as_json: bool) -> None:
    """Each target: what is proven in one line, what is not epoch by epoch, then the rows."""
    if as_json:
        _json([_plain(audit) for audit in found])
        return
    out = console()
    for audit in found:
        proven = [line for line in audit.lines if line.proven]
        rows = sum(line.found for line in proven)
        out.print(f"{audit.sink} in {audit.target}", style="bold")
        if proven:
            out.print(f"  proven: {_epochs(proven)}, {rows} rows", style=_STYLE[Verdict.PROVEN])
        for line in audit.lines:
            if not line.proven:
                out.print(f"  {_words(line)}", style=_STYLE[Verdict.DIFFERS if line.source else line.verdict])
        if audit.foreign:
            out.print(f"  {audit.foreign} rows that no epoch wrote", style=_STYLE[Verdict.DIFFERS])
        if not audit.lines and not audit.foreign:
            out.print("  no epoch is completed, and there are no rows")
        if audit.left_out:
            out.print(f"  not compared: {', '.join(audit.left_out)}")
        if audit.rows is not None:
            comparison(audit.rows, as_json=False)


def comparison(found: Comparison, *, as_json: bool) -> None:
    """Rows that differ."""
    if as_json:
        _json(_rows(found))
        return
    for line in Found((found,)).lines():
        console().print(f"  {line}")


def _epochs(lines: Sequence[Line]) -> str:
    numbers = [line.epoch for line in lines if line.epoch is not None]
    words = ["all older epochs"] if len(numbers) < len(lines) else []
    if numbers:
        words.append(f"epochs {min(numbers)} to {max(numbers)}" if len(numbers) > 1 else f"epoch {numbers[0]}")
    return " and ".join(words)


def _words(line: Line) -> str:
    what = f"epoch {line.epoch}" if line.epoch is not None else "older epochs together"
    if line.verdict is Verdict.PROVEN:
        return f"{what}: the target has what was written, but the source's rows give something else"
    if line.verdict is Verdict.UNPROVEN:
        return f"{what}: no proof was recorded; {line.found} rows are there"
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
        "rows": _rows(audit.rows) if audit.rows is not None else None,
    }


def _rows(found: Comparison) -> dict[str, Any]:
    findings = [msgspec.to_builtins(finding._asdict(), enc_hook=str) for finding in found.findings]
    return {"output": found.output, "expected": found.expected, "found": found.found, "findings": findings}


def _json(what: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(what, enc_hook=str)).decode())
