"""How findings are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import Console

from .finding import Finding, Health

if TYPE_CHECKING:
    from collections.abc import Sequence

_STYLE = {Health.OK: "green", Health.WARNING: "yellow", Health.FAILED: "red", Health.SKIPPED: "dim"}


def show(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print findings: a line each, and one with the advice. Nothing is cut or wrapped, so that it can be copied."""
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(list(findings))).decode())
        return
    console = Console(soft_wrap=True, highlight=False, emoji=False, markup=False)
    for finding in findings:
        console.print(f"{finding.health:8}", style=_STYLE[finding.health], end=" ")
        console.print(f"{finding.check}: {' '.join(finding.found.split())}")
        if finding.advice:
            console.print(f"         → {finding.advice}")


def exit_code(findings: Sequence[Finding]) -> int:
    """1 if something does not work."""
    return int(any(finding.health is Health.FAILED for finding in findings))
