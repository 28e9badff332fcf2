"""How an operator sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ...core.checkpoint.standing import Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .epochs import History
    from .survey import Found

FENCES = "a run of this pipeline that is still alive would be fenced and stop"
ORPHANS = "if their decision log does exist somewhere and has decided them, their rows are lost"

_STYLE = {
    Standing.DECIDED: "green",
    Standing.COMPLETED: "red",
    Standing.IN_DOUBT: "yellow",
    Standing.LINGERING: "cyan",
    Standing.FOREIGN: "magenta",
    Standing.UNKNOWN: "magenta",
}


def table(found: Sequence[Found], *, as_json: bool = False) -> None:
    """Transactions: a line each with its name, which is not cut, and what is known of it below."""
    if as_json:
        _json(found)
        return
    console = Console(soft_wrap=True, highlight=False)
    for one in found:
        console.print(one.transaction, style="bold", markup=False)
        known = [f"sink {one.sink} of {one.pipeline}"]
        known += [f"epoch {one.epoch}, subtask {one.subtask}"] if one.epoch is not None else []
        known += [f"{one.rows} rows"] if one.rows is not None else []
        console.print(f"  {one.standing}", style=_STYLE[one.standing], end="")
        console.print(f"; {one.state} in {one.place}; {', '.join(known)}", markup=False)
        console.print(f"  → {one.next}", markup=False)
    console.print(f"{len(found)} transactions" if found else "nothing is open, prepared or waiting")


def details(found: Sequence[Found], *, as_json: bool) -> None:
    """All that is known, the handle too."""
    if as_json:
        _json(found)
        return
    console = Console(soft_wrap=True, highlight=False)
    for one in found:
        for name, value in msgspec.to_builtins(one).items():
            shown = msgspec.json.encode(value).decode() if isinstance(value, dict) else value
            console.print(f"{name:12} {'' if shown is None else shown}", markup=False)


def history(told: History, *, as_json: bool) -> None:
    """Epochs, a row each; below, where the embedded engine's checkpoints are, and what was given up."""
    if as_json:
        _json(told)
        return
    listed = told.epochs
    rows = Table("epoch", "decided", "completed", "sinks", "transactions", "rows")
    for one in listed:
        waits = "waits for its commit"
        numbers = str(one.transactions), str(one.rows)
        rows.add_row(str(one.epoch), one.decided, one.completed or waits, ", ".join(one.sinks), *numbers)
    console = Console(soft_wrap=True, highlight=False)
    console.print(rows if listed else "the log holds no decided epoch")
    for one in listed:
        for folder in [*one.retained, *([one.checkpoint] if one.checkpoint else [])]:
            console.print(f"checkpoint {folder}", markup=False)
    for given in told.given_up:
        console.print(f"{given.action} {given.transaction} of epoch {given.epoch}, {given.at}", markup=False)
        console.print(f"  by {given.who}: {given.why}", markup=False)


def _json(what: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(what)).decode())
