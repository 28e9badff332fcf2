"""How findings are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.console import Console
from rich.table import Table

from .finding import Finding, Health

if TYPE_CHECKING:
    from collections.abc import Sequence

_STYLE = {Health.OK: "green", Health.WARNING: "yellow", Health.FAILED: "red", Health.SKIPPED: "dim"}


def show(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print findings as a table, or as JSON."""
    console = Console()
    if as_json:
        console.print_json(msgspec.json.encode(list(findings)).decode())
        return
    table = Table("check", "", "found", "what to do", expand=False)
    for finding in findings:
        style = _STYLE[finding.health]
        table.add_row(finding.check, f"[{style}]{finding.health}[/{style}]", finding.found, finding.advice)
    console.print(table)


def exit_code(findings: Sequence[Finding]) -> int:
    """1 if something does not work."""
    return int(any(finding.health is Health.FAILED for finding in findings))
