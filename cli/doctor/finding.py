"""What the doctor finds: each with what to do about it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Health(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and weakens the guarantee or may fail later."""
    FAILED = "failed"
    """It does not work."""
    SKIPPED = "skipped"
    """Not asked for, or not to be had without what failed before."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check's result.

    Attributes:
        check: What was looked at.
        health: How bad it is.
        found: What was seen.
        advice: What to do; empty if nothing.
    """

    check: str
    health: Health
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    """Nothing to do."""
    return Finding(check=check, health=Health.OK, found=found)


def warning(check: str, found: str, advice: str) -> Finding:
    """Better changed."""
    return Finding(check=check, health=Health.WARNING, found=found, advice=advice)


def failed(check: str, found: str, advice: str) -> Finding:
    """Must be changed."""
    return Finding(check=check, health=Health.FAILED, found=found, advice=advice)


def skipped(check: str, why: str) -> Finding:
    """Not looked at."""
    return Finding(check=check, health=Health.SKIPPED, found=why)
