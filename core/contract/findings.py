"""Findings: what a check saw, how bad it is, and what to do."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from .sink import Guarantee

if TYPE_CHECKING:
    from collections.abc import Sequence


class Health(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """The part works, and weakens the guarantee or may fail later."""
    FAILED = "failed"
    """The part does not work."""
    SKIPPED = "skipped"
    """The check was not requested, or cannot be made without what failed before."""


class Finding(msgspec.Struct, frozen=True):
    """One check's result.

    Attributes:
        check: Subject of the check. docs/guarantees.md names it beside each setup that weakens the guarantee.
        health: Severity of the result.
        found: Result of the check, in words.
        advice: Action to take; empty if there is none.
        where: Part that was checked: a sink, a source, a topic, an address; empty if there is only one.
        guarantee: Guarantee that is left because of this; None if it stays as it is.
    """

    check: str
    health: Health
    found: str
    advice: str = ""
    where: str = ""
    guarantee: Guarantee | None = None

    def of(self, where: str) -> Finding:
        """Return the same finding about this part."""
        return msgspec.structs.replace(self, where=where)


def ok(check: str, found: str, where: str = "") -> Finding:
    """Report that nothing is to be done."""
    return Finding(check, Health.OK, found, where=where)


def warning(check: str, found: str, advice: str, where: str = "", guarantee: Guarantee | None = None) -> Finding:
    """Report what works, and weakens the guarantee or may fail later."""
    return Finding(check, Health.WARNING, found, advice, where, guarantee)


def failed(check: str, found: str, advice: str, where: str = "") -> Finding:
    """Report what does not work."""
    return Finding(check, Health.FAILED, found, advice, where)


def skipped(check: str, why: str, where: str = "") -> Finding:
    """Report what was not checked."""
    return Finding(check, Health.SKIPPED, why, where=where)


def any_failed(findings: Sequence[Finding]) -> bool:
    """Return whether something does not work."""
    return any(finding.health is Health.FAILED for finding in findings)
