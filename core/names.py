"""The one place where names of transactions are built and read.

Invariant 9: whatever does not carry this pipeline's exact name is never touched. A name is therefore never
compared by prefix; it is parsed whole, field by field, and every field is checked.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .errors import ConfigurationError

FORMAT = "onceward:1"
ACCEPTS = "onceward-accepts:1"
PIPELINE_LENGTH = 64
SINK_LENGTH = 32
_PART = re.compile(r"[A-Za-z0-9._-]+")
_UNIQUE = re.compile(r"[0-9a-f]{4,32}")
_IN_FILE_NAMES = "~"
"""In place of ":" in the names of files; no part of a name holds either."""


def check_pipeline_name(name: str) -> str:
    """Return `name`, or raise ConfigurationError if it cannot be a pipeline's name."""
    return _check("pipeline", name, PIPELINE_LENGTH)


def check_sink_name(name: str) -> str:
    """Return `name`, or raise ConfigurationError if it cannot be a sink's name."""
    return _check("sink", name, SINK_LENGTH)


def _check(what: str, name: str, length: int) -> str:
    if not isinstance(name, str) or not _PART.fullmatch(name) or len(name) > length or name in {".", ".."}:
        raise ConfigurationError(
            f"{what} name {name!r} is not usable: give 1 to {length} characters out of letters, digits, "
            "'.', '_' and '-', but not '.' or '..' alone"
        )
    return name


class Scope(NamedTuple):
    """Whose transactions: exactly this sink of exactly this pipeline, as kept by exactly this decision log."""

    pipeline: str
    sink: str
    log: str
    """Identity of the decision log (8 hex digits): a fresh log under an old name is another writer, not a successor."""

    @property
    def head(self) -> str:
        """How the names of this sink of this pipeline begin, whatever log keeps them.

        For keys and filters; what a filter finds is parsed and compared, never believed.
        """
        return f"{FORMAT}:{self.pipeline}:{self.sink}"

    def is_sink(self, pipeline: str, sink: str) -> bool:
        """Whether this is exactly that sink of that pipeline, whatever log keeps it (invariant 9)."""
        return (self.pipeline, self.sink) == (pipeline, sink)


class TransactionName(NamedTuple):
    """Name of a transaction that one attempt of one subtask uses once and never again (a PostgreSQL gid).

    At most 183 bytes: PostgreSQL allows 199.
    """

    scope: Scope
    start: int
    epoch: int
    subtask: int
    attempt: int
    unique: str

    def __str__(self) -> str:
        numbers = f"{self.start}:{self.epoch}:{self.subtask}:{self.attempt}"
        return f"{self.scope.head}:{self.scope.log}:{numbers}:{self.unique}"


def file_name(transaction: str) -> str:
    """A transaction's name as that of a file or folder.

    A colon will not do: Hadoop's paths take what precedes it for a scheme, so Spark and HDFS cannot read such a file;
    Windows and SMB shares cannot hold one. "=" would look like a partition's folder to readers of Hive's layout.
    """
    return transaction.replace(":", _IN_FILE_NAMES)


def parse_file_name(text: str) -> TransactionName | None:
    """Read what file_name made of a TransactionName; None for anything else."""
    return None if ":" in text else parse_transaction_name(text.replace(_IN_FILE_NAMES, ":"))


class PooledName(NamedTuple):
    """Name of a transaction that one process uses again and again (a Kafka transactional id). At most 249 bytes."""

    scope: Scope
    unique: str
    slot: int
    start: int | None = None
    """Position of the only START under which the name is used; None for a name that a session's STARTs share."""

    def __str__(self) -> str:
        start = "" if self.start is None else f"{self.start}:"
        return f"{self.scope.head}:{self.scope.log}:{start}{self.unique}:{self.slot}"


class AcceptedName(NamedTuple):
    """Name by which a target that cannot store a claim remembers that one decision log accepts what another wrote."""

    scope: Scope
    other: str
    """Identity of the other log."""

    def __str__(self) -> str:
        return f"{self.head(self.scope)}{self.other}"

    @staticmethod
    def head(scope: Scope) -> str:
        """How all such names of a scope begin."""
        return f"{ACCEPTS}:{scope.pipeline}:{scope.sink}:{scope.log}:"


def parse_accepted_name(text: str) -> AcceptedName | None:
    """Read a name built by AcceptedName; None for anything else."""
    fields = _fields(text, 1, ACCEPTS)
    return AcceptedName(fields[0], fields[1][0]) if fields is not None and _UNIQUE.fullmatch(fields[1][0]) else None


def parse_transaction_name(text: str) -> TransactionName | None:
    """Read a name built by TransactionName; None for anything else."""
    fields = _fields(text, 5)
    if fields is None:
        return None
    scope, (start, epoch, subtask, attempt, unique) = fields
    numbers = [number for part in (start, epoch, subtask, attempt) if (number := _number(part)) is not None]
    if len(numbers) != 4 or not _UNIQUE.fullmatch(unique):  # noqa: PLR2004 - the four numbers of the name
        return None
    return TransactionName(scope, numbers[0], numbers[1], numbers[2], numbers[3], unique)


def parse_pooled_name(text: str) -> PooledName | None:
    """Read a name built by PooledName; None for anything else."""
    fields = _fields(text, 2) or _fields(text, 3)
    if fields is None:
        return None
    scope, (*start_text, unique, slot_text) = fields
    slot, start = _number(slot_text), _number(start_text[0]) if start_text else None
    if slot is None or (start_text and start is None) or not _UNIQUE.fullmatch(unique):
        return None
    return PooledName(scope, unique, slot, start)


def _fields(text: str, count: int, kind: str = FORMAT) -> tuple[Scope, list[str]] | None:
    head = kind + ":"
    if not text.startswith(head):
        return None
    pipeline, *rest = text[len(head) :].split(":")
    if len(rest) != count + 2 or not all(_PART.fullmatch(part) for part in (pipeline, rest[0])):
        return None
    if not _UNIQUE.fullmatch(rest[1]):
        return None
    return Scope(pipeline, rest[0], rest[1]), rest[2:]


def _number(text: str) -> int | None:
    if text.isascii() and text.isdigit() and str(int(text)) == text:
        return int(text)
    return None
