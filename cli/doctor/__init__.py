"""`onceward doctor`: is everything set up for the guarantee, and if not, what to do. Here: what it finds, and shows."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec
import typer
from rich.console import Console

if TYPE_CHECKING:
    from collections.abc import Sequence


class Health(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and weakens the guarantee or may fail later."""
    FAILED = "failed"
    """It does not work."""
    SKIPPED = "skipped"
    """Not asked for, or not to be had without what failed before."""


class Finding(msgspec.Struct, frozen=True):
    """One check's result: what was looked at, how bad it is, what was seen, and what to do (empty if nothing)."""

    check: str
    health: Health
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(check, Health.OK, found)


def warning(check: str, found: str, advice: str) -> Finding:
    """Better changed."""
    return Finding(check, Health.WARNING, found, advice)


def failed(check: str, found: str, advice: str) -> Finding:
    """Must be changed."""
    return Finding(check, Health.FAILED, found, advice)


def skipped(check: str, why: str) -> Finding:
    """Not looked at."""
    return Finding(check, Health.SKIPPED, why)


_STYLE: Final = {Health.OK: "green", Health.WARNING: "yellow", Health.FAILED: "red", Health.SKIPPED: "dim"}


def show(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Print findings: a line each, and one with the advice. Nothing is cut or wrapped, so that it can be copied."""
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(findings)).decode())
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
