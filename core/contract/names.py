"""The one place where names of transactions are built and read, and where it is said whose they are.

Invariant 9: whatever does not carry this pipeline's exact name is never touched. A name is therefore never
compared by prefix; it is parsed whole, field by field, and every field is checked.

A target remembers the decision log that owns its names, and how far that log had come at its last commit. So it can
refuse a log that would write its input a second time: another log (the checkpoint folder was deleted), or an outdated
copy of this one (the folder was restored from a backup).
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ..errors import ConfigurationError, EpochConflictError

FORMAT = "onceward:1"
ACCEPTS = "onceward-accepts:1"
PIPELINE_LENGTH = 64
SINK_LENGTH = 32
_PART = re.compile(r"[A-Za-z0-9._-]+")
_UNIQUE = re.compile(r"[0-9a-f]{4,32}")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
_IN_FILE_NAMES = "~"
"""Character in place of ":" in the names of files; no part of a name holds either."""


def check_pipeline_name(name: str) -> str:
    """Return `name`, or raise ConfigurationError if it cannot be a pipeline's name."""
    return _check("pipeline", name, PIPELINE_LENGTH)


def check_sink_name(name: str) -> str:
    """Return `name`, or raise ConfigurationError if it cannot be a sink's name."""
    return _check("sink", name, SINK_LENGTH)


def is_sink_name(name: object) -> bool:
    """Return whether a sink can have this name."""
    return isinstance(name, str) and bool(_PART.fullmatch(name)) and len(name) <= SINK_LENGTH


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
        """The beginning of the names of this sink of this pipeline, whatever log keeps them.

        For keys and filters; what a filter finds is parsed and compared, never believed.
        """
        return f"{FORMAT}:{self.pipeline}:{self.sink}"

    def is_sink(self, pipeline: str, sink: str) -> bool:
        """Return whether this is exactly that sink of that pipeline, whatever log keeps it (invariant 9)."""
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
    """Return a transaction's name in the form for a file or folder.

    A colon will not do: Hadoop's paths take what precedes it for a scheme, so Spark and HDFS cannot read such a file;
    Windows and SMB shares cannot hold one. "=" would look like a partition's folder to readers of Hive's layout.
    """
    return transaction.replace(":", _IN_FILE_NAMES)


def parse_file_name(text: str) -> TransactionName | None:
    """Parse a name that file_name made of a TransactionName; None for anything else."""
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
        """Return the beginning of all such names of a scope."""
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
    scope, (*numbers, unique) = fields
    if not all(map(_NUMBER.fullmatch, numbers)) or not _UNIQUE.fullmatch(unique):
        return None
    start, epoch, subtask, attempt = map(int, numbers)
    return TransactionName(scope, start, epoch, subtask, attempt, unique)


def parse_pooled_name(text: str) -> PooledName | None:
    """Read a name built by PooledName; None for anything else."""
    fields = _fields(text, 2) or _fields(text, 3)
    if fields is None:
        return None
    scope, (*start, unique, slot) = fields
    if not all(map(_NUMBER.fullmatch, (*start, slot))) or not _UNIQUE.fullmatch(unique):
        return None
    return PooledName(scope, unique, int(slot), int(start[0]) if start else None)


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


_CHOICES: Final = (
    "Choices: bring back the checkpoint (or store) that belongs to this pipeline; give the pipeline another name; or, "
    'if the target was emptied, or the rows should be written again, rewind on purpose with rewind="the reason"'
)


class Progress(NamedTuple):
    """The progress of a decision log, or the part of it that a target has seen; compared as a tuple.

    Generations, unlike epochs, never go back: a rewound pipeline writes older epochs under a newer START.
    """

    generation: int
    """Position of the writer's START."""
    epoch: int


NOTHING: Final = Progress(-1, -1)
"""No decision, or no commit."""


class Reached(NamedTuple):
    """The newest epoch that a sink has committed, as its target must know it: that of its transactions."""

    generation: int
    """Position of the START of the newest writer whose transactions it has."""
    epoch: int
    transactions: int = 0
    """Number of its transactions that were committed; 0 if an older version wrote this."""

    @property
    def progress(self) -> Progress:
        """Without their number, to be compared."""
        return Progress(self.generation, self.epoch)


class Remembered(NamedTuple):
    """What a target remembers of one decision log under the names of a pipeline and sink."""

    owned: bool
    """True if it knows the log as the owner of the pipeline's and sink's names."""
    progress: Progress
    """Newest commit of this log in the target since a rewind; NOTHING if it has none."""
    lost: str = ""
    """Proven loss of the target, in words, whatever the decision log knows of it; empty if there is none."""
    transactions: int | None = None
    """Number of transactions of its newest commit's epoch that it knows; None if it does not say."""


def other_log(scope: Scope, log: str, where: str, *, sink: str = "") -> EpochConflictError:
    """Make the error for names that belong to another decision log.

    Args:
        scope: The names, and this log, or "" if there is none.
        log: Identity of the other log.
        where: Name of the target that says so.
        sink: Name of the sink under which the other log has written, if it differs from that of `scope`; else empty.
    """
    this = f"this is decision log {scope.log}" if scope.log else "there is no decision log yet"
    what = f"this pipeline (its sink {sink})" if sink not in ("", scope.sink) else "this pipeline and sink"
    return EpochConflictError(
        f"{where} knows {what} from decision log {log}, but {this}: either "
        "the checkpoint folder was deleted or replaced, and continuing would write its input a second time, or another "
        f"job runs under the same name. {_CHOICES}",
        pipeline=scope.pipeline,
        sink=scope.sink,
    )


def outdated_log(scope: Scope, known: Progress, newest: Progress, where: str) -> EpochConflictError:
    """Return the error for a decision log that knows less than its target.

    Args:
        scope: The names, and this log.
        known: The newest commit that the target knows.
        newest: The newest decision that the log knows.
        where: Name of the target that says so.
    """
    log = f"knows epochs up to {newest.epoch}" if newest != NOTHING else "knows of no epoch"
    return EpochConflictError(
        f"this decision log is an outdated copy: {where} holds epoch {known.epoch} (generation {known.generation}) of "
        f"it, and the log {log}. Was the checkpoint folder restored from a backup? Continuing would write the epochs "
        f"since then a second time. {_CHOICES}",
        pipeline=scope.pipeline,
        sink=scope.sink,
        epoch=known.epoch,
    )
