"""Staged rows as they are noted, checked and moved: what all ways of staging have in common."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

import msgspec

from onceward.core.errors import SqlError

from .target import TableName

STAGE: Final = re.compile(r"stage_[0-9a-f]{24}_[0-9]")
"""Name of a staging table. They may be emptied, so nothing else may be taken for one."""


class Movement(msgspec.Struct, frozen=True):
    """What a writer notes beside its staged rows. It becomes SQL, so every field is checked when it is read.

    Those of one epoch that are alike but for their ids are moved by one statement.
    """

    target: TableName
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    id: int = 0
    """Of its rows in a staging table."""
    sha256: str = ""
    """Of the pieces; empty where rows are in a staging table, and if an earlier version staged them."""

    def noted(self) -> str:
        """As JSON in ASCII: a server's default character set need not have all characters of its tables' names."""
        return json.dumps(msgspec.to_builtins(self))


class StagedPart(NamedTuple):
    """What one attempt has staged."""

    id: int
    order: int
    """Of rows with the same key those of the highest one win."""
    rows: int


class ChangedError(SqlError):
    """What is staged is not what was decided."""
