"""What `onceward doctor` and `onceward explain` find, and how it is shown."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from onceward.core.sink import Guarantee

from ..show import console, print_json

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
    """One check's result.

    Attributes:
        check: What was checked. README's table of what weakens the guarantee names it.
        health: How bad it is.
        found: What was seen.
        advice: What to do; empty if nothing.
        where: Of which part: a sink, a source, a topic, an address; empty if there is only one.
        guarantee: What is left of the guarantee because of this; None if it stays as it is.
    """

    check: str
    health: Health
    found: str
    advice: str = ""
    where: str = ""
    guarantee: Guarantee | None = None

    def of(self, where: str) -> Finding:
        """The same, of this part."""
        return msgspec.structs.replace(self, where=where)


def ok(check: str, found: str, where: str = "") -> Finding:
    """Nothing to do."""
    return Finding(check, Health.OK, found, where=where)


def warning(check: str, found: str, advice: str, where: str = "", guarantee: Guarantee | None = None) -> Finding:
    """Better changed."""
    return Finding(check, Health.WARNING, found, advice, where, guarantee)


def failed(check: str, found: str, advice: str, where: str = "") -> Finding:
    """Must be changed."""
    return Finding(check, Health.FAILED, found, advice, where)


def skipped(check: str, why: str, where: str = "") -> Finding:
    """Not looked at."""
    return Finding(check, Health.SKIPPED, why, where=where)


_STYLE: Final = {Health.OK: "green", Health.WARNING: "yellow", Health.FAILED: "red", Health.SKIPPED: "dim"}


def show(findings: Sequence[Finding], *, as_json: bool = False) -> None:
    """Print findings: a line each, and one with the advice. Nothing is cut or wrapped, so that it can be copied."""
    if as_json:
        print_json(findings)
        return
    out = console()
    for finding in findings:
        where = f" ({finding.where})" if finding.where else ""
        out.print(f"{finding.health:8}", style=_STYLE[finding.health], end=" ")
        out.print(f"{finding.check}{where}: {' '.join(finding.found.split())}")
        if finding.advice:
            out.print(f"         → {finding.advice}")


def exit_code(findings: Sequence[Finding]) -> int:
    """1 if something does not work."""
    return int(any(finding.health is Health.FAILED for finding in findings))
